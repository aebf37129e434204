"""A command that writes a file that the user names replaces none that exists, unless it is told to."""

import re

import pytest
import typer
from typer.testing import CliRunner

from retable.platform.cli import app as cli
from retable.platform.errors import UserError
from tests.command_line import walked

WRITE = {
    "audio search loud --page hits.html": "hits.html",
    "audio pairs index good.csv": "good.csv",
    "audio adopt passt_roberta.ckpt salsa.safetensors": "salsa.safetensors",
    "audio augment mine --rules keywords --out variations.json": "variations.json",
    "audio submit 3f2a --captions captions.csv --audio folder": "submission.csv",
    "audio export 3f2a sounds.safetensors": "sounds.safetensors",
    "audio export 3f2a sounds.safetensors --classes ESC-10": "sounds.safetensors",
    "rl export 3f2a policy.rtsn": "policy.rtsn",
    "runs pack line/table1": "results.bundle",
    "serve rl --run 3f2a --config-out rl.yaml": "rl.yaml",
    "style compare 3f2a lake.jpg": "sheet.png",
    "style distil mine lake.jpg": "small.safetensors",
    "style export 3f2a wave.safetensors": "wave.safetensors",
    "style learn painting.jpg wave.safetensors": "wave.safetensors",
    "style onnx mine wave.onnx": "wave.onnx",
    "weather export 3f2a rain.safetensors": "rain.safetensors",
    "weather submit 3f2a": "submission.zip",
}
"""Words of commands -> the file that they write."""


def test_all_commands_that_write_a_file_are_tried():
    """Those with an argument or option whose help says that a file is written."""
    writes = set()
    for path, command in walked(typer.main.get_command(cli.app), "retable"):
        texts = [parameter.help or "" for parameter in command.params]
        if any(re.search("(files?|CSV|zip|sheet|video) to write|^(Also write|Write the)", text) for text in texts):
            assert "overwrite" in {parameter.name for parameter in command.params}, path
            writes.add(path.removeprefix("retable "))
    tried = {path for path in writes for words in WRITE if words.startswith(f"{path} ")}
    assert writes - tried == {"style video"}  # it has a test of its own


@pytest.mark.parametrize(("words", "name"), WRITE.items(), ids=str)
def test_a_file_is_replaced_only_on_demand(words, name, tmp_path, monkeypatch):
    """That is said before anything is looked for: there is neither a run nor a folder of these names."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / name
    file.write_text("mine")
    ended = CliRunner().invoke(cli.app, words.split())
    assert isinstance(ended.exception, UserError), ended.output
    assert str(ended.exception) == f"{name}: exists; --overwrite replaces it"
    ended = CliRunner().invoke(cli.app, [*words.split(), "--overwrite"])
    assert ended.exit_code and "--overwrite" not in f"{ended.output} {ended.exception}"  # no run, no folder, ...
    assert file.read_text() == "mine"
