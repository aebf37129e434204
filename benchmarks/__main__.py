"""Measure ratios against a named reference, both in this process, and keep them with machine and versions.

`python -m benchmarks [name ...]`, or `make bench` for all, prints each result and writes it to
`benchmarks/results/<name>.json`; where the environment asks for another size or device, the file's name says so. Others
have a command line of their own:

    python -m benchmarks gpu                measures what a GPU gives (`benchmarks/gpu/`)
    python -m benchmarks style_zoo          makes and judges style's zoo
    python -m benchmarks.weather_zoo        writes weather's zoo
    python -m benchmarks.rl_expert          trains the experts of rl's recordings
    python -m benchmarks.audio_lexicon      makes audio's static vectors of words
    python -m benchmarks.audio_thesaurus    makes audio's thesaurus
    python -m benchmarks.cluster_tables     fills all tables on three nodes and a bucket
    python -m benchmarks.serving_bare       serves a deployment that repeats the body
    python benchmarks/style_blind.py        makes pairs of pictures for a blind test
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from importlib import import_module
from pathlib import Path

from retable.platform.errors import nearest

BENCHMARKS = (
    "audio_index",
    "audio_search",
    "audio_step",
    "command_line",
    "faults",
    "rl_files",
    "rl_inference",
    "rl_rollout",
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
SIZES = tuple(f"RETABLE_BENCH_{what}" for what in ("DEVICE", "FILES", "NODES", "RUNS", "TRIALS", "VECTORS"))
"""Variables that some of them read for another size or device."""
OPTIONAL = ("audio_lance",)
"""Run only by name: they need a package that is in no extra."""


def main(words: list[str]) -> None:
    """Run the named benchmarks, or all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=f"{__doc__}".partition("\n")[0])
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"gpu, style_zoo, {', '.join(OPTIONAL)}, or some of {', '.join(BENCHMARKS)}; none: all",
    )
    names = parser.parse_args(words).names
    for name in names:
        if name not in (*BENCHMARKS, *OPTIONAL):
            parser.error(f"no benchmark {name!r}{nearest(name, (*BENCHMARKS, *OPTIONAL))}")
    from retable.platform.store.provenance import collect

    for name in names or BENCHMARKS:
        result = import_module(f"benchmarks.{name}").measure()
        print(f"{name}")
        for key, value in result.items():
            print(f"  {key}: {value:.4g}" if isinstance(value, float) else f"  {key}: {value}")
        where = collect()
        kept = {key: where[key] for key in ("device", "versions", "started")}
        sizes = [value for key, value in sorted(os.environ.items()) if key in SIZES]
        path = Path(__file__).parent / "results" / f"{'-'.join([name, *sizes])}.json"
        path.write_text(json.dumps({"result": result, **kept}, indent=2) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] in (["gpu"], ["style_zoo"]):
        sys.exit(import_module(f"benchmarks.{sys.argv[1]}").main(sys.argv[2:]))
    main(sys.argv[1:])
