"""Weights of others: read whatever holds and wraps them, kept and read back, refused where they have changed."""

import argparse
import decimal
import io
import os
import types
import uuid
from collections import Counter, defaultdict, deque
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save

from retable.platform.errors import UserError
from retable.platform.store.weights import check, keep, metadata, read_bytes, read_tensors, sealed, stored

TENSORS = {"a": torch.arange(6.0).view(2, 3).T, "b.c": torch.ones(2)}
FIELDS = {"network": "passt", "stride": 10}


def same(found, expected):
    return found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)


def pickled(state):
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def test_what_was_kept_comes_back(storage):
    digest = keep(sealed(TENSORS, "audio", FIELDS), storage)
    tensors, fields = stored(digest, storage, "import it", "audio")
    assert fields == FIELDS and same(tensors, TENSORS)
    again = sealed(dict(reversed(TENSORS.items())), "audio", dict(reversed(FIELDS.items())))
    assert keep(again, storage) == digest and storage.list("weights") == [f"{digest}.safetensors"]
    assert same(stored(keep(sealed(TENSORS), storage), storage, "import it")[0], TENSORS)


def test_a_missing_a_changed_and_another_kind_of_file(storage):
    digest = keep(sealed(TENSORS, "audio", FIELDS), storage)
    for where in (None, storage / "elsewhere"):
        with pytest.raises(UserError, match=r"safetensors is missing or is another file; import it$"):
            stored(digest, where, "import it", "backbone")
    with pytest.raises(UserError, match="no weights of the kind backbone; import it"):
        stored(digest, storage, "import it", "backbone")
    with pytest.raises(UserError, match="is no safetensors file; import it"):
        stored(keep(b"text", storage), storage, "import it")
    storage.write(f"weights/{digest}.safetensors", b"changed")
    with pytest.raises(UserError, match="is another file"):
        stored(digest, storage, "import it", "audio")


def test_only_sound_numbers_are_read(tmp_path):
    file = tmp_path / "weights.pt"
    huge = torch.zeros(1).expand(10**9)
    data = pickled({"model": {"a": torch.ones(2), "count": torch.ones(2, dtype=torch.int64), "huge": huge, 3: "x"}})
    assert read_tensors(file, data, "known are none").keys() == {"a"}
    assert read_tensors(file, data, "known are none", integers=True).keys() == {"a", "count"}
    header = save({"a": torch.ones(2)})
    for broken in (b"", b"text", pickled({"a": print}), data[:-100], header[:-4], header[:8] + b"{" * 90):
        with pytest.raises(UserError, match=r"weights\.pt: no file of tensors and plain values.*known are none"):
            read_tensors(file, broken, "known are none")
    with pytest.raises(UserError, match=r"weights\.pt: no state dict but a list; known are none"):
        read_tensors(file, pickled([1]), "known are none")
    for path in (file, tmp_path):
        with pytest.raises(UserError, match=f"^{path}: [A-Z]"):
            read_bytes(path)


@pytest.mark.parametrize("prefix", ["", "module.", "model.", "net.", "module.model.", "_orig_mod."])
@pytest.mark.parametrize("key", ["", "state_dict", "model"])
@pytest.mark.parametrize("suffix", [".pt", ".pth", ".ckpt", ".safetensors"])
def test_a_network_is_found_in_whatever_holds_and_wraps_it(tmp_path, prefix, key, suffix):
    state = {f"{prefix}{name}": value.contiguous() for name, value in TENSORS.items()}
    if prefix:
        state |= {"loss.weight": torch.ones(1), f"ema_{prefix}b.c": torch.zeros(2)}
    file = tmp_path / f"weights{suffix}"
    file.write_bytes(save(state) if suffix == ".safetensors" else pickled({key: state, "epoch": 3} if key else state))
    assert same(read_tensors(file, read_bytes(file), "known are none", "z", "b.c"), TENSORS)


def test_without_a_known_name_tensors_are_as_they_are(tmp_path):
    data = pickled({"net.a": torch.ones(1), "b": torch.ones(1)})
    assert read_tensors(tmp_path, data, "", "z").keys() == {"net.a", "b"}


def test_names_shapes_and_values_are_checked():
    check(TENSORS, {name: torch.empty_like(value, device="meta") for name, value in TENSORS.items()})
    with pytest.raises(ValueError, match=r"^b\.c is missing$"):
        check({"a": TENSORS["a"]}, TENSORS)
    with pytest.raises(ValueError, match=r"^d is not of this network$"):
        check(TENSORS | {"d": torch.ones(1)}, TENSORS)
    with pytest.raises(ValueError, match=r"^a has shape \(3,\), not \(3, 2\)$"):
        check(TENSORS | {"a": torch.ones(3)}, TENSORS)
    with pytest.raises(ValueError, match=r"^a has values that are no finite numbers$"):
        check(TENSORS | {"a": TENSORS["a"] / 0}, TENSORS)


def test_the_metadata_of_other_files_are_none():
    assert metadata(sealed(TENSORS, "audio", FIELDS)).keys() == {"audio"} and metadata(save({})) == {}
    for data in (b"", pickled(TENSORS), b"\x02" + bytes(7) + b"{x", save(TENSORS | {"a": torch.ones(3)})[:20]):
        assert metadata(data) is None


BESIDE = {
    "numpy array": lambda: np.arange(6.0).reshape(2, 3),
    "numpy text": lambda: np.array(["IoU", "CSI"]),
    "numpy objects": lambda: np.array([None, {"a": 1}], object),
    "numpy scalar": lambda: np.float64(0.3),
    "numpy datetime": lambda: np.datetime64("2022-10-01T12:00"),
    "numpy generator": lambda: np.random.default_rng(0).bit_generator.state,
    "datetime": lambda: datetime(2022, 10, 1, tzinfo=UTC),
    "date": lambda: date(2022, 10, 1),
    "timedelta": lambda: timedelta(hours=3),
    "timezone": lambda: datetime(2022, 10, 1, tzinfo=timezone(timedelta(hours=2))),
    "path": lambda: Path("/scratch/run"),
    "namespace": lambda: argparse.Namespace(lr=1e-4),
    "simple namespace": lambda: types.SimpleNamespace(lr=1e-4),
    "defaultdict": lambda: defaultdict(list, {"loss": [1.0]}),
    "counter": lambda: Counter("abc"),
    "deque": lambda: deque([1, 2]),
    "set": lambda: {1, 2},
    "decimal": lambda: decimal.Decimal("0.1"),
    "uuid": lambda: uuid.UUID(int=3),
    "optimizer": lambda: torch.optim.Adam([torch.ones(2, requires_grad=True)]).state_dict(),
}


@pytest.mark.parametrize("beside", BESIDE)
def test_plain_values_beside_the_weights_do_not_matter(tmp_path, beside):
    file = tmp_path / "weights.pt"
    for wrapped in (
        {"model_state_dict": TENSORS, "epoch": 3, "extra": BESIDE[beside]()},
        {"extra": {"nested": [BESIDE[beside]()]}, "state_dict": TENSORS},
    ):
        assert same(read_tensors(file, pickled(wrapped), "known are none"), TENSORS)


@pytest.mark.parametrize(
    "path",
    [
        ("model_state_dict",),
        ("net",),
        ("network",),
        ("weights",),
        ("params",),
        ("model", "state_dict"),
        ("model_state",),
        ("model_weights",),
        ("params_ema",),
        ("generator", "ema_state_dict"),
        ("checkpoint", "anything", "else"),
    ],
)
def test_a_state_dict_is_found_under_usual_names(tmp_path, path):
    state = {f"module.{name}": value for name, value in TENSORS.items()}
    for key in reversed(path):
        state = {key: state, "epoch": 3, "optimizer_state_dict": {"state": {0: {"exp_avg": torch.ones(2)}}}}
    assert same(read_tensors(tmp_path / "a.pt", pickled(state), "known are none", "b.c"), TENSORS)


def test_what_holds_no_tensors_by_name_says_what_it_holds(tmp_path):
    state = {"epoch": 3, "optimizer": {"state": {0: {1: torch.ones(2)}}}}
    with pytest.raises(UserError, match=r"a\.pt: no tensors by name, but epoch, optimizer; known are none") as caught:
        read_tensors(tmp_path / "a.pt", pickled(state), "known are none")
    assert "\n" not in str(caught.value)


class Network(torch.nn.Linear):
    pass


def test_what_would_run_code_is_named(tmp_path):
    for value, name in ((Network(2, 2), "Network"), (print, "builtins.print"), (os.system, "system")):
        with pytest.raises(UserError, match=rf"holds .*{name}, .*known are none") as caught:
            read_tensors(tmp_path / "a.pt", pickled({"model": value, "epoch": 3}), "known are none")
        assert "\n" not in str(caught.value)


def test_reading_runs_nothing(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "made"),)

    with pytest.raises(UserError, match="mkdir"):
        read_tensors(tmp_path / "a.pt", pickled({"a": torch.ones(1), "extra": Evil()}), "known are none")
    assert not (tmp_path / "made").exists()
