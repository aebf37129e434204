"""Where an extra is not installed: each command of its task says so in a line, and all else works."""

import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from retable.platform.cli import doctor
from retable.platform.errors import UserError
from retable.platform.spec import extras

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BLOCKED = {
    "rl": ("gymnasium", "h5py", "mujoco"),
    "weather": ("adabelief_pytorch", "einops", "h5netcdf", "h5py", "monai", "cv2", "pyproj"),
    "style": ("av", "cv2", "torchvision"),  # not PIL: matplotlib brings it
    "audio": ("av", "faiss", "openai", "soundfile", "soxr", "timm", "tokenizers", "transformers"),
    "serve": ("fastapi",),
}
"""Extra -> the modules of its packages: written down here, not read from what is tested."""

BLOCKER = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocker())
from retable.platform.cli.app import main
from retable.platform.errors import UserError
for words in {calls}:
    sys.argv = ["retable", *words]
    print(">>>", *words, flush=True)
    try:
        main()
    except SystemExit as ended:
        print("<<<", ended.code or 0, flush=True)
"""


def say(blocked, *calls, folder):
    """Run commands in a process that lacks some modules; return their outputs and exit codes."""
    code = BLOCKER.format(blocked=set(blocked), calls=[call.split() for call in calls])
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "160"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, check=False, timeout=300,
    )  # fmt: skip
    found = re.findall(r">>> (.*?)\n(.*?)<<< (\d+)\n", done.stdout, re.DOTALL)
    assert [call for call, _, _ in found] == list(calls), done.stdout
    return {call: (text, int(status)) for call, text, status in found}


def test_the_lists_are_those_of_the_project_and_of_the_installed_package():
    assert set(extras.extras()) == set(PROJECT["optional-dependencies"])
    assert extras.extras()["weather"][-2:] == ("opencv-python", "pyproj") and "ray[serve]" in extras.extras()["serve"]
    assert set(BLOCKED) <= set(extras.extras())
    assert not any(extras.missing(name) for name in BLOCKED)
    assert extras.missing("line") == []  # one's own task has no extra


def test_a_wheel_reads_them_from_its_metadata(monkeypatch, tmp_path):
    wanted = [
        f"{text}; extra == '{name}'" for name, texts in PROJECT["optional-dependencies"].items() for text in texts
    ]
    monkeypatch.setattr(metadata, "requires", lambda name: ["numpy>=2", *wanted] if name == "retable" else None)
    monkeypatch.setattr(extras, "code_root", lambda: tmp_path / "retable")
    extras.extras.cache_clear()
    from_wheel = extras.extras()
    monkeypatch.undo()
    extras.extras.cache_clear()
    assert from_wheel == extras.extras()


@pytest.mark.parametrize("name", ["opencv-python", "nothing-of-that-name"])
def test_what_is_not_there_is_told_without_importing(monkeypatch, name):
    monkeypatch.setitem(sys.modules, "cv2", None)
    assert not extras.is_there(name)


def test_what_is_missing_is_a_mistake_that_can_be_mended_and_code_that_does_not_load(monkeypatch):
    monkeypatch.setattr(extras, "extras", lambda: {"mine": ("nothing-a", "numpy", "nothing-b")})
    with pytest.raises(UserError, match=re.escape("mine needs nothing-a, nothing-b: pip install 'retable[mine]'")):
        extras.check("mine")
    with pytest.raises(ImportError):  # so that `gc` leaves the task's runs alone
        extras.check("mine")


def test_doctor_says_what_each_task_serving_and_a_cluster_lack(monkeypatch):
    monkeypatch.setattr(extras, "is_there", lambda name: name not in ("h5py", "ray[serve]"))
    monkeypatch.setenv("RAY_ADDRESS", "ray://user:secret@head:1")
    lines = {line.text.partition(":")[0]: line for line in doctor.extras_checks()}
    assert lines["weather"].text == "weather: lacks h5py: pip install 'retable[weather]'"
    assert lines["serve"].text == "serve: lacks ray[serve]: pip install 'retable[serve]'"
    assert lines["style"].text == "style: can be used" and not lines["style"].optional
    assert all(line.good for line in lines.values()) and lines["weather"].optional
    assert "secret" not in lines["cluster"].text
    monkeypatch.delenv("RAY_ADDRESS")
    monkeypatch.setattr(doctor.shutil, "which", lambda tool: None if tool == "kubectl" else "/bin/" + tool)
    assert [line.text for line in doctor.extras_checks()][-1].startswith("cluster: this machine has no kubectl, which")


CALLS = ("plan {0}", "reproduce {0}/table1", "train {0}", "{0} --help", "data check {0} x", "data make {0}", "zoo {0}")


@pytest.mark.slow
def test_without_any_extra_all_tasks_are_listed_and_each_command_says_what_to_install(tmp_path):
    blocked = [module for modules in BLOCKED.values() for module in modules]
    calls = [call.format(task) for task in ("rl", "weather", "style", "audio") for call in CALLS]
    said = say(blocked, "list", "--help", "runs line", "plan line", "serve", *calls, folder=tmp_path)
    for task in ("rl", "weather", "style", "audio"):
        line = f"{task} needs .*: pip install 'retable\\[{task}]'"
        assert re.search(line, said["list"][0])
        for call in (call.format(task) for call in CALLS):
            text, status = said[call]
            assert status == 2 and re.fullmatch(f"error: {line}\n", text), (call, text)
    assert said["list"][1] == said["--help"][1] == said["plan line"][1] == 0 and "line/table1" in said["list"][0]
    assert said["serve"] == ("error: serve needs ray[serve]: pip install 'retable[serve]'\n", 2)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["rl", "weather", "style", "audio"])
def test_a_task_plans_with_its_own_extra_alone(task, tmp_path):
    own = set(BLOCKED[task])
    blocked = {module for name, modules in BLOCKED.items() if name != task for module in modules} - own
    other = "audio" if task != "audio" else "rl"
    calls = (f"plan {task}", "list", f"data check {task} x", f"plan {other}")
    said = say(blocked, *calls, folder=tmp_path)
    assert said[f"plan {task}"][1] == said["list"][1] == 0 and f"{task}/" in said["list"][0]
    assert said[f"plan {other}"][1] == 2 and f"'retable[{other}]'" in said[f"plan {other}"][0]
    assert "retable[" not in said[f"data check {task} x"][0]
