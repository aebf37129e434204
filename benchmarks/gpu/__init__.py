"""Checks and rates on a GPU: `python -m benchmarks gpu [--part rl weather style audio] [--minutes 8] [--tiny]`.

Needs a recent PyTorch and the usual scientific packages, and no Ray, simulator, FAISS or network: learners, losses,
stacks and the training loop run on data that are made in memory. Each part first checks that the GPU computes the right
thing, then measures how fast. `--tiny` runs every line of it on a CPU, at sizes that say nothing of speed.
"""

from __future__ import annotations

import argparse
import importlib
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu.frame import Report, Where, run_part

PARTS = ("rl", "weather", "style", "audio")
"""Modules of this package; each has `steps(where)` and is imported when its turn comes."""
RESULTS = Path(__file__).parents[1] / "results"
SECONDS = 2.0
"""How long one timing takes."""


def main(arguments: Sequence[str]) -> int:
    """Run the parts one after another; return 0 if every step ran that was reached and every check passed, else 1."""
    import torch

    options = _parser().parse_args(arguments)
    device = options.device or ("cpu" if options.tiny else "cuda")
    if device.startswith("cuda") and not torch.cuda.is_available():
        print("benchmarks gpu: PyTorch sees no CUDA device here; --tiny runs every line of it on the CPU")
        return 2
    if options.tiny and device == "cpu":
        torch.set_num_threads(1)  # sizes so small that threads wait for one another most of the time
    where = Where(device, options.tiny, 0.0 if options.tiny else SECONDS)
    report = Report(options.out or (Path("build", "gpu") if options.tiny else RESULTS), where)
    end = time.monotonic() + 60 * options.minutes
    for number, name in enumerate(options.part):
        share = (end - time.monotonic()) / (len(options.part) - number)  # what earlier parts left over is shared too
        run_part(name, lambda name=name: importlib.import_module(f"benchmarks.gpu.{name}"), where, report, share)
    print(f"written: {report.folder / 'gpu.json'}, {report.folder / 'gpu.md'}")
    return 0 if report.sound else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks gpu", description="What a GPU gives, checked first.")
    parser.add_argument("--part", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--minutes", type=float, default=8.0, help="for all parts together (8)")
    parser.add_argument("--tiny", action="store_true", help="small sizes, on the CPU unless --device says otherwise")
    parser.add_argument("--out", type=Path, help="folder for gpu.json and gpu.md (benchmarks/results; tiny: build/gpu)")
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), help="cuda is the first one that CUDA_VISIBLE_DEVICES names"
    )
    return parser
