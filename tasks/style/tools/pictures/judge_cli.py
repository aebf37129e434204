"""`retable style judge`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from retable.platform.console import Where, console, counted, progress_bar
from retable.platform.errors import UserError
from retable.platform.store.storage import Storage
from retable.tasks.style.config import Squeezenet
from retable.tasks.style.files import assets

if TYPE_CHECKING:
    from retable.tasks.style.files.images import Pixels
    from retable.tasks.style.networks.backbones import BackboneNetwork

COLUMNS = {
    "lattice": ".0f",
    "burnt": ".2%",
    "tone": ".2f",
    "spike": ".0%",
    "style_error": ".3f",
    "content_error": ".3f",
    "flicker": ".2f",
}
"""Measures and how they are printed."""


def judge(
    judged: Annotated[list[str], typer.Argument(help="Networks, as --style takes them, and pictures: files.")],
    painting: Annotated[
        str,
        typer.Option(
            help="Painting to compare networks with, a file or a shipped one (default: the one of their name)."
        ),
    ] = "",
    photograph: Annotated[
        list[Path] | None,
        typer.Option(help="Photograph to stylize; may be repeated (default: the shipped photographs)."),
    ] = None,
    size: Annotated[int, typer.Option(help="Longer side of the photographs, in pixels.", min=256)] = 512,
    weights: Annotated[
        str, typer.Option(help="Weights of the judging SqueezeNet: random, imagenet, a file (`retable style weights`).")
    ] = "random",
    storage: Where = "results",
) -> None:
    """Measure visible defects of networks and pictures. Lower is better throughout.

    lattice: power at periods of 2 and 4 pixels over its surroundings; photographs have up to 20, a visible lattice
    hundreds. burnt: pixels that are all black or all white, beyond the photograph's. tone: 1 minus the correlation of
    the blurred luma of result and photograph; published networks have 0.1 to 0.2. spike: photographs with a sliver of a
    color that is none of the picture's, where few pixels hold a channel's energy. style_error, content_error: to the
    painting and to the photograph, as a network sees them that trained none of them. flicker: change of what stays in
    view while a crop moves, over that of the noisy photograph itself. Of pictures the first two are measured.

    Example: `retable style judge great_wave mine.safetensors --painting great_wave`
    """
    from retable.tasks.style.apply.judge import burnt, judge_network, lattice
    from retable.tasks.style.files import images
    from retable.tasks.style.tools.pictures.memory import TOO_LARGE, shortage_told
    from retable.tasks.style.tools.pictures.stylise import find_network

    where = Storage.open(storage)
    shown = [judged_picture(path, size) for path in photograph or assets.photographs().values()]
    pictures = {name: judged_picture(Path(name)) for name in judged if is_picture(name)}
    table = Table("", *(name.replace("_", " ") for name in COLUMNS))
    network = None
    with progress_bar("judging") as show:
        for name in counted(judged, show, len(judged)):
            if name in pictures:
                pixels = pictures[name]
                table.add_row(name, f"{lattice(pixels):.0f}", f"{burnt(pixels):.2%}")
            else:
                network = network or backbone(weights, where)
                works = [images.read(find_work(painting or name)).pixels]
                with shortage_told(f"{name}: {TOO_LARGE}"):
                    measures = judge_network(find_network(name, where), shown, works, network)
                table.add_row(name, *(format(measures[key], how) for key, how in COLUMNS.items()))
    console.print(table)
    console.print(f"judge: SqueezeNet 1.0, weights {weights}; {len(shown)} photographs, longer side {size} pixels")


def judged_picture(path: Path, size: int = 0) -> Pixels:
    """Read a picture, with `size` pixels of its longer side (0: its own).

    Raises:
        UserError: where it cannot be read, or has fewer pixels than a lattice shows in.
    """
    from retable.tasks.style.apply.judge import LEAST
    from retable.tasks.style.files import images
    from retable.tasks.style.tools.pictures.memory import TOO_LARGE, shortage_told

    with shortage_told(f"{path}: {TOO_LARGE}"):
        pixels = images.fit(images.read(path).pixels, size)
    height, width = pixels.shape[:2]
    if min(height, width) < LEAST:
        raise UserError(f"{path}: {width} x {height} pixels are too few to judge; {LEAST} each way are needed")
    return pixels


def is_picture(name: str) -> bool:
    """Return whether a file name has the suffix of a picture."""
    from retable.tasks.style.files import images

    return Path(name).suffix.lower() in images.SUFFIXES


def find_work(name: str) -> Path:
    """Return the painting that a name means; of a network's name, the painting that is called so.

    Raises:
        UserError: where there is none.
    """
    from retable.tasks.style.tools.pictures.stylise import find_painting

    shipped = assets.paintings()
    stem = name.rpartition(":")[2] if not Path(name).is_file() else Path(name).stem
    work = find_painting(name) or (Path(name) if is_picture(name) else shipped.get(stem))
    if work is None:
        raise UserError(f"{name}: say which painting it is after: --painting FILE, or {', '.join(shipped)}")
    return work


def backbone(named: str, storage: Storage) -> BackboneNetwork:
    """Return the judge.

    Raises:
        UserError: where its weights cannot be had.
    """
    from retable.tasks.style.networks.backbones import build
    from retable.tasks.style.networks.weights import import_weights

    source = import_weights(Path(named), storage) if Path(named).is_file() else named
    return build(Squeezenet(weights=source, normalise=False), 0, storage)
