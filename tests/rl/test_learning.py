"""Updates needed, and the claims on them, beside curves whose answer is known."""

import dataclasses

import numpy as np
import pytest
from matplotlib import pyplot
from scipy.stats import spearmanr

from retable.platform.spec.claims import UNTESTED
from retable.platform.spec.table import Replicate, expand
from retable.platform.spec.task import scaled
from retable.tasks.rl import TASK, figures
from retable.tasks.rl.config import Config, View
from retable.tasks.rl.learning import claims as learning_claims
from retable.tasks.rl.learning import readings
from retable.tasks.rl.tables import ABLATION
from tests.rl.test_figures import lines, panels
from tests.table_results import results_of

TABLES, SCALES = TASK.tables(), TASK.scales()


@pytest.fixture(autouse=True)
def close():
    yield
    pyplot.close("all")


def walked(checkpoints, wanted):
    """Walk along the line between checkpoints in steps of a thousandth of an update."""
    updates, scores = zip(*checkpoints, strict=True)
    x = np.arange(updates[0] * 1000, updates[-1] * 1000 + 1) / 1000
    y = np.interp(x, updates, scores)
    return x[np.argmax(y >= wanted)] if (y >= wanted).any() else None


@pytest.mark.parametrize("wanted", [-0.5, 0.1, 0.35, 0.5, 0.62, 0.9, 1.5])
@pytest.mark.parametrize("scores", [(0.1, 0.4, 0.35, 0.8), (0.5, 0.5, 0.62, 0.61), (0.9, 0.1, 0.2, 0.95)])
def test_the_updates_until_a_score_are_those_of_the_line_between_checkpoints(scores, wanted):
    checkpoints = [*zip((10, 20, 35, 40), scores, strict=True)]
    found, expected = readings.reached(checkpoints, wanted), walked(checkpoints, wanted)
    assert found is expected is None or found == pytest.approx(expected, abs=0.002)


def results(rows, epochs=10, updates=100):
    """Make results whose score rises by a line to 1 over so many updates, given by row and seed, and stays there."""
    found = {}
    for label, slopes in rows.items():
        found[label] = [
            Replicate(
                label,
                {"environment": "Hopper", "seed": seed, "view.policy": "bcq", "view.epoch": epoch},
                Config(steps=updates),
                View(epoch=epoch),
                metrics={"behaviour_share": min(1.0, epoch * updates / slope)},
            )
            for seed, slope in enumerate(slopes)
            for epoch in reversed(range(1, epochs + 1))
        ]
    return results_of(TABLES, found)


def test_updates_are_counted_by_each_seed_against_the_mean_of_dense_ones():
    found = results({"dense": (400, 500, 2000), "SNIP 95 %": (500, 1000, 9000)})
    wanted = 0.9 * (1 + 1 + 0.5) / 3
    needed = readings.updates_needed(found, "SNIP 95 %", 0.9, "Hopper", "bcq")
    assert {seed: each.reached for seed, each in needed.items()} == {0: True, 1: True, 2: False}
    assert [needed[0].updates, needed[1].updates] == pytest.approx([500 * wanted, 1000 * wanted])
    assert needed[2].updates == 1000, "those that were made"
    assert readings.in_words(needed.values()) == "375, 750, not reached"
    assert readings.updates_needed(found, "ERK 95 %", 0.9, "Hopper", "bcq") == {}
    assert readings.updates_needed(results({"SNIP 95 %": (500,)}), "SNIP 95 %", 0.9, "Hopper", "bcq") == {}


@pytest.mark.parametrize(
    ("snip", "erk", "status"),
    [
        ((900, 910, 920), (500, 510, 505), "holds"),
        ((500, 510, 505), (900, 910, 920), "does not hold"),
        ((900, 400, 700), (500, 600, 650), "not separable"),
        ((9e3, 9e4, 9e5), (500, 510, 505), "holds"),  # not reached: at least as many as were made
        ((500, 510, 505), (9e3, 9e4, 9e5), "does not hold"),
        ((9e3, 9e4, 9e5), (500, 510, 9e3), "not separable"),  # ERK's third may need more than all
        ((500, 510, 9e4), (1080, 1090, 1100), "not separable"),  # SNIP's third may
        (
            (90, 900, 905, 910, 915, 920),
            (150,) * 6,
            "not separable",
        ),  # SNIP's first may need fewer than it was looked at after
        ((900, 910, 920), (90, 95, 99), "holds"),  # ERK may, which only widens the gap
        ((90, 95, 99), (900, 910, 920), "does not hold"),
        ((150,) * 6, (90, 900, 905, 910, 915, 920), "not separable"),
        ((9e3, 9e4, 9e5), (9e3, 9e4, 9e5), UNTESTED),
        ((900, 910), (500, 510), UNTESTED),
    ],
)
def test_a_method_is_slower_seed_by_seed_and_what_was_not_reached_decides_one_way_only(snip, erk, status):
    found = results({"dense": (300, 310, 290), "SNIP 95 %": snip, "ERK 95 %": erk})
    verdict = learning_claims.slower(found, learning_claims.SNIP, learning_claims.ERK, 0.9, "bcq")
    assert verdict.status == status
    if status in ("holds", "does not hold"):
        assert ("not reached" in verdict.because) == (max(*snip, *erk) > 1000)
        assert verdict.because.startswith("at least ") == (max(snip) > 1000)


def test_no_updates_are_compared_before_the_dense_network_has_learned():
    found = results({"dense": (3000, 3100, 2900), "SNIP 95 %": (900, 910, 920), "ERK 95 %": (500, 510, 505)})
    assert learning_claims.slower(found, learning_claims.SNIP, learning_claims.ERK, 0.9, "bcq").status == UNTESTED
    assert all(claim.check(results_of(TABLES, {})).status == UNTESTED for claim in TABLES["learning"].claims)


def test_curves_and_updates_are_drawn_for_every_row_and_policy():
    table = scaled(TABLES["learning"], SCALES["small"])
    found = {}
    for row in table.rows:
        needs = [] if row.absent else expand(table, row, TASK.config(), TASK.view())
        found[row.label] = [
            dataclasses.replace(need, metrics={"behaviour_share": need.view.epoch * (1 + need.config.seed) / 50})
            for need in needs
        ]
    drawn = panels(table.draw(results_of(TABLES, found)))
    last, (config, *_) = max(table.over["view.epoch"]), [n.config for rows in found.values() for n in rows]
    for policy in ("BCQ", "BC"):
        shown = lines(drawn[f"HalfCheetah: {policy}"])
        assert list(shown) == [row.label for row in table.rows if not row.absent]
        assert set(shown) == set(figures.LINES) - {"SNIP 50 %"}
        for x, y in shown.values():
            np.testing.assert_allclose([x[-1], y[-1]], [last * config.steps, 100 * last * 2 / 50])
        (needed,) = [axis for title, axis in drawn.items() if title.startswith(f"HalfCheetah: {policy}, updates")]
        wanted = [0.9 * last * 2 * config.steps / (1 + seed) for seed in (0, 1, 2)]
        numbers = [f"{updates:,.0f}" if updates <= last * config.steps else "not reached" for updates in wanted]
        assert all(f"90 %: {', '.join(numbers)}" in text.get_text() for text in needed.texts)
        assert len(needed.texts) == len(shown)


def test_what_has_learned_nothing_is_drawn_without_numbers():
    found = results({"dense": (-900.0, -800.0)}, epochs=1)
    drawn = panels(TABLES["learning"].draw(found))
    assert [len(axis.texts) for axis in drawn.values()] == [0, 0]
    assert lines(drawn["Hopper: BCQ"])["dense"].shape == (2, 1)


def ablated(shares):
    """Make results of the ablation in Hopper: what is pruned -> share of the behaviour's return of each seed."""
    rows = {ABLATION["Hopper", networks]: values for networks, values in shares.items()}
    return results_of(
        TABLES,
        {
            row: [
                Replicate(
                    row.label,
                    {"environment": "Hopper", "view.policy": "bcq", "seed": seed},
                    Config(),
                    View(),
                    metrics={"behaviour_share": share},
                )
                for seed, share in enumerate(values)
            ]
            for row, values in rows.items()
        },
    )


def test_the_network_that_fails_when_pruned_alone_is_told():
    dense, well, badly = (0.9, 0.95, 0.92), (0.89, 0.94, 0.92), (0.2, 0.25, 0.3)
    found = ablated({"none": dense, "all": badly, "actor": well, "critic": well, "vae": badly})
    said = {claim.text: claim.check(found).status for claim in TABLES["ablation"].claims}
    assert said == {
        **{text: UNTESTED for text in said if text.startswith("HalfCheetah")},
        "Hopper: BCQ keeps performance with all networks pruned at 95 %.": "does not hold",
        "Hopper: BCQ keeps performance with the actor alone pruned at 95 %.": "holds",
        "Hopper: BCQ keeps performance with the critic alone pruned at 95 %.": "holds",
        "Hopper: BCQ keeps performance with the VAE alone pruned at 95 %.": "does not hold",
        "Hopper: pruning the VAE alone costs BCQ more than the actor or the critic alone.": "holds",
    }
    found = ablated({"none": dense, "actor": badly, "critic": well, "vae": well})
    assert learning_claims.costs_most(found, "Hopper").status == "does not hold"
    assert learning_claims.costs_most(ablated({"none": dense}), "Hopper").status == UNTESTED


def played(shares, environment="Hopper"):
    """Make results of the figure on the critic: (row, data, policy) -> share of the behaviour's return of each seed."""
    found = {}
    for (row, data, policy), values in shares.items():
        at = {"environment": environment, "data": data, "view.policy": policy}
        found.setdefault(row, []).extend(
            Replicate(row, {**at, "seed": seed}, Config(), View(), metrics={"behaviour_share": share})
            for seed, share in values.items()
        )
    return results_of(TABLES, found)


def test_environments_that_disagree_are_no_one_answer_on_the_critic():
    shares = {
        ("dense", "mixed", "bcq"): {0: 3.2, 1: 3.1, 2: 3.3},
        ("dense", "mixed", "bc"): {0: 1.0, 1: 0.92, 2: 1.09},
    }
    agreeing = played(shares)
    against = played({**shares, ("dense", "mixed", "bcq"): {0: 0.8, 1: 0.72, 2: 0.89}}, "Walker2d")
    both = results_of(TABLES, {"dense": [*agreeing.select("dense"), *against.select("dense")]})
    (check,) = [claim.check for claim in TABLES["critic"].claims if "mixed data (dense)" in claim.text]
    assert check(agreeing).status == "holds"
    verdict = check(both)
    assert verdict.status == "not separable" and verdict.because.endswith("environments disagree")
    assert "Hopper +220%, Walker2d -20%" in verdict.because


def test_bcq_is_compared_with_bc_seed_by_seed_on_each_kind_of_data():
    found = played({
        ("dense", "recorded", "bcq"): {0: 0.9, 1: 0.5, 2: 0.8},
        ("dense", "recorded", "bc"): {2: 0.85, 1: 0.45, 0: 0.9},
        ("dense", "mixed", "bcq"): {0: 1.2, 1: 1.1, 2: 1.3},
        ("dense", "mixed", "bc"): {0: 0.4, 1: 0.32, 2: 0.49},
        ("SNIP 95 %", "mixed", "bcq"): {0: 0.2, 1: 0.1, 2: 0.3, 7: 9.0},
        ("SNIP 95 %", "mixed", "bc"): {0: 0.4, 1: 0.3, 2: 0.51, 8: -9.0},
    })  # fmt: skip
    said = {claim.text: claim.check(found) for claim in TABLES["critic"].claims}
    assert {text: verdict.status for text, verdict in said.items()} == {
        "BCQ beats BC on expert data (dense).": "not separable",
        "BCQ beats BC on mixed data (dense).": "holds",
        "BCQ beats BC on expert data (SNIP 95 %).": UNTESTED,
        "BCQ beats BC on mixed data (SNIP 95 %).": "does not hold",
    }
    assert said["BCQ beats BC on mixed data (dense)."].because.startswith("+80% [")
    drawing = TABLES["critic"].draw(found)
    (axis,) = drawing.axes
    rings = {float(line.get_xdata()[0]): line.get_ydata() for line in axis.lines if line.get_fillstyle() == "none"}
    bars = [text.get_text().replace("\n", ", ") for text in axis.get_xticklabels()]
    assert sorted(bars) == ["SNIP 95 %, mixed", "SNIP 95 %, recorded", "dense, mixed", "dense, recorded"]
    np.testing.assert_allclose(rings[bars.index("dense, recorded")], [0, 5, -5], atol=1e-9)
    np.testing.assert_allclose(rings[bars.index("SNIP 95 %, mixed")], [-20, -20, -21])
    assert {text.get_text().split()[0] for text in axis.texts} == {"+0", "+80", "-20"}


def test_nothing_is_said_of_the_critic_before_dense_networks_have_learned():
    few = {0: 0.3, 1: 0.3, 2: 0.3}
    found = played({("dense", "mixed", policy): few for policy in ("bcq", "bc")})
    assert all(claim.check(found).status == UNTESTED for claim in TABLES["critic"].claims)


def test_learning_plans_no_run_that_the_figures_do_not_have():
    def configs(name):
        table = scaled(TABLES[name], SCALES["paper"])
        return {need.config for row in table.rows for need in expand(table, row, TASK.config(), TASK.view())}

    assert configs("learning") <= configs("figure1") | configs("figure2")


MASKED = [row.label for row in learning_claims.MASKED]


def masked(shares, blind):
    """Make results of BC in Hopper: each row's share of the return, and what its decoder is blind to; three seeds."""
    found = {}
    for label, share, count in zip(["dense", *MASKED], [1.0, *shares], [0, *blind], strict=True):
        at = {"environment": "Hopper", "view.policy": "bc"}
        found[label] = [
            Replicate(
                label,
                {**at, "seed": seed},
                Config(),
                View(policy="bc"),
                metrics={"behaviour_share": share + 0.01 * seed, "blind/vae": float(count)},
            )
            for seed in range(3)
        ]
    return results_of(TABLES, found)


FALLING = (0.9, 0.8, 0.7, 0.6, 0.5, 0.2, 0.1)


@pytest.mark.parametrize(
    ("blind", "status"),
    [
        ((0, 1, 2, 3, 4, 5, 6), "holds"),
        ((6, 5, 4, 3, 2, 1, 0), "does not hold"),
        ((0, 0, 0, 0, 0, 3, 9), "holds"),  # the two blind rows are the lowest, in this order: one way of 42
        ((0, 0, 0, 0, 0, 9, 3), "not separable"),  # the lowest two in the other order are two ways of 42
        ((0, 0, 0, 0, 0, 0, 0), "not separable"),
    ],
)
def test_blind_inputs_are_correlated_with_scores_by_an_exact_test_for_two_policies(blind, status):
    verdict = learning_claims.blind_score_lower(masked(FALLING, blind), "bc")
    assert verdict.status == status and "2.5% would count" in verdict.because
    wanted = spearmanr(blind, FALLING).statistic if len(set(blind)) > 1 else 0.0
    assert f"rank correlation {wanted:+.2f} of 7 rows, mean of 1 environment;" in verdict.because


def test_rows_that_are_alike_in_truth_are_seldom_told_apart_by_their_blind_inputs():
    random, found = np.random.default_rng(0), []
    for _ in range(60):
        shares, blind = random.uniform(0.2, 1, len(MASKED)), random.integers(0, 9, len(MASKED))
        found.append(learning_claims.blind_score_lower(masked(shares, blind), "bc").status)
    assert found.count("not separable") >= 51 and set(found) <= {"holds", "does not hold", "not separable"}


def test_rank_correlation_is_scipys_but_for_constants():
    random = np.random.default_rng(0)
    a, b = random.integers(0, 4, (2, 20, 9)).astype(float)
    expected = [spearmanr(x, y).statistic for x, y in zip(a, b, strict=True)]
    np.testing.assert_allclose(learning_claims.rank_correlation(a, b), expected, atol=1e-12)
    assert learning_claims.rank_correlation(np.ones((1, 5)), a[:1, :5]).tolist() == [0.0]
