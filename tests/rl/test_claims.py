"""Verdicts on made-up results whose answer is known."""

import numpy as np
import pytest

from retable.platform.table import Need, Replicate, Results
from retable.tasks.rl import claims
from retable.tasks.rl.config import Config, View


def results(rows, environment="HalfCheetah", policy="bcq"):
    """Make results from label -> share of the behaviour's return for each seed."""
    found = {}
    for label, shares in rows.items():
        found[label] = [
            Replicate(
                Need(
                    label,
                    {"environment": environment, "seed": seed, "view.policy": policy, "view.epoch": epoch},
                    Config(),
                    View(),
                ),
                "0",
                {"behaviour_share": share if epoch == 2 else 0.0, "score": 100 * share},
            )
            for seed, share in enumerate(shares)
            for epoch in (1, 2)
        ]
    return Results(found)


def keeps(rows, **options):
    settings = {"method": "snip", "environment": "HalfCheetah", "policy": "bcq", "fails": False} | options
    return claims.keeps(results(rows), **settings).status


@pytest.mark.parametrize(
    ("sparse", "fails", "status"),
    [
        ((0.99, 1.0, 1.01, 0.98), False, "holds"),
        ((0.3, 0.2, 0.25, 0.3), False, "does not hold"),
        ((0.3, 0.2, 0.25, 0.3), True, "holds"),
        ((0.99, 1.0, 1.01, 0.98), True, "does not hold"),
        ((1.2, 0.2, 1.1, 0.6), False, "not separable"),
    ],
)
def test_keeping_performance_is_judged_against_the_dense_network_at_the_last_epoch(sparse, fails, status):
    assert keeps({"dense": (1.0, 1.01, 0.99, 1.0), "SNIP 95 %": sparse}, fails=fails) == status


def test_what_has_not_learned_or_has_too_few_seeds_is_not_tested():
    assert keeps({"dense": (0.4, 0.4, 0.4), "SNIP 95 %": (0.4, 0.4, 0.4)}) == "not tested at this scale"
    assert keeps({"dense": (1.0, 1.0), "SNIP 95 %": (1.0, 1.0)}) == "not tested at this scale"
    assert keeps({"dense": (1.0, 1.0, 1.0)}) == "not tested at this scale"
    assert keeps({}) == "not tested at this scale"


@pytest.mark.parametrize(
    ("ours", "random", "status"),
    [
        ((1.0, 0.98, 1.02), (0.2, 0.25, 0.22), "holds"),
        ((0.2, 0.25, 0.22), (1.0, 0.98, 1.02), "does not hold"),
        ((1.0, 0.5, 0.9), (0.9, 0.95, 0.6), "not separable"),
    ],
)
def test_a_method_is_compared_with_random_masks(ours, random, status):
    found = results({"dense": (1.0, 1.0, 1.0), "SNIP 99 %": ours, "random 99 %": random})
    assert claims.beats_random(found, "snip", 0.99, "bcq").status == status
    assert claims.beats_random(found, "snip", 0.95, "bcq").status == "not tested at this scale"


def sizes(label, dense, sparse, **kept):
    names = ("actor", "critic", "vae")
    metrics = {f"bytes/{name}/dense": dense for name in names} | {f"bytes/{name}/sparse": sparse for name in names}
    return [Replicate(Need(label, {"seed": 0}, Config(), None), "0", metrics | kept)]


def test_ratios_of_bytes_hold_if_they_round_to_the_published_number():
    found = Results({"Dense Model": sizes("Dense Model", 100.0, 498.0), "SNIP 95 %": sizes("SNIP 95 %", 100.0, 27.0)})
    four, five = claims.MEMORY
    assert four.check(found).status == "holds" and "3.70x" in four.check(found).because
    assert five.check(found).status == "not tested at this scale"
    found = Results({"Dense Model": sizes("Dense Model", 100.0, 1.0), "SNIP 95 %": sizes("SNIP 95 %", 100.0, 30.0)})
    assert four.check(found).status == "does not hold"


def layers(label, shares):
    """Make replicates whose last layers keep these shares, one a seed."""
    names = [f"density/{network}/{layer}" for network, last in claims.LAST.items() for layer in last]
    return [
        Replicate(
            Need(label, {"environment": "Hopper", "seed": seed}, Config(), None), "0", dict.fromkeys(names, share)
        )
        for seed, share in enumerate(shares)
    ]


@pytest.mark.parametrize(
    ("grasp", "snip", "status"),
    [
        ((0.6, 0.62, 0.61), (0.3, 0.31, 0.29), "holds"),
        ((0.3, 0.31, 0.29), (0.6, 0.62, 0.61), "does not hold"),
        ((0.3, 0.7, 0.5), (0.5, 0.5, 0.5), "not separable"),
    ],
)
def test_last_layers_are_compared_run_by_run(grasp, snip, status):
    found = Results({"GraSP 95 %": layers("GraSP 95 %", grasp), "SNIP 95 %": layers("SNIP 95 %", snip)})
    assert claims.grasp_keeps_more(found).status == status
    assert claims.last_layer_kept(found, "grasp").status == "holds"
    shares = claims.last_density(found, "SNIP 95 %")
    assert np.allclose(shares["critic"], snip)
