"""Our claims on training: how fast methods learn, and which network's pruning costs the most, what the critic adds."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from itertools import permutations

import numpy as np

from retable.platform.spec.arrays import Array
from retable.platform.spec.claims import LEAST, Status, Verdict, join, mean_of, untested
from retable.platform.spec.table import Results, Row, claim
from retable.platform.text import plural
from retable.tasks.rl.learning.compare import COMPARABLE, by_environment, kept_return, learned, updates
from retable.tasks.rl.learning.readings import LEVELS, Needed, in_words, policy_gaps, updates_needed
from retable.tasks.rl.tables import ABLATED, ABLATION, DENSE, PRUNED_PARTS, pruned

SNIP, GRASP, ERK = (pruned(method, 0.95) for method in ("snip", "grasp", "erk"))
RAW_SNIP, RAW_GRASP = (pruned(method, 0.95, "raw") for method in ("snip", "grasp"))
SLOWER = ((SNIP, ERK), (GRASP, ERK), (ERK, DENSE))
"""Of each pair the first is said to need more updates."""


def slower(results: Results, slow: Row, fast: Row, level: float, policy: str) -> Verdict:
    """Compare the updates that two rows need, seed by seed: the mean over environments of their mean gaps.

    A seed that does not get there counts with the updates that it made, the least it can need; one that is there at its
    first evaluation with the updates until then, the most. Such a gap is a bound: of the slow row's seeds that do not
    get there, or the fast one's that are there at once, from below, which cannot speak against the claim; the other way
    round from above, which cannot for it.
    """
    pairs = both_needed(results, slow, fast, level, policy)
    if not pairs:
        return untested(f"no environment in which the dense network has learned, with {LEAST} seeds of both")
    slow_ones, fast_ones = zip(*(pair for group in pairs for pair in group), strict=True)
    summary = f"{slow.label}: {in_words(slow_ones)}; {fast.label}: {in_words(fast_ones)}"
    if not any(needed.reached for needed in (*slow_ones, *fast_ones)):
        return untested(summary)
    about = f"updates, {plural(len(slow_ones), 'pair')}"
    verdict = mean_of([[a.updates - b.updates for a, b in group] for group in pairs], about, "+,.0f").verdict()
    may_be_less = any(a.at_once for a in slow_ones) or not all(b.reached for b in fast_ones)
    may_be_more = any(b.at_once for b in fast_ones) or not all(a.reached for a in slow_ones)
    decided = not {"holds": may_be_less, "does not hold": may_be_more}.get(verdict.status, False)
    least = "" if all(needed.reached for needed in slow_ones) else "at least "
    undecided = "" if decided else "; a bound, as seeds are not there at the end or at once, which does not separate"
    return Verdict(verdict.status if decided else "not separable", f"{least}{verdict.because}; {summary}{undecided}")


def both_needed(results: Results, slow: Row, fast: Row, level: float, policy: str) -> list[list[tuple[Needed, Needed]]]:
    """Return the updates that two rows need, seed by seed, of each environment where that can be compared."""
    groups = []
    for environment in results.axis("environment"):
        if learned(results, environment, policy, COMPARABLE) is None:
            one, other = (updates_needed(results, row.label, level, environment, policy) for row in (slow, fast))
            pairs = [(one[seed], other[seed]) for seed in one if seed in other]
            groups += [pairs] if len(pairs) >= LEAST else []
    return groups


ACTING = {"bcq": ("actor", "critic", "vae"), "bc": ("vae",)}
"""The networks that a policy was made by."""
MASKED = (*(pruned(method, 0.95) for method in ("snip", "grasp", "random", "magnitude", "erk")), RAW_SNIP, RAW_GRASP)
"""Rows of one sparsity that differ in their masks."""
DECIDES = 0.05 / len(ACTING)
"""Share of the ways to exchange rows that may go as far, for a correlation to count: 5 % over all that are tried."""


def blind_score_lower(results: Results, policy: str) -> Verdict:
    """Correlate the ranks of blind inputs and of final scores among rows of one sparsity, and join environments.

    Rows are ranked by their means over seeds, and correlations averaged over environments. Rows differ, not runs, so
    the verdict is by an exact test that exchanges rows, the same way in all environments. It is a correlation: what
    else differs between the rows is not held fixed.
    """
    scores = by_environment(results, MASKED, "behaviour_share", view_policy=policy)
    parts = [by_environment(results, MASKED, f"blind/{network}", view_policy=policy) for network in ACTING[policy]]
    pairs = [
        (sum(part[environment].mean(axis=1) for part in parts), values.mean(axis=1))
        for environment, values in scores.items()
        if learned(results, environment, policy, COMPARABLE) is None and all(environment in part for part in parts)
    ]
    if not pairs:
        return untested("no environment in which the dense network has learned and every mask was run")
    blind, score = (np.stack(side) for side in zip(*pairs, strict=True))  # (environments, rows)
    orders = np.array([*permutations(range(len(MASKED)))])  # the first is as it is
    alike = [np.broadcast_to(values, orders.shape) for values in score]
    ways = np.mean([rank_correlation(counts[orders], own) for counts, own in zip(blind, alike, strict=True)], axis=0)
    lower, higher = ((sign * ways <= sign * ways[0] + 1e-9).mean() for sign in (1, -1))
    because = (
        f"rank correlation {ways[0]:+.2f} of {len(MASKED)} rows, mean of {plural(len(pairs), 'environment')}; "
        f"{lower:.1%} of the ways to exchange rows are as low, {DECIDES:.1%} would count, {updates(results)}"
    )
    status: Status = "holds" if lower <= DECIDES else "does not hold" if higher <= DECIDES else "not separable"
    return Verdict(status, because)


def rank_correlation(a: Array, b: Array) -> Array:
    """Return Spearman's rank correlation of each line of two arrays (lines, values), and 0 where one is constant.

    SciPy's own `spearmanr` gives NaN and a warning for a constant.
    """
    from scipy.stats import rankdata  # it takes a second

    ranks = [rankdata(values, axis=1) for values in (a, b)]
    a, b = (values - values.mean(axis=1, keepdims=True) for values in ranks)
    scale = np.sqrt((a**2).sum(axis=1) * (b**2).sum(axis=1))
    correlation: Array = np.divide((a * b).sum(axis=1), scale, out=np.zeros(len(a)), where=scale > 0)
    return correlation


def costs_most(results: Results, environment: str) -> Verdict:
    """Compare the VAE pruned alone with the actor and with the critic pruned alone, seed by seed."""
    if unready := learned(results, environment, "bcq", COMPARABLE, ABLATION[environment, "none"]):
        return unready
    verdicts = {}
    for network in ("actor", "critic"):
        rows = (ABLATION[environment, network], ABLATION[environment, "vae"])
        pairs = by_environment(results, rows, "behaviour_share").get(environment)
        if pairs is None or pairs.shape[1] < LEAST:
            return untested("runs are missing")
        about = f"of the behaviour's return, {plural(pairs.shape[1], 'pair')}"
        verdicts[f"{network} minus VAE"] = mean_of([pairs[0] - pairs[1]], about, "+.0%").verdict()
    return join(verdicts).noted(f", {updates(results)}")


DATA = {"expert": ("recorded", "d4rl-expert-v2"), "mixed": ("mixed", "d4rl-medium-expert-v2")}
"""Content of a data set -> its names at the scales."""


def critic_adds(results: Results, row: Row, data: Collection[str]) -> Verdict:
    """Judge whether BCQ beats BC: the mean over environments of their mean gaps, where either has learned if dense.

    Environments whose gaps have different signs are no one answer: the claim is then not separable.
    """
    gaps, means = [], []
    for environment, name in itertools.product(results.axis("environment"), results.axis("data")):
        at = {"environment": environment, "data": name}
        dense = [results.values(DENSE, "behaviour_share", **at, view_policy=policy) for policy in ("bcq", "bc")]
        gap = policy_gaps(results, row.label, environment, name)
        ready = all(shares.size for shares in dense) and max(shares.mean() for shares in dense) >= COMPARABLE
        if name in data and ready and len(gap) >= LEAST:
            gaps.append(gap)
            means.append(f"{environment} {gap.mean():+.0%}")
    if not gaps:
        return untested(f"no environment in which a dense network has learned, with {LEAST} seeds")
    pairs = plural(sum(map(len, gaps)), "pair")
    about = f"of the behaviour's return, {pairs} ({', '.join(means)}), {updates(results)}"
    verdict = mean_of(gaps, about, "+.0%").verdict()
    if len({gap.mean() > 0 for gap in gaps}) > 1:
        return Verdict("not separable", f"{verdict.because}; environments disagree")
    return verdict


CLAIMS = {
    "ablation": [
        *(
            claim(
                f"{environment}: BCQ keeps performance with {PRUNED_PARTS[network]} pruned at 95 %.",
                kept_return,
                ABLATION[environment, network],
                ABLATION[environment, "none"],
                environment,
                "bcq",
                COMPARABLE,
                ours=True,
            )
            for environment, network in itertools.product(ABLATED, PRUNED_PARTS)
        ),
        *(
            claim(
                f"{environment}: pruning the VAE alone costs BCQ more than the actor or the critic alone.",
                costs_most,
                environment,
                ours=True,
            )
            for environment in ABLATED
        ),
    ],
    "critic": [
        claim(f"BCQ beats BC on {kind} data ({row.label}).", critic_adds, row, names, ours=True)
        for row in (DENSE, SNIP)
        for kind, names in DATA.items()
    ],
    "learning": [
        *(
            claim(
                f"{policy.upper()}: {slow.label} needs more updates than {fast.label} to reach {100 * level:.0f} % of "
                "what dense networks end at.",
                slower,
                slow,
                fast,
                level,
                policy,
                ours=True,
            )
            for policy, level in itertools.product(("bcq", "bc"), LEVELS)
            for slow, fast in SLOWER
        ),
        *(
            claim(
                f"At equal sparsity, networks with more blind inputs score lower ({policy.upper()}).",
                blind_score_lower,
                policy,
                ours=True,
            )
            for policy in ACTING
        ),
    ],
}
