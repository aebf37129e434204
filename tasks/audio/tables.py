"""The paper's tables and figure as data, with published values; the claims are in `claims.py`.

Source: Primus, Koutini and Widmer 2023, Tables 1 and 2, Figure 2. A fine-tuned row is two runs: its pre-training, which
is its Parent, and five epochs on Clotho. PaSST-S leaves out three rows of patches in training, as the published scripts
do; the paper says four. The weights of fine-tuning's last epoch are scored, as in the code, which fine-tunes from the
best epoch on the validation set: so pre-training keeps that one, and the row that is not fine-tuned scores it.

Two rows of other authors are trained with our parts, after their published code: `BASELINE_RUN` and `WAVCAPS_RUN` say
what of it is otherwise here. The best submission of 2022 is an ensemble whose systems are not described in the paper.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from retable.platform.spec.table import AnyRow, Column, Combined, Figure, Row, Table
from retable.tasks.audio import example, figures
from retable.tasks.audio.combine import mean_similarity, no_similarity
from retable.tasks.audio.config import PAPER

SEEDS = (0, 1, 2)
COLUMNS = [
    Column(header="mAP@10", metric="map10", factor=100.0, better="higher"),
    Column(header="R@1", metric="r1", factor=100.0, better="higher"),
    Column(header="R@5", metric="r5", factor=100.0, better="higher"),
    Column(header="R@10", metric="r10", factor=100.0, better="higher"),
]

AUDIO: Mapping[str, Mapping[str, object]] = {
    "PaSST-N": {"audio": "passt", "audio.weights": "passt-n", "segment": 10.0},
    "PaSST-S": {
        "audio": "passt",
        "audio.weights": "passt-s",
        "audio.stride": 10,
        "audio.frames": 998,
        "audio.patchout_frequency": 3,
        "audio.patchout_time": 50,
        "segment": 10.0,
    },
    "PaSST-S15": {
        "audio": "passt",
        "audio.weights": "passt-s15",
        "audio.stride": 10,
        "audio.frames": 2000,
        "audio.patchout_frequency": 3,
        "audio.patchout_time": 80,
        "segment": 15.0,
    },
    "CNN14": {"audio": "cnn14", "audio.weights": "cnn14", "segment": 30.0},
    "mean mel": {"audio": "mean_mel", "audio.deviation": False, "segment": 10.0},
    "mean and deviation of mel": {"audio": "mean_mel", "segment": 10.0},
}
TEXT: Mapping[str, str] = {
    "bert-base": "bert-base-uncased",
    "roberta-base": "roberta-base",
    "bert-large": "bert-large-uncased",
    "roberta-large": "roberta-large",
}
"""The paper's name of a sentence encoder -> its name on the hub."""


def pre_training(audio: str, text: str, **more: object) -> dict[str, object]:
    """Return the run on all three corpora (section 2.6): all 15 epochs of it, of which the best is kept."""
    return {**PAPER, **AUDIO[audio], "text": "pretrained", "text.name": TEXT[text], "patience": 15, **more}


def fine_tuning(pre_trained: Mapping[str, object], augmentation: float = 0.3) -> dict[str, object]:
    """Return the run that goes on from a pre-training, on Clotho alone (section 2.6)."""
    return {
        **pre_trained,
        "corpora": ("clotho",),
        "learning_rate": 8e-6,
        "epochs": 5,
        "patience": 0,
        "augmentation": augmentation,
        "init": "parent",
        "init.overrides": tuple(pre_trained.items()),
    }


def published(scores: Sequence[float | None]) -> dict[str, float]:
    """Return one line of the paper's table; None where it has a dash."""
    headers = [column.header for column in COLUMNS]
    return {header: score for header, score in zip(headers, scores, strict=True) if score is not None}


def row(label: str, overrides: Mapping[str, object] | None, *scores: float | None) -> Row:
    """Return a line of table 2; without published scores it is one of ours."""
    return Row(label=label, overrides=overrides, view={}, published=published(scores) if scores else {})


def system(audio: str, text: str, *scores: float) -> Row:
    """Return a system that was fine-tuned with rewritten captions."""
    return row(f"{audio} + {text}", fine_tuning(pre_training(audio, text)), *scores)


BEST = system("PaSST-N", "roberta-large", 38.56, 26.07, 55.27, 69.30)
PASST_N = {
    "bert-base": system("PaSST-N", "bert-base", 37.15, 24.63, 53.53, 68.38),
    "roberta-base": system("PaSST-N", "roberta-base", 37.29, 24.56, 54.78, 68.25),
    "bert-large": system("PaSST-N", "bert-large", 37.85, 25.11, 55.69, 68.42),
    "roberta-large": BEST,
}
PASST_S = {
    "bert-base": system("PaSST-S", "bert-base", 36.29, 24.15, 53.22, 67.06),
    "roberta-base": system("PaSST-S", "roberta-base", 36.76, 24.15, 54.16, 68.33),
    "bert-large": system("PaSST-S", "bert-large", 37.06, 24.80, 53.89, 67.69),
    "roberta-large": system("PaSST-S", "roberta-large", 37.79, 25.53, 54.62, 68.48),
}
PASST_S15 = {
    "bert-large": system("PaSST-S15", "bert-large", 38.16, 25.36, 54.85, 68.42),
    "roberta-large": system("PaSST-S15", "roberta-large", 38.42, 26.00, 55.54, 69.13),
}
SYSTEMS = [*PASST_N.values(), *PASST_S.values(), *PASST_S15.values()]
BEST_PRE_TRAINING = pre_training("PaSST-N", "roberta-large")
NO_REWRITES_RUN = fine_tuning(BEST_PRE_TRAINING, augmentation=0.0)
NO_REWRITES = row(f"{BEST.label}, no rewritten captions", NO_REWRITES_RUN, 38.00, 25.51, 55.06, 68.56)
NOT_FINE_TUNED = row(f"{BEST.label}, not fine-tuned", BEST_PRE_TRAINING, 36.27, 24.38, 52.54, 66.22)
ABLATIONS = [NO_REWRITES, NOT_FINE_TUNED]
MEMBERS = (
    *PASST_N.values(),
    PASST_S["bert-large"],
    PASST_S["roberta-large"],
    *PASST_S15.values(),
)
"""Of the paper's ensemble: footnotes 1 to 8 of table 2."""
CANDIDATES = (PASST_S["bert-base"], PASST_S["roberta-base"], NO_REWRITES, NOT_FINE_TUNED)
"""Trained systems that are no members."""
ENSEMBLE = Combined(
    label="ensemble",
    of=tuple(member.label for member in MEMBERS),
    combine=mean_similarity,
    published=published((41.42, 28.89, 58.73, 71.08)),
)
BASELINE_RUN: Mapping[str, object] = {
    "corpora": ("clotho",),
    "leaks": "include",
    **AUDIO["CNN14"],
    "text": "pretrained",
    "text.name": "sentence-transformers/all-mpnet-base-v2",
    "text.pooling": "mean",
    "text.frozen": True,
    "text.dropout": 0.0,
    "projection": 300,
    "temperature": 0.07,
    "learn_temperature": False,
    "batch": 32,
    "learning_rate": 1e-3,
    "final_learning_rate": 1e-6,
    "warmup": 0.0,
    "epochs": 80,
    "patience": 80,
    "precision": "float32",
}
"""The challenge's baseline, trained on Clotho alone, its sentence encoder frozen.

Source: xieh97/dcase2023-audio-retrieval, `conf.yaml` and `preprocessing/`. Otherwise here: the rate falls as a cosine,
there by tens where the validation loss stands still; the best epoch is kept, by the validation mAP@10; captions lose
case and punctuation, and the mean over their tokens is not normalised before the projection; spectrograms are those
that PANNs' file was trained on, there others (40 ms each 20 ms, at 44.1 kHz); captions of one recording in a batch are
positives, there left out.
"""
WAVCAPS_PRE_TRAINING: Mapping[str, object] = {
    **AUDIO["CNN14"],
    "text": "pretrained",
    "text.name": TEXT["bert-base"],
    "temperature": 0.07,
    "batch": 128,
    "learning_rate": 5e-5,
    "warmup": 2.0,
    "patience": 15,
}
"""All three corpora, leaks excluded: the authors' code leaves out what one of their published black lists names."""
WAVCAPS_RUN: Mapping[str, object] = {
    **fine_tuning(WAVCAPS_PRE_TRAINING, augmentation=0.0),
    "learning_rate": 5e-5,
    "warmup": 0.0,
    "epochs": 20,
    "patience": 20,
}
"""The system of WavCaps' authors: pre-trained, then fine-tuned on Clotho for 20 epochs.

Source: XinhaoMei/WavCaps, `retrieval/settings/pretrain.yaml` and `train.yaml`. Otherwise here: one linear projection,
there two layers with a ReLU between; no SpecAugment, no clipping of gradients, and no term that keeps vectors even;
captions are cut to 32 tokens, and the text encoder's dropout is ours; leaks are what our guard finds; the best epochs
are those of the validation mAP@10.
"""
BASELINE = row("CNN14 + all-mpnet-base-v2 (the challenge's baseline)", BASELINE_RUN, 22.20, 13.00, 34.30, 48.00)
WAVCAPS = row("CNN14 + bert-base, fine-tuned (WavCaps)", WAVCAPS_RUN, None, 21.40, 47.90, 61.90)
OTHERS = [
    BASELINE,
    WAVCAPS,
    row("best submission of 2022 (ensemble)", None, 29.90, 18.80, 44.70, 58.70),
]
GUARDED = row(f"{BEST.label}, leaks excluded", fine_tuning(pre_training("PaSST-N", "roberta-large", leaks="exclude")))
MEAN_MEL = row("mean mel + roberta-large", fine_tuning(pre_training("mean mel", "roberta-large")))
MEL_STATISTICS = row(
    "mean and deviation of mel + roberta-large", fine_tuning(pre_training("mean and deviation of mel", "roberta-large"))
)
CHANCE = Combined(label="chance", of=(BEST.label, MEAN_MEL.label), combine=no_similarity)
"""Equal similarities of all recordings: their ties count as the expectation over their orders."""
OURS: Sequence[AnyRow] = [GUARDED, MEAN_MEL, MEL_STATISTICS, CHANCE]

TABLE2 = Table(
    title="Finding recordings of the test set by their captions (table 2)",
    rows=[*SYSTEMS, *ABLATIONS, ENSEMBLE, *OTHERS, *OURS],
    columns=COLUMNS,
    over={"seed": SEEDS},
    note="In per cent; among equal similarities, the expectation over their orders. PaSST-N and PaSST-S hear 10 s at "
    "once, PaSST-S15 15 s; patches of PaSST-N do not overlap. Unless said otherwise, pre-trained on WavCaps, AudioCaps "
    "and Clotho, then fine-tuned on Clotho, where a caption is replaced by one of its rewritten forms with probability "
    "0.3. The ensemble joins PaSST-N with all four sentence encoders, PaSST-S and PaSST-S15 with the large ones, by "
    "the mean of their cosines: how the paper joined them it does not say. As in the paper, training recordings that "
    "are also test recordings are kept; `leaks excluded` leaves them out. The baseline and "
    "WavCaps' system are trained here as their authors' code says, as far as our parts go: the baseline on Clotho "
    "alone, its sentence encoder frozen. The best submission of 2022 has published values alone: the paper does not "
    "say which systems it joins. The last four rows are ours. Chance among n recordings: mAP@10 2.93 / n, R@k k / n "
    "(Clotho's 1,045: 0.28, 0.10, 0.48 and 0.96 per cent).",
)


def joined(label: str, members: Sequence[Row], needs: Row) -> Combined:
    """Return another ensemble, which says nothing without the row that it has more or less."""
    of = tuple(member.label for member in members)
    return Combined(label=label, of=of, combine=mean_similarity, needs=(needs.label,))


WITHOUT = {
    row.label: joined(f"ensemble without {row.label}", [member for member in MEMBERS if member is not row], row)
    for row in MEMBERS
}
ADDED = {row.label: joined(f"ensemble and {row.label}", [*MEMBERS, row], row) for row in CANDIDATES}

ENSEMBLES = Table(
    title="The ensemble with a system less, and with one more (section 3)",
    rows=[
        ENSEMBLE,
        *WITHOUT.values(),
        *ADDED.values(),
        *SYSTEMS,
        *ABLATIONS,
        MEAN_MEL,
    ],
    columns=COLUMNS,
    over={"seed": SEEDS},
    note="The paper tells of this without numbers. Single systems are those of table 2, and so is the linear control, "
    "below which a system counts as not having learnt.",
)

CLOTHO = Row(label="ClothoV2", overrides=NO_REWRITES_RUN, view={})
CLOTHO_GPT = Row(label="ClothoV2_GPT", overrides=fine_tuning(BEST_PRE_TRAINING), view={})
FIGURE2 = Figure(
    title="Validation loss during fine-tuning, with and without rewritten captions (figure 2)",
    rows=[CLOTHO, CLOTHO_GPT, MEAN_MEL],
    draw=partial(figures.draw_validation, labels=(CLOTHO.label, CLOTHO_GPT.label)),
    over={"seed": SEEDS},
    note="PaSST-N + roberta-large, the runs of table 2. Mean and range of the runs; each run has a pre-training of its "
    "own, with its seed. The linear control is not drawn: a run that scores no more than it counts as not having "
    "learnt.",
)

TABLE1 = Figure(
    title="A caption and what is made of it (table 1)",
    rows=example.ROWS,
    draw=example.draw_example,
    note="Above: caption and keywords. Red: sentences with a keyword that the caption lacks. The paper prints its "
    "keywords in colour, which our text of it has lost; ours are words of its answer. The offline rewriter needs no "
    "network.",
)

TABLES: dict[str, Any] = {"table1": TABLE1, "table2": TABLE2, "ensembles": ENSEMBLES, "figure2": FIGURE2}
