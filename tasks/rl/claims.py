"""The paper's findings, and ours, as functions of the measured rows."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from retable.platform.spec.arrays import Array
from retable.platform.spec.claims import (
    LEAST,
    UNTESTED,
    Status,
    Verdict,
    decided,
    join,
    mean_of,
    seed_mean,
    too_few,
    untested,
)
from retable.platform.spec.table import Claim, Results, Row, claim
from retable.platform.text import plural
from retable.tasks.rl.learning.claims import CLAIMS as LEARNING
from retable.tasks.rl.learning.claims import GRASP, SNIP
from retable.tasks.rl.learning.compare import COMPARABLE, by_environment, kept_return, learned, updates
from retable.tasks.rl.learning.readings import CONTROLS, NAMES, NETWORKS, break_even, file_sizes
from retable.tasks.rl.tables import (
    ARCHIVES,
    BEYOND,
    DENSE,
    DENSE_INDEXED,
    DENSE_MODEL,
    DENSE_RAW,
    ENVIRONMENTS,
    FORMATS,
    GRASP_FILES,
    GRASP_XAVIER,
    GRASP_XAVIER_RAW,
    ROUNDED,
    SIZES,
    SPARSITIES,
    pruned,
)

MOVED = 0.005
"""A rounded file may move actions so far: our recordings add noise of 0.05 to the expert's."""
NEAR = 0.02
"""Bytes this share away from the paper's are its bytes, where masks differ by data and seeds."""


def keeps_performance(method: str, name: str) -> list[Claim]:
    """Return the claim that 95 % sparsity keeps performance, for each environment and policy (section 4)."""
    return [
        claim(
            f"{environment}, {policy.upper()}: {name} at 95 % {'loses' if lost else 'keeps'} performance.",
            keeps,
            method,
            environment,
            policy,
            lost,
        )
        for environment, policy in itertools.product(ENVIRONMENTS, ("bcq", "bc"))
        for lost in [(environment, policy) == ("Hopper", "bcq")]
    ]


def keeps(results: Results, method: str, environment: str, policy: str, fails: bool) -> Verdict:
    """Judge whether SNIP or GraSP at 95 % keeps the dense network's return, or, where `fails`, that it does not."""
    verdict = kept_return(results, pruned(method, 0.95), DENSE, environment, policy)
    opposite: dict[Status, Status] = {"holds": "does not hold", "does not hold": "holds"}
    return Verdict(opposite.get(verdict.status, verdict.status) if fails else verdict.status, verdict.because)


def against_controls(method: str, name: str, sparsities: Sequence[float]) -> list[Claim]:
    """Return our claims that the method beats every control of equal sparsity, for each sparsity and policy."""
    return [
        claim(
            f"{name} scores higher than every control at {100 * sparsity:.0f} % ({policy.upper()}).",
            beats_controls,
            method,
            sparsity,
            policy,
            ours=True,
        )
        for policy in ("bcq", "bc")
        for sparsity in sparsities
    ]


def beats_controls(results: Results, method: str, sparsity: float, policy: str) -> Verdict:
    """Compare a method with each control; it holds where it beats them all, and fails where it loses to one.

    One of four comparisons may be lost by chance more easily than one: a loss counts at a fourth of the 5 %.
    """
    ours = pruned(method, sparsity)
    verdicts = {
        NAMES[control]: beats(results, ours, pruned(control, sparsity), policy, len(CONTROLS)) for control in CONTROLS
    }
    if len({verdict.because for verdict in verdicts.values()}) == 1:
        return next(iter(verdicts.values()))
    parts = {name: Verdict(v.status, f"{v.status}, {v.because}") for name, v in verdicts.items()}
    return join(parts).noted(f"; gaps in the behaviour's return, {updates(results)}")


def beats(results: Results, ours: Row, control: Row, policy: str, chances: int = 1) -> Verdict:
    """Compare two rows run by run (`contrast`)."""
    return contrast(results, ((ours, 1), (control, -1)), policy, chances)


def contrast(results: Results, weights: Sequence[tuple[Row, int]], policy: str, chances: int = 1) -> Verdict:
    """Judge whether a weighted sum of rows is above 0, paired by environment and seed: the mean over environments.

    Args:
        results: of the table.
        weights: rows, each with its weight in the sum.
        policy: of all.
        chances: comparisons of which any decides when it is lost; where the mean is a loss, the interval is so much
            wider (Bonferroni).
    """
    environments = [e for e in results.axis("environment") if learned(results, e, policy, COMPARABLE) is None]
    if not environments:
        return untested(f"no environment in which the dense network has learned, with {LEAST} seeds")
    rows, factors = zip(*weights, strict=True)
    every = by_environment(results, rows, "behaviour_share", view_policy=policy)
    gaps = [factors @ every[e] for e in environments if e in every and every[e].shape[1] >= LEAST]
    if not gaps:
        return untested("runs are missing")
    loses = seed_mean(gaps)[0] < 0
    level = 1 - 0.05 / chances if loses else 0.95
    return mean_of(gaps, plural(sum(map(len, gaps)), "pair"), "+.0%", level).verdict()


def needs_standardized(method: str, name: str) -> list[Claim]:
    """Return our claims on what raw states cost a method at 95 %: inputs of the decoder, and return.

    The last ones subtract what they cost the dense network: the rest is what pruning on raw states costs.
    """
    ours, raw = pruned(method, 0.95), pruned(method, 0.95, "raw")
    higher = ((ours, 1), (raw, -1))
    more = (*higher, (DENSE, -1), (DENSE_RAW, 1))
    return [
        claim(
            f"Without standardized states {name} at 95 % leaves inputs of the decoder without a path to the output.",
            leaves_blind,
            ours,
            raw,
            ours=True,
        ),
        *(
            claim(f"{name} at 95 % {text} ({policy.upper()}).", in_words, weights, policy, ours=True)
            for text, weights in (
                ("scores higher on standardized states than on raw ones", higher),
                ("loses more by raw states than the dense network does", more),
            )
            for policy in ("bcq", "bc")
        ),
    ]


def leaves_blind(results: Results, ours: Row, raw: Row) -> Verdict:
    """Count the states that the decoder is blind to, in each environment: it acts for BCQ and for BC.

    The masks are as they are, so there is nothing to estimate: the claim holds if every mask of raw states leaves blind
    inputs and none of standardized ones does, and fails where no mask of raw states leaves any.
    """
    pairs = by_environment(results, (raw, ours), "blind/vae")
    if refused := too_few(min((counts.shape[1] for counts in pairs.values()), default=0)):
        return refused
    shown = [
        f"{environment} {' and '.join(', '.join(f'{count:.0f}' for count in row) for row in counts)}"
        for environment, counts in pairs.items()
    ]
    some, none = (np.concatenate([counts[row] for counts in pairs.values()]) for row in (0, 1))
    status: Status = "holds" if some.all() and not none.any() else "not separable" if some.any() else "does not hold"
    return Verdict(status, f"blind inputs of the decoder by seed, raw and standardized: {'; '.join(shown)}")


def in_words(results: Results, weights: Sequence[tuple[Row, int]], policy: str) -> Verdict:
    """Judge a sum of rows (`contrast`) in words that stand alone."""
    verdict = contrast(results, weights, policy)
    if verdict.status == UNTESTED:
        return verdict
    return verdict.noted(f"; gaps in the behaviour's return, {updates(results)}")


def rounds_to(results: Results, wanted: int, above: str, below: str, rows: tuple[Row, Row]) -> Verdict:
    """Test a ratio of file sizes that the paper gives as a whole number."""
    sides = list(zip(rows, (above, below), strict=True))
    sizes = {network: [results.values(row, f"bytes/{network}/{form}") for row, form in sides] for network in NETWORKS}
    if not all(values.size for pair in sizes.values() for values in pair):
        return untested("rows are missing")
    ratios = {NETWORKS[network]: top.mean() / bottom.mean() for network, (top, bottom) in sizes.items()}
    shown = ", ".join(f"{title} {ratio:.2f}x" for title, ratio in ratios.items())
    good = all(round(ratio) == wanted for ratio in ratios.values())
    return decided(good, f"{shown}; holds if every ratio rounds to {wanted}")


def reproduces(results: Results, printed: Row, ours: Row) -> Verdict:
    """Test whether the bytes of a row of ours are what the paper prints in another, to `NEAR` in each network."""
    sizes = {column.header: results.values(ours, column.metric) for column in SIZES}
    if not all(values.size for values in sizes.values()):
        return untested("rows are missing")
    if "Hopper" in {replicate.config.environment for replicate in results.replicates[ours.label]}:
        return untested("what is printed are sizes for 17 states and 6 actions, not Hopper's")
    apart = {header: values.mean() / 1e6 / printed.published[header] - 1 for header, values in sizes.items()}
    shown = ", ".join(f"{header} {gap:+.1%}" for header, gap in apart.items())
    good = all(abs(gap) <= NEAR for gap in apart.values())
    return decided(good, f"{shown} from what is printed; {NEAR:.0%} would count")


def times_smaller(results: Results, times: float, larger: Row, ours: Row, form: str = "dense") -> Verdict:
    """Test how many times smaller than the files of a form our exact ones are, the worst seed of each network."""
    if any(row not in results for row in (larger, ours)):
        return untested("rows are missing")
    ratios = {}
    for network, title in NETWORKS.items():
        files, compact = (results.values(row, f"bytes/{network}/{f}") for row, f in ((larger, form), (ours, "compact")))
        if not (files.size and compact.size):
            return untested("no sizes of the files")
        ratios[title] = files.mean() / compact
    shown = ", ".join(f"{title} {values.min():.1f}x to {values.max():.1f}x" for title, values in ratios.items())
    good = all(values.min() >= times for values in ratios.values())
    return decided(good, f"{shown} over {len(ratios['VAE'])} seeds")


def pays_from(results: Results, form: str, sparsity: float) -> Verdict:
    """Test from which sparsity on a format's files are smaller than dense ones, to one per cent."""
    shown, good = [], True
    for network, title in NETWORKS.items():
        x, sizes = file_sizes(results, network, form, SPARSITIES)
        dense = results.values(DENSE, f"bytes/{network}/dense")
        if not dense.size or len(x) < 2:
            return untested("rows are missing")
        crossing = break_even(x, sizes, float(dense.mean()))
        shown.append(f"{title} never" if crossing is None else f"{title} {100 * crossing:.1f} %")
        good = good and crossing is not None and abs(crossing - sparsity) <= 0.01
    return decided(good, ", ".join(shown))


def moves_little(results: Results, rounded: Row) -> Verdict:
    """Test how far rounding moves a policy's actions, the worst seed."""
    moved = results.values(rounded, "action_difference")
    if not moved.size:
        return untested("no actions of the rounded policy")
    shown = f"{moved.mean():.4f} (worst seed {moved.max():.4f}) of actions in [-1, 1], {plural(len(moved), 'seed')}"
    return decided(moved.max() < MOVED, shown)


MEMORY = [
    claim(
        "At 95 % sparsity the files are 4 times smaller than dense ones.",
        rounds_to,
        4,
        above="dense",
        below="sparse",
        rows=(DENSE_MODEL, SNIP),
    ),
    claim(
        "Dense weights with sparse indexing take 5 times the dense file (Table 1).",
        rounds_to,
        5,
        above="sparse",
        below="dense",
        rows=(DENSE_INDEXED, DENSE_MODEL),
    ),
    *(
        claim(
            f"Xavier weights and zero biases give the GraSP row of Table 1, to 2 %, on {states} states.",
            reproduces,
            GRASP_FILES,
            row,
            ours=True,
        )
        for states, row in (("standardized", GRASP_XAVIER), ("raw", GRASP_XAVIER_RAW))
    ),
    claim(
        "At 95 % sparsity our exact files are at least 14 times smaller than dense ones.",
        times_smaller,
        14,
        DENSE_MODEL,
        SNIP,
        ours=True,
    ),
]

LAST = {"actor": ("l3",), "critic": ("l3", "l6"), "vae": ("d3",)}


def last_density(results: Results, rows: Sequence[Row], network: str) -> list[Array]:
    """Return the share of weights that a network's last layers keep, for each environment (rows, seeds)."""
    layers = [by_environment(results, rows, f"density/{network}/{layer}") for layer in LAST[network]]
    return [np.mean([layer[environment] for layer in layers], axis=0) for environment in layers[0]]


def last_layer_kept(results: Results, method: str) -> Verdict:
    """Test whether the last layers keep more than the 5 % of the whole network."""
    kept = {NETWORKS[network]: last_density(results, [pruned(method, 0.95)], network) for network in LAST}
    if not all(kept.values()):
        return untested("no runs")
    shares = {title: np.concatenate(densities, axis=1) for title, densities in kept.items()}
    shown = ", ".join(f"{title} {share.mean():.0%} (lowest {share.min():.0%})" for title, share in shares.items())
    return decided(all(v.min() > 0.05 for v in shares.values()), f"{shown} against 5 %")


def grasp_keeps_more(results: Results) -> Verdict:
    """Compare what GraSP and SNIP keep of the last layers, pairwise by environment and seed."""
    shown: dict[str, Verdict] = {}
    runs = 0
    for network, title in NETWORKS.items():
        gaps = [densities[0] - densities[1] for densities in last_density(results, (GRASP, SNIP), network)]
        runs = sum(map(len, gaps))
        if runs < LEAST or min(map(len, gaps)) < 2:
            return untested(f"{runs} runs of both; at least {LEAST} are needed, 2 of each environment")
        shown[title] = mean_of(gaps, form="+.0%").verdict()
    statuses = {verdict.status for verdict in shown.values()}
    gaps_shown = ", ".join(f"{title} {verdict.because}" for title, verdict in shown.items())
    because = f"GraSP minus SNIP: {gaps_shown}, {runs} runs"
    return Verdict(statuses.pop() if len(statuses) == 1 else "not separable", because)


LAYERS = [
    claim("SNIP keeps more in the last layer than elsewhere.", last_layer_kept, "snip"),
    claim("GraSP keeps more in the last layer than elsewhere.", last_layer_kept, "grasp"),
    claim("GraSP keeps more weights of the last layer than SNIP.", grasp_keeps_more),
]


CLAIMS = {
    **LEARNING,
    "table1": MEMORY,
    **{
        figure: [
            *keeps_performance(method, name),
            *against_controls(method, name, (0.95, *BEYOND)),
            *needs_standardized(method, name),
        ]
        for figure, method, name in (("figure1", "snip", "SNIP"), ("figure2", "grasp", "GraSP"))
    },
    "figure3": LAYERS,
    "figure4": [
        claim(
            "The paper's format is smaller than dense files from 80 % sparsity on.",
            pays_from,
            "sparse",
            0.8,
            ours=True,
        )
    ],
    "formats": [
        claim(
            "After training our exact files at 95 % are at least 14 times smaller than dense ones.",
            times_smaller,
            14,
            FORMATS["dense"],
            FORMATS["compact"],
            ours=True,
        ),
        *(
            claim(
                f"After training our exact files at 95 % are smaller than {ARCHIVES[form]}.",
                times_smaller,
                1,
                FORMATS[form],
                FORMATS["compact"],
                form,
                ours=True,
            )
            for form in ARCHIVES
        ),
        *(
            claim(
                f"In {precision} the file of {policy} moves actions by less than {MOVED} with every seed (a tenth of "
                "the noise in our recordings).",
                moves_little,
                row,
                ours=True,
            )
            for (policy, precision), row in ROUNDED.items()
            if precision != "float32"
        ),
    ],
}
