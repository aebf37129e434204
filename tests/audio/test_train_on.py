"""Training on the validation and test set, too: what is trained on then, and that nothing is scored on it."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
from typer.testing import CliRunner

import retable
from retable.platform.config import Parent, fingerprint, flatten, override
from retable.platform.errors import UserError
from retable.platform.execute.session import ray_cluster
from retable.platform.models.select import eligible_runs
from retable.platform.plan.plan import compile_configs
from retable.platform.spec.task import Source, find
from retable.platform.store.run import RunFolder
from retable.platform.store.storage import Storage
from retable.tasks.audio import TASK
from retable.tasks.audio.best import best
from retable.tasks.audio.cli import app
from retable.tasks.audio.collect.leaks import LEAKS
from retable.tasks.audio.collect.recordings import Recording, read_recordings, write_dataset
from retable.tasks.audio.config import Config, View, trained_on
from retable.tasks.audio.data import Recordings
from retable.tasks.audio.learner import cost
from retable.tasks.audio.tables import BEST, NOT_FINE_TUNED
from retable.tasks.audio.tools.search import classes, finetune
from tests import tiny
from tests.audio.tools.test_submission import read

WIDTHS = ("training", "training_validation", "all")
SPLIT = ["training"] * 6 + ["validation"] * 3 + ["test"] * 3
SOURCES = ["a", "b", "c", "d", "e", "v", "f", "v", "t@5", "g", "h", "t@9"]
"""The last training recording is the second validation one, the last validation one is of the last test one's video."""
LEAKS_OF = (4, 5)
"""What is marked: number 4 by a list, number 5 by its source."""


def items():
    """Twelve tones with two captions each."""
    for number, (split, source) in enumerate(zip(SPLIT, SOURCES, strict=True)):
        length = 9_000 + 1_100 * number
        said = (f"tone {number} is heard", f"a sound of {number} waves")
        marked = number in LEAKS_OF
        about = Recording(number, f"{number}.wav", "clotho", split, source, length / 32_000, said, "", marked, ((), ()))
        wave = 0.1 * np.sin(np.arange(length) / 32_000 * 2 * np.pi * 200 * 1.3**number).astype(np.float32)
        yield about, lambda wave=wave: wave


@pytest.fixture
def source(storage):
    folder = storage / "data/audio/tiny"
    info = write_dataset(folder, "tiny", "own", "waveform", items())
    signs = {4: ["list", "title"], 5: ["source"]}
    folder.write_json(LEAKS, [{"recording": n, "file": f"{n}.wav", "signs": s, "of": []} for n, s in signs.items()])
    return Source(folder, info)


def config(**changes):
    return tiny.tiny("audio", changes)


def child(**changes):
    """A run that goes on from one that was trained on training and validation set."""
    before = flatten(config(train_on="training_validation"))
    return config(init="parent", **{"init.overrides": tuple(before.items())}, **changes)


@pytest.mark.parametrize(
    ("train_on", "leaks", "numbers"),
    [
        ("training", "exclude", [0, 1, 2, 3]),
        ("training", "include", [0, 1, 2, 3, 4, 5]),
        ("training_validation", "exclude", [0, 1, 2, 3, 6, 7]),
        ("training_validation", "include", range(9)),
        ("all", "exclude", [0, 1, 2, 3, *range(5, 12)]),
        ("all", "include", range(12)),
    ],
)
def test_each_caption_of_what_is_trained_on_is_an_item(source, train_on, leaks, numbers):
    wanted = [text for n in numbers for text in (f"tone {n} is heard", f"a sound of {n} waves")]
    found = Recordings(None, source, [config(train_on=train_on, leaks=leaks, batch=len(wanted))])
    assert found.captions() == wanted
    (batch,) = found.batches(0, 0, 0, 1)
    assert sorted(batch.captions) == sorted(wanted) and set(batch.recording.tolist()) == set(numbers)


def test_sound_that_is_not_held_in_memory_is_read(source):
    """What the platform holds of a data set lacks the test recordings."""
    held = {"recording": np.arange(9), "ends": np.arange(1, 10), "audio": np.zeros(9, np.int16)}
    wide = config(train_on="all", leaks="include", batch=24)
    one, other = (next(Recordings(of, source, [wide]).batches(0, 0, 0, 1)) for of in (held, None))
    assert one.recording.max() == 11 and bool((one.audio == other.audio).all()) and float(one.audio.abs().max()) > 0.09
    narrow = next(Recordings(held, source, [config()]).batches(0, 0, 0, 1))
    assert not narrow.audio.any()


def test_what_was_trained_on_has_no_queries_and_no_scores(source):
    left = {"training": {"validation", "test"}, "training_validation": {"test"}, "all": set()}
    for train_on in WIDTHS:
        run = config(train_on=train_on)
        found = Recordings(None, source, [run])
        assert {split for split in ("validation", "test") if found.queries(split)} == left[train_on]
        for split in ("validation", "test"):
            view = View(split=split, epoch=2)
            if split in left[train_on]:
                assert TASK.shards(run, view, source) == [f"{split}/00000"]
                continue
            for refuse in (TASK.shards, lambda run, view, source: TASK.check(run, view)):
                with pytest.raises(UserError, match=rf"^split {split}: its recordings were trained on .*={train_on}\)"):
                    refuse(run, view, source)


def test_a_plan_refuses_such_a_score_before_anything_is_trained(source):
    wide = config(train_on="training_validation")
    assert compile_configs(TASK, [wide], source.storage, [View(epoch=2)]).missing
    with pytest.raises(UserError, match=r"split validation: its recordings were trained on .*; score split=test$"):
        compile_configs(TASK, [wide], source.storage, [View(epoch=2, split="validation")])
    with pytest.raises(UserError, match=r"split test: its recordings .*=all.*; nothing is left to score it on$"):
        compile_configs(TASK, [config(train_on="all")], source.storage, [View(epoch=2)])


def test_patience_needs_validation_recordings_that_are_not_trained_on():
    line = r"patience 2 waits for validation scores, .*\(train_on=training_validation\); set patience=0"
    with pytest.raises(UserError, match=line):
        config(train_on="training_validation", patience=2)
    with pytest.raises(UserError, match=line):
        child(patience=2)
    assert child(patience=2, data="other").patience == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"final_learning_rate": -1.0},
        {"seed": -1},
        {"audio": "mean_mel", "segment": 0.001},
        {"clip_seconds": 0.05},
        {"text.dropout": 2.0},
        {"text": "untrained", "text.dropout": -0.1},
    ],
)
def test_numbers_that_no_training_can_use_are_refused(changes):
    name = list(changes)[-1].removeprefix("text.")
    with pytest.raises(UserError, match=f"{name} "):
        override(Config(), changes)


def test_what_a_parent_was_trained_on_counts(source):
    assert trained_on(child()) == "training_validation" and trained_on(child(train_on="all")) == "all"
    assert trained_on(child(data="other")) == "training"
    between = replace(config(), data="other", init=Parent(overrides=tuple(flatten(config(train_on="all")).items())))
    assert trained_on(config(init="parent", **{"init.overrides": tuple(flatten(between).items())})) == "all"
    assert Recordings(None, source, [child()]).queries("validation") == []


def test_runs_from_before_keep_their_names():
    """Digests of version 3; a field that is `added` leaves them as they are."""
    before = [Config(), *(override(Config(), row.overrides) for row in (BEST, NOT_FINE_TUNED))]
    prints = [fingerprint("audio", 3, each) for each in before]
    assert prints == ["5806ac5ce90bebeb", "2d7e072afd4c37fd", "8670495196a1e5a7"]
    assert len({fingerprint("audio", 3, Config(train_on=train_on)) for train_on in WIDTHS}) == 3


def test_more_captions_cost_more():
    small = {train_on: cost(replace(Config(data="generated-small"), train_on=train_on)) - 10 for train_on in WIDTHS}
    assert small["training_validation"] / small["training"] == pytest.approx((18_000 + 1_500) / 18_000)
    assert small["all"] / small["training"] == pytest.approx((18_000 + 1_500 + 2_500) / 18_000)


INFO = {"name": "mine", "captions": {"training": 40, "validation": 5, "test": 5}, "rewrites": ""}


def test_fine_tuning_waits_for_no_score_of_what_it_trains_on(source, storage):
    settings = finetune.settings("none", INFO, storage, {"train_on": "all"})
    assert (settings.train_on, settings.patience) == ("all", 0)
    with pytest.raises(UserError, match="patience 3 waits for validation scores"):
        finetune.settings("none", INFO, storage, {"train_on": "all", "patience": 3})
    run = trained(source.storage, config(train_on="all", batch=4)).fingerprint
    again = finetune.settings(run, {**INFO, "name": "tiny"}, source.storage, {})
    assert (again.train_on, again.patience) == ("all", 0)
    for narrower in ("training", "training_validation"):
        line = rf"^--set train_on={narrower}: the weights of {run} were trained on more of tiny \(train_on=all\); leave"
        with pytest.raises(UserError, match=line):
            finetune.settings(run, {**INFO, "name": "tiny"}, source.storage, {"train_on": narrower})
    other = finetune.settings(run, INFO, source.storage, {})
    assert (other.train_on, other.patience) == ("training", 5)


def trained(storage, run):
    """Train by the loop itself, without Ray."""
    folder = RunFolder.of(storage, TASK, run)
    folder.begin(run, TASK.version, {"data": {"kind": "own"}})
    return tiny.trained("audio", run, storage, storage)


def test_a_run_on_everything_logs_no_score_and_submits(source, tmp_path):
    storage = source.storage
    folder = trained(storage, config(train_on="all"))
    rows = folder.history()
    assert len(rows) == 2 and all("loss" in row and not any("validation" in name for name in row) for row in rows)
    assert {"validation_loss", "validation_map10"} <= trained(storage, config()).history()[0].keys()
    submitted(storage, folder.fingerprint, tmp_path)


def submitted(storage, run, folder):
    """Rank eleven sounds by two captions, as the command line does; the sounds are no part of the data set."""
    (folder / "heard").mkdir()
    for n in range(11):
        wave = 0.1 * np.sin(np.arange(20_000) / 32_000 * 2 * np.pi * 180 * 1.2**n)
        soundfile.write(folder / f"heard/{n:02d}.wav", wave, 32_000)
    (folder / "asked.csv").write_text("caption\ntone 3 is heard\na low hum\n")
    words = ["submit", run, "--captions", f"{folder}/asked.csv", "--audio", f"{folder}/heard"]
    done = CliRunner().invoke(app, [*words, "-o", f"{folder}/out.csv", "--storage", storage.root])
    assert done.exit_code == 0, done.output
    ranked = read(folder / "out.csv")
    assert [caption for caption, _ in ranked] == ["tone 3 is heard", "a low hum"]
    assert all(len(set(names)) == 10 for _, names in ranked)


def test_what_is_served_was_scored(source):
    storage = source.storage
    wide = trained(storage, config(train_on="training_validation"))
    with pytest.raises(UserError, match="no run for audio: all 1 were trained on the validation set; name one of them"):
        best(eligible_runs("audio", storage))
    narrow = trained(storage, config())
    found = best(eligible_runs("audio", storage))["audio"]
    assert found.run.fingerprint == narrow.fingerprint != wide.fingerprint


def test_no_classes_are_judged_of_a_model_that_may_know_them(tmp_path):
    embedder = SimpleNamespace(source="one")
    with pytest.raises(UserError, match=r"^one: trained on its test set too \(train_on=all\)"):
        classes.judge(embedder, tmp_path, config=config(train_on="all"))
    with pytest.raises(UserError, match=r"^(?!one: trained)"):
        classes.judge(embedder, tmp_path, config=config(train_on="training_validation"))


@pytest.mark.slow
def test_the_whole_way_by_the_api(tmp_path):
    """The smoke scale's training, from memory under Ray, on a generated set; then a submission."""
    with ray_cluster(nested=True):
        run = retable.train("audio", set={"train_on": "all"}, scale="smoke", storage=str(tmp_path / "s"))
    assert not any("validation" in name for name in run.metrics)
    recordings = read_recordings(run.source.folder)
    captions = sum(len(each.captions) for each in recordings)
    assert captions == 240 + 32 + 64 + 2 * 120 and find("audio") is TASK
    with pytest.raises(UserError, match="split test: its recordings were trained on"):
        run.score()
    submitted(Storage.open(tmp_path / "s"), run.fingerprint, Path(tmp_path))
