"""`retable style ...` and the task's part of `retable data`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from retable.platform.board import console, errors
from retable.platform.errors import UserError, disk_errors
from retable.platform.storage import Storage
from retable.tasks.style.data_cli import DATA, Where
from retable.tasks.style.judge_cli import judge
from retable.tasks.style.video_cli import video

__all__ = ["DATA", "app"]

app = typer.Typer(no_args_is_help=True, help="Style transfer: stylise pictures and videos, by a network or a painting.")
app.command("video")(video)
app.command("judge")(judge)

Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1; none: a GPU where there is one.")]
Precision = Annotated[
    Literal["float32", "bfloat16"], typer.Option(help="bfloat16: faster on GPUs, and off by a few levels of 255.")
]
PAINTINGS = "For paintings"


def painting(help: str, minimum: float | None = None) -> typer.models.OptionInfo:
    """Describe an option of version 1."""
    option: typer.models.OptionInfo = typer.Option(help=help, rich_help_panel=PAINTINGS, min=minimum)
    return option


@app.command()
def image(
    inputs: Annotated[list[str], typer.Argument(help="Photographs, folders, or patterns such as 'holiday/*.jpg'.")],
    style: Annotated[
        list[str],
        typer.Option("--style", help="A network: a name (`retable zoo style`), a file, a run. Or paintings: files."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The result's file for one photograph, else a folder.")],
    storage: Where = "results",
    size: Annotated[
        int | None,
        typer.Option(help="Pixels of the longer side; 0: the photograph's. Default: 0; for paintings 512.", min=0),
    ] = None,
    strength: Annotated[float, typer.Option(help="Share of the stylised picture in the result.", min=0, max=1)] = 1.0,
    original_colours: Annotated[
        bool, typer.Option("--original-colours", help="Keep the photograph's colours.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Make results anew that are there.")] = False,
    precision: Precision = "float32",
    device: Device = "",
    tile: Annotated[int, typer.Option(help="For networks: work in tiles of so many pixels; same result.", min=0)] = 0,
    ray: Annotated[bool, typer.Option("--ray", help="Share the pictures out over the Ray cluster.")] = False,
    blend: Annotated[str, painting("Weight of each painting: 0.7,0.3.")] = "",
    style_weight: Annotated[float | None, painting("Default: 50, in losses relative to the painting's.", 0)] = None,
    content_weight: Annotated[float | None, painting("Default: 1.", 0)] = None,
    variation_weight: Annotated[float | None, painting("Total variation: smooths. Default: 0.", 0)] = None,
    style_scale: Annotated[
        float | None, painting("Size of the strokes: the painting's over the picture's.", 0.05)
    ] = None,
    start: Annotated[str | None, painting("content, style or noise.")] = None,
    optimizer: Annotated[str | None, painting("lbfgs, adam or sgd.")] = None,
    evaluations: Annotated[int | None, painting("Evaluations of the loss. Default: 300.", 1)] = None,
    scales: Annotated[str, painting("Smaller sizes to begin with: 128,256.")] = "",
    backbone: Annotated[str | None, painting("vgg19, vgg16, alexnet or squeezenet.")] = None,
    weights: Annotated[str | None, painting("imagenet, random, a file, or what `retable style weights` says.")] = None,
    content_layers: Annotated[str, painting("stage4, or names such as relu3_1.")] = "",
    style_layers: Annotated[str, painting("stage1,stage2,stage3,stage4,stage5, or names.")] = "",
    seed: Annotated[int | None, painting("Of noise and of random weights.", 0)] = None,
    history: Annotated[Path | None, painting("Write each evaluation's losses to this CSV file.")] = None,
) -> None:
    """Stylise photographs: by a network in one pass, or, slowly and freely, after paintings.

    A network: `retable style image lake.jpg --style great_wave --out lake-wave.jpg`

    A painting: `retable style image lake.jpg --style my_painting.jpg --size 256 --out out.png`

    Two: `retable style image lake.jpg --style a.jpg --style b.jpg --blend 0.7,0.3 --out out.png`

    A folder: `retable style image holiday --style great_wave --out stylised`; again, it goes on where it stopped.
    """
    from retable.tasks.style.batches import stylise_files
    from retable.tasks.style.stylise import Options

    given: dict[str, object] = {
        "blend": numbers("--blend", blend),
        "steps": evaluations,
        "seed": seed,
        "method.start": start,
        "method.style_scale": style_scale,
        "method.scales": numbers("--scales", scales, int),
        "method.optimizer": optimizer,
        "method.backbone": backbone,
        "method.backbone.weights": weights,
        "method.objective.style_weight": style_weight,
        "method.objective.content_weight": content_weight,
        "method.objective.variation_weight": variation_weight,
        "method.objective.content_layers": content_layers.split(",") if content_layers else [],
        "method.objective.style_layers": style_layers.split(",") if style_layers else [],
    }
    options = Options(
        size=size,
        strength=strength,
        original_colours=original_colours,
        precision=precision,
        device=device,
        tile=tile,
        changes={path: value for path, value in given.items() if value not in (None, [])},
    )
    where = Storage.open(storage)
    made = failed = 0
    with work_bar() as report:
        for outcome in stylise_files(
            inputs, style, out, options, where, overwrite=overwrite, history=history, ray=ray, report=report
        ):
            if isinstance(outcome, str):
                console.print(outcome, markup=False)
            elif outcome.failure:
                failed += 1
                errors.print(f"failed: {outcome.failure}", markup=False)
            else:
                made += 1
                console.print("; ".join(filter(None, [str(outcome.job.target), outcome.note])), markup=False)
    if failed:
        console.print(f"{made} stylised, {failed} failed")
        raise typer.Exit(1)


def numbers(option: str, text: str, kind: type[float] = float) -> list[Any]:
    """Read numbers with commas between them, of a kind: float or int.

    Raises:
        UserError: naming the option.
    """
    try:
        return [kind(part) for part in text.split(",")] if text else []
    except ValueError as error:
        whole = "whole " if kind is int else ""
        raise UserError(f"{option} {text}: write {whole}numbers with commas between them, e.g. 1,2") from error


@contextmanager
def work_bar() -> Iterator[Callable[[float, int, str], None]]:
    """Show a bar with what is being done; the function given to the block takes work done, work in all, and that."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_interactive) as bar:
        job = bar.add_task("", total=None)

        def report(done: float, total: int, text: str) -> None:
            """Move the bar."""
            bar.update(job, completed=done, total=total, description=text)

        yield report


@app.command()
def compare(
    run: Annotated[str, typer.Argument(help="A run's fingerprint, or its first digits.")],
    photograph: Annotated[Path, typer.Argument(help="A picture.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The sheet to write.")] = Path("sheet.png"),
    epochs: Annotated[str, typer.Option(help="Kept epochs: 1,5,10; none: all of them.")] = "",
    size: Annotated[int, typer.Option(help="Pixels of the longer side; 0: the photograph's.", min=0)] = 512,
    storage: Where = "results",
    precision: Precision = "float32",
    device: Device = "",
) -> None:
    """Stylise one photograph by several checkpoints of a run, on one labelled sheet.

    Example: `retable style compare latest lake.jpg --epochs 1,5,10 -o sheet.png`
    """
    from retable.tasks.style import batches, images
    from retable.tasks.style.stylise import Options

    images.check_suffix(out)
    with disk_errors(str(out)):
        out.parent.mkdir(parents=True, exist_ok=True)
    wanted = numbers("--epochs", epochs, int)
    options = Options(size=size, precision=precision, device=device)
    images.write(out, batches.compare(run, photograph, wanted, options, Storage.open(storage)))
    console.print(str(out), markup=False)


@app.command()
def weights(
    file: Annotated[Path, typer.Argument(help="A backbone's weights, e.g. torchvision's vgg19-dcbb9e9d.pth.")],
    storage: Where = "results",
) -> None:
    """Take over a backbone that others trained; prints its SHA-256 and the `--set` option that uses it.

    Known are torchvision's files of VGG-16, VGG-19, AlexNet and SqueezeNet 1.0, the normalised and the pruned VGG-19,
    and the compressed SqueezeNet. Only numbers are read: a file that holds code is refused.

    Example: `retable style weights vgg19-dcbb9e9d.pth`, then `retable style image ... --weights SHA256`
    """
    from retable.tasks.style.stylise import network_name
    from retable.tasks.style.weights import import_weights

    where = Storage.open(storage)
    digest = import_weights(file, where)
    console.print(digest)
    console.print(f"--set method.backbone={network_name(digest, where)} --set method.backbone.weights={digest}")


@app.command()
def export(
    run: Annotated[str, typer.Argument(help="A run's fingerprint, or its first digits.")],
    file: Annotated[Path, typer.Argument(help="The file to write, e.g. wave.safetensors.")],
    epoch: Annotated[int, typer.Option(help="A kept epoch; 0: the last.", min=0)] = 0,
    half: Annotated[bool, typer.Option("--half", help="Store numbers in 16 bits: half the size.")] = False,
    painting: Annotated[str, typer.Option(help="Of a network of several styles, the one to write; none: all.")] = "",
    licence: Annotated[str, typer.Option(help="What the file may be used for, kept in it.")] = "",
    storage: Where = "results",
) -> None:
    """Write a trained network with its provenance to one file, which `--style` takes on any machine.

    Example: `retable style export latest wave.safetensors --half`
    """
    from retable.platform.exported import export

    export("style", run, storage, file, epoch=epoch, half=half, painting=painting, licence=licence)
