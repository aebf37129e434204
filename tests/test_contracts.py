"""What every task promises, checked alike for all of them."""

import dataclasses
import importlib
import typing
import warnings

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from retable.platform import api
from retable.platform.config import choice_name, field_types, fingerprint, flatten, override
from retable.platform.errors import UserError
from retable.platform.execute.trials import Job, Launch, Members, train_group
from retable.platform.spec.resources import Requirements, Resources
from retable.platform.spec.task import Startable, find
from retable.platform.store.run import RunFolder
from retable.platform.store.storage import Storage
from retable.platform.train.worker import Worker
from tests.tiny import COVERED, DATA, STEADY, VARIANTS, WAIT, Stopped, opened, timeless, tiny, trained, work

TASKS = tuple(DATA)
RUNS = [(name, changes) for name, variants in VARIANTS.items() for changes in variants]
STATES = [pytest.param(*run, marks=[pytest.mark.slow] * (run in COVERED)) for run in RUNS]


def startable(name, changes):
    """Say whether a config can start from another run: one of style's images and what has no weights cannot."""
    return hasattr(tiny(name, changes), "init") and changes.get("method") is None and changes.get("model") != "all_dry"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Write each task's tiny data set once; the storage that holds those asked for so far."""
    storage, done = Storage.open(tmp_path_factory.mktemp("tiny")), set()

    def make(name):
        if name not in done:
            DATA[name](storage)
            done.add(name)
        return storage

    return make


def same(one, other):
    """Compare nested states bit for bit."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@pytest.mark.parametrize(("name", "changes"), STATES, ids=str)
def test_interrupted_equals_uninterrupted_bit_for_bit(made, tmp_path, name, changes):
    data, config = made(name), tiny(name, changes)
    whole = trained(name, config, data, Storage.open(tmp_path / "whole"))
    assert len(timeless(whole)) == 2 and len(whole.result()["weights"]) == 2
    where = Storage.open(tmp_path / "stopped")
    with pytest.raises(Stopped):
        trained(name, config, data, where, stop_at=7, checkpoint_every=2)
    begun = RunFolder.of(where, find(name), config).checkpoints()
    assert begun == [4, 6], "of eight steps, in the second of two epochs"
    stopped = trained(name, config, data, where, stop_at=2, checkpoint_every=2)  # two steps are left to do
    assert timeless(stopped) == timeless(whole)
    assert stopped.result()["weights"] == whole.result()["weights"]


@pytest.fixture(scope="module")
def two(made, tmp_path_factory):
    """Each task's steady run by two processes."""
    (data, *_), where = [made(name) for name in STEADY], tmp_path_factory.mktemp("two")
    other = torch.multiprocessing.get_context("spawn").Process(target=work, args=(1, data.root, str(where)))
    other.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of strides, which cost DDP time
            work(0, data.root, str(where))
        other.join(timeout=WAIT)
        assert other.exitcode == 0
    finally:
        other.kill()
    return Storage.open(where)


@pytest.mark.slow
@pytest.mark.parametrize("name", STEADY)
def test_two_workers_equal_one_with_the_joined_batch(made, two, tmp_path, name):
    config = tiny(name, STEADY[name])
    alone = timeless(trained(name, config, made(name), Storage.open(tmp_path)))
    shared = timeless(RunFolder.of(two, find(name), config))
    assert len(alone) == len(shared) == 2
    for one, other in zip(alone, shared, strict=True):
        one, other = ({k: v for k, v in row.items() if isinstance(v, float)} for row in (one, other))
        files = ("bytes/", "smaller/")  # sizes of compressed files follow the weights' last bits
        sizes, sizes_of_two = ({k: row.pop(k) for k in [*row] if k.startswith(files)} for row in (one, other))
        assert len(one) > 1 and other == pytest.approx(one, rel=1e-3, abs=1e-6)
        assert sizes_of_two == pytest.approx(sizes, rel=1e-2)


@pytest.mark.parametrize("name", TASKS)
def test_a_batch_that_workers_cannot_share_is_refused_before_the_first_step(made, tmp_path, name):
    batch = opened(name, made(name), tiny(name, VARIANTS[name][0])).batch
    with pytest.raises(UserError, match=f"^{name}: a batch of {batch} cannot be shared by 3 workers; .*--workers$"):
        trained(name, tiny(name, VARIANTS[name][0]), made(name), Storage.open(tmp_path), Worker(0, 3))


@pytest.mark.parametrize("name", ["line", "weather", "style", "audio"])
def test_and_before_a_train_group_starts(made, name, monkeypatch):
    monkeypatch.setattr("ray.train.torch.TorchTrainer", None)
    config, launch = tiny(name, VARIANTS[name][0]), Launch(made(name), Resources(), {})
    with pytest.raises(UserError, match=f"^{name}: a batch of .* cannot be shared by 3 workers"):
        train_group(Members(Job(name, (config,), ((),), needs=Requirements(workers=3)), (), ()), launch)


def test_an_image_is_optimised_by_one_worker(made, tmp_path):
    with pytest.raises(UserError, match="a batch of 1 cannot be shared by 2 workers"):
        trained("style", tiny("style", VARIANTS["style"][2]), made("style"), Storage.open(tmp_path), Worker(1, 2))


@pytest.mark.parametrize("name", TASKS)
def test_data_are_a_function_of_seed_epoch_and_step(made, name):
    task, config = find(name), tiny(name, VARIANTS[name][0])
    data = opened(name, made(name), config)
    assert data.steps == 4 and data.batch >= 1

    def batches(*place, of=data):
        return [plain(batch) for batch in of.batches(*place)]

    whole = batches(1, 0, 0, 1)
    assert len(whole) == data.steps and same(whole, batches(1, 0, 0, 1, of=opened(name, made(name), config)))
    assert all(same(whole[start:], batches(1, start, 0, 1)) for start in range(1, data.steps))
    assert not same(whole, batches(0, 0, 0, 1))
    other = opened(name, made(name), override(config, {"seed": 1}))
    assert not same(whole, batches(1, 0, 0, 1, of=other))
    info = made(name).read_json(f"data/{task.dataset.where(config)}/dataset.json")
    assert info["digest"] and "\n" not in task.dataset.describe(info) != ""


def plain(batch):
    """A batch as nested containers."""
    return vars(batch) if dataclasses.is_dataclass(batch) else batch


@pytest.mark.parametrize(("name", "changes"), RUNS, ids=str)
def test_learners_keep_their_protocol(made, name, changes):
    task, config = find(name), tiny(name, changes)
    data = opened(name, made(name), config)
    learner = task.learner([config], data, Worker())
    metrics = learner.step(next(iter(data.batches(0, 0, 0, 1))))
    assert metrics and all(value.shape == (1,) for value in metrics.values())
    (state,) = learner.state_dict()
    assert all(isinstance(value, torch.Tensor) for value in state["weights"].values())
    other = task.learner([override(config, {"seed": 1})], opened(name, made(name), config), Worker())
    other.load_state_dict([state])
    assert same(other.state_dict()[0], state)


@pytest.mark.parametrize(("name", "changes"), [run for run in RUNS if startable(*run)], ids=str)
def test_a_learner_whose_config_has_init_starts_from_the_weights_of_another(made, name, changes):
    task, config = find(name), tiny(name, changes)
    data = opened(name, made(name), config)
    first, second = (task.learner([override(config, {"seed": seed})], data, Worker()) for seed in (0, 1))
    assert isinstance(second, Startable)
    weights = first.state_dict()[0]["weights"]
    second.load_weights([weights])
    assert same(second.state_dict()[0]["weights"], weights)


def points(kind, prefix="", chosen=()):
    """Yield each field of a config and of all its choices: what chooses it, its path, and other values for it."""
    for name, hint in field_types(kind).items():
        options = [option for option in typing.get_args(hint) if dataclasses.is_dataclass(option)]
        path = f"{prefix}{name}"
        yield chosen, path, [choice_name(o) for o in options] or others(hint, getattr(kind(), name))
        for option in options if options else [hint] if dataclasses.is_dataclass(hint) else []:
            choice = ((path, choice_name(option)),) if options else ()
            yield from points(option, f"{path}.", (*chosen, *choice))


def others(hint, value):
    """Return values to try in place of one."""
    if dataclasses.is_dataclass(hint):
        return []
    if typing.get_origin(hint) is typing.Literal:
        return [*typing.get_args(hint)]
    if typing.get_origin(hint) is tuple:
        if hint == tuple[tuple[str, typing.Any], ...]:
            return [(("seed", 7),)]
        inner = typing.get_args(hint)[0]
        first = others(inner, value[0] if value else {str: "", int: 63, float: 0.0}[inner])
        return [(*first[:1], *value[1:]), *((first[0],) * n for n in range(1, 6)), value[:-1]]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, str):
        return [f"{value}2"]
    return [value + 1, 2 * value, 4 * value, value / 2 if isinstance(value, float) else value - 1]


TOGETHER = {
    "left_out": {"regions": ["2", "boxi_0015"]},  # "2" is what is tried
    "method.new_styles": {"style": ["great_wave", "the_scream"], "method.conditional": True, "init": "weights"},
}
"""What a field can be set together with alone."""


@pytest.mark.parametrize("name", TASKS)
def test_every_field_of_a_config_changes_the_fingerprint(name):
    task, seen = find(name), set()
    for chosen, path, values in points(task.config):
        if not values:
            continue  # its own fields follow
        config = override(task.config(), dict(chosen) | TOGETHER.get(path, {}))
        prints = {fingerprint(task.name, task.version, config)}
        for value in values:
            try:
                changed = override(config, {path: value})
            except UserError:
                continue  # not together with the other fields
            assert override(task.config(), flatten(changed)) == changed
            prints.add(fingerprint(task.name, task.version, changed))
        assert len(prints) > 1, f"{path}: nothing that was tried is taken and makes a difference"
        seen.add(path)
    assert seen >= set(flatten(task.config()))


COMMANDS = [
    ("rl", "export", "RUN", "policy.rtsn"),
    ("rl", "play", "RUN"),
    ("weather", "netcdf", "RUN"),
    ("weather", "submit", "RUN"),
    ("style", "export", "RUN", "wave.safetensors"),
    ("style", "compare", "RUN", "lake.png"),
    ("style", "image", "lake.png", "--out", "out.png", "--style", "RUN"),
    ("audio", "export", "RUN", "sounds.safetensors"),
    ("audio", "index", "sounds", "--model", "RUN"),
]
"""Commands that use the weights of a run."""


def refusal(words, folder):
    """Give a command a run; return the line that it ends in."""
    name, *words = (folder.fingerprint[:12] if word == "RUN" else word for word in words)
    app = importlib.import_module(f"retable.tasks.{name}.cli").app
    ended = CliRunner().invoke(app, [*words, "--storage", folder.storage.root])
    assert isinstance(ended.exception, UserError), ended.exception
    assert "\n" not in str(ended.exception)
    return str(ended.exception)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_says_why_it_cannot_use_a_run(words, storage, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (40, 30)).save("lake.png")
    task, other = find(words[0]), find("line")
    folder, foreign = (RunFolder.of(storage, each, each.config()) for each in (task, other))
    for each, of in ((folder, task), (foreign, other)):
        each.begin(of.config(), of.version, {})
    foreign.folder.write_json("result.json", {"data": "d", "metrics": {}, "weights": {}})
    assert f"run {foreign.fingerprint} is of line, not of {task.name}" in refusal(words, foreign)
    assert f"run {folder.fingerprint} is not finished" in refusal(words, folder)
    folder.folder.write_json("result.json", {"data": "d", "metrics": {}, "weights": {}, "diverged": "loss is nan"})
    assert f"run {folder.fingerprint} has diverged" in refusal(words, folder)
    folder.folder.write_json("config.json", {"config": {"no_such_field": 1}})
    line = refusal(words, folder)
    assert "is of another version" in line and "no_such_field" in line


def test_a_run_whose_numbers_no_longer_count_is_noted(storage, capsys):
    task = find("line")
    folder = RunFolder(storage, "line", "01" * 32)
    folder.begin(task.config(), task.version, {})
    folder.folder.write_json("result.json", {"data": "d", "metrics": {"slope": 2.0}, "weights": {}})
    assert api.load("0101", storage, task="line").metrics == {"slope": 2.0}
    said = capsys.readouterr()
    assert "is of an older version of line" in said.err and not said.out
