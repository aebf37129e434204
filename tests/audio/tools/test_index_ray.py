import json
from functools import partial

import numpy as np
import pytest
import soundfile
import torch
from safetensors.torch import save_file

from retable.platform.config import override
from retable.platform.store.run import contiguous
from retable.tasks.audio.config import SAMPLE_RATE, Config
from retable.tasks.audio.export import FORMAT
from retable.tasks.audio.model import build
from retable.tasks.audio.tools.search import index as indexing
from retable.tasks.audio.tools.search.index import File, Worker, over_ray, update
from retable.tasks.audio.tools.search.opening import open_embedder
from retable.tasks.audio.tools.search.places import identify, scan
from retable.tasks.audio.tools.search.search import open_index


@pytest.fixture
def model(tmp_path):
    """A file of a small model with random weights."""
    changes = {"audio": "mean_mel", "text": "untrained", "segment": 0.5, "projection": 8}
    config = override(Config(), changes)
    torch.manual_seed(0)
    weights = contiguous(build(config, ["rain falls"], None).state_dict())
    save_file(weights, tmp_path / "model.safetensors", {"format": FORMAT, "config": json.dumps(changes)})
    return str(tmp_path / "model.safetensors")


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "in"
    place.mkdir()
    for number in range(5):
        noise = np.random.default_rng(number).normal(0, 0.1, SAMPLE_RATE)
        soundfile.write(place / f"{number}.wav", noise, SAMPLE_RATE)
    (place / "broken.wav").write_text("no sound")
    return place


def test_a_worker_does_what_a_process_does(model, folder, storage):
    import pyarrow as pa

    files, _ = identify(folder, scan(folder)[0], [])
    embedder = open_embedder(model, storage, "cpu")
    here = indexing.embed_files(embedder, folder, files)
    block = pa.Table.from_pylist([vars(file) for file in files])
    row = Worker(model, str(storage), "cpu", str(folder), embedder.segment)(block).to_pylist()[0]
    assert (row["shard"], *json.loads(row["said"])) == here and len(here[1]) == 1
    assert File(**block.to_pylist()[0]) == files[0]


@pytest.mark.slow
def test_over_ray(model, folder, storage, tmp_path, monkeypatch):
    monkeypatch.setattr(indexing, "SHARE", 2)
    embedder = open_embedder(model, storage, "cpu")
    alone = update(folder, tmp_path / "alone", embedder)
    remote = partial(over_ray, source=embedder.source, storage=storage, device="cpu", folder=folder)
    shared = update(folder, tmp_path / "shared", embedder, remote=remote)
    assert (shared.added, len(shared.failures)) == (alone.added, len(alone.failures)) == (5, 1)
    assert shared.info["corpus"] == alone.info["corpus"]
    one, other = (open_index(tmp_path / name) for name in ("alone", "shared"))
    assert rows(one).keys() == rows(other).keys() and len(rows(one)) == 10
    for key, vector in rows(one).items():
        np.testing.assert_allclose(rows(other)[key], vector, atol=1e-5)


def rows(index):
    """Vectors by content and offset: shares come in any order."""
    found = {}
    for table, vectors in zip(index.tables, index.vectors, strict=True):
        found |= dict(
            zip(zip(table["content"].to_pylist(), table["offset"].to_pylist(), strict=True), vectors, strict=True)
        )
    return found
