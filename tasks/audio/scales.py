"""The sizes at which the tables are run, and what each does to rows, encoders and data."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from retable.platform.config import describe
from retable.platform.spec.table import AnyTable, Combined, Measurement, Row
from retable.platform.spec.task import Scale
from retable.tasks.audio.tables import (
    BASELINE,
    BEST,
    CLOTHO,
    CLOTHO_GPT,
    GUARDED,
    MEAN_MEL,
    MEMBERS,
    NO_REWRITES,
    NOT_FINE_TUNED,
    PASST_N,
    TEXT,
)

Changes = Mapping[str, object]
LABELS = {CLOTHO.label: NO_REWRITES.label, CLOTHO_GPT.label: BEST.label}
"""Rows of figure 2 -> those of table 2 that are the same runs."""
TRAINED_BASELINE = (
    "At this scale the baseline's sentence encoder starts untrained: it is trained, not frozen, and its class token "
    "stands for a caption, not the mean over the tokens."
)
"""As `shrink` drops all fields of a pretrained text encoder."""


@dataclass(frozen=True)
class Reduced:
    """A reduced setting."""

    overrides: Changes
    """Overrides of every run."""
    pre_training: Changes
    fine_tuning: Changes
    audio: Mapping[str, Changes]
    """Published audio encoder -> overrides at this scale; encoders without weights are unchanged."""
    text: Mapping[str, Changes]
    """Sentence encoder on the hub -> overrides at this scale."""
    once: Sequence[str] = ()
    """Labels of rows that are run with the first seed alone."""
    rows: Collection[str] | None = None
    """Labels of the rows that are trained; None: all."""
    why: str = ""
    """Reason why the others are left out."""

    def row(self, row: Row | Measurement) -> Row | Measurement | str:
        """Return a row with the encoders and training of this size, or why it is left out; what is counted stays."""
        if isinstance(row, Measurement) or row.overrides is None:
            return row
        if self.rows is not None and LABELS.get(row.label, row.label) not in self.rows:
            return self.why
        first = {"seed": 0} if row.label in self.once else {}
        return dataclasses.replace(row, overrides={**self.shrink(row.overrides), **first})

    def shrink(self, overrides: Changes) -> dict[str, object]:
        """Return overrides, and those of the run they start from, at this size."""
        small = {path: value for path, value in overrides.items() if not path.startswith("text.")}
        small |= self.audio.get(str(overrides.get("audio.weights")), {"segment": self.audio["passt-n"]["segment"]})
        small |= {**self.text[str(overrides["text.name"])], **self.overrides}
        small |= self.fine_tuning if "init.overrides" in overrides else self.pre_training
        if "init.overrides" in overrides:
            ancestor = dict(overrides["init.overrides"])  # type: ignore[call-overload]
            small["init.overrides"] = tuple(self.shrink(ancestor).items())
        return small

    def note(self, table: AnyTable) -> str:
        """Return the note of a table: which reduced setting stands for which published one."""
        if all(isinstance(row, Measurement) for row in table.rows):
            return ""
        stand_ins = {**self.audio, **self.text}
        settings = "; ".join(f"{name}: {describe(changes)}" for name, changes in stand_ins.items())
        stages = f"pre-training: {describe(self.pre_training)}; fine-tuning: {describe(self.fine_tuning)}"
        notes = [f"Settings of this scale: {describe(self.overrides)}; {stages}. In place of {settings}."]
        labels = {row.label for row in table.rows}
        once = [label for label in self.once if label in labels]
        notes += [f"With one seed: {'; '.join(once)}."] if once else []
        if BASELINE.label in labels and (self.rows is None or BASELINE.label in self.rows):
            notes.append(TRAINED_BASELINE)
        joined = [row.label for row in MEMBERS if self.rows is None or row.label in self.rows]
        if len(joined) < len(MEMBERS) and any(isinstance(row, Combined) for row in table.rows):
            notes.append(f"The ensemble joins {len(joined)} of its {len(MEMBERS)} members: {', '.join(joined)}.")
        return " ".join(notes)


def passt(stride: int, frequency: int, time: int, segment: float, size: Changes) -> dict[str, object]:
    """Return an untrained PaSST; its segment and the columns it leaves out are a tenth of the published one's."""
    return {
        "audio.weights": "random",
        "audio.stride": stride,
        "audio.patchout_frequency": frequency,
        "audio.patchout_time": time,
        "segment": segment,
        **size,
    }


def passts(size: Changes) -> dict[str, Changes]:
    """Return the three PaSSTs with random weights, for recordings of 3 s; the published ones are for 30 s."""
    return {
        "passt-n": passt(16, 2, 1, 1.0, size),
        "passt-s": passt(10, 3, 5, 1.0, size),
        "passt-s15": passt(10, 3, 8, 1.5, size),
    }


def untrained(family: str, width: int, depth: int) -> dict[str, object]:
    """Return a sentence encoder with random weights."""
    return {
        "text": "untrained",
        "text.family": family,
        "text.width": width,
        "text.depth": depth,
        "text.vocabulary": 1000,
        "text.dropout": 0.0,
    }


COMMON: Changes = {
    "clip_seconds": 3.0,
    "projection": 128,
    "temperature": 0.05,
    "learn_temperature": False,
    "time_mask": 0,
    "frequency_mask": 0,
    "shift_bands": False,
    "precision": "float32",
    "patience": 0,
}
"""For encoders that start untrained. These sit on a plateau for some hundred steps, which masks, dropout and a
temperature that may rise prolong. Bands cannot be shifted where mel spectrograms are kept."""

WHOLE: Changes = {"audio.patchout_frequency": 0, "audio.patchout_time": 0}
"""A second of sound has few patches. With a row and a column left out (one seed), 440 steps lead to a
validation mAP@10 of 0.02, not 0.05, and 880 steps to 0.08, not 0.12."""

SMOKE = Reduced(
    overrides={**COMMON, "data": "generated-tiny", "batch": 8, "steps": 2, "projection": 32},
    pre_training={"epochs": 1, "learning_rate": 1e-3},
    fine_tuning={"epochs": 2, "learning_rate": 4e-4},
    audio={
        **passts({"audio.width": 24, "audio.depth": 1, "audio.heads": 4}),
        "cnn14": {"audio.weights": "random", "audio.filters": 2, "segment": 3.0},
    },
    text={
        "bert-base-uncased": untrained("bert", 16, 1),
        "roberta-base": untrained("roberta", 16, 1),
        "bert-large-uncased": untrained("bert", 32, 1),
        "roberta-large": untrained("roberta", 32, 1),
        "sentence-transformers/all-mpnet-base-v2": untrained("bert", 16, 1),
    },
)
SIZE: Changes = {"audio.width": 64, "audio.depth": 3, "audio.heads": 2, **WHOLE}
BASE, LARGE = (64, 1), (128, 2)
"""Width and depth of the sentence encoders that stand for base and large ones."""
QUICK = Reduced(
    overrides={**COMMON, "data": "generated-quick", "batch": 32, "temperature": 0.1},
    pre_training={"epochs": 2, "steps": 60, "learning_rate": 1e-3},
    fine_tuning={"epochs": 4, "steps": 130, "learning_rate": 1.2e-3},
    audio=passts({**SIZE, "audio.depth": 2}),
    text={"bert-large-uncased": untrained("bert", *BASE), "roberta-large": untrained("roberta", *BASE)},
    rows={BEST.label, NOT_FINE_TUNED.label, PASST_N["bert-large"].label, MEAN_MEL.label},
    why="to stay within minutes",
)
SMALL = Reduced(
    overrides={**COMMON, "data": "generated-small", "batch": 32},
    pre_training={"epochs": 4, "steps": 210, "learning_rate": 1e-3},
    fine_tuning={"epochs": 5, "steps": 170, "learning_rate": 8e-4},
    audio={
        **passts(SIZE),
        "cnn14": {"audio.weights": "random", "audio.filters": 4, "segment": 3.0},
    },
    text={
        "bert-base-uncased": untrained("bert", *BASE),
        "roberta-base": untrained("roberta", *BASE),
        "bert-large-uncased": untrained("bert", *LARGE),
        "roberta-large": untrained("roberta", *LARGE),
        "sentence-transformers/all-mpnet-base-v2": untrained("bert", *BASE),
    },
    once=(GUARDED.label,),
)


def scale(about: str, minutes: int, size: Reduced, seeds: tuple[int, ...]) -> Scale:
    """Return a scale; a training that is of no table starts from the pre-training of the best single system."""
    start = size.shrink({"audio.weights": "passt-n", "text.name": TEXT["roberta-large"]})
    return Scale(about=about, minutes=minutes, start=start, row=size.row, over={"seed": seeds}, note=size.note)


SCALES = {
    "smoke": scale("every row, a few steps each; scores mean nothing", 5, SMOKE, (0,)),
    "quick": scale("two systems, their mean and the linear control on generated recordings, 1 seed", 2, QUICK, (0,)),
    "small": scale("generated recordings of 3 s, untrained encoders, all systems, 3 seeds", 255, SMALL, (0, 1, 2)),
    "paper": Scale(about="the published setting: WavCaps, AudioCaps and Clotho, pretrained encoders, GPUs"),
}
