"""`--best` chooses among a table's runs by numbers that no table shows; a served run says which cell it fills."""

import json
from types import SimpleNamespace

import pytest

from retable.platform.api import TrainedRun
from retable.platform.config import override
from retable.platform.errors import UserError
from retable.platform.report.results import Cell, FilledColumn, FilledReplicate, FilledRow, FilledTable
from retable.platform.report.write import kept_tables
from retable.platform.spec.table import Origin, resolve
from retable.platform.spec.task import find
from retable.platform.store.run import RunFolder
from retable.serve.launch import choice, models
from retable.tasks.weather.config import View
from tests.weather.toys import config

TASK = find("weather")


@pytest.fixture
def finished(storage):
    """Write a finished run with scores on validation and test, as they are kept; return its fingerprint."""

    def make(seed, validation, test):
        chosen = config(seed=seed)
        folder = RunFolder.of(storage, TASK, chosen)
        folder.begin(chosen, TASK.version, {"scale": "small", "changed": [], "data": {"source": "generated"}})
        folder.folder.write_json("result.json", {"data": "d", "metrics": {}, "weights": {"2": "w"}})
        for split, value in {"validation": validation, "test": test}.items():
            for view in ({"split": split}, {"split": split, "threshold": 0.5}):
                scores = {"iou": value, "recall": 1 - value}
                folder.save_scores(resolve(override(View(), view), chosen), "w", scores, 0.0)
        return folder.fingerprint

    return make


def fill(storage, rows, name="weather/table1", scale="small", columns=("Total", "2019")):
    """Keep a filled table: label -> (fingerprint, values of the columns, members)."""
    filled = tuple(
        FilledRow(
            label, "", (FilledReplicate({}, Origin(run, members=tuple(map(Origin, members))), (), {}),),
            tuple(Cell((value,)) for value in values),
        )
        for label, (run, values, members) in rows.items()
    )  # fmt: skip
    headers = tuple(FilledColumn(header, ".2f") for header in columns)
    table = FilledTable(name, "a table", scale, "", {}, False, headers, filled, (), {}, (), "")
    slug = f"{name.replace('/', '-')}-{scale}"
    storage.write_json(f"tables/{slug}.json", {"table": name, "scale": scale, "set": {}})
    storage.write(f"report/{slug}.json", json.dumps({"table": table.as_json()}).encode())


@pytest.fixture
def exported(monkeypatch):
    """Runs are exported as their fingerprint: what is chosen is tested here."""
    made = lambda run, why, *_: (run.fingerprint, why)  # noqa: E731
    monkeypatch.setattr(choice, "of_run", made)


def test_the_best_of_a_table_is_the_best_on_validation_among_its_runs(finished, storage, exported, monkeypatch):
    worse, better, elsewhere = finished(1, 0.1, 0.9), finished(2, 0.3, 0.2), finished(3, 0.8, 0.1)
    fill(storage, {"single": (worse, (0.9, 0.9), ()), "vote": ("combination", (0.95, 0.9), (worse, better))})
    asked, score = [], TrainedRun.score
    monkeypatch.setattr(TrainedRun, "score", lambda run, view: asked.append(view["split"]) or score(run, view))
    ((run, why),) = choice.best_of("weather/table1", storage)
    assert run == better != elsewhere and "validation IoU at 0.5 0.3, the best of 2" in why
    ((run, why),) = choice.best_of("weather/table1/recall", storage)  # the other one is best by this
    assert run == worse and "validation recall 0.9, the best of 2" in why
    assert set(asked) == {"validation"}  # no test score is even read


def test_what_would_be_chosen_by_a_table_s_own_numbers_is_refused(finished, storage, exported):
    fill(storage, {"single": (finished(1, 0.1, 0.9), (0.9, 0.9), ())})
    for named, why in {
        "weather/table1/iuo": "no metric 'iuo'; did you mean 'iou'",
        "weather/table9": "no table 'weather/table9'",
        "rl/table1": "has no run of it; `retable reproduce rl/table1` makes them",
        "wether/table1": "no task",
    }.items():
        with pytest.raises(UserError, match=why):
            choice.best_of(named, storage)
    run = type("Run", (), {"task": find("rl")})
    with pytest.raises(UserError, match=r"rl has no validation split to choose by; --best rl/table1 chooses among"):
        choice.by_metric("rl/table1/return", "return", None, [run])


def test_kept_tables_are_read_once_for_all_runs(finished, storage, monkeypatch):
    """On a bucket with many policies, reading them again for each was most of the wait."""
    runs, reads = [finished(seed, 0.1, 0.1) for seed in (1, 2)], []
    monkeypatch.setattr(choice, "kept_tables", lambda storage: reads.append("all") or [])
    monkeypatch.setattr(choice.contract, "exporter", lambda task: SimpleNamespace(write_export=lambda run: b""))
    monkeypatch.setattr(choice, "of_file", lambda task, name, *_: models.Model(task=task, name=name, sha256="a"))
    choices = {run: SimpleNamespace(run=choice.api.load(run, storage), line=lambda: "a: b") for run in runs}
    assert [model.name for model in choice.of_choices(choices, storage)] == sorted(runs) and reads == ["all"]
    assert len(choice.choose_models(choice.Wanted(runs=runs), storage)) == 2 and reads == ["all", "all"]


def test_named_tables_exclude_runs_and_the_zoo(storage):
    for wanted in (choice.Wanted(best=["rl/table1"], zoo=True), choice.Wanted(best=["rl/table1"], runs=["ab"])):
        with pytest.raises(UserError, match="exclude each other"):
            choice.choose_models(wanted, storage)
    with pytest.raises(UserError, match="--best rl/table1: rl/figure1 is of its task, too; name one table a task"):
        choice.choose_models(choice.Wanted(best=["rl/table1", "rl/figure1"]), storage)
    with pytest.raises(UserError, match="--index x: no model of audio is served"):
        choice.choose_models(choice.Wanted(["style"], zoo=True, index="x"), storage)
    with pytest.raises(UserError, match="weather is not among the tasks to serve"):
        choice.choose_models(choice.Wanted(["rl"], best=["weather/table1"]), storage)


def test_a_task_named_twice_is_served_once(storage):
    models = choice.choose_models(choice.Wanted(["rl", "rl"], zoo=True), storage)
    assert len({model.sha256 for model in models}) == len(models) > 1


@pytest.mark.parametrize("task", ["rl", "style", "audio", "weather"])
def test_only_models_that_answer_any_file_say_which_files_they_take(storage, task):
    name = sorted(choice.zoo.zoo(task))[0]
    model = choice.of_file(task, name, choice.zoo.read(task, name), "", storage)
    assert model.name and "files" not in model.about


def test_a_run_says_which_cell_it_fills(storage):
    fill(storage, {"a": ("11", (None, 0.5), ()), "vote": ("22", (0.9, 0.9), ("11", "33"))}, scale="smoke")
    fill(storage, {"b": ("11", (0.7, 0.5), ())}, "weather/table2")
    old = {"columns": [], "claims": [], "rows": [], "data": [], "axes": []}
    for number, text in enumerate(("{half", json.dumps({"table": old})), 3):
        storage.write(f"report/weather-table{number}-small.json", text)
        request = {"table": f"weather/table{number}", "scale": "small", "set": {}}
        storage.write_json(f"tables/weather-table{number}-small.json", request)
    tables = kept_tables(storage)

    def cell(run, scale, **about):
        told = {"fingerprint": run, "scale": scale, **about}
        return choice.cell_of(models.Model(task="weather", name="w", sha256="", about=told), tables)

    assert cell("11", "smoke") == "weather/table1/a/2019"
    assert cell("11", "small") == "weather/table2/b/Total"
    assert cell("33", "small") == ""  # of the vote it is a part
    assert cell("11", "smoke", epoch=3, config={"epochs": 4}) == ""  # these weights made no number
    assert [sorted(choice.runs_of(table)) for table in tables] == [["11", "22", "33"], ["11"]]


@pytest.mark.parametrize(
    ("scales", "compared"),
    [(["smoke"], None), (["quick", "smoke"], None), (["smoke", "small"], ["small"]), (["small"], ["small"])],
)
def test_runs_that_were_trained_for_minutes_give_way(storage, monkeypatch, capsys, scales, compared):
    """After `make reproduce`, `make serve` played policies of one update and painted with a network of two steps."""
    storage.write("runs/weather/x/config.json", b"{}")
    monkeypatch.setattr(choice.contract, "selector", lambda task: SimpleNamespace(best=lambda runs: runs))
    monkeypatch.setattr(choice, "eligible_runs", lambda task, storage: scales)
    monkeypatch.setattr(choice, "scale_of", lambda run: run)
    monkeypatch.setattr(choice, "of_choices", lambda chosen, storage: list(chosen))
    assert choice.best("weather", storage) == (compared or [])
    told = capsys.readouterr().err
    assert ("models of the zoo are served in place of" in told) == (compared is None)
    mixed = compared is not None and len(compared) < len(scales)
    assert ("longer runs are served in place of 1 run" in told) == mixed
    monkeypatch.setattr(choice.zoo, "zoo", lambda task: {})
    assert choice.best("weather", storage) == (compared or scales), "without a zoo there is nothing better"
