"""Results of a task's tables in which only some rows were run."""

from retable.platform.table import Results


def results_of(tables, found):
    """Return results that know every row of some tables; of those that `found` lacks there are none."""
    labels = dict.fromkeys(row.label for table in tables.values() for row in table.rows)
    return Results({**dict.fromkeys(labels, ()), **found})
