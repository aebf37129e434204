"""Five published checkpoints become the paper's vote and its two submissions, and nothing is trained on the way."""

import json
from pathlib import Path

import numpy as np
import pytest

from retable.platform.cli import app
from retable.platform.config import set_line
from retable.platform.execute.session import ray_cluster
from retable.platform.spec.task import find
from retable.platform.store.run import RunFolder
from retable.platform.store.storage import Storage
from retable.tasks.weather import cli
from retable.tasks.weather.config import CORE_REGIONS, TRANSFER_REGIONS
from retable.tasks.weather.tables import TABLE2, VOTERS
from retable.tasks.weather.tools.forecasts import submission
from retable.tasks.weather.tools.forecasts.adopt import rows_of
from retable.tasks.weather.w4c.prepare import index_folder
from tests.weather.files import Layout, hdf5_path
from tests.weather.tools.test_adopt import LABELS, SIZE, TABLE, published
from tests.weather.tools.test_submission import read

CHANGES = {"data": "tiny", "forecast": 8}
ASKED = {"sequences": 1, "forecast": 8, "size": SIZE}


@pytest.fixture(scope="module")
def cluster():
    with ray_cluster():
        yield


def made(where):
    """Write what the organisers give, small: of the transfer's regions and year the inputs of the tests alone."""
    storage = Storage.open(where)
    root = Path((storage / "data/weather/tiny").root)
    regions = (*CORE_REGIONS, *TRANSFER_REGIONS)
    layout = Layout(size=SIZE, sequences=1, regions=regions, years=(2019, 2020, 2021), targets=False, runs=(40, 30, 20))
    for name in layout.write(root)["series"]:
        year, region, split = name.split("/")
        if split in ("training", "validation") and (year == "2021" or region in TRANSFER_REGIONS):
            for kind in ("satellite", "rain"):
                (root / hdf5_path(name, kind)).unlink()
    assert index_folder(storage / "data/weather/tiny", "tiny", "own")["holdout"] == "local"
    return storage


@pytest.mark.slow
def test_the_vote_of_published_checkpoints_is_filled_and_submitted(cluster, tmp_path, capsys):
    storage = made(tmp_path / "results")
    published(tmp_path / "checkpoints", changes=CHANGES)
    lines = [word for word in set_line(CHANGES).split() if word != "--set"]
    cli.adopt(tmp_path / "checkpoints", TABLE, storage.root, lines)
    assert "--no-train" in capsys.readouterr().out
    changes = [word for line in [*lines, "seed=0"] for word in ("--set", line)]
    command = ["reproduce", TABLE, "--scale", "paper", *changes, "--storage", storage.root, "--no-train"]
    app.app(command, standalone_mode=False)
    said = capsys.readouterr().out
    assert f"{TABLE}: left out, not trained: BASELINE bce, crop and mask put right" in said
    wanted, task = rows_of(TABLE, CHANGES), find("weather")
    runs = {label: RunFolder.of(storage, task, wanted[label].config) for label in LABELS}
    trained = Path(storage.root, "runs/weather")
    assert {path.name for path in trained.iterdir()} == {run.fingerprint for run in runs.values()}
    for log in trained.glob("*/metrics.jsonl"):
        assert all(json.loads(line)["step"] == 0 for line in log.read_text().splitlines())
    assert not list(trained.glob("*/checkpoint-*")) and not list(trained.glob("*/attempts"))
    part = json.loads(next(Path(storage.root, "report").glob("weather-table2-*.json")).read_text())
    rows = {row["label"]: row["replicates"] for row in part["table"]["rows"]}
    joined = {row.label for row in TABLE2.rows if hasattr(row, "of") and {*row.of} <= {*LABELS}}
    assert {label for label, found in rows.items() if found} == {*LABELS, *joined} and len(joined) == 3
    assert part["complete"] is False
    voters = [f"{runs[voter.label].fingerprint}@{wanted[voter.label].epoch}" for voter in VOTERS]
    assert len({name.split("@")[0] for name in voters}) == 4  # epochs 4 and 5 of one run
    for transfer, asked in ((False, submission.CORE), (True, submission.TRANSFER)):
        cli.submit(voters, tmp_path / f"{transfer}.zip", storage.root, transfer=transfer, threshold="0.5")
        found = {(year, region): rain for year, region, rain in read(tmp_path / f"{transfer}.zip")}
        assert sorted(found) == sorted(asked) and len(found) == (16 if transfer else 14)
        assert submission.check(tmp_path / f"{transfer}.zip", asked, **ASKED) == []
        assert 0 < np.mean([rain.mean() for rain in found.values()]) < 1
