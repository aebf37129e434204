"""Filled tables as text: the grid that screens and notebooks show, Markdown and LaTeX."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from retable.platform.config import describe, set_line
from retable.platform.report.results import Cell, FilledClaim, FilledRow, FilledTable, slug_of
from retable.platform.spec.claims import NOT_JUDGED, UNTESTED, Status
from retable.platform.spec.table import Origin
from retable.platform.spec.task import SMOKE
from retable.platform.store.provenance import UNKNOWN, differing, name_of, own_folder
from retable.platform.text import and_more, clock, plural

ORDER: tuple[Status, ...] = ("holds", "does not hold", "not separable", UNTESTED, NOT_JUDGED)
"""In which verdicts are counted."""
_REPLICATES = 6
"""Replicates of a row whose epochs a remark names at most."""


def number(value: float | None, form: str) -> str:
    """Return a number as text, or a dash if there is none."""
    return "–" if value is None else format(value, form)


def measured(cell: Cell, form: str) -> str:
    """Return mean ± standard deviation, or as much of it as there is."""
    spread = f" ± {format(cell.deviation, form)}" if cell.deviation is not None else ""
    return number(cell.mean, form) + spread


def parts_of(part: FilledTable, index: int) -> list[str]:
    """Return the subcolumns of a column: `measured`, and `published` and `difference` if any row has them."""
    cells = [row.cells[index] for row in part.rows]
    published = any(cell.published is not None for cell in cells)
    difference = any(cell.difference is not None for cell in cells)
    return ["measured", *(["published"] if published else []), *(["difference"] if difference else [])]


def text_of(row: FilledRow, index: int, what: str, form: str) -> str:
    """Write one part of a cell."""
    cell = row.cells[index]
    if what == "measured":
        return state(row) if cell.mean is None else measured(cell, form)
    return number(cell.published, form) if what == "published" else number(cell.difference, "+" + form)


def grid(part: FilledTable) -> tuple[list[str], list[list[str]]]:
    """Return a table's header and lines as text: measured, and published and difference where there are any."""
    split = [(index, column, what) for index, column in enumerate(part.columns) for what in parts_of(part, index)]
    titles = {"measured": "{}", "published": "{} published", "difference": "difference"}
    header = ["", *(titles[what].format(column.header) for _, column, what in split)]
    lines = [[label(row), *(text_of(row, index, what, column.format) for index, column, what in split)]
             for row in part.rows]  # fmt: skip
    return header, lines


def label(row: FilledRow) -> str:
    """Write a row's label; where it shows other epochs than were asked for, with these."""
    return f"{row.label} (epoch {row.epochs})" if row.epochs else row.label


def state(row: FilledRow) -> str:
    """Return why a row has no number: not run here, or diverged; a dash if it does not exist yet."""
    if row.absent:
        return "absent"
    return "diverged" if any(replicate.diverged for replicate in row.replicates) else "–"


def remarks(part: FilledTable) -> list[str]:
    """Return which rows lack runs, show other epochs than asked for or diverged, damaged files, and empty columns."""
    lacking = [row for row in part.rows if len(row.replicates) < row.planned]
    words = and_more([f"{row.label} ({len(row.replicates)} of {row.planned})" for row in lacking], 12, "; ")
    notes = [f"Not there yet: {words}."] if lacking else []
    notes += [f"Corrupt, and in no number: {line}." for line in part.corrupt]
    for row in part.rows:
        shown = [f"{filled.epochs} ({describe(filled.axes)})" for filled in row.replicates if filled.epochs]
        where = f"{row.label}: epoch {and_more(shown, _REPLICATES)}"
        notes += [f"{where}, the best epoch's weights, as early stopping keeps them."] if shown else []
        why = sorted({replicate.diverged for replicate in row.replicates if replicate.diverged})
        notes += [f"Diverged, and in no number: {row.label} ({'; '.join(why)})."] if why else []
        cells = zip(*(cell.values for cell in row.cells), strict=True)
        lost = [
            filled.metrics
            for filled, own in zip(row.replicates, cells, strict=False)
            if None in own and not filled.diverged
        ]
        odd = sorted({name for metrics in lost for name, value in metrics.items() if not math.isfinite(value or 0.0)})
        notes += [f"Not finite, and in no number: {row.label} ({and_more(odd, 4)})."] if odd else []
    return [*notes, *_empty_columns(part)]


def _empty_columns(part: FilledTable) -> Iterator[str]:
    """Yield a sentence for each column of which no run has the metric: its name may be misspelt."""
    rows = [row for row in part.rows if any(not replicate.diverged for replicate in row.replicates)]
    measured = sorted({name for row in rows for replicate in row.replicates for name in replicate.metrics})
    for index, column in enumerate(part.columns):
        if rows and not any(row.cells[index].measured for row in rows):
            task, names = part.name.partition("/")[0], and_more(measured, 12)
            kept = f" Scores are kept: if `evaluate` returns it only now, remove runs/{task}/*/views and run again."
            told = "" if own_folder(task) is None else kept  # the papers' raise their `version`
            yield f"No run has the metric of column {column.header!r}; measured are {names}.{told}"


def other_code(part: FilledTable) -> str:
    """Return a sentence on runs of a task of one's own whose code has changed since; nothing where there are none.

    The papers' tasks raise their `version` where numbers change, so of them nothing is said.
    """
    task = part.name.partition("/")[0]
    if own_folder(task) is None:
        return ""
    changed = [run for run in part.runs.values() if f"tasks/{task}" in (differing(run["provenance"]) or ())]
    if not changed:
        return ""
    of = f"{len(changed)} of {plural(len(part.runs), 'run')}"
    return (
        f"The code of {task} has changed since {of}: if that changes numbers, raise `version` in task.py and run again."
    )


def commits(part: FilledTable) -> str:
    """Return a sentence that names the commits that measured a table; nothing where it has no runs."""
    named = Counter(name_of(run["provenance"]) for run in part.runs.values())
    untold = named.pop("", 0)
    names = sorted(named)
    hashes = [name.removeprefix("commit ") for name in names if not name.startswith(UNKNOWN)]
    words = [f"commit{'s' if len(hashes) > 1 else ''} {and_more(hashes, 5)}"] if hashes else []
    words += [and_more([name for name in names if name.startswith(UNKNOWN)], 1)] if len(hashes) < len(names) else []
    words += [f"code not recorded for {untold} of {len(part.runs)} runs"] if untold else []
    return f"Measured by {'; '.join(words)}." if words else ""


def taken(part: FilledTable) -> str:
    """Return how long the trainings behind a table took, in words; a member of a stack has its share of the time."""
    every = [run.get("usage", {}) for run in part.runs.values()]
    recorded = [usage for usage in every if "cpu_seconds" in usage]
    if not recorded:
        return ""
    core, gpu = (sum(usage.get(name, 0.0) for usage in recorded) for name in ("cpu_seconds", "gpu_seconds"))
    words = f"{clock(core)} of one core" + (f" and {clock(gpu)} of a GPU" if gpu else "")
    lacking = f"; of {len(every) - len(recorded)} more it is not known" if len(recorded) < len(every) else ""
    return f"Its trainings took {words} ({plural(len(recorded), 'run')}{lacking})."


def sent(part: FilledTable) -> bool:
    """Return whether all results of a table came in bundles."""
    leaves = [
        leaf
        for row in part.rows
        for replicate in row.replicates
        for leaf in replicate.origin.members or (replicate.origin,)
    ]
    return bool(leaves) and all(leaf.bundle for leaf in leaves)


def bundled(part: FilledTable) -> list[str]:
    """Return how many of a table's results came in a bundle, and when and where each bundle was packed."""
    results = {leaf.run: leaf for row in part.rows for replicate in row.replicates
               for leaf in replicate.origin.members or (replicate.origin,)}  # fmt: skip
    sources = Counter((o.bundle["packed"][:10], o.bundle["device"]) for o in results.values() if o.bundle)
    return [
        f"{count} of {len(results)} runs came in a bundle packed {day}{f'; measured on {device}' if device else ''}."
        for (day, device), count in sources.items()
    ]


def came(origin: Origin) -> str:
    """Return the bundle of a number, with time and machine of its measurement; empty if it was made here."""
    bundle = origin.bundle
    if not bundle:
        return ""
    machine = " ".join(text for text in (bundle["host"], f"({bundle['device']})" if bundle["device"] else "") if text)
    measured = f"; measured {bundle['measured']} on {machine}" if bundle["measured"] or machine else ""
    return f"packed {bundle['packed']} on {bundle['packed_on']}{measured}"


def about(part: FilledTable) -> str:
    """Return a line about a section's numbers: scale, replicates, spread, data, changes."""
    words = [f"scale {part.scale} ({part.scale_about})"]
    words += [f"{axis}: {', '.join(map(str, values))}" for axis, values in part.axes.items()]
    words += ["mean ± standard deviation over replicates"] if part.columns else []
    words += [f"data: {' | '.join(part.data)}"] if part.data else []
    words += [f"changed by {set_line(part.changes)}"] if part.changes else []
    return "; ".join(words)


def counts(claims: Sequence[FilledClaim]) -> dict[Status, int]:
    """Return the number of claims with each verdict, in order of display."""
    counted = Counter(claim.status for claim in claims)
    return {status: counted[status] for status in ORDER if counted[status]}


def in_order(claims: Sequence[FilledClaim]) -> list[FilledClaim]:
    """Return claims in order of display: the paper's before ours, tested ones before others."""
    return sorted(claims, key=lambda claim: (claim.status in (UNTESTED, NOT_JUDGED), claim.ours))


# Markdown --------------------------------------------------------------------------------------------------------


def markdown(part: FilledTable) -> str:
    """Return a section as Markdown."""
    lines = [f"## {part.name}: {_plain(part.title)}", "", f"*{_plain(about(part))}.*", ""]
    lines += [line for text in (part.caution, part.apart) if text for line in (_plain(text), "")]
    if part.scale == SMOKE:
        lines += ["> Smoke scale: this proves the path, its numbers mean nothing.", ""]
    if part.columns:
        header, rows = grid(part)
        lines += [_line(header), "|---|" + "--:|" * (len(header) - 1), *map(_line, rows), ""]
    elif part.drawn:
        lines += [f"![{_plain(part.title)}]({slug_of(part)}.png)", ""]
    lines += [f"*{_plain(line)}*\n" for line in bundled(part)]
    lines += [f"{_plain(commit_line)}\n"] if (commit_line := commits(part)) else []
    lines += [
        f"- **{claim.status}** ({'ours' if claim.ours else 'paper'}): {_plain(claim.text)} — {_plain(claim.because)}"
        for claim in in_order(part.claims)
    ]
    lines += [""] if part.claims else []
    if notes := [*filter(None, [part.note, taken(part), other_code(part)]), *remarks(part)]:
        lines += ["<details><summary>Settings and remarks</summary>", "", *(f"{_plain(note)}\n" for note in notes)]
        lines += ["</details>"]
    return "\n".join(lines).rstrip() + "\n"


def _line(words: Sequence[str]) -> str:
    return "| " + " | ".join(_plain(word) for word in words) + " |"


def _plain(text: str) -> str:
    """Return text that Markdown neither takes for a column's end nor for markup of HTML."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


# LaTeX -----------------------------------------------------------------------------------------------------------

_GREEK = "αβγδεζηθικλμνξπρστυφχψωΓΔΘΛΞΠΣΥΦΨΩ"
_GREEK_NAMES = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau upsilon phi chi "
    "psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega"
)
_LATEX: Mapping[int, str] = str.maketrans(
    {
        "\\": r"\textbackslash{}", "%": r"\%", "_": r"\_", "&": r"\&", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}",
        "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "–": "--", "−": r"$-$", "×": r"$\times$",
        "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "≤": r"$\leq$", "≥": r"$\geq$",
        "≈": r"$\approx$", "→": r"$\rightarrow$", "←": r"$\leftarrow$", "°": r"$^\circ$", "∞": r"$\infty$",
        **{letter: rf"$\{name}$" for letter, name in zip(_GREEK, _GREEK_NAMES.split(), strict=True)},
    }
)  # fmt: skip

_ALIGNED = re.compile(r"[+-]?[\d,]+(\.\d+)?( ± [\d,]+(\.\d+)?)?")
"""Numbers that siunitx can align: finite, without percent signs and exponents."""
_EXPONENT = re.compile(r"e(?:\+|(-))0*(\d+)")


def latex(part: FilledTable) -> str:
    """Return a table as a LaTeX `tabular` in the booktabs style, with a group of columns under each header.

    It needs the packages booktabs and siunitx; numbers are aligned at the decimal point.
    """
    split = [parts_of(part, index) for index in range(len(part.columns))]
    formats = [_format(part, index, what) for index, group in enumerate(split) for what in group]
    top = [rf"\multicolumn{{{len(group)}}}{{c}}{{{_latex(column.header)}}}"
           for column, group in zip(part.columns, split, strict=True)]  # fmt: skip
    lines = [
        f"% {part.name}, {' '.join(f'{about(part)}. {part.caution} {part.apart}'.split())}",
        r"% \usepackage{booktabs, siunitx}",
        rf"\begin{{tabular}}{{l{''.join(formats)}}}",
        r"\toprule",
        " & ".join(["", *top]) + r" \\",
        *_rules(split),
        " & ".join(["", *(f"{{{what}}}" for group in split for what in group)]) + r" \\",
        r"\midrule",
        *(" & ".join([_first(label(row)), *_numbers(part, row, split)]) + r" \\" for row in part.rows),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def _rules(split: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the line below each group of more than one column."""
    first = 2
    for group in split:
        if len(group) > 1:
            yield rf"\cmidrule(lr){{{first}-{first + len(group) - 1}}}"
        first += len(group)


def _format(part: FilledTable, index: int, what: str) -> str:
    """Return the column of siunitx that holds a column's widest number."""
    form = part.columns[index].format
    values = [text for row in part.rows if _ALIGNED.fullmatch(text := text_of(row, index, what, form))]
    means = [text.partition(" ± ")[0] for text in values] or ["0"]
    signed = "+" if what == "difference" else "-" if any(text.startswith("-") for text in means) else ""
    integers, decimals = (max(map(len, ends)) for ends in zip(*(_ends(text) for text in means), strict=True))
    spread = max((sum(map(len, _ends(text.partition(" ± ")[2]))) for text in values if " ± " in text), default=0)
    uncertain = f"({spread})" if spread else ""
    return f"S[table-format={signed}{integers}.{decimals}{uncertain}, separate-uncertainty]"


def _ends(text: str) -> tuple[str, str]:
    """Return the digits before and after a number's point."""
    integers, _, decimals = text.lstrip("+-").replace(",", "").partition(".")
    return integers, decimals


def _numbers(part: FilledTable, row: FilledRow, split: Sequence[Sequence[str]]) -> Iterator[str]:
    for index, group in enumerate(split):
        for what in group:
            text = text_of(row, index, what, part.columns[index].format)
            if _ALIGNED.fullmatch(text):
                yield text.replace("±", r"\pm").replace(",", "")
            else:
                yield "{" + _EXPONENT.sub(r"$\\times10^{\1\2}$", _latex(text)) + "}"


def _first(text: str) -> str:
    """Return the first words of a line; behind another, LaTeX would take a bracket or star for an option."""
    return ("{}" if text.startswith(("[", "*")) else "") + _latex(text)


def _latex(text: str) -> str:
    return text.replace("->", "→").translate(_LATEX)
