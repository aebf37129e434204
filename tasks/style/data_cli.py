"""The task's part of `retable data`: fetch, make, check and import."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from retable.platform.config import set_line
from retable.platform.console import (
    Limit,
    Mirror,
    Replace,
    Where,
    Yes,
    console,
    print_lines,
    show_checked,
)
from retable.platform.errors import UserError
from retable.platform.spec.task import data_folder, data_sets, new_data
from retable.platform.store.lease import one_maker
from retable.platform.store.storage import Storage

if TYPE_CHECKING:
    from retable.platform.store.download import Published

SOURCES = Path(__file__).with_name("sources.json")
"""The datasets that `fetch` knows."""
Paintings = Annotated[
    list[Path] | None,
    typer.Option(help="Painting to train on, which --set 'style=[\"NAME\"]' then names; may be repeated."),
]


def fetch(
    name: Annotated[str, typer.Argument(help="A dataset, e.g. coco2017; without one they are listed.")] = "",
    storage: Where = "results",
    yes: Yes = False,
    mirror: Mirror = "",
    limit: Limit = "",
) -> None:
    """Download COCO 2017, check and unpack it, and index it for training; an interrupted download continues.

    Example: `retable data fetch style coco2017`
    """
    from retable.platform.store import download
    from retable.tasks.style.files.prepare import describe, index_folder

    root = Storage.open(storage)

    def folder(wanted: Published) -> Path:
        dataset = data_folder(root, "style", wanted.name)
        if not dataset.is_local:
            raise UserError(f"{dataset}: fetch to a local --storage, then copy it")
        return Path(dataset.root)

    published, names = download.read_published(SOURCES), [name] if name else []
    with one_maker(root, f"style/{name}") if name in published else nullcontext():
        for _ in download.fetch_by_name(published, names, folder, yes=yes, mirror=mirror, limit=limit):
            dataset = data_folder(root, "style", name)
            console.print(f"{dataset}: {describe(index_folder(dataset, name))}", markup=False)
            console.print(f"train on it: retable train style --scale paper {set_line({'data': name})}", markup=False)


def make(
    storage: Where = "results",
    name: Annotated[str, typer.Option(help="Name of the data set.")] = "generated",
    photographs: Annotated[int, typer.Option(help="Training pictures.", min=1)] = 400,
    seed: Annotated[int, typer.Option(help="Seed of the pictures.", min=0)] = 0,
    painting: Paintings = None,
    replace: Replace = False,
) -> None:
    """Generate landscapes to train on, test photographs and a clip.

    Example: `retable data make style`
    """
    from retable.tasks.style.files.prepare import COCO, GENERATED, PHOTOGRAPHS, describe, make_generated

    if name == COCO:
        raise UserError(f"--name {name}: is the name of other pictures, which tables are made with; choose another")
    if name == GENERATED and (photographs, seed, painting) != (PHOTOGRAPHS, 0, None):
        has = f"{PHOTOGRAPHS} photographs, seed 0 and no painting of yours"
        raise UserError(f"--name {name}: this set has {has}; choose another --name")
    with new_data(Storage.open(storage), "style", name, replace=replace) as target:
        info = make_generated(target, name, photographs, seed, painting or ())
    console.print(f"{target}: {describe(info)}", markup=False)


def check(
    path: Annotated[
        str | None, typer.Argument(help="Folder of a data set or of any pictures (default: all data sets).")
    ] = None,
    storage: Where = "results",
) -> None:
    """List every missing, empty, broken, truncated or too small picture, one line each.

    Example: `retable data check style ~/Pictures`
    """
    from retable.tasks.style.files.check import check as check_folder

    if path is not None and not Storage.open(path).exists():
        raise UserError(f"{path}: no folder; give one that holds pictures")
    show_checked([Storage.open(path)] if path else data_sets(Storage.open(storage), "style"), check_folder)


def import_(
    folder: Annotated[Path, typer.Argument(help="A folder of pictures and videos; those below it are read too.")],
    name: Annotated[str, typer.Option(help="Name of the data set.")],
    storage: Where = "results",
    test: Annotated[int, typer.Option(help="Pictures that become test photographs.", min=0)] = 10,
    every: Annotated[int, typer.Option(help="Of a video, one frame in so many is taken.", min=1)] = 24,
    painting: Paintings = None,
    replace: Replace = False,
) -> None:
    """Make a data set of any pictures; broken ones are listed and left out.

    Example: `retable data import style ~/Pictures --name mine`
    """
    from retable.tasks.style.files.prepare import describe, import_folder

    with new_data(Storage.open(storage), "style", name, replace=replace) as target:
        info = import_folder(folder, target, name, test, every, painting or ())
    print_lines(info["left_out"], "left out: ")
    console.print(f"{target}: {describe(info)}, {len(info['test'])} for tests", markup=False)
    changes = {"data": name} | ({"style": [file.stem for file in painting]} if painting else {})
    console.print(f"train on it: retable train style --scale paper {set_line(changes)}", markup=False)


DATA = {"fetch": fetch, "make": make, "check": check, "import": import_}
