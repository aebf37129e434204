"""Every row of every table at every scale, and every search space, is a valid piece of work."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from retable.platform.config import override
from retable.platform.plan.plan import compile_plan
from retable.platform.spec.space import find_space
from retable.platform.spec.table import Row, expand
from retable.platform.spec.task import scaled, table_at
from retable.tasks.rl import TASK
from retable.tasks.rl.config import Bc, Bcq, Dense, Grasp, Magnitude, Random, Snip
from retable.tasks.rl.prune.validate import validate
from tests.rl.toys import config, learner

TABLES = TASK.tables()
SCALES = TASK.scales()


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", TABLES)
def test_every_row_expands_to_valid_work(name, scale):
    table = scaled(TABLES[name], SCALES[scale])
    present = [row for row in table.rows if not row.absent]
    assert present or (scale == "quick" and name in ("ablation", "formats", "speed")), "BCQ is not trained there"
    for row in present:
        needs = expand(table, row, TASK.config(), TASK.view())
        assert needs and all(TASK.cost(need.config) > 0 for need in needs)
        assert all(1 <= need.view.epoch <= need.config.epochs for need in needs if need.view is not None)


@pytest.mark.parametrize("name", ["figure1", "figure3", "diagnostics"])
def test_one_environment_can_be_asked_for(name):
    table = table_at(TASK, TABLES[name], "smoke", {"environment": "Hopper"})
    rows = [row for row in table.rows if not row.absent]
    needs = [need for row in rows for need in expand(table, row, TASK.config(), TASK.view())]
    assert rows and not any("Cheetah" in row.label or "Walker" in row.label for row in rows)
    assert {(need.config.environment, need.axes["environment"]) for need in needs} == {("Hopper", "Hopper")}


def test_the_paper_scale_is_the_published_setting(storage):
    tables = {f"rl/{name}": (TASK, scaled(TABLES[name], SCALES["paper"])) for name in ("figure1", "figure2")}
    plan = compile_plan(tables, storage)
    # 3 environments x 5 seeds x (2 dense + 2 methods x (10 sparsities + 3 beyond + 2 raw) + 4 controls x 4 sparsities)
    assert len(plan.trainings) == 3 * 5 * (2 + 2 * 15 + 4 * 4)
    assert {t.config.epochs * t.config.steps for t in plan.trainings.values()} == {1_000_000}
    assert {t.config.data for t in plan.trainings.values()} == {"d4rl-expert-v2"}
    assert len(plan.groups) == 3 * (2 + 4), "all of an environment stack, but for raw states and small networks"


def plan_of(storage, scale, *names):
    return compile_plan({f"rl/{name}": (TASK, scaled(TABLES[name], SCALES[scale])) for name in names}, storage)


def kinds(plan):
    """Return environment -> what is trained on which states: (method, sparsity, states)."""
    found = {}
    for training in plan.trainings.values():
        config = training.config
        kind = (type(config.prune).__name__, getattr(config.prune, "sparsity", 0), config.states)
        found.setdefault(config.environment, set()).add(kind)
    return found


def test_the_small_scale_compares_every_method_at_95_percent(storage):
    plan, ours = plan_of(storage, "small", "figure1", "figure2", "learning"), "standardized"
    everywhere = {("Dense", 0, ours), ("Snip", 0.95, "raw"), *((m, 0.95, ours) for m in ("Snip", "Grasp", "Erk"))}
    more = {(method, sparsity, ours) for method in ("Snip", "Grasp") for sparsity in (0.8, 0.9, 0.99)}
    more |= {(method, 0.95, ours) for method in ("Random", "Magnitude", "SmallDense")}
    more |= {("Grasp", 0.95, "raw"), ("Dense", 0, "raw")}
    assert kinds(plan) == {"HalfCheetah": everywhere | more, "Hopper": everywhere, "Walker2d": everywhere}
    assert {t.config.seed for t in plan.trainings.values()} == {0, 1, 2}
    assert {t.config.epochs * t.config.steps for t in plan.trainings.values()} == {10_000}
    assert plan_of(storage, "small", *TABLES).cost < 14 * 3600, "14 core-hours"


def test_the_quick_scale_trains_bc_alone_and_counts_everything(storage):
    plan, ours = plan_of(storage, "quick", *TABLES), "standardized"
    trained = {key: t for key, t in plan.trainings.items() if t.config.epochs * t.config.steps > 1}
    wanted = {("Dense", 0, ours), ("Snip", 0.95, "raw"), *((m, 0.95, ours) for m in ("Snip", "Grasp", "Erk", "Random"))}
    assert kinds(replace(plan, trainings=trained)) == {"HalfCheetah": wanted} and len(trained) == len(wanted)
    assert {type(t.config.algorithm) for t in trained.values()} == {Bc}
    assert {t.config.epochs * t.config.steps for t in trained.values()} == {3000}
    assert {scoring.view.policy for scoring in plan.scorings.values()} == {"bc"}
    counted = [t.config for key, t in plan.trainings.items() if key not in trained]
    assert {config.vae for config in counted} == {(750, 750)} and {type(c.algorithm) for c in counted} == {Bcq}
    assert plan.cost < 180, "90 seconds on two cores"


@pytest.mark.parametrize(("scale", "updates", "epochs"), [("paper", 1_000_000, 10), ("small", 10_000, 7)])
def test_the_bc_half_of_a_figure_can_be_trained_by_itself(storage, scale, updates, epochs):
    """As for a million updates: the VAE alone takes a fifth of the time, and its numbers are those beside BCQ."""
    changes = {"algorithm": "bc", "view.policy": "bc", "data": "recorded", "environment": "HalfCheetah", "seed": 0}
    table = table_at(TASK, TABLES["figure1"], scale, changes, ["dense", "SNIP 95 %"])
    plan = compile_plan({"rl/figure1": (TASK, table)}, storage)
    assert [type(t.config.algorithm) for t in plan.trainings.values()] == [Bc, Bc]
    assert {t.config.epochs * t.config.steps for t in plan.trainings.values()} == {updates}
    assert {scoring.view.policy for scoring in plan.scorings.values()} == {"bc"} and len(plan.scorings) == 2 * epochs


def test_the_ablation_prunes_what_its_rows_say(storage):
    plan = plan_of(storage, "small", "ablation")
    found = {getattr(t.config.prune, "networks", "none") for t in plan.trainings.values()}
    assert found == {"none", "all", "actor", "critic", "vae"} and len(plan.trainings) == 2 * 5 * 3
    shared = {t for t, each in plan.trainings.items() if getattr(each.config.prune, "networks", "all") == "all"}
    assert shared <= set(plan_of(storage, "small", "learning").trainings), "dense and wholly pruned ones are its runs"


COUNTED = ("table1", "figure3", "figure4", "diagnostics")


@pytest.mark.parametrize("scale", ["quick", "small", "paper"])
def test_what_is_known_before_the_first_update_plans_no_training(scale, storage):
    plan = plan_of(storage, scale, *COUNTED)
    assert {t.config.epochs * t.config.steps for t in plan.trainings.values()} == {1}
    assert plan.cost < 600 and not plan.scorings
    if scale != "quick":
        played = plan_of(storage, scale, "formats").trainings.values()
        assert {t.config.steps for t in played} != {1}


def test_the_smoke_scale_counts_the_runs_that_it_plays(storage):
    """Runs of their own would cost more than so few updates."""
    plan = plan_of(storage, "smoke", *COUNTED)
    assert {t.config.epochs * t.config.steps for t in plan.trainings.values()} == {10}
    counted = plan_of(storage, "smoke", "table1").trainings
    own = set(counted) - set(plan_of(storage, "smoke", "figure1", "figure2").trainings)
    assert {counted[name].config.initialisation for name in own} == {"xavier"}


def test_set_reaches_tables_without_training():
    table = table_at(TASK, TABLES["figure4"], "paper", {"steps": 7})
    needs = [need for row in table.rows for need in expand(table, row, TASK.config(), TASK.view())]
    assert {(need.config.epochs, need.config.steps) for need in needs} == {(1, 7)}


@pytest.mark.parametrize(
    "prune",
    [
        Dense(),
        Snip(sparsity=0.8, batch=10),
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in (Grasp(sparsity=0.8, batch=10), Magnitude(sparsity=0.8))
        ),
    ],
)
def test_training_changes_nothing_that_these_tables_count(prune):
    """All but our files, whose exponents are compressed, and what the learner itself logs of its losses."""
    counted = []
    for updates in (1, 15):
        trained, toy = learner([config(prune=prune, epochs=1, steps=updates)])
        for step in range(updates):
            trained.step(toy.batch(step))
        (found,) = validate(trained, toy)
        assert "bytes/vae/sparse" in found
        counted.append({key: value for key, value in found.items() if "compact" not in key})
    assert counted[0] == counted[1]


@pytest.mark.parametrize("prune", [Snip(sparsity=0.5, batch=10), Magnitude(sparsity=0.5), Random(sparsity=0.5)])
def test_the_diagnostics_read_what_a_run_says_of_its_masks(prune):
    trained, toy = learner([config(prune=prune, seed=seed) for seed in (0, 1)])
    (row,) = [row for row in TABLES["diagnostics"].rows if row.label == "Hopper, VAE: SNIP 95 %"]
    for state, found in zip(trained.state_dict(), validate(trained, toy), strict=True):
        masks = [mask for name, mask in state["masks"].items() if name.startswith("vae")]
        read = {header: found.get(metric) for header, metric in row.metrics.items()}
        assert read["blind inputs"] == read["dead outputs"] == 0
        assert read["lost layers"] == sum(not mask.any() for mask in masks)
        kept, weights = (sum(getattr(mask, count)() for mask in masks) for count in ("sum", "numel"))
        assert (
            found["sparsity/vae"] == pytest.approx(1 - int(kept) / weights) and found["kept/vae/e1"] == masks[0].sum()
        )
        assert read["lowest layer density, %"] == pytest.approx(min(float(mask.double().mean()) for mask in masks))
        assert 0 < read["effective weights"] <= sum(int(mask.sum()) for mask in masks)
        assert 0 <= read["units cut off"] <= 2 * sum(config().vae)
        zeros = read["scores of 0, %"]
        assert zeros is None if isinstance(prune, Random) else 0 <= zeros < 0.5


def test_published_values_are_those_of_the_paper(shared):
    with (Path(shared) / "papers" / "tables" / "rl_table1.csv").open() as file:
        lines = {line["method"]: line for line in csv.DictReader(file)}
    ours = {row.label: row.published for row in TABLES["table1"].rows if isinstance(row, Row) and row.published}
    names = {"GraSP 95 %": "GraSP (95% sparse)", "SNIP 95 %": "SNIP (95% sparse)"}
    assert len(ours) == len(lines) == 4
    for label, published in ours.items():
        line = lines[names.get(label, label)]
        for header in ("Actor", "Critic", "VAE"):
            assert published[header] == float(line[f"{header.lower()}_mb"])


def test_the_sweep_covers_the_sparsities_of_the_paper():
    points = find_space("rl").points()
    assert {point["prune.sparsity"] for point in points} == {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95}
    assert len(points) == 20


def test_the_sweep_optimises_what_every_data_set_has():
    """A share of the behaviour's return has no sign, or is not there, where that return is not above 0."""
    assert find_space("rl").metric == "return"


def test_sweeps_choose_by_episodes_of_no_table():
    def episodes(view):
        return set(range(view.seed, view.seed + view.episodes))

    tables = [scaled(table, scale) for table in TABLES.values() for scale in SCALES.values()]
    rows = [(table, row) for table in tables for row in table.rows if not row.absent]
    needs = [need for table, row in rows for need in expand(table, row, TASK.config(), TASK.view())]
    played = set().union(*map(episodes, {need.view for need in needs if need.view is not None}))
    for name in ("rl", "rl_environments", "rl_learning_rate"):
        assert played and not played & episodes(override(TASK.view(), find_space(name).view)), name


def test_the_sweep_of_learning_rates_gives_each_method_the_same_ones():
    points = find_space("rl_learning_rate").points()
    rates = {(point["prune"], point["seed"], point["view.policy"]): set() for point in points}
    for point in points:
        rates[point["prune"], point["seed"], point["view.policy"]].add(point["learning_rate"])
    assert {prune for prune, _, _ in rates} == {"dense", "snip", "grasp"} and len(rates) == 3 * 3 * 2
    assert all(each == {0.0003, 0.001, 0.003} for each in rates.values()) and len(points) == 3 * len(rates)
    config = TASK.config()
    assert config.learning_rate == 0.001 and Snip().sparsity == Grasp().sparsity == 0.95
