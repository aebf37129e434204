"""The task's part of `retable data`: fetch, make, check and import."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from retable.platform.console import (
    Into,
    Limit,
    Mirror,
    Replace,
    Where,
    Yes,
    console,
    errors,
    print_lines,
    progress_bar,
    show_checked,
)
from retable.platform.errors import UserError
from retable.platform.spec.task import data_sets
from retable.platform.store.lease import one_maker
from retable.platform.store.storage import Storage

if TYPE_CHECKING:
    from retable.platform.store.download import Published

SOURCES = Path(__file__).with_name("sources.json")
"""The datasets that `fetch` knows."""
Workers = Annotated[int, typer.Option(help="Number of processes.", min=1)]


def fetch(
    names: Annotated[
        list[str] | None, typer.Argument(help="Datasets, e.g. clotho wavcaps-soundbible; without one they are listed.")
    ] = None,
    storage: Where = "results",
    name: Annotated[str, typer.Option(help="Name of the new data set.")] = "dcase2023",
    folder: Into = None,
    yes: Yes = False,
    mirror: Mirror = "",
    limit: Limit = "",
    features: Annotated[
        Literal["waveform", "mel"],
        typer.Option(help="Features to store; mel saves resampling and mel transforms in training."),
    ] = "waveform",
    workers: Workers = 1,
) -> None:
    """Download Clotho and WavCaps, check and unpack them, and import them; an interrupted download continues.

    Example: `retable data fetch audio clotho wavcaps-soundbible`
    """
    from retable.platform.store import download
    from retable.tasks.audio.prepare.prepare import folder_for

    def place(wanted: Published | None = None) -> Path:
        root = folder or download.default_folder(Storage.open(storage), "audio")
        return root / "wavcaps" if wanted and wanted.hub else root

    if names:
        folder_for(Storage.open(storage), name, "dcase2023")
    published = download.read_published(SOURCES)
    if list(download.fetch_by_name(published, names or [], place, yes=yes, mirror=mirror, limit=limit)):
        import_(place(), name=name, storage=storage, features=features, workers=workers)


TRAINING, VALIDATION, TEST_FOLD = 2000, 200, 5
"""Scenes of a data set of scenes, and the fold that they are tested on."""


def make(
    size: Annotated[
        Literal["tiny", "quick", "small", "large"], typer.Option(help="tiny: seconds; large: hours.")
    ] = "tiny",
    storage: Where = "results",
    name: Annotated[str, typer.Option(help="Name of the data set (default: generated-SIZE).")] = "",
    scenes: Annotated[
        Path | None, typer.Option(help="Compose scenes of the recordings in this folder, such as ESC-10, instead.")
    ] = None,
    training: Annotated[int, typer.Option(help="Scenes to train on, with --scenes.", min=1)] = TRAINING,
    validation: Annotated[int, typer.Option(help="Scenes to validate on, with --scenes.", min=1)] = VALIDATION,
    test_fold: Annotated[int, typer.Option(help="The fold held out for the test, with --scenes.", min=1)] = TEST_FOLD,
    alone: Annotated[
        float, typer.Option(help="Share of training scenes that are one recording alone, with --scenes.", min=0, max=1)
    ] = 0.0,
    all_folds: Annotated[
        bool, typer.Option("--all-folds", help="Train on the validation's fold too, with --scenes.")
    ] = False,
    features: Annotated[
        Literal["waveform", "mel"],
        typer.Option(help="Features to store of scenes; mel, as of generated sounds, saves the transform."),
    ] = "waveform",
    seed: Annotated[int, typer.Option(help="Seed of the scenes.", min=0)] = 0,
    workers: Workers = 1,
    replace: Replace = False,
) -> None:
    """Generate recordings with captions: of procedural sounds, or composed of real ones.

    Example: `retable data make audio --size small`, or `retable data make audio --scenes esc10 --name esc10-scenes`
    """
    from retable.tasks.audio.prepare.prepare import GENERATED, folder_for, make_generated

    if scenes and (not name or name.startswith(GENERATED)):
        raise UserError(f"--name: name the data set of the scenes, not {GENERATED}...")
    if name.startswith(GENERATED) and name != f"{GENERATED}{size}":
        raise UserError(f"--name {name}: tables read other data under such a name; choose another one")
    changed = {
        "training": training != TRAINING,
        "validation": validation != VALIDATION,
        "test-fold": test_fold != TEST_FOLD,
        "alone": alone,
        "all-folds": all_folds,
        "features": features != "waveform",
        "seed": seed,
        "workers": workers != 1,
    }
    for option in (option for option, given in changed.items() if given and not scenes):
        raise UserError(f"--{option}: only scenes (--scenes) have it; leave it out")
    if scenes and size != "tiny":
        raise UserError(f"--size {size}: scenes have none; use --training and --validation")
    chosen = name or f"{GENERATED}{size}"
    root = Storage.open(storage)
    target = folder_for(root, chosen, "generated")
    with one_maker(root, f"audio/{chosen}"):
        if scenes:
            numbers = {"training": training, "validation": validation, "test_fold": test_fold, "alone": alone}
            numbers |= {"seed": seed, "all_folds": all_folds}
            tell(target, compose(scenes, target, chosen, numbers, features, workers, replace))
        else:
            tell(target, make_generated(target, chosen, size, replace))


def compose(
    source: Path,
    target: Storage,
    name: str,
    numbers: Mapping[str, Any],
    features: Literal["waveform", "mel"],
    workers: int,
    replace: bool = False,
) -> dict[str, Any]:
    """Make a data set of scenes of real recordings; the folds beside the test's serve validation and training.

    Args:
        source: the recordings.
        target: the data set's folder.
        name: the data set's.
        numbers: fields of `Composition`; `test_fold` among them.
        features: what is kept of a scene.
        workers: processes.
        replace: whether a finished set is given up.
    """
    from retable.tasks.audio.collect.recordings import write_dataset
    from retable.tasks.audio.prepare.prepare import check_made
    from retable.tasks.audio.rewrite.augment import named, rewrite_items
    from retable.tasks.audio.tools.compose import Composition, clips, items

    check_made(target, replace)
    folds = sorted({clip.fold for clip in clips(source)} - {numbers["test_fold"]})
    if len(folds) < 2:
        raise UserError(
            f"{source}: too few folds beside fold {numbers['test_fold']}; training and validation need one each"
        )
    composition = Composition(folder=source, validation_fold=folds[-1], **numbers)
    made = rewrite_items(items(composition))
    with progress_bar(f"composing {name}") as show:
        held = numbers["test_fold"]
        return write_dataset(
            target, name, "generated", features, made, show, workers, named("keywords"), test_fold=held
        )


def tell(target: Storage, info: Mapping[str, Any]) -> None:
    """Print what a data set holds, and the files that are not in it."""
    from retable.tasks.audio.collect.recordings import LEFT_OUT, REMARKS
    from retable.tasks.audio.prepare.prepare import describe

    print_lines(target.read_json(REMARKS) if target.exists(REMARKS) else (), "note: ", to=errors)
    print_lines(target.read_json(LEFT_OUT) if info["left_out"] else (), "left out: ", to=errors)
    for line in filter(None, (info.get("cut"), info.get("gone"))):
        errors.print(line, markup=False)
    console.print(f"{target}: {describe(info)}", markup=False)


def check(
    path: Annotated[
        str | None,
        typer.Argument(
            help="Folder of a data set or of the collections, a CSV, or any folder (default: all data sets)."
        ),
    ] = None,
    storage: Where = "results",
) -> None:
    """List every missing, silent, corrupt, too short or mislabelled file, and every leak between splits, a line each.

    Example: `retable data check audio ~/Sounds`
    """
    from retable.tasks.audio.prepare.check import check as check_folder

    if path is not None and not Storage.open(path).exists():
        raise UserError(f"{path}: not there; give a folder or a CSV")
    show_checked([Storage.open(path)] if path else data_sets(Storage.open(storage), "audio"), check_folder)


def import_(
    source: Annotated[
        Path,
        typer.Argument(help="A folder with clotho/, audiocaps/ or wavcaps/; or a CSV with the columns file, caption."),
    ],
    name: Annotated[str, typer.Option(help="Name of the data set.")] = "dcase2023",
    storage: Where = "results",
    folder: Annotated[Path | None, typer.Option(help="Folder of a CSV's recordings (default: the CSV's).")] = None,
    features: Annotated[
        Literal["waveform", "mel"],
        typer.Option(help="Features to store; mel saves resampling and mel transforms in training."),
    ] = "waveform",
    exclude: Annotated[
        list[Path] | None,
        typer.Option(help="A published list of recordings to exclude from training; may be repeated."),
    ] = None,
    workers: Workers = 1,
    replace: Replace = False,
) -> None:
    """Make a data set of Clotho, AudioCaps and WavCaps, or of your own CSV; broken files are named and left out.

    Example: `retable data import audio ~/collections`, or `retable data import audio sounds.csv --name sounds`
    """
    from retable.tasks.audio.collect import layouts
    from retable.tasks.audio.prepare.importer import import_entries
    from retable.tasks.audio.prepare.prepare import folder_for

    where = Storage.open(storage)
    if source.is_dir():
        if folder:
            raise UserError("--folder: is for a CSV; leave it out")
        target = folder_for(where, name, "dcase2023")
        with one_maker(where, f"audio/{name}"):
            info = import_entries(
                layouts.challenge(source),
                target,
                name,
                "dcase2023",
                features=features,
                exclusions=exclude or [],
                workers=workers,
                replacing=replace,
            )
            tell(target, info)
    elif exclude:
        raise UserError("--exclude: is for the collections; take the rows out of your own CSV")
    else:
        import_table(source, folder, name, where, features, workers, replace)
    console.print(f"train on it: retable train audio --set data={name}")


def import_table(
    table: Path,
    folder: Path | None,
    name: str,
    storage: Storage,
    features: Literal["waveform", "mel"] = "waveform",
    workers: int = 1,
    replacing: bool = False,
) -> dict[str, Any]:
    """Import one's own CSV as a data set, say what became of it, and return what its `dataset.json` holds.

    Raises:
        UserError: where the name is another set's, the CSV is none, or none of its recordings can be read.
    """
    from retable.tasks.audio.prepare.importer import import_own
    from retable.tasks.audio.prepare.prepare import folder_for

    target = folder_for(storage, name, "own")
    with one_maker(storage, f"audio/{name}"):
        info = import_own(table, target, name, folder=folder, features=features, workers=workers, replacing=replacing)
    tell(target, info)
    return info


DATA = {"fetch": fetch, "make": make, "check": check, "import": import_}
