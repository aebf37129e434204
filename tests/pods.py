"""Pods as KubeRay 1.5 makes them of our YAML files, each a machine of namespaces: their commands, variables and probes.

After `ray-operator/controllers/ray/common/pod.go`: what `ray start` is told, which variables a container gets, which
commands say that it is ready. Beside the head runs Ray's autoscaler, with the service account's token and certificate;
the API server that it asks is `kube_api`. The limits of CPUs and memory are those of `SMALL`.
"""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import yaml

from tests import kube_api
from tests.machines import SHARED

ROOT = Path(__file__).resolve().parents[1]
IMAGE = ROOT / "Dockerfile"
SMALL = {"cpu": "3", "memory": "4Gi"}
TOKEN = "f" * 64
"""The one of Ray, which KubeRay makes and keeps in a Secret."""
BUCKET = "my-bucket"
S3 = "s3"
"""The machine with the bucket."""
API = "kubernetes.default"
"""The machine with the API server."""
ACCOUNT = "/run/secrets/kubernetes.io/serviceaccount"
"""Where a pod finds who it is; /var/run is /run."""
AUTOSCALER = f"ray kuberay-autoscaler --cluster-name {kube_api.CLUSTER} --cluster-namespace {kube_api.NAMESPACE}"
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

    def __init__(self, machines, cluster, idle=600, **env):
        """Start the bucket, the API server and the head; `idle`: seconds until a worker without work goes."""
        assert cluster["authOptions"] == {"mode": "token"} and cluster["enableInTreeAutoscaling"]
        self.machines, self.cluster, self.env, self.running = machines, cluster, env, {}
        self.api = machines.shared / "api"
        shim = machines.shared / "bin" / "retable"
        shim.parent.mkdir(exist_ok=True)
        shim.write_text(f'#!/bin/sh\nexec {sys.executable} -W ignore -m retable.platform.cli "$@"\n')
        shim.chmod(0o755)
        self.operator = machines.add("operator")
        self.bucket = machines.add(S3)
        self._serve_bucket()
        self._serve_api(idle)
        self.start("head", cluster["headGroupSpec"])
        self.until(lambda: self.ready("head"))

    def _serve_bucket(self):
        words = [sys.executable, "-m", "moto.server", "-H", "0.0.0.0", "-p", "9000"]
        with (self.machines.shared / "s3.log").open("w") as log:
            self.bucket.start(words, dict(os.environ), stdout=log, stderr=log)
        self.until(lambda: self.ask("PUT", f"http://{S3}:9000/{BUCKET}")[0] == 200, 120)

    def _serve_api(self, idle):
        """Serve the file's cluster, with the limits that pods have here: the autoscaler plans by them."""
        self.api.mkdir()
        kube_api.certify(self.api, API)
        (self.api / "token").write_text("of-the-service-account")
        (self.api / "namespace").write_text(kube_api.NAMESPACE)
        spec = json.loads(json.dumps(self.cluster))
        for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
            (container,) = group["template"]["spec"]["containers"]
            gpus = {k: v for k, v in container["resources"]["limits"].items() if k == "nvidia.com/gpu"}
            container["resources"] = {"limits": SMALL | gpus, "requests": SMALL | gpus}
        spec["autoscalerOptions"]["idleTimeoutSeconds"] = idle
        metadata = {"name": kube_api.CLUSTER, "namespace": kube_api.NAMESPACE}
        kube_api.write(self.api / "cluster.json", {"metadata": metadata, "spec": spec})
        words = [sys.executable, kube_api.__file__, f"{SHARED}/api", "443"]
        with (self.machines.shared / "api.log").open("w") as log:
            self.machines.add(API).start(words, dict(os.environ), stdout=log, stderr=log)

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
            "RAY_CLUSTER_NAME": kube_api.CLUSTER,
            "RAY_CLOUD_INSTANCE_ID": name,
            "RAY_NODE_TYPE_NAME": group.get("groupName", "headgroup"),
            "RAY_PORT": "6379",
            "RAY_ADDRESS": f"{head or '127.0.0.1'}:6379",
            "RAY_USAGE_STATS_KUBERAY_IN_USE": "1",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": TOKEN,
            "KUBERNETES_SERVICE_HOST": API,
            "KUBERNETES_SERVICE_PORT_HTTPS": "443",
        }
        kuberay |= {"FQ_RAY_IP": head, "RAY_IP": head} if head else {}
        role = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_REGION": "us-east-1"}
        role |= {"AWS_ENDPOINT_URL": f"http://{S3}:9000", "OMP_NUM_THREADS": "1"}
        return image | file | kuberay | role

    def start(self, name, group, head=""):
        """Start a pod: a worker's waits for the head, by KubeRay's init container; the autoscaler is in the head's."""
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        machine = self.machines.add(name)
        env = self.environment(name, group, container, head) | self.env
        user = pod["securityContext"]["runAsUser"]
        machine.call("install", "-d", "-o", str(user), "/tmp/home")
        secret = " ".join(f"{SHARED}/api/{file}" for file in ("token", "ca.crt", "namespace"))
        mount = f"mount -t tmpfs tmpfs /run && mkdir -p {ACCOUNT} && cp {secret} {ACCOUNT}"
        assert machine.call("sh", "-c", mount)[0] == 0
        line = start_line(group, head)
        if head:
            line = f"until ray health-check --address {head}:6379 > /dev/null 2>&1; do sleep 5; done; {line}"
        lines = [line] if head else [line, AUTOSCALER]
        with (self.machines.shared / f"{name}.log").open("w") as log:
            for line in lines:
                forever = f"while true; do {line}; sleep 1; done"  # restartPolicy: Always
                machine.start(["bash", "-c", forever], env, "/tmp/home", user=user, stdout=log, stderr=log)
        self.running[name] = (machine, env, user)

    def operate(self):
        """Do what the operator does: start and end pods of workers as the cluster says."""
        for group in json.loads((self.api / "cluster.json").read_text())["spec"]["workerGroupSpecs"]:
            for pod in group.get("scaleStrategy", {}).get("workersToDelete", []):
                if pod in self.running:
                    self.running.pop(pod)[0].lose()
            there = [pod for pod in self.workers() if pod.startswith(group["groupName"])]
            for _ in range(group["replicas"] - len(there)):
                self.start(f"{group['groupName']}-{len(self.machines.all)}", group, "head")
        kube_api.write(self.api / "pods.json", [_pod(name, *self.running[name]) for name in self.running])

    def workers(self):
        """Return the names of the pods that the autoscaler asked for."""
        return [pod for pod in self.running if pod != "head"]

    def ready(self, name, serves=False):
        """Return whether KubeRay's probes pass: raylet, GCS on the head, Serve's proxy on workers of a RayService."""
        machine, env, user = self.running[name]
        probes = [WGET.format(52365, "api/local_raylet_healthz")]
        probes += [WGET.format(8265, "api/gcs_healthz")] if name == "head" else []
        probes += [WGET.format(8000, "-/healthz")] if serves and name != "head" else []
        return machine.call("bash", "-c", " && ".join(probes), env=env, user=user)[0] == 0

    def ask(self, method, url, body=None, token="", machine=None, **headers):
        """Send a request from the operator; return its status, 0 where none came in time, and what came back."""
        words = ["curl", "-s", "-m", "30", "-X", method, "-w", "\n%{http_code}", url]
        words += ["-H", f"Authorization: Bearer {token}"] if token else []
        words += ["-H", "Content-Type: application/json", "-d", json.dumps(body)] if body is not None else []
        for header, value in headers.items():
            words += ["-H", f"{header}: {value}"]
        text, _, status = (machine or self.operator).call(*words)[1].rpartition("\n")
        return int(status), text

    def until(self, condition, seconds=1800):
        """Wait until something holds, and be the operator meanwhile; return it."""
        deadline = time.monotonic() + seconds
        while not (found := condition()):
            if self.running:
                self.operate()
            assert time.monotonic() < deadline, self.logs()
            time.sleep(1)
        return found

    def logs(self):
        return "\n".join(f"{path.name}:\n{path.read_text()[-5000:]}" for path in self.machines.shared.glob("*.log"))


def _pod(name, machine, env, user):
    """Return what the API server says of a pod that runs."""
    kind = "head" if name == "head" else "worker"
    labels = {"ray.io/cluster": kube_api.CLUSTER, "ray.io/node-type": kind, "ray.io/group": env["RAY_NODE_TYPE_NAME"]}
    status = {"podIP": machine.ip, "containerStatuses": [{"state": {"running": {}}}]}
    return {"metadata": {"name": name, "labels": labels}, "status": status}
