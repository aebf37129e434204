"""`python -m benchmarks gpu`: its frame on toy parts, and `--tiny` of the real ones where there is no Ray."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks import gpu
from benchmarks.gpu import frame
from benchmarks.gpu.frame import Report, Step, Where, markdown, run_part
from benchmarks.gpu.measure import closeness, distance, per_second, rounding_bound

ROOT = Path(__file__).parents[2]
WHERE = Where("cpu", True, 0.0)
ANOTHER = "RETABLE_PYTHON312"


@pytest.fixture(autouse=True)
def unfreed(monkeypatch):
    """Collect no garbage after each step: here that goes through all that other tests have imported."""
    monkeypatch.setattr(frame, "free", lambda where: None)


def bare(*words, python=sys.executable):
    """Run Python from the checkout, without what `blocked` refuses."""
    paths = os.pathsep.join((str(ROOT / "tests/benchmarks/blocked"), str(ROOT)))
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PYTHON"))}
    environment = {**clean, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    return subprocess.run([python, *words], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1200)


@pytest.mark.parametrize(
    ("python", "parts"),
    [
        pytest.param(sys.executable, ["rl"], id="rl", marks=pytest.mark.slow),
        pytest.param(sys.executable, gpu.PARTS, id="all", marks=pytest.mark.slow),
        pytest.param(os.environ.get(ANOTHER), gpu.PARTS, id="another", marks=pytest.mark.slow),
    ],
)
def test_every_line_runs_on_a_cpu_without_ray_simulator_or_network(python, parts, tmp_path):
    if python is None:
        pytest.skip(f"{ANOTHER} names no other Python")
    for package in ("ray", "mujoco", "tensorboardX.proto"):
        absent = f"No module named '{package.split('.')[0]}'"
        assert absent in bare("-c", f"import {package}", python=python).stderr
    words = ["-m", "benchmarks", "gpu", "--tiny", "--minutes", "19", "--out", str(tmp_path), "--part", *parts]
    done = bare(*words, python=python)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert list(found["parts"]) == list(parts) and found["tiny"] and found["machine"]["device"] == "CPU"
    for part, rows in found["parts"].items():
        assert not [row for row in rows if {"failed", "skipped"} & row["results"].keys()], part
        checks = [row["results"]["ok"] for row in rows if "ok" in row["results"]]
        assert len(checks) > 2 and all(checks) and len(rows) > len(checks), part
    text = (tmp_path / "gpu.md").read_text()
    assert all(row["step"].replace("|", "\\|") in text for rows in found["parts"].values() for row in rows)
    assert {"rl", "rl/tf32"} <= found["rates"].keys() == found["rates_from"].keys()
    assert all(rate > 0 for rate in found["rates"].values())


def test_without_a_gpu_one_line_says_so(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main([]) == 2
    assert len(capsys.readouterr().out.splitlines()) == 1


def out_of_memory():
    raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate all of it")


def toy(*steps):
    """Return what imports a part of these steps."""
    return lambda: SimpleNamespace(steps=lambda where: iter(steps))


def results(report):
    return {
        row["step"]: row["results"]
        for rows in json.loads((report.folder / "gpu.json").read_text())["parts"].values()
        for row in rows
    }


def test_a_step_that_fails_is_noted_and_the_next_goes_on(tmp_path):
    report = Report(tmp_path, WHERE)
    run_part("toy", toy(Step("large", out_of_memory), Step("small", lambda: {"a": 1.0})), WHERE, report, 60)
    assert results(report) == {"large": {"failed": "OutOfMemoryError: CUDA out of memory."}, "small": {"a": 1.0}}
    assert not report.sound


def test_a_part_that_cannot_be_imported_or_breaks_off_is_a_failed_step(tmp_path):
    def breaking(where):
        yield Step("first", lambda: {"a": 1.0})
        raise ValueError("no more")

    def absent():
        raise ModuleNotFoundError("No module named 'monai'")

    report = Report(tmp_path, WHERE)
    run_part("absent", absent, WHERE, report, 60)
    run_part("breaking", lambda: SimpleNamespace(steps=breaking), WHERE, report, 60)
    run_part("whole", toy(Step("last", lambda: {"a": 2.0})), WHERE, report, 60)
    rows = json.loads((tmp_path / "gpu.json").read_text())["parts"]
    assert "monai" in rows["absent"][0]["results"]["failed"]
    assert rows["breaking"][0]["results"] == {"a": 1.0} and "no more" in rows["breaking"][1]["results"]["failed"]
    assert rows["whole"][0]["results"] == {"a": 2.0} and not report.sound


def test_time_that_is_over_stops_a_step_and_lists_the_others(tmp_path):
    def stubborn():
        while True:
            try:
                time.sleep(10)
            except Exception:  # as compilers do
                continue

    report, start = Report(tmp_path, WHERE), time.monotonic()
    run_part("toy", toy(Step("long", stubborn), Step("late", lambda: {"a": 1.0})), WHERE, report, 0.3)
    assert time.monotonic() - start < 5
    assert "stopped" in results(report)["long"]["skipped"] and "not reached in" in results(report)["late"]["skipped"]
    assert report.sound, "too little time is no error"


def test_both_files_are_there_after_every_step(tmp_path):
    seen = []

    def look():
        seen.append(list(results(report)) if (tmp_path / "gpu.md").exists() else None)
        return {"a": 1.0}

    report = Report(tmp_path, WHERE)
    run_part("toy", toy(*(Step(name, look) for name in "xyz")), WHERE, report, 60)
    assert seen == [None, ["x"], ["x", "y"]]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gpu.json", "gpu.md"]


@pytest.mark.parametrize(("ran", "code"), [({"a": 1.0}, 0), ({"ok": True}, 0), ({"ok": False}, 1), (None, 1)], ids=str)
def test_exit_code_says_whether_all_was_right(tmp_path, monkeypatch, ran, code):
    part = SimpleNamespace(steps=lambda where: iter([Step("one", (lambda: ran) if ran else out_of_memory)]))
    monkeypatch.setattr(gpu, "PARTS", ("toy",))
    monkeypatch.setitem(sys.modules, "benchmarks.gpu.toy", part)
    assert gpu.main(["--tiny", "--part", "toy", "--out", str(tmp_path)]) == code


def test_time_that_a_part_leaves_goes_to_the_later_ones(tmp_path, monkeypatch):
    given = []
    monkeypatch.setattr(gpu, "run_part", lambda name, load, where, report, seconds: given.append(seconds))
    gpu.main(["--tiny", "--minutes", "4", "--part", "rl", "audio", "--out", str(tmp_path)])
    assert given == [pytest.approx(120, abs=1), pytest.approx(240, abs=1)]


def test_the_highest_of_a_rate_counts(tmp_path):
    report = Report(tmp_path, WHERE)
    steps = [Step(f"of {n}", lambda n=n: {"per s": float(n)}, {"rl": "per s"}) for n in (3, 5, 4)]
    run_part("toy", toy(*steps, Step("lost", out_of_memory, {"rl": "per s"})), WHERE, report, 60)
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert found["rates"] == {"rl": 5.0} and found["rates_from"] == {"rl": "of 5"}
    assert "| rl | 5 | of 5 |" in markdown(found)


def test_distances_and_bounds():
    one = {"a": torch.tensor([3.0, 4.0]), "b": torch.zeros(2)}
    other = {"a": torch.tensor([3.0, 4.0]), "b": torch.tensor([0.0, 0.05])}
    assert distance(one, one) == 0 and distance(other, one) == pytest.approx(0.01)
    assert distance({**one, "b": torch.tensor([0.0, torch.nan])}, one) == float("inf")
    assert closeness("it", one, one, 0.0)["ok"] and not closeness("it", other, one, 1e-3)["ok"]
    with pytest.raises(ValueError, match="shapes"):
        distance(torch.zeros(2), torch.zeros(3))
    with pytest.raises(KeyError):
        distance({"a": one["a"]}, one)
    assert rounding_bound("float32", 1e-7) < 1e-5 < 1e-3 < rounding_bound("tf32", 1e-7) < 1e-2
    assert rounding_bound("bfloat16", 1e-3) == 0.5


def test_calls_a_second_are_those_of_a_clock():
    timed = per_second(lambda: time.sleep(0.005), Where("cpu", False, 0.2))
    assert 100 < timed <= 200
