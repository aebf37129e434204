"""Prepare datasets: generate them, or index the competition's files; errors say where to get these."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from retable.platform.console import progress_bar
from retable.platform.errors import UserError
from retable.platform.spec.arrays import Array
from retable.platform.spec.task import Source, data_folder
from retable.platform.store.storage import Storage
from retable.platform.text import plural
from retable.tasks.weather.config import Config
from retable.tasks.weather.w4c import preprocess
from retable.tasks.weather.w4c.convert import transfer
from retable.tasks.weather.w4c.frames import open_hdf5, read_hdf5
from retable.tasks.weather.w4c.layout import (
    CLOUDS,
    CSV_NAMES,
    INPUT,
    RAIN,
    SPLITS,
    TARGET,
    VERSION,
    Index,
    Slots,
    find_csv,
    layout_files,
    rain_path,
    read_csv,
    satellite_path,
    series_name,
)

CENTRAL = ("boxi_0015", "roxi_0004", "roxi_0007")
"""A region with some rain, the one with most and the one with least."""


@dataclass(frozen=True, kw_only=True)
class Preset:
    """Amount of data generated for a size."""

    regions: tuple[str, ...]
    years: tuple[int, ...] = (2019, 2020)
    training: int
    """Training frames of a region and year."""
    validation: int
    """Validation sequences of a region and year."""
    tests: int
    """Sequences of a region and year in each of test and heldout."""


GENERATED = {
    "24": Preset(regions=CENTRAL[:2], training=96, validation=1, tests=1),
    "24-quick": Preset(regions=CENTRAL[:2], years=(2019,), training=800, validation=10, tests=10),
    "24-small": Preset(regions=CENTRAL, training=2000, validation=16, tests=16),
    "36": Preset(regions=CENTRAL, training=2000, validation=40, tests=16),
    "60": Preset(regions=CENTRAL, training=1200, validation=40, tests=16),
    "252": Preset(regions=("roxi_0004",), years=(2019,), training=120, validation=2, tests=2),
}
"""Ending of a name after `generated-`, which begins with the size -> amount of data, such as that of a scale."""
MADE = {
    "generated": (
        "Rain and satellite images are generated: an image shows the clouds at its time, which rain follows by about "
        "half an hour; these scores say nothing of real weather."
    ),
    "imported": (
        "The rain is real, the satellite images were simulated from the rain at their time and in the hour before, so "
        "a model knows past rain and nothing more: these scores say nothing of a forecast from real images."
    ),
}
"""Source -> what a model can know from images that were simulated."""
RAIN_THRESHOLD = 0.2
"""Rain rate in mm/h from which on shares of rain are counted, the competition's."""
RAIN_FRAMES = 512
"""Shares of rain are counted on at most so many frames of a series, evenly spread."""
FEW = 100
"""Training frames up to which one process writes a generated set."""
MARK = "generated_by_retable.txt"
"""A file of generated sets, written before all others: what lies beside it may be made again."""
REAL_SIZE, REAL_PIXEL = 252, 2000.0
"""Pixels across the competition's maps, and the width of one, metres."""
HDF5_SATELLITE = re.compile(rf"(?P<region>.+)\.(?P<split>{'|'.join(SPLITS.values())})\.reflbt0\.ns\.h5")


def prepare(config: Config, storage: Storage) -> None:
    """Generate the data set `generated-<size>`; of any other name, index the files that lie in its folder.

    Raises:
        UserError: where there are no such files, saying where to put them, or they are damaged.

    """
    dataset = data_folder(storage, "weather", config.data)
    if config.data.startswith("generated-"):
        preset = config.data.removeprefix("generated-")
        if preset not in GENERATED:
            choices = ", ".join(f"generated-{size}" for size in GENERATED)
            raise UserError(f"data {config.data}: there is no such preset; use {choices}")
        make_generated(dataset, config.data, preset)
        return
    if not dataset.is_local:
        raise UserError(
            f"{dataset} has no data; convert them on a local --storage and copy them, or --set data=generated-36"
        )
    if not any(dataset.exists(name) for name in CSV_NAMES):
        wanted = f"{CSV_NAMES[0]}, {satellite_path(2019, 'boxi_0015', 'training')}, ..."
        raise UserError(
            f"{dataset} has no data; put or link the competition's files there ({wanted}), or --set data=generated-36"
        )
    index_folder(dataset, config.data, "w4c22" if config.data == "w4c22" else "own")


def make_generated(dataset: Storage, name: str, preset: str, seed: int = 0) -> dict[str, Any]:
    """Generate the data set of a preset (a key of `GENERATED`) into `dataset`; return its info.

    The files are HDF5, or Parquet where `dataset` is not local.

    Raises:
        UserError: where the disk is full or the folder cannot be written.

    """
    dataset.check_writable()
    ours = dataset.exists(MARK) or (
        dataset.exists("dataset.json") and dataset.read_json("dataset.json").get("source") == "generated"
    )
    if dataset.list() and not ours and not name.startswith("generated-"):
        raise UserError(f"{dataset} holds other data; choose another --name")
    if dataset.is_local:
        return _generate(dataset, name, preset, seed)
    with tempfile.TemporaryDirectory(prefix="retable-") as scratch:
        source = Storage.open(scratch)
        _generate(source, name, preset, seed)
        return transfer(source, dataset, name)


def _generate(dataset: Storage, name: str, key: str, seed: int) -> dict[str, Any]:
    from retable.tasks.weather.w4c.generate import generate

    preset, size = GENERATED[key], int(key.partition("-")[0])
    dataset.write(MARK, "`retable data make weather` makes what is in this folder, and replaces it.\n")
    for old in ("dataset.json", "truth", *(name for name in dataset.list() if name.isdecimal())):
        dataset.remove(old)
    with progress_bar(f"generating {name}") as show:
        generate(
            Path(dataset.root),
            size=size,
            regions=preset.regions,
            years=preset.years,
            training=preset.training,
            sequences={"validation": preset.validation, "test": preset.tests, "heldout": preset.tests},
            seed=seed,
            workers=(os.cpu_count() or 1) if preset.training > FEW else 1,  # starting a process takes seconds
            progress=show,
        )
    made = {"simulated_satellite": True, "simulated_by": CLOUDS, "simulation": VERSION}
    return index_folder(dataset, name, "generated", seed=seed, **made)


def index_folder(folder: Storage, name: str, source: str, **extra: Any) -> dict[str, Any]:
    """Index the files in the competition's layout in `folder`; write `dataset.json` and return what it holds.

    A file's shape is read, and a few frames: its digest is that of its path, size, shape, type and first, middle and
    last frame, as hashing 870 GB at each start is not an option. `digest` is that of all of them and of the CSV.

    Args:
        folder: a local folder, root of the layout.
        name: the data set's name.
        source: `w4c22`, `generated`, `imported`, or `own` (somebody's own files).
        **extra: what else a data set says of itself; the index' own entries win.

    Raises:
        UserError: where a file or the CSV is missing, damaged or foreign, sizes differ, or other data pass for w4c22.

    """
    slots = read_csv(folder)
    inputs, forecast = lengths(slots)
    root, table = Path(folder.root), find_csv(folder)
    contents = _survey(root)
    if source == "w4c22" and (contents["size"] != REAL_SIZE or contents["simulated_satellite"]):
        what = "simulated" if contents["simulated_satellite"] else f"{contents['size']} pixels wide, not {REAL_SIZE}"
        raise UserError(f"{root}: these images are {what}, so this is not the competition's set; choose another name")
    files = {table: hashlib.sha256(folder.read(table)).hexdigest(), **contents["files"]}
    names = [name.split("/") for name in contents["series"]]
    tests = [rows["rain"] for name, rows in contents["series"].items() if name.endswith(("/test", "/heldout"))]
    simulated = bool(contents["simulated_satellite"] or extra.get("simulated_satellite", False))
    info = {
        **extra,
        **contents,
        "name": name,
        "source": source,
        "simulated_satellite": simulated,
        "real": source != "generated" and not simulated,
        "format": "hdf5",
        "regions": sorted({region for _, region, _ in names}),
        "years": sorted({int(year) for year, _, _ in names}),
        "inputs": inputs,
        "forecast": forecast,
        "holdout": "official" if any(tests) else "local",
        "rain_threshold": RAIN_THRESHOLD,
        "rain_frames": RAIN_FRAMES,
        "files": files,
        "digest": hashlib.sha256("\n".join(f"{path} {files[path]}" for path in sorted(files)).encode()).hexdigest(),
    }
    info["caution"] = caution(info)
    index = Index(slots, info)
    counted = {
        series: rain_share(open_hdf5(root / rain_path(int(year), region, split), RAIN, 1), index.free(series))
        for series in contents["series"]
        for year, region, split in [series.split("/")]
        if split == "training" and contents["series"][series]["rain"]
    }
    info["rain"] = {series: share for series, (share, _) in counted.items()}
    info["measured"] = {series: pixels for series, (_, pixels) in counted.items()}
    folder.write_json("dataset.json", info)
    return info


def _survey(root: Path) -> dict[str, Any]:
    """Return what files themselves say: series, files, size, bytes, simulated_satellite (see `index_folder`).

    Of simulated images also `simulation` and `simulated_as`, see `_simulation`.
    """
    series: dict[str, dict[str, int | None]] = {}
    files, sizes, total = {}, {}, 0
    marks: list[dict[str, Any]] = []
    for year, region, split in scan(root):
        name = series_name(year, region, split)
        series[name] = {"satellite": None, "rain": None}
        for kind, (path, key, channels) in layout_files(year, region, split).items():
            if kind == "rain" and not (root / path).exists():
                continue
            data = open_hdf5(root / path, key, channels)
            series[name][kind], sizes[path], files[path] = len(data), data.shape[-1], file_digest(path, data)
            total += 4 * int(np.prod(data.shape))
            if any(data.file.attrs.get(mark, False) for mark in ("generated", "simulated")):
                marks.append(dict(data.file.attrs))
    return {
        "series": series,
        "files": files,
        "size": _one_size(root, sizes),
        "bytes": total,
        "simulated_satellite": bool(marks),
        **_simulation(marks),
    }


def _simulation(marks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return `VERSION` if all files were simulated by it, else 0; and which of `MADE` the files are."""
    if not marks:
        return {}
    made = "generated" if any(mark.get("generated") for mark in marks) else "imported"
    ours = all(np.array_equal(mark.get("generator_version", 0), VERSION) for mark in marks)
    return {"simulation": VERSION if ours else 0, "simulated_as": made}


def scan(root: Path) -> Iterator[tuple[int, str, str]]:
    """Yield (year, region, split) of each file of satellite images below `root`, sorted."""
    split_of = {short: split for split, short in SPLITS.items()}
    for path in sorted(root.glob("[0-9][0-9][0-9][0-9]/HRIT/*.h5")):
        if named := HDF5_SATELLITE.fullmatch(path.name):
            yield int(path.parts[-3]), named["region"], split_of[named["split"]]


def file_digest(path: str, data: h5py.Dataset) -> str:
    """Return the SHA-256 of a file's path, size in bytes, shape, type and first, middle and last frame."""
    size = Path(data.file.filename).stat().st_size
    digest = hashlib.sha256(f"{path} {size} {data.shape} {data.dtype.str}".encode())
    for row in sorted({0, len(data) // 2, len(data) - 1}) if len(data) else []:
        digest.update(read_hdf5(data, slice(row, row + 1)).tobytes())
    return digest.hexdigest()


def rain_share(data: h5py.Dataset, free: Array) -> tuple[float, int]:
    """Return the share of rainy pixels (0.2 mm/h or more) among those measured, 0 of none, and how many these are.

    Both are taken from frames evenly spread. `free`, bool (n,), says which frames count: not those of local hold-outs.
    """
    rainy = measured = 0
    rows = np.flatnonzero(free[: len(data)])
    read = rows[:: max(-(-len(rows) // RAIN_FRAMES), 1)]
    for row in read.tolist():
        events = preprocess.classify(read_hdf5(data, slice(row, row + 1))[:, 0], RAIN_THRESHOLD)
        rainy += int((events == preprocess.RAIN).sum())
        measured += int((events != preprocess.MASKED).sum())
    return rainy / max(measured, 1), round(measured * len(rows) / max(len(read), 1))


def _one_size(root: Path, sizes: Mapping[str, int]) -> int:
    if not sizes:
        where = satellite_path(2019, "boxi_0015", "training")
        raise UserError(f"{root}: no satellite images; put the competition's files there, such as {where}")
    first = next(iter(sizes))
    for path, size in sizes.items():
        if size != sizes[first]:
            raise UserError(f"{root / path}: {size} pixels wide, {first} has {sizes[first]}; keep one size in a folder")
    if sizes[first] % 12:
        raise UserError(f"{root / first}: {sizes[first]} pixels wide, not a multiple of 12; give other files")
    return sizes[first]


def lengths(slots: Mapping[tuple[int, str], Slots]) -> tuple[int, int]:
    """Return how many inputs and targets most sequences of the CSV have; the competition's 4 and 32 where it has none.

    Only the validation's and tests' rows are looked at.
    """
    runs: dict[int, list[int]] = {INPUT: [], TARGET: []}
    for here in slots.values():
        kind = here.kind[here.rain_rows]
        for run in np.split(kind, np.flatnonzero(np.diff(kind)) + 1) if len(kind) else []:
            runs[int(run[0])].append(len(run))
    inputs, forecast = (int(np.bincount(runs[kind]).argmax()) if runs[kind] else 0 for kind in (INPUT, TARGET))
    return inputs or 4, forecast or 32


def is_published(info: Mapping[str, Any]) -> bool:
    """Return whether data are the competition's, with the tests that the paper was scored on."""
    return info.get("source") == "w4c22" and info.get("holdout") == "official"


def describe(info: Mapping[str, Any]) -> str:
    """Return the origin of a dataset in one clause, for reports."""
    size, regions, years = info["size"], len(info["regions"]), len(info["years"])
    extent = f"{size} x {size}, {plural(regions, 'region')}, {plural(years, 'year')}"
    if info["source"] == "generated":
        return f"generated rain that follows generated clouds, images of these, {extent} (seed {info.get('seed', 0)})"
    if info["source"] == "imported":
        product, date = info.get("product", "rain composites"), info.get("date", ", ".join(map(str, info["years"])))
        images = "satellite images simulated from past rain" if info["simulated_satellite"] else "SEVIRI's images"
        return f"{product} of {date} with {images}, split by {info.get('split_by', 'place')}"
    images = "own files, simulated satellite images" if info["simulated_satellite"] else "own files"
    what = "Weather4cast 2022" if info["source"] == "w4c22" else f"{images}, {extent}"
    if info["holdout"] == "local":
        return f"{what}; test and heldout are local hold-outs, as the organisers keep the targets"
    return what


def caution(info: Mapping[str, Any]) -> str:
    """Return a sentence on what a model can know from simulated images; nothing for observed ones."""
    return MADE.get(_made(info), "") if info.get("simulated_satellite") else ""


def _made(info: Mapping[str, Any]) -> str:
    """Return which of `MADE` a data set is, also where its files were copied to a folder of another name."""
    return str(info.get("source") if info.get("source") in MADE else info.get("simulated_as", ""))


def pixel_width(info: Mapping[str, Any]) -> float | None:
    """Return the width of a data set's pixels, metres; generated maps are as wide as the competition's. None: unknown.

    Own files do not say it.
    """
    standard_pixels = info["source"] == "w4c22" or _made(info) == "generated"
    width: float | None = info.get("pixel", REAL_PIXEL * REAL_SIZE / info["size"] if standard_pixels else None)
    return width


def check_simulation(source: Source) -> None:
    """Refuse data whose images are simulated and not known to be of this version.

    Raises:
        UserError: saying how to make them again.
    """
    info = source.info
    if info.get("simulated_satellite") and info.get("simulation") != VERSION:
        again = "remove the folder, and it is made again" if info.get("source") == "generated" else "import them again"
        why = "its images may be simulated by an older version and show later rain"
        raise UserError(f"{source.folder}: {why}; {again}")


def holdout_notes(configs: Sequence[Config], source: Source) -> list[str]:
    """Return a line for each kind of config: the training windows that local hold-outs take, and what they give.

    Raises:
        UserError: where the layout's CSV is missing, foreign or damaged.
    """
    name, slots = source.info["name"], None
    if source.info["holdout"] != "local":
        return []
    lines = []
    for config in {(one.holdout, one.years, one.inputs, one.forecast): one for one in configs}.values():
        slots = slots or read_csv(source.folder)
        windows, every, test, heldout = Index(slots, source.info, config.holdout).holdout(
            config.years, config.inputs, config.forecast
        )
        kept = f"{name}: hold-out of {config.holdout}: {windows:,} of {every:,} training windows a region stay"
        scored = f"{test} test and {heldout} heldout sequences a region"
        lines.append(f"{kept}; {scored if test else 'only validation can be scored'}")
    return lines
