"""Whether a query's best hit is told from what captions without a meaning find."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from retable.platform.store.storage import Storage
from retable.tasks.audio.tools.search import nearest, null
from retable.tasks.audio.tools.search.hits import told
from retable.tasks.audio.tools.search.index import update
from retable.tasks.audio.tools.search.opening import open_embedder
from retable.tasks.audio.tools.search.search import open_index, p_value, query_vector
from retable.tasks.audio.tools.search.search import search as find
from tests.audio.tools.test_index import Toy, record, tone

RECORDINGS = Path(null.__file__).parents[2] / "zoo" / "recordings"


def units(rows, seed, dimension=16, towards=0.5):
    """Return vectors that lie on one side, as embeddings do."""
    vectors = np.random.default_rng(seed).normal(size=(rows, dimension)).astype(np.float32)
    vectors[:, 0] += towards * dimension**0.5
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.mark.parametrize(
    ("rows", "kind"),
    [
        *((1, "flat"), (5, "flat"), (200, "flat"), (3000, "ivf"), (20_000, "flat")),
        pytest.param(100_000, "flat", marks=pytest.mark.slow),
    ],
)
def test_the_null_itself_is_found_in_five_of_a_hundred_cases(rows, kind):
    vectors = [units(rows, 1)]
    search = partial(nearest.nearest, nearest.build(kind, vectors, 16), vectors, effort=8)
    shares = []
    for seed in range(4):
        salads = units(null.SALADS + 250, 10 + seed)
        measured = null.measure(salads[: null.SALADS], search)
        assert (measured.scores == search(salads[: null.SALADS], 1)[0][:, 0]).all()
        own = [measured.p_value(float(score)) for score in search(salads[null.SALADS :], 1)[0][:, 0]]
        shares.append((np.array(own) <= 0.05).mean())
    assert 0.02 <= np.mean(shares) <= 0.08  # 1,000 queries against four nulls: 0.05, give or take 0.015 twice


@pytest.mark.parametrize("rows", [5, 1000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_what_is_there_is_found(rows):
    vectors = units(rows, 1, 64)
    search = partial(nearest.nearest, nearest.build("flat", [vectors], 64), [vectors], effort=0)
    measured = null.measure(units(null.SALADS, 3, 64), search)
    meant = (vectors[3] + 0.2 * units(1, 4, 64)[0]).astype(np.float32)
    assert measured.p_value(float((vectors @ (meant / np.linalg.norm(meant))).max())) <= 0.01


def test_salads_are_the_same_every_time():
    made = null.salads(50)
    assert made == null.salads(50) and len(set(made)) == 50
    assert {len(caption.split()) for caption in made} <= set(range(null.SHORTEST, null.LONGEST + 1))


def test_an_index_of_before_answers_says_so_and_is_brought_up_to_date(tmp_path):
    record(tmp_path / "in" / "low.wav", tone("low"))
    update(tmp_path / "in", tmp_path / "out", Toy())
    path = tmp_path / "out" / "index.json"
    info = json.loads(path.read_text())
    path.write_text(json.dumps({**info, "null": {"name": "null-000000.arrow", "scores": [0.5]}}))
    opened = open_index(tmp_path / "out")
    query = query_vector(Toy(), "low", None)
    hits = find(opened, query, 3)
    assert len(hits) == 1 and p_value(opened, hits, Toy()) is None
    assert "retable audio index" in told(opened, hits, None)
    heard = Toy()
    update(tmp_path / "in", tmp_path / "out", heard)
    again = open_index(tmp_path / "out")
    assert heard.heard == 0 and p_value(again, hits, Toy()) <= 0.05
    assert told(again, hits, 0.01) == "" == told(again, hits, None, words=False)
    assert told(again, hits, 0.6) == "perhaps not here: words at random find as much in 60% of cases"
    assert told(again, hits, 0.2) == "perhaps not here: words at random find as much in 20% of cases"


def test_the_zoo_tells_a_dog_from_a_violin_and_a_train(tmp_path):
    embedder = open_embedder("passt-scenes", Storage.open(tmp_path))
    update(RECORDINGS, tmp_path / "out", embedder)
    opened = open_index(tmp_path / "out")
    p = {
        words: p_value(opened, find(opened, query_vector(embedder, words, None), 1), embedder)
        for words in ("a dog barks", "a train passes", "a violin plays a concerto")
    }
    print(p)
    assert p["a dog barks"] < min(p["a train passes"], p["a violin plays a concerto"])
    assert null.verdict(p["a violin plays a concerto"]) == "doubtful"
