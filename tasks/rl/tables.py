"""The paper's table and figures as data, with its published values, its claims and ours.

Source: Arnob et al. 2021, Table 1 and Figures 1-4. The paper prints no scores as numbers, only curves; its Table 1 does
not say which environment its sizes belong to: they fit HalfCheetah and Walker2d (17 states, 6 actions), not Hopper.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from retable.platform.table import Column, Figure, Measurement, Row, Table
from retable.platform.task import Scale
from retable.tasks.rl import claims, figures
from retable.tasks.rl.predict import speed

SPARSITIES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
ENVIRONMENTS = ("HalfCheetah", "Hopper", "Walker2d")
SEEDS = (0, 1, 2, 3, 4)
EPOCHS = tuple(range(20, 201, 20))
"""Epochs of the paper's setting whose weights are kept and evaluated: every 100,000 updates."""


def pruned(method: str, sparsity: float, **more: Any) -> Row:
    """Return the row of one method at one sparsity."""
    overrides = {"prune": method, "prune.sparsity": sparsity}
    return Row(label=figures.label(method, sparsity), overrides=overrides, **more)


def scores(method: str, name: str) -> Figure:
    """Return figure 1 or 2: score against sparsity for one pruning method, with controls the paper lacks."""
    controls = [pruned(method, 0.99, view={}), pruned("random", 0.95, view={}), pruned("random", 0.99, view={})]
    return Figure(
        title=f"Score against sparsity, BCQ and BC pruned by {name}",
        rows=[Row(label="dense", view={}), *(pruned(method, s, view={}) for s in SPARSITIES), *controls],
        over={"environment": ENVIRONMENTS, "seed": SEEDS, "view.policy": ("bcq", "bc"), "view.epoch": EPOCHS},
        draw=partial(figures.draw_scores, method=method, sparsities=SPARSITIES),
        claims=[
            *claims.keeps_performance(method, name, ENVIRONMENTS),
            *claims.against_random(method, name),
        ],
        note="Final: the last epoch's weights. Best: the best of the evaluated epochs, which looks at the test score. "
        "BC acts with the decoder of the same run's VAE (view.policy=bc). Bands: lowest to highest seed.",
    )


SIZES = [
    Column(header=header, metric=f"bytes/{network}/sparse", format=".4f", factor=1e-6)
    for header, network in (("Actor", "actor"), ("Critic", "critic"), ("VAE", "vae"))
]
DENSE = {column.header: column.metric.replace("sparse", "dense") for column in SIZES}


def published(actor: float, critic: float, vae: float) -> dict[str, float]:
    """Return one line of the paper's Table 1."""
    return {"Actor": actor, "Critic": critic, "VAE": vae}


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
        claims=claims.MEMORY,
        note="Sparse files hold `to_sparse()` tensors: an int64 index per dimension beside each value, biases too. "
        "The published GraSP row is smaller than 5 % of the weights can be stored: zero biases of unconnected units "
        "would explain it, as in an initialisation the paper does not describe.",
    ),
    "figure1": scores("snip", "SNIP"),
    "figure2": scores("grasp", "GraSP"),
    "figure3": Figure(
        title="Remaining weights of each layer at 95 % sparsity",
        rows=[Row(label="dense"), pruned("snip", 0.95), pruned("grasp", 0.95)],
        over={"environment": ENVIRONMENTS, "seed": SEEDS},
        draw=figures.draw_layers,
        claims=claims.LAYERS,
        note="Bars: mean over seeds; whiskers: standard deviation.",
    ),
    "figure4": Figure(
        title="Memory against sparsity",
        rows=[Row(label="dense"), *(pruned("snip", s) for s in SPARSITIES)],
        over={"seed": SEEDS},
        draw=partial(figures.draw_memory, sparsities=SPARSITIES),
        note="HalfCheetah's networks, pruned by SNIP; at one sparsity every method keeps equally many weights.",
    ),
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
) -> Any:
    """Return a table with a scale's overrides, rows, replicates and view; one of seconds is the same at every scale."""
    if any(isinstance(row, Measurement) for row in table.rows):
        return table
    rows = []
    scored = "view.policy" in table.over  # rows that are only counted, not played, are all kept
    for row in table.rows:
        if isinstance(row, Row) and row.view is not None:
            row = dataclasses.replace(row, view={**row.view, **view})
        rows.append(row if keep(row) or not scored else dataclasses.replace(row, present=False))
    axes = {axis: over.get(axis, values) for axis, values in table.over.items()}
    return dataclasses.replace(table, rows=rows, over=axes, overrides={**table.overrides, **overrides})


def at(*labels: str) -> Callable[[Any], bool]:
    """Return a test for rows whose label ends in one of some words; rows without a sparsity always stay."""
    return lambda row: "%" not in row.label or row.label.endswith(labels)


OURS = {"data": "recorded", "simulator": "v5"}

SCALES = {
    "smoke": Scale(
        about="minutes on two cores: proves every path, scores mean nothing; networks, masks and bytes are full size",
        apply=partial(
            scale,
            overrides={**OURS, "epochs": 1, "updates": 10},
            keep=at(" 50 %", " 95 %"),
            over={"seed": (0, 1), "view.epoch": (1,)},
            view={"episodes": 2, "samples": 10},
        ),
    ),
    "small": Scale(
        about="half an hour to an hour on two cores: HalfCheetah, 3 seeds, 3,000 updates, target pass in bfloat16",
        apply=partial(
            scale,
            overrides={**OURS, "epochs": 3, "updates": 1000, "algorithm.target_precision": "bfloat16"},
            keep=at("SNIP 50 %", " 95 %", "SNIP 99 %", "random 99 %"),
            over={"environment": ("HalfCheetah",), "seed": (0, 1, 2), "view.epoch": (1, 2, 3)},
            view={"episodes": 5, "samples": 10},
        ),
    ),
    "paper": Scale(about="the published setting: 1,000,000 updates on D4RL expert data", apply=lambda table: table),
}
