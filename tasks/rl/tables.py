"""The paper's table and figures as data, with published values; the claims are in `claims.py`.

Source: Arnob et al. 2021, Table 1 and Figures 1-4. The paper prints no scores as numbers, only curves; its Table 1 does
not say which environment its sizes belong to: they fit HalfCheetah and Walker2d (17 states, 6 actions), not Hopper.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from functools import partial
from typing import Any

from retable.platform.spec.table import Column, Figure, Measurement, Row, Table
from retable.tasks.rl import figures
from retable.tasks.rl.formats.precisions import COMPACT, Precision
from retable.tasks.rl.learning import readings
from retable.tasks.rl.learning.readings import CONTROLS, METHODS, NETWORKS, label
from retable.tasks.rl.learning.readings import FORMATS as FORMAT_NAMES
from retable.tasks.rl.learning.timing import speed

RAW = (0.9, 0.95)
"""Sparsities at which rows of raw states stand beside those of standardized ones."""
SPARSITIES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
BEYOND = (0.97, 0.98, 0.99)
"""Sparsities beyond the paper's, at which what tells methods apart should show."""
ENVIRONMENTS = ("HalfCheetah", "Hopper", "Walker2d")
SEEDS = (0, 1, 2, 3, 4)
QUALITIES = tuple(f"d4rl-{quality}-v2" for quality in ("expert", "medium-expert", "medium", "medium-replay", "random"))
"""D4RL's data sets, the best behaviour first. The paper has the first alone."""
EPOCHS = tuple(range(20, 201, 20))
"""Epochs of the paper's setting whose weights are kept and evaluated: every 100,000 updates."""


UNTRAINED: Mapping[str, object] = {"epochs": 1, "steps": 1}
"""Shortest training, for rows that need none: masks, and with them the bytes of files, are fixed before the first
update."""
DENSE = Row(label="dense", overrides={"prune": "dense"}, view={})
DENSE_RAW = Row(label=readings.DENSE_RAW, overrides={"prune": "dense", "states": "raw"}, view={})
"""Row that shows the cost of raw states without pruning."""


def pruned(method: str, sparsity: float, states: str = "standardized", **more: Any) -> Row:
    """Return the row of one method at one sparsity."""
    overrides = {"prune": method, "prune.sparsity": sparsity}
    raw = {} if states == "standardized" else {"states": states}
    return Row(label=label(method, sparsity, states), overrides=overrides | raw, **more)


def counted(row: Row) -> Row:
    """Return a row of which weights and bytes are counted: nobody trains or plays it."""
    return dataclasses.replace(row, overrides={**(row.overrides or {}), **UNTRAINED}, view=None)


def scores(method: str, name: str) -> Figure:
    """Return figure 1 or 2: score against sparsity for one pruning method, with controls the paper lacks."""
    sparsities = (*SPARSITIES, *BEYOND)
    controls = [pruned(control, s, view={}) for control in CONTROLS for s in (0.95, *BEYOND)]
    raw = [DENSE_RAW, *(pruned(method, s, "raw", view={}) for s in RAW)]
    return Figure(
        title=f"Score against sparsity, BCQ and BC pruned by {name}",
        rows=[DENSE, *(pruned(method, s, view={}) for s in sparsities), *raw, *controls],
        over={"environment": ENVIRONMENTS, "seed": SEEDS, "view.policy": ("bcq", "bc"), "view.epoch": EPOCHS},
        draw=partial(figures.draw_scores, method=method, sparsities=sparsities),
        note="Final: the last epoch's weights. Best: the best of the evaluated epochs, which looks at the test score. "
        "BC acts with the decoder of the same run's VAE (view.policy=bc). Bands and whiskers: lowest to highest seed. "
        "States are standardized by mean and standard deviation of the training data, which is our reading: the paper "
        "does not say. Rows of raw states are ours; the dense one is what they cost without pruning. "
        "Controls: masks of equal sparsity that are random, keep the largest weights, or follow ERK's layer densities; "
        "and dense networks with as many weights. All rows and seeds play from the same start states (view.seed): "
        "intervals over seeds hold these episodes fixed.",
    )


def learning() -> Figure:
    """Return scores against updates by method, of runs that figures 1 and 2 have too."""
    compared = [("snip", 0.5), ("snip", 0.9), *((method, 0.95) for method in METHODS)]
    raw = [DENSE_RAW, *(pruned(method, 0.95, "raw", view={}) for method in ("snip", "grasp"))]
    return Figure(
        title="Score against updates, by method (not in the paper)",
        rows=[DENSE, *(pruned(method, sparsity, view={}) for method, sparsity in compared), *raw],
        over={"environment": ENVIRONMENTS, "seed": SEEDS, "view.policy": ("bcq", "bc"), "view.epoch": EPOCHS},
        draw=figures.draw_learning,
        note="Bands: lowest to highest seed. Dotted: 50 and 90 % of the dense return, the mean over seeds at the last "
        "evaluated epoch. The updates until a seed reaches them are read off a line between two evaluated epochs; "
        "the first epoch's where that is above already.",
    )


SNIP_95: dict[str, object] = {"prune": "snip", "prune.sparsity": 0.95}
ABLATED = ("HalfCheetah", "Hopper")
PRUNED_PARTS = {"all": "all networks", "actor": "the actor alone", "critic": "the critic alone", "vae": "the VAE alone"}


def ablation_rows() -> dict[tuple[str, str], Row]:
    """Return the rows of networks pruned one at a time: (environment, what is pruned) -> row."""
    rows = {}
    for environment in ABLATED:
        fixed: dict[str, object] = {"environment": environment}
        rows[environment, "none"] = Row(label=f"{environment}: dense", overrides={**fixed, "prune": "dense"}, view={})
        for networks, title in PRUNED_PARTS.items():
            overrides = {**fixed, **SNIP_95, "prune.networks": networks}
            rows[environment, networks] = Row(label=f"{environment}: {title}", overrides=overrides, view={})
    return rows


ABLATION = ablation_rows()

DIAGNOSTICS = [
    Column(header="blind inputs", metric="blind", format=".1f"),
    Column(header="dead outputs", metric="dead", format=".1f"),
    Column(header="units cut off", metric="unconnected", format=".0f"),
    Column(header="effective weights", metric="effective", format=",.0f"),
    Column(header="lost layers", metric="lost_layers", format=".1f"),
    Column(header="scores of 0, %", metric="zero_scores", format=".1f", factor=100),
    Column(header="lowest layer density, %", metric="lowest_density", format=".2f", factor=100),
]


def diagnostics() -> Table:
    """Return what each method leaves connected, network by network; it needs no training beyond the figures' runs."""
    masks = [pruned(*pair) for pair in itertools.product(("snip", "grasp", "random", "magnitude", "erk"), (0.95, 0.99))]
    masks += [pruned(method, 0.95, "raw") for method in ("snip", "grasp")]
    rows = [
        Row(
            label=f"{environment}, {title}: {mask.label}",
            overrides={"environment": environment, **(mask.overrides or {}), **UNTRAINED},
            metrics={column.header: f"{column.metric}/{network}" for column in DIAGNOSTICS},
        )
        for environment, (network, title), mask in itertools.product(ENVIRONMENTS, NETWORKS.items(), masks)
    ]
    return Table(
        title="What pruning leaves connected (not in the paper)",
        rows=rows,
        columns=DIAGNOSTICS,
        over={"environment": ENVIRONMENTS, "seed": SEEDS},
        note="Known before the first update, so as real after ten updates as after a million. A blind input is an "
        "entry of the observation with no path to an output (of the VAE's decoder, of a head of the critic); a dead "
        "output is one that no input reaches. A hidden unit is cut off without a path from an input or to an output; a "
        "weight is effective on a path between the two. Scores of exactly 0 belong to units that the batch never "
        "activates; which of those weights stay, their order settles.",
    )


SIZES = [
    Column(header=header, metric=f"bytes/{network}/sparse", format=".4f", factor=1e-6)
    for header, network in (("Actor", "actor"), ("Critic", "critic"), ("VAE", "vae"))
]
DENSE_FILES = {column.header: column.metric.replace("sparse", "dense") for column in SIZES}


def published(actor: float, critic: float, vae: float) -> dict[str, float]:
    """Return one line of the paper's Table 1."""
    return {"Actor": actor, "Critic": critic, "VAE": vae}


def rounded_policies() -> dict[tuple[str, Precision], Row]:
    """Return the rows of policies that act with the weights of a file: (policy, precision) -> row.

    Dense policies are rounded too: rounding moves them otherwise than pruned ones.
    """
    rows = {}
    networks: dict[str, dict[str, object]] = {"": SNIP_95, "dense ": {"prune": "dense"}}
    for (kind, prune), policy, (form, precision) in itertools.product(networks.items(), ("bcq", "bc"), COMPACT.items()):
        name, what = f"{policy.upper()}'s {kind}policy", f"deployable_{policy}/{form}"
        metrics = {"all": f"bytes/{what}", "times smaller": f"smaller/{what}", "return, %": "behaviour_share"}
        metrics |= {} if precision == "float32" else {"actions move by": "action_difference"}
        view = {"policy": policy, "precision": precision}
        rows[name, precision] = Row(label=f"{name}, {precision}", overrides=prune, metrics=metrics, view=view)
    return rows


ROUNDED = rounded_policies()


ARCHIVES = {"xz": "the dense file, xz -9", "zstd": "the dense file, zstd -19"}


def format_rows() -> dict[str, Row]:
    """Return the rows of a pruned run's files: format -> row."""
    names = {"dense": "dense", **ARCHIVES, **FORMAT_NAMES}
    rows = {}
    for form, name in names.items():
        metrics = {header: f"bytes/{network}/{form}" for header, network in ALL_NETWORKS.items()}
        metrics["times smaller"] = f"smaller/all/{form}"
        rows[form] = Row(label=name, overrides=SNIP_95, metrics=metrics)
    return rows


ALL_NETWORKS = {column.header: column.metric.split("/")[1] for column in SIZES} | {"all": "all"}
FORMATS = format_rows()

FILES = Table(
    title="Files of networks pruned by SNIP at 95 %, in MB (not in the paper)",
    rows=[*FORMATS.values(), *ROUNDED.values()],
    columns=[
        *(Column(header=header, metric="", format=".4f", factor=1e-6) for header in ALL_NETWORKS),
        Column(header="times smaller", metric="", format=".1f"),
        Column(header="actions move by", metric="", format=".4f"),
        Column(header="return, %", metric="", format=".1f", factor=100, better="higher"),
    ],
    over={"seed": SEEDS},
    note="All: a file for each network, or one file with what acting needs: the decoder, and for BCQ the actor and "
    "the critic's first head. Times smaller: than the dense files of all networks. Actions move by: mean difference of "
    "an action's entries, which are in [-1, 1], from those of the exact weights, at observations of the data and with "
    "the same noise. Return: in per cent of the behaviour's, of the policy that acts with the weights of that file. "
    "All but ours are written by torch.save; xz and zstd compress its dense file, where a training has 1,000 updates "
    "or more.",
)


DENSE_MODEL = Row(
    label="Dense Model",
    overrides={"prune": "dense", **UNTRAINED},
    metrics=DENSE_FILES,
    published=published(0.5287, 1.04492, 4.7621),
)
DENSE_INDEXED = Row(
    label="Dense Model Sparse Indexing",
    overrides={"prune": "dense", **UNTRAINED},
    published=published(2.6318, 5.2035, 23.7739),
)
GRASP_FILES = counted(pruned("grasp", 0.95, published=published(0.14099, 0.2768, 1.2122)))
GRASP_XAVIER = dataclasses.replace(
    GRASP_FILES,
    label="GraSP 95 %, Xavier (ours)",
    overrides={**(GRASP_FILES.overrides or {}), "initialisation": "xavier"},
    published={},
)
GRASP_XAVIER_RAW = dataclasses.replace(
    GRASP_XAVIER,
    label="GraSP 95 %, Xavier, raw states (ours)",
    overrides={**(GRASP_XAVIER.overrides or {}), "states": "raw"},
)

TABLES: Mapping[str, Table | Figure] = {
    "table1": Table(
        title="Memory size of the network weights, MB (1e6 bytes of the saved file)",
        rows=[
            DENSE_MODEL,
            DENSE_INDEXED,
            GRASP_FILES,
            GRASP_XAVIER,
            GRASP_XAVIER_RAW,
            counted(pruned("snip", 0.95, published=published(0.14297, 0.2824, 1.2303))),
        ],
        columns=SIZES,
        over={"seed": SEEDS},
        note="No training changes these sizes; our exact files, of the last claim, grow by some per cent "
        "(rl/formats has them after training). "
        "Sparse files hold `to_sparse()` tensors: an int64 index per dimension beside each value, biases too. "
        "The published GraSP row is smaller than 5 % of the weights and all biases can be stored. Xavier weights and "
        "zero biases, which the paper does not describe and GraSP's own code starts from, may explain it: biases of "
        "units that never learn stay 0, and no file holds them. How many these are depends on the states.",
    ),
    "figure1": scores("snip", "SNIP"),
    "figure2": scores("grasp", "GraSP"),
    "learning": learning(),
    "critic": Figure(
        title="What the critic adds: BCQ minus BC, by the quality of the data (not in the paper)",
        rows=[DENSE, pruned("snip", 0.95, view={})],
        over={
            "environment": ENVIRONMENTS,
            "data": QUALITIES,
            "seed": SEEDS,
            "view.policy": ("bcq", "bc"),
        },
        draw=figures.draw_critic,
        note="Both policies act with the VAE of the same run, so gaps are of equal seeds. Circles: seeds; diamonds: "
        "their mean with its 95 % interval (Student), and both in numbers. Shares are of each set's own "
        "behaviour; there is none where that earns nothing, as random actions in HalfCheetah.",
    ),
    "ablation": Table(
        title="BCQ pruned by SNIP at 95 %, one network at a time (not in the paper)",
        rows=[*ABLATION.values()],
        columns=[
            Column(header="return, %", metric="behaviour_share", format=".1f", factor=100, better="higher"),
            Column(header="return", metric="return", format=",.0f", better="higher"),
            Column(header="steps", metric="length", format=",.0f"),
            *(
                Column(header=f"effective, {title}", metric=f"effective/{network}", format=",.0f")
                for network, title in NETWORKS.items()
            ),
        ],
        over={"environment": ABLATED, "seed": SEEDS, "view.policy": ("bcq",)},
        note="The networks that a row does not name stay dense. Return: of the last epoch, in per cent of the "
        "behaviour's too. Effective: weights that lie on a path from an input to an output. BC acts with the VAE "
        "alone: it plays as if dense where that is not pruned, and as if all were where it is.",
    ),
    "figure3": Figure(
        title="Remaining weights of each layer at 95 % sparsity",
        rows=[counted(row) for row in (DENSE, pruned("snip", 0.95), pruned("grasp", 0.95))],
        over={"environment": ENVIRONMENTS, "seed": SEEDS},
        draw=figures.draw_layers,
        note="Bars: mean over seeds; whiskers: standard deviation.",
    ),
    "diagnostics": diagnostics(),
    "figure4": Figure(
        title="Memory against sparsity",
        rows=[counted(row) for row in (DENSE, *(pruned("snip", s) for s in SPARSITIES))],
        over={"seed": SEEDS},
        draw=partial(figures.draw_memory, sparsities=SPARSITIES),
        note="HalfCheetah's networks, pruned by SNIP; at one sparsity every method keeps equally many weights. "
        "Circles: where a format becomes smaller than the dense file. Ours holds every bit and compresses exponents as "
        "well as positions, so it is smaller than the dense file from the start. Training makes ours larger by some "
        "per cent (see rl/formats), and no other.",
    ),
    "formats": FILES,
    "speed": Table(
        title="Milliseconds of one update and of acting in one state (not in the paper)",
        rows=[
            Measurement(label="BCQ", measure=speed),
            Measurement(
                label="BCQ, target in bfloat16", measure=speed, overrides={"algorithm.target_precision": "bfloat16"}
            ),
            Measurement(label="BC (VAE alone)", measure=speed, overrides={"algorithm": "bc"}),
        ],
        columns=[
            Column(header="update, ms", metric="update_ms", format=".1f", better="lower"),
            Column(header="acting, ms", metric="act_ms", format=".2f", better="lower"),
        ],
        note="HalfCheetah's sizes, batch 100, one thread; BCQ draws 100 candidate actions.",
    ),
}
