"""Submissions against files written by h5py and zipfile alone, and every way to be refused."""

from __future__ import annotations

import gzip
import io
import re
import tracemalloc
import zipfile
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest

from retable.platform.errors import UserError
from retable.tasks.weather.tools.forecasts import submission
from retable.tasks.weather.tools.forecasts.submission import check, write

REGIONS, YEARS = ("boxi_0015", "roxi_0004"), (2019, 2020)
SHAPE = (3, 4, 12, 12)
SIZES = {"wanted": [(year, region) for year in YEARS for region in REGIONS], "sequences": 3, "forecast": 4, "size": 12}


def read(path: Path) -> Iterator[tuple[int, str, np.ndarray]]:
    """Yield year, region and forecast, bool (n, L, S, S); raise UserError where a file is not of this format."""
    with submission.opened(path) as archive:
        found, reasons = submission.members(archive)
        if reasons:
            raise UserError(f"{path}: {reasons[0]}")
        for (year, region), entry in sorted(found.items()):
            with submission.dataset(archive, entry) as data:
                if reasons := submission.defects(data):
                    raise UserError(f"{path}: {entry.filename}: {reasons[0]}")
                shape = (data.shape[0], *data.shape[-3:])
                rain = np.empty(shape, bool)
                for sequence in range(len(rain)):
                    rain[sequence] = data[sequence].reshape(shape[1:])
            yield year, region, rain


def forecasts() -> list[tuple[int, str, np.ndarray]]:
    random = np.random.default_rng(0)
    return [(year, region, random.integers(0, 201, SHAPE, dtype=np.uint8)) for year in YEARS for region in REGIONS]


def hdf5(values: np.ndarray | None = None, key: str = "submission", **options) -> bytes:
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        file.create_dataset(key, data=np.zeros(SHAPE, np.float32) if values is None else values, **options)
    return buffer.getvalue()


def files() -> dict[str, bytes]:
    return {f"{year}/{region}.pred.h5": hdf5() for year in YEARS for region in REGIONS}


def packed(path: Path, entries: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return path


def test_what_is_written_is_what_the_description_asks_for(tmp_path: Path) -> None:
    path = tmp_path / "submission.zip"
    write(path, iter(forecasts()))
    assert [file.name for file in tmp_path.iterdir()] == ["submission.zip"]
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == [f"{year}/{region}.pred.h5" for year in YEARS for region in REGIONS]
        for (_, _, steps), name in zip(forecasts(), archive.namelist(), strict=True):
            with h5py.File(io.BytesIO(archive.read(name))) as file:
                data = file["submission"]
                assert data.shape == (3, 1, 4, 12, 12)
                assert data.dtype == np.float32
                assert data.compression == "gzip"
                np.testing.assert_array_equal(data[()].reshape(SHAPE), (steps >= 100).astype(np.float32))
    assert check(path, **SIZES) == []
    for (year, region, steps), found in zip(forecasts(), read(path), strict=True):
        assert found[:2] == (year, region)
        assert found[2].dtype == bool
        np.testing.assert_array_equal(found[2], steps >= 100)


def test_equal_predictions_give_equal_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a.zip", forecasts())
    monkeypatch.setattr("time.time", lambda: 2e9)
    write(tmp_path / "b.zip", forecasts())
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


def test_a_broken_write_leaves_nothing(tmp_path: Path) -> None:
    def broken():
        yield from forecasts()[:1]
        raise RuntimeError("lost")

    with pytest.raises(RuntimeError, match="lost"):
        write(tmp_path / "a.zip", broken())
    with pytest.raises(ValueError, match="twice"):
        write(tmp_path / "a.zip", forecasts()[:1] * 2)
    assert not list(tmp_path.iterdir())


def test_only_one_region_is_held(tmp_path: Path) -> None:
    shape = (20, 8, 60, 60)

    def many():
        for year in range(2000, 2010):
            yield year, "boxi_0015", np.random.default_rng(year).integers(0, 201, shape, dtype=np.uint8)

    tracemalloc.start()
    write(tmp_path / "a.zip", many())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * np.prod(shape)


def test_the_forms_that_participants_sent_are_taken(tmp_path: Path) -> None:
    entries = {}
    for name, content in files().items():
        entries[f"{name}.gz"] = gzip.compress(content)
    entries["2019/boxi_0015.pred.h5"] = hdf5(np.ones((3, 1, 4, 12, 12), np.uint8))
    del entries["2019/boxi_0015.pred.h5.gz"]
    path = packed(tmp_path / "a.zip", {"2019/": b"", **entries})  # `zip -r` stores folders too
    assert check(path, **SIZES) == []
    found = {(year, region): rain for year, region, rain in read(path)}
    assert found[2019, "boxi_0015"].shape == SHAPE
    assert [rain.all() for rain in found.values()] == [True, False, False, False]


def test_the_paper_setting_is_the_default(tmp_path: Path) -> None:
    reasons = check(packed(tmp_path / "a.zip", {}))
    assert len(reasons) == 14
    assert reasons[0] == "2019/boxi_0015.pred.h5: is missing"
    path = packed(tmp_path / "b.zip", {"2020/roxi_0007.pred.h5": hdf5(np.zeros((60, 32, 252, 251), "u1"))})
    assert "(60, 1, 32, 252, 252) or (60, 32, 252, 252)" in check(path)[-1]


def nan(value: float) -> np.ndarray:
    values = np.zeros(SHAPE, np.float32)
    values[2, 1, 3, 4] = value
    return values


FIRST = "2019/boxi_0015.pred.h5"
WRONG_FILES = {
    "key": (hdf5(key="prediction"), "key 'submission' is missing; the file holds prediction"),
    "nothing": (hdf5(key="a/submission"), "key 'submission' is missing; the file holds a"),
    "shape": (hdf5(np.zeros((3, 4, 12, 11), "f4")), r"shape \(3, 4, 12, 11\), not \(3, 1, 4, 12, 12\)"),
    "fewer": (hdf5(np.zeros((2, 4, 12, 12), "f4")), r"shape \(2, 4"),
    "channels": (hdf5(np.zeros((3, 2, 4, 12, 12), "f4")), r"shape \(3, 2"),
    "float64": (hdf5(np.zeros(SHAPE)), "float64"),
    "bool": (hdf5(np.zeros(SHAPE, bool)), "bool"),
    "text": (hdf5(np.full(SHAPE, b"rain")), "key 'submission' is no array of numbers"),
    "half": (hdf5(nan(0.5)), "other than 0 and 1"),
    "negative": (hdf5(nan(-1)), "other than 0 and 1"),
    "infinite": (hdf5(nan(np.inf)), "other than 0 and 1"),
    "nan": (hdf5(nan(np.nan)), "not numbers"),
    "truncated": (hdf5(np.ones(SHAPE, "f4"))[:-500], "no HDF5 file, or a truncated one"),
    "none": (b"rain", "no HDF5 file"),
    "empty": (b"", "no HDF5 file"),
}


@pytest.mark.parametrize("case", WRONG_FILES)
def test_a_wrong_file_has_one_reason(tmp_path: Path, case: str) -> None:
    content, expected = WRONG_FILES[case]
    path = packed(tmp_path / "a.zip", {**files(), FIRST: content})
    reasons = check(path, **SIZES)
    assert len(reasons) == 1
    assert re.search(f"{FIRST}.*{expected}", reasons[0])


def corrupted(data: bytes) -> bytes:
    with h5py.File(io.BytesIO(data)) as file:
        offset = file["submission"].id.get_chunk_info(0).byte_offset
    return data[: offset + 4] + b"\xff" * 8 + data[offset + 12 :]


def test_values_that_cannot_be_unpacked_are_told(tmp_path: Path) -> None:
    content = corrupted(hdf5(nan(1), compression="gzip", chunks=(1, 4, 12, 12)))
    assert "cannot be read whole" in check(packed(tmp_path / "a.zip", {**files(), FIRST: content}), **SIZES)[0]
    short = gzip.compress(hdf5())[:-20]
    entries = {**files(), f"{FIRST}.gz": short}
    del entries[FIRST]
    assert "cannot be unpacked" in check(packed(tmp_path / "b.zip", entries), **SIZES)[0]


WRONG_NAMES = {
    "predictions/2019/boxi_0015.pred.h5": "top-level folder 'predictions'",
    "2021/boxi_0015.pred.h5": "not asked for",
    "2019/boxi_0034.pred.h5": "not asked for",
    "2019/boxi_0015.pred.h5.gz": "comes twice",
    "2019/boxi_0015.h5": "is no {year}/{region}.pred.h5",
    "__MACOSX/2019/._boxi_0015.pred.h5": "is no {year}",
    "../2019/boxi_0015.pred.h5": "top-level folder '..'",
    "readme.txt": "is no {year}",
}


@pytest.mark.parametrize("name", WRONG_NAMES)
def test_a_file_too_many_has_one_reason(tmp_path: Path, name: str) -> None:
    path = packed(tmp_path / "a.zip", {**files(), name: hdf5()})
    reasons = check(path, **SIZES)
    assert len(reasons) == 1
    assert reasons[0].startswith(f"{name}: ") and WRONG_NAMES[name] in reasons[0]


def test_files_in_a_folder_are_missing_at_the_top(tmp_path: Path) -> None:
    reasons = check(packed(tmp_path / "a.zip", {f"mine/{name}": c for name, c in files().items()}), **SIZES)
    assert [("top-level folder" in reason, "missing" in reason) for reason in reasons] == [(True, False)] * 4 + [
        (False, True)
    ] * 4


def test_what_is_no_zip_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(hdf5())
    (tmp_path / "b.zip").write_bytes(packed(tmp_path / "c.zip", files()).read_bytes()[:-100])
    for name in ("a.zip", "b.zip", "missing.zip"):
        (reason,) = check(tmp_path / name, **SIZES)
        assert f"{name}: is no zip file" in reason and "\n" not in reason
        with pytest.raises(UserError, match="no zip file"):
            next(read(tmp_path / name))


def test_a_damaged_entry_is_told(tmp_path: Path) -> None:
    path = packed(tmp_path / "a.zip", files())
    content = bytearray(path.read_bytes())
    content[200:220] = bytes(20)
    path.write_bytes(content)
    (reason,) = check(path, **SIZES)
    assert reason.startswith(f"{FIRST}: cannot be unpacked")
    with pytest.raises(UserError, match="cannot be unpacked"):
        list(read(path))


@pytest.mark.parametrize("zipped", [True, False])
def test_bombs_are_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zipped: bool) -> None:
    monkeypatch.setattr(submission, "LIMIT", 2**22)
    bomb = bytes(2**26)
    entries = files()
    del entries[FIRST]
    entries |= {f"{FIRST}.gz": gzip.compress(bomb)} if zipped else {FIRST: bomb}
    path = packed(tmp_path / "a.zip", entries)
    del bomb
    tracemalloc.start()
    (reason,) = check(path, **SIZES)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "unpacks to more than 4194304 bytes" in reason
    assert peak < 2**23


def test_large_data_sets_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = (300, 32, 252, 252)  # nothing is stored: a kilobyte that reads as 2.4 GB
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        file.create_dataset("submission", shape, "f4", chunks=(1, 32, 252, 252))
    path = packed(tmp_path / "a.zip", {FIRST: buffer.getvalue()})
    with pytest.raises(UserError, match="more than 1073741824 bytes"):
        next(read(path))
    packed(path, {f"{k}.txt": b"" for k in range(1001)})
    assert "1001 files" in check(path)[0]


def test_links_to_other_files_are_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret.h5"
    secret.write_bytes(hdf5())
    entries = {}
    for kind, name in zip(("external link", "soft link", "virtual", "raw"), files(), strict=True):
        buffer = io.BytesIO()
        with h5py.File(buffer, "w") as file:
            if kind == "external link":
                file["submission"] = h5py.ExternalLink(str(secret), "submission")
            elif kind == "soft link":
                file["submission"] = h5py.SoftLink("/elsewhere")
            elif kind == "virtual":
                layout = h5py.VirtualLayout(SHAPE, "f4")
                layout[:] = h5py.VirtualSource(str(secret), "submission", SHAPE)
                file.create_virtual_dataset("submission", layout)
            else:
                size = int(np.prod(SHAPE)) * 4
                file.create_dataset("submission", SHAPE, "f4", external=[(str(secret), 0, size)])
        entries[name] = buffer.getvalue()
    reasons = check(packed(tmp_path / "a.zip", entries), **SIZES)
    assert len(reasons) == 4
    assert all("key 'submission' " in reason and "write the data itself into the file" in reason for reason in reasons)
