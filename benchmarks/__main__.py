"""What `make bench` runs: ratios against a named reference, both in this process, with machine and versions.

`python -m benchmarks [name ...]` prints each result and writes it to `benchmarks/results/<name>.json`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import (
    audio_search,
    audio_step,
    rl_files,
    rl_inference,
    rl_stack,
    rl_update,
    run_overhead,
    style_image,
    style_network,
    style_video,
    weather_loader,
    weather_step,
)
from retable.platform.provenance import collect

BENCHMARKS: dict[str, Callable[[], dict[str, Any]]] = {
    "audio_search": audio_search.measure,
    "audio_step": audio_step.measure,
    "rl_files": rl_files.measure,
    "rl_inference": rl_inference.measure,
    "rl_stack": rl_stack.measure,
    "rl_update": rl_update.measure,
    "run_overhead": run_overhead.measure,
    "style_image": style_image.measure,
    "style_network": style_network.measure,
    "style_video": style_video.measure,
    "weather_loader": weather_loader.measure,
    "weather_step": weather_step.measure,
}


def main(names: list[str]) -> None:
    """Run the named benchmarks, or all."""
    for name in names or BENCHMARKS:
        result = BENCHMARKS[name]()
        print(f"{name}")
        for key, value in result.items():
            print(f"  {key}: {value:.4g}" if isinstance(value, float) else f"  {key}: {value}")
        where = collect()
        kept = {key: where[key] for key in ("device", "versions", "started")}
        path = Path(__file__).parent / "results" / f"{name}.json"
        path.write_text(json.dumps({"result": result, **kept}, indent=2) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
