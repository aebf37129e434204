"""Plans: every piece of work once, parents first, and the truth about what lies on the storage."""

import json
from dataclasses import replace

import pytest

from retable.platform import api
from retable.platform.cli import app as cli
from retable.platform.config import override
from retable.platform.errors import UserError
from retable.platform.execute.scoring import measure_one
from retable.platform.plan import plan as planning
from retable.platform.plan.plan import compile_configs, compile_plan, left_out, name_of, name_of_view
from retable.platform.spec.table import Combined, Measurement, Row, Table, resolve, stored_as, stored_key
from retable.platform.spec.task import find, find_table
from retable.platform.store.run import RunFolder
from retable.tasks.line import mean
from retable.tasks.line.config import Config, View

LINE, TABLE = find_table("line/table1")


def measure(config):
    return {"seconds": 1.0}


def planned(storage, *rows, name="line/t", **changes):
    table = replace(TABLE, **{"rows": rows, "over": {}, **changes})
    return compile_plan({name: (LINE, table)}, storage)


def folder_of(storage, **changes):
    return RunFolder.of(storage, LINE, override(Config(), changes))


def finish(folder, epochs=(3,), digest="64 points"):
    weights = {str(epoch): f"digest {epoch}" for epoch in epochs}
    folder.folder.write_json("result.json", {"metrics": {}, "data": digest, "weights": weights})


def statuses(plan):
    return [training.status for training in plan.trainings.values()]


def test_the_toys_table_needs_each_training_once(storage):
    plan = compile_plan({"line/table1": (LINE, TABLE)}, storage)
    wanted = [
        (seed, rate, wave) for seed in (0, 1) for rate, wave in [(0.001, 0), (0.1, 0), (0.01, 1)]
    ]  # slow, fast (with two views), and fine-tuned from fast
    found = [(t.config.seed, t.config.rate, t.wave) for t in plan.trainings.values()]
    assert sorted(found) == sorted(wanted)
    assert len(plan.scorings) == 8  # four viewed rows, two seeds
    assert list(plan.replicates["line/table1"]) == ["slow", "fast", "fast, first epoch", "fine-tuned", "as printed"]
    assert plan.replicates["line/table1"]["as printed"] == []
    kept = {(t.config.seed, t.config.rate): t.keep for t in plan.trainings.values()}
    assert kept == {(s, r): (1, 3) if r == 0.1 else (3,) for s in (0, 1) for r in (0.001, 0.1, 0.01)}


def test_a_set_seed_is_the_only_one(storage):
    plan = api.plan("line/table1", "line/figure1", set={"seed": 7}, storage=str(storage))
    assert {t.config.seed for t in plan.trainings.values()} == {7}
    assert {need.axes["seed"] for rows in plan.replicates.values() for needs in rows.values() for need in needs} == {7}


def test_two_rows_and_two_tables_share_one_training(storage):
    first = replace(TABLE, rows=(Row(label="a", view={}), Row(label="b", view={"epoch": 2})), over={})
    second = replace(TABLE, rows=(Row(label="c", overrides={"rate": 0.1}), Row(label="d", view={"epoch": 1})), over={})
    plan = compile_plan({"line/x": (LINE, first), "line/y": (LINE, second)}, storage)
    (training,) = plan.trainings.values()
    assert training.keep == (1, 2, 3) and training.config == Config()
    assert sorted(scoring.view.epoch for scoring in plan.scorings.values()) == [1, 2, 3]
    assert [list(rows) for rows in plan.replicates.values()] == [["a", "b"], ["c", "d"]]


def test_rows_that_are_absent_at_this_scale_need_nothing(storage):
    rows = (
        Row(label="a", absent="left out"),
        Measurement(label="m", measure=measure, absent="left out"),
        Combined(label="c", of=("a",), combine=mean, absent="left out"),
    )
    plan = planned(storage, *rows)
    assert not plan.trainings and not plan.timings and not plan.combinings and not plan.replicates["line/t"]


def test_children_come_in_waves_behind_their_parents(storage):
    overrides = [("init", "parent"), ("init.checkpoint", 2), ("rate", 0.5)]
    grandchild = Row(label="g", overrides={"init": "parent", "init.overrides": overrides, "rate": 0.25})
    plan = planned(storage, grandchild, Row(label="p"))
    assert [(t.config.rate, t.wave, t.keep) for t in plan.missing] == [
        (0.1, 0, (2, 3)),
        (0.5, 1, (3,)),
        (0.25, 2, (3,)),
    ]


def test_a_short_plan_begins_with_its_longest_chain(storage):
    child = Row(label="c", overrides={"init": "parent", "rate": 0.25, "epochs": 50})
    rows = [Row(label="short", overrides={"epochs": 1}), Row(label="long", overrides={"epochs": 40}), child]
    plan = planned(storage, *rows)
    order = sorted(plan.trainings.values(), key=plan.start_order)
    assert [(t.config.rate, t.config.epochs) for t in order] == [(0.1, 3), (0.25, 50), (0.1, 40), (0.1, 1)]


def test_a_run_is_new_then_to_be_continued_then_done(storage):
    folder = folder_of(storage)
    row = Row(label="a")
    assert statuses(planned(storage, row)) == ["new"]
    folder.folder.write("checkpoint-00000001/state.pt", b"half")
    assert statuses(planned(storage, row)) == ["new"]
    folder.save_checkpoint(2, {"weights": {}})
    plan = planned(storage, row)
    assert statuses(plan) == ["to be continued"] and len(plan.missing) == 1
    finish(folder)
    plan = planned(storage, row)
    assert statuses(plan) == ["done"] and plan.missing == [] and plan.cost == 0


def test_a_finished_run_of_other_data_does_not_count(storage):
    LINE.dataset.prepare(Config(), storage)
    finish(folder_of(storage))
    assert statuses(planned(storage, Row(label="a"))) == ["done"]
    storage.write_json("data/line/points/dataset.json", {"points": 64, "digest": "others"})
    plan = planned(storage, Row(label="a", view={}))
    assert statuses(plan) == ["data changed"] and len(plan.missing) == len(plan.unscored) == 1


def test_a_finished_run_that_did_not_keep_an_epoch_is_trained_again(storage):
    finish(folder_of(storage), (2, 3))
    assert statuses(planned(storage, Row(label="a", view={"epoch": 2}), Row(label="b", view={}))) == ["done"]
    assert statuses(planned(storage, Row(label="b", view={}), Row(label="a", view={"epoch": 1}))) == [
        "weights not kept"
    ]


@pytest.mark.parametrize("epochs", [(3, 1), (1, 3)])
def test_all_views_of_a_run_whose_weights_were_not_kept_are_scored_again(storage, epochs):
    folder = folder_of(storage)
    finish(folder)
    folder.save_scores(View(epoch=3), "digest 3", {"rmse": 1.0}, 0.0)
    plan = planned(storage, *(Row(label=str(epoch), view={"epoch": epoch}) for epoch in epochs))
    assert statuses(plan) == ["weights not kept"] and len(plan.unscored) == 2


def test_a_task_whose_version_was_raised_has_new_runs(storage):
    finish(folder_of(storage))
    newer = replace(LINE, version=LINE.version + 1)
    plan = compile_plan({"line/t": (newer, replace(TABLE, rows=(Row(label="a"),), over={}))}, storage)
    assert statuses(plan) == ["new"]


def test_a_view_is_done_when_it_was_scored_from_the_weights_that_are_there(storage):
    folder, row = folder_of(storage), Row(label="a", view={})
    folder.save_scores(View(epoch=3), "digest 3", {"rmse": 1.0}, 0.0)
    assert len(planned(storage, row).unscored) == 1  # its run is not finished
    finish(folder)
    assert planned(storage, row).unscored == []
    folder.save_scores(View(epoch=3), "digest of others", {"rmse": 1.0}, 0.0)
    assert len(planned(storage, row).unscored) == 1


def test_the_cost_is_what_the_tasks_estimate_for_the_missing_work(storage):
    slow = Row(label="b", overrides={"rate": 0.5, "epochs": 7}, view={})
    rows = (Row(label="a", view={}), Row(label="again", view={}), slow)
    assert planned(storage, *rows).cost == pytest.approx(0.01 * 3 + 0.01 * 7 + 0.01 * 2)
    finish(folder_of(storage))
    assert planned(storage, *rows).cost == pytest.approx(0.01 * 7 + 0.01 * 2)


def test_missing_trainings_are_grouped_by_what_can_be_stacked(storage):
    child = Row(label="c", overrides={"init": "parent"})
    rows = (Row(label="a"), Row(label="b", overrides={"rate": 0.5}), child)
    table = replace(TABLE, rows=rows, over={"seed": (0, 1)})
    plan = compile_plan({"line/t": (replace(LINE, group=lambda config: config.rate), table)}, storage)
    groups = {key: [t.config.seed for t in group] for key, group in plan.groups.items()}
    assert groups == {("line", 0, 0.1): [0, 1], ("line", 0, 0.5): [0, 1], ("line", 1, 0.1): [0, 1]}


def test_a_combined_row_joins_its_members_point_by_point(storage):
    rows = (
        Row(label="a", view={}),
        Row(label="b", overrides={"rate": 0.5}, view={"epoch": 2}),
        Combined(label="both", of=("b", "a"), combine=mean),
    )
    plan = planned(storage, *rows, over={"seed": (0, 1)})
    assert [dict(c.axes) for c in plan.combinings] == [{"seed": 0}, {"seed": 1}]
    members = [[(m.config.seed, m.config.rate, m.view.epoch) for m in c.members] for c in plan.combinings]
    assert members == [[(0, 0.5, 2), (0, 0.1, 3)], [(1, 0.5, 2), (1, 0.1, 3)]]
    assert len({c.path for c in plan.combinings}) == 2


def test_a_combined_row_leaves_out_points_that_a_member_lacks(storage):
    one_seed = Row(label="b", overrides={"rate": 0.5, "seed": 1}, view={})
    both = Combined(label="both", of=("a", "b"), combine=mean)
    plan = planned(storage, Row(label="a", view={}), one_seed, both, over={"seed": (0, 1)})
    assert [dict(c.axes) for c in plan.combinings] == [{"seed": 1}]
    absent = replace(one_seed, absent="left out")
    assert planned(storage, Row(label="a", view={}), absent, both, over={"seed": (0, 1)}).combinings == []


def test_a_combination_is_named_by_its_row_its_members_and_their_order(storage):
    def path(of, label="c", **view):
        rows = Row(label="a", view={}), Row(label="b", overrides={"rate": 0.5}, view=view)
        (combining,) = planned(storage, *rows, Combined(label=label, of=of, combine=mean)).combinings
        return combining.path

    paths = [path(("a", "b")), path(("b", "a")), path(("a", "b"), "d"), path(("a", "b"), epoch=1)]
    assert len(set(paths)) == 4
    assert path(("a", "b")) == paths[0]


def test_a_combinations_inputs_are_the_weights_and_data_of_its_members(storage):
    rows = Row(label="a", view={}), Row(label="b", overrides={"rate": 0.5}, view={"epoch": 1})
    plan = planned(storage, *rows, Combined(label="c", of=("a", "b"), combine=mean))
    (combining,) = plan.combinings
    finish(folder_of(storage), (3,))
    assert combining.inputs() == ["digest 3 64 points"]
    finish(folder_of(storage, rate=0.5), (1, 3))
    plan = planned(storage, *rows, Combined(label="c", of=("a", "b"), combine=mean))
    (combining,) = plan.combinings
    assert combining.inputs() == ["digest 3 64 points", "digest 1 64 points"]
    assert plan.uncombined == [combining]
    storage.write_json(combining.path, {"inputs": combining.inputs(), "metrics": {}})
    assert plan.uncombined == []
    finish(folder_of(storage, rate=0.5), (2, 3))
    assert plan.uncombined == [combining]
    finish(folder_of(storage, rate=0.5), (1, 3), "others")  # other data may well give the very same weights
    assert plan.uncombined == [combining]


def test_a_measurement_counts_for_its_device_its_config_and_its_function(storage, monkeypatch):
    row = Measurement(label="m", measure=measure, overrides={"rate": 0.5})
    monkeypatch.setattr(planning, "device_name", lambda: "Chip (R) 5, 2 cores")
    (timing,) = planned(storage, row).unmeasured
    assert timing.path.endswith("-Chip-R-5-2-cores.json") and timing.config == Config(rate=0.5)
    storage.write_json(timing.path, {"metrics": {}})
    assert planned(storage, row).unmeasured == []
    assert len(planned(storage, replace(row, overrides={})).unmeasured) == 1
    assert len(planned(storage, replace(row, measure=len)).unmeasured) == 1
    monkeypatch.setattr(planning, "device_name", lambda: "Chip 6")
    assert len(planned(storage, row).unmeasured) == 1


def measured_over(config, pictures=3, source=None):
    return {"pictures": float(pictures), "digest": float(source.info["digest"] if source else 0)}


def test_what_a_measurement_is_told_counts_where_it_is_not_the_default(storage):
    row = Measurement(label="m", measure=measured_over)
    plain, same, more = (
        planned(storage, replace(row, arguments=told)).unmeasured[0].path
        for told in ({}, {"pictures": 3}, {"pictures": 100})
    )
    assert plain == same != more and "measured_over-pictures=100-" in more


def test_a_measurement_may_read_the_data_set(storage):
    row = Measurement(label="m", measure=measured_over, arguments={"pictures": 5}, reads_data=True)
    for number, digest in enumerate(("0", "7")):
        assert measure_one(row, Config(), storage, f"measurements/line/{number}-", "line/set") is None
        (name,) = [each for each in storage.list("measurements/line") if each.startswith(f"{number}-")]
        found = storage.read_json(f"measurements/line/{name}")["metrics"]
        assert found == {"pictures": 5.0, "digest": float(digest)}
        storage.write_json("data/line/set/dataset.json", {"digest": "7"})


def test_a_measurement_of_another_device_is_shown_but_is_still_to_be_taken_here(storage, monkeypatch):
    row = Measurement(label="m", measure=measure, overrides={"rate": 0.5})
    monkeypatch.setattr(planning, "device_name", lambda: "Chip 6")
    (timing,) = planned(storage, row).timings.values()
    (replicate,) = planned(storage, row).replicates["line/t"]["m"]
    assert planning.timing_read(planned(storage, row), LINE, row, replicate) is None
    storage.write_json(f"{timing.stem}GPU-7.json", {"metrics": {}, "measured on": "fast"})
    plan = planned(storage, row)
    assert planning.timing_read(plan, LINE, row, replicate) == f"{timing.stem}GPU-7.json" and len(plan.unmeasured) == 1
    for word, left in {"fast": 0, "slow": 1}.items():
        plan.measure_on = word
        assert len(plan.unmeasured) == left
    storage.write_json(timing.path, {"metrics": {}})
    assert planning.timing_read(planned(storage, row), LINE, row, replicate) == timing.path


def test_a_field_that_a_table_misspells_is_told_with_the_tables_name(storage):
    wrong = Table(title="", rows=[Row(label="fast")], columns=(), over={"sed": (0,)})
    with pytest.raises(UserError, match=r"^line/t: .*unknown field 'sed'; did you mean 'seed'"):
        compile_plan({"line/t": (find("line"), wrong)}, storage)


def test_compiling_writes_nothing(storage):
    compile_plan({"line/table1": (LINE, TABLE)}, storage)
    assert not storage.exists()


def test_configs_without_a_table_are_planned_with_their_parents(storage):
    child = override(Config(), {"init": "parent", "rate": 0.5})
    plan = compile_configs(LINE, [child, Config(seed=1), child], storage)
    assert [(t.config.rate, t.config.seed, t.wave) for t in plan.missing] == [(0.1, 0, 0), (0.1, 1, 0), (0.5, 0, 1)]
    assert plan.unscored == [] and find("line") is LINE


@pytest.mark.parametrize("name", ["rl", "style", "weather", "audio"])
def test_every_training_of_the_papers_has_its_work_on_a_gpu(name, storage):
    """At a unit an hour of every rate there is, the hours are the units."""
    plan = api.plan(name, scale="paper", storage=storage.root)
    on_gpu = [training for training in plan.missing if training.task.needs(training.config, "train").gpus]
    assert {training.config.model.__class__.__name__ for training in plan.missing if training not in on_gpu} == {
        "weather": {"AllDry", "AllRain", "Climatology"}
    }.get(name, set()), "these ask for no GPU"
    work = [training.task.gpu_work(training.config) for training in on_gpu]
    timed = {found[0] for found in work if found}
    assert all(rate.split("/")[0] == name for rate in timed) and all(found is None or found[1] > 0 for found in work)
    hours, untimed = plan.gpu_hours(dict.fromkeys(timed, 1 / 3600))
    assert hours == pytest.approx(sum(found[1] for found in work if found)) and untimed == work.count(None)
    assert plan.gpu_hours({}) == (0, len(work))


@pytest.fixture(scope="module")
def figure(tmp_path_factory):
    """The plan of hundreds of trainings."""
    return api.plan("rl/figure1", scale="paper", storage=tmp_path_factory.mktemp("figure"))


def test_the_work_of_a_pruned_network_is_its_updates(figure):
    assert figure.gpu_hours({"rl": 1_000_000 / 3600})[0] == pytest.approx(len(figure.missing))


def test_hours_of_a_gpu_are_shown_where_they_were_measured(figure, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cli, "GPU", tmp_path / "gpu.json")
    cli.GPU.write_text(json.dumps({"tiny": False, "rates": {"rl": 20_000.0}, "machine": {"device": "NVIDIA H200"}}))
    cli.print_plan(figure)
    assert "of one NVIDIA H200 (as measured; trainings alone)" in capsys.readouterr().out


def test_names_say_what_tells_pieces_apart_and_fit_a_line(storage):
    task = find("line")
    configs = [override(task.config(), {"rate": 0.5, "pause": 0.25, "seed": seed}) for seed in (0, 1)]
    plan = compile_configs(task, configs, storage, [resolve(task.view(epoch=1), config) for config in configs])
    first, second = plan.trainings.values()
    assert name_of(first, plan.shared) == f"line [{first.folder.fingerprint[:8]}]"
    assert name_of(second, plan.shared) == f"line seed=1 [{second.folder.fingerprint[:8]}]"
    assert name_of(second) == f"line rate=0.5 pause=0.25 seed=1 [{second.folder.fingerprint[:8]}]"
    alone = compile_configs(task, configs[1:], storage)
    assert name_of(second, alone.shared) == name_of(second), "beside nothing, all of it tells"
    scoring = list(plan.scorings.values())[1]
    assert name_of_view(scoring, plan.shared) == name_of(second, plan.shared), "all views are of the first epoch"
    assert name_of_view(scoring).endswith("] as epoch=1")
    long = override(task.config(), {"rate": 0.123456, "pause": 0.001234, "batch": 16, "epochs": 30, "seed": 12345})
    (training,) = compile_configs(task, [long], storage).trainings.values()
    assert len(name_of(training)) < 50 and "…" in name_of(training)


def test_without_training_only_what_finished_runs_give_is_done(storage):
    rows = [*TABLE.rows, Measurement(label="time", overrides={}, measure=measure)]
    tables = {"line/t": (LINE, replace(TABLE, rows=rows))}
    assert compile_plan(tables, storage, train=False).nothing_to_do
    for seed in (0, 1):
        finish(folder_of(storage, rate=0.1, seed=seed), epochs=(1, 3))
    finish(folder_of(storage, rate=0.001, seed=1))
    plan = compile_plan(tables, storage, train=False)
    assert {(t.config.rate, t.config.seed) for t in plan.trainings.values()} == {(0.1, 0), (0.1, 1), (0.001, 1)}
    assert not plan.missing and not plan.unmeasured and len(plan.unscored) == 5
    assert {c.axes["seed"] for c in plan.combinings} == {1}  # of both, one seed has all its members
    assert left_out(plan, "line/t") == {
        "1 of 2 runs not trained": ["slow"],
        "not trained": ["fine-tuned"],
        "not measured": ["time"],
        "of rows that are left out": ["mean of both"],
    }
    finish(folder_of(storage, rate=0.1, seed=0), epochs=(3,))
    left = left_out(compile_plan(tables, storage, train=False), "line/t")
    assert left["1 of 2 runs trained, but an epoch's weights were not kept"] == ["fast", "fast, first epoch"]
    assert left_out(compile_plan(tables, storage), "line/t") == {}


def test_a_task_says_a_line_about_its_data_once_they_are_there(storage, monkeypatch, capsys):
    told = replace(LINE.dataset, notes=lambda configs, source: [f"{source.info['points']} points, {len(configs)} runs"])
    task = replace(LINE, dataset=told)
    tables = {"line/t": (task, TABLE)}
    assert compile_plan(tables, storage).data_notes() == []
    task.dataset.prepare(task.config(), storage)
    plan = compile_plan(tables, storage)
    assert plan.data_notes() == ["64 points, 6 runs"]
    cli.print_plan(plan)
    assert "64 points, 6 runs" in capsys.readouterr().out


KEYS = {
    *(f"retable.tasks.weather.combine.{name}" for name in ("best_by_test", "best_by_validation")),
    *(f"retable.tasks.weather.combine.{name}" for name in ("majority_vote", "mean_probability")),
    "retable.tasks.audio.combine.mean_similarity",
    "retable.tasks.audio.combine.no_similarity",
    *("intervals_of_versions", "interval_of_4k", "seconds_of_criteria", "count_answer", "count_rewritten", "speed"),
}
"""The names under which results of the papers' combining and measuring functions are stored: they never change."""


def test_stored_results_are_found_whatever_becomes_of_the_functions_that_made_them(storage):
    found = set()
    for task in map(find, ("rl", "weather", "style", "audio")):
        for table in task.tables().values():
            found |= {stored_key(row.combine, "none") for row in table.rows if isinstance(row, Combined)}
            found |= {stored_key(row.measure, "none") for row in table.rows if isinstance(row, Measurement)}
    assert found == KEYS
    rows = (Row(label="a", view={}), Row(label="b", view={}, overrides={"rate": 0.2}))

    def place(combine):
        (combining,) = planned(storage, *rows, Combined(label="c", of=("a", "b"), combine=combine)).combinings
        return combining.place

    @stored_as("retable.tasks.line.learner.mean")
    def moved(shard, members):
        return {}

    assert place(moved) == place(mean) != place(measure)
