"""The files of docs/kuberay: KubeRay's fields, the versions of the lock, the server's own config, and no secrets.

`FIELDS` is our own list of the fields that these files use, with their types, after KubeRay's API reference (v1.7) and
Kubernetes'. A field that is not in it is an error here, as a misspelt one is no error to a cluster: it is dropped. With
KUBERAY_CRDS=FOLDER, where `ray.io_rayclusters.yaml` and its like lie (helm-chart/kuberay-operator/crds of KubeRay), the
files are checked against the whole of KubeRay's own schema, too.
"""

import os
import re
from pathlib import Path

import jsonschema
import pytest
import yaml

from retable.platform.plan.cluster_spec import read_cluster, read_prices

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "kuberay"
KINDS = {"raycluster": "RayCluster", "rayjob": "RayJob", "rayservice": "RayService"}
TEXT, COUNT, YES = {"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "boolean"}
TEXTS = {"type": "object", "additionalProperties": TEXT}


def fields(required=(), **properties):
    """Return the schema of an object with these fields and no others."""
    names = {name.replace("_", "-"): value for name, value in properties.items()}
    return {"type": "object", "properties": names, "required": list(required), "additionalProperties": False}


def every(schema):
    return {"type": "array", "items": schema, "minItems": 1}


SECURITY = fields(("allowPrivilegeEscalation",), allowPrivilegeEscalation=YES, capabilities=fields(drop=every(TEXT)))
CONTAINER = fields(
    ("name", "image", "resources", "securityContext"),
    name=TEXT,
    image=TEXT,
    env=every(fields(("name", "value"), name=TEXT, value=TEXT)),
    securityContext=SECURITY,
    resources=fields(("limits", "requests"), limits=TEXTS, requests=TEXTS),
)
POD = fields(
    ("containers", "securityContext", "serviceAccountName"),
    serviceAccountName=TEXT,
    securityContext=fields(
        ("runAsNonRoot", "runAsUser"),
        runAsNonRoot={"const": True},
        runAsUser={"type": "integer", "minimum": 1},
        runAsGroup=COUNT,
        fsGroup=COUNT,
        seccompProfile=fields(type={"enum": ["RuntimeDefault", "Localhost", "Unconfined"]}),
    ),
    nodeSelector=TEXTS,
    tolerations=every(fields(key=TEXT, operator={"enum": ["Exists", "Equal"]}, effect={"enum": ["NoSchedule"]})),
    terminationGracePeriodSeconds=COUNT,
    containers=every(CONTAINER),
)
TEMPLATE = fields(("spec",), metadata=fields(labels=TEXTS), spec=POD)
GROUP = fields(
    ("groupName", "minReplicas", "maxReplicas", "template"),
    groupName=TEXT,
    replicas=COUNT,
    minReplicas=COUNT,
    maxReplicas=COUNT,
    rayStartParams=TEXTS,
    template=TEMPLATE,
)
CLUSTER = fields(
    ("headGroupSpec", "rayVersion", "authOptions"),
    rayVersion=TEXT,
    authOptions=fields(("mode",), mode={"enum": ["disabled", "token"]}),
    enableInTreeAutoscaling=YES,
    autoscalerOptions=fields(idleTimeoutSeconds=COUNT, securityContext=SECURITY),
    headGroupSpec=fields(("template",), rayStartParams=TEXTS, template=TEMPLATE),
    workerGroupSpecs=every(GROUP),
)
FIELDS = {
    "RayCluster": CLUSTER,
    "RayJob": fields(
        ("entrypoint", "rayClusterSpec"),
        entrypoint=TEXT,
        submissionMode={"enum": ["K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"]},
        backoffLimit=COUNT,
        shutdownAfterJobFinishes=YES,
        ttlSecondsAfterFinished=COUNT,
        rayClusterSpec=CLUSTER,
    ),
    "RayService": fields(("serveConfigV2", "rayClusterConfig"), serveConfigV2=TEXT, rayClusterConfig=CLUSTER),
}


@pytest.fixture(params=KINDS)
def written(request):
    """One of the files, read."""
    return yaml.safe_load((FOLDER / f"{request.param}.yaml").read_text())


def cluster_of(document):
    spec = document["spec"]
    return spec.get("rayClusterSpec") or spec.get("rayClusterConfig") or spec


def pods_of(document):
    cluster = cluster_of(document)
    return [group["template"] for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]


def test_they_have_kuberays_fields_and_no_others(written):
    kind = written["kind"]
    top = fields(
        ("metadata",), apiVersion={"const": "ray.io/v1"}, kind={}, metadata=fields(name=TEXT, generateName=TEXT)
    )
    top["properties"]["spec"] = FIELDS[kind]
    jsonschema.validate(written, top)
    assert sorted(path.stem for path in FOLDER.glob("*.yaml")) == sorted(["common", *KINDS])


def closed(schema):
    """Return Kubernetes' schema such that a field that is not in it is an error, as `kubectl --validate` has it."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    found = {key: value if key == "properties" else closed(value) for key, value in schema.items()}
    if "properties" in schema:
        found["properties"] = {name: closed(value) for name, value in schema["properties"].items()}
        found.setdefault("additionalProperties", False)
    return found


@pytest.mark.skipif("KUBERAY_CRDS" not in os.environ, reason="KUBERAY_CRDS names no folder with KubeRay's schema")
def test_they_fit_the_whole_of_kuberays_schema(written):
    path = Path(os.environ["KUBERAY_CRDS"], f"ray.io_{written['kind'].lower()}s.yaml")
    versions = yaml.safe_load(path.read_text())["spec"]["versions"]
    schema = next(each for each in versions if each["name"] == "v1")["schema"]["openAPIV3Schema"]
    schema["properties"]["metadata"] = {"type": "object"}
    jsonschema.validate(written, closed(schema))


def test_they_are_of_the_locks_ray_and_ask_for_the_token(written):
    locked = re.search(r"^ray==(\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)[1]
    cluster = cluster_of(written)
    assert cluster["rayVersion"] == locked and cluster["authOptions"] == {"mode": "token"}


def test_the_head_only_drives_and_gpus_are_spot_nodes_that_come_and_go(written):
    cluster = cluster_of(written)
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0" and cluster["enableInTreeAutoscaling"]
    groups = {group["groupName"]: group for group in cluster["workerGroupSpecs"]}
    assert all(group["replicas"] == group["minReplicas"] < group["maxReplicas"] for group in groups.values())
    assert groups["cpu"]["minReplicas"] == (written["kind"] == "RayService"), "a server has to answer at once"
    if "gpu" in groups:
        assert groups["gpu"]["minReplicas"] == 0
        assert "spot" in groups["gpu"]["template"]["spec"]["nodeSelector"].values()


def test_no_pod_runs_as_root_or_may_become_it(written):
    for pod in pods_of(written):
        assert pod["spec"]["securityContext"]["runAsNonRoot"] and pod["spec"]["securityContext"]["runAsUser"] == 1000
        for container in pod["spec"]["containers"]:
            security = container["securityContext"]
            assert security == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def test_the_image_is_of_the_locks_python_not_root_and_holds_what_runs():
    image = (ROOT / "Dockerfile").read_text()
    assert "python:3.11" in image and "Python 3.11" in (ROOT / "requirements.lock").read_text()
    assert image.index("USER 1000:1000") < image.index("CMD") and "--compile" in image
    sent = re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    links = [link.resolve().name for link in (ROOT / "retable").iterdir() if link.is_symlink()]
    assert {"retable", "pyproject.toml", "requirements.lock", *links} <= set(sent)
    assert all((ROOT / name).exists() for name in sent)


def selects(selector, labels):
    """Whether Kubernetes' selector chooses something with these labels; an empty one chooses all."""
    assert selector.keys() <= {"matchLabels"}
    return selector.get("matchLabels", {}).items() <= labels.items()


def lets_in(policy, source, port):
    """Whether a policy lets a pod in: `source` has the labels of its namespace and its own, `()`: no pod, an address.

    A rule without `ports` is for all; a peer without `namespaceSelector` is of the policy's own namespace.
    """
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    for rule in policy["spec"]["ingress"]:
        assert rule.keys() <= {"from", "ports"} and rule["from"]
        if port not in [each["port"] for each in rule.get("ports", [{"port": port}])]:
            continue
        for peer in rule["from"] if source else ():
            assert peer.keys() <= {"podSelector", "namespaceSelector"} and "podSelector" in peer
            namespace, labels = source
            own = peer.get("namespaceSelector", {"matchLabels": OWN})
            if selects(own, namespace) and selects(peer["podSelector"], labels):
                return True
    return False


OWN = {"kubernetes.io/metadata.name": "default"}
NAME = "app.kubernetes.io/name"
PORTS = {"gcs": 6379, "dashboard": 8265, "client": 10001, "server": 8000, "metrics": 8080, "agent": 52365}
WHO = {
    "a pod of Ray": ((OWN, {NAME: "retable"}), set(PORTS)),
    "the operator": (({}, {NAME: "kuberay-operator"}), {"dashboard", "server"}),
    "an Ingress": (({"kubernetes.io/metadata.name": "ingress-nginx"}, {NAME: "ingress-nginx"}), {"server"}),
    "who calls itself an Ingress": ((OWN, {NAME: "ingress-nginx"}), set()),
    "a neighbour": ((OWN, {NAME: "web"}), set()),
    "a namesake elsewhere": (({"kubernetes.io/metadata.name": "other"}, {NAME: "retable"}), set()),
    "an address of no pod": ((), set()),
}


@pytest.mark.parametrize("who", WHO)
def test_the_network_policy_says_who_reaches_which_port(who):
    _, policy = yaml.safe_load_all((FOLDER / "common.yaml").read_text())
    source, wanted = WHO[who]
    assert {name for name, port in PORTS.items() if lets_in(policy, source, port)} == wanted


def test_the_network_policy_is_of_every_pod(written):
    account, policy = yaml.safe_load_all((FOLDER / "common.yaml").read_text())
    for pod in pods_of(written):
        assert selects(policy["spec"]["podSelector"], pod["metadata"]["labels"])
        assert pod["spec"]["serviceAccountName"] == account["metadata"]["name"]
    assert "serviceType" not in str(written), "no load balancer, no port of a node"


def test_no_secret_is_written_down():
    paths = [*FOLDER.glob("*.yaml")]
    assert paths
    for path in paths:
        text = path.read_text()
        assert not re.search(r"[0-9a-fA-F]{32}|AKIA|password|secretKeyRef|auth_token", text), path
        for variable in re.findall(r"name: (RAY_AUTH\w*|\w*(?:SECRET|KEY|PASSWORD)\w*)", text):
            raise AssertionError(f"{path}: {variable}")


@pytest.mark.filterwarnings("ignore:Using extra keyword arguments on `Field`")
def test_the_service_is_the_servers_own_config_on_a_shared_storage_with_a_token():
    from retable.serve.application import Arguments

    served = yaml.safe_load(yaml.safe_load((FOLDER / "rayservice.yaml").read_text())["spec"]["serveConfigV2"])
    (application,) = served["applications"]
    arguments = application["args"]
    with pytest.raises(ValueError, match="token_sha256"):
        Arguments.model_validate(arguments)  # until the user has put in the digest
    Arguments.model_validate(arguments | {"token_sha256": "0" * 64})
    assert arguments.pop("token_sha256") == "DIGEST" and arguments.pop("storage") == "s3://BUCKET/retable"
    assert arguments.pop("client_requests") == 0, "behind an Ingress all clients have one address"
    assert served["http_options"].pop("host") == "0.0.0.0", "KubeRay asks the pod whether it lives"
    assert served.pop("proxy_location") == "EveryNode", "KubeRay's service sends requests to workers, too"
    ours = yaml.safe_load((ROOT / "serve" / "config.yaml").read_text())
    assert ours["http_options"].pop("host") == "127.0.0.1" and ours.pop("proxy_location") == "HeadOnly"
    assert ours["applications"][0]["args"].pop("storage") == "results"
    assert served == ours


def test_the_job_is_a_command_of_ours():
    job = yaml.safe_load((FOLDER / "rayjob.yaml").read_text())["spec"]
    assert job["entrypoint"].startswith("retable reproduce --scale paper") and job["shutdownAfterJobFinishes"]


def test_a_plan_reads_them(written):
    name = next(name for name, kind in KINDS.items() if kind == written["kind"])
    found = read_cluster(str(FOLDER / f"{name}.yaml"), read_prices(str(ROOT / "prices.toml")))
    assert found.head.cpus == 0 and found.head.instance == "m7i.xlarge" and found.idle == pytest.approx(1 / 6)
    workers = {kind.name: (kind.cpus, kind.gpus, kind.least, kind.most, kind.spot) for kind in found.workers}
    assert workers["cpu"] == (15, 0, int(name == "rayservice"), 4, False)
    assert workers.get("gpu", (15, 1, 0, 8, True)) == (15, 1, 0, 8, True)
