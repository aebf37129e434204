"""The reader of D4RL's files: every version, and every fault in one clear line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from retable.platform.errors import UserError
from retable.tasks.rl import data
from retable.tasks.rl.recordings import d4rl
from retable.tasks.rl.recordings.d4rl import read_d4rl
from tests.rl.d4rl_files import MIXED, Arrays, assert_columns, make_arrays, oracle, write


@pytest.mark.parametrize("variant", ["v0", "v1", "v2"])
def test_reads_all_versions_of_d4rl(tmp_path: Path, variant: str) -> None:
    arrays = make_arrays(MIXED)
    found = read_d4rl(write(tmp_path / "a.hdf5", arrays, variant))
    columns, returns = found.columns, found.returns
    expected, expected_returns = oracle(arrays, variant == "v2")
    assert_columns(columns, expected)
    np.testing.assert_allclose(returns, expected_returns, rtol=1e-12)


def test_keeps_the_last_terminal_row_that_qlearning_dataset_drops(tmp_path: Path) -> None:
    arrays = make_arrays([(2, "timeout"), (2, "terminal")])
    columns = read_d4rl(write(tmp_path / "a.hdf5", arrays, "v0")).columns
    assert columns["terminal"].tolist() == [False, False, True]
    np.testing.assert_array_equal(columns["observation"], arrays["observations"][[0, 2, 3]])
    np.testing.assert_array_equal(columns["next_observation"], arrays["observations"][[1, 3, 3]])
    assert columns["episode"].tolist() == [0, 1, 1] and columns["step"].tolist() == [0, 0, 1]


def set_row(key: str, value: float) -> Callable[[Arrays], None]:
    def change(arrays: Arrays) -> None:
        arrays[key] = arrays[key].astype(np.float64)
        arrays[key][2] = value

    return change


def set_key(key: str, value: Any) -> Callable[[Arrays], None]:
    return lambda arrays: arrays.update({key: value(arrays[key]) if callable(value) else value})


def no_end(arrays: Arrays) -> None:
    del arrays["next_observations"]  # which would tell ends
    arrays.update(terminals=np.zeros(14, bool), timeouts=np.zeros(14, bool))


def no_rows(arrays: Arrays) -> None:
    arrays.update({key: array[:0] for key, array in arrays.items()})


@pytest.mark.parametrize(("change", "key", "what"), [
    *[(lambda a, key=key: a.pop(key), key, "missing") for key in list(make_arrays(MIXED))[:4]],
    (set_key("observations", lambda a: a[:, 0]), "observations", "shape"),
    (set_key("observations", lambda a: a[:, :0]), "observations", "shape"),
    (set_key("observations", np.float32(1)), "observations", "shape"),
    (set_key("rewards", lambda a: np.stack([a, a], 1)), "rewards", "shape"),
    (set_key("actions", lambda a: a[:-1]), "actions", "13 rows"),
    (set_key("terminals", lambda a: a[:-2]), "terminals", "12 rows"),
    (set_key("next_observations", lambda a: a[:, :2]), "next_observations", "shaped"),
    (set_key("actions", "text"), "actions", "numbers"),
    (set_row("observations", np.nan), "observations", "row 2"),
    (set_row("next_observations", np.inf), "next_observations", "row 2"),
    (set_row("rewards", 1e300), "rewards", "row 2"),
    (set_row("terminals", np.nan), "terminals", "row 2"),
    (set_row("actions", 1.002), "actions", "row 2"),
    (no_end, "terminals", "end no episode"),
    (no_rows, "observations", "no rows"),
])  # fmt: skip
def test_refuses_bad_files_in_one_line(tmp_path: Path, change: Callable[[Arrays], None], key: str, what: str) -> None:
    arrays = make_arrays(MIXED)
    change(arrays)
    path = write(tmp_path / "bad.hdf5", arrays)
    with pytest.raises(UserError) as caught:
        read_d4rl(path)
    line = str(caught.value)
    assert "\n" not in line and str(path) in line and f"'{key}'" in line and what in line and "; " in line
    assert data.check(path)[0] == line


def test_check_reports_every_defect_of_a_file(tmp_path: Path) -> None:
    arrays = make_arrays(MIXED)
    for key in ("actions", "rewards"):
        set_row(key, np.nan)(arrays)
    assert len(data.check(write(tmp_path / "bad.hdf5", arrays))) == 2
    assert data.check(write(tmp_path / "good.hdf5", make_arrays(MIXED))) == []


def test_accepts_actions_a_rounding_error_beyond_one(tmp_path: Path) -> None:
    arrays = make_arrays(MIXED)
    set_row("actions", 1.0005)(arrays)
    assert read_d4rl(write(tmp_path / "a.hdf5", arrays)).columns["action"].max() > 1


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-500])


def link(path: Path, target: Any) -> None:
    with h5py.File(path, "r+") as file:
        del file["rewards"]
        file["rewards"] = target


def other_file(path: Path) -> str:
    return str(write(path.with_name("other.hdf5"), make_arrays(MIXED)))


def virtual(path: Path) -> None:
    layout = h5py.VirtualLayout(shape=(14,), dtype="f4")
    layout[:] = h5py.VirtualSource(other_file(path), "rewards", shape=(14,))
    with h5py.File(path, "r+") as file:
        del file["rewards"]
        file.create_virtual_dataset("rewards", layout)


def external(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        del file["rewards"]
        file.create_dataset("rewards", (14,), "f4", external=[(other_file(path), 0, 56)])


def claim(path: Path, **layout: Any) -> None:
    with h5py.File(path, "r+") as file:
        del file["rewards"]
        file.create_dataset("rewards", (10**14,), "f4", **layout)


def test_a_file_that_memory_cannot_hold_is_told_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(d4rl, "SHRINKS", 1 << 40)  # as if the bytes were there
    path = write(tmp_path / "a.hdf5", make_arrays(MIXED))
    claim(path, chunks=(1000,))
    with h5py.File(path, "r+") as file:
        file["rewards"][0] = 1
    assert data.check(path) == [f"{path}: takes more memory than there is; give a smaller file"]


def test_zeros_that_take_a_thousandth_of_their_bytes_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(d4rl, "SMALL", 1)
    path = write(tmp_path / "a.hdf5", make_arrays([(1 << 17, "terminal")]))
    with h5py.File(path, "r+") as file:
        del file["rewards"]
        file.create_dataset("rewards", data=np.zeros(1 << 17), chunks=(1 << 17,), compression="gzip")
        assert file["rewards"].nbytes > 900 * file["rewards"].id.get_storage_size()
    assert data.check(path) == []


@pytest.mark.parametrize(("damage", "what"), [
    (claim, "'rewards' claims 400,000,000,000,000 bytes and holds 0"),
    (lambda path: claim(path, chunks=(1000,), compression="gzip"), "'rewards' claims .* and holds 0"),
    (Path.unlink, "no such file"),
    (truncate, "truncated"),
    (lambda path: path.write_bytes(b""), "not a readable HDF5 file"),
    (lambda path: path.write_text("observation,action\n"), "not a readable HDF5 file"),
    (lambda path: link(path, h5py.ExternalLink(other_file(path), "rewards")), "link to elsewhere"),
    (lambda path: link(path, h5py.SoftLink("/actions")), "link to elsewhere"),
    (virtual, "in another file"),
    (external, "in another file"),
])  # fmt: skip
def test_refuses_broken_foreign_and_linked_files(tmp_path: Path, damage: Callable[[Path], Any], what: str) -> None:
    path = write(tmp_path / "a.hdf5", make_arrays(MIXED))
    damage(path)
    with pytest.raises(UserError, match=what) as caught:
        read_d4rl(path)
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)
    assert data.check(path) == [str(caught.value)]
