"""Samples a second of the weather loader, against an h5py reader that fetches each of a window's frames on its own.

Both prepare frames with the same functions and give the same samples. The files are in the competition's layout,
uncompressed, a chunk a frame, in the page cache (a first epoch is not timed); at 60 pixels they are generated, at 252
random numbers. The reference reads 4 images and 33 rain fields a window; ours reads a run of 16 windows in one slice,
and prepares each frame once.
"""

from __future__ import annotations

import gc
import tempfile
import time
from contextlib import closing
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import h5py
import numpy as np

INPUTS, FORECAST, BATCH, FRAMES = 4, 32, 8, 160
SERIES = [(2019, "boxi_0015"), (2019, "roxi_0004")]


def write(root: Path, size: int) -> dict[str, Any]:
    """Write two regions' training frames, without a gap, and the CSV; return what `dataset.json` would say."""
    from retable.tasks.weather.w4c.layout import CSV, rain_path, satellite_path

    random = np.random.default_rng(0)
    for year, region in SERIES:
        for path, key, channels in (
            (satellite_path(year, region, "training"), "REFL-BT", 11),
            (rain_path(year, region, "training"), "rates.crop", 1),
        ):
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            shape = (channels, size, size)
            with h5py.File(root / path, "w") as file:
                data = file.create_dataset(key, (FRAMES, *shape), "f4", chunks=(1, *shape))
                for frame in range(FRAMES):
                    data[frame] = random.gamma(0.2, 0.5, shape) if channels == 1 else random.uniform(200, 300, shape)
    lines, start = ["time,date_str,date,RATE,ACRR,DBZH,REFL-BT,all_vars,split,split_type"], datetime(2019, 3, 1)
    for frame in range(FRAMES):
        lines.append(f"{start + frame * timedelta(minutes=15):%H%M%S,%Y%m%d,%Y-%m-%d},1,1,1,1,1,training,-")
    (root / CSV).write_text("\n".join(lines) + "\n")
    series = {f"{year}/{region}/training": {"satellite": FRAMES, "rain": FRAMES} for year, region in SERIES}
    metadata = {
        "format": "hdf5",
        "size": size,
        "regions": [r for _, r in SERIES],
        "years": [2019],
        "holdout": "official",
    }
    return {**metadata, "inputs": INPUTS, "forecast": FORECAST, "series": series, "rain": {}, "digest": str(size)}


def generated(root: Path, size: int) -> dict[str, Any]:
    """Generate two regions; at 252 x 252 pixels that would take minutes."""
    from retable.platform.store.storage import Storage
    from retable.tasks.weather.w4c.generate import generate
    from retable.tasks.weather.w4c.prepare import index_folder

    generate(
        root,
        size=size,
        regions=[region for _, region in SERIES],
        years=[2019],
        training=FRAMES,
        sequences={"validation": 1, "test": 1, "heldout": 1},
        workers=2,
        progress=lambda done, total: None,
    )
    return index_folder(Storage.open(root), "bench", "generated")


def one_by_one(root: Path, windows: Any) -> Any:
    """Yield each window's images and events, every frame fetched and prepared on its own."""
    from retable.tasks.weather.w4c.layout import rain_path, satellite_path
    from retable.tasks.weather.w4c.preprocess import classify, normalise

    files: dict[str, Any] = {}
    for window in windows:
        year, region, split = window.series.split("/")
        for name in (satellite_path(int(year), region, split), rain_path(int(year), region, split)):
            files.setdefault(name, h5py.File(root / name, "r", locking=False))
        images = files[satellite_path(int(year), region, split)]["REFL-BT"]
        rain = files[rain_path(int(year), region, split)]["rates.crop"]
        x = np.stack([normalise(images[window.satellite + k]) for k in range(INPUTS)], axis=1)
        now = window.rain + INPUTS - 1
        y = np.stack([classify(rain[now + k], 0.2)[0] for k in range(FORECAST + 1)])
        yield x, y
    for file in files.values():
        file.close()


def rate(samples: Any, count: int) -> float:
    """Return samples a second of the second `count` ones, and end the stream; the first `count` warm the page cache."""
    with closing(samples):
        for _ in islice(samples, count):
            pass
        start = time.perf_counter()
        got = sum(1 for _ in islice(samples, count))
        return got / (time.perf_counter() - start)


def check(windows: Any, root: Path, index: Any) -> None:
    """Hold that every sample of the first batches is one that the reference reads."""
    expected = {x.tobytes(): y for x, y in one_by_one(root, index)}
    for batch in islice(windows.batches(0, 0, 0, 1), 4):
        for k in range(BATCH):
            y = expected[batch.images[k].numpy().tobytes()]
            assert np.array_equal(y[0], batch.now[k]) and np.array_equal(y[1:], batch.events[k])


def measure_at(size: int) -> dict[str, float]:
    """Return rates of whole epochs: a lane's first batch reads a run, and the next ones have it."""
    from retable.platform.config import override
    from retable.platform.execute.session import ray_cluster
    from retable.platform.spec.task import Source
    from retable.platform.store.storage import Storage
    from retable.tasks.weather.config import Config
    from retable.tasks.weather.data import Windows
    from retable.tasks.weather.w4c.layout import Index

    with tempfile.TemporaryDirectory(prefix="retable-bench-") as folder:
        root = Path(folder)
        info = generated(root, size) if size < 100 else write(root, size)
        config = override(Config(), {"regions": info["regions"], "years": [2019], "batch": BATCH})
        source = Source(Storage.open(root), info)
        windows = Index.read(source.folder, info).training(info["regions"], (2019,), INPUTS, FORECAST, False)
        order = np.random.default_rng(0).permutation(len(windows))
        made = Windows(None, source, [config])
        if size < 100:
            check(made, root, windows)
        batches = len(windows) // BATCH

        def epochs() -> Any:
            for epoch in range(1000):
                yield from made.batches(epoch, 0, 0, 1)

        plain = rate(one_by_one(root, [windows[k] for k in order] * 2), len(windows))
        alone = BATCH * rate(epochs(), batches)
        with ray_cluster():
            streamed = BATCH * rate(epochs(), batches)
            gc.collect()  # what still holds Ray's memory must go before Ray does
    return {
        f"S={size}: h5py, each frame on its own, samples/s": plain,
        f"S={size}: runs, one process, samples/s": alone,
        f"S={size}: runs, streamed by Ray Data, samples/s": streamed,
        f"S={size}: one process, ratio": alone / plain,
        f"S={size}: streamed, ratio": streamed / plain,
    }


def measure() -> dict[str, Any]:
    return {**measure_at(60), **measure_at(252)}
