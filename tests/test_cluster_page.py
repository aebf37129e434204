"""docs/cluster.md: every refusal of the cluster's code has its line, and its commands are those of the command line."""

import ast
import functools
import os
import re
import subprocess
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

import retable
from retable.platform.cli import app as cli

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "cluster.md").read_text()
PAGE = " ".join(TEXT.split())


def refusals(module):
    """Yield the literal parts of each `raise UserError(...)`, as people read them: up to the remedy."""
    for node in ast.walk(ast.parse((ROOT / "platform" / module).read_text())):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "UserError":
            words = [each.value for each in ast.walk(node.args[0]) if isinstance(each, ast.Constant)]
            words = [word.partition(";")[0].strip(" :(.") for word in words if isinstance(word, str)]
            if any(words):  # one is put together elsewhere
                yield words


@pytest.mark.parametrize("words", list(refusals("execute/session.py")), ids=lambda words: " ... ".join(words)[:60])
def test_every_refusal_of_the_cluster_has_its_line(words):
    telling = max(words, key=len)
    assert len(telling) > 8 and telling in PAGE, f"docs/cluster.md does not say what to do where it says {telling!r}"


def test_the_commands_and_options_of_the_page_are_there():
    commands = get_command(cli.app).commands
    lines = re.findall(r"(?<![/\w])retable (plan|reproduce|report|doctor)\b([^`#\n|]*)", TEXT)
    assert {name for name, _ in lines} == {"plan", "reproduce", "report", "doctor"}
    for name, rest in lines:
        known = {option for each in commands[name].params for option in each.opts}
        assert set(re.findall(r"--[a-z-]+", rest)) <= known, f"retable {name}{rest}"


def plain(text):
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


@pytest.mark.slow
def test_the_plan_on_the_page_is_what_the_command_prints(monkeypatch, tmp_path):
    """Of all tables; the lines that the page leaves out are its dots."""
    shown = plain(TEXT.partition("$ retable plan --scale paper --cluster cluster.yaml\n")[2].partition("\n\n")[0])
    assert len(shown) > 10, "the page shows the plan"
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("RETABLE_TASKS", raising=False)
    monkeypatch.setattr(cli, "GPU", tmp_path / "gpu.json")
    papers = ("audio", "rl", "style", "weather")  # other tests bring tasks of their own
    words = ["plan", *papers, "--scale", "paper", "--cluster", "cluster.yaml", "--storage", str(tmp_path)]
    found = CliRunner().invoke(cli.app, words, terminal_width=110)
    assert found.exit_code == 0, found.exception
    printed = "\n".join(plain(found.output))
    missing = [line for line in shown if line not in printed and "..." not in line]
    assert not missing, f"docs/cluster.md shows {missing}; the command prints:\n{printed}"
    left_out = [line for line in printed.splitlines() if re.match(r"(audio|rl|style|weather)/\S+ \d", line)]
    left_out = [
        float(line.split()[-1].lstrip("<").replace(",", ""))
        for line in left_out
        if line not in shown and not line.endswith("-")
    ]
    (most,) = re.findall(r"tables left out here cost less than (\d+) USD together", PAGE)
    assert len(left_out) > 10 and sum(left_out) < int(most), "<0.01 counted as 0.01"


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """Return what plans tables at a scale: the first time as retable does, then the same plan."""
    storage, plan = tmp_path_factory.mktemp("planned"), retable.plan
    return functools.cache(lambda *tables, scale: plan(*tables, scale=scale, storage=storage))


@pytest.mark.parametrize(
    "line", re.findall(r"\| `(\S+\.yaml)`[^|]* \| ([\d.]+) USD[^|]* \| ([^|]+?) \|", TEXT), ids=lambda line: line[0]
)
def test_what_rl_costs_on_the_page_is_what_the_command_prints(monkeypatch, tmp_path, planned, line):
    file, money, clock = line
    if file == "lab.yaml":  # its content stands on the page
        content = TEXT.partition("`lab.yaml`:\n\n```yaml\n")[2].partition("```")[0]
        (tmp_path / file).write_text(content)
        file = str(tmp_path / file)
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("RETABLE_TASKS", raising=False)
    monkeypatch.setattr(cli, "GPU", tmp_path / "gpu.json")
    monkeypatch.setattr(retable, "plan", lambda *tables, scale, **_: planned(*tables, scale=scale))
    words = ["plan", "rl", "--scale", "paper", "--cluster", file]
    printed = " ".join(CliRunner().invoke(cli.app, words).output.split())
    assert money in printed and clock in printed, (
        f"docs/cluster.md says {money} USD, {clock}; printed: {printed[-900:]}"
    )


def test_a_head_whose_address_is_not_known_is_told(tmp_path):
    """`getent` ends with status 2, and the script ends at whatever fails: not at the names of a large cluster."""
    for name, text in {"getent": "exit 2", "scontrol": "seq -f node%g 7 20000", "ray": "exit 0"}.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    variables = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path), "SLURM_JOB_ID": "1"}
    script = ["bash", str(ROOT / "docs/slurm/retable.sbatch"), "doctor"]
    ran = subprocess.run(script, env=variables | {"SLURM_JOB_NODELIST": "node[7-8]"}, capture_output=True, text=True)
    assert ran.returncode != 0 and "the address of node node7 is not known" in ran.stderr
