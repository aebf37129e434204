"""Results that come with a task, beside those measured here: page, summary, and apart from the user's runs."""

import re
import shutil
import subprocess
from dataclasses import replace

import pytest

from retable.platform.report import measured, packing
from retable.platform.report.packing import pack
from retable.platform.report.papers import join, summary_lines, verdict_lines
from retable.platform.report.write import sections, shipped_sections, write_report
from retable.platform.spec import task as spec
from retable.platform.spec.claims import UNTESTED
from retable.platform.spec.task import KeyNumber
from retable.platform.store.run import RunFolder
from retable.platform.store.storage import Storage
from tests.platform.made_table import filled_line

TABLE = "line/table1"


@pytest.fixture
def both(storage, tmp_path, monkeypatch):
    """A storage with the toy's table at `quick`, and what came along: the same at `small`, of another machine."""
    there = Storage.open(tmp_path / "there")
    sent = filled_line(there, "small")
    pack([TABLE], "small", {}, there, tmp_path / "small.bundle", False, False)
    monkeypatch.setattr(measured, "bundle_of", lambda task: tmp_path / "small.bundle")
    own = filled_line(storage, "quick")
    measured.take_in([TABLE], storage)
    return storage, own, sent


def shown(page, label):
    """Return the texts of a row's cells."""
    line = re.search(rf'<tr[^>]*><th scope="row">{label}</th>(.*?)</tr>', page, re.S)[1]
    return [" ".join(re.sub(r"<[^>]+>", " ", cell).split()) for cell in re.findall(r"<td.*?</td>", line, re.S)]


def test_the_page_shows_here_small_and_published_side_by_side(both):
    storage, own, _ = both
    page = write_report(storage).read("index.html").decode()
    assert page.count('<section class="part"') == 1
    head = re.findall(r'<th scope="col" class="[^"]*">([^<]+)</th>', page)
    assert head[:3] == ["quick", "small", "paper"]
    mean = f"{own.cell('fast', 'RMSE').mean:.3f}"
    assert [text.partition(" ")[0] for text in shown(page, "fast")[:3]] == [mean, mean, "0.100"]
    assert shown(page, "slow")[:3] == ["–", "–", "1.000"]
    assert "runs came in a bundle" in page and 'id="line-table1-quick"' in page


def test_what_another_command_is_unpacking_is_left_to_it(both, tmp_path):
    """It was removed under it, and then counted as whole."""
    storage, *_ = both
    place = measured.place_of("line", tmp_path / "small.bundle", storage)
    place.remove(measured._WHOLE)  # not yet all
    place.write("what the other one has", "")
    storage.write("measured/line-00000000/of a former version", "")
    measured.take_in([TABLE], storage)
    assert place.exists("what the other one has") and storage.list("measured") == [place.root.rpartition("/")[2]]


def test_what_came_along_is_apart_from_the_users_runs(both, monkeypatch):
    storage, *_ = both
    assert [part.scale for part in sections(storage, storage / "report")] == ["quick"]
    runs = [RunFolder(storage, "line", run).outcome() for run in storage.list("runs/line")]
    assert runs and all("bundle" not in run for run in runs)
    (shipped,) = shipped_sections(storage, storage / "report")
    assert shipped.scale == "small"
    monkeypatch.setattr(measured, "unpack", lambda file, place: pytest.fail("it was taken in before"))
    monkeypatch.setattr(measured, "keep_section", lambda *given: pytest.fail("it was filled before"))
    measured.take_in([TABLE], storage)


def test_the_users_own_results_stay_where_the_same_scale_came_along(both):
    storage, *_ = both
    filled_line(storage, "small")
    files = {name: storage.read(f"report/{name}") for name in storage.list("report") if "-small." in name}
    assert "line-table1-small.json" in files
    write_report(storage)
    assert {name: storage.read(f"report/{name}") for name in files} == files
    assert not shipped_sections(storage, storage / "report")


def test_verdicts_are_of_the_larger_scale_where_it_tests_a_claim(both):
    _, own, sent = both
    (section,) = join([sent, own])
    assert [scale for _, scale in section.claims] == ["small"] * len(sent.claims)
    silent = replace(sent, claims=tuple(replace(claim, status=UNTESTED) for claim in sent.claims))
    judged = replace(own, claims=tuple(replace(claim, status="holds") for claim in own.claims))
    (section,) = join([silent, judged])
    assert {(claim.status, scale) for claim, scale in section.claims} == {("holds", "quick")}
    assert [s.here for s in join([replace(sent, changes={"seed": 1}), own])] == [None, None]
    assert [s.here for s in join([sent, replace(own, scale="smoke")])] == [None, None]


def test_the_summary_has_a_line_a_paper_with_its_key_number(both):
    storage, own, _ = both
    (shipped,) = shipped_sections(storage, storage / "report")
    key = KeyNumber("table1", "fast", "RMSE", "error of the fast one")
    keyed = replace(own, key_number=key)
    (line,) = summary_lines([keyed], [shipped])
    rows = sum(bool(row.replicates) for row in own.rows)
    assert line.filled == f"{rows} rows of 1 table" and line.about == "error of the fast one"
    mean = f"{own.cell('fast', 'RMSE').mean:.3f}"
    assert line.here.startswith(mean) and line.small == "–" and line.published == "0.100"
    (line,) = summary_lines([keyed], [replace(shipped, key_number=key)])
    assert line.small.startswith(mean)
    (line,) = summary_lines([replace(shipped, key_number=key)])
    assert line.here.startswith(mean), "what a user unpacked is here"
    assert [text.partition(":")[0] for text in verdict_lines([keyed, shipped])] == ["of the papers"]
    assert verdict_lines([replace(own, scale="smoke")]) == []
    misspelt = replace(key, column="RMSe")
    (line,) = summary_lines([replace(own, key_number=misspelt)])
    assert line.here == "–"


def test_an_unpacking_that_was_interrupted_goes_on(both, monkeypatch):
    storage, *_ = both
    (name,) = storage.list("measured")
    place = storage / f"measured/{name}"
    whole = dict(place.files("runs"))
    with monkeypatch.context() as patch:
        place.remove("")
        patch.setattr(packing._Taker, "_write", stopping_after(packing._Taker._write, 9))
        with pytest.raises(KeyboardInterrupt):
            measured.take_in([TABLE], storage)
    assert place.list("bundles") and len(list(place.files("runs"))) < len(whole)
    measured.take_in([TABLE], storage)
    assert dict(place.files("runs")).keys() == whole.keys()


def stopping_after(write, count):
    left = iter(range(count))

    def stopping(*given):
        if next(left, None) is None:
            raise KeyboardInterrupt
        write(*given)

    return stopping


@pytest.fixture
def brought(storage, tmp_path, monkeypatch):
    """An empty storage, and the toy in a folder of its own with results that come along, as a process finds it."""
    there, folder = Storage.open(tmp_path / "there"), tmp_path / "tasks"
    filled_line(there, "small")
    shutil.copytree(spec.folder("line"), folder / "line")
    pack([TABLE], "small", {}, there, folder / "line/results/small.bundle", False, False)
    monkeypatch.setenv("RETABLE_TASKS", str(folder))
    monkeypatch.setattr(measured, "folder", lambda task: folder / task)
    return storage


def test_another_process_takes_in_and_draws_while_a_block_runs(brought, monkeypatch):
    with measured.taking_in([TABLE], brought) as finish:
        filled_line(brought, "quick")
        finish()
        assert brought.exists("report/line-table1-small.json"), "before anything is measured"
    kept = dict(brought.files("report"))
    (shipped,) = shipped_sections(brought, brought / "report")
    assert shipped.scale == "small" and dict(brought.files("report")) == kept
    monkeypatch.setattr(measured, "unpack", lambda file, place: pytest.fail("it was taken in before"))
    monkeypatch.setattr(subprocess, "Popen", lambda *given, **more: pytest.fail("nothing is left to do"))
    measured.take_in([TABLE], brought)
    with measured.taking_in([TABLE], brought):
        pass


def test_on_a_bucket_no_other_process_is_begun(brought, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", lambda *given, **more: pytest.fail("it would not find the bucket"))
    monkeypatch.setattr(Storage, "is_local", False)
    with measured.taking_in([TABLE], brought):
        pass


def test_a_block_that_fails_ends_the_other_process(brought, monkeypatch):
    begun = []
    monkeypatch.setattr(subprocess, "Popen", lambda *given, real=subprocess.Popen, **more: begun.append(
        real(*given, **more)) or begun[0])  # fmt: skip
    with pytest.raises(KeyboardInterrupt), measured.taking_in([TABLE], brought):
        raise KeyboardInterrupt
    assert begun[0].returncode and not brought.list("measured")


def test_another_bundle_takes_the_place_of_the_former_one(both, tmp_path):
    storage, *_ = both
    (former,) = storage.list("measured")
    there = Storage.open(tmp_path / "there")
    pack([TABLE], "small", {"seed": 0}, there, tmp_path / "small.bundle", False, False)
    measured.take_in([TABLE], storage)
    (now,) = storage.list("measured")
    assert now != former
