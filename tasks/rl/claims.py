"""The paper's findings, and ours, as functions of the measured rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from scipy.stats import rankdata

from retable.platform.table import Claim, Results, Status, Verdict
from retable.tasks.rl.compact import Precision
from retable.tasks.rl.figures import CONTROLS, NAMES, NETWORKS, break_even, file_sizes, final, label
from retable.tasks.rl.metrics import interquartile_mean, stratified_bootstrap

LEARNED = 0.5
"""A dense network below this share of the behaviour's return has not learned enough to compare with."""
KEEPS = 0.9
"""A pruned network keeps performance at this share of the dense network's return; the paper names no number."""
LOST = 0.05
"""A rounded file may lose this share of the behaviour's return."""
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


def against_controls(method: str, name: str, sparsities: Sequence[float]) -> list[Claim]:
    """Return our claims that the method beats every control of equal sparsity, for each sparsity and policy."""
    return [
        Claim(
            text=f"{name} scores higher than every control at {100 * sparsity:.0f} % ({policy.upper()}).",
            check=partial(beats_controls, method=method, sparsity=sparsity, policy=policy),
            ours=True,
        )
        for policy in ("bcq", "bc")
        for sparsity in sparsities
    ]


def beats_controls(results: Results, method: str, sparsity: float, policy: str) -> Verdict:
    """Compare a method with each control; it holds where it beats them all, and fails where it loses to one."""
    verdicts = {NAMES[c]: beats(results, label(method, sparsity), label(c, sparsity), policy) for c in CONTROLS}
    found = {verdict.status for verdict in verdicts.values()}
    if found == {UNTESTED}:
        return next(iter(verdicts.values()))
    status = next(s for s in ("does not hold", UNTESTED, "not separable", "holds") if s in found)
    each = "; ".join(f"{name}: {verdict.status}, {verdict.because}" for name, verdict in verdicts.items())
    return Verdict(status, f"{each}; gaps in the behaviour's return, {updates(results)}")


def beats(results: Results, ours: str, control: str, policy: str) -> Verdict:
    """Compare two rows run by run, paired by environment and seed: the interquartile mean of the gaps."""
    environments = [e for e in results.axis("environment") if learned(results, e, policy) is None]
    if not environments:
        return Verdict(UNTESTED, "no environment in which the dense network has learned, with 3 seeds")
    gaps = {}
    for environment in environments:
        at = {"environment": environment, "view_policy": policy}
        pair = [final(results, row, "behaviour_share", **at) for row in (ours, control)]
        if {len(scores) for scores in pair} == {len(results.axis("seed"))}:  # whole, so the pairs have equal seeds
            gaps[environment] = pair[0] - pair[1]
    if not gaps:
        return Verdict(UNTESTED, "runs are missing")
    table = np.stack(list(gaps.values()), axis=1)
    low, high = stratified_bootstrap(table, interquartile_mean, seed=0)
    because = f"{interquartile_mean(table):+.0%} [{low:+.0%}, {high:+.0%}], {table.size} pairs"
    return Verdict("holds" if low > 0 else "does not hold" if high < 0 else "not separable", because)


ACTING = {"bcq": ("actor", "critic", "vae"), "bc": ("vae",)}
"""The networks that a policy was made by."""


def explained(method: str, sparsities: Sequence[float]) -> list[Claim]:
    """Return our claims that the units which masks cut off go with the score that is lost, for each policy."""
    return [
        Claim(
            text=f"At equal sparsity, networks with more units cut off score lower ({policy.upper()}).",
            check=partial(
                cut_off_explains, methods=(method, "random", "magnitude", "erk"), sparsities=sparsities, policy=policy
            ),
            ours=True,
        )
        for policy in ("bcq", "bc")
    ]


def cut_off_explains(results: Results, methods: Sequence[str], sparsities: Sequence[float], policy: str) -> Verdict:
    """Correlate the ranks of units cut off and of final scores among the masks of one environment and sparsity.

    Sparsity itself would make a correlation, so ranks are compared within a sparsity only, and averaged; runs are
    resampled by seed. It is a correlation: what else differs between the methods is not held fixed.
    """
    seeds, found = len(results.axis("seed")), []
    for environment in results.axis("environment"):
        if learned(results, environment, policy) is not None:
            continue
        for sparsity in sparsities:
            at = {"environment": environment, "view_policy": policy}
            rows = [label(method, sparsity) for method in methods]
            scores = [final(results, row, "behaviour_share", **at) for row in rows]
            networks = [[final(results, row, f"unconnected/{n}", **at) for n in ACTING[policy]] for row in rows]
            cut = [np.sum(parts, axis=0) for parts in networks]
            if {len(values) for values in [*scores, *cut]} == {seeds}:
                found.append(np.stack([cut, scores]))
    if not found:
        return Verdict(UNTESTED, "no environment in which the dense network has learned and every mask was run")
    table = np.stack(found)  # (environments and sparsities, cut off or score, methods, seeds)

    def correlation(drawn: np.ndarray) -> float:
        runs = table[..., drawn[:, 0].astype(int)].reshape(len(table), 2, -1)
        return float(rank_correlation(runs[:, 0], runs[:, 1]).mean())

    every = np.arange(seeds)[:, None]
    low, high = stratified_bootstrap(every, correlation, seed=0)
    runs = table[:, 0].size
    because = f"rank correlation {correlation(every):+.2f} [{low:+.2f}, {high:+.2f}], {runs} runs, {updates(results)}"
    return Verdict("holds" if high < 0 else "does not hold" if low > 0 else "not separable", because)


def rank_correlation(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return Spearman's rank correlation of each line of two arrays (lines, values), and 0 where one is constant.

    SciPy's own `spearmanr` gives NaN and a warning for a constant.
    """
    ranks = [rankdata(values, axis=1) for values in (a, b)]
    a, b = (values - values.mean(axis=1, keepdims=True) for values in ranks)
    scale = np.sqrt((a**2).sum(axis=1) * (b**2).sum(axis=1))
    found: np.ndarray = np.divide((a * b).sum(axis=1), scale, out=np.zeros(len(a)), where=scale > 0)
    return found


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


def times_smaller(results: Results, times: float, dense: str, sparse: str) -> Verdict:
    """Test how many times smaller than the dense file our exact file is, the worst seed of each network."""
    if any(row not in results for row in (dense, sparse)):
        return Verdict(UNTESTED, "rows are missing")
    ratios = {
        title: results.values(dense, f"bytes/{network}/dense").mean()
        / results.values(sparse, f"bytes/{network}/compact")
        for network, title in NETWORKS.items()
    }
    if not all(values.size for values in ratios.values()):
        return Verdict(UNTESTED, "no sizes of our files")
    shown = ", ".join(f"{title} {values.min():.1f}x to {values.max():.1f}x" for title, values in ratios.items())
    good = all(values.min() >= times for values in ratios.values())
    return Verdict("holds" if good else "does not hold", f"{shown} over {len(ratios['VAE'])} seeds")


def pays_from(results: Results, form: str, sparsity: float, sparsities: Sequence[float]) -> Verdict:
    """Test from which sparsity on a format's files are smaller than dense ones, to one per cent."""
    shown, good = [], True
    for network, title in NETWORKS.items():
        x, sizes = file_sizes(results, network, form, sparsities)
        dense = results.values("dense", f"bytes/{network}/dense")
        if not dense.size or len(x) < 2:
            return Verdict(UNTESTED, "rows are missing")
        found = break_even(x, sizes, float(dense.mean()))
        shown.append(f"{title} never" if found is None else f"{title} {100 * found:.1f} %")
        good = good and found is not None and abs(found - sparsity) <= 0.01
    return Verdict("holds" if good else "does not hold", ", ".join(shown))


def loses_nothing(results: Results, exact: str, rounded: str) -> Verdict:
    """Compare a policy's return out of a rounded file with that out of an exact one, seed by seed."""
    both = [results.values(row, "behaviour_share") for row in (exact, rounded)]
    if len(both[0]) != len(both[1]) or len(both[0]) < 3:
        return Verdict(UNTESTED, f"{min(map(len, both))} seeds; at least 3 are needed")
    if both[0].mean() < LEARNED:
        return Verdict(UNTESTED, f"the exact one reaches {both[0].mean():.0%} of the behaviour's return; not trained")
    gaps = both[1] - both[0]
    low, high = stratified_bootstrap(gaps[:, None], lambda s: float(s.mean()), seed=0)
    because = f"{gaps.mean():+.1%} of the behaviour's return [{low:+.1%}, {high:+.1%}], {len(gaps)} seeds"
    return Verdict("holds" if low > -LOST else "does not hold" if high < -LOST else "not separable", because)


def rounding(rows: Mapping[tuple[str, Precision], str]) -> list[Claim]:
    """Return our claims that rounded files keep the return; `rows`: (policy, precision) -> label."""
    return [
        Claim(
            text=f"In {precision} the file of {policy.upper()}'s policy loses less than {LOST:.0%} of the behaviour's "
            "return.",
            check=partial(loses_nothing, exact=rows[policy, "float32"], rounded=row),
            ours=True,
        )
        for (policy, precision), row in rows.items()
        if precision != "float32"
    ]


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
    Claim(
        text="At 95 % sparsity our exact files are at least 14 times smaller than dense ones.",
        check=partial(times_smaller, times=14, dense="Dense Model", sparse=label("snip", 0.95)),
        ours=True,
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
