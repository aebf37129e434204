"""Write weather's zoo, a forecaster and an example: `python -m benchmarks.weather_zoo STORAGE RUN`.

The storage holds the run, trained by the command in `tasks/weather/zoo/LICENSES.md`, and `generated-36`. The example is
the first sequence of test/2019/roxi_0004 whose radar has rain on a tenth to a quarter of its pixels: a rule that looks
at the radar alone. What the forecaster scores on it is printed.
"""

from __future__ import annotations

import sys

import numpy as np

from retable.platform.commit import code_root
from retable.platform.config import override
from retable.platform.spec.task import Source, find
from retable.platform.store.storage import Storage
from retable.tasks.weather import data
from retable.tasks.weather.export import read_export, write_export
from retable.tasks.weather.tools.forecasts import exchange
from retable.tasks.weather.w4c.frames import Frames
from retable.tasks.weather.w4c.prepare import describe
from retable.tasks.weather.w4c.preprocess import MASKED, RAIN, classify

REGION, SHARD, RAINY = "roxi_0004", "test/2019/roxi_0004", (0.1, 0.25)
FOLDER = code_root() / "tasks" / "weather" / "zoo"
EXAMPLE = FOLDER / "example" / "generated-36.npz"
LEADS = {"all": slice(None), "15 minutes": slice(1), "4 hours": slice(15, 16)}


LICENCE = "Apache-2.0, as this repository; trained on rain and images that the task generates (see LICENSES.md)"


def main(storage: Storage, run: str) -> None:
    """Write both files; print the forecaster's IoU on the example, and that of rain everywhere."""
    scored = exchange.opened(run, str(storage), "test", 0, 0.5)
    value = exchange.score(scored)["iou"]
    score = {"metric": "IoU at 0.5", "value": value, "on": "the test split of generated-36, 96 sequences"}
    exported = write_export(scored.run, licence=LICENCE, score=score)
    (FOLDER / "context-generated-36.safetensors").write_bytes(exported)
    config = override(find("weather").config(), {"data": "generated-36", "regions": (REGION,), "years": (2019,)})
    source = Source.of(storage, "weather/generated-36")
    frames = Frames(source.folder, source.info)
    windows = data.sequences(source, config, SHARD)
    starts = [window.rain + config.inputs for window in windows]
    truths = [classify(frames.rate(window.series, start, start + config.forecast), 0.2)
              for window, start in zip(windows, starts, strict=True)]  # fmt: skip
    number = next(n for n, truth in enumerate(truths) if RAINY[0] <= (truth == RAIN).mean() <= RAINY[1])
    window, truth = windows[number], truths[number]
    images = frames.satellite(window.series, window.satellite, window.satellite + config.inputs)
    about = f"{describe(source.info)}: {SHARD}, sequence {number + 1} of {len(windows)}"
    np.savez_compressed(EXAMPLE, images=images, truth=truth, region=REGION, about=about)
    print(EXAMPLE, about)
    rain = read_export(exported, run).steps(images[None], REGION)[0] >= 100  # steps of 1/200
    for name, leads in LEADS.items():
        fell, measured = truth[leads] == RAIN, truth[leads] != MASKED
        iou = (rain[leads] & fell).sum() / ((rain[leads] | fell) & measured).sum()
        print(f"{name}: IoU {iou:.3f}; rain everywhere {fell.sum() / measured.sum():.3f}")


if __name__ == "__main__":
    main(Storage.open(sys.argv[1]), sys.argv[2])
