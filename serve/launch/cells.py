"""The result tables that a storage keeps: which runs fill them, and which cell a run fills."""

from __future__ import annotations

from collections.abc import Sequence

from retable.platform.report.results import FilledTable


def runs_of(table: FilledTable) -> set[str]:
    """Return the fingerprints of the runs behind a table's numbers, those included that others were joined of."""
    replicates = [replicate for row in table.rows for replicate in row.replicates]
    return {origin.run for replicate in replicates for origin in replicate.origin.parts()}


def cell_of(fingerprint: str, scale: str, tables: Sequence[FilledTable]) -> str:
    """Return the first cell that a run alone fills, `table/row/column`; empty where there is none.

    Args:
        fingerprint: the run's.
        scale: the run's; tables of another one come last.
        tables: where to look.
    """
    for table in sorted(tables, key=lambda table: table.scale != scale):
        for row in table.rows:
            places = [place for place, each in enumerate(row.replicates) if each.origin.run == fingerprint]
            for column, cell in zip(table.columns, row.cells, strict=False):
                if any(cell.values[place] is not None for place in places):
                    return f"{table.name}/{row.label}/{column.header}"
    return ""
