"""What a file says of its run: the scale that it is of, whatever was changed by hand."""

import pytest
import torch

from retable.platform.api import TrainedRun
from retable.platform.errors import UserError
from retable.platform.models import export
from retable.platform.models.export import scale_of
from retable.platform.spec.task import config_at, find
from retable.platform.store.run import RunFolder
from retable.platform.store.storage import Storage

RL = find("rl")


def run(tmp_path, changes, made, scale="paper"):
    storage = Storage.open(tmp_path)
    config = config_at(RL, scale, changes)
    folder = RunFolder.of(storage, RL, config)
    folder.begin(config, RL.version, made)
    return TrainedRun(RL, folder, config)


@pytest.mark.parametrize(
    ("made", "changes", "wanted"),
    [
        ({"scale": "small", "changed": []}, {"epochs": 3, "steps": 1000}, "small"),
        ({"scale": "small", "changed": ["prune"]}, {"epochs": 2, "steps": 1000}, "small"),  # its row's own epochs
        ({"scale": "paper", "changed": ["epochs"]}, {"epochs": 10, "steps": 1000}, "small"),
        ({"scale": "small", "changed": ["batch"]}, {"batch": 50}, "small"),
        ({"scale": "small", "changed": ["epochs"]}, {"epochs": 20, "steps": 1000}, "small"),
        ({"scale": "paper", "changed": ["epochs"]}, {"epochs": 1, "steps": 10}, "smoke"),
        ({"scale": "paper", "changed": ["steps"]}, {"epochs": 1, "steps": 9}, ""),
        ({"scale": "", "changed": []}, {}, ""),
        ({}, {}, ""),
        ({"scale": "huge", "changed": []}, {}, ""),
    ],
)
def test_a_run_knows_its_scale_however_it_was_started(tmp_path, made, changes, wanted):
    made = {"command": "notebook.py --scale paper", **made}
    assert scale_of(run(tmp_path, changes, made)) == wanted


def test_a_file_is_opened_or_refused_in_one_line(monkeypatch):
    good = export.sealed({"x": torch.ones(2)}, {"format": "lines 1", "size": "3"})
    metadata, tensors = export.opened(good, "m", "line", "export it again", "lines 0", "lines 1")
    assert metadata == {"format": "lines 1", "size": "3"} and torch.equal(tensors["x"], torch.ones(2))
    for data, form, reason in (
        (good, "lines 2", "no line of this task, or not the whole file"),
        (good[:20], "lines 1", "no line of this task, or not the whole file"),
        (b"", "lines 1", "no line of this task, or not the whole file"),
        (good[:-3], "lines 1", r"a damaged line \(.*\)"),
    ):
        with pytest.raises(UserError, match=f"^m: {reason}; export it again$"):
            export.opened(data, "m", "line", "export it again", form)
    monkeypatch.setattr(export, "LARGEST", 10)
    with pytest.raises(UserError, match=r"^m: [\d,]+ bytes; no exported file is larger"):
        export.opened(good, "m", "line", "export it again", "lines 1")
