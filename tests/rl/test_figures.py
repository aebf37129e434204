"""Figures show the numbers of the results: lines are compared with means taken by hand, at every scale."""

import dataclasses
import zlib
from dataclasses import replace

import numpy as np
import pytest
from matplotlib import pyplot

from retable.platform.spec.table import Replicate, Results, expand
from retable.platform.spec.task import find, scaled
from retable.tasks.rl import TASK, figures
from retable.tasks.rl.learning import readings
from tests.table_results import results_of

TABLES = TASK.tables()
SCALES = TASK.scales()

TASK = find("rl")


def value(need):
    """Make a score that differs between all rows, environments, seeds, epochs and policies."""
    words = repr((need.config.prune, need.config.states, need.config.environment, need.config.seed, need.view))
    return zlib.crc32(words.encode()) / 2**32 * 100


def results(name, scale, leave_out=(), **over):
    table = scaled(TABLES[name], SCALES[scale])
    table = dataclasses.replace(table, over={**table.over, **over})
    found = {}
    for row in table.rows:
        if not row.absent and row.label not in leave_out:
            needs = expand(table, row, TASK.config(), TASK.view())
            found[row.label] = [replace(need, metrics={"score": value(need)}) for need in needs]
    return table, results_of(TABLES, found)


def mean(found, row, environment, policy, epoch):
    return np.mean([
        r.metrics["score"]
        for r in found.replicates[row]
        if (r.config.environment, r.view.policy, r.view.epoch) == (environment, policy, epoch)
    ])  # fmt: skip


def panels(drawing):
    return {axis.get_title(): axis for axis in drawing.axes}


def lines(axis):
    """Return the drawn lines by the words of the legend."""
    handles, labels = axis.get_legend_handles_labels()
    plain = [handle.lines[0] if hasattr(handle, "lines") else handle for handle in handles]
    return {label: np.array(line.get_data(), float) for label, line in zip(labels, plain, strict=True)}


@pytest.fixture(autouse=True)
def close():
    yield
    pyplot.close("all")


def test_controls_stand_beside_the_method_with_their_means_and_extremes():
    table, found = results("figure1", "small")
    drawn = panels(table.draw(found))
    titles = ("SNIP", "over training", "BCQ beside controls", "BC beside controls")
    assert set(drawn) == {f"{place}: {title}" for place in ("HalfCheetah", "Hopper", "Walker2d") for title in titles}
    assert "ERK" in lines(drawn["Hopper: BC beside controls"]) and "random" not in lines(
        drawn["Hopper: BC beside controls"]
    )
    for policy in ("bcq", "bc"):
        axis = drawn[f"HalfCheetah: {readings.NAMES[policy]} beside controls"]
        shown = lines(axis)
        for name in ("SNIP", "random", "magnitude", "ERK", "small dense"):
            shares = (90, 95, 99) if name == "SNIP" else (95,)
            expected = [mean(found, f"{name} {s} %", "HalfCheetah", policy, 10) for s in shares]
            np.testing.assert_allclose(shown[name], [[100 - s for s in shares], expected], err_msg=name)
        raw = mean(found, "SNIP 95 %, raw states", "HalfCheetah", policy, 10)
        np.testing.assert_allclose(shown["SNIP, raw states"], [[5], [raw]])
        assert raw != pytest.approx(mean(found, "SNIP 95 %", "HalfCheetah", policy, 10))
        dense = mean(found, "dense, raw states", "HalfCheetah", policy, 10)
        np.testing.assert_allclose(shown["dense, raw states"], [[0, 1], [dense, dense]])
        assert shown["dense"][1][0] == pytest.approx(mean(found, "dense", "HalfCheetah", policy, 10))
        whiskers = axis.containers[0].lines[2][0].get_segments()  # random's, at 95 %
        scores = readings.final(found, "random 95 %", "score", environment="HalfCheetah", view_policy=policy)
        np.testing.assert_allclose(whiskers[0][:, 1], [scores.min(), scores.max()])


def test_every_environment_of_the_paper_has_its_line_of_panels():
    fewer = {"seed": (0, 1), "view.epoch": (100, 200)}
    table, found = results("figure2", "paper", ("ERK 97 %", "magnitude 95 %"), **fewer)
    drawn = panels(table.draw(found))
    assert len(drawn) == 3 * 4
    for environment in ("HalfCheetah", "Hopper", "Walker2d"):
        shown = lines(drawn[f"{environment}: GraSP"])["BC, final"]
        assert list(shown[0]) == [0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 97, 98, 99]
        assert shown[1][-1] == pytest.approx(mean(found, "GraSP 99 %", environment, "bc", 200))
        beside = lines(drawn[f"{environment}: BC beside controls"])
        np.testing.assert_allclose(beside["ERK"][0], [5, 2, 1])  # a missing run is no point, not a hole of 0
        np.testing.assert_allclose(beside["magnitude"][0], [3, 2, 1])


@pytest.mark.parametrize("leave_out", [(), ("dense",), ("random 95 %", "ERK 95 %", "SNIP 95 %")])
def test_what_is_missing_is_left_out_of_the_drawing(leave_out):
    table, found = results("figure1", "smoke", leave_out, environment=("Hopper",))
    drawn = panels(table.draw(found))
    assert len(drawn) == 3  # one epoch: nothing over training
    assert ("dense" in lines(drawn["Hopper: BC beside controls"])) == ("dense" not in leave_out)


def test_layers_have_a_line_of_panels_for_each_environment_and_whiskers_are_the_standard_deviation_of_tables():
    table, found = layers()
    spread = {
        label: [
            replace(one, metrics={k: v + step for k, v in one.metrics.items()}) for one in rows for step in (-1, 0, 1)
        ]
        for label, rows in found.replicates.items()
    }
    drawn = panels(table.draw(results_of(TABLES, spread)))
    assert set(drawn) == {
        f"{n}, {e}" for n in ("Actor", "Critic", "VAE") for e in ("HalfCheetah", "Hopper", "Walker2d")
    }
    axis = drawn["VAE, Hopper"]
    assert [bar.get_height() for bar in axis.patches] == [pytest.approx(10)] * len(axis.patches)
    ends = [segment[:, 1] for whiskers in axis.collections for segment in whiskers.get_segments()]
    values = [one.metrics["kept/vae/e1"] for one in spread["dense"] if one.axes["environment"] == "Hopper"]
    half = np.std(values, ddof=1)
    assert half > 0 and ends and all(end == pytest.approx([10 - half, 10 + half]) for end in ends)


def layers():
    table = scaled(TABLES["figure3"], SCALES["smoke"])
    kept = {f"kept/{network}/{name}": 10.0 for network, names in figures.LAYERS.items() for name in names}
    found = {
        row.label: [replace(need, metrics=kept) for need in expand(table, row, TASK.config(), TASK.view())]
        for row in table.rows
    }
    return table, results_of(TABLES, found)


@pytest.mark.filterwarnings("error")
def test_layers_of_a_row_that_an_environment_lacks_are_left_out():
    """NumPy warned in the terminal of the mean of nothing."""
    table, found = layers()
    kept = {
        label: [one for one in rows if label == "dense" or one.axes["environment"] != "Hopper"]
        for label, rows in found.replicates.items()
    }
    drawn = panels(table.draw(results_of(TABLES, kept)))
    heights = {at: [bar.get_height() for bar in drawn[f"VAE, {at}"].patches] for at in ("Hopper", "Walker2d")}
    assert {at: np.isfinite(shown).sum() for at, shown in heights.items()} == {"Hopper": 7, "Walker2d": 3 * 7}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("leave_out", [(), ("dense",)])
def test_memory_is_drawn_without_the_dense_network_too(leave_out):
    table = scaled(TABLES["figure4"], SCALES["smoke"])
    sizes = {f"bytes/{n}/{form}": 1e6 for n in readings.NETWORKS for form in ("dense", *readings.FORMATS)}
    found = {
        row.label: [replace(need, metrics=sizes) for need in expand(table, row, TASK.config(), TASK.view())]
        for row in table.rows
        if not row.absent and row.label not in leave_out
    }
    drawn = panels(table.draw(results_of(TABLES, found)))
    for title in readings.NETWORKS.values():
        shown = lines(drawn[title])
        assert set(readings.FORMATS.values()) < {*shown, "dense file"} and ("dense file" in shown) == (not leave_out)


def test_a_policy_that_was_left_out_is_in_no_legend():
    """`--set view.policy=bc` drew a figure whose legend named the best of BCQ."""
    at = {"environment": "HalfCheetah", "seed": 0, "view.policy": "bc"}
    scores = {1: 10.0, 2: 20.0}
    made = [Replicate("dense", {**at, "view.epoch": e}, None, None, {"score": v}) for e, v in scores.items()]
    table = TABLES["figure1"]
    results = Results({row.label: made if row.label == "dense" else [] for row in table.rows})
    drawing = table.draw(results)
    names = {text.get_text() for axis in drawing.axes for text in axis.get_legend().get_texts()}
    assert "BC, best" in names and not any("BCQ" in name for name in names)
