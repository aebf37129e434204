"""Our claims on training: how fast methods learn, and which network's pruning costs the most, what the critic adds."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from functools import partial

from retable.platform.table import Claim, Results, Row
from retable.platform.verdicts import LEAST, Status, Verdict, join, mean_of, plural, untested
from retable.tasks.rl.claims import COMPARABLE, GRASP, SNIP, kept_return, learned, paired, updates
from retable.tasks.rl.readings import LEVELS, Needed, in_words, policy_gaps, updates_needed
from retable.tasks.rl.tables import ABLATED, ABLATION, DENSE, PRUNED_PARTS, pruned

ERK = pruned("erk", 0.95)
SLOWER = ((SNIP, ERK), (GRASP, ERK), (ERK, DENSE))
"""Of each pair the first is said to need more updates."""


def slower(results: Results, slow: Row, fast: Row, level: float, policy: str) -> Verdict:
    """Compare the updates that two rows need, seed by seed: the mean over environments of their mean gaps.

    A seed that does not get there counts with the updates that it made, the least it can need. Such a gap is a bound:
    of the slow row from below, which cannot speak against the claim; of the fast one from above, which cannot for it.
    """
    pairs = both_needed(results, slow, fast, level, policy)
    if not pairs:
        return untested(f"no environment in which the dense network has learned, with {LEAST} seeds of both")
    slow_ones, fast_ones = zip(*(pair for each in pairs for pair in each), strict=True)
    said = f"{slow.label}: {in_words(slow_ones)}; {fast.label}: {in_words(fast_ones)}"
    if not any(needed.reached for needed in (*slow_ones, *fast_ones)):
        return untested(said)
    about = f"updates, {plural(len(slow_ones), 'pair')}"
    found = mean_of([[a.updates - b.updates for a, b in each] for each in pairs], about, "+,.0f").verdict()
    bounds: dict[Status, Sequence[Needed]] = {"holds": fast_ones, "does not hold": slow_ones}
    decided = all(needed.reached for needed in bounds.get(found.status, ()))
    least = "" if all(needed.reached for needed in slow_ones) else "at least "
    undecided = "" if decided else "; a bound, as seeds do not get there, which does not separate"
    return Verdict(found.status if decided else "not separable", f"{least}{found.because}; {said}{undecided}")


def both_needed(results: Results, slow: Row, fast: Row, level: float, policy: str) -> list[list[tuple[Needed, Needed]]]:
    """Return the updates that two rows need, seed by seed, of each environment where that can be compared."""
    found = []
    for environment in results.axis("environment"):
        if learned(results, environment, policy, COMPARABLE) is None:
            one, other = (updates_needed(results, row.label, level, environment, policy) for row in (slow, fast))
            pairs = [(one[seed], other[seed]) for seed in one if seed in other]
            found += [pairs] if len(pairs) >= LEAST else []
    return found


def costs_most(results: Results, environment: str) -> Verdict:
    """Compare the VAE pruned alone with the actor and with the critic pruned alone, seed by seed."""
    unready = learned(results, environment, "bcq", COMPARABLE, ABLATION[environment, "none"])
    if unready is not None:
        return unready
    verdicts = {}
    for network in ("actor", "critic"):
        rows = (ABLATION[environment, network], ABLATION[environment, "vae"])
        pairs = paired(results, rows, "behaviour_share").get(environment)
        if pairs is None or pairs.shape[1] < LEAST:
            return untested("runs are missing")
        about = f"of the behaviour's return, {plural(pairs.shape[1], 'pair')}"
        verdicts[f"{network} minus VAE"] = mean_of([pairs[0] - pairs[1]], about, "+.0%").verdict()
    joined = join(verdicts)
    return Verdict(joined.status, f"{joined.because}, {updates(results)}")


DATA = {"expert": ("recorded", "d4rl-expert-v2"), "mixed": ("mixed", "d4rl-medium-expert-v2")}
"""What is in a data set -> its names at the scales."""


def critic_adds(results: Results, row: Row, data: Collection[str]) -> Verdict:
    """Judge whether BCQ beats BC: the mean over environments of their mean gaps, where either has learned if dense."""
    gaps = []
    for environment, name in itertools.product(results.axis("environment"), results.axis("data")):
        at = {"environment": environment, "data": name}
        dense = [results.values(DENSE, "behaviour_share", **at, view_policy=policy) for policy in ("bcq", "bc")]
        found = policy_gaps(results, row.label, environment, name)
        ready = all(shares.size for shares in dense) and max(shares.mean() for shares in dense) >= COMPARABLE
        if name in data and ready and len(found) >= LEAST:
            gaps.append(found)
    if not gaps:
        return untested(f"no environment in which a dense network has learned, with {LEAST} seeds")
    about = f"of the behaviour's return, {plural(sum(map(len, gaps)), 'pair')}, {updates(results)}"
    return mean_of(gaps, about, "+.0%").verdict()


CRITIC = [
    Claim(
        text=f"BCQ beats BC on {kind} data ({row.label}).",
        check=partial(critic_adds, row=row, data=names),
        ours=True,
    )
    for row in (DENSE, SNIP)
    for kind, names in DATA.items()
]

ABLATIONS = [
    *(
        Claim(
            text=f"{environment}: BCQ keeps performance with {PRUNED_PARTS[network]} pruned at 95 %.",
            check=partial(
                kept_return,
                sparse=ABLATION[environment, network],
                dense=ABLATION[environment, "none"],
                environment=environment,
                policy="bcq",
                least=COMPARABLE,
            ),
            ours=True,
        )
        for environment, network in itertools.product(ABLATED, PRUNED_PARTS)
    ),
    *(
        Claim(
            text=f"{environment}: pruning the VAE alone costs BCQ more than the actor or the critic alone.",
            check=partial(costs_most, environment=environment),
            ours=True,
        )
        for environment in ABLATED
    ),
]

CLAIMS = {
    "ablation": ABLATIONS,
    "critic": CRITIC,
    "learning": [
        Claim(
            text=f"{policy.upper()}: {slow.label} needs more updates than {fast.label} to reach {100 * level:.0f} % of "
            "what dense networks end at.",
            check=partial(slower, slow=slow, fast=fast, level=level, policy=policy),
            ours=True,
        )
        for policy, level in itertools.product(("bcq", "bc"), LEVELS)
        for slow, fast in SLOWER
    ],
}
