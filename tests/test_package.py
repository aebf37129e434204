"""The package works as a wheel and from a checkout, and leaves the standard library's `platform` alone."""

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from retable.platform.store.provenance import code_of

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("platform", "tasks", "search_spaces", "serve")


def git(folder, *words):
    command = ["git", "-C", folder, "-c", "user.name=n", "-c", "user.email=e", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout.strip()


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A checkout of this code, of one commit."""
    folder = tmp_path_factory.mktemp("package") / "source"
    ignored = shutil.ignore_patterns(
        ".git", ".venv", "results", "build", "docs", "*.egg-info", "__pycache__", ".*_cache", "commit.json"
    )
    shutil.copytree(ROOT, folder, symlinks=True, ignore=ignored)
    git(folder, "init", "-q")
    git(folder, "add", "--all")
    git(folder, "commit", "-qm", "all")
    return folder


def wheel_of(source, into):
    """Build a wheel as pip does; pip itself starts several processes more."""
    into.mkdir(exist_ok=True)
    build = "import setuptools.build_meta as b, sys; b.build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, into], cwd=source, check=True, capture_output=True, timeout=300)
    (wheel,) = into.glob("*.whl")
    return zipfile.ZipFile(wheel)


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory):
    return wheel_of(source, tmp_path_factory.mktemp("wheel"))


def asked(package, *, cwd="/", **more):
    """Return what of a provenance says which code ran, as the code in a folder writes it for a run of rl."""
    code = "import json, retable.platform.store.provenance as p; print(json.dumps(p.code_ran('rl')))"
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": str(package), **more}
    command = [sys.executable, "-c", code]
    return json.loads(
        subprocess.run(command, cwd=cwd, env=variables, check=True, capture_output=True, timeout=300).stdout
    )


def test_a_wheel_knows_its_commit_and_shows_what_was_changed_in_it_since(source, wheel, tmp_path):
    wheel.extractall(tmp_path / "site")
    commit = git(source, "rev-parse", "HEAD")
    made = asked(tmp_path / "site", RETABLE_COMMIT="a" * 40)
    assert (made["commit"], made["dirty"], made["code"]) == (commit, False, code_of("rl"))
    assert git(source, "status", "--porcelain") == "" and not (source / "retable" / "commit.json").exists()
    learner = tmp_path / "site/retable/tasks/rl/learner.py"
    learner.write_text(learner.read_text() + "# changed\n")
    changed = asked(tmp_path / "site")
    assert (changed["commit"], changed["dirty"]) == (commit, True)
    assert {name for name in made["code"] if made["code"][name] != changed["code"][name]} == {"tasks/rl"}


@pytest.mark.slow
def test_a_wheel_of_an_sdist_of_a_changed_checkout_knows_its_commit_and_that_it_has_changes(source, tmp_path):
    build = "import setuptools.build_meta as b, sys; b.build_sdist(sys.argv[1])"
    for changed in (False, True):
        into = tmp_path / str(changed)
        if changed:
            (source / "untracked.txt").touch()
        subprocess.run([sys.executable, "-c", build, into], cwd=source, check=True, capture_output=True, timeout=300)
        (archive,) = into.glob("*.tar.gz")
        shutil.unpack_archive(archive, into, filter="data")
        wheel_of(into / archive.name.removesuffix(".tar.gz"), into).extractall(into / "site")
        made = asked(into / "site")
        assert (made["commit"], made["dirty"]) == (git(source, "rev-parse", "HEAD"), changed)
        assert made["code"] == code_of("rl")
    (source / "untracked.txt").unlink()


def test_an_image_knows_the_commit_that_its_build_was_given(source, tmp_path):
    """The lines of the Dockerfile that write it, run on what docker would copy; there is no docker here."""
    text = (ROOT / "Dockerfile").read_text()
    printed, options = "python3 -m retable.platform.commit", {"check": True, "capture_output": True, "text": True}
    assert all(f"--build-arg COMMIT=$({printed})" in line for line in text.splitlines() if "docker build" in line)
    commit = subprocess.run([sys.executable, *printed.split()[1:]], cwd=source, **options).stdout.strip()
    assert commit == git(source, "rev-parse", "HEAD")
    (line,) = re.findall(r"&& (if \[ -n .*; fi) ", text)
    for given in (commit, ""):
        image = tmp_path / f"image{given}"
        shutil.copytree(source, image, symlinks=True, ignore=shutil.ignore_patterns(".git"))
        command = line.replace("/opt/venv/bin/python", sys.executable)
        subprocess.run(["sh", "-c", command], cwd=image, env={"COMMIT": given}, timeout=300, **options)
        made = asked(image)
        assert (made.get("commit", ""), made["code"]) == (given, code_of("rl"))
    with pytest.raises(subprocess.CalledProcessError) as raised:
        subprocess.run(["sh", "-c", command], cwd=image, env={"COMMIT": "main"}, timeout=300, **options)
    assert raised.value.stderr.startswith("error: 'main' is no commit")


def test_the_wheel_holds_every_module_and_data_file(wheel):
    inside = set(wheel.namelist())
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
