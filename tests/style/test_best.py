"""Each painting's network is chosen by photographs that no table shows."""

from importlib import import_module

import pytest

from retable.platform.api import TrainedRun
from retable.platform.config import override
from retable.platform.errors import UserError
from retable.platform.models.select import eligible_runs
from retable.platform.spec.table import resolve
from retable.platform.spec.task import find
from retable.platform.store.run import RunFolder
from retable.tasks.style.best import best
from retable.tasks.style.config import View
from retable.tasks.style.files import assets
from tests.tiny import IMAGE, tiny

TASK = find("style")
INFO = {"source": "generated", "digest": "d", "test": ["test/lake.jpg", "test/coffee.jpg", "test/moon.jpg"]}


def finished(storage, unseen, shown, info=INFO, **changes):
    """Write a finished run with its errors on the photographs of the choice and on those that tables show."""
    storage.write_json("data/style/tiny/dataset.json", info)
    config = tiny("style", changes)
    folder = RunFolder.of(storage, TASK, config)
    folder.begin(config, TASK.version, {"scale": "small", "changed": [], "data": info})
    folder.folder.write_json("result.json", {"data": "d", "metrics": {}, "weights": {str(config.epochs): "w"}})
    for content, value in {("lake", "moon"): unseen, (): shown, ("coffee",): shown}.items():
        view = resolve(override(View(), {"content": list(content)}), config)
        folder.save_scores(view, "w", {"style_error": value, "content_error": 1.0}, 0.0)
    return TrainedRun(TASK, folder, config)


def test_each_painting_has_its_best_by_photographs_of_no_table(storage):
    finished(storage, 3.0, 0.1, style=["great_wave"], seed=1)
    wave = finished(storage, 2.0, 9.0, style=["great_wave"])
    both = finished(storage, 5.0, 9.0, style=["great_wave", "starry_night"])
    finished(storage, 0.0, 0.0, **IMAGE)
    found = best(eligible_runs("style", storage))
    assert {key: choice.run.fingerprint for key, choice in found.items()} == {
        "great_wave": wave.fingerprint,
        "great_wave+starry_night": both.fingerprint,
    }
    assert found["great_wave"].value == 3.0 and found["great_wave"].among == 2


def test_where_tables_show_all_photographs_none_is_chosen(storage):
    finished(storage, 3.0, 0.1, {**INFO, "test": ["test/coffee.jpg"]})
    with pytest.raises(UserError, match=r"no run for great_wave: .*put others into test/"):
        best(eligible_runs("style", storage))


def test_tables_show_none_but_the_shipped_photographs():
    tables = import_module("retable.tasks.style.tables")  # the package has a function of that name
    assert set(tables.PHOTOGRAPHS) == set(assets.PHOTOGRAPHS)
