"""What a GPU gives, parts style and audio: every line runs on a CPU, without Ray; and the checks notice faults."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import audio, style, training, ways
from benchmarks.gpu.frame import Where
from retable.platform.train.worker import Worker
from retable.tasks.audio.learner import RetrievalLearner
from retable.tasks.style.learner import NetworkLearner

ROOT = Path(__file__).resolve().parents[2]
TINY = Where("cpu", True, 0.01)
CHECKS = {"style": 12, "audio": 8}
"""Part -> its checks that run on a CPU."""
MODULES = {"style": style, "audio": audio}

ALONE = """
import importlib, json, sys
from importlib.machinery import PathFinder

ABSENT = ("ray", "av", "faiss", "soundfile", "soxr", "openai", "mujoco", "gymnasium", "monai")

class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.split(".")[0] in ABSENT else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Without
for name in ABSENT:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        continue
    sys.exit(f"{name} is not blocked")

import torch
from benchmarks.gpu.frame import Where, outcome

torch.set_num_threads(1)
part = importlib.import_module(f"benchmarks.gpu.{sys.argv[1]}")
found = {step.name: dict(outcome(step, 600)) for step in part.steps(Where("cpu", True, 0.01))}
assert not set(ABSENT) & {name.split(".")[0] for name in sys.modules}
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.parametrize("part", ["style", "audio"])
def test_every_step_runs_and_is_right_without_ray_and_files_of_media(part):
    command = [sys.executable, "-c", ALONE, part]
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert {name: results for name, results in found.items() if "failed" in results} == {}
    judged = {name: results["ok"] for name, results in found.items() if "ok" in results}
    assert all(judged.values()) and len(judged) >= CHECKS[part]
    reasons = {str(results["left out"]) for results in found.values() if "left out" in results}
    assert all(reason.startswith(("no CUDA", "hear21passt is not")) for reason in reasons)


@pytest.mark.parametrize("part", ["style", "audio"])
def test_to_list_the_steps_of_a_gpu_costs_nothing(part):
    names = [step.name for step in MODULES[part].steps(Where("cuda", False, 2.0))]
    assert len(names) == len(set(names)) > 20


def test_table_1_is_complete():
    names = "\n".join(step.name for step in style.steps(Where("cuda", False, 2.0)))
    for size in ("256 x 256", "512 x 512", "1024 x 1024", "4032 x 2480"):
        for way in ("float32", "float16", "float16, compiled", "float16, CUDA graph"):
            assert f"Table I, version 2, {size}, {way}" in names
    for size in ("256 x 256", "512 x 512", "1024 x 1024"):
        for backbone in ("alexnet", "vgg19"):
            for way in ("float32 as PyTorch is set", "bfloat16", "bfloat16, compiled", "bfloat16, CUDA graph"):
                assert f"Table I, version 1, {backbone}, {size}, {way}" in names


def test_plans_get_rates_of_published_settings():
    rates = {
        rate for module in (style, audio) for step in module.steps(Where("cuda", False, 2.0)) for rate in step.rates
    }
    images = {"style/network", "style/network/bfloat16", "style/image/vgg19", "style/image/alexnet"}
    assert rates == images | {"audio", "audio/PaSST-S", "audio/PaSST-S15"}


@pytest.mark.parametrize("bound", [style.OUTPUTS["float32"], audio.VECTORS["float32"]])
def test_tf32_does_not_pass_for_float32(bound):
    exact = torch.rand(1000) + 0.5
    rounded = (exact * 2**11).round() / 2**11
    assert not ways.compared({"x": rounded}, {"x": exact}, {"x": bound})["ok"]


class ForgetfulNetwork(NetworkLearner):
    def load_state_dict(self, states):
        super().load_state_dict(states)
        self.optimizer.state.clear()


class ForgetfulEncoder(RetrievalLearner):
    def load_state_dict(self, states):
        super().load_state_dict(states)
        self.optimizer.state.clear()


@pytest.mark.parametrize("part", ["style", pytest.param("audio", marks=pytest.mark.slow)])
def test_a_resumed_run_that_lost_its_optimizer_is_noticed_on_a_gpu_too(part):
    if part == "style":
        task, config, data = style.opened(TINY, "network", "cpu")
        task = replace(task, learner=lambda configs, data, run: ForgetfulNetwork(*configs, data, run))
    else:
        task, config, data = audio.opened(TINY, True, "cpu")
        task = replace(task, learner=ForgetfulEncoder)
    found = training.resumed(task, [config], data, TINY)
    assert not found["ok"] and found["error"] > training.MOVED


@pytest.mark.skipif(torch.cuda.is_available(), reason="processes are then not forked, and know of no patch")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("part", ["style", pytest.param("audio", marks=pytest.mark.slow)])
def test_two_processes_that_do_not_share_gradients_are_noticed(part, monkeypatch):
    monkeypatch.setattr(Worker, "wrap", lambda self, module: module.to(self.device))
    check = style.in_two if part == "style" else audio.in_two
    assert not check(TINY)["ok"]


@pytest.mark.parametrize("part", ["style", "audio"])
def test_shares_of_two_processes_are_the_batch(part):
    opened = style.opened(TINY, "network", "cpu") if part == "style" else audio.opened(TINY, False, "cpu")
    data = opened[2]
    whole, *shares = (next(data.batches(1, 1, rank, world)) for rank, world in ((0, 1), (0, 2), (1, 2)))
    if part == "style":
        assert torch.equal(torch.cat(shares), whole)
        return
    assert torch.equal(torch.cat([share.audio for share in shares]), whole.audio)
    assert shares[0].captions + shares[1].captions == whole.captions
    assert torch.equal(torch.cat([share.recording for share in shares]), whole.recording)


def test_a_precision_leaves_no_trace():
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    for precision in ("float32", "tf32", "bfloat16", "default"):
        with ways.arithmetic(precision, "cpu"):
            assert torch.is_autocast_enabled("cpu") == (precision == "bfloat16")
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == before
