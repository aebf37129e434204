"""Random streams: each use has its own, named after it, and no two give related numbers."""

import itertools
import re
from pathlib import Path

import numpy as np
import torch

from retable.platform.train import seeds
from retable.tasks import rl
from retable.tasks.rl import data, losses, model
from retable.tasks.rl.model import generator
from retable.tasks.rl.play import acting
from retable.tasks.rl.predict import COMPARING
from retable.tasks.rl.prune import prune

STREAMS = [
    *model.INITIAL.values(),
    *prune.MASKS.values(),
    data.BATCHES,
    data.PRUNING,
    losses.TRAINING_NOISE,
    losses.PRUNING_NOISE,
    acting.NOISE,
    COMPARING,
]


def test_every_stream_is_named_here_and_is_its_own():
    """A stream that is added to the task and not to this list fails."""
    sources = [path for path in Path(rl.__file__).parent.rglob("*.py") if path.name not in ("record.py", "timing.py")]
    named = {word for path in sources for word in re.findall(r'"(rl\.[a-z.]+)"', path.read_text())}
    assert len(sources) > 20 and named == {word for word in STREAMS if word not in MADE}
    assert len(set(STREAMS)) == len(STREAMS) == 12
    first = {seeds.sequence(seed, stream).generate_state(4).tobytes() for stream in STREAMS for seed in range(50)}
    assert len(first) == 12 * 50


MADE = {*model.INITIAL.values(), *prune.MASKS.values()}
"""Those whose names are made of a network's."""


def test_no_generator_of_the_task_is_seeded_without_a_stream():
    sources = {path.name: path.read_text() for path in Path(rl.__file__).parent.rglob("*.py")}
    bare = {name for name, text in sources.items() if re.search(r"default_rng|manual_seed|RandomState", text)}
    assert bare == {"model.py", "record.py", "timing.py"}, "`model.generator`, recordings on disk, and a stopwatch"


def test_generators_of_pytorch_differ_by_seed_and_stream():
    draws = {
        (seed, stream): torch.rand(1000, generator=generator(seed, stream)).numpy()
        for seed, stream in itertools.product((0, 1, 2), STREAMS)
    }
    correlation = np.corrcoef(np.stack([*draws.values()]))
    assert np.abs(correlation - np.eye(len(draws))).max() < 0.16  # five standard errors
    assert (torch.rand(1000, generator=generator(1, data.BATCHES)).numpy() == draws[1, data.BATCHES]).all()
