import time
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise

import numpy as np
import pytest

from retable.platform.errors import UserError
from retable.platform.spec.task import Source
from retable.platform.store.storage import Storage
from retable.tasks.weather.config import Config
from retable.tasks.weather.w4c import layout
from retable.tasks.weather.w4c.layout import Index, Window, local_holdout, rain_path, satellite_path
from retable.tasks.weather.w4c.prepare import holdout_notes
from tests.weather.files import Layout


def index_of(tmp_path, written, **changes):
    written.write_csv(tmp_path / "timestamps_and_splits.csv")
    return Index.read(Storage.open(tmp_path), written.info(**changes))


def rows_of(written, year, split, kinds=None):
    return [
        row
        for row in written.rows
        if row[0].year == year and row[1] and row[2] == split and (kinds is None or row[3].split("_")[-1] in kinds)
    ]


def naive_starts(rows, length):
    """Every start whose next frames are there, checked one by one."""
    starts = []
    for i in range(len(rows) - length + 1):
        if all(rows[i + k + 1][0] - rows[i + k][0] == timedelta(minutes=15) for k in range(length - 1)):
            starts.append(i)
    return starts


def test_names_are_the_competitions():
    assert satellite_path(2019, "boxi_0015", "training") == "2019/HRIT/boxi_0015.train.reflbt0.ns.h5"
    assert rain_path(2020, "roxi_0007", "validation") == "2020/OPERA/roxi_0007.val.rates.crop.h5"
    assert satellite_path(2021, "roxi_0007", "heldout") == "2021/HRIT/roxi_0007.heldout.reflbt0.ns.h5"


@pytest.mark.parametrize(("inputs", "forecast"), [(4, 8), (2, 3), (1, 8)])
def test_training_windows_are_those_of_a_plain_search(tmp_path, inputs, forecast):
    written = Layout()
    index = index_of(tmp_path, written)
    windows = index.training(("roxi_0004", "boxi_0015"), (2020, 2019), inputs, forecast, False)
    expected = []
    for year in (2020, 2019):
        for region in ("roxi_0004", "boxi_0015"):
            for start in naive_starts(rows_of(written, year, "training"), inputs + forecast):
                expected.append(Window(f"{year}/{region}/training", start, start))
    assert windows == expected
    assert len(expected) > 50


def test_training_with_validation_adds_each_sequence_once(tmp_path):
    written = Layout()
    index = index_of(tmp_path, written)
    plain = index.training(written.regions, (2019,), 4, 8, False)
    more = index.training(written.regions, (2019,), 4, 8, True)
    added = [window for window in more if window not in plain]
    assert added == [Window(f"2019/{region}/validation", k * 12, k * 12) for region in written.regions for k in (0, 1)]
    assert len(more) == len(plain) + 4


def test_sequences_shorter_than_the_layouts_use_the_last_inputs(tmp_path):
    written = Layout()
    index = index_of(tmp_path, written)
    validation = index.sequences("validation", ("boxi_0015",), (2019,), 3, 5)
    assert validation == {"validation/2019/boxi_0015": [Window("2019/boxi_0015/validation", k, k) for k in (1, 13)]}
    test = index.sequences("test", ("roxi_0004", "boxi_0015"), (2020, 2019), 3, 5)
    assert list(test) == [f"test/{year}/{region}" for year in (2020, 2019) for region in ("roxi_0004", "boxi_0015")]
    # Images: 4 rows a sequence; rain: 12. The window's rain row is that of its first input.
    assert test["test/2020/boxi_0015"] == [Window("2020/boxi_0015/test", 1, 1), Window("2020/boxi_0015/test", 5, 13)]


def test_windows_name_the_right_times(tmp_path):
    written = Layout()
    index = index_of(tmp_path, written)
    images, rain = rows_of(written, 2019, "test", ["in"]), rows_of(written, 2019, "test", ["in", "target"])
    for window in index.sequences("test", ("boxi_0015",), (2019,), 2, 8)["test/2019/boxi_0015"]:
        assert images[window.satellite][0] == rain[window.rain][0]
        kinds = [row[3] for row in rain[window.rain : window.rain + 10]]
        assert kinds == ["test_in"] * 2 + ["test_target"] * 8


def test_back_to_back_sequences_are_told_apart(tmp_path):
    written = Layout(years=(2019,))
    at = datetime(2019, 8, 1)
    for _ in range(3):
        for kind, length in (("in", 4), ("target", 8)):
            for _ in range(length):
                at = written._row(at, 1, "validation", f"validation_{kind}")
    index = index_of(tmp_path, written)
    windows = index.sequences("validation", ("boxi_0015",), (2019,), 4, 8)["validation/2019/boxi_0015"]
    assert [window.satellite for window in windows] == [0, 12, 24, 36, 48]


def test_a_broken_sequence_is_left_out_but_still_submitted(tmp_path):
    written = Layout(years=(2019,), targets=True)
    for split in ("validation", "test"):
        at = next(i for i, row in enumerate(written.rows) if row[3] == f"{split}_target") + 3
        written.rows[at] = (written.rows[at][0], 0, "-", "-")
    index = index_of(tmp_path, written)
    (window,) = index.sequences("validation", ("boxi_0015",), (2019,), 4, 8)["validation/2019/boxi_0015"]
    assert (window.satellite, window.rain) == (11, 11)
    (window,) = index.sequences("test", ("boxi_0015",), (2019,), 4, 8)["test/2019/boxi_0015"]
    assert (window.satellite, window.rain) == (4, 11)
    asked = index.official("test", ("boxi_0015",), (2019,), 4, 8, targets=False)["test/2019/boxi_0015"]
    assert [window.satellite for window in asked] == [0, 4]


def test_inputs_alone_are_found_without_targets_in_the_table(tmp_path):
    written = Layout(years=(2019,), targets=False)
    written.rows = [row for row in written.rows if row[3] != "test_target"]
    index = index_of(tmp_path, written)
    asked = index.official("test", ("boxi_0015",), (2019,), 4, 8, targets=False)["test/2019/boxi_0015"]
    assert [window.satellite for window in asked] == [0, 4]
    assert index.official("test", ("boxi_0015",), (2019,), 4, 8, targets=True) == {}


def test_series_that_are_not_there_are_left_out(tmp_path):
    written = Layout()
    info = written.info()
    for name in ("2019/boxi_0015/training", "2020/roxi_0004/validation", "2019/roxi_0004/test"):
        del info["series"][name]
    info["series"]["2020/roxi_0004/training"]["rain"] = None
    index = index_of(tmp_path, written, series=info["series"])
    windows = index.training(written.regions, written.years, 4, 8, True)
    counts = {name: sum(w.series == name for w in windows) for name in {w.series for w in windows}}
    starts = len(naive_starts(rows_of(written, 2019, "training"), 12))
    assert counts == {
        "2019/roxi_0004/training": starts,
        "2019/roxi_0004/validation": 2,
        "2019/boxi_0015/validation": 2,
        "2020/boxi_0015/training": starts,
        "2020/boxi_0015/validation": 2,
    }
    assert list(index.sequences("test", written.regions, (2019,), 4, 8)) == ["test/2019/boxi_0015"]


def test_a_slot_may_occur_once_in_each_split(tmp_path):
    written = Layout(years=(2019,))
    copies = [(row[0], 1, "training", "-") for row in written.rows if row[2] == "validation"]
    before = rows_of(written, 2019, "training")
    written.rows += copies
    index = index_of(tmp_path, written)
    windows = index.training(("boxi_0015",), (2019,), 4, 8, False)
    expected = naive_starts(sorted([*before, *copies]), 12)
    assert [window.satellite for window in windows] == expected
    assert len(index.sequences("validation", ("boxi_0015",), (2019,), 4, 8)["validation/2019/boxi_0015"]) == 2


@pytest.mark.parametrize("name", layout.CSV_NAMES)
def test_the_table_may_lie_where_the_kit_has_it_and_lack_zeros(tmp_path, name):
    written = Layout()
    (tmp_path / "a").mkdir()
    expected = index_of(tmp_path / "a", written).training(written.regions, written.years, 4, 8, True)
    written.write_csv(tmp_path / "b" / name, pad=False)
    found = Index.read(Storage.open(tmp_path / "b"), written.info())
    assert found.training(written.regions, written.years, 4, 8, True) == expected


def local(tmp_path, rows=3000, gap=500):
    written = Layout(years=(2019,), regions=("a", "b"), runs=(rows,), targets=False)
    start = next(i for i, row in enumerate(written.rows) if row[2] == "training") + gap
    for i in range(start, start + 40):
        written.rows[i] = (written.rows[i][0], 0, "-", "-")
    return written, index_of(tmp_path, written)


@pytest.mark.parametrize(("inputs", "forecast", "rows"), [(4, 8, 3000), (2, 5, 3000), (4, 8, 60)])
def test_no_training_window_touches_a_local_holdout_or_its_buffer(tmp_path, inputs, forecast, rows):
    written, index = local(tmp_path, rows, gap=10)
    times = {split: [row[0] for row in rows_of(written, 2019, split)] for split in ("training", "validation")}
    closed, held = set(), {}
    for split in ("test", "heldout"):
        shards = index.sequences(split, ("b", "a"), (2019,), 4, 8)
        assert list(shards) == [f"{split}/2019/b", f"{split}/2019/a"]
        rows = {region: [w.satellite for w in shards[f"{split}/2019/{region}"]] for region in ("a", "b")}
        assert rows["a"] == rows["b"]
        held[split] = rows["a"]
        for window in shards[f"{split}/2019/a"]:
            assert window.series == "2019/a/training" and window.satellite == window.rain
            first = times["training"][window.satellite]
            assert times["training"][window.satellite + 11] - first == 11 * timedelta(minutes=15)
            closed |= {first + k * timedelta(minutes=15) for k in range(-8, 12 + 8)}
        shorter = index.sequences(split, ("a",), (2019,), inputs, forecast)[f"{split}/2019/a"]
        assert [w.satellite + inputs for w in shorter] == [row + 4 for row in rows["a"]]
    assert not closed & set(times["validation"])
    windows = index.training(("a",), (2019,), inputs, forecast, True)
    seen = set()
    for window in windows:
        split = window.series.split("/")[-1]
        frames = times[split][window.rain : window.rain + inputs + forecast]
        assert not closed & set(frames)
        if split == "training":
            seen.add(window.satellite)
    # Nothing else is lost: every other contiguous start is there.
    for start in naive_starts(rows_of(written, 2019, "training"), inputs + forecast):
        assert (start in seen) == (not closed & set(times["training"][start : start + inputs + forecast]))
    assert abs(len(held["test"]) - len(held["heldout"])) <= 1
    together = sorted([*held["test"], *held["heldout"]])
    assert all(b - a >= 12 for a, b in pairwise(together))


def test_a_holdout_of_none_leaves_every_window_to_training(tmp_path):
    written, index = local(tmp_path, gap=10)
    place, info = Storage.open(tmp_path), written.info()
    whole, few = Index.read(place, info, 0), Index.read(place, info, 3)
    every = naive_starts(rows_of(written, 2019, "training"), 12)
    found = [w.satellite for w in whole.training(("a",), (2019,), 4, 8, False)]
    assert found == list(every) and whole.free("2019/a/training").all()
    counts = [len(one.training(("a",), (2019,), 4, 8, False)) for one in (index, few, whole)]
    assert counts[0] < counts[1] < counts[2]
    assert [len(few.sequences(s, ("a",), (2019,), 4, 8)[f"{s}/2019/a"]) for s in ("test", "heldout")] == [3, 3]
    assert len(whole.training(("a",), (2019,), 4, 8, True)) == len(every) + 2  # each validation sequence
    with pytest.raises(UserError, match="holdout 0 holds no sequences back for test"):
        whole.sequences("test", ("a",), (2019,), 4, 8)
    assert whole.sequences("validation", ("a",), (2019,), 4, 8)


@pytest.mark.parametrize("holdout", [pytest.param(60, marks=pytest.mark.slow), 3, 0])
def test_a_plan_says_what_the_holdout_costs_and_gives(tmp_path, holdout):
    written, _ = local(tmp_path, gap=10)
    source = Source(Storage.open(tmp_path), {**written.info(), "name": "own"})
    config = Config(data="own", regions=("a",), years=(2019,), forecast=8, holdout=holdout)
    index = Index.read(source.folder, source.info, holdout)
    windows = len(index.training(("a",), (2019,), 4, 8, False))
    every = len(naive_starts(rows_of(written, 2019, "training"), 12))
    [line] = holdout_notes([config, replace(config, seed=1, regions=("b",))], source)
    assert f"own: hold-out of {holdout}: {windows:,} of {every:,} training windows a region stay; " in line
    if holdout:
        counts = [len(index.sequences(s, ("a",), (2019,), 4, 8)[f"{s}/2019/a"]) for s in ("test", "heldout")]
        assert line.endswith("{} test and {} heldout sequences a region".format(*counts)) and windows < every
    else:
        assert line.endswith("only validation can be scored") and windows == every
    assert len(holdout_notes([config, replace(config, holdout=1)], source)) == 2
    assert holdout_notes([config], Source(source.folder, {**source.info, "holdout": "official"})) == []


def test_local_holdouts_alternate_and_spread_over_the_year(tmp_path):
    written, index = local(tmp_path)
    total = len(rows_of(written, 2019, "training"))
    test, heldout = (
        [w.satellite for w in index.sequences(split, ("a",), (2019,), 4, 8)[f"{split}/2019/a"]]
        for split in ("test", "heldout")
    )
    assert len(test) == len(heldout) == 60  # the most there may be
    assert all(a < b for a, b in zip(test, heldout, strict=True))
    assert all(b < a for a, b in zip(test[1:], heldout[:-1], strict=True))
    for rows in (test, heldout):
        counts, _ = np.histogram(rows, bins=6, range=(0, total))
        assert counts.min() >= 9 and counts.max() <= 11


def test_local_holdouts_of_the_real_length_take_at_most_a_fifth():
    # 20308 frames in runs of 113, as the official split leaves them, with a validation sequence in every third gap.
    run, start = np.arange(113), np.datetime64("2019-02-15T00:00", "m")
    time = np.concatenate([run + k * 173 for k in range(180)])[:20308] * 15 + start
    others = np.concatenate([125 + np.arange(36) + k * 173 for k in range(0, 180, 3)]) * 15 + start
    starts, taken = local_holdout(time, others, 4, 32, 60)
    assert len(starts) == 40
    assert 0.05 < taken.mean() <= 0.2
    # Validation chooses thresholds and rows, so it sees no weather of theirs.
    frames = time[starts[:, None] + np.arange(36)].ravel()
    assert abs(frames[:, None] - others).min() > np.timedelta64(8, "h")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"inputs": 5}, "inputs 5"),
        ({"forecast": 9}, "forecast 9"),
        ({"regions": ("boxi_0016",)}, "boxi_0015"),
        ({"years": (2021,)}, "no 2021"),
    ],
)
def test_what_the_layout_does_not_have_is_refused_by_name(tmp_path, change, message):
    written = Layout()
    index = index_of(tmp_path, written)
    asked = {"regions": written.regions, "years": written.years, "inputs": 4, "forecast": 8, **change}
    for call in (
        lambda: index.training(**asked, with_validation=False),
        lambda: index.sequences("validation", **asked),
        lambda: index.sequences("test", **asked),
    ):
        with pytest.raises(UserError, match=message) as error:
            call()
        assert "\n" not in str(error.value)


def test_files_that_disagree_with_the_table_are_refused(tmp_path):
    written = Layout()
    for name, kind in (("2019/boxi_0015/training", "rain"), ("2020/boxi_0015/validation", "satellite")):
        info = written.info()
        info["series"][name][kind] += 1
        index = index_of(tmp_path, written, series=info["series"])
        with pytest.raises(UserError, match=f"{name}.*{kind} rows"):
            index.training(written.regions, written.years, 4, 8, True)


def test_tables_that_cannot_be_read_are_refused(tmp_path):
    folder, path = Storage.open(tmp_path), tmp_path / "timestamps_and_splits.csv"
    with pytest.raises(UserError, match="is missing"):
        layout.read_csv(folder)
    written = replace(Layout(years=(2019,)))
    for text in ("", "a,b\n1,2\n", "\x00\xff"):
        path.write_text(text)
        with pytest.raises(UserError, match="not the competition's table"):
            layout.read_csv(folder)
    written.write_csv(path)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines, lines[1]]) + "\n")
    with pytest.raises(UserError, match="training has the slot 2019-02-14T22:30 twice"):
        layout.read_csv(folder)
    path.write_text("\n".join([*lines, lines[1].replace("223000", "22h30")]) + "\n")
    with pytest.raises(UserError, match="not the competition's table"):
        layout.read_csv(folder)


def test_a_full_year_of_every_region_is_indexed_quickly(tmp_path):
    written = Layout(regions=tuple("abcdefg"), inputs=4, forecast=32, sequences=60, runs=(113,), targets=False)
    index = index_of(tmp_path, written)
    begun = time.process_time()
    windows = index.training(written.regions, written.years, 4, 32, False)
    assert len(windows) > 100_000
    assert time.process_time() - begun < 2
