"""`retable weather ...` and the task's part of `retable data`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from retable.platform.config import override, parse_set, set_line
from retable.platform.console import (
    Licence,
    Overwrite,
    Replace,
    Where,
    console,
    items,
    print_lines,
    progress_bar,
    show_defects,
    whole,
)
from retable.platform.errors import UserError
from retable.platform.spec.task import data_folder, data_sets, new_data
from retable.platform.store.lease import one_maker
from retable.platform.store.storage import Storage, check_target
from retable.platform.text import plural
from retable.tasks.weather.config import Config
from retable.tasks.weather.w4c.convert import convert as convert_frames
from retable.tasks.weather.w4c.layout import CSV_NAMES
from retable.tasks.weather.w4c.prepare import GENERATED, caution, describe, make_generated, prepare

app = typer.Typer(
    no_args_is_help=True,
    help="Weather4cast: submissions, forecasts as netCDF, weights of others.\n\n"
    "Example: `retable weather verify latest --threshold tuned`",
)

Name = Annotated[str | None, typer.Option(help="Name of the data set (default: generated-SIZE).")]
Fingerprint = Annotated[
    str, typer.Argument(help="A run: its first digits, `latest`, or TABLE/ROW; RUN@EPOCH selects an epoch.")
]
Split = Annotated[str, typer.Option(help="test, heldout or validation.")]
Regions = Annotated[
    str,
    typer.Option(
        help="Regions, e.g. boxi_0015,roxi_0008, also those not trained on (default: the run's, or all of --data)."
    ),
]
Years = Annotated[str, typer.Option(help="Years, e.g. 2019,2021 (default: the run's, or all of --data).")]
Data = Annotated[str, typer.Option("--data", help="A data set that it was not trained on (default: the run's).")]
Threshold = Annotated[
    str,
    typer.Option(
        help="Lowest probability that counts as rain; or tuned on validation: tuned, tuned_per_region, or "
        "tuned_per_region_and_lead."
    ),
]
Motion = Annotated[str, typer.Option(help="Move a retrieval's rain: optical_flow, pysteps, or none to leave it.")]
Epoch = Annotated[int, typer.Option(help="A kept epoch, for runs without @EPOCH; 0 is the last one.", min=0)]


def fetch(
    name: Annotated[str, typer.Argument(help="A dataset; without one they are listed.")] = "",
) -> None:
    """List Weather4cast's data, or say how to get a dataset: it needs a registration, so nothing is downloaded.

    Examples: `retable data fetch weather` · `retable data fetch weather w4c22`
    """
    from retable.platform.store import download

    published = download.read_published(Path(__file__).with_name("sources.json"))
    list(download.fetch_by_name(published, [name] if name else [], lambda wanted: Path()))  # all are fetched by hand


def make(
    size: Annotated[int, typer.Option(help="Pixels across an image: 24, 36, 60 or 252.")] = 36,
    storage: Where = "results",
    name: Name = None,
    seed: Annotated[int, typer.Option(help="Seed of the weather.", min=0)] = 0,
    replace: Replace = False,
) -> None:
    """Generate rain and satellite images in the competition's layout.

    Example: `retable data make weather --size 36`
    """
    if str(size) not in GENERATED:
        raise UserError(f"--size {size}: use {', '.join(key for key in GENERATED if key.isdecimal())}")
    if seed and name is None:
        raise UserError(f"--seed {seed}: give the set a --name; generated-{size} has seed 0")
    chosen = name or f"generated-{size}"
    other = chosen.startswith("generated-") and (seed or chosen != f"generated-{size}")
    if other or chosen == Config().data:
        raise UserError(f"--name {chosen}: tables read other data under such a name; choose another one")
    with new_data(Storage.open(storage), "weather", chosen, replace=replace) as target:
        info = make_generated(target, chosen, str(size), seed)
    console.print(f"{target}: {describe(info)}", markup=False)


def check(
    path: Annotated[
        str | None, typer.Argument(help="Folder of a data set, or a submission .zip (default: all data sets).")
    ] = None,
    storage: Where = "results",
) -> None:
    """List the defects of the competition's files, or why its server would refuse a submission, one line each.

    Every file is opened and compared with the table; of the values, 16 frames of each HDF5 file are looked at.

    Example: `retable data check weather submission.zip`
    """
    from retable.tasks.weather.tools.forecasts.submission import check as check_submission
    from retable.tasks.weather.w4c.check import check as check_folder

    if path is None:
        show_defects((folder, check_folder(folder)) for folder in data_sets(Storage.open(storage), "weather"))
    else:
        show_defects(
            [(path, check_submission(Path(path)) if path.endswith(".zip") else check_folder(Storage.open(path)))]
        )


def convert(
    name: Annotated[str, typer.Argument(help="A data set below data/weather/, e.g. w4c22.")],
    storage: Where = "results",
    target: Annotated[str | None, typer.Option(help="Name of the new set (default: NAME-parquet).")] = None,
) -> None:
    """Write a data set's frames as sharded Parquet in compact types, for object storage.

    Example: `retable data convert weather w4c22`, then `retable reproduce weather --set data=w4c22-parquet`
    """
    root = Storage.open(storage)
    source = data_folder(root, "weather", name)
    if source.is_local and not source.exists("dataset.json") and any(map(source.exists, CSV_NAMES)):
        with one_maker(root, f"weather/{name}"):
            prepare(override(Config(), {"data": name}), root)
    info = convert_frames(root, name, target)
    console.print(f"{info['name']}: {len(info['files'])} files, {info['bytes'] / 1e6:,.0f} MB of float32 before")


def import_(
    source: Annotated[Path, typer.Argument(help="A folder of composites: ODIM_H5, NWC-SAF, KNMI, BOM, FMI, MRMS.")],
    storage: Where = "results",
    name: Annotated[str, typer.Option(help="Name of the data set.")] = "imported",
    size: Annotated[int, typer.Option(help="Pixels across a region, a multiple of 12.")] = 36,
    regions: Annotated[int, typer.Option(help="Most regions to cut out.", min=4)] = 12,
    inputs: Annotated[int, typer.Option(help="Images a forecast starts from.", min=1)] = 4,
    forecast: Annotated[int, typer.Option(help="Lead times, 15 minutes each.", min=1)] = 8,
    seed: Annotated[int, typer.Option(help="Seed of the split by place and of the simulated clouds.", min=0)] = 0,
    tolerance: Annotated[
        float, typer.Option(help="Minutes by which a composite may miss its quarter of an hour.", min=0, max=7)
    ] = 0.0,
    satellite: Annotated[
        Path | None,
        typer.Option(
            help="A folder of SEVIRI's scans (MSG*-NA.nat) of the same hours (default: images are simulated)."
        ),
    ] = None,
    zr: Annotated[
        str,
        typer.Option(
            help="a,b of Z = a R^b for reflectivity, e.g. 223,1.53 (default: the file's own or the product's)."
        ),
    ] = "",
) -> None:
    """Cut real rain composites into regions; satellite images are SEVIRI's own, or simulated from the rain.

    Files are known by what they hold, in folders of any depth; those that cannot be used are named and left out.
    Pixels of less than 4/3 km are averaged to about 2 km (1.6 to 2.7), others are taken as they are, and of more
    frequent composites every quarter of an hour's is taken, which is said. All stretches between gaps are used.
    MRMS's GRIB2 needs `pip install 'retable[grib]'`, and, as it comes every two minutes, `--tolerance 1`.
    EUMETSAT's files need `pip install 'retable[seviri]'`.

    Example: `retable data import weather opera_20180824 --name opera`
    """
    from retable.tasks.weather.tools.composites.importer import import_composites

    if name.startswith("generated-") or name == Config().data:
        raise UserError(f"--name {name}: tables read other data under this name; choose another one")
    root = Storage.open(storage)
    target = data_folder(root, "weather", name)
    if not target.is_local:
        raise UserError(f"{target}: import to a local --storage, then `retable data convert weather {name}`")
    with one_maker(root, f"weather/{name}"), progress_bar(f"importing {name}") as show:
        info = import_composites(
            source,
            Path(target.root),
            size=size,
            regions=regions,
            inputs=inputs,
            forecast=forecast,
            seed=seed,
            tolerance=tolerance,
            satellite=satellite,
            relation=relation_of(zr),
            progress=show,
        )
    print_lines(import_lines(info))
    console.print(f"{target}: {describe(info)}", markup=False)
    changes = {"data": name, "regions": info["regions"], "years": info["years"], "inputs": inputs, "forecast": forecast}
    console.print(f"train on it: retable train weather {set_line(changes)}", markup=False)


def relation_of(words: str) -> tuple[float, float] | None:
    """Return a and b of Z = a R^b from `a,b`; None where nothing is given.

    Raises:
        UserError: where these are not two positive numbers.
    """
    numbers = items("--zr", words, float, example="223,1.53")
    if numbers and (len(numbers) != 2 or not all(0 < number < math.inf for number in numbers)):
        raise UserError(f"--zr {words}: give the a and b of Z = a R^b, such as 223,1.53")
    return (numbers[0], numbers[1]) if numbers else None


def import_lines(info: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines on what an import left out, and how it read the rest."""
    from retable.tasks.weather.tools.composites.resample import NEAR, PIXEL

    skipped, dropped = info["skipped"], info["dropped"]
    yield from (f"left out: {line}" for line in skipped[:LINES])
    if len(skipped) > LINES:
        yield f"left out: {len(skipped) - LINES} more files"
    if dropped:
        yield f"{info['frames']} composites, 15 minutes apart, are used; {len(dropped)} lie between or beside them"
    if info["stretches"] > 1:
        yield f"the frames are {info['stretches']} stretches between gaps, and no window spans a gap"
    if info["split_by"] == "time":
        yield from time_lines(info)
    if info["averaged"] > 1:
        yield f"{info['averaged']} x {info['averaged']} pixels are averaged to one of {info['pixel']:,.0f} m"
    if info["resampled"]:
        yield info["resampled"]
    if info["pixel"] is None:
        yield f"the files do not say how wide their pixels are; they are taken as {PIXEL:,.0f} m"
    elif abs(info["pixel"] / PIXEL - 1) > NEAR:
        yield f"pixels of {info['pixel']:,.0f} m are taken as they are, not resampled to the layout's {PIXEL:,.0f} m"
    if info["relation"]:
        a, b = info["relation"]
        yield f"rain rates are made of reflectivity, by Z = {a:g} R^{b:g}"
    if info["quantity"] == "accumulation":
        yield f"rain rates are made of accumulation, by its {info['minutes']:g} minutes"


def time_lines(info: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines for a split by time, and how to get a split by place."""
    count, side = len(info["grids"]), 6 * int(info["size"])
    squares = f"{plural(count, 'square')} of {side} pixels {'have' if count > 1 else 'has'} radar and rain"
    yield f"{squares}, fewer than 4: the splits are by time, training first, and every region is in all of them"
    if info["smaller"]:
        yield f"with --size {info['smaller']} more squares fit, and splits may be by place"


LINES = 5
"""Files left out that are named, at most."""

DATA = {"fetch": fetch, "make": make, "check": check, "convert": convert, "import": import_}


@app.command()
def submit(
    runs: Annotated[
        list[str],
        typer.Argument(help="Runs (first digits, `latest`, TABLE/ROW), or RUN@EPOCH; several vote by majority."),
    ],
    out: Annotated[Path, typer.Option(dir_okay=False, help="The zip to write.")] = Path("submission.zip"),
    storage: Where = "results",
    split: Split = "test",
    epoch: Epoch = 0,
    threshold: Threshold = "0.5",
    transfer: Annotated[
        bool, typer.Option("--transfer", help="The transfer challenge's 16 files: three more regions, and 2021.")
    ] = False,
    motion: Motion = "none",
    overwrite: Overwrite = False,
) -> None:
    """Write forecasts of the organizers' inputs as a submission, and print what their server would refuse.

    A tuned threshold is each run's best on the validation split; a region without validation uses the best of all.

    Examples: `retable weather submit latest --out core.zip` · a vote in which one run has two voices, its epochs 4 and
    5: `retable weather submit 1f3a 77c0 9b2e@4 9b2e@5`
    """
    from retable.tasks.weather.tools.forecasts import submission
    from retable.tasks.weather.tools.forecasts.exchange import official_forecasts, opened

    check_target(out, overwrite)
    wanted = submission.TRANSFER if transfer else ()
    years, regions = (tuple(dict.fromkeys(column)) for column in zip(*wanted, strict=True)) if wanted else ((), ())
    loaded = [opened(run, storage, split, epoch, chosen(threshold), regions, years, motion=motion) for run in runs]
    submission.write(out, official_forecasts(loaded, wanted))
    console.print(f"{out}: {out.stat().st_size / 1e6:.1f} MB", markup=False)
    print_lines(submission.check(out, wanted or submission.CORE))


def places(regions: str, years: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return the regions and the years in two lists with commas.

    Raises:
        UserError: where a year is no number.
    """
    return tuple(items("--regions", regions, str)), tuple(items("--years", years, whole, "year", "2019,2021"))


@app.command()
def score(
    run: Fingerprint,
    storage: Where = "results",
    split: Split = "test",
    epoch: Epoch = 0,
    threshold: Threshold = "0.5",
    regions: Regions = "",
    years: Years = "",
    data: Data = "",
    motion: Motion = "none",
) -> None:
    """Print a run's scores on any regions and years of any data set, those that it was not trained on too.

    The first line describes the data; for imported data, the second says what these scores cannot show.

    Thresholds are tuned on the validation split of the very data that are scored.

    Examples: `retable weather score latest --regions roxi_0007 --years 2019,2020`, `retable weather score latest
    --data opera`
    """
    from retable.tasks.weather.tools.forecasts.exchange import opened
    from retable.tasks.weather.tools.forecasts.exchange import score as measured

    what = opened(run, storage, split, epoch, chosen(threshold), *places(regions, years), data, motion)
    scores = measured(what)
    for line in (f"data  {describe(what.source.info)}", caution(what.source.info)):
        console.print(line, markup=False, soft_wrap=True, end="\n" if line else "")
    for name, value in scores.items():
        console.print(f"{name}  {value:.4f}", markup=False)


def chosen(threshold: str) -> float | str:
    """Return a threshold as a number, or the word for how it is tuned."""
    try:
        return float(threshold)
    except ValueError:
        return threshold


@app.command()
def verify(
    runs: Annotated[
        list[str], typer.Argument(help="Runs (first digits, `latest`, TABLE/ROW), or RUN@EPOCH; several are compared.")
    ],
    out: Annotated[Path, typer.Option(file_okay=False, help="The folder of the page.")] = Path("verification"),
    storage: Where = "results",
    split: Split = "test",
    epoch: Epoch = 0,
    threshold: Threshold = "0.5",
    regions: Regions = "",
    years: Years = "",
    data: Data = "",
    motion: Motion = "none",
) -> None:
    """Write a page on how good forecasts are: scores with intervals, figures, cases beside the radar, all as CSV.

    By lead time, year and region, scale and threshold: IoU (CSI), POD, FAR, bias, FSS; Brier score, reliability and
    sharpness of the probabilities; of several runs, how often it rained where k of them forecast rain.

    Example: `retable weather verify latest --threshold tuned`, `retable weather verify 1f3a@4 1f3a@5`
    """
    from retable.tasks.weather.tools.forecasts.exchange import opened
    from retable.tasks.weather.tools.forecasts.verify import verify as written

    where = *places(regions, years), data
    opened_runs = [opened(run, storage, split, epoch, chosen(threshold), *where, motion) for run in runs]
    with progress_bar("forecasting") as show:
        page = written(opened_runs, out, show)
    console.print(f"{page}: open it in a browser", markup=False)


@app.command()
def netcdf(
    run: Fingerprint,
    out: Annotated[Path, typer.Option(file_okay=False, help="The folder to write to.")] = Path("forecasts"),
    storage: Where = "results",
    split: Split = "test",
    epoch: Epoch = 0,
    regions: Regions = "",
    years: Years = "",
    data: Data = "",
    motion: Motion = "none",
) -> None:
    """Write a run's forecasts as CF netCDF, a file for each region and year; georeferenced where the place is known.

    Example: `retable weather netcdf latest --out forecasts`
    """
    from retable.tasks.weather.tools.forecasts.exchange import opened, write_netcdf

    what = opened(run, storage, split, epoch, 0.5, *places(regions, years), data, motion)
    print_lines(write_netcdf(what, out))


@app.command()
def weights(
    file: Annotated[Path, typer.Argument(help="A checkpoint of the competition's kit or the authors' code.")],
    storage: Where = "results",
    set: Annotated[
        list[str] | None, typer.Option("--set", help="Setting it was trained with, path=value; may be repeated.")
    ] = None,
) -> None:
    """Import a checkpoint of others; prints the `--set` options that start a run from it.

    Example: `retable weather weights epoch=3.ckpt --set model=swin`
    """
    from retable.tasks.weather.tools.forecasts.exchange import take_over

    digest = take_over(file, Storage.open(storage), set or [])
    console.print(f"--set init=weights --set init.sha256={digest}")


@app.command()
def adopt(
    folder: Annotated[Path, typer.Argument(help="Checkpoints of others, and rows.csv: columns row,file.")],
    table: Annotated[str, typer.Option(help="The table whose rows they are.")] = "weather/table2",
    storage: Where = "results",
    set: Annotated[list[str] | None, typer.Option("--set", help="What all rows change, as in reproduce.")] = None,
) -> None:
    """Use published weights as the runs of a table: reproduce then scores and votes without training.

    `rows.csv` assigns checkpoints to rows; without it the command prints the rows. Nothing is trained, the files stay
    as they are, and the report names the rows whose weights others trained.

    Example: `retable weather adopt checkpoints --table weather/table2`
    """
    from retable.tasks.weather.tools.forecasts.adopt import SEED
    from retable.tasks.weather.tools.forecasts.adopt import adopt as take

    changes = parse_set(set or [])
    print_lines(take(folder, table, Storage.open(storage), changes))
    words = set_line({**changes, "seed": SEED})
    console.print(f"fill the table: retable reproduce {table} --scale paper --no-train {words}", markup=False)


@app.command()
def export(
    run: Fingerprint,
    file: Annotated[Path, typer.Argument(dir_okay=False, help="The file to write, e.g. rain.safetensors.")],
    epoch: Epoch = 0,
    licence: Licence = "",
    storage: Where = "results",
    motion: Motion = "none",
    overwrite: Overwrite = False,
) -> None:
    """Write a trained forecaster with its config and provenance to one file, which is all that serving it takes.

    Example: `retable weather export latest rain.safetensors`
    """
    from retable.platform.models.export import export
    from retable.tasks.weather.tools.forecasts.exchange import at_epoch

    name, own_epoch = at_epoch(run)
    export(
        "weather", name, storage, file, overwrite=overwrite, epoch=own_epoch or epoch, licence=licence, motion=motion
    )
