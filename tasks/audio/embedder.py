"""A trained pair of encoders as what embeds: a run, or the one file that `retable audio export` writes of it."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor

from retable.platform import api
from retable.platform.config import differences, flatten, override
from retable.platform.errors import UserError
from retable.platform.storage import Storage
from retable.tasks.audio.config import SAMPLE_RATE, Config
from retable.tasks.audio.files import decode, duration

if TYPE_CHECKING:
    from retable.tasks.audio.model import DualEncoder

Waveform = Float32[np.ndarray, " samples"]

FORMAT = "retable audio 1"
SHAPING = ("audio", "text", "segment", "words", "projection")
"""Fields of a config that say what a network computes; the others say how it was trained."""
ITS_OWN = ("data", "init")
"""Fields that a file of `export` does not carry: what a run read and started from is not there on another machine."""
BATCH = 16
"""Segments, or captions, that are encoded at once."""
SHORTEST = 0.1
"""Seconds of a last piece that is worth a segment of its own, where there are others."""


@dataclass(frozen=True)
class Embedder:
    """A network that embeds segments and words as unit vectors of one space."""

    config: Config
    network: DualEncoder
    fingerprint: str
    """SHA-256 of the weights and of what they compute with; a run and its exported file share it."""
    source: str
    """What opens it again: a run's fingerprint, or a file's absolute path."""

    @property
    def dimension(self) -> int:
        """Length of the vectors."""
        return self.config.projection

    @torch.inference_mode()
    def sounds(self, segments: Sequence[Waveform]) -> Float32[np.ndarray, "segments dimension"]:
        """Embed segments of sound at 32 kHz, none longer than `config.segment` seconds."""
        vectors = [self._sounds(segments[start : start + BATCH]) for start in range(0, len(segments), BATCH)]
        return np.concatenate([np.empty((0, self.dimension), np.float32), *vectors])

    def _sounds(self, segments: Sequence[Waveform]) -> Float32[np.ndarray, "segments dimension"]:
        lengths = torch.tensor([len(segment) for segment in segments])
        audio = torch.zeros(len(segments), round(self.config.segment * SAMPLE_RATE))
        for row, segment in zip(audio, segments, strict=True):
            row[: len(segment)] = torch.from_numpy(segment)
        return _array(self.network.embed_audio(audio.to(self._device), lengths.to(self._device), "waveform"))

    @torch.inference_mode()
    def words(self, captions: Sequence[str]) -> Float32[np.ndarray, "captions dimension"]:
        """Embed captions."""
        blocks = (captions[start : start + BATCH] for start in range(0, len(captions), BATCH))
        vectors = [_array(self.network.embed_text(block)) for block in blocks]
        return np.concatenate([np.empty((0, self.dimension), np.float32), *vectors])

    @property
    def _device(self) -> torch.device:
        return next(self.network.parameters()).device


def _array(vectors: Tensor) -> Float32[np.ndarray, "rows dimension"]:
    array: Float32[np.ndarray, "rows dimension"] = vectors.float().cpu().numpy()
    return array


def offsets(seconds: float, segment: float) -> list[float]:
    """Return the seconds at which the segments of a recording begin; the encoder cuts clips the same way."""
    count = max(1, math.ceil(seconds / segment))
    if count > 1 and seconds - (count - 1) * segment < SHORTEST:
        count -= 1
    return [number * segment for number in range(count)]


def pieces(path: Path, segment: float) -> Iterator[tuple[float, Waveform]]:
    """Yield a recording's segments with their offsets, without holding more than one.

    Raises:
        UserError: where the file is none that can be read.
    """
    for offset in offsets(duration(path), segment):
        waveform = decode(path, offset, segment)[: round(segment * SAMPLE_RATE)]
        if len(waveform):
            yield offset, waveform


def embed_file(embedder: Embedder, path: Path) -> tuple[list[float], Float32[np.ndarray, "segments dimension"]]:
    """Return the offsets and unit vectors of one recording's segments, a batch of them at once.

    Raises:
        UserError: where the file is none that can be read, or the model makes no numbers of it.
    """
    found: list[float] = []
    vectors = []
    rest = pieces(path, embedder.config.segment)
    while batch := list(islice(rest, BATCH)):
        found += [offset for offset, _ in batch]
        vectors.append(embedder.sounds([waveform for _, waveform in batch]))
    if not vectors:
        raise UserError(f"{path}: holds no sound; remove it, or record it again")
    joined = np.concatenate(vectors)
    if not np.isfinite(joined).all():
        raise UserError(f"{path}: the model makes no numbers of it; look at the file, or use another model")
    return found, joined


def open_embedder(name: str, storage: Storage, device: str = "") -> Embedder:
    """Open a file of `export`, or a run by its fingerprint's first digits, with the last weights that it kept.

    Args:
        name: which one.
        storage: where runs lie.
        device: cpu, cuda, ...; none: a GPU where there is one.

    Raises:
        UserError: where there is none, the file is another's, or there is no such device.
    """
    from retable.tasks.audio.model import load

    weights: Mapping[str, Tensor]
    if Path(name).is_file():
        config, weights = read_export(Path(name))
        source = str(Path(name).absolute())
    elif re.fullmatch("[0-9a-f]+", name):
        run = api.load(name, storage, task="audio")
        config, weights, source = run.config, run.weights(), run.fingerprint
    else:
        raise UserError(f"--model {name}: no such file, and no run's fingerprint")
    where = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        network = load(config, weights).eval().to(where)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"--model {name} on {where}: {str(error).strip().splitlines()[0]}") from error
    return Embedder(config, network, weights_fingerprint(config, weights), source)


def weights_fingerprint(config: Config, weights: Mapping[str, Tensor]) -> str:
    """Return what tells one network from any other: a SHA-256."""
    digest = hashlib.sha256(json.dumps(_shape(flatten(config)), sort_keys=True).encode())
    for name in sorted(weights):
        tensor = weights[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)  # no copy: weights are gigabytes
    return digest.hexdigest()


def _shape(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {path: value for path, value in fields.items() if path.split(".")[0] in SHAPING}


def export(run: api.TrainedRun, out: Path, epoch: int = 0) -> None:
    """Write a run's network to one file that says what it is and where it is from.

    Args:
        run: a finished run of this task.
        out: the file, a `.safetensors`.
        epoch: one that was kept; 0: the last.

    Raises:
        UserError: where the epoch was not kept, or the file cannot be written.
    """
    from safetensors.torch import save

    from retable.platform.runs import contiguous

    if out.suffix != ".safetensors":
        raise UserError(f"{out}: models are written as .safetensors")
    made = run.folder.folder.read_json("provenance.json")
    provenance = {
        "run": run.fingerprint,
        "epoch": epoch or run.config.epochs,
        "training": differences(run.config, Config()),
        "data": run.task.dataset.describe(made["data"]),
        **{key: made[key] for key in ("commit", "versions", "started") if key in made},
    }
    fields = {path: value for path, value in flatten(run.config).items() if path.split(".")[0] not in ITS_OWN}
    metadata = {
        "format": FORMAT,
        "config": json.dumps(fields, sort_keys=True),
        "provenance": json.dumps(provenance, sort_keys=True),
    }
    Storage.open(out.absolute().parent).write(out.name, save(contiguous(run.weights(epoch)), metadata))


def read_export(path: Path) -> tuple[Config, dict[str, Tensor]]:
    """Read a file of `export`: numbers and JSON, never code.

    Fields that it does not carry have their defaults: of older files, all but those that shape a network.

    Raises:
        UserError: where it is none.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise UserError(f"{path}: no model of this task; `retable audio export RUN FILE` writes one")
            weights = {name: file.get_tensor(name) for name in file.keys()}
            changes: dict[str, object] = json.loads(metadata["config"])
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise UserError(f"{path}: no model, or a damaged one; `retable audio export RUN FILE` writes one") from error
    return override(Config(), changes), weights
