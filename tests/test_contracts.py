"""What every task promises, checked alike for all of them."""

import importlib

import pytest
from PIL import Image
from typer.testing import CliRunner

from retable.platform import api
from retable.platform.errors import UserError
from retable.platform.runs import RunFolder
from retable.platform.task import find

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
    foreign.folder.write_json("result.json", {"metrics": {}, "weights": {}})
    assert f"run {foreign.fingerprint} is of line, not of {task.name}" in refusal(words, foreign)
    assert f"run {folder.fingerprint} is not finished" in refusal(words, folder)
    folder.folder.write_json("result.json", {"metrics": {}, "weights": {}, "diverged": {"epoch": 1}})
    assert f"run {folder.fingerprint} has diverged" in refusal(words, folder)
    folder.folder.write_json("config.json", {"config": {"no_such_field": 1}})
    line = refusal(words, folder)
    assert "is of another version" in line and "no_such_field" in line


def test_a_run_whose_numbers_no_longer_count_is_noted(storage, capsys):
    task = find("line")
    folder = RunFolder(storage, "line", "01" * 32)
    folder.begin(task.config(), task.version, {})
    folder.folder.write_json("result.json", {"metrics": {"slope": 2.0}})
    assert api.load("0101", storage, task="line").metrics == {"slope": 2.0}
    said = capsys.readouterr()
    assert "is of an older version of line" in said.err and not said.out
