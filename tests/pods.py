"""Pods as KubeRay 1.5 makes them of our YAML files, each a machine of namespaces: their commands, variables and probes.

After `ray-operator/controllers/ray/common/pod.go`: what `ray start` is told, which variables a container gets, which
commands say that it is ready. Not there: the autoscaler beside the head, which asks the API server, and the limits of
CPUs and memory, which are those of `SMALL`.
"""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
IMAGE = ROOT / "Dockerfile"
SMALL = {"cpu": "3", "memory": "4Gi"}
TOKEN = "f" * 64
"""The one of Ray, which KubeRay makes and keeps in a Secret."""
BUCKET = "my-bucket"
S3 = "s3"
"""The machine with the bucket."""
WGET = "wget --tries 1 -T 10 -q -O- http://localhost:{}/{} | grep success"


def documented(folder, name):
    """Return a file of docs/kuberay after the line of `sed` of docs/cluster.md."""
    (line,) = re.findall(r"^sed -i .*$", (ROOT / "docs" / "cluster.md").read_text(), re.MULTILINE)
    (folder / "docs" / "kuberay").mkdir(parents=True, exist_ok=True)
    target = folder / "docs" / "kuberay" / f"{name}.yaml"
    target.write_text((ROOT / "docs" / "kuberay" / f"{name}.yaml").read_text())
    subprocess.run(line.replace("*.yaml", f"{name}.yaml"), shell=True, check=True, cwd=folder)
    assert BUCKET in target.read_text() and "BUCKET" not in target.read_text()
    return yaml.safe_load(target.read_text())


def flags(params):
    """Return options as KubeRay writes them: sorted; what is true has no value."""
    return " ".join(f"--{name}" if value == "true" else f"--{name}={value}" for name, value in sorted(params.items()))


def start_line(group, head=""):
    """Return the command of a container; `head`: the name of the head's service, for workers."""
    params = {"block": "true", "dashboard-agent-listen-port": "52365", "metrics-export-port": "8080"}
    params |= {"address": f"{head}:6379"} if head else {"dashboard-host": "0.0.0.0", "no-monitor": "true"}
    params |= {"num-cpus": SMALL["cpu"], "memory": str(int(SMALL["memory"].removesuffix("Gi")) * 2**30)}
    params |= group["rayStartParams"]
    return f"ulimit -n 65536; ray start {'' if head else '--head '}{flags(params)}"


class Pods:
    """The pods of one cluster, its operator, and a bucket."""

    def __init__(self, machines, cluster):
        assert cluster["authOptions"] == {"mode": "token"} and cluster["enableInTreeAutoscaling"]
        self.machines, self.cluster, self.running = machines, cluster, {}
        shim = machines.shared / "bin" / "retable"
        shim.parent.mkdir(exist_ok=True)
        shim.write_text(f'#!/bin/sh\nexec {sys.executable} -W ignore -m retable.platform.cli "$@"\n')
        shim.chmod(0o755)
        self.operator = machines.add("operator")
        self.bucket = machines.add(S3)
        self._serve_bucket()

    def _serve_bucket(self):
        words = [sys.executable, "-m", "moto.server", "-H", "0.0.0.0", "-p", "9000"]
        with (self.machines.shared / "s3.log").open("w") as log:
            self.bucket.start(words, dict(os.environ), stdout=log, stderr=log)
        self.until(lambda: self.ask("PUT", f"http://{S3}:9000/{BUCKET}")[0] == 200, 120)

    def environment(self, name, group, container, head):
        """Return a container's variables: the image's, the file's, KubeRay's, and those that stand for a role."""
        (path,) = re.findall(r"PATH=(\S+):\$PATH", IMAGE.read_text())
        assert path == "/opt/venv/bin"
        image = {
            "PATH": f"/mnt/bin:{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
            "HOME": "/tmp/home",
            "PYTHONPATH": str(ROOT),
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        file = {each["name"]: each["value"] for each in container["env"]}
        kuberay = {
            "RAY_CLUSTER_NAME": "retable",
            "RAY_CLOUD_INSTANCE_ID": name,
            "RAY_NODE_TYPE_NAME": group.get("groupName", "headgroup"),
            "RAY_PORT": "6379",
            "RAY_ADDRESS": f"{head or '127.0.0.1'}:6379",
            "RAY_USAGE_STATS_KUBERAY_IN_USE": "1",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": TOKEN,
        }
        kuberay |= {"FQ_RAY_IP": head, "RAY_IP": head} if head else {}
        role = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_REGION": "us-east-1"}
        role |= {"AWS_ENDPOINT_URL": f"http://{S3}:9000", "OMP_NUM_THREADS": "1"}
        return image | file | kuberay | role

    def start(self, name, group, head="", **more):
        """Start a pod; a worker's waits for the head first, by KubeRay's init container."""
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        machine = self.machines.add(name)
        env = self.environment(name, group, container, head) | more
        user = pod["securityContext"]["runAsUser"]
        machine.call("install", "-d", "-o", str(user), "/tmp/home")
        line = start_line(group, head)
        if head:
            line = f"until ray health-check --address {head}:6379 > /dev/null 2>&1; do sleep 5; done; {line}"
        with (self.machines.shared / f"{name}.log").open("w") as log:
            machine.start(
                ["bash", "-c", f"while true; do {line}; sleep 1; done"],
                env,
                "/tmp/home",
                user=user,
                stdout=log,
                stderr=log,
            )
        self.running[name] = (machine, env, user)
        return machine

    def ready(self, name, serves=False):
        """Return whether KubeRay's probes pass: raylet, GCS on the head, Serve's proxy on workers of a RayService."""
        machine, env, user = self.running[name]
        probes = [WGET.format(52365, "api/local_raylet_healthz")]
        probes += [WGET.format(8265, "api/gcs_healthz")] if name == "head" else []
        probes += [WGET.format(8000, "-/healthz")] if serves and name != "head" else []
        return machine.call("bash", "-c", " && ".join(probes), env=env, user=user)[0] == 0

    def ask(self, method, url, body=None, token="", machine=None, **headers):
        """Send a request from the operator; return its status and what came back."""
        words = ["curl", "-s", "-m", "60", "-X", method, "-w", "\n%{http_code}", url]
        words += ["-H", f"Authorization: Bearer {token}"] if token else []
        words += ["-H", "Content-Type: application/json", "-d", json.dumps(body)] if body is not None else []
        for header, value in headers.items():
            words += ["-H", f"{header}: {value}"]
        text, _, status = (machine or self.operator).call(*words)[1].rpartition("\n")
        return int(status), text

    def until(self, condition, seconds=1800):
        """Wait until something holds; return it."""
        deadline = time.monotonic() + seconds
        while not (found := condition()):
            assert time.monotonic() < deadline, self.logs()
            time.sleep(1)
        return found

    def logs(self):
        return "\n".join(f"{path.name}:\n{path.read_text()[-5000:]}" for path in self.machines.shared.glob("*.log"))
