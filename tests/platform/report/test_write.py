"""Reports of a filled toy table: what they say, in every form."""

import base64
import csv
import io
import json
import math
import re
import shlex
import shutil
import subprocess
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import retable
from retable.platform import api
from retable.platform.cli import app as cli
from retable.platform.cli.app import print_section
from retable.platform.commit import code_root
from retable.platform.config import fingerprint, override, parse_set
from retable.platform.errors import UserError
from retable.platform.execute.ensembles import combination_shards, score
from retable.platform.execute.scoring import predict_one
from retable.platform.plan.plan import compile_plan
from retable.platform.report import write as report
from retable.platform.report.describe import find_run
from retable.platform.report.diff import changes, report_tables, write_comparison
from retable.platform.report.html import render
from retable.platform.report.papers import in_order
from retable.platform.report.render import commits, latex, markdown, other_code, remarks
from retable.platform.report.results import gather, train_line
from retable.platform.report.write import fill_and_keep, sections, write_report
from retable.platform.spec.table import Origin, Results
from retable.platform.spec.task import Scale, config_at, find, find_table
from retable.platform.store.provenance import code_of
from retable.platform.store.storage import Storage
from retable.platform.train.worker import threads
from tests.platform.halves import fit
from tests.platform.made_table import filled_line


@pytest.fixture
def filled(storage):
    """Fill the toy's table, but for the row `slow`."""
    return storage, filled_line(storage)


@pytest.fixture
def compared(storage):
    """Fill it likewise, on points that pass for the paper's."""
    return replace(filled_line(storage, published=True), scale="small")


def values(part, label, metric="rmse"):
    """Return what the replicates of a row measured."""
    (row,) = (row for row in part.rows if row.label == label)
    return np.array([replicate.metrics[metric] for replicate in row.replicates])


def test_a_report_of_a_set_seed_is_of_that_seed_alone(filled):
    storage, _ = filled
    request = {"table": "line/table1", "scale": "smoke", "set": {"seed": 1}}
    storage.write_json("tables/one.json", request)
    (part,) = (part for part in sections(storage, storage / "report") if part.changes)
    assert part.axes == {"seed": (1,)} and len(values(part, "fast")) == 1


def test_measured_stands_beside_published_and_difference(compared):
    part = compared
    lines = markdown(part).splitlines()
    fast = next(line for line in lines if line.startswith("| fast |"))
    _, _, shown, published, difference, _ = (text.strip() for text in fast.split("|"))
    found = values(part, "fast")
    assert shown == f"{found.mean():.3f} ± {found.std(ddof=1):.3f}" and len(found) == 2
    assert published == "0.100" and difference == f"{found.mean() - 0.1:+.3f}"
    assert "| slow | – | 1.000 | – |" in lines
    assert "| as printed | – | 0.200 | – |" in lines
    for words in ("64 generated points", "scale small", "seed: 0, 1"):
        assert words in markdown(part)


def uncompared(row):
    return replace(row, cells=tuple(replace(cell, comparable=False) for cell in row.cells))


def test_one_line_names_the_commits_that_measured_a_table(filled, capsys):
    storage, part = filled
    runs = list(part.runs)

    def of(*made):
        return replace(
            part, runs={runs[at]: {**part.runs[runs[at]], "provenance": said} for at, said in enumerate(made)}
        )

    one, two, bare = {"commit": "1" * 40}, {"commit": "2" * 40, "dirty": True}, {"code": {"platform": "a"}}
    both = of(one, two)
    assert commits(of(one, one)) == "Measured by commit 1111111."
    assert commits(both) == "Measured by commits 1111111, 2222222 and changes."
    assert re.fullmatch(r"Measured by commit not known; code [0-9a-f]{7}\.", commits(of(bare)))
    assert commits(of(one, {})) == "Measured by commit 1111111; code not recorded for 1 of 2 runs."
    assert commits(of()) == ""
    assert markdown(both).splitlines().count(commits(both)) == 1
    assert render([both], "", storage / "report")[0].count(commits(both)) == 1
    print_section(both)
    assert " ".join(capsys.readouterr().out.split()).count(commits(both)) == 1


def test_a_report_says_what_its_trainings_took(filled):
    """Of the processor; each member of a stack keeps its share of what the stack took."""
    _, part = filled
    first, second, *_ = part.runs

    def of(*facts):
        runs = {digits: {**part.runs[digits], "usage": usage, "provenance": {"stack": stack}}
                for digits, (usage, stack) in zip((first, second), facts, strict=False)}  # fmt: skip
        return markdown(replace(part, runs=runs))

    alone = {"seconds": 9000.0, "cpu_seconds": 7200.0}
    assert "Its trainings took 2 h 00 min of one core (2 runs)." in of((alone, 1), ({"cpu_seconds": 0.0}, 1))
    assert "Its trainings took 4 h 00 min of one core (2 runs)." in of((alone, 1), (alone, 2))
    assert "of one core and 1 min 00 s of a GPU (1 run; of 1 more it is not known)." in of(
        ({**alone, "gpu_seconds": 60.0}, 2), ({}, 1)
    )
    assert "trainings took" not in of(({}, 1))
    assert all(run["usage"]["cpu_seconds"] > 0 for run in part.runs.values())


def test_a_column_whose_metric_no_run_has_is_told_with_the_metrics_that_they_have(filled):
    _, part = filled
    assert not any("has the metric" in remark for remark in remarks(part))
    (place, column), *_ = enumerate(part.columns)
    rows = [
        replace(row, cells=tuple(replace(c, values=(None,)) if at == place else c for at, c in enumerate(row.cells)))
        for row in part.rows
    ]
    told = [each for each in remarks(replace(part, rows=tuple(rows))) if "has the metric" in each]
    assert len(told) == 1 and f"column {column.header!r}; measured are" in told[0] and "loss" in told[0]
    assert "remove runs/line/*/views" in told[0], "of a task of one's own, whose `evaluate` may return it only now"
    (paper,) = (each for each in remarks(replace(part, rows=tuple(rows), name="rl/table1")) if "has the metric" in each)
    assert "remove" not in paper


def test_a_report_does_not_say_where_its_storage_lies(filled):
    storage, part = filled
    run = next(iter(part.runs))
    path = f"runs/line/{run}/provenance.json"
    kept = storage.read_json(path) | {"command": "retable reproduce line --storage /home/me/x --rows fast"}
    storage.write_json(path, kept)
    assert filled_line(storage).runs[run]["provenance"]["command"] == "retable reproduce line --rows fast"


def test_runs_of_other_code_of_ones_own_task_are_told(filled):
    storage, part = filled
    first, *_ = part.runs
    of = {digits: {**run, "provenance": {"code": code_of("line")}} for digits, run in part.runs.items()}
    assert other_code(part) == other_code(replace(part, runs=of)) == ""
    changed = replace(part, runs={**of, first: {**part.runs[first], "provenance": {"code": {"tasks/line": "0"}}}})
    remark = other_code(changed)
    assert f"has changed since 1 of {len(part.runs)} runs" in remark and "raise `version`" in remark
    assert remark.split(":")[0] in render([changed], "", storage / "report")[0]
    assert remark in markdown(changed) and "has changed since" not in markdown(replace(changed, name="rl/table1"))


def test_a_smoke_number_is_said_to_mean_nothing(filled):
    storage, part = filled
    assert "this proves the path" in markdown(part)
    page = write_report(storage).read("index.html").decode()
    assert "this proves the path" in page and 'class="difference"' not in page and "judges no claim" in page


def test_csv_holds_every_replicate_and_its_fingerprint(filled):
    storage, part = filled
    text = storage.read("report/line-table1-smoke.csv").decode()
    rows = {row["row"]: row for row in csv.DictReader(io.StringIO(text))}
    fast = rows["fast"]
    found = [float(value) for value in fast["values"].split()]
    assert found == values(part, "fast").tolist()
    assert float(fast["min"]) == min(found) and float(fast["max"]) == max(found) and fast["n"] == "2"
    assert all(storage.exists(f"runs/line/{name}/config.json") for name in fast["sources"].split())
    assert all(source.endswith("[epoch=1]") for source in rows["fast, first epoch"]["sources"].split())
    slow = rows["slow"]
    assert (slow["mean"], slow["std"], slow["n"], slow["published"]) == ("", "", "0", "1.0")


def test_latex_has_as_many_columns_in_every_line(compared):
    for part in (replace(compared, rows=tuple(map(uncompared, compared.rows))), compared):
        text = latex(part)
        columns = 1 + text.partition("\n")[2].count("S[table-format")
        lines = [line for line in text.splitlines() if line.endswith(r"\\")]
        assert len(lines) == 2 + len(part.rows)
        merged = sum(int(number) - 1 for number in re.findall(r"multicolumn\{(\d)\}", lines[0]))
        assert lines[0].count("&") + merged == columns - 1 and {line.count("&") for line in lines[1:]} == {columns - 1}


@pytest.mark.parametrize(
    ("form", "values", "cells"),
    [
        (".1%", (0.123, 0.2), [r"{16.2\% $\pm$ 5.4\%}", r"{10.0\%}"]),
        (".1e", (1e-5, 2e-5), [r"{1.5$\times10^{-5}$ $\pm$ 7.1$\times10^{-6}$}", r"{1.0$\times10^{-1}$}"]),
        (".3g", (123456.0, 1.0), [r"{6.17$\times10^{4}$ $\pm$ 8.73$\times10^{4}$}", "0.1"]),
        (",.0f", (12345.0, 12346.0), [r"12346 \pm 1", "0"]),
    ],
)
def test_latex_writes_percent_and_exponents_as_text(compared, form, values, cells):
    row = replace(
        compared.rows[0], label="[a", cells=(replace(compared.rows[0].cells[0], values=values, published=0.1),)
    )
    column = replace(compared.columns[0], format=form)
    text = latex(replace(compared, rows=(row,), columns=(column,)))
    (line,) = [line for line in text.splitlines() if line.startswith("{}[a")]
    assert line.removesuffix(r" \\").split(" & ")[1:3] == cells


LETTERS = "a < b > c | ≤ ≥ ≈ → ← ° ∞ α Δ λ ξ ± − × ² ½ é"


def test_latex_has_no_letter_that_its_fonts_lack_or_show_as_another(compared):
    """Of OT1, LaTeX's own, `<`, `>` and `|` are other signs, and Greek letters an error."""
    text = latex(replace(compared, rows=(replace(compared.rows[0], label=LETTERS),)))
    (line,) = [line for line in text.splitlines() if line.startswith("a ")]
    label = line.partition(" & ")[0]
    assert not {*"<>|≤≥≈→←°∞αΔλξ±−×"} & {*label} and r"\textless{} b \textgreater{} c \textbar{} $\leq$" in label
    assert r"$\alpha$ $\Delta$ $\lambda$ $\xi$" in label and label.endswith("² ½ é")


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="pdflatex is not there")
def test_latex_compiles_as_it_is(compared, tmp_path):
    compared = replace(compared, rows=(*compared.rows, replace(compared.rows[0], label=LETTERS)))
    head = r"\documentclass{article}\usepackage{booktabs,siunitx}\begin{document}"
    (tmp_path / "a.tex").write_text(head + latex(compared) + r"\end{document}")
    subprocess.run(["pdflatex", "-halt-on-error", "a.tex"], cwd=tmp_path, check=True, capture_output=True, timeout=60)


def test_every_number_is_on_the_page_and_a_click_knows_the_config_behind_it(filled):
    storage, part = filled
    into = write_report(storage)
    page, known = into.read("index.html").decode(), details_of(into)
    for row, line in zip(part.rows, known["rows"]["line-table1-smoke"], strict=True):
        for column, cell in zip(part.columns, row.cells, strict=True):
            for number in (cell.mean, cell.deviation, cell.published):
                assert number is None or format(number, column.format) in page
        assert [each["values"][0] for each in line] == list(row.cells[0].values)
        for each, replicate in zip(line, row.replicates, strict=True):
            assert each["commands"] == list(replicate.commands)
            assert all(run in known["runs"] for run in each["runs"])
    fast = known["runs"][part.rows[1].replicates[0].origin.run]
    assert fast["command"].startswith("retable train line") and fast["config"] and fast["provenance"]["commit"] == "abc"
    assert "1 claim is not tested here" in page
    assert into.exists("line-table1-smoke.csv") and into.exists("line-table1-smoke.tex") and into.exists("report.md")


def details_of(into):
    """Read what a click shows."""
    text = into.read("details.js").decode()
    return json.loads(text.removeprefix("retable(").removesuffix(");\n"))


def test_a_figure_whose_drawing_fails_says_why_and_leaves_the_rest(filled, capsys):
    def broken(results):
        raise KeyError("acuracy")

    task, figure = find_table("line/figure1")
    plan = compile_plan({"line/figure1": (task, replace(figure, draw=broken))}, filled[0])
    into = filled[0] / "broken"
    part = fill_and_keep(plan, into)["line/figure1"]
    why = r"line/figure1: its drawing fails: KeyError: 'acuracy' \(test_write.py:\d+\)"
    assert part.drawn and re.search(why, " ".join(capsys.readouterr().err.split()))
    assert part.filled and into.read("line-figure1-quick.png").startswith(b"\x89PNG")


def test_a_figure_of_which_everything_diverged_is_not_drawn(filled, capsys, monkeypatch):
    """Drawings of nothing failed, and an error of Matplotlib's was shown in the figure's place."""

    def all_diverged(plan, name):
        rows = gather(plan, name).replicates
        return Results({label: [replace(one, diverged="loss is nan") for one in ones] for label, ones in rows.items()})

    def draw(results):
        raise ValueError("Number of rows must be a positive integer, not 0")

    monkeypatch.setattr(report, "gather", all_diverged)
    task, figure = find_table("line/figure1")
    plan = compile_plan({"line/figure1": (task, replace(figure, draw=draw))}, filled[0])
    part = fill_and_keep(plan, filled[0] / "nothing")["line/figure1"]
    assert part.filled and not part.drawn and capsys.readouterr().err == ""


def test_a_figure_is_drawn_and_its_numbers_are_beside_it(filled):
    storage, part = filled
    fill_and_keep(compile_plan({"line/figure1": find_table("line/figure1")}, storage))
    into = write_report(storage)
    assert into.read("line-figure1-quick.png").startswith(b"\x89PNG") and b"<svg" in into.read("line-figure1-quick.svg")
    rows = list(csv.DictReader(io.StringIO(into.read("line-figure1-quick.csv").decode())))
    assert [(row["row"], row["seed"]) for row in rows] == [("fast", "0"), ("fast", "1")], "slow was not run"
    slopes = values(part, "fast", "slope").tolist()
    assert [float(row["slope"]) for row in rows] == slopes
    page = into.read("index.html").decode()
    assert 'src="line-figure1-quick.png"' in page and 'srcset="line-figure1-quick.dark.png"' in page
    assert 'alt="' in page and "data:image/png" not in page
    one = write_report(storage, storage / "one", single=True).read("index.html").decode()
    assert base64.b64encode(into.read("line-figure1-quick.png")).decode() in one and "retable({" in one
    gone = ["line-figure1-quick.png", "line-figure1-quick.svg", "line-table1-smoke.csv", "line-table1-smoke.tex"]
    for name in gone:
        into.remove(name)
    assert {*gone} <= {*write_report(storage).list()}, "a picture that was removed broke the report off"


def test_text_from_outside_cannot_become_markup(filled):
    storage, _ = filled
    storage.write_json("data/line/points/dataset.json", {"points": "<script>alert(1)</script>", "digest": "64 points"})
    for single in (False, True):
        page = write_report(storage, single=single).read("index.html").decode()
        assert "<script>alert(1)</script>" not in page and "&lt;script&gt;" in page


def test_what_changed_between_two_reports_is_exactly_that(filled):
    storage, part = filled
    write_report(storage)
    moved = [replace(row, cells=(replace(row.cells[0], values=tuple(v + 1 for v in row.cells[0].values)),))
             if row.label == "fast" else row for row in part.rows]  # fmt: skip
    turned = [replace(claim, status="holds") for claim in part.claims]
    found = changes([part], [replace(part, rows=tuple(moved), claims=tuple(turned))])
    (change,) = found.changes
    assert (change.row, change.column) == ("fast", part.columns[0].header) and change.difference == pytest.approx(-1)
    assert change.beyond_spread and found.same == sum(row.cells[0].mean is not None for row in part.rows) - 1
    assert [(turn.before, turn.after) for turn in found.turns] == [("holds", part.claims[0].status)]
    assert change.table == "line/table1 [smoke]"
    chosen = [replace(p, changes={"seed": [0]}, chosen=("f*",)) for p in (part, replace(part, rows=tuple(moved)))]
    assert changes(*([p] for p in chosen)).changes[0].table == "line/table1 [smoke] --set 'seed=[0]' --rows 'f*'"
    assert not changes(report_tables(storage), report_tables(storage / "report")).changes
    write_comparison(found, "here", "<there>", storage / "report")
    page = storage.read("report/compare.html").decode()
    assert "&lt;there&gt;" in page and "-1.000" in page


def test_a_report_of_chosen_tables_compares_these_alone(filled, tmp_path):
    """Sections of earlier calls, which lie in the same folder, are not of this report."""
    storage, part = filled
    moved = tuple(replace(row, cells=(replace(row.cells[0], values=(9.0,)),)) for row in part.rows)
    for place, rows in (("here", part.rows), ("other", moved)):
        earlier = {"table": replace(part, name="line/earlier", rows=rows).as_json()}
        Storage.open(tmp_path / place).write("line-earlier.json", json.dumps(earlier))
    Storage.open(tmp_path / "other").write("line-table1.json", json.dumps({"table": part.as_json()}))
    words = ["report", "line/table1", "--scale", "smoke", "--storage", storage.root]
    words += ["--output", str(tmp_path / "here"), "--compare", str(tmp_path / "other")]
    said = CliRunner().invoke(cli.app, words)
    assert said.exit_code == 0, said.output
    assert "0 cells changed" in said.stdout and "earlier" not in said.stdout


def test_a_number_that_is_none_breaks_no_column_and_is_no_change(compared):
    rows = [replace(row, cells=(replace(row.cells[0], values=(math.nan, math.nan)),)) for row in compared.rows[:1]]
    part = replace(compared, rows=(*rows, *compared.rows[1:]))
    assert "{nan" in latex(part) and "& nan" not in latex(part)
    widths = [re.findall("table-format=[^,]+", latex(each)) for each in (part, replace(part, rows=part.rows[1:]))]
    assert widths[0] == widths[1]
    found = changes([part], [part])
    assert not found.changes and found.same


@pytest.mark.parametrize("chosen", ["svg", "agg"])
def test_a_notebooks_own_plots_are_shown_as_before_after_a_report(chosen):
    import matplotlib
    from matplotlib import pyplot

    before = matplotlib.get_backend()
    try:
        matplotlib.use(chosen)
        assert report.pictures(lambda: pyplot.figure().add_subplot().plot([1, 2])[0].figure)["png"]
        assert matplotlib.get_backend() == chosen
    finally:
        matplotlib.use(before)


def test_sections_whose_request_was_removed_are_not_compared(filled):
    storage, part = filled
    write_report(storage)
    assert [each.name for each in report_tables(storage)] == [part.name]
    storage.remove("tables")
    with pytest.raises(UserError, match="no report is here that can be compared"):
        report_tables(storage)


def test_what_is_no_report_cannot_be_compared_with(storage):
    with pytest.raises(UserError, match="no report is here that can be compared; `retable report --storage"):
        report_tables(storage)


def test_papers_come_first_then_their_own_tables_in_order(filled):
    _, part = filled
    names = [
        "line/figure2",
        "rl/speed",
        "rl/figure10",
        "rl/figure2",
        "rl/table1",
        "weather/table2",
        "line/extra",
        "weather/ours",
    ]
    parts = [replace(part, name=name) for name in names]
    assert [each.name for each in in_order([*parts, replace(part, name="rl/table1", scale="paper")])] == [
        "weather/table2", "weather/ours", "rl/table1", "rl/table1", "rl/figure2", "rl/figure10", "rl/speed",
        "line/figure2", "line/extra",
    ]  # fmt: skip


def test_a_combination_counts_only_for_the_weights_it_was_made_from(filled):
    storage, _ = filled
    task, table = find_table("line/table1")
    row = replace(table.rows[4], of=("fast", "fast"))
    plan = compile_plan({"line/table1": (task, replace(table, rows=[*table.rows[:4], row]))}, storage)
    combining = plan.combinings[0]
    assert combining.scores(storage) is None
    for prediction in plan.predictions.values():
        if prediction.joined and prediction.folder.result():
            with threads(3):
                assert predict_one("line", prediction.config, prediction.view, prediction.folder, joined=True) is None
                assert torch.get_num_threads() == 3, "the caller's"
    assert not any(piece.run() for piece in combination_shards(combining, storage))
    assert score(combining, storage) is None and combining.scores(storage) is not None
    fast = gather(plan, "line/table1").select("fast", seed=0)[0].metrics["rmse"]
    assert combining.scores(storage)["metrics"]["rmse"] == pytest.approx(fast), "the mean of a thing and itself"
    storage.write_json(combining.path, {"inputs": ["other weights"], "metrics": {"rmse": 0.0}})
    assert combining.scores(storage) is None


def test_a_section_is_filled_again_only_if_its_inputs_or_the_code_changed(filled, monkeypatch):
    storage, part = filled
    filled_again = []
    monkeypatch.setattr(report, "fill", lambda plan, name, results: filled_again.append(name) or part)
    write_report(storage)
    assert filled_again == []
    runs = [folder for folder in storage.list("runs/line") if storage.exists(f"runs/line/{folder}/result.json")]
    changed = storage / f"runs/line/{runs[0]}"
    changed.write_json("result.json", {**changed.read_json("result.json"), "seconds": 1e9})
    write_report(storage)
    assert filled_again == ["line/table1"]
    write_report(storage)
    assert filled_again == ["line/table1"], "what was filled is kept"
    monkeypatch.setattr(report, "code_digest", lambda task: "other code")
    write_report(storage)
    assert filled_again == ["line/table1"] * 2


def test_a_number_replaced_by_one_of_equal_length_is_shown_on_a_storage_without_times():
    storage = Storage.open("memory://replaced")
    part = filled_line(storage)
    (row,) = (row for row in part.rows if row.label == "fast")
    before, views = row.replicates[0].metrics["rmse"], f"runs/line/{row.replicates[0].origin.run}/views"
    paths = (f"{views}/{view}/scores.json" for view in storage.list(views))
    path, text = next((path, text) for path in paths if f"{before}" in (text := storage.read(path).decode()))
    after = f"{before}"[:-3] + "111"
    storage.write(path, text.replace(f"{before}", after))
    (part,) = sections(storage, storage / "report")
    assert values(part, "fast")[0] == float(after) != before


def test_what_is_complete_is_shown_without_the_tasks_code_until_something_changes(storage, monkeypatch):
    where, name = storage.root, "line/figure1"
    task, _ = find_table(name)
    plan = retable.plan(name, storage=where)
    for training in plan.missing[1:]:
        fit(storage, training.config, training.folder, training.keep, task)
    fill_and_keep(plan)
    assert api.complete(name, storage=where) == {}, "a training is missing"
    fit(storage, plan.missing[0].config, plan.missing[0].folder, plan.missing[0].keep, task)
    part = fill_and_keep(plan)[name]
    with monkeypatch.context() as patch:
        patch.setattr(report, "find_table", None)
        patch.setattr(api, "find_table", None)
        assert api.complete(name, storage=where) == {name: part} == retable.reproduce(name, storage=where)
    assert api.complete(name, storage=where, scale="paper") == {} == api.complete("line", storage=where)
    with monkeypatch.context() as patch:
        patch.setattr(report, "keep_section", None)
        assert fill_and_keep(plan) == {name: part}, "it is not filled again"
    plan.storage.write_json("data/line/points/dataset.json", {"digest": "of other data", "points": 64})
    assert api.complete(name, storage=where) == {}, "the data changed"


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("gone.json", '{"table": "gone/table1", "scale": "smoke", "set": {}}', "no task 'gone'"),
        ("line.json", '{"table": "line/table9", "scale": "smoke", "set": {}}', "no table 'line/table9'"),
        (".DS_Store", "\x00\x01", "not a JSON file"),
        ("list.json", "[]", "not an object"),
        ("half.json", '{"table": "line/ta', "not a JSON file"),
        ("set.json", '{"table": "line/table1", "scale": "smoke", "set": {"rat": 1}}', "unknown field 'rat'"),
    ],
)
def test_a_bad_request_is_named_and_the_others_are_shown(filled, capsys, name, text, words):
    storage, _ = filled
    storage.write(f"tables/{name}", text)
    page = write_report(storage).read("index.html").decode()
    shown = capsys.readouterr().err.replace("\n", " ")
    assert f"tables/{name}" in shown and words in shown and "line/table1" in page


def test_every_line_of_a_report_makes_exactly_what_it_stands_beside(filled):
    """The command of a run with a parent trained another run, as the child's values went into the parent."""
    _, part = filled
    task, _ = find_table("line/table1")
    checked = 0
    for row in part.rows:
        for replicate in row.replicates:
            train_words, score_words = (shlex.split(line) for line in replicate.commands[:2])
            assert train_words[:5] == ["retable", "train", "line", "--scale", "paper"]
            config = config_at(task, "paper", parse_set(options(train_words, "--set")))
            assert fingerprint("line", task.version, config) == replicate.origin.run == score_words[2]
            view = override(task.view(), parse_set(options(score_words, "--set")))
            kept = {config.epochs, *map(int, options(train_words, "--keep"))}
            assert (view.epoch or config.epochs) in kept and (view.epoch or 3) == (
                replicate.origin.view.get("epoch") or 3
            )
            checked += 1
    assert checked == 6 and part.rows[3].label == "fine-tuned" and len(part.rows[3].replicates) == 2


CHILD = {"init": "parent", "init.overrides": [["rate", 0.1], ["epochs", 2]], "rate": 0.5, "seed": 0}


def test_the_line_of_a_run_with_a_parent_gives_its_fingerprint():
    task, _ = find_table("line/table1")
    config = override(task.config(), {**CHILD, "init.overrides": [*CHILD["init.overrides"], ["init", "parent"]]})
    words = shlex.split(train_line(task, config, epoch=1))
    assert config_at(task, "paper", parse_set(options(words, "--set"))) == config
    assert options(words, "--keep") == ["1"]


@pytest.mark.parametrize("start", [{"epochs": 9, "seed": 5}, {"rate": 0.5}])
def test_the_line_of_a_run_gives_it_at_whatever_scales_its_task_has(start, monkeypatch):
    task = replace(find_table("line/table1")[0], scales=lambda: {"smoke": Scale(about="", start=start)})
    for config in (task.config(), override(task.config(), CHILD)):
        words = shlex.split(train_line(task, config))
        assert config_at(task, words[4], parse_set(options(words, "--set"))) == config
    halves = find("halves")
    assert shlex.split(train_line(halves, halves.config()))[4] in halves.scales()


def options(words, name):
    """Return the values of an option in a command line."""
    return [value for option, value in pairwise(words) if option == name]


def test_a_run_is_known_by_the_row_that_it_fills(filled):
    storage, part = filled
    fast = next(row for row in part.rows if row.label == "fast").replicates[0].origin.run
    for name in ("line/table1/fast", f"line/table1/fast/{part.columns[0].header}"):
        assert find_run(storage, name).fingerprint == retable.load(name, storage).fingerprint == fast
    empty = replace(part, scale="quick", rows=tuple(replace(row, replicates=()) for row in part.rows))
    storage.write_json("tables/line-table1-quick.json", {"table": part.name, "scale": "quick", "set": {}})
    storage.write_json("report/line-table1-quick.json", {"table": empty.as_json()})
    assert find_run(storage, "line/table1/fast").fingerprint == fast  # which another scale leaves out
    for scale, run in (("small", "5" * 16), ("quick", "9" * 16)):  # of several scales the most published counts
        row = next(row for row in part.rows if row.label == "fast")
        replicate = replace(row.replicates[0], origin=replace(row.replicates[0].origin, run=run))
        rows = (replace(row, label="all", replicates=(replicate,)),)
        other = replace(part, scale=scale, rows=rows)
        storage.write_json(f"tables/line-table1-{scale}.json", {"table": part.name, "scale": scale, "set": {}})
        storage.write_json(f"report/line-table1-{scale}.json", {"table": other.as_json()})
    with pytest.raises(UserError, match=r"run 5{16}, which filled it, is gone; `retable train line .*` makes it"):
        find_run(storage, "line/table1/all")  # it was shown as a damaged one
    storage.write_json(f"runs/line/{'5' * 16}/config.json", {})
    assert find_run(storage, "line/table1/all").fingerprint == "5" * 16
    with pytest.raises(UserError, match="no such row; did you mean 'fast'"):
        find_run(storage, "line/table1/fost")
    with pytest.raises(UserError, match="has no table line/table7"):
        find_run(storage, "line/table7/fast")
    with pytest.raises(UserError, match="no single run fills this row"):
        find_run(storage, "line/table1/mean of both")
    timed = replace(replicate, origin=Origin("time-0123456789abcdef-CPU"))
    other = replace(part, scale="small", rows=(replace(row, label="timed", replicates=(timed,)),))
    storage.write_json("report/line-table1-small.json", {"table": other.as_json()})
    with pytest.raises(UserError, match="it joins several, is a measurement or is empty; `retable tables line/"):
        find_run(storage, "line/table1/timed")  # a damaged run was shown, and a folder that is not there


@pytest.mark.parametrize("room", sorted(path.parent.name for path in (code_root() / "platform").glob("*/__init__.py")))
def test_a_change_in_any_room_renews_the_tables_that_are_kept(room, monkeypatch, tmp_path):
    shutil.copytree(code_root() / "platform", tmp_path / "platform", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(report, "code_root", lambda: tmp_path)
    before = report.code_digest.__wrapped__("line")
    assert report.code_digest.__wrapped__("line") == before
    file = max((tmp_path / "platform" / room).glob("*.py"), key=lambda path: path.stat().st_size)
    file.write_text(file.read_text() + "# changed\n")
    assert report.code_digest.__wrapped__("line") != before


def test_a_table_that_breaks_off_has_named_its_runs(storage, monkeypatch):
    """`gc` takes finished runs that no table names, also of a campaign that is at work."""

    def stops(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(api, "execute", stops)
    with pytest.raises(KeyboardInterrupt):
        api.reproduce("line/table1", scale="smoke", set={"seed": [7, 8]}, storage=storage)
    (request,) = (storage.read_json(f"tables/{name}") for name in storage.list("tables"))
    assert request == {"table": "line/table1", "scale": "smoke", "set": {"seed": [7, 8]}}
