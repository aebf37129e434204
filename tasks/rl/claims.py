"""The paper's findings, and ours, as functions of the measured rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from retable.platform.table import Claim, Results, Status, Verdict
from retable.tasks.rl.figures import NETWORKS, final, label
from retable.tasks.rl.metrics import interquartile_mean, stratified_bootstrap

LEARNED = 0.5
"""A dense network below this share of the behaviour's return has not learned enough to compare with."""
KEEPS = 0.9
"""A pruned network keeps performance at this share of the dense network's return; the paper names no number."""
UNTESTED: Status = "not tested at this scale"


def keeps_performance(method: str, name: str, environments: Sequence[str]) -> list[Claim]:
    """Return the claim that 95 % sparsity keeps performance, for each environment and policy (section 4)."""
    found = []
    for environment in environments:
        for policy in ("bcq", "bc"):
            fails = (environment, policy) == ("Hopper", "bcq")
            text = f"{environment}, {policy.upper()}: {name} at 95 % {'loses' if fails else 'keeps'} performance."
            check = partial(keeps, method=method, environment=environment, policy=policy, fails=fails)
            found.append(Claim(text=text, check=check))
    return found


def learned(results: Results, environment: str, policy: str) -> Verdict | None:
    """Return why scores cannot be compared yet, or None where they can."""
    share = final(results, "dense", "behaviour_share", environment=environment, view_policy=policy)
    if not share.size:
        return Verdict(UNTESTED, "no runs")
    if share.size < 3:
        return Verdict(UNTESTED, f"{share.size} seeds; at least 3 are needed")
    if share.mean() < LEARNED:
        return Verdict(
            UNTESTED, f"the dense network reaches {share.mean():.0%} of the behaviour's return; not trained enough"
        )
    return None


def updates(results: Results) -> str:
    """Say how long the runs were trained: a short training is no test of what the paper found after a long one."""
    counts = {r.need.config.epochs * r.need.config.updates for rows in results.replicates.values() for r in rows}
    return f"after {max(counts):,} updates (the paper: 1,000,000)"


def keeps(results: Results, method: str, environment: str, policy: str, fails: bool) -> Verdict:
    """Compare SNIP or GraSP at 95 % with the dense network by the interquartile mean over seeds."""
    unready = learned(results, environment, policy)
    if unready is not None:
        return unready
    at = {"environment": environment, "view_policy": policy}
    dense, sparse = (final(results, row, "behaviour_share", **at) for row in ("dense", label(method, 0.95)))
    if len(dense) != len(sparse):
        return Verdict(UNTESTED, "rows are missing")
    ratio = interquartile_mean(sparse) / interquartile_mean(dense)
    low, high = stratified_bootstrap(
        np.stack([sparse, dense], axis=1), lambda s: interquartile_mean(s[:, 0]) / interquartile_mean(s[:, 1]), seed=0
    )
    interval = f"{ratio:.0%} of the dense return [{low:.0%}, {high:.0%}]"
    because = f"{interval}, {len(dense)} seeds, {updates(results)}; keeps means {KEEPS:.0%}"
    if low >= KEEPS:
        return Verdict("does not hold" if fails else "holds", because)
    if high < KEEPS:
        return Verdict("holds" if fails else "does not hold", because)
    return Verdict("not separable", because)


def against_random(method: str, name: str) -> list[Claim]:
    """Return our claims that the method beats random masks, at 95 and 99 %."""
    return [
        Claim(
            text=f"{name} scores higher than random masks at {100 * sparsity:.0f} % ({policy.upper()}).",
            check=partial(beats_random, method=method, sparsity=sparsity, policy=policy),
            ours=True,
        )
        for sparsity in (0.95, 0.99)
        for policy in ("bcq", "bc")
    ]


def beats_random(results: Results, method: str, sparsity: float, policy: str) -> Verdict:
    """Compare a method with random masks of equal sparsity over all environments and seeds."""
    environments = [e for e in results.axis("environment") if learned(results, e, policy) is None]
    pairs = []
    for environment in environments:
        at = {"environment": environment, "view_policy": policy}
        ours, random = (final(results, label(m, sparsity), "behaviour_share", **at) for m in (method, "random"))
        if ours.size and ours.size == random.size:
            pairs += [ours, random]
    if not pairs:
        return Verdict(UNTESTED, "no environment in which the dense network has learned and both were run")
    table = np.stack(pairs, axis=1)

    def gap(scores: np.ndarray) -> float:
        return interquartile_mean(scores[:, 0::2]) - interquartile_mean(scores[:, 1::2])

    low, high = stratified_bootstrap(table, gap, seed=0)
    because = (
        f"{gap(table):+.0%} of the behaviour's return [{low:+.0%}, {high:+.0%}], {len(table)} seeds, {updates(results)}"
    )
    return Verdict("holds" if low > 0 else "does not hold" if high < 0 else "not separable", because)


def rounds_to(results: Results, wanted: int, above: str, below: str, labels: tuple[str, str]) -> Verdict:
    """Test a ratio of file sizes that the paper gives as a whole number."""
    if any(row not in results for row in labels):
        return Verdict(UNTESTED, "rows are missing")
    ratios = [
        results.values(labels[0], f"bytes/{network}/{above}").mean()
        / results.values(labels[1], f"bytes/{network}/{below}").mean()
        for network in NETWORKS
    ]
    shown = ", ".join(f"{network} {ratio:.2f}x" for network, ratio in zip(NETWORKS.values(), ratios, strict=True))
    good = all(round(ratio) == wanted for ratio in ratios)
    return Verdict("holds" if good else "does not hold", f"{shown}; holds if every ratio rounds to {wanted}")


MEMORY = [
    Claim(
        text="At 95 % sparsity the files are 4 times smaller than dense ones.",
        check=partial(rounds_to, wanted=4, above="dense", below="sparse", labels=("Dense Model", label("snip", 0.95))),
    ),
    Claim(
        text="Dense weights with sparse indexing take 5 times the dense file (Table 1).",
        check=partial(
            rounds_to, wanted=5, above="sparse", below="dense", labels=("Dense Model Sparse Indexing", "Dense Model")
        ),
    ),
]

LAST = {"actor": ("l3",), "critic": ("l3", "l6"), "vae": ("d3",)}


def last_density(results: Results, row: str) -> dict[str, np.ndarray]:
    """Return each network's share of weights kept in its last layers, over environments and seeds."""
    return {
        network: np.mean([results.values(row, f"density/{network}/{layer}") for layer in layers], axis=0)
        for network, layers in LAST.items()
    }


def last_layer_kept(results: Results, method: str) -> Verdict:
    """Test whether the last layers keep more than the 5 % of the whole network."""
    row = label(method, 0.95)
    if row not in results:
        return Verdict(UNTESTED, "no runs")
    shares = last_density(results, row)
    shown = ", ".join(f"{NETWORKS[n]} {v.mean():.0%} (lowest {v.min():.0%})" for n, v in shares.items())
    return Verdict("holds" if all(v.min() > 0.05 for v in shares.values()) else "does not hold", f"{shown} against 5 %")


def grasp_keeps_more(results: Results) -> Verdict:
    """Compare what GraSP and SNIP keep of the last layers, pairwise by environment and seed."""
    rows = label("grasp", 0.95), label("snip", 0.95)
    if any(row not in results for row in rows):
        return Verdict(UNTESTED, "rows are missing")
    grasp, snip = (last_density(results, row) for row in rows)
    shown, signs = [], []
    for network, title in NETWORKS.items():
        gaps = grasp[network] - snip[network]
        if len(gaps) < 2:
            return Verdict(UNTESTED, f"{len(gaps)} seeds")
        low, high = stratified_bootstrap(gaps[:, None], lambda s: float(s.mean()), seed=0)
        shown.append(f"{title} {gaps.mean():+.0%} [{low:+.0%}, {high:+.0%}]")
        signs.append(1 if low > 0 else -1 if high < 0 else 0)
    because = f"GraSP minus SNIP: {', '.join(shown)}, {len(gaps)} runs"
    return Verdict("holds" if min(signs) > 0 else "does not hold" if max(signs) < 0 else "not separable", because)


LAYERS = [
    Claim(text="SNIP keeps more in the last layer than elsewhere.", check=partial(last_layer_kept, method="snip")),
    Claim(text="GraSP keeps more in the last layer than elsewhere.", check=partial(last_layer_kept, method="grasp")),
    Claim(text="GraSP keeps more weights of the last layer than SNIP.", check=grasp_keeps_more),
]
