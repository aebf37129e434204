"""A task beside the papers' is served as `retable new` writes it: chosen, asked over HTTP, and refused in one line."""

import asyncio
import json
import sys

import pytest
from ray.serve._private.build_app import build_app
from starlette.testclient import TestClient

import retable.tasks
from retable.platform.cli.new import write_task
from retable.platform.errors import UserError
from retable.platform.models import export
from retable.serve import application
from retable.serve.ingress.app import routes_of
from retable.serve.ingress.limits import LIMITS
from retable.serve.launch import address, choice, command, models, server

NAME = "fifth"


@pytest.fixture
def task(tmp_path, monkeypatch):
    """Write a task where the package finds it, and forget it afterwards."""
    monkeypatch.setenv("RETABLE_TASKS", str(tmp_path / "papers"))
    write_task(NAME)
    monkeypatch.setattr(retable.tasks, "__path__", [*retable.tasks.__path__, str(tmp_path / "papers")])
    yield tmp_path / "papers" / NAME
    for module in [name for name in sys.modules if name.startswith(f"retable.tasks.{NAME}")]:
        del sys.modules[module]
    if hasattr(retable.tasks, NAME):
        delattr(retable.tasks, NAME)


def exported(about=()):
    from retable.tasks.fifth.config import Config
    from retable.tasks.fifth.export import FORMAT
    from retable.tasks.fifth.model import build

    return export.sealed(build(Config()).state_dict(), export.described(FORMAT, Config(), dict(about)))


@pytest.fixture
def asked(task, storage):
    """Return what posts a file to the ingress, which asks the deployment in this process."""
    from retable.serve.deployments.answers import Answers

    model = choice.of_file(NAME, "perceptron", exported({"fingerprint": "abc"}), "", storage)
    deployment = Answers(storage, NAME, places=2, wait=5.0)
    asyncio.run(deployment.reconfigure(models.config_of([model])))

    async def ask(to, method, *arguments):
        assert to == NAME
        return await getattr(deployment, method)(*arguments)

    client = TestClient(routes_of([model], ask, LIMITS), base_url="http://localhost")
    return lambda place, body: client.post(f"/v1/{NAME}/{place}", content=body)


def test_a_file_is_answered_with_the_options_of_the_task(asked):
    answer = asked("perceptron?file=points.CSV&set=digits=2", b"0.1,0.2\n0.9,0.9\n")
    assert answer.status_code == 200 and answer.headers["content-type"] == "application/json"
    inside = json.loads(answer.content)["inside"]
    assert answer.headers["content-disposition"] == 'inline; filename="answer.json"'
    assert len(inside) == 2 and all(value == round(value, 2) for value in inside)
    assert answer.headers["x-retable-model"] == f"{NAME}/perceptron" and answer.headers["x-retable-run"] == "abc"
    assert asked("perceptron", b"0.1,0.2\n").status_code == 200  # there is only one kind of file


@pytest.mark.parametrize(
    ("place", "body", "status", "why"),
    [
        ("perceptron?file=points.png", b"1,2", 422, "file: got 'points.png', wanted a name that ends in .csv"),
        ("perceptron", b"no numbers", 422, "the file: not rows of numbers such as 0.1,0.5"),
        ("perceptron", b"3e38,-3e38", 422, "the file: numbers too large for the network"),
        ("perceptron", b"0,0\n" * 100_001, 422, "the file: 100001 rows; at most 100000 in one file"),
        ("perceptron", b"1,2,3", 422, "the file: shape (1, 3); wanted are rows of two finite numbers, x and y"),
        ("perceptron?set=digit=2", b"1,2", 422, "unknown field 'digit'; did you mean 'digits'?"),
        ("perceptron?set=digits=" + "[" * 20_000, b"1,2", 422, "digits: '[[["),
        ("perceptron?set=digits", b"1,2", 422, "set digits: write it as path=value"),
        ("perceptrons", b"1,2", 404, "no model 'perceptrons' is served; did you mean 'perceptron'?"),
    ],
)
def test_what_cannot_be_answered_is_refused_in_one_line(asked, place, body, status, why):
    answer = asked(place, body)
    assert answer.status_code == status and json.loads(answer.content)["detail"].startswith(why)


def test_it_is_part_of_the_application_and_of_the_command(task, storage, monkeypatch):
    monkeypatch.setattr(application, "cluster_resources", lambda: {"CPU": 2.0})
    model = choice.of_file(NAME, "perceptron", exported(), "", storage)
    assert NAME in choice.servable() and model.about["files"] == [".csv"]
    said = application.Arguments(tasks=(NAME,), hosts=("localhost",))
    made = application.assemble(said, storage, application.served([model]))
    built = {each.name: each for each in build_app(made, name="retable").deployments}
    assert set(built) == {NAME, "ingress"} and built[NAME].init_args == (storage, NAME)
    line = server.curl(model, address.Address("127.0.0.1", 8000))
    assert line.endswith(f"--data-binary @FILE.csv 'http://127.0.0.1:8000/v1/{NAME}/perceptron?file=FILE.csv'")
    assert command.read_replicas([f"{NAME}=2"], choice.servable())[NAME] == 2


def test_what_a_task_lacks_is_named(task):
    (task / "best.py").unlink()
    assert NAME not in choice.servable()
    with pytest.raises(UserError, match=r"serve: fifth has no best.py, which says which run is the best; docs/"):
        choice.check_servable(NAME)


def test_a_damaged_file_of_it_is_one_line(task, storage):
    from retable.tasks.fifth.export import read_export

    whole = exported()
    for broken in (whole[:50], whole[:-4], b"", whole.replace(b"retable fifth 1", b"retable other 1")):
        with pytest.raises(UserError, match="export the run again"):
            read_export(broken, "model.safetensors")
