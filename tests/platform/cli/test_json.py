"""`--json`: each command's answer has the keys and types that docs/json.md documents, and all of them."""

import json
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

import retable
from retable.platform.cli import app as cli
from retable.platform.cli import runs
from retable.platform.execute import jobs, status
from retable.platform.report.verifying import Checked
from retable.platform.spec import task as tasks
from retable.platform.store.storage import Storage
from tests.json_page import SECTIONS, differences, paths
from tests.platform.made_runs import aged, attempt, begun, finished
from tests.platform.made_table import filled_line

ELSEWHERE = {"retable audio search --json": "tests/audio/test_cli.py"}
"""Sections that the tests of a task compare."""
NODES = [
    {
        "node_ip": "10.0.0.1",
        "state": "ALIVE",
        "is_head_node": True,
        "resources_total": {"CPU": 2, "GPU": 1, "memory": 9},
    }
]
WAITING = [{"state": "PENDING_NODE_ASSIGNMENT", "required_resources": {"CPU": 64}}]


@pytest.fixture(scope="module")
def there(tmp_path_factory):
    """A storage with tables, runs in several states, and one run that nothing names."""
    storage = Storage.open(tmp_path_factory.mktemp("json") / "results")
    filled_line(storage, "quick", published=True)
    finished(storage, rate=0.7)
    aged(storage.root, 86400)
    attempt(begun(storage, seed=7), age=5)
    failed = begun(storage, seed=8)
    attempt(failed, age=600, state="released")
    failed.folder.write_json("failure.json", {"why": "the disk is full", "time": ""})
    failed.folder.write("attempts/0001/traceback.txt", b"Traceback")
    failed.folder.write("attempts/0001/note.txt", b"a note")
    storage.write_json("tables/x.json", {"table": "line/figure1", "scale": "smoke", "set": {}, "rows": ["fast"]})
    return storage


@pytest.fixture
def asked(there, monkeypatch):
    monkeypatch.setattr(tasks, "names", lambda: ["line"])  # the others take seconds to import
    monkeypatch.setenv("RETABLE_STORAGE", there.root)

    def call(*words):
        done = CliRunner().invoke(cli.app, [*map(str, words), "--json"])
        assert done.exit_code == 0, done.exception
        return json.loads(done.stdout)

    return call


def compare(section, *answers):
    """Compare answers with a section; each of its paths must be in one of them."""
    schema, seen = SECTIONS[section], set()
    assert [text for answer in answers for text in differences(answer, schema, seen=seen)] == []
    assert paths(schema) - seen == set(), "documented, and in no answer"


def test_every_command_with_json_has_a_section():
    from tests.platform.cli.test_help import COMMANDS

    with_json = {path for path, command in COMMANDS.items() if any("--json" in p.opts for p in command.params)}
    named = {section.removesuffix(" --json").replace(" TABLE", "").replace(" --list", "") for section in SECTIONS}
    assert named == {path.replace("runs list", "runs") for path in with_json}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({"loss": float("nan"), "best": [-float("inf"), 1.5]}, {"loss": None, "best": [None, 1.5]}),
        ({"why": 'KeyError: password="abc def" is wrong'}, {"why": "KeyError: password=*** is wrong"}),
        ({"why": 'the variable TOKEN="s3cr3t" is unset'}, {"why": "the variable TOKEN=*** is unset"}),
        ({"at": "http://h:80/x?sig=q&n=1", "n": True}, {"at": "http://h:80/x?sig=***&n=1", "n": True}),
        ({"settings": {"password": 'ab"c', "tokens": 3}}, {"settings": {"password": "***", "tokens": 3}}),
        (SimpleNamespace, "<class 'types.SimpleNamespace'>"),
    ],
)
def test_what_is_printed_is_json_without_secrets(capsys, value, shown):
    def refuse(constant):
        raise AssertionError(constant)

    runs.print_json(value)
    assert json.loads(capsys.readouterr().out, parse_constant=refuse) == shown


def test_list(monkeypatch):
    answer = json.loads(CliRunner().invoke(cli.app, ["list", "--json"]).stdout)
    answer["tasks"]["absent"] = {"missing": "retable[absent] is not installed"}
    compare("retable list --json", answer)
    assert answer["tasks"].keys() > {"rl", "line"}


def test_zoo(asked):
    answer = asked("zoo", "weather", "rl")
    compare("retable zoo --json", answer)
    assert answer["rl"]["HalfCheetah-dense"]["score"]["metric"] == "return" and answer["weather"]


def test_a_zoo_is_listed_in_a_few_lines_a_model(asked):
    """Metadata of dozens of lines a model hid what they are."""
    shown = CliRunner().invoke(cli.app, ["zoo", "rl"]).stdout
    assert "score: return 7082, on 10 episodes of HalfCheetah-v5" in shown and "states" not in shown
    assert "trained by (at commit ed434b8): retable reproduce" in shown, "its fields may have other names by now"
    assert shown.count("\n") == 1 + 4 * 5


def test_runs_and_their_limit(asked):
    answer = asked("runs")
    compare("retable runs --json", answer)
    assert {run["state"] for run in answer} >= {"finished", "running", "failed"} and len(answer) > 2
    named = [run["run"] for run in answer]
    assert [run["run"] for run in asked("runs", "--limit", 2)] == named[:2] and len(asked("runs", "--limit", 0)) == len(
        named
    )


def test_show(asked):
    answers = [asked("show", run["run"]) for run in asked("runs", "--sort", "epoch")]
    compare("retable show --json", *answers)


def test_diff(asked):
    running, done = (asked("runs", "--state", state)[0]["run"] for state in ("running", "finished"))
    compare("retable diff --json", asked("diff", running, done))


def test_tables_and_one_in_full(asked):
    listed = asked("tables")
    compare("retable tables --json", listed)
    assert {entry["table"]: entry["filled"] for entry in listed} == {"line/table1": 3, "line/figure1": None}
    (table,) = asked("tables", "line/table1")
    compare("retable tables TABLE --json", [table])
    (fast,) = [row for row in table["rows"] if row["label"] == "fast"]
    assert fast["cells"][0]["published"] == 0.1 and fast["cells"][0]["values"] == [
        each["metrics"]["rmse"] for each in fast["replicates"]
    ]


def test_status(asked, monkeypatch):
    monkeypatch.setattr(
        status, "listing", lambda address, kind: NODES if kind == "nodes" else WAITING if kind == "tasks" else []
    )
    compare("retable status --json", asked("status"), asked("status", "--address", "http://127.0.0.1:8265"))


def test_plan(asked, there, monkeypatch):
    from retable.platform.plan import cost

    monkeypatch.setattr(cost, "learn", lambda plan: {"line": cost.Learnt(1.5, 3)})
    words = ("plan", "line", "--scale", "quick")
    compare("retable plan --json", asked(*words), asked(*words, "--configs"))


def test_bundles(asked, there, tmp_path):
    packed = asked("runs", "pack", "line/table1", "--scale", "quick", "--out", tmp_path / "line.bundle")
    compare("retable runs pack --json", packed)
    taken = asked("runs", "unpack", tmp_path / "line.bundle", "--storage", tmp_path / "other")
    compare("retable runs unpack --json", taken)
    assert len(taken["runs"]) == packed["runs"] > 0


def test_verify(asked, monkeypatch):
    checked = Checked("line", "0" * 16, "agrees within the tolerance", "", 3, 0.02, {"rmse": (1.0, 1.01)})
    monkeypatch.setattr(retable, "verify", lambda *words, **named: [checked])
    compare("retable verify --json", asked("verify", "line.bundle"))


def test_gc(asked):
    compare("retable gc --json", asked("gc"))


def test_jobs_of_a_cluster(asked, monkeypatch):
    job = SimpleNamespace(submission_id="one", status=SimpleNamespace(value="RUNNING"), start_time=1000, end_time=None)
    job.metadata, job.entrypoint = {"retable": "reproduce rl"}, ""
    monkeypatch.setattr(jobs, "connect", lambda address: SimpleNamespace(list_jobs=lambda: [job]))
    answer = asked("submit", "--list")
    compare("retable submit --list --json", answer)
    assert answer[0]["started"] == 1.0 and answer[0]["state"] == "running"


def test_another_key_or_type_is_found():
    schema = SECTIONS["retable gc --json"]
    good = {"delete": False, "found": [{"path": "p", "size": 1, "changed": 1.0, "why": ""}], "notes": []}
    assert differences(good, schema) == []
    for key, value in {"delete": 0, "found": {}, "notes": None, "more": 1}.items():
        assert differences(good | {key: value}, schema), key
    assert differences({**good, "found": [{"path": "p", "size": 1.5, "changed": 1.0, "why": ""}]}, schema)
