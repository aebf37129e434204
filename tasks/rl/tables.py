"""The paper's table and figures as data, with its published values, its claims and ours.

Source: Arnob et al. 2021, Table 1 and Figures 1-4. The paper prints no scores as numbers, only curves; its Table 1 does
not say which environment its sizes belong to: they fit HalfCheetah and Walker2d (17 states, 6 actions), not Hopper.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from retable.platform.table import Claim, Column, Figure, Measurement, Row, Table
from retable.platform.task import Scale
from retable.tasks.rl import claims, figures
from retable.tasks.rl.predict import speed
from retable.tasks.rl.sparse import COMPACT

SPARSITIES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
BEYOND = (0.97, 0.98, 0.99)
"""Sparsities beyond the paper's, at which what tells methods apart should show."""
ENVIRONMENTS = ("HalfCheetah", "Hopper", "Walker2d")
SEEDS = (0, 1, 2, 3, 4)
EPOCHS = tuple(range(20, 201, 20))
"""Epochs of the paper's setting whose weights are kept and evaluated: every 100,000 updates."""
UNTRAINED = {"epochs": 1, "updates": 1}
"""What has no need of training: masks, and with them the bytes of files, are settled before the first update."""


def pruned(method: str, sparsity: float, **more: Any) -> Row:
    """Return the row of one method at one sparsity."""
    overrides = {"prune": method, "prune.sparsity": sparsity}
    return Row(label=figures.label(method, sparsity), overrides=overrides, **more)


def scores(method: str, name: str) -> Figure:
    """Return figure 1 or 2: score against sparsity for one pruning method, with controls the paper lacks."""
    sparsities = (*SPARSITIES, *BEYOND)
    controls = [pruned(control, s, view={}) for control in figures.CONTROLS for s in (0.95, *BEYOND)]
    return Figure(
        title=f"Score against sparsity, BCQ and BC pruned by {name}",
        rows=[Row(label="dense", view={}), *(pruned(method, s, view={}) for s in sparsities), *controls],
        over={"environment": ENVIRONMENTS, "seed": SEEDS, "view.policy": ("bcq", "bc"), "view.epoch": EPOCHS},
        draw=partial(figures.draw_scores, method=method, sparsities=sparsities),
        claims=[
            *claims.keeps_performance(method, name, ENVIRONMENTS),
            *claims.against_controls(method, name, (0.95, *BEYOND)),
            *claims.explained(method, (0.95, *BEYOND)),
        ],
        note="Final: the last epoch's weights. Best: the best of the evaluated epochs, which looks at the test score. "
        "BC acts with the decoder of the same run's VAE (view.policy=bc). Bands and whiskers: lowest to highest seed. "
        "Controls: masks of equal sparsity that are random, keep the largest weights, or follow ERK's layer densities; "
        "and dense networks with as many weights.",
    )


DIAGNOSTICS = [
    Column(header="units cut off", metric="unconnected", format=".0f"),
    Column(header="effective weights", metric="effective", format=",.0f"),
    Column(header="lost layers", metric="lost_layers", format=".1f"),
    Column(header="scores of 0, %", metric="zero_scores", format=".1f", factor=100),
    Column(header="lowest layer density, %", metric="lowest_density", format=".2f", factor=100),
]


def diagnostics() -> Table:
    """Return what each method leaves connected, network by network; it needs no training."""
    rows = []
    for environment, (network, title) in itertools.product(ENVIRONMENTS, figures.NETWORKS.items()):
        for method, sparsity in itertools.product(("snip", "grasp", "random", "magnitude", "erk"), (0.95, 0.99)):
            rows.append(
                Row(
                    label=f"{environment}, {title}: {figures.label(method, sparsity)}",
                    overrides={"environment": environment, "prune": method, "prune.sparsity": sparsity},
                    metrics={column.header: f"{column.metric}/{network}" for column in DIAGNOSTICS},
                )
            )
    return Table(
        title="What pruning leaves connected (not in the paper)",
        rows=rows,
        columns=DIAGNOSTICS,
        over={"environment": ENVIRONMENTS, "seed": SEEDS},
        overrides=UNTRAINED,
        note="Known before the first update, so as real after one update as after a million. A hidden unit is cut off "
        "without a path from an input or to an output; a weight is effective on a path between the two. Scores of "
        "exactly 0 belong to units that the batch never activates; which of those weights stay, their order settles.",
    )


SIZES = [
    Column(header=header, metric=f"bytes/{network}/sparse", format=".4f", factor=1e-6)
    for header, network in (("Actor", "actor"), ("Critic", "critic"), ("VAE", "vae"))
]
DENSE = {column.header: column.metric.replace("sparse", "dense") for column in SIZES}


def published(actor: float, critic: float, vae: float) -> dict[str, float]:
    """Return one line of the paper's Table 1."""
    return {"Actor": actor, "Critic": critic, "VAE": vae}


def formats(sparsity: float) -> Table:
    """Return the size of one pruned run's files in every format, and the return that rounding weights costs.

    Dense policies are rounded too: after a short training a pruned one has no return to lose.
    """
    networks = {column.header: column.metric.split("/")[1] for column in SIZES} | {"all": "all"}
    overrides: dict[str, object] = {"prune": "snip", "prune.sparsity": sparsity}
    rows, played = [], {}
    for form, name in {"dense": "dense", **{form: name for form, (name, _) in figures.FORMATS.items()}}.items():
        metrics = {header: f"bytes/{network}/{form}" for header, network in networks.items()}
        metrics["times smaller"] = f"smaller/all/{form}"
        rows.append(Row(label=name, overrides=overrides, metrics=metrics))
    networks_of: dict[str, dict[str, object]] = {"": overrides, "dense ": {"prune": "dense"}}
    for (kind, own), policy, (form, precision) in itertools.product(
        networks_of.items(), ("bcq", "bc"), COMPACT.items()
    ):
        name = f"{policy.upper()}'s {kind}policy"
        played[name, precision] = f"{name}, {precision}"
        what = f"deployable_{policy}/{form}"
        metrics = {"all": f"bytes/{what}", "times smaller": f"smaller/{what}", "return, %": "behaviour_share"}
        view = {"policy": policy, "precision": precision}
        rows.append(Row(label=played[name, precision], overrides=own, metrics=metrics, view=view))
    trained_files = Claim(
        text=f"After training our exact files at {100 * sparsity:.0f} % are at least 14 times smaller than dense ones.",
        check=partial(claims.times_smaller, times=14, dense="dense", sparse=figures.FORMATS["compact"][0]),
        ours=True,
    )
    return Table(
        title=f"Files of networks pruned by SNIP at {100 * sparsity:.0f} %, in MB (not in the paper)",
        rows=rows,
        columns=[
            *(Column(header=header, metric="", format=".4f", factor=1e-6) for header in networks),
            Column(header="times smaller", metric="", format=".1f"),
            Column(header="return, %", metric="", format=".1f", factor=100),
        ],
        over={"seed": SEEDS},
        claims=[trained_files, *claims.rounding(played)],
        note="All: a file for each network, or one file with what acting needs: the decoder, and for BCQ the actor and "
        "the critic's first head. Times smaller: than the dense files of all networks. Return: in per cent of the "
        "behaviour's, of the policy that acts with the weights of that file. All but ours are written by torch.save.",
    )


TABLES: Mapping[str, Table | Figure] = {
    "table1": Table(
        title="Memory size of the network weights, MB (1e6 bytes of the saved file)",
        rows=[
            Row(label="Dense Model", metrics=DENSE, published=published(0.5287, 1.04492, 4.7621)),
            Row(label="Dense Model Sparse Indexing", published=published(2.6318, 5.2035, 23.7739)),
            pruned("grasp", 0.95, published=published(0.14099, 0.2768, 1.2122)),
            pruned("snip", 0.95, published=published(0.14297, 0.2824, 1.2303)),
        ],
        columns=SIZES,
        over={"seed": SEEDS},
        overrides=UNTRAINED,
        claims=claims.MEMORY,
        note="No training changes these sizes; our exact files, of the last claim, grow by some per cent "
        "(rl/formats has them after training). Sparse files hold `to_sparse()` tensors: an int64 index per dimension "
        "beside each value, biases too. "
        "The published GraSP row is smaller than 5 % of the weights can be stored: zero biases of unconnected units "
        "would explain it, as in an initialisation the paper does not describe.",
    ),
    "figure1": scores("snip", "SNIP"),
    "figure2": scores("grasp", "GraSP"),
    "figure3": Figure(
        title="Remaining weights of each layer at 95 % sparsity",
        rows=[Row(label="dense"), pruned("snip", 0.95), pruned("grasp", 0.95)],
        over={"environment": ENVIRONMENTS, "seed": SEEDS},
        overrides=UNTRAINED,
        draw=figures.draw_layers,
        claims=claims.LAYERS,
        note="Bars: mean over seeds; whiskers: standard deviation.",
    ),
    "diagnostics": diagnostics(),
    "figure4": Figure(
        title="Memory against sparsity",
        rows=[Row(label="dense"), *(pruned("snip", s) for s in SPARSITIES)],
        over={"seed": SEEDS},
        overrides=UNTRAINED,
        draw=partial(figures.draw_memory, sparsities=SPARSITIES),
        claims=[
            Claim(
                text="The paper's format is smaller than dense files from 80 % sparsity on.",
                check=partial(claims.pays_from, form="sparse", sparsity=0.8, sparsities=SPARSITIES),
                ours=True,
            )
        ],
        note="HalfCheetah's networks, pruned by SNIP; at one sparsity every method keeps equally many weights. "
        "Circles: where a format becomes smaller than the dense file. Ours holds every bit and compresses exponents as "
        "well as positions, so it is smaller than the dense file from the start. Training makes ours larger by some "
        "per cent (see rl/formats), and no other.",
    ),
    "formats": formats(0.95),
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
            Column(header="update, ms", metric="update_ms", format=".1f"),
            Column(header="acting, ms", metric="act_ms", format=".2f"),
        ],
        note="HalfCheetah's sizes, batch 100, one thread; BCQ draws 100 candidate actions.",
    ),
}


def scale(
    table: Any,
    overrides: Mapping[str, object],
    keep: Callable[[Any], bool],
    over: Mapping[str, Sequence[object]],
    view: Mapping[str, object],
    training: Mapping[str, object] | None = None,
) -> Any:
    """Return a table with a scale's overrides, rows, replicates and view; one of seconds is the same at every scale.

    `training` holds the overrides that a table without need of training is spared.
    """
    if any(isinstance(row, Measurement) for row in table.rows):
        return table
    rows = []
    environments = over.get("environment", ENVIRONMENTS)
    scored = "view.policy" in table.over  # rows that are only counted, not played, are all kept
    for row in table.rows:
        if isinstance(row, Row) and (row.overrides or {}).get("environment", environments[0]) not in environments:
            continue
        if isinstance(row, Row) and row.view is not None:
            row = dataclasses.replace(row, view={**row.view, **view})
        rows.append(row if keep(row) or not scored else dataclasses.replace(row, present=False))
    axes = {axis: over.get(axis, values) for axis, values in table.over.items()}
    changes = {**(training or {}), **table.overrides, **overrides}
    return dataclasses.replace(table, rows=rows, over=axes, overrides=changes)


def at(*labels: str) -> Callable[[Any], bool]:
    """Return a test for rows whose label ends in one of some words; rows without a sparsity always stay."""
    return lambda row: "%" not in row.label or row.label.endswith(labels)


OURS = {"data": "recorded", "simulator": "v5"}

SCALES = {
    "smoke": Scale(
        about="minutes on two cores: proves every path, scores mean nothing; networks, masks and bytes are full size",
        apply=partial(
            scale,
            overrides={**OURS, "epochs": 1, "updates": 10},  # for all alike: so few updates cost less than more runs
            keep=at(" 50 %", " 95 %"),
            over={"seed": (0, 1), "view.epoch": (1,)},
            view={"episodes": 2, "samples": 10},
        ),
    ),
    "small": Scale(
        about="an hour or two on two cores: HalfCheetah, 3 seeds, 3,000 updates, target pass in bfloat16",
        apply=partial(
            scale,
            overrides={**OURS, "algorithm.target_precision": "bfloat16"},
            training={"epochs": 3, "updates": 1000},
            keep=at(" 50 %", " 95 %", " 99 %"),
            over={"environment": ("HalfCheetah",), "seed": (0, 1, 2), "view.epoch": (1, 2, 3)},
            view={"episodes": 5, "samples": 10},
        ),
    ),
    "paper": Scale(about="the published setting: 1,000,000 updates on D4RL expert data", apply=lambda table: table),
}
