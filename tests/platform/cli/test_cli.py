"""The command line: help that teaches, and a user's mistake in one line with status 2."""

import importlib.metadata
import json
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
import typer.main

from retable.platform.cli import app
from retable.platform.execute import session
from retable.platform.models import zoo
from retable.platform.spec import extras
from retable.platform.store.storage import Storage
from tests.platform.made_table import filled_line


@pytest.fixture
def retable(monkeypatch, capsys):
    """Call the command in this process, as the shell would."""

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["retable", *words])
        monkeypatch.setenv("COLUMNS", "160")
        with pytest.raises(SystemExit) as ended:
            app.main()
        said = capsys.readouterr()
        return SimpleNamespace(returncode=ended.value.code or 0, stdout=said.out, stderr=said.err)

    return call


def test_the_command_starts_quickly_and_without_torch():
    code = "import sys; sys.argv = ['retable', '--help']; from retable.platform.cli import app as cli\n"
    code += "try: cli.main()\nexcept SystemExit: print(sorted({'torch', 'ray'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert found.stdout.endswith("[]\n") and "Commands of the task rl" in found.stdout


@pytest.mark.parametrize(
    "words",
    [(), ("plan",), ("reproduce",), ("train",), ("sweep",), ("score",), ("data",), ("report",), ("doctor",), ("rl",)],
)
def test_help_is_there_and_shows_examples(retable, words):
    found = retable(*words, "--help")
    assert found.returncode == 0 and "Usage" in found.stdout
    if words and words[0] in ("plan", "reproduce", "train", "sweep", "score"):
        assert "Example" in found.stdout


def test_the_version_is_the_packages(retable):
    assert retable("--version").stdout == f"{importlib.metadata.version('retable')}\n"


def test_list_names_tasks_tables_scales_and_spaces(retable):
    found = retable("list")
    assert found.returncode == 0
    for word in ("rl/table1", "rl/figure4", "--scale paper", "search spaces", "line/table1"):
        assert word in found.stdout


def own():
    """Return the environment without the tests' tasks, which import torch."""
    return {name: value for name, value in os.environ.items() if name != "RETABLE_TASKS"}


HEAVY = ("torch", "ray", "cv2", "transformers", "matplotlib", "scipy", "pandas")


def test_lists_and_help_load_nothing_that_takes_seconds():
    """A user's first command shall not wait: nothing is cached, so that it is the same the first time and after."""
    lines = ("list", "list --json", "--help", "rl --help", "style --help", "data fetch --help", "weather scor")
    code = f"""
import sys
from retable.platform.cli import app
for line in {lines}:
    sys.argv = ["retable", *line.split()]
    try: app.main()
    except SystemExit as ended: print(line, ended.code, *sorted(set({HEAVY}) & set(sys.modules)), file=sys.stderr)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=own())
    *ended, error, last = found.stderr.splitlines()
    assert [*ended, last] == [f"{line} {0 if line != lines[-1] else 2}" for line in lines]
    assert error.endswith("Did you mean 'score'?; see `retable weather --help`")
    for words in ("rl/table1", "Commands of the task weather", "Download COCO 2017", "Play a trained policy"):
        assert words in found.stdout


def test_a_task_whose_packages_are_not_installed_says_so_where_it_is_asked_for(retable, monkeypatch):
    lacking = extras.missing
    monkeypatch.setattr(extras, "missing", lambda extra: ["faiss-cpu"] if extra == "audio" else lacking(extra))
    extras.check.cache_clear()
    monkeypatch.setattr(typer.main, "get_command", typer.main.get_command.__wrapped__)  # a command line of its own
    remedy = "audio needs faiss-cpu: pip install 'retable[audio]'"
    for words in (["audio", "search", "x"], ["audio", "--help"], ["data", "make", "audio", "--name", "x"]):
        assert (retable(*words).returncode, retable(*words).stderr) == (2, f"error: {remedy}\n"), words
    listed = json.loads(retable("list", "--json").stdout)
    assert listed["tasks"]["audio"] == {"missing": remedy} and not any("audio" in name for name in listed["spaces"])
    assert f"audio  {remedy}" in retable("list").stdout and "Commands of the task audio" in retable("--help").stdout
    shown = retable("data", "make", "--help").stdout
    assert "pip install 'retable[audio]'" in shown and "Generate landscapes" in shown


@pytest.fixture
def shell():
    """Have Ctrl-C mean what it does in a shell: it is ignored by what a script starts in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_command_that_is_interrupted_before_it_began_says_so_once(shell, retable, monkeypatch):
    """Ctrl-C while a plan is made: Ray, which announces it otherwise, is not there yet."""

    def pressed(*_, **__):
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(session.Interrupt, "announced", False)
    monkeypatch.setattr("retable.platform.api.plan", pressed)
    ended = retable("reproduce", "rl/figure1", "--storage", "nowhere")
    assert (ended.returncode, ended.stderr) == (130, "interrupted; run the same command again\n")

    def meanwhile(*_, **__):
        with session.interruptible():
            pressed()

    monkeypatch.setattr("retable.platform.api.plan", meanwhile)
    ended = retable("reproduce", "rl/figure1", "--storage", "nowhere")
    assert (ended.returncode, ended.stderr) == (130, f"{session.INTERRUPTED}\n")


@pytest.mark.parametrize("words", ["--help", "list"])
def test_a_reader_that_stops_early_is_no_failure(words):
    code = f"import sys; sys.argv = ['retable', {words!r}]; from retable.platform.cli import app as cli; cli.main()"
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-c", code]
    found = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, timeout=300, env=own())
    os.close(write)
    assert found.returncode == 0 and not found.stderr


def test_a_shell_completes_commands_of_tasks_without_torch(monkeypatch):
    monkeypatch.setenv("_RETABLE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "retable rl exp")
    monkeypatch.setenv("COMP_CWORD", "2")
    code = "import sys; sys.argv = ['retable']; from retable.platform.cli import app as cli\n"
    code += "try: cli.main()\nexcept SystemExit: print({'torch', 'ray'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.stdout.split() == ["export", "set()"]


def test_the_list_is_plain_data_too(retable):
    found = json.loads(retable("list", "--json").stdout)
    assert found.keys() == {"tasks", "spaces", "scales"} and "line" in found["tasks"]
    assert found["tasks"]["line"].keys() == {"about", "tables", "scales", "help", "commands", "data"}


def test_an_option_without_its_value_names_the_help_of_its_command(retable):
    """Click raises this without a context: it named `retable --help`."""
    said = "error: Option '{}' requires an argument; see `{} --help`\n".format
    assert retable("status", "--address").stderr == said("--address", "retable status")
    assert retable("data", "check", "style", "--storage").stderr == said("--storage", "retable data check style")


def test_the_zoo_is_listed_by_task(retable):
    found = retable("zoo", "style", "line")
    assert found.returncode == 0 and "line: no models come with it" in found.stdout
    for name in zoo.zoo("style"):
        assert name in found.stdout
    assert "HalfCheetah-dense" not in found.stdout and "HalfCheetah-dense" in retable("zoo").stdout
    assert retable("zoo", "stile").stderr == "error: no task 'stile'; did you mean 'style'?\n"


def test_plan_starts_nothing_and_counts(retable, tmp_path):
    found = retable("plan", "rl/figure1", "rl/figure2", "--scale", "paper", "--storage", str(tmp_path))
    assert found.returncode == 0
    assert (
        "unique trainings" in found.stdout
        and "720 (720 new)" in found.stdout
        and "days of one CPU core" in found.stdout
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("plan", "rl/figure9"), "no table 'rl/figure9'; did you mean 'rl/figure"),
        (("plan", "rll"), "no task 'rll'; did you mean 'rl'?"),
        (("plan", "rl", "--scale", "smal"), "no scale 'smal'; did you mean 'small'?"),
        (("plan", "rl", "--set", "sed=1"), "unknown field 'sed'; did you mean 'seed'?"),
        (("plan", "rl", "--set", "seed=one"), "seed: 'one' is not a whole number"),
        (("plan", "rl", "--set", "seed"), "--set seed: write it as path=value"),
        (("plan", "line", "--graph", "text", "--json"), "--graph and --json are mutually exclusive; leave one out"),
        (("plan", "line", "--cluster", "c", "--json"), "--cluster and --json are mutually exclusive; leave one out"),
        (("plan", "line", "--graph", "dot", "--configs"), "--graph and --configs are mutually exclusive; leave one"),
        (("train", "rl", "--set", "prune=snip", "--set", "prune.sparsity=1"), "sparsity 1.0 is outside [0, 1)"),
        (("train", "rl", "--set", "prune=snipp"), "'snipp' is not one of"),
        (("sweep", "rrl"), "no search space 'rrl'; did you mean 'rl'?"),
        (("report",), "no tables have been reproduced here"),
        (("rl", "play", "abc"), "no run begins with 'abc'"),
        (("plan", "rl", "--storage", "nowhere://x"), "nowhere"),
        (("plan", "line", "--storage", ""), "--storage '': no name of a place; name a folder"),
        (("plan", "line", "--storage", "a\nb"), "--storage 'a\\nb': no name of a place"),
        (("plan", "line", "--storage", "s3://"), "--storage s3://: names no bucket"),
        (("plan", "line", "--storage", "x" * 300), "longer than the name of a folder can be; choose another"),
        (("plan", "x" * 9000), "xxx'; valid: "),
        (("train", "rl", "--set", "prune.sparsity=0.5"), "prune.sparsity: choose prune=snip or prune=grasp"),
        (("train", "rl", "--set", "prune.sparsit=0.5"), "did you mean 'prune.sparsity'?"),
        (("plan", "line", "--set", "prune=snip"), "unknown field 'prune' of line: only rl has it"),
        (("plan", "--nonsense"), "No such option: --nonsense; see `retable plan --help`"),
        (("reproduce", "--workers", "many"), "'--workers': Input should be a valid integer"),
        (("rl", "exprt"), "No such command 'exprt'. Did you mean 'export'?; see `retable rl --help`"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(retable, tmp_path, words, said):
    extra = () if "--storage" in words else ("--storage", str(tmp_path))
    found = retable(*words, *extra)
    assert found.returncode == 2, found.stdout + found.stderr
    assert said in found.stderr and found.stderr.count("\n") == 1 and "Traceback" not in found.stderr


def test_a_table_of_chosen_rows_that_was_not_filled_is_listed(retable, tmp_path):
    request = {"table": "line/table1", "scale": "smoke", "set": {}, "rows": ["fast"]}
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "chosen.json").write_text(json.dumps(request))
    found = retable("tables", "--storage", str(tmp_path))
    assert found.returncode == 0 and "asked for, and not filled" in found.stdout


def test_tables_of_chosen_rows_are_told_apart_and_a_path_is_printed_as_it_is(retable, tmp_path, monkeypatch):
    where = str(tmp_path / "runs[old] [/x]")
    filled_line(Storage.open(where))
    report = retable("report", "line/table1", "--scale", "smoke", "--rows", "fast", "--storage", where)
    assert report.stdout == f"report: {where}/report/index.html\n", "a word in brackets was taken for a style"
    told = retable("tables", "--storage", where).stdout
    assert [line for line in told.splitlines() if "rows: fast" in line] and "2 tables" in told


@pytest.mark.slow
def test_missing_d4rl_data_say_where_to_get_them(retable, tmp_path):
    found = retable("reproduce", "rl/figure1", "--scale", "paper", "--storage", str(tmp_path))
    assert found.returncode == 2 and "Traceback" not in found.stderr
    assert "`retable data fetch rl halfcheetah-expert-v2`, or use --set data=recorded" in found.stderr


def test_an_unknown_environment_is_one_line(retable, tmp_path):
    found = retable("train", "rl", "--set", "environment=HalfCheeta", "--storage", str(tmp_path))
    assert found.returncode == 2 and "HalfCheeta" in found.stderr and found.stderr.count("\n") == 1


@pytest.mark.parametrize("words", [("train", "line"), ("plan", "line"), ("report",), ("doctor",), ("score", "abc")])
def test_a_secret_of_the_storage_is_said_nowhere(retable, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    found = retable(*words, "--storage", f"file://KEY:SEC/RET@{tmp_path}/there")
    said = found.stdout + found.stderr
    assert found.returncode in (1, 2) and "***@" in said and "Traceback" not in said
    assert not any(word in said for word in ("KEY", "SEC", "RET"))
    assert not list(tmp_path.iterdir())
