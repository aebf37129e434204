"""Random streams: each use has its own, named after it, and no two give related numbers."""

import re
from pathlib import Path

import numpy as np
import torch

from retable.platform.train import seeds
from retable.tasks import style
from retable.tasks.style import streams
from retable.tasks.style.data import pictures_at, prepare_picture
from retable.tasks.style.files import assets
from retable.tasks.style.networks import weights

STREAMS = [
    streams.ORDER,
    streams.CROPS,
    streams.NETWORK,
    streams.BACKBONE,
    streams.STEP,
    streams.SAMPLE,
    streams.START,
]
SOURCES = {path.name: path.read_text() for path in Path(style.__file__).parent.rglob("*.py")}


def test_every_stream_is_named_here_and_is_its_own():
    named = {word for word in re.findall(r'"(style\.[a-z]+)"', SOURCES["streams.py"])}
    assert named == set(STREAMS) and len(STREAMS) == len(named) == 7
    first = {seeds.sequence(seed, stream).generate_state(4).tobytes() for stream in STREAMS for seed in range(50)}
    assert len(first) == 7 * 50


def test_no_generator_of_a_run_is_seeded_without_a_stream():
    bare = {name for name, text in SOURCES.items() if re.search(r"default_rng|manual_seed\(", text)}
    # Generated data are files with a version of their own; a small backbone is a file; a judge is the same for all.
    assert bare == {"streams.py", "learner.py", "generate.py", "distil.py", "judge.py"}
    assert re.findall(r"manual_seed\((.*)\)", SOURCES["learner.py"]) == ["torch_seed(config.seed, NETWORK)"]


def test_the_order_of_pictures_and_their_crops_share_no_numbers():
    """`default_rng([s, e])` is `default_rng([s, e, 0])`: the order of a pass was the stream of another place's crop."""
    order = pictures_at(np.arange(1000), 1000, seed=3)
    assert sorted(order) == list(range(1000))
    assert (order != np.random.default_rng([3, 1, 0]).permutation(1000)).any()
    assert (order == seeds.generator(3, streams.ORDER, 0).permutation(1000)).all()
    data = assets.photographs()["coffee"].read_bytes()
    one, other = (prepare_picture(data, 32, key, "x") for key in ((3, 0), (3, 1)))
    assert (one != other).any() and (one == prepare_picture(data, 32, (3, 0), "x")).all()


def test_untrained_backbones_follow_from_the_seed():
    one, again, other = (weights.random("alexnet", seed).tensors["features.0.weight"] for seed in (0, 0, 1))
    assert torch.equal(one, again) and not torch.equal(one, other)
