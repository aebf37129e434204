"""Come by data: generate a world of sounds, or say where the real ones are to be had."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from retable.platform.console import progress_bar
from retable.platform.errors import UserError
from retable.platform.spec.task import check_new, data_folder
from retable.platform.store.storage import Storage
from retable.tasks.audio.collect.recordings import Kind, read_info, write_dataset
from retable.tasks.audio.config import Config

GENERATED = "generated-"
CORPORA = {"clotho": 5_929, "audiocaps": 51_308, "wavcaps": 403_050}
"""The paper's corpora, and the recordings of each; the paper counts one more of Clotho's, which is not published."""
CLOTHO_TESTS = 1_045
"""Recordings of Clotho that the paper tests on."""
GPT = re.compile(r"gpt-3\.5-turbo(-\d{4})?")
"""The model that rewrote the paper's captions, and its dated versions, as answers name it."""
FEW = 500
"""Recordings below which one process makes them all: starting another takes seconds."""


def folder(storage: Storage, name: str) -> Storage:
    """Return the folder of a data set below the storage's root.

    Raises:
        UserError: where a name would leave that folder.
    """
    return data_folder(storage, "audio", name)


def folder_for(storage: Storage, name: str, kind: Kind) -> Storage:
    """Return the folder of a data set that is to be made.

    Raises:
        UserError: where tables read other data under the name, the folder holds other data, or as `folder`.
    """
    kept: Kind = "generated" if name.startswith(GENERATED) else "dcase2023" if name == Config.data else kind
    if kept != kind:
        raise UserError(f"--name {name}: is the name of other recordings; choose another")
    target = folder(storage, name)
    check_kind(target, kind)
    return target


def check_kind(target: Storage, kind: Kind) -> None:
    """Refuse a folder with data of another kind, also where an import of those did not end.

    Raises:
        UserError: then.
    """
    if read_info(target).get("kind", kind) != kind:
        raise UserError(f"{target}: holds other data; choose another --name")


def prepare(config: Config, storage: Storage) -> None:
    """Generate the data set `generated-<size>`.

    Raises:
        UserError: for any other name, saying where to get the real recordings; where there is no such size.
    """
    target = folder(storage, config.data)
    if config.data.startswith(GENERATED):
        make_generated(target, config.data, config.data.removeprefix(GENERATED))
        return
    if config.data == "dcase2023":
        raise UserError(
            f"{target}: no data set; unpack Clotho 2.1 (zenodo.org/records/4783391), AudioCaps and WavCaps "
            "(huggingface.co/datasets/cvssp/WavCaps) into clotho/, audiocaps/ and wavcaps/ of a folder, then "
            "`retable data import audio FOLDER --name dcase2023`; or --set data=generated-small"
        )
    raise UserError(
        f"{target}: no data set; `retable data import audio FILE.csv --name {config.data}` makes one of your own "
        "recordings, or --set data=generated-small"
    )


def make_generated(target: Storage, name: str, size: str, replace: bool = False) -> dict[str, Any]:
    """Generate a world of a size into `target`, its captions rewritten by rule too, and return its info.

    Spectrograms are kept: to make them anew would add about half of a small PaSST's step, and more than double the
    mean mel's.

    Args:
        target: the data set's folder.
        name: the data set's.
        size: of the world.
        replace: whether a finished set is given up.

    Raises:
        UserError: where there is no such size, the folder holds other data, or it cannot be written.
    """
    from retable.tasks.audio.rewrite.augment import named, rewrite_items
    from retable.tasks.audio.world.generate import items, world

    chosen = world(size)
    target.check_writable()
    check_made(target, replace)
    made = rewrite_items(items(chosen))
    workers = (os.cpu_count() or 1) if len(made) > FEW else 1
    with progress_bar(f"generating {name}") as show:
        return write_dataset(target, name, "generated", "mel", made, show, workers, named("keywords"))


def check_made(target: Storage, replace: bool) -> None:
    """Refuse to make a data set where imported recordings are or, unless it is to be replaced, a made one.

    Raises:
        UserError: then.
    """
    check_kind(target, "generated")
    check_new(target, replace)


def is_published(info: Mapping[str, Any]) -> bool:
    """Return whether data are the paper's: three whole corpora, all training captions of Clotho rewritten by GPT-3.5.

    What was rewritten before `rewriter` was kept counts as other data, as nobody knows who answered.
    """
    is_complete = (
        info.get("kind") == "dcase2023" and info["rows"]["test"] == CLOTHO_TESTS and info["corpora"] == CORPORA
    )
    told = info.get("rewriter", {"model": "", "rewritten": 0, "captions": 0})
    return is_complete and bool(GPT.fullmatch(told["model"])) and told["rewritten"] == told["captions"]


def describe(info: Mapping[str, Any]) -> str:
    """Return in one clause where a data set comes from, for reports."""
    training, test = info["rows"]["training"], info["rows"]["test"]
    extent = f"{training:,} recordings to train on ({info['seconds'] / 3600:.1f} h in all), {test:,} to test"
    what = {"generated": "generated sounds and captions", "own": "own recordings"}.get(info["kind"])
    if what is None:
        names = {"clotho": "Clotho 2.1", "audiocaps": "AudioCaps", "wavcaps": "WavCaps"}
        what = ", ".join(names[name] for name in names if name in info["corpora"])
    rewritten = f"; captions rewritten by {info['rewrites']}" if info.get("rewrites") else ""
    return f"{what}, {extent}; {info['leaks']:,} training recordings are also held out{rewritten}"
