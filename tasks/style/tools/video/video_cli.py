"""`retable style video`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from retable.platform.console import console, print_lines, progress_bar, spread
from retable.platform.errors import UserError
from retable.platform.execute.session import ray_cluster
from retable.platform.store.storage import Storage
from retable.platform.text import clock
from retable.tasks.style.files import assets
from retable.tasks.style.tools.pictures.knobs import STYLE_SCALE, Knobs, Precision

if TYPE_CHECKING:
    from retable.tasks.style.networks.tiling import Precision as Arithmetic
    from retable.tasks.style.tools.video.steady import Finish
    from retable.tasks.style.tools.video.video import Pictures, Piece

SAMPLE = 48
"""Frames that --measure looks at."""


@spread()
def video(
    source: Annotated[Path, typer.Argument(help="The video to stylize.")],
    target: Annotated[
        Path, typer.Argument(dir_okay=False, help="The video to write: .mp4, .mov, .mkv (H.264) or .webm (VP9).")
    ],
    style: Annotated[
        list[str],
        typer.Option(
            "--style",
            help="A network: a name (`retable zoo style`), a file, a run. With --by version1, a painting. "
            "Several, for the colors of a mask: NAME@ff0000.",
        ),
    ],
    by: Annotated[
        Literal["network", "version1"],
        typer.Option(help="version1 optimizes each frame from the previous one, after a painting: minutes a frame."),
    ] = "network",
    steady: Annotated[
        Literal["off", "statistics", "flow"],
        typer.Option(help="Reduce flicker: statistics are fixed over a shot; flow also blends along the motion."),
    ] = "off",
    measure: Annotated[bool, typer.Option("--measure", help=f"Measure flicker on the first {SAMPLE} frames.")] = False,
    beside: Annotated[bool, typer.Option("--beside", help="Show the video on the left of the result.")] = False,
    size: Annotated[int, typer.Option(help="Pixels of the longer side; 0 keeps the video's.", min=0)] = 0,
    start: Annotated[float, typer.Option(help="Seconds of the video to skip.", min=0)] = 0.0,
    duration: Annotated[float | None, typer.Option(help="Seconds to stylize (default: to the end).", min=0.001)] = None,
    original_colours: Annotated[bool, typer.Option("--original-colours", help="Keep the video's colors.")] = False,
    strength: Annotated[float, typer.Option(help="Share of the stylized picture.", min=0, max=1)] = 1.0,
    mask: Annotated[
        Path | None,
        typer.Option(help="Mask: white is stylized, black is not; or regions, with --style NAME@COLOUR."),
    ] = None,
    batch: Annotated[int, typer.Option(help="Frames that go through the network at once.", min=1)] = 4,
    precision: Precision = "auto",
    workers: Annotated[int, typer.Option(help="Ray actors that stylize; 0 uses this process.", min=0)] = 0,
    crf: Annotated[int, typer.Option(help="Quality of the encoder: lower is better.", min=0, max=51)] = 18,
    reader: Annotated[
        Literal["pyav", "opencv"], typer.Option(help="Decoder; opencv is the paper's, at a constant rate.")
    ] = "pyav",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the target.")] = False,
    storage: Annotated[str, typer.Option(envvar="RETABLE_STORAGE", help="Where runs lie.")] = "results",
    *,
    knobs: Knobs,
) -> None:
    """Stylise a video; sound, frame rate, timestamps and size are kept.

    Example: `retable style video holiday.mp4 waves.mp4 --style great_wave --steady flow`

    Two regions: `... --style great_wave@ff0000 --style the_scream@0000ff --mask regions.png`
    """
    from retable.tasks.style.tools.video.steady import Flicker, stylise_stream
    from retable.tasks.style.tools.video.video import check_target, stylise_video

    if not source.exists():
        raise UserError(f"{source}: no such file")
    check_target(source, target, overwrite)
    if by == "version1" and (workers or measure or steady == "statistics"):
        raise UserError("--by version1 makes one frame after the other; leave out --workers, --measure, statistics")
    stylist = by_names(by, style, precision, original_colours, strength, mask, knobs, Storage.open(storage))
    meters: dict[str, Flicker] = {}
    stylise = stylise_stream(stylist, steady, workers, meters if measure else None, SAMPLE, beside)
    with ray_cluster() if workers else nullcontext(), progress_bar("", "frames") as advance:
        written = stylise_video(
            source,
            target,
            stylise,
            batch=batch,
            size=size,
            crf=crf,
            reader=reader,
            overwrite=overwrite,
            progress=lambda done, total, *_: advance(done, total, f"stylising {source}"),
            start=start,
            duration=duration,
        )
    speed = written.frames / max(written.seconds, 1e-9)
    console.print(f"{target}: {written.frames} frames in {clock(written.seconds)}, {speed:.1f} frames/s", markup=False)
    print_lines(written.notes, f"{source}: ")
    print_lines(flicker_lines({name: meter.result() for name, meter in meters.items()}, steady))


def by_names(
    by: str,
    styles: Sequence[str],
    precision: Arithmetic,
    original_colours: bool,
    strength: float,
    mask_path: Path | None,
    knobs: Knobs,
    storage: Storage,
) -> Callable[[Piece], Pictures]:
    """Return what stylises pieces of a video by one style, or by one of each colour of the mask.

    Raises:
        UserError: where there is no such style, options are of the other way, or colours and mask do not fit.
    """
    from retable.tasks.style.tools.pictures import regions
    from retable.tasks.style.tools.video.steady import Finish, Regional

    named = [regions.split(style) for style in styles]
    colours = [colour for _, colour in named]
    if len(named) > 1 and mask_path is None:
        raise UserError("several --style are of a mask's regions: --mask PICTURE --style A@ff0000 --style B@0000ff")
    mask = regions.open_mask(mask_path, colours)
    if not any(colours):
        finish = Finish(original_colours, strength, mask)
        return by_name(by, styles[0], precision, finish, knobs, storage)
    assert mask is not None
    finish = Finish(original_colours)
    stylists = [by_name(by, name, precision, finish, knobs, storage) for name, _ in named]
    return Regional(stylists, mask, strength)


def by_name(
    by: str, style: str, precision: Arithmetic, finish: Finish, knobs: Knobs, storage: Storage
) -> Callable[[Piece], Pictures]:
    """Return what stylises pieces of a video: a network, or an optimisation of each frame.

    Raises:
        UserError: where there is no such style, or options are of the other way.
    """
    from retable.tasks.style.tools.pictures.stylise import Options, find_network, find_painting, open_paintings
    from retable.tasks.style.tools.video.painted import Painter
    from retable.tasks.style.tools.video.steady import Stylist

    changes = knobs.changes()
    if knobs.history:
        raise UserError("--history is of one picture: retable style image")
    if by == "network":
        scale = knobs.style_scale or 1.0
        changes.pop(STYLE_SCALE, None)
        if changes or knobs.like:
            raise UserError(f"{min(changes, default=f'--like {knobs.like}')} is of paintings; add --by version1")
        return Stylist(find_network(style, storage), precision, finish, scale)
    painting = find_painting(style) or assets.paintings().get(style)
    if painting is None:
        raise UserError(f"--style {style}: by version1, a picture's file or one of {', '.join(assets.paintings())}")
    options = Options(size=0, precision=precision, like=knobs.like or "", changes=changes)
    return Painter(open_paintings([painting], options, storage), finish)


def flicker_lines(measured: Mapping[str, Mapping[str, float]], steady: str) -> Iterator[str]:
    """Write measured flicker, a line each: the source, without steadiness, and as written."""
    for name, values in measured.items():
        label = {"source": "source", "off": "--steady off", "result": f"--steady {steady}"}[name]
        static, warp = values["static_change"], values["warp_error"]
        yield f"flicker of the first frames, {label}: static pixels {static:.2f}/255, warp error {warp:.4f}"
