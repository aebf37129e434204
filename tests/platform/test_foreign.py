"""Weights of others: sealed and unsealed, refused where they are not what they were."""

import io

import pytest
import torch

from retable.platform.errors import UserError
from retable.platform.foreign import read_tensors, seal, unseal

TENSORS = {"a": torch.arange(6.0).view(2, 3).T, "b": torch.ones(2)}


def kept(storage):
    digest, data = seal(TENSORS, "audio", {"network": "passt", "stride": 10})
    storage.write(f"weights/{digest}.safetensors", data)
    return digest


def test_what_was_sealed_comes_back(storage):
    fields, tensors = unseal(kept(storage), "audio", storage, "retable audio weights FILE")
    assert fields == {"network": "passt", "stride": 10}
    assert tensors.keys() == TENSORS.keys() and all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)
    assert seal(dict(reversed(TENSORS.items())), "audio", {"stride": 10, "network": "passt"})[0] == kept(storage)


def test_a_missing_a_changed_and_another_kind_of_file(storage):
    digest = kept(storage)
    for where in (None, storage / "elsewhere"):
        with pytest.raises(UserError, match="missing or is another file; import it by `retable style weights FILE`"):
            unseal(digest, "backbone", where, "retable style weights FILE")
    with pytest.raises(UserError, match="no weights of the kind backbone"):
        unseal(digest, "backbone", storage, "retable style weights FILE")
    storage.write(f"weights/{digest}.safetensors", b"changed")
    with pytest.raises(UserError, match="is another file"):
        unseal(digest, "audio", storage, "retable audio weights FILE")


def test_only_sound_numbers_are_read(tmp_path):
    file = tmp_path / "weights.pt"
    huge = torch.zeros(1).expand(10**9)
    torch.save({"model": {"a": torch.ones(2), "count": torch.ones(2, dtype=torch.int64), "huge": huge, 3: "x"}}, file)
    assert read_tensors(file, file.read_bytes(), "known are none").keys() == {"a"}
    code = io.BytesIO()
    torch.save({"a": print}, code)
    for data in (b"", b"text", code.getvalue(), file.read_bytes()[:-100]):
        with pytest.raises(UserError, match=r"weights\.pt: no file of tensors and plain values.*known are none"):
            read_tensors(file, data, "known are none")
