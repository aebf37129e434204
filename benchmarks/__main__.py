"""What `make bench` runs: ratios against a named reference, both in this process, with machine and versions.

`python -m benchmarks [name ...]` prints each result and writes it to `benchmarks/results/<name>.json`. `python -m
benchmarks gpu` is one by itself (`benchmarks/gpu/`): what a GPU gives.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path

BENCHMARKS = (
    "audio_search",
    "audio_step",
    "command_line",
    "faults",
    "rl_files",
    "rl_inference",
    "rl_sparse",
    "rl_stack",
    "rl_update",
    "run_overhead",
    "scaling",
    "serve_chaos",
    "serve_crowd",
    "serve_faults",
    "serve_fuzz",
    "serve_growth",
    "serve_load",
    "storage_index",
    "style_image",
    "style_network",
    "style_video",
    "weather_loader",
    "weather_step",
    "weather_world",
)
"""Modules of this package, each imported when its turn comes: they need packages that not every machine has."""


def main(names: list[str]) -> None:
    """Run the named benchmarks, or all."""
    from retable.platform.store.provenance import collect

    for name in names or BENCHMARKS:
        result = import_module(f"benchmarks.{name}").measure()
        print(f"{name}")
        for key, value in result.items():
            print(f"  {key}: {value:.4g}" if isinstance(value, float) else f"  {key}: {value}")
        where = collect()
        kept = {key: where[key] for key in ("device", "versions", "started")}
        path = Path(__file__).parent / "results" / f"{name}.json"
        path.write_text(json.dumps({"result": result, **kept}, indent=2) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["gpu"]:
        sys.exit(import_module("benchmarks.gpu").main(sys.argv[2:]))
    main(sys.argv[1:])
