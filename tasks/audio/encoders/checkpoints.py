"""Weights of the audio encoders that others trained: PaSST's and PANNs' published files, ImageNet's DeiT.

A file is imported once, `<storage>/weights/<sha256>.safetensors`; runs name it by that digest, or by a published
checkpoint's name, which `<storage>/weights/<name>.json` maps to the digest.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from retable.platform.errors import UserError, nearest
from retable.platform.store.run import sha256
from retable.platform.store.storage import Storage
from retable.platform.store.weights import check, keep, read_bytes, read_tensors, sealed, unwrapped, wrappers
from retable.platform.store.weights import stored as read_stored
from retable.tasks.audio.config import Cnn14, Passt
from retable.tasks.audio.encoders.cnn14 import Cnn14Network, slaney_bank
from retable.tasks.audio.encoders.passt import PATCH, PasstNetwork, grid

PUBLISHED = {
    "passt-n": ("passt-s-f128-p16-s16-ap.468.pt", "v0.0.2-audioset"),
    "passt-s": ("passt-s-kd-ap.486.pt", "v.0.0.9"),
    "passt-s15": ("passt-s-f128-20sec-p16-s10-ap.474-swa.pt", "v0.0.5"),
    "cnn14": ("Cnn14_mAP=0.431.pth", "3987831"),
}
"""File, and release of kkoutini/PaSST; of CNN14, which PANNs' authors published (32 kHz), record of Zenodo."""
RELEASES = "https://github.com/kkoutini/PaSST/releases/tag"
ZENODO = "https://zenodo.org/records"
STRIDES = {12: 10, 10: 12, 9: 14, 8: 16}
"""Rows of patches, and the stride that published networks of so many rows have."""
DEIT = "deit_base_distilled_patch16_384"
"""timm's name."""
SIGNATURES = ("freq_new_pos_embed", "conv_block1.conv1.weight", "dist_token")
"""A tensor of each layout by which its network is found: PaSST's, CNN14's, DeiT's."""
KNOWN = (
    "known are the .pt files of kkoutini/PaSST's releases, PANNs' Cnn14 files of 32 kHz, and "
    "deit_base_distilled_patch16_384"
)


@dataclass(frozen=True)
class Weights:
    """An encoder's tensors, without classifiers."""

    network: str
    """passt, cnn14, or deit: DeiT's tensors with timm's names, their positions of an image's grid."""
    tensors: Mapping[str, Tensor]
    variant: str = ""
    """The name of a published checkpoint."""


def load_state(audio: Passt | Cnn14, storage: Storage) -> Mapping[str, Tensor]:
    """Read the tensors that `audio.weights` names, for the network that `audio` describes.

    Raises:
        UserError: where they are missing, cannot be downloaded, or are another network's.
    """
    weights = imagenet() if audio.weights == "imagenet" and isinstance(audio, Passt) else stored(audio, storage)
    if weights.network == "deit" and isinstance(audio, Passt):
        _same(audio, _deit_layout(weights.tensors, audio), "ImageNet's DeiT")
        return adapt(weights.tensors, audio)
    wanted = "passt" if isinstance(audio, Passt) else "cnn14"
    if weights.network != wanted:
        raise UserError(f"audio.weights {audio.weights}: weights of {weights.network}, not of {wanted}; name others")
    if isinstance(audio, Passt):
        _same(audio, passt_layout(weights.tensors), weights.variant or "the file")
    elif (filters := len(weights.tensors["conv_block1.conv1.weight"])) != audio.filters:
        raise UserError(f"audio.filters {audio.filters}: the file has {filters}; set audio.filters={filters}")
    return weights.tensors


def passt_layout(tensors: Mapping[str, Tensor]) -> Passt:
    """Read a network's sizes off its tensors; `frames` is the smallest number that gives as many columns.

    Raises:
        ValueError: where no published network has such positions.
    """
    width, rows = tensors["freq_new_pos_embed"].shape[1:3]
    if rows not in STRIDES:
        raise ValueError(f"{rows} rows of positions; strides of {sorted(STRIDES.values())} give {sorted(STRIDES)}")
    return Passt(
        stride=STRIDES[rows],
        frames=tensors["time_new_pos_embed"].shape[3] * STRIDES[rows],
        width=width,
        depth=_depth(tensors),
        heads=_heads(width),
        patchout_frequency=0,
        patchout_time=0,
    )


def _deit_layout(tensors: Mapping[str, Tensor], audio: Passt) -> Passt:
    """Return the network that DeiT's tensors make at the strides and frames of `audio`."""
    width = tensors["pos_embed"].shape[2]
    return dataclasses.replace(audio, width=width, depth=_depth(tensors), heads=_heads(width))


def _depth(tensors: Mapping[str, Tensor]) -> int:
    return len({name.split(".")[1] for name in tensors if name.startswith("blocks.")})


def _heads(width: int) -> int:
    """Published networks have 64 channels a head; tensors do not tell."""
    return width // 64 if width % 64 == 0 else 1


def _same(audio: Passt, layout: Passt, what: str) -> None:
    """See whether a run's network is that of the file.

    Raises:
        UserError: where not, naming the first field that differs and its right value.
    """
    fields = ("width", "depth", "stride", *(("heads",) if layout.width == 768 else ()))
    for name in fields:
        configured, right = getattr(audio, name), getattr(layout, name)
        if configured != right:
            raise UserError(f"audio.{name} {configured}: {what} was trained with {right}; set audio.{name}={right}")
    columns, wanted = grid(layout)[1], grid(audio)[1]
    if columns != wanted:
        raise UserError(
            f"audio.frames {audio.frames}: {what} has positions for {columns} columns of patches, not {wanted}; set "
            f"audio.frames to {layout.frames} (up to {layout.frames + layout.stride - 1})"
        )


def adapt(deit: Mapping[str, Tensor], audio: Passt) -> dict[str, Tensor]:
    """Make PaSST's tensors of DeiT's (timm's names), as PaSST's authors began their training.

    Colours are summed. The grid of positions is resized to PaSST's, and its means over time and over frequency become
    the positions in frequency and in time; added up, the grid's mean counts twice, as in the source.
    """
    positions = deit["pos_embed"].float()
    side = round((positions.shape[1] - 2) ** 0.5)
    square = positions[:, 2:].transpose(1, 2).reshape(1, -1, side, side)
    resized = F.interpolate(square, grid(audio), mode="bicubic", align_corners=False)
    return {name: value for name, value in deit.items() if name.startswith(("blocks.", "norm."))} | {
        "cls_token": deit["cls_token"],
        "dist_token": deit["dist_token"],
        "patch_embed.proj.weight": deit["patch_embed.proj.weight"].sum(1, keepdim=True),
        "patch_embed.proj.bias": deit["patch_embed.proj.bias"],
        "new_pos_embed": positions[:, :2],
        "freq_new_pos_embed": resized.mean(3, keepdim=True),
        "time_new_pos_embed": resized.mean(2, keepdim=True),
    }


def imagenet() -> Weights:
    """Return timm's DeiT, trained on ImageNet: from the hub's cache, else downloaded to it.

    Raises:
        UserError: where it cannot be downloaded.
    """
    import timm

    try:
        model = timm.create_model(DEIT, pretrained=True)
    except Exception as error:  # the hub's client raises errors of several libraries
        raise UserError(
            f"audio.weights imagenet: timm's {DEIT} cannot be downloaded ({_reason(error)}); run `retable audio "
            "weights FILE` on a copy of its .pth file and name the digest, or set audio.weights=random"
        ) from error
    return Weights("deit", model.state_dict())


def stored(audio: Passt | Cnn14, storage: Storage) -> Weights:
    """Read what `import_file` wrote.

    Raises:
        UserError: where the name is unknown, or the file missing, changed, or of another kind.
    """
    name = audio.weights
    names = [published for published in PUBLISHED if (published == "cnn14") == isinstance(audio, Cnn14)]
    if name in names:
        digest = _published(name, storage)
    elif re.fullmatch(r"[0-9a-f]{64}", name):
        digest = name
    else:
        names += ["imagenet", "random"] if isinstance(audio, Passt) else ["random"]
        raise UserError(f"audio.weights {name}: neither a SHA-256 nor a known name{nearest(name, names)}")
    tensors, fields = read_stored(digest, storage, "import it by `retable audio weights FILE`", "audio")
    return Weights(fields["network"], tensors, fields["variant"])


def _published(name: str, storage: Storage) -> str:
    """Return the digest of a published checkpoint that was imported."""
    path = f"weights/{name}.json"
    if not storage.exists(path):
        file, release = PUBLISHED[name]
        of, site = ("record {} of Zenodo", ZENODO) if name == "cnn14" else ("release {} of kkoutini/PaSST", RELEASES)
        raise UserError(
            f"audio.weights {name}: not in {storage}/weights; download {file} of {of.format(release)} and run `retable "
            f"audio weights FILE` ({site}/{release})"
        )
    return str(storage.read_json(path)["digest"])


def told(tensors: Mapping[str, Tensor], part: str, say: Callable[[str], None]) -> dict[str, Tensor]:
    """Return an audio encoder's tensors by its own names; of one held twice, say which copy is taken.

    Args:
        tensors: all of a file.
        part: the copy that is wanted, such as `net_swa`; none: the first.
        say: takes a line where there are several, and none was named.

    Raises:
        ValueError: where there is no such part.
    """
    copies = [prefix.removesuffix(".") for prefix in wrappers(tensors, *SIGNATURES)]
    if len(copies) > 1 and not part:
        remedy = f"`retable audio adopt` and `weights` take the other by --part {copies[1].rpartition('.')[2]}"
        say(f"holds {' and '.join(copies)}: {copies[0]} is taken; {remedy}")
    return unwrapped(tensors, *SIGNATURES, part=part)


def segment_of(layout: Passt) -> float:
    """Return the seconds that a network was trained on at once, by its positions.

    Those of PaSST-S15 are for 20 s; its authors gave it 15 s.
    """
    seconds, columns = round(layout.frames / 100), grid(layout)[1]
    if seconds == 20:
        return 15.0
    longest = (columns * layout.stride + PATCH - 1) / 100
    return float(seconds) if 0 < seconds <= longest else math.floor(10 * longest) / 10


def import_file(file: Path, storage: Storage, part: str = "", say: Callable[[str], None] = lambda line: None) -> str:
    """Import a published file as `<storage>/weights/<sha256>.safetensors`, and return that digest.

    Classifiers are dropped. The same file gives the same digest. A file with the name of one of `PUBLISHED` can then be
    named so in a run. Of a checkpoint that holds its network twice `part` and `say` are as in `told`.

    Raises:
        UserError: where the file cannot be read, is of no known layout, or its name and layout are at odds.
    """
    data = read_bytes(file)
    state = read_tensors(file, data, KNOWN)
    try:
        weights, layout = recognise(told(state, part, lambda line: say(f"{file}: {line}")))
        variant = _variant(file, weights, layout)
    except ValueError as error:
        raise UserError(f"{file}: {error}; {KNOWN}") from error
    fields: dict[str, str | int] = {
        "network": weights.network,
        "variant": variant,
        "source": sha256(data),
    }
    if layout:
        fields |= {"stride": layout.stride, "frames": layout.frames}
    made = sealed({name: value.float() for name, value in weights.tensors.items()}, "audio", fields)
    if variant and storage.exists(f"weights/{variant}.json") and _published(variant, storage) != sha256(made):
        raise UserError(
            f"{file}: {variant} is already another file's; remove {storage}/weights/{variant}.json, or rename this one"
        )
    digest = keep(made, storage)
    if variant:
        storage.write_json(f"weights/{variant}.json", {"digest": digest})
    return digest


def _variant(file: Path, weights: Weights, layout: Passt | None) -> str:
    """Return which published checkpoint a file is, by its name: layouts of several are the same.

    Raises:
        ValueError: where the layout is not that checkpoint's.
    """
    variant = next((name for name, (published, _) in PUBLISHED.items() if file.name == published), "")
    if variant == "cnn14":
        if weights.network != variant:
            raise ValueError(f"named as {variant}, but holds weights of {weights.network}")
        return variant
    wanted = {"passt-n": (16, 62), "passt-s": (10, 99), "passt-s15": (10, 200)}
    actual = (layout.stride, grid(layout)[1]) if layout else None
    if variant and actual != wanted[variant]:
        raise ValueError(f"named as {variant}, which has (stride, columns) {wanted[variant]}, but has {actual}")
    return variant


def recognise(state: Mapping[str, Tensor]) -> tuple[Weights, Passt | None]:
    """Return the kind of weights in a state dict; with PaSST's sizes where it is one.

    Raises:
        ValueError: where it is of no known layout.
    """
    layout: Passt | None = None
    if {"freq_new_pos_embed", "time_new_pos_embed"} <= state.keys():
        if state["freq_new_pos_embed"].ndim != 4 or state["time_new_pos_embed"].ndim != 4:
            raise ValueError("positions are not of four dimensions")
        layout = passt_layout(state)
        weights = Weights("passt", _without(state, "head"))
        with torch.device("meta"):
            like = PasstNetwork(layout).state_dict()
    elif "conv_block1.conv1.weight" in state:
        weights = Weights("cnn14", _without(state, "fc_audioset.", "spectrogram_extractor.", "logmel_extractor."))
        _check_front_end(state)
        with torch.device("meta"):
            like = Cnn14Network(Cnn14(filters=len(state["conv_block1.conv1.weight"]))).state_dict()
    elif {"pos_embed", "dist_token"} <= state.keys():
        weights = Weights("deit", _without(state, "head"))
        like = _deit_like(weights.tensors)
    else:
        raise ValueError("unknown weights")
    check(weights.tensors, {name: value for name, value in like.items() if not name.endswith("num_batches_tracked")})
    return weights, layout


def _without(state: Mapping[str, Tensor], *prefixes: str) -> dict[str, Tensor]:
    return {name: value for name, value in state.items() if not name.startswith(prefixes)}


def _deit_like(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of DeiT's that fit each other: PaSST's but for patches and positions."""
    if tensors["pos_embed"].ndim != 3:
        raise ValueError("positions are not of three dimensions")
    tokens, width = tensors["pos_embed"].shape[1:]
    if round((tokens - 2) ** 0.5) ** 2 != tokens - 2:
        raise ValueError(f"{tokens} positions are not two and a square")
    audio = Passt(width=width, depth=_depth(tensors), heads=_heads(width))
    with torch.device("meta"):
        like = PasstNetwork(audio).state_dict()
        like = {name: value for name, value in like.items() if "new_pos_embed" not in name}
        colours = torch.empty(width, 3, *like["patch_embed.proj.weight"].shape[2:])
        return like | {"pos_embed": tensors["pos_embed"], "patch_embed.proj.weight": colours}


def _check_front_end(state: Mapping[str, Tensor]) -> None:
    """See whether PANNs' file was trained on the spectrograms that we make.

    Raises:
        ValueError: where its mel bank is another one.
    """
    bank, ours = state.get("logmel_extractor.melW"), slaney_bank().T
    if bank is not None and (bank.shape != ours.shape or not torch.allclose(bank.float(), ours, atol=1e-5)):
        raise ValueError("trained on other mel bands than those of 32 kHz, 50 Hz to 14 kHz, 64 bands")


def _reason(error: Exception) -> str:
    """Return in a line why something could not be downloaded."""
    return (str(error).splitlines() or [type(error).__name__])[0]
