"""Bundles: what is packed fills the same cells elsewhere, and nothing that is sent can do harm."""

import dataclasses
import io
import json
import lzma
import random
import shutil
import sys
import tarfile
import tracemalloc
from collections import Counter
from hashlib import sha256
from pathlib import Path

import pytest

from retable.platform import api
from retable.platform.cli import app as cli
from retable.platform.cli.app import print_section
from retable.platform.config import fingerprint, flatten
from retable.platform.errors import UserError
from retable.platform.execute.scoring import measure_one
from retable.platform.execute.session import ray_cluster
from retable.platform.plan.gc import unused_bundles
from retable.platform.plan.plan import compile_plan, left_out
from retable.platform.report import describe, packing
from retable.platform.report.html import render
from retable.platform.report.render import bundled, came, markdown
from retable.platform.report.results import fill
from retable.platform.report.verifying import _compared, _data_of, _Sent, other_conditions, same
from retable.platform.report.write import fill_and_keep, write_report
from retable.platform.spec.table import Combined, Row
from retable.platform.store import bundle
from retable.platform.store.query import list_runs
from retable.platform.store.run import RunFolder
from retable.platform.store.storage import Storage
from tests.platform.bundles import (
    LINE,
    files_of,
    fresh,
    measured,
    members_of,
    planned,
    reproduced,
    table,
    work_off,
    written,
)
from tests.platform.made_runs import finished
from tests.platform.made_table import filled_line


@pytest.fixture(scope="module")
def sender(tmp_path_factory):
    """A storage on which the tables of `line` are filled."""
    storage = Storage.open(tmp_path_factory.mktemp("sender") / "results")
    reproduced(storage)
    return storage


@pytest.fixture(scope="module")
def packed(sender, tmp_path_factory):
    """A bundle of them."""
    file = tmp_path_factory.mktemp("packed") / "line.bundle"
    api.pack("line", out=file, scale="smoke", storage=sender)
    return file


@pytest.fixture(scope="module")
def contents(packed):
    return members_of(packed)


def cells(storage):
    filled = {}
    for part in fill_and_keep(plan_of(storage)).values():
        for row in part.rows:
            filled[part.name, row.label] = [cell.values for cell in row.cells], [r.metrics for r in row.replicates]
    return filled


def plan_of(storage):
    return api.plan("line/table1", "line/figure1", scale="smoke", storage=storage)


def said(error):
    """Return a refusal, which is one line without anything that moves a cursor."""
    text = str(error.value)
    assert text.isprintable() and 20 < len(text) < 600 and ";" in text
    return text


# Packing and unpacking -------------------------------------------------------------------------------------------


def test_a_bundle_fills_the_same_tables_elsewhere_without_the_data(sender, packed, tmp_path):
    there = fresh(tmp_path)
    taken = api.unpack(packed, storage=there)
    assert not there.exists("data") and len(taken.runs) == len(sender.list("runs/line")) and not taken.kept
    assert cells(there) == cells(sender) and not plan_of(there).missing and plan_of(there).nothing_to_do
    verdicts = [[(c.text, c.status, c.because) for p in fill_and_keep(plan_of(s)).values() for c in p.claims]
                for s in (sender, there)]  # fmt: skip
    assert verdicts[0] == verdicts[1] and verdicts[0]
    assert fill_and_keep(plan_of(there))["line/table1"].data == ("64 generated points",)


def test_a_bundle_is_an_archive_that_other_programs_read_and_holds_no_weights(contents, packed, sender):
    about = json.loads(contents["bundle.json"])
    listed = {path: (size, digest) for path, size, digest in about["members"]}
    assert listed == {
        path: (len(data), sha256(data).hexdigest()) for path, data in contents.items() if path != "bundle.json"
    }
    for path, data in contents.items():
        if path.split("/")[0] == "runs" and path.endswith(("config.json", "metrics.jsonl", "summary.npz")):
            assert data == Path(sender.root, path).read_bytes()
    assert not any("weights/" in path or "tensorboard" in path or "checkpoint" in path for path in contents)
    assert about["data"] == {"line/points": {"points": 64, "digest": "64 points"}}
    assert {(each["table"], each["scale"]) for each in about["tables"]} == {
        ("line/table1", "smoke"),
        ("line/figure1", "smoke"),
    }


def test_what_is_packed_again_elsewhere_is_the_same(contents, packed, tmp_path):
    there = fresh(tmp_path)
    api.unpack(packed, storage=there)
    api.pack(out=tmp_path / "again.bundle", scale="smoke", storage=there)
    again = members_of(tmp_path / "again.bundle")
    assert {k: v for k, v in again.items() if k != "bundle.json"} == {
        k: v for k, v in contents.items() if k != "bundle.json"
    }


def test_only_what_the_tables_need_is_packed(sender, tmp_path):
    api.pack("line/figure1", out=tmp_path / "f.bundle", scale="smoke", storage=sender)
    runs = {path.split("/")[2] for path in members_of(tmp_path / "f.bundle") if path.startswith("runs/")}
    assert runs == {each.folder.fingerprint for each in api.plan("line/figure1", storage=sender).trainings.values()}
    assert not any(path.startswith("combinations") for path in members_of(tmp_path / "f.bundle"))
    with pytest.raises(UserError, match="no finished run of these tables at scale paper"):
        api.pack("line", out=tmp_path / "p.bundle", scale="paper", storage=fresh_with_data(tmp_path))
    with pytest.raises(UserError, match="there is nothing here"):
        api.pack("line", out=tmp_path / "p.bundle", storage=tmp_path / "nowhere")
    assert not (tmp_path / "p.bundle").exists() and not list(tmp_path.glob(".writing*"))


def test_chosen_rows_are_packed_alone(sender, tmp_path):
    chosen = api.plan("line", scale="smoke", rows=["slow", "fast"], storage=sender)
    packed = api.pack("line", out=tmp_path / "rows.bundle", scale="smoke", rows=["slow", "fast"], storage=sender)
    files = members_of(tmp_path / "rows.bundle")
    runs = {path.split("/")[2] for path in files if path.startswith("runs/")}
    assert runs == {each.folder.fingerprint for each in chosen.trainings.values()}
    assert runs < set(sender.list("runs/line")) and packed.tables == list(chosen.tables)
    with pytest.raises(UserError, match="--rows: name the tables"):
        api.pack(out=tmp_path / "none.bundle", scale="smoke", rows="slow", storage=sender)
    with pytest.raises(UserError, match="no row"):
        api.pack("line", out=tmp_path / "none.bundle", scale="smoke", rows="nosuch", storage=sender)


def fresh_with_data(folder):
    storage = fresh(folder)
    LINE.dataset.prepare(LINE.config(), storage)
    return storage


def test_each_cell_says_that_it_was_sent_when_and_where_it_was_measured(packed, tmp_path):
    there = fresh(tmp_path)
    api.unpack(packed, storage=there)
    part = fill_and_keep(plan_of(there))["line/table1"]
    for label in ("fast", "mean of both"):
        origin = next(row for row in part.rows if row.label == label).replicates[0].origin
        for leaf in origin.members or (origin,):
            told = came(leaf)
            assert "measured 2026-11-20T10:00:00Z on sender (a fast one, 8 cores)" in told and "packed 20" in told
    count = len({leaf.run for r in part.rows for e in r.replicates for leaf in e.origin.members or (e.origin,)})
    assert [line.split(" packed ")[0] for line in bundled(part)] == [f"{count} of {count} runs came in a bundle"]
    whole = write_report(there)
    assert "came in a bundle packed" in whole.read("report.md").decode() + whole.read("index.html").decode()
    assert "measured 2026-11-20T10:00:00Z on sender" in whole.read("details.js").decode()
    assert {run.bundle for run in api.runs(storage=there)} == {packing_id(packed)[:16]}


def packing_id(file):
    return sha256(Path(file).read_bytes()).hexdigest()


def test_runs_that_are_here_are_kept(sender, packed, tmp_path):
    shutil.copytree(sender.root, tmp_path / "copy")
    there = Storage.open(tmp_path / "copy")
    before = files_of(there.root)
    taken = api.unpack(packed, storage=there)
    assert not taken.runs and len(taken.kept) == len(sender.list("runs/line")) + taken_combinations(sender)
    after = files_of(there.root)
    assert {path: after[path] for path in before} == before
    new = after.keys() - before.keys()
    assert all(path.startswith("bundles/") or path.endswith("shards.json") for path in new)


def taken_combinations(storage):
    return len(storage.list("combinations/line"))


def test_an_unfinished_run_is_kept_and_a_half_unpacked_one_is_not(sender, packed, tmp_path, monkeypatch):
    there = fresh(tmp_path)
    first, second = sender.list("runs/line")[:2]
    there.write_json(f"runs/line/{first}/attempts/0001/x.json", {"state": "running"})
    write = Storage.write

    def dies(self, path, data):
        if path.endswith(f"{second}/result.json"):
            raise KeyboardInterrupt
        write(self, path, data)

    monkeypatch.setattr(Storage, "write", dies)
    with pytest.raises(KeyboardInterrupt):
        api.unpack(packed, storage=there)
    assert there.exists(f"runs/line/{second}/config.json") and not there.exists(f"runs/line/{second}/result.json")
    monkeypatch.undo()
    taken = api.unpack(packed, storage=there)
    assert f"run {first}, which is not finished" in taken.kept and second in taken.runs
    assert not there.exists(f"runs/line/{first}/config.json")


def test_a_run_that_another_command_begins_or_finishes_meanwhile_is_kept(sender, packed, tmp_path, monkeypatch):
    there, choose = fresh(tmp_path), packing._Taker.choose
    begun, ended, third = sorted(sender.list("runs/line"))[:3]

    def meanwhile(self, every):
        choose(self, every)
        there.write_json(f"runs/line/{begun}/attempts/0001/x.json", {"state": "running"})
        there.write_json(f"runs/line/{ended}/result.json", {"own": True})

    monkeypatch.setattr(packing._Taker, "choose", meanwhile)
    taken = api.unpack(packed, storage=there)
    assert [each for each in taken.kept if each.endswith("which another command began meanwhile")] == [
        f"run {run}, which another command began meanwhile" for run in (begun, ended)
    ]
    assert not {begun, ended} & {*taken.runs} and third in taken.runs
    assert set(files_of(Path(there.root, "runs/line", begun))) == {"attempts/0001/x.json"}
    assert there.read_json(f"runs/line/{ended}/result.json") == {"own": True}


def test_the_storage_is_asked_a_few_times_for_a_run_not_for_each_of_its_files(contents, packed, tmp_path, monkeypatch):
    """Once when runs are chosen, once when the first file is written, and before what makes the run count."""
    there, asked = fresh(tmp_path), Counter()
    newest = packing.lease.newest_number

    def counted(folder):
        asked[folder.fingerprint] += 1
        return newest(folder)

    monkeypatch.setattr(packing.lease, "newest_number", counted)
    taken = api.unpack(packed, storage=there)
    files = Counter(path.split("/")[2] for path in contents if path.startswith("runs/"))
    assert set(asked) == set(taken.runs) and min(files.values()) > 3
    assert set(asked.values()) == {3}


def test_a_sent_run_whose_new_training_was_interrupted_can_be_taken_again(sender, packed, tmp_path):
    """A training that begins again removes the sent result at once."""
    there = fresh(tmp_path)
    api.unpack(packed, storage=there)
    run = sender.list("runs/line")[0]
    for name in ("result.json", "provenance.json"):
        there.remove(f"runs/line/{run}/{name}")
    there.write_json(f"runs/line/{run}/attempts/0001/x.json", {"state": "released", "beat": 1})
    taken = api.unpack(packed, storage=there)
    assert run in taken.runs and there.exists(f"runs/line/{run}/result.json")


def test_data_are_described_by_whichever_run_came(sender, packed, tmp_path):
    """The first run of a table may not be in the bundle, or may lack its provenance."""
    there = fresh(tmp_path)
    api.unpack(packed, storage=there)
    before = fill(plan_of(there), "line/table1").data
    for replicate in plan_of(there).replicates["line/table1"]["slow"]:
        there.remove(RunFolder.of(there, LINE, replicate.config).path)
    first = RunFolder.of(there, LINE, plan_of(there).replicates["line/table1"]["fast"][0].config)
    there.remove(f"{first.path}/provenance.json")
    assert fill(plan_of(there), "line/table1").data == before != ()


def test_other_data_and_other_versions_are_named_and_do_not_count(packed, contents, sender, tmp_path):
    there = fresh_with_data(tmp_path)
    there.write_json("data/line/points/dataset.json", {"points": 64, "digest": "other points"})
    taken = api.unpack(packed, storage=there)
    assert sorted(taken.other_data) == sender.list("runs/line") and "of other data" in " ".join(taken.lines())
    assert {each.status for each in plan_of(there).trainings.values()} == {"data changed"}
    run = sender.list("runs/line")[0]
    config = json.loads(contents[f"runs/line/{run}/config.json"])
    changed = {f"runs/line/{run}/config.json": json.dumps(config | {"version": 7}).encode()}
    file = written(tmp_path / "version.bundle", contents | changed)
    taken = api.unpack(file, storage=Storage.open(tmp_path / "two"))
    assert taken.other_version == [run] and not Path(tmp_path, "two", "runs", "line", run).exists()


def test_a_run_whose_config_is_not_the_one_it_is_named_by_is_not_taken(contents, sender, tmp_path):
    one, other = sender.list("runs/line")[:2]
    swapped = {f"runs/line/{one}/{name}": contents[f"runs/line/{other}/{name}"] for name in ("config.json",)}
    taken = api.unpack(written(tmp_path / "swapped.bundle", contents | swapped), storage=fresh(tmp_path))
    assert taken.other_version == [one] and one not in taken.runs


def test_a_table_that_this_version_does_not_have_is_not_taken(contents, tmp_path):
    request = {"table": "line/table1", "scale": "smoke", "set": {}}
    good = [path.removeprefix("tables/") for path in contents if path.startswith("tables/")]
    bad = {
        "tables/field.json": request | {"set": {"no field": 1}},
        "tables/task.json": request | {"table": "no/table1"},
    }
    added = {path: json.dumps(each).encode() for path, each in bad.items()}
    there = fresh(tmp_path)
    taken = api.unpack(written(tmp_path / "foreign.bundle", contents | added), storage=there)
    assert sorted(taken.other_version) == [*bad] and there.list("tables") == sorted(good)
    assert "tables/field.json" in " ".join(taken.lines())


# What builds on a run that was sent ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """A storage with a table that has a measurement, a child and a combination, and bundles of it."""
    folder = tmp_path_factory.mktemp("wide")
    storage = Storage.open(folder / "results")
    work_off(lambda: planned(storage))
    measured(storage, planned(storage))
    return storage


@pytest.fixture
def sent(wide, tmp_path, monkeypatch):
    """Return a storage that took a bundle of that, packed with some options."""
    monkeypatch.setattr(packing, "plan_of", lambda request, storage: planned(storage))

    def take(**options):
        api.pack("line/table1", out=tmp_path / "wide.bundle", scale="smoke", storage=wide, **options)
        there = fresh(tmp_path)
        api.unpack(tmp_path / "wide.bundle", storage=there)
        return there

    return take


def statuses(plan):
    return {
        (each.config.rate, each.config.seed, type(each.config.init).__name__): each.status
        for each in plan.trainings.values()
        if each.status != "done"
    }


GRANDCHILD = {"init": "parent", "init.overrides": [["init", "parent"], ["rate", 0.01]], "rate": 0.02}


def test_nothing_is_trained_for_the_cells_alone(sent):
    there = sent()
    plan = planned(there)
    assert not plan.missing and not plan.unscored and not plan.uncombined and len(plan.unmeasured) == 2
    part = fill(plan, "line/table1")
    assert all(cell.mean is not None for row in part.rows[:5] for cell in row.cells[:1])


def test_a_child_makes_the_plan_train_its_ancestors_again_that_were_sent_without_weights(sent):
    there = sent()
    plan = planned(there, Row(label="twice", overrides=GRANDCHILD, view={}))
    child = {(0.02, seed, "Parent"): "new" for seed in (0, 1)}
    again = {(0.01, seed, "Parent"): "weights not sent" for seed in (0, 1)}
    root = {(0.1, seed, "Scratch"): "weights not sent" for seed in (0, 1)}
    assert statuses(plan) == child | again | root
    assert cli.sent_notes(plan)[0] == f"{len(plan.trainings) - 2} runs"
    assert cli.sent_notes(plan)[1].startswith("4 to train again, as weights are needed that were not sent: line ")
    assert [each.wave for each in plan.missing] == sorted(each.wave for each in plan.missing)
    assert fill(plan, "line/table1").rows[1].cells[0].mean is not None  # its numbers still count
    assert fill(plan, "line/table1").rows[4].cells[0].mean is not None


def test_all_views_of_a_run_that_is_trained_again_are_scored_again(sent):
    """Other weights may come of it; the numbers that were there would be gone until the next command."""
    there = sent()
    folder = next(t for t in planned(there).trainings.values() if t.config.rate == 0.1 and t.config.seed == 0).folder
    shutil.rmtree(min(Path(there.root, folder.path, "views").iterdir()))
    plan = planned(there)
    assert plan.trainings[folder.path].status == "weights not sent"
    views = [each for each in plan.scorings.values() if each.folder.path == folder.path]
    assert len(views) > 1 and not any(each.done for each in views)


@pytest.mark.parametrize("options", [{"weights": True}, {}])
def test_a_view_that_was_not_scored_needs_weights(sent, options):
    there = sent(**options)
    view = Row(label="second", overrides={"rate": 0.001}, view={"epoch": 3})
    assert not statuses(planned(there, view))  # that is the last epoch, which was scored
    again = Row(label="mean", overrides={"rate": 0.1}, view={"epoch": 1})
    first = statuses(planned(there, again))
    assert first == {}  # epoch 1 of the fast run came with scores
    folder = next(t for t in planned(there).trainings.values() if t.config.rate == 0.001 and t.config.seed == 0).folder
    shutil.rmtree(Path(there.root, folder.path, "views"))
    wanted = {} if options else {(0.001, 0, "Scratch"): "weights not sent"}
    assert statuses(planned(there)) == wanted


def test_a_combination_that_is_to_be_made_needs_predictions(sent):
    there = sent()
    more = Combined(label="three", of=("slow", "fast", "first"), combine=table().rows[4].combine)
    assert set(statuses(planned(there, more)).values()) == {"weights not sent"}
    assert {key[0] for key in statuses(planned(there, more))} == {0.001, 0.1}


def test_without_training_rows_that_need_weights_are_left_out_and_the_others_stay(sent):
    there = sent()
    rows = table(Row(label="twice", overrides=GRANDCHILD, view={}))
    plan = compile_plan({"line/table1": (LINE, rows)}, there, train=False)
    assert plan.nothing_to_do and left_out(plan, "line/table1") == {"not trained": ["twice"]}
    for folder in Path(there.root, "runs", "line").iterdir():
        shutil.rmtree(folder / "views")
    plan = compile_plan({"line/table1": (LINE, table())}, there, train=False)
    why = "to be scored, but the weights did not come with the bundle"
    assert left_out(plan, "line/table1")[why] == ["slow", "fast", "first", "fine-tuned"] and plan.nothing_to_do


def test_a_campaign_goes_on_elsewhere(wide, tmp_path, monkeypatch):
    """Stop one run half way; its checkpoint, and weights of the parent of what is not trained yet, go along."""
    shutil.copytree(wide.root, tmp_path / "copy")
    there = Storage.open(tmp_path / "copy")
    child = next(t for t in planned(there).trainings.values() if t.config.rate == 0.01 and t.config.seed == 0)
    there.remove(child.folder.path)
    slow = next(t for t in planned(there).trainings.values() if t.config.rate == 0.001 and t.config.seed == 0)
    there.remove(f"{slow.folder.path}/result.json")
    state = {"weights": slow.folder.storage and load(slow.folder), "progress": {}}
    slow.folder.save_checkpoint(16, state)
    for combination in there.list("combinations/line"):
        there.remove(f"combinations/line/{combination}")
    monkeypatch.setattr(packing, "plan_of", lambda request, storage: planned(storage))
    packed = api.pack("line/table1", out=tmp_path / "r.bundle", scale="smoke", storage=there, resume=True)
    assert packed.unfinished == 1
    paths = set(members_of(tmp_path / "r.bundle"))
    parent = next(t for t in planned(there).trainings.values() if t.config.rate == 0.1 and t.config.seed == 0)
    assert f"{parent.folder.path}/weights/epoch-0003.safetensors" in paths
    assert (
        f"{slow.folder.path}/checkpoint-00000016/state.pt" in paths and slow.folder.path + "/result.json" not in paths
    )
    assert any(path.endswith("predictions.npz") for path in paths)
    elsewhere = fresh(tmp_path)
    taken = api.unpack(tmp_path / "r.bundle", storage=elsewhere)
    assert taken.resumed == [slow.folder.fingerprint]
    assert statuses(planned(elsewhere)) == {(0.01, 0, "Parent"): "new", (0.001, 0, "Scratch"): "to be continued"}
    loaded = RunFolder(elsewhere, "line", slow.folder.fingerprint).load_checkpoint(16)
    assert all((loaded["weights"][name] == value).all() for name, value in state["weights"].items())


def load(folder):
    from safetensors.torch import load_file

    return load_file(f"{folder.storage.root}/{folder.path}/weights/epoch-0003.safetensors")


def test_measurements_that_were_sent_fill_and_never_count_as_taken_here(sent, wide):
    there = sent()
    plan = planned(there)
    assert {timing.done for timing in planned(wide).timings.values()} == {True}
    assert {timing.done for timing in plan.timings.values()} == {False}
    row = fill(plan, "line/table1").rows[5]
    assert row.cells[1].values == (9.0, 9.0) and "a fast one" in came(row.replicates[0].origin)
    for timing in plan.timings.values():
        assert measure_one(timing.row, timing.config, there, timing.stem) is None
    assert {timing.done for timing in planned(there).timings.values()} == {True}
    row = fill(planned(there), "line/table1").rows[5]
    assert min(row.cells[1].values) > 0 and 9.0 not in row.cells[1].values and not came(row.replicates[0].origin)


def test_what_a_first_bundle_lacked_a_second_adds(wide, sent, tmp_path):
    there = sent()
    before = files_of(there.root)
    api.pack("line/table1", out=tmp_path / "more.bundle", scale="smoke", storage=wide, weights=True)
    taken = api.unpack(tmp_path / "more.bundle", storage=there)
    after = files_of(there.root)
    assert not taken.runs and {path: after[path] for path in before} == before
    added = after.keys() - before.keys()
    assert {path.split("/")[3] for path in added if path.startswith("runs/")} == {"weights"}


# Files that are damaged or hostile -------------------------------------------------------------------------------


def refuse(file, folder):
    """Unpack a bad bundle; return the one line. Nothing may be written."""
    storage = fresh(folder)
    with pytest.raises(UserError) as error:
        api.unpack(file, storage=storage)
    assert not Path(storage.root).exists()
    return said(error)


HOSTILE = {
    "../outside": "no file of a bundle",
    "/etc/outside": "no file of a bundle",
    "runs/line/../../../outside": "no file of a bundle",
    "runs/line/0123456789abcdef/../../x/result.json": "no file of a bundle",
    "data/line/points/dataset.json": "no file of a bundle",
    "weights/x.safetensors": "no file of a bundle",
    "report/index.html": "no file of a bundle",
    "runs/line/0123456789abcdef/owner.json": "no file of a bundle",
    "runs/line/0123456789abcdef/attempts/0001/x.json": "no file of a bundle",
    "runs/line/0123456789ABCDEF/result.json": "no file of a bundle",
    "runs/line/0123456789abcdef/views/.hidden/scores.json": "no file of a bundle",
    "runs/line/0123456789abcdef/views/a\\b/scores.json": "no file of a bundle",
    "runs/line/0123456789abcdef/views/C:/scores.json": "no file of a bundle",
    "runs/line/0123456789abcdef/views/a\x1b[2J/scores.json": "no file of a bundle",
    "runs/line/0123456789abcdef/views/a\nb/scores.json": "no file of a bundle",
    "runs/line/0123456789abcdef/weights/epoch-0003.safetensors": "no file of a bundle",
    "tables/../../x.json": "no file of a bundle",
    "": "no file of a bundle",
}


@pytest.mark.parametrize("path", HOSTILE)
def test_names_that_leave_the_storage_or_are_no_file_of_a_bundle_are_refused(path, contents, tmp_path):
    assert HOSTILE[path] in refuse(written(tmp_path / "bad.bundle", {**contents, path: b"{}"}), tmp_path)


@pytest.mark.parametrize("kind", "1 2 3 4 5 6 7 x g S".split())
def test_links_devices_and_extended_headers_are_refused(kind, contents, tmp_path):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        info = tarfile.TarInfo("bundle.json")
        info.size = len(contents["bundle.json"])
        archive.addfile(info, io.BytesIO(contents["bundle.json"]))
        path = next(path for path in contents if path != "bundle.json")
        info = tarfile.TarInfo(path)
        info.type, info.linkname = kind.encode(), "/etc/passwd"
        archive.addfile(info)
    (tmp_path / "bad.bundle").write_bytes(lzma.compress(buffer.getvalue()))
    refuse(tmp_path / "bad.bundle", tmp_path)


def test_a_manifest_and_archive_that_disagree_are_refused(contents, packed, tmp_path):
    about = json.loads(contents["bundle.json"])
    some = list(contents)[1]
    bad = {
        "one member less": {path: data for path, data in contents.items() if path != some},
        "one more": {**contents, "tables/more.json": b"{}"},
        "other content": {**contents, some: contents[some][:-1] + b"x"},
        "longer": {**contents, some: contents[some] + b" "},
        "another order": dict(sorted(contents.items(), key=lambda each: (each[0] != "bundle.json", each[0]))),
    }
    for name, what in bad.items():
        file = raw(tmp_path / "bad.bundle", {**what, "bundle.json": contents["bundle.json"]})
        assert "damaged" in refuse(file, tmp_path), name
    for change in ({"format": 2}, {"format": "1"}, {"packed": 3}, {"tables": {}}, {"host": None}):
        refuse(written(tmp_path / "bad.bundle", contents, **change), tmp_path)
    for members in (None, {}, [[some]], [[some, -1, "0" * 64]], [[some, 1 << 50, "0" * 64]], [[some, 1, "x"]], [3]):
        manifest = {"bundle.json": json.dumps(about | {"members": members}).encode()}
        refuse(raw(tmp_path / "bad.bundle", contents | manifest), tmp_path)
    manifest = {"bundle.json": json.dumps(about | {"members": about["members"] * 2}).encode()}
    twice = raw(tmp_path / "bad.bundle", contents | manifest)
    assert "one path" in refuse(twice, tmp_path)
    for data in (packed.read_bytes() + b"x", packed.read_bytes() + packed.read_bytes(), b"", b"\xfd7zXZ\x00"):
        (tmp_path / "bad.bundle").write_bytes(data)
        refuse(tmp_path / "bad.bundle", tmp_path)


def raw(file, contents):
    """Write an archive as it is, the manifest first."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path in ("bundle.json", *(path for path in contents if path != "bundle.json")):
            info = tarfile.TarInfo(path)
            info.size = len(contents[path])
            archive.addfile(info, io.BytesIO(contents[path]))
    file.write_bytes(lzma.compress(buffer.getvalue()))
    return file


def test_bombs_are_refused_in_bounded_memory_and_time(contents, tmp_path, monkeypatch):
    """Sizes in headers are checked before anything of that size is read; so is what decompression takes."""
    huge = tarfile.TarInfo("bundle.json")
    huge.size = 1 << 40
    zeros = lzma.LZMACompressor()
    data = zeros.compress(huge.tobuf(tarfile.GNU_FORMAT) + bytes(1 << 20)) + zeros.flush()
    (tmp_path / "bad.bundle").write_bytes(data)
    refuse(tmp_path / "bad.bundle", tmp_path)
    below = tarfile.TarInfo("././@LongLink")
    below.type = tarfile.GNUTYPE_LONGNAME
    header = bytearray(below.tobuf(tarfile.GNU_FORMAT))
    header[124:136] = tarfile.itn(-512, 12, tarfile.GNU_FORMAT)  # the format can write sizes below 0
    header[148:156] = b"%06o\0 " % tarfile.calc_chksums(bytes(header))[0]
    (tmp_path / "bad.bundle").write_bytes(lzma.compress(bytes(header) + bytes(1 << 20)))
    assert "a path is too long" in refuse(tmp_path / "bad.bundle", tmp_path)
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 30}]
    (tmp_path / "bad.bundle").write_bytes(lzma.compress(bytes(1000), filters=filters))
    assert "limit" in refuse(tmp_path / "bad.bundle", tmp_path)
    monkeypatch.setattr(bundle, "TOTAL", (10_000, 10_000))
    assert "more than a bundle may hold" in refuse(written(tmp_path / "bad.bundle", contents), tmp_path)


def test_what_unpacking_holds_does_not_grow_with_what_runs_say(contents, tmp_path, monkeypatch):
    """Thirty runs of 0.1 MB, of which the parsed JSON is several times as much, take the memory of a few."""
    monkeypatch.setattr(packing, "HELD", 0)
    metrics = {f"{number:x}": number for number in range(6_000)}
    files = {"bundle.json": contents["bundle.json"]}
    for seed in range(30):
        config = dataclasses.replace(LINE.config(), seed=seed)
        place = f"runs/line/{fingerprint('line', LINE.version, config)}"
        about = {"task": "line", "version": LINE.version, "config": flatten(config)}
        result = {"data": "64 points", "metrics": metrics | {"epoch": 3}, "weights": {}, "seconds": 1.0}
        files[f"{place}/result.json"] = json.dumps(result).encode()
        files[f"{place}/config.json"] = json.dumps(about).encode()
    file, there = written(tmp_path / "many.bundle", files), fresh(tmp_path)
    tracemalloc.start()
    try:
        taken = api.unpack(file, storage=there)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(taken.runs) == 30 and peak < 30e6
    for path, data in files.items():
        if path.endswith("result.json"):
            assert json.loads(there.read(path))["metrics"] == json.loads(data)["metrics"]


def mutations(data, count):
    """Yield a file with bytes changed, cut, repeated, or of its archive so and compressed again."""
    generator = random.Random(0)
    plain = lzma.decompress(data)
    for number in range(count):
        inner = number % 2 == 0
        bad = bytearray(plain if inner else data)
        way = generator.choice(("flip", "flip", "cut", "double", "insert", "zero", "text", "digit"))
        place = generator.randrange(len(bad)) if generator.random() < 0.5 else generator.randrange(min(4096, len(bad)))
        if way == "flip":
            for _ in range(generator.randint(1, 4)):
                bad[generator.randrange(len(bad))] ^= 1 << generator.randrange(8)
        elif way == "cut":
            del bad[place:]
        elif way == "double":
            bad[place:place] = bad[place : place + generator.randint(1, 2048)]
        elif way == "insert":
            bad[place:place] = generator.randbytes(generator.randint(1, 600))
        elif way == "zero":
            bad[place : place + 512] = bytes(min(512, len(bad) - place))
        elif way == "text":
            bad[place : place + 12] = generator.choice(
                (b"../../../../", b"/etc/passwd\0", b"\x1b[2J\x1b]0;x\x07", b"[" * 12)
            )
        else:
            bad[place : place + 1] = str(generator.randrange(10)).encode()
        yield lzma.compress(bytes(bad), preset=0) if inner else bytes(bad)


@pytest.mark.parametrize("count", [200, pytest.param(2000, marks=pytest.mark.slow)])
def test_damaged_files_are_one_line_each_and_write_nothing(sender, contents, tmp_path, count):
    small = {path: data for path, data in contents.items() if few(path, sender)}
    data = written(tmp_path / "small.bundle", small).read_bytes()
    folder = tmp_path / "in" / "storage"
    (tmp_path / "in").mkdir()
    file, good = tmp_path / "in" / "bad.bundle", 0
    for number, bad in enumerate(mutations(data, count)):
        file.write_bytes(bad)
        try:
            api.unpack(file, storage=folder)
            good += 1  # a changed byte that nothing depends on, such as a date in a header
            shutil.rmtree(folder)
        except UserError as error:
            assert str(error).isprintable() and str(error).startswith(str(file)), number
        assert [path.name for path in (tmp_path / "in").iterdir()] == ["bad.bundle"], number
    assert good < count // 13
    assert {path.name for path in tmp_path.iterdir()} == {"in", "small.bundle"}


def few(path, sender):
    """Keep the manifest and the files of one run."""
    return path == "bundle.json" or sender.list("runs/line")[0] in path


def other_values(found, generator):
    """Change one value somewhere in plain data."""
    keys = list(found) if isinstance(found, dict) else list(range(len(found)))
    if not keys:
        return found
    key = generator.choice(keys)
    if isinstance(found[key], (dict, list)) and found[key] and generator.random() < 0.7:
        return {**found, key: other_values(found[key], generator)} if isinstance(found, dict) else found
    values = (None, True, -1, 0, 1e308, float("nan"), "", EVIL, [], {}, [1], {"a": 1}, 1 << 62, "\ud800", "x" * 9999)
    changed = generator.choice(values)
    return {**found, key: changed} if isinstance(found, dict) else [*found[:key], changed, *found[key + 1 :]]


@pytest.mark.parametrize("count", [14, pytest.param(84, marks=pytest.mark.slow)])
def test_whole_bundles_of_wrong_values_are_refused_or_read_in_one_line(contents, tmp_path, capsys, count):
    """In files of each kind one value is changed, the digests are right: what is taken is planned, filled and shown."""
    generator = random.Random(1)
    names = ("result.json", "provenance.json", "config.json", "metrics.jsonl", "/scores.json", "shards.json", "tables/")
    taken = 0
    for number in range(count):
        paths = [path for path in contents if names[number % len(names)] in path]
        path = generator.choice(paths)
        lines = [json.loads(line) for line in contents[path].splitlines()] if "jsonl" in path else None
        bad = other_values(lines[0] if lines else json.loads(contents[path]), generator)
        file = written(tmp_path / "bad.bundle", contents | {path: json.dumps(bad).encode()})
        there = Storage.open(tmp_path / f"in{number}")
        try:
            api.unpack(file, storage=there)
            taken += 1
            for run in list_runs(there):
                describe.describe_run(RunFolder(there, run.task, run.run))
            part = fill_and_keep(api.plan("line/table1", storage=there))["line/table1"]
            print_section(part)
            retable_words("runs", "--storage", there.root)
            retable_words(
                "show", json.loads(contents["bundle.json"])["members"][-1][0].split("/")[2], "--storage", there.root
            )
        except UserError as error:
            assert str(error).isprintable(), path
        shown = capsys.readouterr().out
        assert "\x1b[2J" not in shown and "\x07" not in shown, path
    assert count // 4 < taken < count


def retable_words(*words):
    cli.app([*words], standalone_mode=False)


WRONG = {
    "result.json": [
        {"metrics": {"rmse": "x"}}, {"metrics": []}, {"metrics": {"rmse": 10**400}}, {"data": 3}, {"weights": {"1": 3}},
        {"weights": {"../x": "0" * 64}}, {"weights": {"1": "../../../etc"}}, {"seconds": None}, {"used": [1]},
        {"used": {"cpu_seconds": "x"}}, {"diverged": 3}, {"attempts": {}},
        {"seconds": float("nan")}, {"seconds": -1.0}, {"attempts": float("inf")},
        {"used": {"cpu_seconds": float("inf")}},
    ],
    "provenance.json": [
        {"host": 3}, {"device": []}, {"versions": [1]}, {"versions": {"torch": 3}}, {"data": []}, {"data": {}},
        {"commit": {}}, {"own": {"name": ["x"], "commit": "a"}}, {"own": {"name": "x", "commit": 3}}, {"own": "x"},
    ],
    "config.json": [{"config": []}, {"version": "1"}, {"task": 3}, {"task": "rl"}],
    "scores.json": [{"metrics": {"rmse": []}}, {"metrics": 3}, {"view": []}, {"weights": None}],
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_files_of_the_wrong_shape_are_refused_with_their_name(name, contents, tmp_path):
    path = next(path for path in contents if path.endswith(f"/{name}") and path.startswith("runs/"))
    for change in WRONG[name]:
        bad = json.dumps(json.loads(contents[path]) | change).encode()
        assert path in refuse(written(tmp_path / "bad.bundle", contents | {path: bad}), tmp_path), change
    for data in (b"", b"[" * 100_000, b"3", b"null", b"\xff", b'{"a": 1e999}x'):
        assert path in refuse(written(tmp_path / "bad.bundle", contents | {path: data}), tmp_path)
    other = next(path for path in contents if path.endswith("summary.npz"))
    assert other in refuse(written(tmp_path / "bad.bundle", contents | {other: b"PK"}), tmp_path)
    log = next(path for path in contents if path.endswith("metrics.jsonl"))
    assert log in refuse(written(tmp_path / "bad.bundle", contents | {log: b"{}\n"}), tmp_path)
    listed = next(path for path in contents if path.endswith("shards.json"))
    assert listed in refuse(written(tmp_path / "bad.bundle", contents | {listed: b'["../../x"]'}), tmp_path)


EVIL = "<script>alert(1)</script>\x1b[2J\x1b]0;owned\x07\u202e|`$(id)`"


def test_texts_of_a_bundle_are_escaped_in_the_page_and_move_no_cursor(contents, tmp_path, capsys):
    evil = {}
    for path, data in contents.items():
        if path.endswith("provenance.json"):
            made = json.loads(data) | {"host": EVIL, "device": EVIL, "command": EVIL, "started": EVIL, "commit": EVIL}
            made["own"] = {"name": EVIL, "commit": "a" * 40}
            made["data"] = made["data"] | {"points": EVIL}
            evil[path] = json.dumps(made).encode()
    file = written(tmp_path / "evil.bundle", contents | evil, host=EVIL, device=EVIL, packed=EVIL)
    there = fresh(tmp_path)
    lines = api.unpack(file, storage=there).lines()
    parts = fill_and_keep(plan_of(there))
    for part in parts.values():
        print_section(part)
        assert "<script" not in markdown(part)
        assert "\x1b" not in " ".join([*bundled(part), *map(came, (e.origin for r in part.rows for e in r.replicates))])
    assert "\x1b]" not in capsys.readouterr().out and "\u202e" not in capsys.readouterr().out
    page, details = render(list(parts.values()), "x", there / "report", single=True)
    assert "<script>alert" not in page and "<script>alert" not in details and "alert(1)" in page
    assert lines


@pytest.mark.parametrize(
    ("limit", "value", "words"),
    [
        ("KINDS", {"config": ("x", 3)}, "config.json: .* bytes, a bundle takes 3 of such a file; leave it out"),
        ("MEMBERS", 2, "files are more than one bundle takes; pack fewer tables in each"),
        ("_MANIFEST_SIZE", 9, "pack fewer tables"),
        ("TOTAL", (9, 9), "pack fewer tables"),
    ],
)
def test_what_nobody_could_unpack_is_not_packed(sender, tmp_path, monkeypatch, limit, value, words):
    value = bundle.KINDS | value if isinstance(value, dict) else value
    monkeypatch.setattr(bundle, limit, value)
    with pytest.raises(UserError, match=words):
        api.pack("line/table1", scale="smoke", storage=sender, out=tmp_path / "x.bundle")
    assert not list(tmp_path.iterdir())


def test_a_file_that_goes_while_it_is_packed_is_named(tmp_path):
    with pytest.raises(UserError, match=r"^runs/line/a was removed while it was packed; run the same command again"):
        bundle.write_bundle(tmp_path / "x.bundle", {}, {"runs/line/a": (tmp_path / "gone").read_bytes})


# Verifying, and training again -----------------------------------------------------------------------------------


def test_gc_leaves_the_manifest_of_a_bundle_alone_while_anything_of_it_is_here(packed, tmp_path):
    there = fresh(tmp_path)
    api.unpack(packed, storage=there)
    assert not unused_bundles(there, list_runs(there))
    there.remove("runs")
    assert not unused_bundles(there, [])  # combinations still are
    there.remove("combinations")
    assert [each.path for each in unused_bundles(there, [])] == [f"bundles/{packing_id(packed)}.json"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A storage whose table was reproduced over Ray, a bundle of it, and the cluster that still runs."""
    folder = tmp_path_factory.mktemp("trained")
    with ray_cluster():
        api.reproduce("line/table1", scale="smoke", set={"seed": 0}, storage=folder / "results")
        api.pack("line/table1", out=folder / "t.bundle", scale="smoke", set={"seed": 0}, storage=folder / "results")
        yield folder


@pytest.mark.slow
def test_verify_finds_equal_runs_equal_and_names_the_metric_that_was_changed(trained, tmp_path, capsys):
    contents = members_of(trained / "t.bundle")
    path = next(path for path in contents if path.endswith("scores.json") and path.startswith("runs/"))
    scores = json.loads(contents[path])
    scores["metrics"]["rmse"] *= 1 + 1e-12
    file = written(tmp_path / "tampered.bundle", contents | {path: json.dumps(scores).encode()})
    with pytest.raises(SystemExit) as ended:
        run_words("verify", file, "--sample", 9, "--keep", tmp_path / "kept", "--storage", trained / "results")
    assert ended.value.code == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("line ", "  "))]
    wrong = lines.index(next(line for line in lines if ": differs" in line))
    assert path.split("/")[2] in lines[wrong] and sum(": differs" in line for line in lines) == 1
    assert sum(": agrees bit for bit, " in line for line in lines) == 2
    assert "rmse: was" in lines[wrong + 1] and repr(scores["metrics"]["rmse"]) in lines[wrong + 1]
    with pytest.raises(UserError, match="the run is there already"):
        api.verify(file, keep=tmp_path / "kept", storage=trained / "results")


def test_data_of_a_bucket_are_not_made_anew_in_a_folder(tmp_path):
    bucket, sent = Storage.open(f"memory://{tmp_path.name}"), _Sent(LINE, finished(fresh(tmp_path)), LINE.config(), {})
    with _data_of(bucket, fresh(tmp_path), [sent]):
        pass  # the data are nowhere: they are made
    LINE.dataset.prepare(LINE.config(), bucket)
    with pytest.raises(UserError, match="data/line/points is read from there alone; write --keep memory:///test_data"):
        with _data_of(bucket, fresh(tmp_path), [sent]):
            pass
    with _data_of(bucket, bucket, [sent]):
        pass


def test_a_run_that_was_sent_without_its_provenance_is_compared(storage, tmp_path):
    folder = finished(storage, {"loss": 0.25})
    sent = finished(fresh(tmp_path))
    sent.folder.remove("provenance.json")
    found = _compared(_Sent(LINE, sent, LINE.config(), {}), storage, 0.0)
    assert (found.verdict, found.run) == ("differs", folder.fingerprint) and "another" in found.why


def run_words(*words):
    sys.exit(cli.app([str(word) for word in words], standalone_mode=False))


def test_a_sample_of_no_runs_is_refused(tmp_path):
    with pytest.raises(UserError, match="sample=0: verify at least 1 run"):
        api.verify(tmp_path / "any.bundle", sample=0)


@pytest.mark.slow
def test_runs_of_other_data_are_not_compared(trained, tmp_path, capsys):
    storage = tmp_path / "mine"
    shutil.copytree(trained / "results" / "data", storage / "data")
    (storage / "data/line/points/dataset.json").write_text(json.dumps({"points": 64, "digest": "my points"}))
    (found,) = api.verify(trained / "t.bundle", sample=1, storage=storage)
    assert found.verdict == "not comparable" and "my points" in found.why
    with pytest.raises(SystemExit) as ended:
        run_words("verify", trained / "t.bundle", "--sample", 1, "--storage", storage)
    assert ended.value.code == 1 and "not comparable" in capsys.readouterr().out
    assert (storage / "data/line/points/points.parquet").exists() and not (storage / "runs").exists()


MACHINE = {"device": "a", "versions": {"torch": "1"}, "stack": 1, "commit": "c", "dirty": False}


@pytest.mark.parametrize(
    ("was", "now", "why"),
    [
        ({}, {}, ""),
        ({}, {"device": "b"}, "another device"),
        ({}, {"versions": {"torch": "2"}}, "another versions"),
        ({}, {"stack": 4}, "another stack"),
        ({}, {"commit": "d"}, "another code"),
        ({"code": {"tasks/line": "2"}}, {"code": {"tasks/line": "2"}, "commit": "d"}, ""),
        ({"code": {"tasks/line": "2"}}, {"code": {"tasks/line": "3"}}, "another code"),
        ({"code": {"tasks/rl": "2"}}, {"code": {"tasks/rl": "3"}}, ""),
    ],
)  # fmt: skip
def test_when_numbers_must_be_equal_bit_for_bit(was, now, why):
    assert other_conditions("line", MACHINE | was, MACHINE | now) == why


@pytest.mark.parametrize(
    ("was", "now", "relative", "expected"),
    [(1.0, 1.0, 0, True), (1.0, 1.0 + 1e-15, 0, False), (1.0, 1.01, 0.02, True), (1.0, 1.03, 0.02, False),
     (float("nan"), float("nan"), 0, True), (float("nan"), 1.0, 0.5, False), (1.0, None, 0.5, False),
     ("x", "x", 0, True), (0.0, 1e-10, 0.02, True), (float("inf"), float("inf"), 0, True),
     (float("inf"), 1.0, 0.5, False)],
)  # fmt: skip
def test_which_numbers_agree(was, now, relative, expected):
    assert same(was, now, relative) is expected


def test_a_bundle_does_not_say_where_its_storage_lay(tmp_path):
    here = Storage.open(tmp_path / "here")
    filled = filled_line(here, "quick")
    run = next(iter(filled.runs))
    path = f"runs/line/{run}/provenance.json"
    here.write_json(path, here.read_json(path) | {"command": "retable reproduce line --storage /home/me/x --rows fast"})
    api.pack("line/table1", scale="quick", out=tmp_path / "a.bundle", storage=here)
    api.unpack(tmp_path / "a.bundle", storage=tmp_path / "there")
    made = Storage.open(tmp_path / "there").read_json(path)
    assert made["command"] == "retable reproduce line --rows fast"


@pytest.mark.slow
def test_what_builds_on_a_run_that_was_sent_trains_it_again_and_the_mark_goes(trained, tmp_path):
    """A grandchild of a run that came without weights is asked for: over Ray, both ancestors are trained first."""
    there = fresh(tmp_path)
    api.unpack(trained / "t.bundle", storage=there)
    tuned = {"init": "parent", "rate": 0.01}
    plan = api.plan("line/table1", set={"seed": 0}, storage=there)
    assert plan.nothing_to_do
    child = api.train("line", {"init": "parent", "init.overrides": [["rate", 0.001]], **tuned}, storage=there)
    states = {run.config["rate"]: run.bundle for run in api.runs(storage=there) if run.config["init"] == "scratch"}
    assert states[0.001] == "" and states[0.1] != "" and child.metrics["epoch"] == 3
    made = child.folder.storage.read_json(f"runs/line/{run_at(there, 0.001)}/provenance.json")
    assert made["command"] != "" and made["scale"] == "quick" and made["started"] >= plan_packed(there)
    assert RunFolder(there, "line", run_at(there, 0.001)).weights(3)
    with pytest.raises(UserError, match="came in a bundle without the weights of epoch 3"):
        RunFolder(there, "line", run_at(there, 0.1)).weights(3)
    before = cells_of(trained / "results")
    assert cells_of(there) == before


def run_at(storage, rate):
    of_rate = [each for each in api.runs(storage=storage) if each.config["rate"] == rate]
    (run,) = (each.run for each in of_rate if each.config["init"] == "scratch")
    return run


def plan_packed(storage):
    (name,) = storage.list("bundles")
    return storage.read_json(f"bundles/{name}")["packed"]


def cells_of(storage):
    part = api.reproduce("line/table1", scale="smoke", set={"seed": 0}, storage=storage)["line/table1"]
    return [[cell.values for cell in row.cells] for row in part.rows]
