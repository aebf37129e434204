"""A trained pair of encoders as one file that embeds on its own: numbers and JSON, with what they compute with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import load
from torch import Tensor

from retable.platform.api import TrainedRun
from retable.platform.config import Weights, override, parent
from retable.platform.errors import UserError
from retable.platform.models import export
from retable.platform.spec.task import find
from retable.platform.store import weights
from retable.platform.store.run import RunFolder
from retable.platform.store.storage import Storage
from retable.tasks.audio.config import Config
from retable.tasks.audio.encoders.fingerprint import renamed, weights_fingerprint
from retable.tasks.audio.tools.adopt import clap
from retable.tasks.audio.tools.adopt.clap import Clap
from retable.tasks.audio.tools.embed.embedder import Embedder, placed
from retable.tasks.audio.tools.embed.lexicon import PREFIX, Anchors, anchors_of
from retable.tasks.audio.tools.embed.words import FORMAT

REMEDY = "`retable audio export RUN FILE` writes one, or `retable audio adopt`"


@dataclass(frozen=True, eq=False)
class Exported:
    """A pair of encoders out of one file: what embeds, and what the file says of it."""

    about: Mapping[str, Any]
    """See `platform.models.export.about`."""
    config: Config
    """The run's, but for `data` and `init`."""
    weights: Mapping[str, Tensor]
    """Of both encoders; the tokenizer is among them."""
    source: str
    """Name of the file, which opens it again."""
    anchors: Anchors | None = None
    """Anchors by which words are searched that it was not trained on."""

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the weights and of what they compute with."""
        return weights_fingerprint(self.config, self.weights)

    def embedder(self, device: str = "", words_alone: bool = False) -> Embedder:
        """Return what embeds sounds and words, as `retable audio search` does.

        Args:
            device: cpu, cuda, ...; none: a GPU where there is one.
            words_alone: leave out what embeds sounds, which takes seconds to build.

        Raises:
            UserError: where the weights are of another model, or there is no such device.
        """
        from retable.tasks.audio.model import DualEncoder, check, load, load_words

        def network() -> DualEncoder:
            if words_alone:
                return load_words(self.config, self.weights)
            check(self.config, self.weights)
            return load(self.config, self.weights)

        score = self.about.get("score")
        return Embedder(
            segment=self.config.segment,
            dimension=self.config.projection,
            network=placed(network, device, self.source),
            fingerprint=self.fingerprint,
            source=self.source,
            scale=str(self.about.get("scale", "")),
            score=score if isinstance(score, dict) else {},
            anchors=self.anchors,
        )


def write_export(run: TrainedRun, epoch: int = 0, **more: Any) -> bytes:
    """Return the one file that is served of a run.

    It says of itself, as `test_folds`, what `test_folds` returns, where that is known.

    Args:
        run: a finished run of this task.
        epoch: one that was kept; 0: the last.
        **more: what else the file is to say of itself, such as `licence`.

    Raises:
        UserError: where the epoch was not kept.
    """
    folds, all_known = test_folds(run.config, run.folder.storage)
    provenance = export.about(run, epoch, **more, test_folds=folds if all_known else None)
    return export.sealed(run.weights(epoch), export.described(FORMAT, run.config, provenance))


def test_folds(config: Config, storage: Storage) -> tuple[list[int], bool]:
    """Return which fold each set of composed scenes held out that a run, and what it started from, was trained on.

    0 stands for none: its test set was trained on, too.

    Args:
        config: the run's.
        storage: where it and its data lie.

    Returns:
        The folds, first those of the ancestors; and whether all is known: of weights that others trained, and of files
        of older versions, it is not.
    """
    before = parent(config)
    folds, all_known = test_folds(before, storage) if before else ([], True)
    if isinstance(config.init, Weights):
        folds, all_known = _folds_of_weights(config.init.sha256, storage)
    info = RunFolder.of(storage, find("audio"), config).provenance().get("data")
    data = f"data/audio/{config.data}/dataset.json"
    if info is None and storage.exists(data):
        info = storage.read_json(data)
    own = [0 if config.train_on == "all" else info["test_fold"]] if info and "test_fold" in info else []
    return [*folds, *own], all_known and info is not None


def _folds_of_weights(digest: str, storage: Storage) -> tuple[list[int], bool]:
    """Return `test_folds` of weights on a storage, as an exported file says it, or of the run whose epoch they are."""
    path, task = f"weights/{digest}.safetensors", find("audio")
    metadata = weights.metadata(storage.read(path)) if storage.exists(path) else None
    provenance = json.loads((metadata or {}).get("provenance", "{}"))
    if "test_folds" in provenance:
        return provenance["test_folds"], True
    for name in storage.folders("runs/audio"):
        run = RunFolder(storage, "audio", name)
        if digest in ((run.result() or {}).get("weights") or {}).values():
            return test_folds(run.config(task), storage)
    return [], False


def write_adopted(pair: Exported | Clap, **more: Any) -> bytes:
    """Return the one file of a pair of encoders that others trained; see `pairs.read_foreign`.

    Args:
        pair: the two encoders.
        **more: what else the file is to say of itself, such as `licence`.
    """
    provenance = {**pair.about, **{name: value for name, value in more.items() if value}}
    if isinstance(pair, Exported):
        return export.sealed(pair.weights, export.described(FORMAT, pair.config, provenance))
    return export.sealed(pair.weights, {"format": clap.FORMAT, "provenance": json.dumps(provenance, sort_keys=True)})


def with_anchors(data: bytes, anchors: Anchors) -> bytes:
    """Return an exported file that searches unknown words by anchors; see `search.anchors.fit`."""
    tensors = load(without_anchors(data))
    tensors |= {name: torch.from_numpy(array.copy()) for name, array in anchors.tensors().items()}
    return export.sealed(tensors, weights.metadata(data) or {})


def without_anchors(data: bytes) -> bytes:
    """Return an exported file that holds no tensors but the network's; one without anchors as it is."""
    tensors = load(data)
    network = {name: tensor for name, tensor in tensors.items() if not name.startswith(PREFIX)}
    return data if len(network) == len(tensors) else export.sealed(network, weights.metadata(data) or {})


def read_export(data: bytes, name: str) -> Exported | Clap:
    """Read a file of `write_export` or `write_adopted`: numbers and JSON, never code. `name` is what errors call it.

    Fields that it does not carry have their defaults: of older files, all but those that shape a network.

    Raises:
        UserError: where it is no such file, or is damaged.
    """
    metadata, tensors = export.opened(data, name, "model", REMEDY, FORMAT, clap.FORMAT)
    provenance = export.read_json(metadata, "provenance", name, REMEDY) if "provenance" in metadata else {}
    if metadata["format"] == clap.FORMAT:
        return Clap(provenance, tensors, name)
    anchors = {key: tensors.pop(key).numpy() for key in [*tensors] if key.startswith(PREFIX)}
    fields = export.read_json(metadata, "config", name, REMEDY)
    try:
        return Exported(provenance, override(Config(), renamed(fields)), tensors, name, anchors_of(anchors))
    except (UserError, ValueError) as error:
        raise UserError(f"{name}: {error}; {REMEDY}") from error


def served_as(pair: Exported | Clap, name: str) -> tuple[str, str, dict[str, str]]:
    """Return how requests name a pair of encoders; `weights` tells whether an index was made with it."""
    return name or "audio", "", {"weights": pair.fingerprint}
