"""An API server of Kubernetes, as far as the autoscaler beside the head asks it: one RayCluster and its pods.

`python kube_api.py FOLDER PORT` serves, over TLS, what lies in the folder: `cluster.json`, which a patch changes, and
`pods.json`, which whoever plays the operator writes. It knows the service account's token (`token`), and allows what
KubeRay's Role allows it (`ray-operator/controllers/ray/common/rbac.go`): to read pods, to read and patch the cluster.
"""

import json
import os
import re
import ssl
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

NAMESPACE, CLUSTER = "default", "retable"
RAYCLUSTER = f"/apis/ray.io/v1/namespaces/{NAMESPACE}/rayclusters/{CLUSTER}"
PODS = re.compile(rf"/api/v1/namespaces/{NAMESPACE}/pods\?labelSelector=ray\.io/cluster%3D{CLUSTER}", re.IGNORECASE)


def certify(folder, host):
    """Write a certificate of `host` that signs itself, and its key."""
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", f"/CN={host}"]
    words += ["-addext", f"subjectAltName=DNS:{host}"]
    words += ["-keyout", str(folder / "tls.key"), "-out", str(folder / "ca.crt")]
    subprocess.run(words, check=True, capture_output=True)


def write(path, value):
    """Write JSON so that who reads it has the old or the new one."""
    path.with_suffix(".new").write_text(json.dumps(value))
    os.replace(path.with_suffix(".new"), path)


def patched(cluster, patch):
    """Return the cluster after a JSON patch of replaced values (RFC 6902)."""
    for each in patch:
        assert each["op"] == "replace", each
        *way, last = each["path"].strip("/").split("/")
        place = cluster
        for key in way:
            place = place[int(key)] if isinstance(place, list) else place[key]
        place[last] = each["value"]
    return cluster


class Answers(BaseHTTPRequestHandler):
    """Reads and patches; whatever else is forbidden, and stays on the list of requests."""

    folder = Path()

    def do_GET(self):
        if PODS.fullmatch(self.path):
            pods = json.loads((self.folder / "pods.json").read_text())
            self._send(200, {"kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": pods})
        elif self.path == RAYCLUSTER:
            self._send(200, json.loads((self.folder / "cluster.json").read_text()))
        else:
            self._send(403, {"message": "the service account may not"})

    def do_PATCH(self):
        patch = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path != RAYCLUSTER or self.headers["content-type"] != "application/json-patch+json":
            return self._send(403, {"message": "the service account may not"})
        cluster = patched(json.loads((self.folder / "cluster.json").read_text()), patch)
        write(self.folder / "cluster.json", cluster)
        self._send(200, cluster)

    def do_DELETE(self):
        self._send(403, {"message": "the service account may not"})

    def _send(self, status, value):
        token = (self.folder / "token").read_text()
        if self.headers["authorization"] != f"Bearer {token}":
            status, value = 401, {"message": "Unauthorized"}
        with (self.folder / "requests").open("a") as requests:
            requests.write(f"{self.command} {self.path} {status}\n")
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    Answers.folder = Path(sys.argv[1])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(Answers.folder / "ca.crt", Answers.folder / "tls.key")
    server = ThreadingHTTPServer(("0.0.0.0", int(sys.argv[2])), Answers)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.serve_forever()
