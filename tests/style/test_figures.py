"""Every figure at every scale's rows, on made-up results: what is shown, and that no text lies over another."""

import functools
import itertools
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from retable.platform.spec.table import Figure, Results, expand
from retable.platform.spec.task import scaled
from retable.tasks.style import TASK, figures
from retable.tasks.style.config import Config, OptimiseImage, View

TABLES = TASK.tables()
SCALES = TASK.scales()

SHAPES = {"mountain": (436, 1024), "astronaut": (512, 512), "coffee": (400, 600)}
LARGE = (2048, 3082)
PAINTINGS = {"great_wave": (514, 928), "starry_night": (480, 768), "the_scream": (900, 707)}
SECONDS = {"": 1.0, "_low": 0.9, "_high": 1.3}
FIGURES = [name for name, table in TABLES.items() if isinstance(table, Figure)]
DRAWN = [pytest.param("smoke", marks=pytest.mark.slow), "paper"]


def picture(height, width, longer, colour):
    """Make a picture of one colour, its longer side reduced to a tenth of what was asked."""
    share = longer / 10 / max(height, width)
    return np.full((max(round(height * share), 1), max(round(width * share), 1), 3), colour, np.uint8)


def replicate(row, need):
    config, view = need.config, need.view
    seconds = {f"{name}_seconds{end}": value for name in figures.CRITERIA.values() for end, value in SECONDS.items()}
    metrics = {"style_error": 0.0123, "content_error": 0.456, **seconds}
    if view is None:
        return replace(need, metrics=metrics)
    arrays = {f"painting/{name}": picture(*PAINTINGS[name], 900, 200) for name in config.style}
    if isinstance(config.method, OptimiseImage):
        name, longer = config.method.content, config.method.size
        shape = SHAPES[name] if config.method.shape == "keep" else (1, 1)
        total = np.geomspace(1e6, 10.0, config.epochs * config.steps)
        arrays["losses"] = np.stack([total, total / 3, total * 2 / 3], 1).astype(np.float32)
    else:
        (name,), longer = view.content, view.size
        shape = SHAPES.get(name, LARGE)
    arrays |= {f"{what}/{name}": picture(*shape, longer, c) for what, c in (("photograph", 90), ("stylised", 30))}
    return replace(need, metrics=metrics, summaries=lambda: {"all": arrays})


def results(name, scale):
    table = scaled(TABLES[name], SCALES[scale])
    found = {}
    for row in table.rows:
        needs = expand(table, row, Config(), View()) if not row.absent else []
        found[row.label] = [replicate(row, need) for need in needs]
    return table, Results(found)


@functools.cache
def drawn(name, scale):
    """Draw a figure; tests look at it and leave it as it is."""
    table, found = results(name, scale)
    drawing = table.draw(found)
    drawing.set_dpi(50)
    FigureCanvasAgg(drawing).draw()
    return drawing


def texts(drawing):
    """Return every text of a drawing that is seen, with its box in pixels."""
    items = [axis.title for axis in drawing.axes]
    for axis in (axis for axis in drawing.axes if axis.axison):
        items += [axis.xaxis.label, axis.yaxis.label]
        for line, way in ((axis.xaxis, axis.get_xlim()), (axis.yaxis, axis.get_ylim())):
            ticks = [tick for tick in line.get_major_ticks() if min(way) <= tick.get_loc() <= max(way)]
            items += [tick.label1 for tick in ticks if tick.label1.get_visible()]
    return [(item.get_text(), item.get_window_extent()) for item in items if item.get_text()]


@pytest.mark.parametrize("scale", DRAWN)
@pytest.mark.parametrize("name", FIGURES)
def test_no_text_lies_over_another_or_outside(name, scale):
    drawing = drawn(name, scale)
    boxes = texts(drawing)
    assert boxes
    width, height = drawing.get_size_inches() * drawing.dpi
    for text, box in boxes:
        assert box.x0 > -1 and box.x1 < width + 1 and box.y0 > -1 and box.y1 < height + 1, text
    for (one, first), (other, second) in itertools.combinations(boxes, 2):
        across = min(first.x1, second.x1) - max(first.x0, second.x0)
        down = min(first.y1, second.y1) - max(first.y0, second.y0)
        assert min(across, down) < 1, (one, other)


@pytest.mark.parametrize("scale", DRAWN)
@pytest.mark.parametrize("name", ["figure1", "figure3", "figure7", "figure8"])
def test_pictures_keep_their_shape(name, scale):
    for axis in drawn(name, scale).axes:
        for image in axis.images:
            height, width = image.get_array().shape[:2]
            box = axis.get_window_extent()
            assert box.width / box.height == pytest.approx(width / height, rel=0.02)


@pytest.mark.parametrize("name", ["figure1", "figure3"])
def test_a_line_shows_photograph_painting_and_each_result_with_its_errors(name):
    axes = [axis for axis in drawn(name, "paper").axes]
    titles = [axis.get_title().split("\n") for axis in axes]
    made = ["version 1", "version 2"] if name == "figure1" else ["VGG-19", "AlexNet"]
    painting = {"figure1": "great wave", "figure3": "starry night"}[name]
    assert [title[0] for title in titles] == [text for photograph in SHAPES for text in (photograph, painting, *made)]
    assert all(title[1] == "style 0.0123, content 0.456" for title in titles if title[0] in made)
    colours = [int(axis.images[0].get_array()[0, 0, 0]) for axis in axes[:4]]
    assert colours == [90, 200, 30, 30]


def test_figure_7_has_the_results_below_their_paintings():
    axes = drawn("figure7", "smoke").axes
    columns = [
        (above.get_title(), below.get_title().split("\n")[0]) for above, below in zip(axes[:4], axes[4:], strict=True)
    ]
    names = ["The Starry Night", "The Scream", "The Great Wave off Kanagawa"]
    assert columns == [("mountain", ""), *((name, name) for name in names)]


@pytest.mark.parametrize(("name", "first"), [("figure2", 1.0), ("figure5", 1e6)])
def test_losses_are_drawn_over_evaluations_on_a_logarithmic_axis(name, first):
    (axis,) = drawn(name, "paper").axes
    table, found = results(name, "paper")
    assert axis.get_yscale() == "log"
    assert [text.get_text() for text in axis.get_legend().get_texts()] == [row.label for row in table.rows]
    assert len(axis.lines) == sum(len(rows) for rows in found.replicates.values())
    for line in axis.lines:
        x, y = line.get_data()
        assert (x[0], x[-1]) == (1, 300) and (y[0], y[-1] / y[0]) == pytest.approx((first, 1e-5))
    without = Results({label: rows[1:] for label, rows in found.replicates.items()})
    legend = table.draw(without).axes[0].get_legend().get_texts()
    assert [text.get_text() for text in legend] == [row.label for row in table.rows], (
        "also without the first photograph"
    )


def test_a_loss_that_overflows_leaves_a_gap():
    table, found = results("figure5", "smoke")
    (sgd,) = found.select("SGD")
    sgd.summaries()["all"]["losses"][3:5, 0] = np.inf, np.nan
    lines = {line.get_label(): line.get_ydata() for line in table.draw(found).axes[0].lines}
    assert np.isnan(lines["SGD"]).tolist() == [False] * 3 + [True] * 2 + [False] * 5


def test_figure_4_shows_medians_quartiles_and_a_point_for_each_photograph():
    seconds, style, content = drawn("figure4", "paper").axes
    assert [bar.get_width() for bar in seconds.patches] == [1.0] * 4
    assert [list(line.get_xdata()) for line in seconds.lines] == [[0.9, 1.3]] * 4
    assert [text.get_text() for text in seconds.get_yticklabels()] == list(figures.CRITERIA)
    for axis, error in ((style, 0.0123), (content, 0.456)):
        assert [list(line.get_xdata()) for line in axis.lines] == [[error] * 3] * 4


def test_figures_are_drawn_before_all_rows_are_there():
    for name in FIGURES:
        table, found = results(name, "smoke")
        label = next(label for label, rows in found.replicates.items() if rows)
        only = Results({key: rows if key == label else [] for key, rows in found.replicates.items()})
        assert table.draw(only).axes
    table, found = results("figure1", "smoke")
    for label, there in (("version 1", [True, True, True, False]), ("version 2", [True, True, False, True])):
        only = Results({key: rows if key.startswith(label) else [] for key, rows in found.replicates.items()})
        assert [bool(axis.images) for axis in table.draw(only).axes] == there, label


def test_the_piece_of_figure_8_is_the_marked_middle_of_the_result():
    _, found = results("figure8", "paper")
    (large,) = found.select("version 2")
    made = large.summaries()["all"]["stylised/pigeon"]
    made[:] = np.random.default_rng(0).integers(0, 255, made.shape)
    axes = figures.draw_large(found).axes
    (mark,) = axes[1].patches
    left, top, wide, tall = int(mark.get_x()), int(mark.get_y()), int(mark.get_width()), int(mark.get_height())
    assert np.array_equal(axes[4].images[0].get_array(), made[top : top + tall, left : left + wide])
    assert f"{wide} x {tall} pixels" in axes[4].get_title().replace("\n", " ")
    height, width = made.shape[:2]
    assert (abs(2 * left + wide - width), abs(2 * top + tall - height)) <= (1, 1)
