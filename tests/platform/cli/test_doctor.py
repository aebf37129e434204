"""What `retable doctor` says of this machine."""

import shutil
from types import SimpleNamespace

import pytest

from retable.platform.cli import doctor


@pytest.fixture(autouse=True)
def quiet(monkeypatch, tmp_path):
    """A machine where nothing is wrong."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_TRAIN_V2_ENABLED", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=50e9))


def bad(lines):
    return [line.text for line in lines if not line.good]


def test_a_good_machine_has_no_bad_line_and_nothing_is_left_behind(tmp_path):
    lines = list(doctor.checks(str(tmp_path / "results")))
    assert bad(lines) == [] and len(lines) >= 6
    assert all("\n" not in line.text for line in lines)
    assert list((tmp_path / "results").iterdir()) == []


def test_a_storage_that_cannot_be_written_is_named_with_the_remedy(tmp_path):
    (tmp_path / "file").write_text("")
    (text,) = bad(doctor.storage_checks(str(tmp_path / "file")))
    assert text.endswith("a part of the path is a file; choose another place")
    (text,) = bad(doctor.storage_checks("nope://x"))
    assert text == "--storage nope://x: Protocol not known: nope; choose another"


def test_a_secret_of_the_storage_is_in_no_line():
    for uri in (
        "nope://KEY:SEC/RET@x",
        "s3://KEY:SEC/RET@x",
        "s3://KEY:SECRET@x?bad=1",
        "http://KEY:SECRET@127.0.0.1:9/x",
    ):
        lines = [line.text for line in doctor.storage_checks(uri)]
        assert len(lines) == 1 and "***@" in lines[0] and not any(word in lines[0] for word in ("SEC", "RET", "KEY"))


def test_a_disk_that_is_almost_full_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1e9))
    assert bad(doctor.storage_checks(str(tmp_path))) == ["storage has 1 GB free; free some space"]


@pytest.mark.parametrize("path", ["io.py", "platform/__init__.py"])
def test_a_file_that_hides_a_module_of_pythons_is_named(tmp_path, path):
    (tmp_path / path).parent.mkdir(exist_ok=True)
    (tmp_path / path).write_text("")
    (text,) = bad(doctor.ray_checks())
    assert text.startswith(f"{path.split('/')[0].removesuffix('.py')} in this folder hides the standard library's")


def test_a_token_that_others_can_read_is_named(tmp_path):
    token = tmp_path / "token"
    token.write_text("secret")
    token.chmod(0o600)
    assert bad(doctor.ray_checks()) == []
    token.chmod(0o644)
    (text,) = bad(doctor.ray_checks())
    assert text == f"Ray's token {token} is readable by others; chmod 600 it" and "secret" not in text


def test_a_home_that_cannot_be_written_needs_a_token_from_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(doctor.os, "access", lambda path, mode: False)
    (text,) = bad(doctor.ray_checks())
    assert text.startswith(f"{tmp_path} cannot be written; set RAY_AUTH_TOKEN_PATH")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
    assert bad(doctor.ray_checks()) == []
    assert f"{tmp_path} cannot be written" in [line.text for line in doctor.ray_checks()]


def test_a_tmpdir_too_long_for_sockets_is_named(tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setenv("TMPDIR", "/tmp/" + "x" * 80)
    assert "TMPDIR is too long for Ray's sockets; /tmp/ray is used" in [line.text for line in doctor.ray_checks()]
    monkeypatch.setenv("RAY_TMPDIR", "/tmp/" + "x" * 80)
    (text,) = bad(doctor.ray_checks())
    assert text.startswith("RAY_TMPDIR=/tmp/xxx") and "too long for the sockets that Ray makes there" in text


def test_little_shared_memory_is_named(monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=64e6 if path == "/dev/shm" else 50e9))
    assert bad(doctor.ray_checks()) == ["/dev/shm has 0.1 GB free; Ray would use slow disk"]


def test_the_old_ray_train_is_named(monkeypatch):
    monkeypatch.setenv("RAY_TRAIN_V2_ENABLED", "0")
    assert bad(doctor.ray_checks()) == ["RAY_TRAIN_V2_ENABLED=0 selects the old Ray Train; unset it"]
