"""The package works as a wheel and from a checkout, and leaves the standard library's `platform` alone."""

import importlib.metadata
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("platform", "tasks", "search_spaces", "serve")


def test_the_wheel_holds_every_module_and_data_file(tmp_path):
    source = tmp_path / "source"
    ignored = shutil.ignore_patterns(
        ".git", ".venv", "results", "build", "docs", "*.egg-info", "__pycache__", ".*_cache"
    )
    shutil.copytree(ROOT, source, symlinks=True, ignore=ignored)
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, "-w", tmp_path, source], check=True, timeout=300)
    (wheel,) = tmp_path.glob("*.whl")
    inside = set(zipfile.ZipFile(wheel).namelist())
    kinds = ("*.py", "*.json", "*.j2", "*.safetensors", "*.rtsn", "*.html", "*.css", "*.js")
    wanted = [path for folder in FOLDERS for kind in kinds for path in (ROOT / folder).rglob(kind)]
    assert len(wanted) > 40
    assert {f"retable/{path.relative_to(ROOT).as_posix()}" for path in wanted} <= inside
    assert "retable/py.typed" in inside
    assert not any(name.startswith(("platform/", "tasks/", "tests/")) for name in inside)


def test_a_checkout_on_the_path_works_without_installation(tmp_path):
    code = "import platform, retable, retable.platform.config as c; print(platform.system(), c.__file__)"
    command = [sys.executable, "-c", code]
    found = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True, timeout=300
    )
    system, file = found.stdout.split()
    assert system and Path(file).resolve() == ROOT / "platform" / "config.py"


def needed(requirement, seen):
    """Adds what `requirement` needs on this machine, directly and through others, to `seen`."""
    for extra in {"", *requirement.extras}:
        if (key := (canonicalize_name(requirement.name), extra)) in seen:
            continue
        seen[key] = requirement
        for line in importlib.metadata.requires(requirement.name) or ():
            child = Requirement(line)
            if child.marker is None or child.marker.evaluate({"extra": extra}):
                needed(child, seen)


def test_the_lock_names_all_that_the_package_and_its_tests_need():
    """The lock is what `make test` installs: a package that only pyproject.toml names is missing on a fresh clone."""
    lock = (ROOT / "requirements.lock").read_text()
    locked = dict(line.split(";")[0].strip().split("==") for line in lock.splitlines() if "==" in line)
    locked = {canonicalize_name(name): version for name, version in locked.items()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = re.search(r"from '\.\[([\w,]+)\]'", lock)[1].split(",")
    seen: dict[tuple[str, str], Requirement] = {}
    for line in [*project["dependencies"], *(line for e in extras for line in project["optional-dependencies"][e])]:
        requirement = Requirement(line)
        assert requirement.specifier.contains(locked.get(canonicalize_name(requirement.name), "0")), line
        needed(requirement, seen)
    assert len(seen) > 100
    assert not {name for name, _ in seen} - set(locked)
