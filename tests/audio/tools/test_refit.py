"""Refit from marks: its closed forms against other ways, a world that it repairs, and one that it leaves alone."""

import json
from dataclasses import dataclass

import numpy as np
import pytest
from safetensors.numpy import save
from scipy.optimize import minimize
from scipy.stats import ortho_group

from retable.platform.errors import UserError
from retable.tasks.audio.tools.search import refit
from retable.tasks.audio.tools.search.index import set_refit, undo_refit, update
from retable.tasks.audio.tools.search.marks import mark
from retable.tasks.audio.tools.search.search import open_index, p_value, query_vector, refresh
from retable.tasks.audio.tools.search.search import search as find
from tests.audio.tools.test_index import record

SOUNDS, TAKES, WORDINGS = 6, 4, 3
RATE = 32000


def units(rows, seed, dimension=8):
    vectors = np.random.default_rng(seed).normal(size=(rows, dimension))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@dataclass
class World:
    """Hears which of some sounds a recording is by how long it is; words are its vectors, turned by a map."""

    turn: np.ndarray
    segment = 1.0
    dimension = 16
    fingerprint, source, anchors = "b" * 64, "world", None
    heard = 0

    def sounds(self, segments):
        self.heard += len(segments)
        rows = []
        for segment in segments:
            number = round(len(segment) / RATE * 50) - 10  # 0.2 s and more, a fiftieth apart
            row = units(SOUNDS, 1, 16)[number // TAKES] + 0.5 * units(SOUNDS * TAKES, 2, 16)[number]
            rows.append(row / np.linalg.norm(row))
        return np.array(rows, np.float32)

    def words(self, captions):
        rows = []
        for caption in captions:
            seed = sum(caption.encode())
            row = units(1, seed, 16)[0]
            if caption.startswith("sound ") and caption.split()[1].isdigit():
                row = self.turn @ (units(SOUNDS, 1, 16)[int(caption.split()[1])] + 0.4 * row)
            rows.append(row / np.linalg.norm(row))
        return np.array(rows, np.float32).reshape(-1, 16)


def half_turn(seed=0):
    """Return a rotation that carries vectors some way off, as a model would that hears well and reads badly."""
    turned = 0.5 * np.eye(16) + ortho_group.rvs(16, random_state=seed)
    return turned


@pytest.fixture
def archive(tmp_path):
    """Take what words are turned by, and return an index of six sounds, four recordings each."""

    def make(turn):
        for number in range(SOUNDS * TAKES):
            record(tmp_path / "in" / f"{number:02d}.wav", np.full(round((0.2 + 0.02 * number) * RATE), 0.1, np.float32))
        world = World(turn)
        update(tmp_path / "in", tmp_path / "out", world)
        return open_index(tmp_path / "out"), world

    return make


def ask(index, world, words):
    return find(index, query_vector(world, words, None, index.refit), 10)


def marks(index, world, wordings, sounds=range(SOUNDS)):
    """Mark the first ten hits of some wordings of sounds, by what they are."""
    for words in [f"sound {sound} {'x' * wording}" for sound in sounds for wording in wordings]:
        for hit in ask(index, world, words):
            mark(index, words, hit, int(hit.file[:2]) // TAKES == int(words.split()[1]))


def precision(index, world, wording):
    """Return the share of the first four hits that are the sound of the words."""
    right = [
        [int(hit.file[:2]) // TAKES == sound for hit in ask(index, world, f"sound {sound} {'x' * wording}")[:TAKES]]
        for sound in range(SOUNDS)
    ]
    return np.mean(right)


def test_the_map_is_the_least_of_what_the_page_says():
    """The same found by a general minimiser of the penalised squares over all entries of W."""
    queries, targets, ridge = units(5, 0, 4), units(5, 1, 4), 0.3

    def loss(flat):
        turn = flat.reshape(4, 4)
        return np.square(queries @ turn.T - targets).sum() + ridge * np.square(turn - np.eye(4)).sum()

    best = minimize(loss, np.eye(4).reshape(-1), tol=1e-12).x.reshape(4, 4)
    change = np.linalg.solve(queries @ queries.T + ridge * np.eye(5), targets - queries)
    made = refit.Refit(queries, change, {}).apply(units(3, 2, 4).astype(np.float32))
    wanted = units(3, 2, 4) @ best.T
    assert np.allclose(made, wanted / np.linalg.norm(wanted, axis=1, keepdims=True), atol=1e-5)


@pytest.mark.parametrize("ridge", refit.RIDGES)
def test_the_error_without_each_is_that_of_fits_without_it(ridge):
    queries, targets = units(7, 0), units(7, 1)
    errors = []
    for number in range(7):
        rest = np.arange(7) != number
        gram = queries[rest] @ queries[rest].T + ridge * np.eye(6)
        moved = queries[number] + queries[number] @ queries[rest].T @ np.linalg.solve(gram, (targets - queries)[rest])
        errors.append(np.square(moved - targets[number]).sum())
    assert refit.press(queries, targets, ridge) == pytest.approx(sum(errors), rel=1e-9)


def test_the_ridge_that_is_taken_has_the_least_error_without_each():
    queries, targets = units(9, 3), units(9, 4)
    errors = [refit.press(queries, targets, ridge) for ridge in refit.RIDGES]
    ridge = refit.RIDGES[int(np.argmin(errors))]
    change = np.linalg.solve(queries @ queries.T + ridge * np.eye(9), targets - queries)
    assert np.allclose(refit.fit(queries, targets).change, change, atol=1e-5)


def test_signs_are_counted():
    assert refit.chance(np.array([0.1, 0.2, 0.3, 0.1, 0.5])) == pytest.approx(1 / 32)
    assert refit.chance(np.zeros(6)) == 1
    assert refit.chance(np.array([0.1, -0.1] * 4)) > 0.5


def test_words_that_are_turned_are_turned_back(archive):
    index, world = archive(half_turn())
    before = precision(index, world, 3)
    marks(index, world, (0, 1, 2))
    made, judged = refit.learn(index, world)
    assert judged.queries >= 12 and judged.after > judged.before + 0.1 and judged.p < 0.01 and judged.helps
    was = query_vector(world, "sound 1", None)
    world.heard = 0
    set_refit(index, world, made)
    again = refresh(index)
    assert world.heard == 0 and again.refit.said == json.loads(json.dumps(made.said))
    assert precision(again, world, 3) > before + 0.15  # a wording that nobody marked
    update(again.folder, again.out, world)
    assert open_index(again.out).refit is not None
    undo_refit(again.out, world)
    plain = refresh(again)
    assert plain.refit is None and not list(plain.out.glob("refit-*"))
    assert np.array_equal(query_vector(world, "sound 1", None, plain.refit), was)
    assert np.array_equal(plain.null.scores, index.null.scores)  # the null is as it was


def test_what_may_be_good_is_not_held_against_it(archive):
    """Before by hand: left out are recordings without a mark, and those good for words that share a good hit."""
    index, world = archive(half_turn())
    wordings = [f"sound {sound} {'x' * wording}" for sound in range(3) for wording in range(4)]
    vectors = np.concatenate(list(index.vectors))
    names = [index.paths[content][0] for table in index.tables for content in table["content"].to_pylist()]
    good, bad = {words: set() for words in wordings}, {words: set() for words in wordings}
    for words in wordings:
        for hit in ask(index, world, words)[:4]:
            right = int(hit.file[:2]) // TAKES == int(words.split()[1])
            mark(index, words, hit, right)
            (good if right else bad)[words].add(hit.file)
    marked = set.union(*good.values(), *bad.values())
    expected, left_out = [], 0
    for words in filter(good.get, wordings):
        alike = set.union(*(theirs for theirs in good.values() if theirs & good[words]))
        ranked = marked - (alike - good[words] - bad[words])
        left_out += len(marked - ranked)
        order = sorted(ranked, key=lambda file: -vectors[names.index(file)] @ world.words([words])[0])
        places = [place for place, file in enumerate(order, 1) if file in good[words]]
        expected.append(np.mean([count / place for count, place in enumerate(places, 1)]))
    assert len(marked) < len(names) and left_out
    _, judged = refit.learn(index, world)
    assert judged.before == pytest.approx(np.mean(expected), rel=1e-6)


def test_a_model_that_reads_well_is_left_alone(archive):
    """Marks by a coin: what they teach of some queries says nothing of others."""
    index, world = archive(np.eye(16))
    rng = np.random.default_rng(0)
    for words in [f"sound {sound} {'x' * wording}" for sound in range(SOUNDS) for wording in range(WORDINGS)]:
        for hit in ask(index, world, words):
            mark(index, words, hit, bool(rng.integers(2)))
    _, judged = refit.learn(index, world)
    assert not judged.helps and judged.p > 0.05


def test_the_null_goes_through_the_same_map(archive):
    """Words at random stay words at random: what is dismissed with the refit is what is dismissed without."""
    index, world = archive(half_turn())
    marks(index, world, (0, 1))
    set_refit(index, world, refit.learn(index, world)[0])
    again = refresh(index)
    captions = [f"nothing {number}" for number in range(200)]
    queries = [query_vector(world, words, None, again.refit) for words in captions]
    p = np.array([p_value(again, find(again, query, 1), world) for query in queries])
    assert 0.005 <= (p <= 0.05).mean() <= 0.12  # 0.05, give or take 0.015 twice, and the null's own error
    mapped = again.refit.apply(world.words(captions[:1]))
    assert np.array_equal(query_vector(world, captions[0], None, again.refit), mapped[0] / np.linalg.norm(mapped[0]))


def test_a_recording_as_query_stays_as_it_is(archive):
    index, world = archive(half_turn())
    marks(index, world, (0, 1))
    made = refit.learn(index, world)[0]
    like = index.folder / "03.wav"
    assert np.array_equal(query_vector(world, "", like, made), query_vector(world, "", like))
    assert not np.allclose(query_vector(world, "sound 1", None, made), query_vector(world, "sound 1", None), atol=1e-2)


def test_too_few_marks_are_refused(archive):
    index, world = archive(half_turn())
    with pytest.raises(UserError, match=r"good hits are marked for 0 queries; a refit takes 5 \("):
        refit.learn(index, world)
    marks(index, world, (0,), range(2))
    with pytest.raises(UserError, match=r"marked for [12] queries"):
        refit.learn(index, world)
    assert index.refit is None and "refit" not in json.loads((index.out / "index.json").read_text())


@pytest.mark.parametrize("damage", ["gone", "cut", "other", "deep"])
def test_a_damaged_file_is_named_and_can_be_undone(archive, damage):
    index, world = archive(half_turn())
    marks(index, world, (0, 1))
    made = refit.learn(index, world)[0]
    if damage == "other":
        made = refit.Refit(made.queries[:, :4], made.change[:, :4], {})
    set_refit(index, world, made) if damage != "other" else None
    if damage == "other":
        (index.out / "refit-000000.safetensors").write_bytes(made.data())
        info = json.loads((index.out / "index.json").read_text())
        (index.out / "index.json").write_text(json.dumps({**info, "refit": "refit-000000.safetensors"}))
    path = next(index.out.glob("refit-*"))
    if damage == "gone":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-4])
    elif damage == "deep":
        path.write_bytes(save({"queries": made.queries, "change": made.change}, {"said": "[" * 100_000}))
    with pytest.raises(UserError, match=r"refit-000000.safetensors: .*run `retable audio refit .* --undo`$"):
        open_index(index.out)
    undo_refit(index.out, world)
    assert open_index(index.out).refit is None
