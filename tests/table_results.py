"""Results of a task's tables in which only some rows were run, and the numbers of an estimate."""

from retable.platform.spec.table import Results


def results_of(tables, found):
    """Return results that know every row of some tables; of those that `found` lacks there are none.

    Its keys are rows or labels.
    """
    labels = dict.fromkeys(row.label for table in tables.values() for row in table.rows)
    named = {row if isinstance(row, str) else row.label: replicates for row, replicates in found.items()}
    return Results({**dict.fromkeys(labels, ()), **named})


def numbers(estimate):
    """Return an estimate's value and the ends of its interval."""
    return estimate.value, estimate.low, estimate.high
