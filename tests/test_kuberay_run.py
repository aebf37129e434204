"""What docs/kuberay's files execute, executed: head, worker, job and server, in pods of namespaces, on a bucket."""

import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from retable.platform.config import override
from retable.platform.spec.task import find
from retable.platform.store.run import RunFolder
from retable.platform.store.storage import Storage
from tests.machines import SHARED, machines
from tests.platform.execute.test_faults import outcome, undisturbed
from tests.pods import BUCKET, TOKEN, Pods, documented
from tests.test_kuberay import cluster_of

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[1]
TASKS = str(ROOT / "tests" / "extra_tasks")
PAGE = (ROOT / "docs" / "cluster.md").read_text()
DASHBOARD = "http://head:8265"


@pytest.fixture
def network():
    if not (shutil.which("wget") and shutil.which("curl")):
        pytest.skip("wget and curl stand for KubeRay's probes and its operator; install both")
    with machines() as made:
        yield made


def copied(pods, tmp_path):
    """Return the bucket's content as a storage that this process can read."""
    code = f"from pyarrow import fs; fs.copy_files('s3://{BUCKET}/retable', '{SHARED}/copy')"
    machine, env, _ = pods.running["head"]
    status, said = machine.call(sys.executable, "-c", code, env=env)
    assert status == 0, said
    return Storage.open(shutil.copytree(pods.machines.shared / "copy", tmp_path / "copy"))


def test_jobs_of_the_operator_and_of_ray_job_submit_run_on_workers_that_the_autoscaler_asks_for(network, tmp_path):
    job, lasting = (documented(tmp_path, name) for name in ("rayjob", "raycluster"))
    assert cluster_of(job) == cluster_of(lasting) and job["spec"]["submissionMode"] == "HTTPMode"
    pods = Pods(network, cluster_of(job), idle=15, RETABLE_TASKS=TASKS)
    entrypoint = job["spec"]["entrypoint"].replace("reproduce --scale paper", "train line")
    assert entrypoint == "retable train line"
    body = {"entrypoint": entrypoint, "submission_id": "retable-1"}
    for token in ("", "wrong"):
        assert pods.ask("POST", f"{DASHBOARD}/api/jobs/", body, token)[0] in (401, 403)
    assert pods.ask("POST", f"{DASHBOARD}/api/jobs/", body, TOKEN)[0] == 200

    def over():
        told = json.loads(pods.ask("GET", f"{DASHBOARD}/api/jobs/retable-1", token=TOKEN)[1])
        return told["status"] in ("SUCCEEDED", "FAILED", "STOPPED") and told

    told = pods.until(over)
    assert told["status"] == "SUCCEEDED", (told, pods.ask("GET", f"{DASHBOARD}/api/jobs/retable-1/logs", token=TOKEN))
    pods.until(lambda: not pods.workers())  # as there is no work
    (line,) = re.findall(r"^ray job submit .*-- retable reproduce rl --scale paper$", PAGE, re.MULTILINE)
    line = line.replace("reproduce rl --scale paper", "train line --set epochs=4")
    machine, env, user = pods.running["head"]  # `kubectl port-forward` brings localhost there
    kept = {name: env[name] for name in ("PATH", "HOME", "PYTHONPATH", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN")}
    with (pods.machines.shared / "submit.log").open("w") as log:
        submit = machine.start(["bash", "-c", line], kept, "/tmp/home", user=user, stdout=log, stderr=log)
    pods.until(lambda: submit.poll() is not None, 600)
    assert submit.returncode == 0, pods.logs()
    requests = (pods.machines.shared / "api" / "requests").read_text().splitlines()
    assert {line.split()[2] for line in requests} == {"200"}, "KubeRay's Role allows the account no more than this"
    storage, task = copied(pods, tmp_path), find("line")
    for epochs in (3, 4):
        folder = RunFolder.of(storage, task, override(task.config(), {"epochs": epochs}))
        assert outcome(folder) == undisturbed(tmp_path / str(epochs), epochs)


def test_the_service_starts_answers_and_survives_the_loss_of_its_worker(network, tmp_path):
    secret = "a-token-for-tests"
    said = documented(tmp_path, "rayservice")["spec"]
    pods = Pods(network, said["rayClusterConfig"])
    digest = subprocess.run(["sha256sum"], input=secret.encode(), capture_output=True, check=True).stdout[:64].decode()
    assert digest == hashlib.sha256(secret.encode()).hexdigest()
    config = yaml.safe_load(said["serveConfigV2"].replace("DIGEST", digest))
    place = f"{DASHBOARD}/api/serve/applications/"
    assert pods.ask("PUT", place, config)[0] in (401, 403)
    pods.until(lambda: pods.ask("PUT", place, config, TOKEN)[0] == 200)  # as the operator does, again and again

    def runs():
        told = json.loads(pods.ask("GET", place, token=TOKEN)[1])["applications"].get("retable", {})
        assert told.get("status") != "DEPLOY_FAILED", told
        return told.get("status") == "RUNNING"

    pods.until(runs)
    first = worker_that_serves(pods)
    answers_everywhere(pods, secret, ["head", first])
    pods.running.pop(first)[0].lose()
    second = worker_that_serves(pods)
    pods.until(lambda: pods.ask("GET", f"http://{second}:8000/-/readyz")[0] == 200)
    answers_everywhere(pods, secret, ["head", second])


def worker_that_serves(pods):
    """Wait for the worker that the autoscaler asked for, until KubeRay would send it requests."""
    return pods.until(lambda: next((name for name in pods.workers() if pods.ready(name, serves=True)), ""))


def answers_everywhere(pods, secret, endpoints):
    """Ask each pod that KubeRay's service sends requests to: all tasks, with the token, without, by another name."""
    for pod in endpoints:
        url = f"http://{pod}:8000"
        assert pods.ask("GET", f"{url}/-/healthz")[0] == 200, "KubeRay asks by the pod's address"
        local = {"Host": "localhost:8000"}  # what `kubectl port-forward` leads there
        assert pods.ask("GET", f"{url}/v1/models", **local)[0] == 401
        assert pods.ask("GET", f"{url}/v1/models", token=secret, Host="retable.example.org")[0] == 421
        status, said = pods.ask("GET", f"{url}/v1/models", token=secret, **local)
        assert status == 200 and {model["task"] for model in json.loads(said)} == {"weather", "style", "audio", "rl"}
        states = next(model["about"]["states"] for model in json.loads(said) if model["task"] == "rl")
        name = next(model["name"] for model in json.loads(said) if model["task"] == "rl")
        body = {"observations": [[0.0] * states], "seed": 0}
        status, said = pods.ask("POST", f"{url}/v1/rl/{name}", body, secret, **local)
        assert status == 200 and len(json.loads(said)["actions"]) == 1
        status, said = pods.ask("GET", f"{url}/v1/audio?q=a+dog+barks&top=3", token=secret, **local)
        assert status == 200 and len(json.loads(said)["hits"]) == 3
        status, _ = pods.ask("GET", f"{url}/v1/jobs/{'0' * 32}", token=secret, **local)
        assert status == 501, "videos need a folder"
