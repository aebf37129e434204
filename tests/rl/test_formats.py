"""File sizes in tables, figure and claims: break-evens of known lines, verdicts on made-up results."""

import pytest

from retable.platform.spec.table import Replicate
from retable.tasks.rl import TASK, claims, figures, tables
from retable.tasks.rl.config import Config
from retable.tasks.rl.learning import readings
from retable.tasks.rl.tables import SPARSITIES
from tests.table_results import results_of

TABLES = TASK.tables()


def made(rows):
    """Make results from label -> metrics of each seed."""
    return results_of(
        TABLES,
        {
            label: [Replicate(label, {"seed": i}, Config(), None, metrics=metrics) for i, metrics in enumerate(found)]
            for label, found in rows.items()
        },
    )


def sized(slope):
    """Make a format that takes `slope` x density x the dense file."""
    rows = {}
    for sparsity in (0.0, *SPARSITIES):
        metrics = {
            f"bytes/{n}/{form}": 1e6 * slope * (1 - sparsity) for n in readings.NETWORKS for form in readings.FORMATS
        }
        metrics |= {f"bytes/{n}/dense": 1e6 for n in readings.NETWORKS}
        rows[readings.label("snip", sparsity) if sparsity else "dense"] = [metrics]
    return made(rows)


@pytest.mark.parametrize(("slope", "wanted"), [(5, 0.8), (3, 2 / 3), (2, 0.5), (1.25, 0.2), (0.9, 0.0), (30, None)])
def test_formats_break_even_where_density_times_slope_is_one(slope, wanted):
    x, sizes = readings.file_sizes(sized(slope), "vae", "sparse", SPARSITIES)
    assert readings.break_even(x, sizes, 1e6 * (1 + 1e-12)) == (wanted if wanted is None else pytest.approx(wanted))


@pytest.mark.parametrize(("slope", "status"), [(5, "holds"), (3, "does not hold"), (30, "does not hold")])
def test_the_claimed_break_even_is_tested(slope, status):
    (claim,) = TABLES["figure4"].claims
    assert claim.check(sized(slope)).status == status
    assert claim.check(made({})).status == "not tested at this scale"


def test_the_figure_draws_every_format_and_marks_break_evens():
    figure = figures.draw_memory(sized(5), SPARSITIES)
    assert len(figure.axes) == 3
    for axis in figure.axes:
        assert [text.get_text() for text in axis.texts] == ["80 %"]
        assert {line.get_label() for line in axis.lines} >= {*readings.FORMATS.values()}


@pytest.mark.parametrize(
    ("shares", "status"),
    [((0.99, 1.019, 1.0), "holds"), ((1.0, 0.979, 1.0), "does not hold"), ((1.0, 1.0, 1.021), "does not hold")],
)
def test_the_grasp_row_is_given_by_bytes_within_two_per_cent_in_every_network(shares, status):
    printed = {"actor": 140_990, "critic": 276_800, "vae": 1_212_200}  # Table 1
    bytes_ = {f"bytes/{n}/sparse": size * s for (n, size), s in zip(printed.items(), shares, strict=True)}
    found = [claim for claim in claims.MEMORY if "Xavier" in claim.text]
    for claim, label in zip(found, ("GraSP 95 %, Xavier (ours)", "GraSP 95 %, Xavier, raw states (ours)"), strict=True):
        assert claim.check(made({label: [bytes_]})).status == status
        assert claim.check(made({})).status == "not tested at this scale"


@pytest.mark.parametrize(("sizes", "status"), [((70, 71), "holds"), ((70, 72), "does not hold")])
def test_the_smallest_ratio_of_all_seeds_counts(sizes, status):
    dense = {f"bytes/{n}/dense": 1000.0 for n in readings.NETWORKS}
    pruned = [{f"bytes/{n}/compact": float(size) for n in readings.NETWORKS} for size in sizes]
    claim = claims.MEMORY[-1]
    assert claim.check(made({"Dense Model": [dense], "SNIP 95 %": pruned})).status == status
    assert claim.check(made({"Dense Model": [dense]})).status == "not tested at this scale"


@pytest.mark.parametrize(
    ("moved", "status"), [((0.0001, 0.0049), "holds"), ((0, 0.005), "does not hold"), ((), "not tested at this scale")]
)
def test_rounding_is_judged_by_the_actions_of_the_worst_seed(moved, status):
    found = made({"rounded": [{"action_difference": value} for value in moved]})
    assert claims.moves_little(found, "rounded").status == status


def test_every_metric_of_the_table_of_formats_is_measured():
    from retable.tasks.rl.formats.sizes import every_size
    from retable.tasks.rl.model import build, unstack
    from tests.rl import toys

    found = every_size(unstack(build([toys.config()], 5, 2, 1.0), 0), archives=True)
    for row in TABLES["formats"].rows:
        assert row.metrics.keys() <= {column.header for column in TABLES["formats"].columns}
        assert set(row.metrics.values()) - set(found) <= {"behaviour_share", "action_difference"}
    assert len(TABLES["formats"].claims) == 11


@pytest.mark.parametrize(("size", "status"), [(71, "holds"), (72, "does not hold")])
def test_exact_files_are_judged_after_training_too(size, status):
    claim = TABLES["formats"].claims[0]
    dense, ours = (
        {f"bytes/{n}/{form}": each for n in readings.NETWORKS} for form, each in (("dense", 1000.0), ("compact", size))
    )
    found = made({"dense": [dense], "ours, exact": [ours]})
    assert {"dense", "ours, exact"} <= {row.label for row in TABLES["formats"].rows}
    assert claim.check(found).status == status and claim.ours


@pytest.mark.parametrize(("size", "status"), [(1000, "holds"), (1001, "does not hold")])
def test_exact_files_are_judged_against_what_general_compressors_make_of_dense_ones(size, status):
    for form, claim in zip(("xz", "zstd"), TABLES["formats"].claims[1:3], strict=True):
        packed, ours = (
            {f"bytes/{n}/{f}": float(b) for n in readings.NETWORKS} for f, b in ((form, 1000), ("compact", size))
        )
        assert claim.check(made({tables.ARCHIVES[form]: [packed], "ours, exact": [ours]})).status == status
        assert (
            claim.check(made({tables.ARCHIVES[form]: [{}], "ours, exact": [ours]})).status == "not tested at this scale"
        )
