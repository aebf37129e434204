"""Search spaces: every word is checked when a space is made, and every space of ours is sound at every scale."""

import importlib.util

import pytest
from ray import tune

import retable
from retable.platform.api import config_at
from retable.platform.config import fingerprint, flatten, override
from retable.platform.errors import UserError
from retable.platform.spec.space import Space, describe_space, find_space, load_space, point_config, point_view, spaces
from retable.platform.spec.task import find
from retable.platform.store.run import view_key

RATE = {"rate": tune.uniform(0.1, 0.2)}
GRID = {"rate": tune.grid_search([0.1, 0.2])}
LIMIT = {"view.limit": tune.uniform(0.1, 0.5)}


def space(**changes):
    return Space(**{"task": "halves", "domains": GRID, "metric": "hits", "mode": "max", **changes})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"task": "halvs"}, "no task 'halvs'; did you mean 'halves'"),
        ({"mode": "maximum"}, "mode: 'maximum' is not one of min, max"),
        ({"metric": "hit"}, "metric: 'hit' is no metric of halves; did you mean 'hits'"),
        ({"search": "gird"}, "search: there is no 'gird'; did you mean 'grid'"),
        ({"search": "variant_generator"}, "search: there is no 'variant_generator'"),
        ({"scheduler": "assha"}, "scheduler: there is no 'assha'; did you mean 'asha'"),
        ({"scheduler": "pbt"}, "scheduler: 'pbt' copies weights between trials"),
        ({"scheduler": "hyperband"}, "scheduler: 'hyperband' pauses trials"),
        ({"samples": 3}, "samples: a grid is run whole"),
        ({"samples": 0, "search": "random", "domains": RATE}, "samples: 0 is less than 1"),
        ({"domains": {}}, "domains: there is nothing to search"),
        ({"domains": {"rate": 0.1}}, "domains: rate: 0.1 is no Tune domain"),
        ({"domains": {"rate": tune.sample_from(lambda spec: 1)}}, "domains: rate: .* is no Tune domain"),
        ({"domains": {"rate": tune.grid_search([])}}, "domains: rate: grid_search has no values"),
        ({"domains": RATE}, "domains: rate: a grid takes tune.grid_search"),
        ({"domains": GRID, "search": "random"}, "domains: rate: search 'random' draws; write tune.choice"),
        ({"domains": GRID, "search": "optuna"}, "domains: rate: search 'optuna' draws; write tune.choice"),
        ({"domains": {"ratte": tune.grid_search([1.0])}}, "domains: unknown field 'ratte'; did you mean 'rate'"),
        ({"domains": {"ratte": tune.uniform(0, 1)}, "search": "optuna"}, "domains: unknown field 'ratte'"),
        ({"domains": {"batch": tune.uniform(0, 1)}, "search": "random"}, "domains: batch: .* is not a whole number"),
        ({"domains": {"view.limt": tune.grid_search([1.0])}}, "domains: view: unknown field 'limt'; did you mean"),
        ({"domains": {"view.epoch": tune.grid_search([1])}}, "view.epoch: a sweep scores the last epoch"),
        ({"view": {"epoch": 1}}, "view.epoch: a sweep scores the last epoch"),
        ({"view": {"limt": 1.0}}, "view: unknown field 'limt'; did you mean 'limit'"),
        ({"overrides": {"epoch": 1}}, "overrides: unknown field 'epoch'; did you mean 'epochs'"),
        ({"domains": LIMIT, "search": "optuna"}, "search: 'optuna' learns from one value a training"),
        ({"domains": LIMIT, "search": "random", "scheduler": "asha"}, "scheduler: 'asha' stops trainings"),
        (
            {"domains": {"epochs": tune.grid_search([2, 9])}, "scheduler": "asha"},
            "scheduler: 'asha' compares trainings",
        ),
    ],
)
def test_a_wrong_word_is_refused_when_a_space_is_made(changes, said):
    with pytest.raises(UserError, match=said) as caught:
        space(**changes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("search", "package"), [("hyperopt", "hyperopt"), ("ax", "ax"), ("zoopt", "zoopt")])
def test_a_searcher_that_is_not_installed_is_refused_with_the_command_that_installs_it(search, package):
    if importlib.util.find_spec(package):
        pytest.skip(f"{package} is installed")
    with pytest.raises(UserError, match=f"search '{search}': .*pip install") as caught:
        space(search=search, domains=RATE)
    assert "\n" not in str(caught.value)


def test_a_grid_says_neither_how_many_points_nor_how_they_are_searched():
    grid = space(domains={**GRID, "seed": tune.grid_search([0, 1, 2])})
    assert len(grid.points()) == 6 and grid.axes == set()
    assert {(point["rate"], point["seed"]) for point in grid.points()} == {(r, s) for r in (0.1, 0.2) for s in range(3)}


def test_random_points_are_the_same_again_and_more_of_them_begin_with_those():
    domains = {"rate": tune.loguniform(1e-3, 1), "batch": tune.choice([4, 8]), "view.limit": tune.quniform(0.1, 1, 0.1)}
    few, many = (space(search="random", domains=domains, samples=samples).points() for samples in (3, 5))
    assert many[:3] == few and len(many) == 5
    assert all(type(value) in (int, float) for point in many for value in point.values())
    assert len(space(search="random", domains=domains).points()) == 20
    assert space(search="optuna", domains=RATE).points() == []


def test_a_choice_that_a_point_makes_keeps_the_fields_set_for_it():
    """`style` searches backbones, and all of them are untrained: choosing one sets its fields back."""
    searched = find_space("style")
    base = config_at(find("style"), "smoke", searched.overrides)
    for backbone in ("vgg19", "alexnet"):
        found = point_config(base, searched.overrides, {"method.backbone": backbone})
        assert found.method.backbone.weights == "random" and type(found.method.backbone).__name__.lower() == backbone
        assert override(base, {"method.backbone": backbone}).method.backbone.weights != "random"


@pytest.mark.parametrize("name", ["weather_losses", "weather_optimizers"])
def test_a_choice_that_a_scale_makes_keeps_its_fields_at_points_that_make_it_again(name):
    searched = find_space(name)
    base = config_at(find("weather"), "small", searched.overrides)
    assert base.loss.positive_weight == 16
    for point in searched.points():
        found, chosen = point_config(base, {}, point), next(iter(point))
        if point[chosen] == flatten(base)[chosen]:
            assert found == override(base, {path: value for path, value in point.items() if path != chosen})
        else:
            assert flatten(found)[chosen] == point[chosen]


@pytest.mark.parametrize("name", spaces())
def test_every_space_is_sound_at_every_scale(name):
    searched = find_space(name)
    assert describe_space(name).endswith(".") and find(searched.task).metrics
    task = find(searched.task)
    points = searched.points() or searched._draw(5)
    for scale in task.scales():
        base = config_at(task, scale, searched.overrides)
        view = override(task.view(), searched.view)
        works = {
            (
                fingerprint(task.name, 1, point_config(base, searched.overrides, point)),
                view_key(point_view(view, point)),
            )
            for point in points
        }
        assert len(works) == len(points)


def test_draws_that_may_share_a_run_come_one_after_another():
    seed = {"seed": tune.randint(0, 9)}
    assert space(domains=RATE | seed, search="random").trains_apart
    for domains in ({"rate": tune.choice([0.1])}, {"epochs": tune.randint(1, 3)}, {"rate": tune.quniform(0.1, 1, 0.1)}):
        assert not space(domains=domains | seed, search="random").trains_apart


def test_schedulers_stop_by_epochs():
    from ray.tune.schedulers import AsyncHyperBandScheduler, FIFOScheduler, MedianStoppingRule

    asha = space(scheduler="asha").stopper(9)
    assert isinstance(asha, AsyncHyperBandScheduler) and (asha._time_attr, asha._max_t) == ("epoch", 9)
    assert (asha._metric, asha._mode) == ("hits", "max")
    median = space(scheduler="median_stopping_rule").stopper(9)
    assert isinstance(median, MedianStoppingRule) and (median._time_attr, median._grace_period) == ("epoch", 1)
    assert type(space().stopper(9)) is type(space(scheduler="asha").stopper(1)) is FIFOScheduler


SOUND = """
from ray import tune
from retable.platform.spec.space import Space
SPACE = Space(task="line", domains={"rate": tune.grid_search([0.1])}, metric="rmse", mode="min")
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "there is no such file"),
        ("x = 1", "it must define SPACE = Space"),
        ("SPACE = {'rate': 1}\nTASK = 'line'", "it must define SPACE = Space"),
        ("SPACE = (", "SyntaxError: .*was never closed"),
        ("1 / 0", r"ZeroDivisionError: division by zero \(my.py:1\)"),
        (SOUND.replace('metric="rmse", ', ""), "missing 1 required keyword-only argument: 'metric'"),
        (SOUND.replace("rmse", "rsme"), "metric: 'rsme' is no metric of line; did you mean 'rmse'"),
    ],
)
def test_a_file_of_ones_own_is_named_with_its_mistake(tmp_path, text, said):
    path = tmp_path / "my.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError, match=f"my.py: .*{said}") as caught:
        load_space(str(path))
    assert "\n" not in str(caught.value)


def test_a_file_of_ones_own_may_lie_anywhere(tmp_path):
    (tmp_path / "my space.py").write_text(SOUND)
    assert load_space(str(tmp_path / "my space.py")).points() == [{"rate": 0.1}]
    with pytest.raises(UserError, match="no search space 'line_gird'; did you mean 'line_grid'"):
        find_space("line_gird")
    assert retable.Space is Space
