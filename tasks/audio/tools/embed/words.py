"""Captions as vectors with NumPy alone: a search needs no torch, whose import takes longer than all the rest of it.

What trains and what scores is `text.py` with the networks of transformers; this is the same arithmetic once more, for
BERT and RoBERTa, and tested against it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32

from retable.platform.config import override
from retable.platform.errors import UserError
from retable.platform.models import export
from retable.tasks.audio.config import Config, Pretrained
from retable.tasks.audio.encoders.fingerprint import fingerprint, renamed
from retable.tasks.audio.encoders.tokens import TEXT_STATE, read_tokenizer, tokens
from retable.tasks.audio.tools.embed.lexicon import PREFIX, Anchors, anchors_of, unit

FORMAT = "retable audio 1"
"""Value of `format` in the metadata of a file of `retable audio export`."""
KNOWN = ("bert", "roberta")
"""Kinds of networks that are known here, by their names in transformers."""
DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "U8": "uint8", "I64": "int64", "BOOL": "bool"}
"""Types of a model's tensors: safetensors' name -> torch's name."""
SEVERAL = 8
"""Captions up to which Python's error function is used. For 12 layers and 12 tokens it takes 24 ms of processor time a
caption, SciPy's 5, and its import 160."""

Array = Float32[np.ndarray, "..."]
Erf = Callable[[Array], Array]


@dataclass(frozen=True, eq=False)
class Words:
    """The half of a model that embeds captions, as unit vectors; see `embedder.Embedder` for the whole."""

    config: Config
    tensors: Mapping[str, Array]
    """Those of `shapes`, by their names."""
    architecture: Mapping[str, Any]
    """Of the text encoder, as transformers describe it."""
    tokenizer: Any
    fingerprint: str
    """SHA-256 of the weights and of what they compute with: the whole model's."""
    source: str
    """Name that opens it again: a file's absolute path."""
    anchors: Anchors | None = None
    """Anchors, by which unknown words are searched; None if the file has none."""

    def words(self, captions: Sequence[str]) -> Float32[np.ndarray, "captions dimension"]:
        """Embed captions."""
        erf = error_function(len(captions))
        rows = [self._embed(ids, erf) for ids in tokens(self.tokenizer, captions, self.config.tokens)]
        vectors = np.array(rows, np.float32).reshape(-1, self.config.projection)
        return self.anchors.blend(captions, vectors) if self.anchors else vectors

    def _embed(self, ids: Sequence[int], erf: Erf) -> Float32[np.ndarray, " dimension"]:
        """Return the projected class token, of length one; one caption at once needs no padding and no mask."""
        about, embeddings = self.architecture, "text.network.embeddings"
        first = first_position(about)
        hidden = self.tensors[f"{embeddings}.word_embeddings.weight"][list(ids)]
        hidden = hidden + self.tensors[f"{embeddings}.token_type_embeddings.weight"][0]
        hidden = hidden + self.tensors[f"{embeddings}.position_embeddings.weight"][first : first + len(ids)]
        hidden = self._normalised(hidden, f"{embeddings}.LayerNorm")
        for layer in range(about["num_hidden_layers"]):
            hidden = self._layer(hidden, f"text.network.encoder.layer.{layer}", erf)
        return unit(self._linear(hidden[0], "text_projection"))

    def _layer(self, hidden: Array, name: str, erf: Erf) -> Array:
        """Attend and feed forward, each with its residual and its norm behind it."""
        heads = self.architecture["num_attention_heads"]
        query, key, value = (
            self._linear(hidden, f"{name}.attention.self.{part}").reshape(len(hidden), heads, -1).transpose(1, 0, 2)
            for part in ("query", "key", "value")
        )
        scores = query @ key.transpose(0, 2, 1) / np.float32(math.sqrt(query.shape[-1]))
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        heard = (weights / weights.sum(-1, keepdims=True) @ value).transpose(1, 0, 2).reshape(hidden.shape)
        hidden = self._normalised(
            hidden + self._linear(heard, f"{name}.attention.output.dense"), f"{name}.attention.output.LayerNorm"
        )
        inner = _gelu(self._linear(hidden, f"{name}.intermediate.dense"), erf)
        return self._normalised(hidden + self._linear(inner, f"{name}.output.dense"), f"{name}.output.LayerNorm")

    def _linear(self, values: Array, name: str) -> Array:
        made: Array = values @ self.tensors[f"{name}.weight"].T + self.tensors[f"{name}.bias"]
        return made

    def _normalised(self, values: Array, name: str) -> Array:
        centred = values - values.mean(-1, keepdims=True)
        epsilon = np.float32(self.architecture["layer_norm_eps"])
        deviation = np.sqrt(np.square(centred).mean(-1, keepdims=True) + epsilon)
        made: Array = centred / deviation * self.tensors[f"{name}.weight"] + self.tensors[f"{name}.bias"]
        return made


def _gelu(values: Array, erf: Erf) -> Array:
    """Return x P(X < x) of the normal distribution."""
    made: Array = values * np.float32(0.5) * (1 + erf(values / np.float32(math.sqrt(2))))
    return made


def error_function(captions: int) -> Erf:
    """Return the error function that takes the least processor time for so many captions; both give the same bits."""
    if captions > SEVERAL:
        from scipy.special import erf

        function: Erf = erf
        return function
    return lambda values: np.fromiter(map(math.erf, values.ravel().tolist()), np.float32).reshape(values.shape)


def known(architecture: Mapping[str, Any], words: int) -> bool:
    """Return whether `Words` computes a text encoder: a BERT or RoBERTa as published, for so many tokens."""
    plain = architecture.get("position_embedding_type", "absolute") == "absolute" and not architecture["is_decoder"]
    usual = architecture["model_type"] in KNOWN and architecture["hidden_act"] == "gelu" and plain
    heads, epsilon = architecture["num_attention_heads"], architecture["layer_norm_eps"]
    valid = architecture["hidden_size"] % heads == 0 and isinstance(epsilon, float)
    return bool(usual and valid and first_position(architecture) + words <= architecture["max_position_embeddings"])


def first_position(architecture: Mapping[str, Any]) -> int:
    """Return the number of a caption's first position: RoBERTa counts from the padding's number on."""
    return int(architecture["pad_token_id"]) + 1 if architecture["model_type"] == "roberta" else 0


def shapes(architecture: Mapping[str, Any], projection: int) -> dict[str, tuple[int, ...]]:
    """Return the tensors that embed captions, by their names in a file of `retable audio export`."""
    width, inner = architecture["hidden_size"], architecture["intermediate_size"]
    tables = {
        "word": architecture["vocab_size"],
        "position": architecture["max_position_embeddings"],
        "token_type": architecture["type_vocab_size"],
    }
    shapes: dict[str, tuple[int, ...]] = {
        f"text.network.embeddings.{table}_embeddings.weight": (rows, width) for table, rows in tables.items()
    }
    linear = {"text_projection": (projection, width)}
    norms = ["text.network.embeddings.LayerNorm"]
    for layer in range(architecture["num_hidden_layers"]):
        name = f"text.network.encoder.layer.{layer}"
        linear |= {f"{name}.attention.self.{part}": (width, width) for part in ("query", "key", "value")}
        linear |= {f"{name}.attention.output.dense": (width, width)}
        linear |= {f"{name}.intermediate.dense": (inner, width), f"{name}.output.dense": (width, inner)}
        norms += [f"{name}.attention.output.LayerNorm", f"{name}.output.LayerNorm"]
    for name, (to, of) in linear.items():
        shapes |= {f"{name}.weight": (to, of), f"{name}.bias": (to,)}
    return shapes | {f"{name}.{part}": (width,) for name in norms for part in ("weight", "bias")}


def read_words(path: Path) -> Words | None:
    """Return what embeds captions of a file of `retable audio export`; only that half of it is kept in memory.

    None where the file is another one, is damaged, or has a network that is not known here: `open_embedder` says which.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                return None
            config = override(Config(), renamed(export.read_json(metadata, "config", str(path), "")))
            state = json.loads(bytes(file.get_tensor(TEXT_STATE)))
            architecture = state["architecture"]
            mean = isinstance(config.text, Pretrained) and config.text.pooling == "mean"
            if mean or not known(architecture, config.tokens):
                return None
            wanted = shapes(architecture, config.projection)
            tensors = {name: file.get_tensor(name) for name in wanted}
            tokenizer = read_tokenizer(state["tokenizer"])
            anchors = anchors_of({name: file.get_tensor(name) for name in file.keys() if name.startswith(PREFIX)})
        if tokenizer.get_vocab_size() > architecture["vocab_size"] or any(
            tensors[name].shape != shape or tensors[name].dtype != np.float32 for name, shape in wanted.items()
        ):
            return None
        return Words(config, tensors, architecture, tokenizer, file_fingerprint(path, config), str(path), anchors)
    except (OSError, SafetensorError, UserError, KeyError, TypeError, ValueError, RecursionError):
        return None


def file_fingerprint(path: Path, config: Config) -> str:
    """Return the fingerprint of a whole safetensors file's network, without making tensors of it."""
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        start = file.tell()

        def data(span: Sequence[int]) -> bytes:
            file.seek(start + span[0])
            return file.read(span[1] - span[0])

        own = (name for name in header if name != "__metadata__" and not name.startswith(PREFIX))
        entries = [(name, header[name]) for name in sorted(own)]
        return fingerprint(
            config,
            (
                (name, DTYPES[entry["dtype"]], tuple(entry["shape"]), data(entry["data_offsets"]))
                for name, entry in entries
            ),
        )
