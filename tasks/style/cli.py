"""`retable style ...` and the task's part of `retable data`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, cast

import typer

from retable.platform.console import (
    Device,
    Epoch,
    Licence,
    Overwrite,
    Run,
    Where,
    console,
    errors,
    items,
    print_lines,
    progress_bar,
    spread,
    whole,
)
from retable.platform.errors import UserError, disk_errors
from retable.platform.store.storage import Storage, check_target, write_file
from retable.tasks.style.data_cli import DATA
from retable.tasks.style.tools.pictures.judge_cli import judge
from retable.tasks.style.tools.pictures.knobs import Knobs, Precision, Result
from retable.tasks.style.tools.video.video_cli import video

__all__ = ["DATA", "app"]

app = typer.Typer(
    no_args_is_help=True,
    help="Style transfer: stylize pictures and videos, by a network or a painting.\n\n"
    "Example: `retable style image lake.jpg --style great_wave --out lake-wave.jpg`",
)
app.command("video")(video)
app.command("judge")(judge)


@app.command()
@spread()
def image(
    inputs: Annotated[list[str], typer.Argument(help="Photographs, folders, or patterns such as 'holiday/*.jpg'.")],
    style: Annotated[
        list[str],
        typer.Option(
            "--style",
            help="A network: a name (`retable zoo style`), a file, a run. Or paintings: files, or e.g. starry_night.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The result's file for one photograph, else a folder.")],
    result: Result,
    knobs: Knobs,
    storage: Where = "results",
) -> None:
    """Stylize photographs: by a network in one pass, or, slowly and freely, after paintings.

    Examples, by a network: `retable style image lake.jpg --style great_wave --out lake-wave.jpg`

    A painting: `retable style image lake.jpg --style my_painting.jpg --size 256 --out out.png`

    Two: `retable style image lake.jpg --style a.jpg --style b.jpg --blend 0.7,0.3 --out out.png`

    As Gatys did: `retable style image lake.jpg --style a.jpg --like gatys --weights imagenet --out out.png`

    The sky alone: `retable style image lake.jpg --style great_wave --mask sky.png --out out.png`

    Two regions: `... --style great_wave@ff0000 --style the_scream@0000ff --mask regions.png`

    A folder: `retable style image holiday --style great_wave --out stylised`; the same command resumes.
    """
    from retable.tasks.style.tools.pictures.batches import stylise_files
    from retable.tasks.style.tools.pictures.stylise import Options

    options = Options(
        size=result.size,
        strength=result.strength,
        original_colours=result.original_colours,
        precision=result.precision,
        device=result.device,
        tile=result.tile,
        mask=result.mask,
        like=knobs.like or "",
        changes=knobs.changes(),
    )
    where = Storage.open(storage)
    made = failed = 0
    with progress_bar("", "pictures") as report:
        for outcome in stylise_files(
            inputs,
            style,
            out,
            options,
            where,
            overwrite=result.overwrite,
            history=knobs.history,
            ray=result.ray,
            report=report,
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


@app.command()
def compare(
    run: Run,
    photograph: Annotated[Path, typer.Argument(help="A picture.")],
    out: Annotated[Path, typer.Option("--out", "-o", dir_okay=False, help="The sheet to write.")] = Path("sheet.png"),
    epochs: Annotated[str, typer.Option(help="Kept epochs: 1,5,10 (default: all).")] = "",
    size: Annotated[int, typer.Option(help="Pixels of the longer side; 0 keeps the photograph's.", min=0)] = 512,
    overwrite: Overwrite = False,
    storage: Where = "results",
    precision: Precision = "auto",
    device: Device = "",
) -> None:
    """Stylize one photograph by several checkpoints of a run, on one labelled sheet.

    Example: `retable style compare latest lake.jpg --epochs 1,5,10 -o sheet.png`
    """
    from retable.tasks.style.files import images
    from retable.tasks.style.tools.pictures import batches
    from retable.tasks.style.tools.pictures.stylise import Options

    images.check_suffix(out)
    if out.exists() and photograph.exists() and out.samefile(photograph):
        raise UserError(f"{out}: is the photograph; choose another name")
    check_target(out, overwrite)
    wanted = items("--epochs", epochs, whole)
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

    Example: `retable style weights vgg19-dcbb9e9d.pth`, then `retable style image lake.jpg
    --style my_painting.jpg --weights SHA256 --out out.png`
    """
    from retable.tasks.style.networks.weights import import_weights
    from retable.tasks.style.tools.pictures.stylise import network_name

    where = Storage.open(storage)
    digest = import_weights(file, where)
    console.print(digest)
    console.print(f"--set method.backbone={network_name(digest, where)} --set method.backbone.weights={digest}")


@app.command()
def distil(
    teacher: Annotated[
        str,
        typer.Argument(help="SHA-256 by `retable style weights` of a VGG-19 (for alexnet: a SqueezeNet), or imagenet."),
    ],
    photographs: Annotated[list[str], typer.Argument(help="Photographs, folders or patterns to learn from.")],
    file: Annotated[Path, typer.Option("--out", "-o", dir_okay=False, help="The file to write.")] = Path(
        "small.safetensors"
    ),
    network: Annotated[
        Literal["vgg19", "alexnet"], typer.Option(help="What is made; an alexnet learns from SqueezeNet 1.0.")
    ] = "vgg19",
    steps: Annotated[int, typer.Option(help="Batches.", min=1)] = 3000,
    overwrite: Overwrite = False,
    storage: Where = "results",
) -> None:
    """Train a small backbone after a trained one: a quarter of the work in version 1, and a file of under 1 MB.

    Example: `retable style distil SHA256 photographs --out small.safetensors`, then `--weights` with what
    `retable style weights small.safetensors` says
    """
    from retable.platform.models.predict import expand
    from retable.tasks.style.files import images
    from retable.tasks.style.tools.distil import distil as train

    check_target(file, overwrite)
    files, notes = expand(photographs, images.SUFFIXES, "pictures")
    print_lines(notes)
    with disk_errors(str(file)), progress_bar("", "batches") as report:
        where = Storage.open(storage)
        data = train(
            files, teacher, steps, where, lambda done, left: report(done, steps, f"unexplained {left:.3f}"), network
        )
        write_file(file, data)
    console.print(str(file), markup=False)


@app.command()
def export(
    run: Run,
    file: Annotated[Path, typer.Argument(dir_okay=False, help="The file to write, e.g. wave.safetensors.")],
    epoch: Epoch = 0,
    half: Annotated[bool, typer.Option("--half", help="Store numbers in 16 bits: half the size.")] = False,
    painting: Annotated[str, typer.Option(help="Style to write, if the network has several (default: all).")] = "",
    licence: Licence = "",
    overwrite: Overwrite = False,
    storage: Where = "results",
) -> None:
    """Write a trained network with its provenance to one file, which `--style` takes on any machine.

    Example: `retable style export latest wave.safetensors --half`
    """
    from retable.platform.models.export import export

    export("style", run, storage, file, overwrite=overwrite, epoch=epoch, half=half, painting=painting, licence=licence)


@app.command()
def learn(
    painting: Annotated[Path, typer.Argument(dir_okay=False, help="A picture of the painting.")],
    file: Annotated[Path, typer.Argument(dir_okay=False, help="The file to write, e.g. sunflowers.safetensors.")],
    photographs: Annotated[
        Path | None,
        typer.Option(help="Folder of photographs and videos to train on (default: landscapes that are generated)."),
    ] = None,
    start: Annotated[
        str,
        typer.Option(help="Network to start from: a name (`retable zoo style`), a file, a run."),
    ] = "great_wave",
    steps: Annotated[
        int, typer.Option(help="Batches of two crops of 160 pixels; more are slower and better.", min=4)
    ] = 600,
    licence: Licence = "",
    overwrite: Overwrite = False,
    storage: Where = "results",
) -> None:
    """Learn a painting of your own: a network for any picture and video, in about ten minutes on two cores.

    It prints measures of visible defects of the network's pictures, as `retable style judge` does. After an
    interruption the same command goes on.

    Example: `retable style learn sunflowers.jpg sunflowers.safetensors --photographs ~/Pictures`, then `retable style
    image lake.jpg --style sunflowers.safetensors --out out.jpg`
    """
    from retable.platform.models import export
    from retable.tasks.style.tools.learn import learn as train

    export.check_name(file)
    check_target(file, overwrite)
    run = train(painting, start, photographs, steps, Storage.open(storage))
    export.export("style", run.fingerprint, storage, file, overwrite=True, half=True, licence=licence)
    judge([str(file)], painting=str(painting), storage=storage)


@app.command()
def onnx(
    style: Annotated[str, typer.Argument(help="A network: a name (`retable zoo style`), a file, a run, a:0.7,b:0.3.")],
    file: Annotated[Path, typer.Argument(dir_okay=False, help="The file to write, e.g. wave.onnx.")],
    bits: Annotated[
        Literal["32", "16", "8"], typer.Option(help="Bits per stored weight; arithmetic is in float32.")
    ] = "32",
    opset: Annotated[
        int, typer.Option(help="Version of ONNX's operators: lower for old runtimes.", min=13, max=18)
    ] = 17,
    overwrite: Overwrite = False,
    storage: Where = "results",
) -> None:
    """Write a network as ONNX: pictures of any size, float32 (batch, 3, height, width) in [0, 1], on any runtime.

    Example: `retable style onnx great_wave wave.onnx`
    """
    from retable.tasks.style.tools.onnx_file import Bits, pack
    from retable.tasks.style.tools.pictures.stylise import find_network

    check_target(file, overwrite)
    data = pack(find_network(style, Storage.open(storage)), cast(Bits, int(bits)), opset)
    write_file(file, data)
    console.print(f"{file}: {len(data) / 1e6:.2f} MB", markup=False)
