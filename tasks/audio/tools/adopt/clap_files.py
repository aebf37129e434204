"""Published files of LAION-CLAP, read without its code: LAION's own .pt, and folders of Hugging Face's layout.

Source: the names in LAION-AI/CLAP's `clap_module/model.py` and `htsat.py`. Networks with fusion, which hear several
spectrograms of a long recording at once, are not here. A tokenizer is in the folders alone: else it is read from a
folder, the cache of Hugging Face, or the hub.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from retable.platform.errors import UserError, words
from retable.platform.store.run import sha256
from retable.platform.store.weights import check, read_bytes, read_tensors
from retable.tasks.audio.encoders.cnn14 import BAND, BANDS, slaney_bank
from retable.tasks.audio.encoders.mel import FFT
from retable.tasks.audio.encoders.text import fast_tokenizer, state_of
from retable.tasks.audio.encoders.tokens import TEXT_STATE
from retable.tasks.audio.tools.adopt.clap import (
    HOP,
    RATE,
    SECONDS,
    Clap,
    ClapNetwork,
)

PUBLISHED = {
    "630k-best.pt": "",
    "630k-audioset-best.pt": "1.86 GB",
    "music_audioset_epoch_15_esc_90.14.pt": "2.35 GB",
    "music_speech_epoch_15_esc_89.25.pt": "",
    "music_speech_audioset_epoch_15_esc_89.98.pt": "",
}
"""LAION's files without fusion, and their sizes where those were found."""
KNOWN = (
    f"LAION-CLAP's {', '.join(f'{name} ({size})' if size else name for name, size in PUBLISHED.items())} of "
    "https://huggingface.co/lukewys/laion_clap, and folders such as https://huggingface.co/laion/clap-htsat-unfused"
)
ANCHOR = "audio_branch.patch_embed.proj.weight"
"""The tensor by which LAION's files are known."""
NAMES = (
    ("audio_branch.", "audio_model.audio_encoder."),
    ("text_branch.", "text_model."),
    (".bn0.", ".batch_norm."),
    (".norm1.", ".layernorm_before."),
    (".norm2.", ".layernorm_after."),
    (".attn.proj.", ".attention.output.dense."),
    (".attn.", ".attention.self."),
    (".mlp.fc1.", ".intermediate.dense."),
    (".mlp.fc2.", ".output.dense."),
    ("_projection.0.", "_projection.linear1."),
    ("_projection.2.", "_projection.linear2."),
)
"""LAION's names and transformers', replaced in this order."""
UNUSED = re.compile(
    r"(audio|text)_transform\.|audio_branch\.(spectrogram_extractor|logmel_extractor|tscam_conv|head)\.|.*\.attn_mask$"
)
"""LAION's tensors that embed nothing: second projections, the spectrogram's constants, classifiers, masks."""
MEL = "audio_branch.logmel_extractor.melW"
"""LAION's mel bank, (bin, band)."""
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
"""Files of a folder that hold its weights."""
FRONT_END = {
    "sampling_rate": RATE,
    "max_length_s": SECONDS,
    "fft_window_size": FFT,
    "hop_length": HOP,
    "feature_size": BANDS,
    "frequency_min": BAND[0],
    "frequency_max": BAND[1],
    "padding": "repeatpad",
    "truncation": "rand_trunc",
}
"""Fields of a folder's `preprocessor_config.json` with the values that they must have, if they are in it."""


def read_laion(tensors: Mapping[str, Tensor], data: bytes, name: str, text: str = "") -> Clap:
    """Make a pair of the tensors of one of LAION's files.

    Args:
        tensors: floating-point ones, by LAION's names.
        data: the file.
        name: what errors call it.
        text: folder or name of the text encoder, for its tokenizer; none: roberta-base.

    Raises:
        UserError: where they are of another network, or the tokenizer cannot be had.
    """
    try:
        ours = renamed(tensors)
        check_bank(tensors)
        return _made(architecture_of(ours), ours, text or "roberta-base", sha256(data), name)
    except ValueError as error:
        raise UserError(f"{name}: {error}; known are {KNOWN}") from error


def read_folder(folder: Path, text: str = "") -> Clap:
    """Read a folder of Hugging Face's layout: its config, its weights, and what its processor says.

    Args:
        folder: the folder.
        text: folder or name of the text encoder, for its tokenizer; none: this folder.

    Raises:
        UserError: where it is of another network, lacks a file, or a file is damaged.
    """
    config, processor = (_said(folder / name) for name in ("config.json", "preprocessor_config.json"))
    if config.get("model_type") != "clap":
        raise UserError(f"{folder}: its config.json is of {config.get('model_type', 'nothing')}; known are {KNOWN}")
    file = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    if file is None:
        raise UserError(f"{folder}: holds neither {' nor '.join(WEIGHTS)}; download one into it")
    data = read_bytes(file)
    tensors = read_tensors(file, data, f"known are {KNOWN}", "logit_scale_a")
    try:
        check_front_end(processor)
        return _made(config, tensors, text or str(folder), sha256(data), str(folder))
    except ValueError as error:
        raise UserError(f"{folder}: {error}; known are {KNOWN}") from error


def _said(file: Path) -> dict[str, Any]:
    """Return a file's JSON object; an empty one where there is no such file."""
    try:
        fields = json.loads(read_bytes(file)) if file.exists() else {}
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise UserError(f"{file}: no JSON object; download it again")
    return fields


def renamed(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return LAION's tensors by transformers' names, without those that embed nothing.

    Raises:
        ValueError: where they are of a network with fusion.
    """
    kept: dict[str, Tensor] = {}
    for name, value in tensors.items():
        if "fusion_model" in name or "mel_conv" in name:
            raise ValueError(f"a network with fusion ({name}) is not here")
        if UNUSED.match(name):
            continue
        for theirs, ours in NAMES:
            name = name.replace(theirs, ours)
        if ".qkv." in name:
            thirds = zip(("query", "key", "value"), value.chunk(3), strict=True)
            kept |= {name.replace("qkv", part): third for part, third in thirds}
        else:
            kept[name] = value
    return kept


def architecture_of(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the fields of the `ClapConfig` that tensors, by transformers' names, tell.

    Names and shapes alone decide. What they do not tell is as in all published networks, and RoBERTa has 64 channels a
    head.

    Raises:
        ValueError: where a tensor that tells something is missing.
    """
    audio, text = "audio_model.audio_encoder", "text_model"
    bias = re.compile(rf"{audio}\.layers\.(\d+)\.blocks\.\d+\.attention\.self\.relative_position_bias_table")
    blocks = sorted((int(match[1]), tensors[name].shape[-1]) for name in tensors if (match := bias.fullmatch(name)))
    heads = dict(blocks)
    layers = {match[1] for name in tensors if (match := re.match(rf"{text}\.encoder\.layer\.(\d+)\.", name))}
    try:
        words, width = tensors[f"{text}.embeddings.word_embeddings.weight"].shape
        return {
            "projection_dim": len(tensors["audio_projection.linear1.weight"]),
            "audio_config": {
                "patch_embeds_hidden_size": len(tensors[f"{audio}.patch_embed.proj.weight"]),
                "hidden_size": len(tensors[f"{audio}.norm.weight"]),
                "depths": [sum(stage == wanted for stage, _ in blocks) for wanted in heads],
                "num_attention_heads": list(heads.values()),
            },
            "text_config": {
                "vocab_size": words,
                "hidden_size": width,
                "num_hidden_layers": len(layers),
                "num_attention_heads": max(1, width // 64),
                "intermediate_size": len(tensors[f"{text}.encoder.layer.0.intermediate.dense.weight"]),
                "max_position_embeddings": len(tensors[f"{text}.embeddings.position_embeddings.weight"]),
                "layer_norm_eps": 1e-5,
            },
        }
    except KeyError as error:
        raise ValueError(f"{error.args[0]} is missing") from error


def check_bank(tensors: Mapping[str, Tensor]) -> None:
    """See whether LAION's file, where it says so, was trained on the mel bands that we make.

    Raises:
        ValueError: where not.
    """
    bank, ours = tensors.get(MEL), slaney_bank(RATE).T
    if bank is not None and (bank.shape != ours.shape or not torch.allclose(bank.float(), ours, atol=1e-5)):
        raise ValueError(f"trained on other mel bands than {BANDS} of {BAND[0]:g} to {BAND[1]:g} Hz")


def check_front_end(processor: Mapping[str, Any]) -> None:
    """See whether a folder's processor, as far as it says, hears what we do.

    Raises:
        ValueError: where not.
    """
    for field, wanted in FRONT_END.items():
        if (value := processor.get(field, wanted)) != wanted:
            raise ValueError(f"its processor has {field} {value}, not {wanted}")


def _made(config: Mapping[str, Any], tensors: Mapping[str, Tensor], text: str, digest: str, name: str) -> Clap:
    """Make a pair of the fields of a `ClapConfig` and of its network's floating-point tensors.

    Raises:
        UserError: where the tokenizer cannot be had.
        ValueError: where fields, tensors and tokenizer do not fit each other.
    """
    from transformers import ClapConfig

    try:
        architecture = ClapConfig.from_dict(dict(config))
    except Exception as error:  # each field's check raises its own
        raise ValueError(f"no config of such a network ({words(error)})") from error
    if architecture.audio_config.enable_fusion:  # type: ignore[union-attr]
        raise ValueError("a network with fusion is not here")
    tokenizer = _tokenizer(text, name)
    if tokenizer.get_vocab_size() > architecture.text_config.vocab_size:  # type: ignore[union-attr]
        raise ValueError(f"the tokenizer of {text} has more words than the network; name the right one by --text")
    state, floats = state_of(tokenizer, architecture), {f"clap.{key}": value.float() for key, value in tensors.items()}
    with torch.device("meta"):
        like = ClapNetwork(architecture.to_dict(), tokenizer).state_dict()
    check(floats, {key: value for key, value in like.items() if value.is_floating_point()})
    network = ClapNetwork(architecture.to_dict(), tokenizer)  # it counts positions, which files need not hold
    network.load_state_dict(floats, strict=False)
    return Clap({"task": "audio", "adopted": digest}, {**network.state_dict(), TEXT_STATE: state}, name)


def _tokenizer(text: str, name: str) -> Any:
    try:
        return fast_tokenizer(text)
    except UserError as error:
        where = "neither in that folder or the cache of Hugging Face nor to be had from the hub"
        raise UserError(f"{name}: the tokenizer of {text} is {where}; name a folder with it by --text") from error
