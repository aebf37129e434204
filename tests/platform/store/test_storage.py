"""A folder, a bucket (moto's server) and an fsspec file system behave alike; what fails says so in one line."""

import copy
import errno
import os
import pickle
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import boto3
import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from moto.server import ThreadedMotoServer

from retable.platform.errors import UserError
from retable.platform.plan.gc import unused_bundles
from retable.platform.store import patience
from retable.platform.store.storage import Storage


@pytest.fixture(scope="module")
def bucket():
    variables = {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    client = boto3.client("s3", endpoint_url=f"http://{host}:{port}")
    client.create_bucket(Bucket="bucket")
    yield client, f"endpoint_override={host}:{port}&scheme=http&region=us-east-1"
    server.stop()
    for name, value in before.items():
        os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)


@pytest.fixture(params=["local", "s3", "memory"])
def place(request, tmp_path):
    """A new storage, and a function that reads one of its files by other means."""
    name = uuid.uuid4().hex
    if request.param == "local":
        return Storage.open(tmp_path / name), lambda path: (tmp_path / name / path).read_bytes()
    if request.param == "memory":
        return Storage.open(f"memory://{name}"), lambda path: fsspec.filesystem("memory").cat(f"/{name}/{path}")
    client, options = request.getfixturevalue("bucket")
    opened = Storage.open(f"s3://bucket/{name}?{options}")
    return opened, lambda path: client.get_object(Bucket="bucket", Key=f"{name}/{path}")["Body"].read()


def refused(call):
    with pytest.raises(UserError) as caught:
        call()
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_what_is_written_is_there_for_us_and_for_others(place):
    storage, look = place
    assert not storage.exists() and not storage.exists("a/b.txt") and storage.list() == [] and storage.list("a") == []
    storage.write("a/b.txt", "für")
    storage.write("a/c", b"\0\1")
    storage.write("d", b"")
    assert look("a/b.txt") == storage.read("a/b.txt") == "für".encode()
    assert look("a/c") == b"\0\1" and look("d") == storage.read("d") == b""
    assert storage.exists() and storage.exists("a") and storage.exists("a/b.txt") and not storage.exists("a/x")
    assert storage.list() == ["a", "d"] and storage.list("a") == ["b.txt", "c"]
    assert (storage / "a").read("c") == b"\0\1" and (storage / "a").list() == ["b.txt", "c"]


def test_a_file_is_replaced_whole(place):
    storage, look = place
    storage.write("x", b"long " * 1000)
    storage.write("x", b"short")
    assert look("x") == b"short" and storage.list() == ["x"]


def test_an_absent_file_is_not_found(place):
    storage, _ = place
    storage.write("here", "")
    with pytest.raises(FileNotFoundError):
        storage.read("away")
    with pytest.raises(FileNotFoundError):
        storage.read_json("no/where")


def test_json_comes_back_in_a_stable_order(place):
    storage, look = place
    storage.write_json("x.json", {"b": [1, None], "a": {"d": 0.5, "c": "ü"}})
    assert storage.read_json("x.json") == {"b": [1, None], "a": {"d": 0.5, "c": "ü"}}
    text = look("x.json").decode()
    assert text.index('"a"') < text.index('"b"') and text.index('"c"') < text.index('"d"')
    storage.write("y.json", '{"a":')
    assert "y.json: not a JSON file" in refused(lambda: storage.read_json("y.json"))


def test_what_another_process_removed_first_is_gone(storage, monkeypatch):
    storage.write("f", "x")
    there = storage.filesystem.get_file_info(f"{storage.root}/f")
    os.remove(f"{storage.root}/f")

    class Late:
        def __getattr__(self, name):
            return getattr(storage.filesystem, name)

        def get_file_info(self, path):
            return there

    late = copy.copy(storage)
    object.__setattr__(late, "filesystem", Late())
    late.remove("f")


def test_files_and_folders_are_removed_with_all_that_is_in_them(place):
    storage, _ = place
    for path in ("a/b/c", "a/b/d", "a/e", "f"):
        storage.write(path, "x")
    storage.remove("a/b/c")
    assert storage.list("a/b") == ["d"]
    storage.remove("a")
    storage.remove("f")
    storage.remove("never there")
    assert storage.list() == [] and not storage.exists("a/b/d")


def test_files_and_folders_can_be_had_as_local_paths(place):
    storage, _ = place
    storage.write("a/b/c", "1")
    storage.write("a/d", "2")
    with storage.local("a") as folder:
        found = {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}
        assert found == {"b/c": "1", "d": "2"}
    with storage.local("a/b/c") as file:
        assert file.name == "c" and file.read_text() == "1"
    assert file.exists() == storage.is_local  # a copy is gone again
    assert storage.read("a/b/c") == b"1"


def test_a_storage_travels_to_other_processes(place):
    storage, _ = place
    storage.write("x", "1")
    again = pickle.loads(pickle.dumps(storage))
    assert again.read("x") == b"1" and str(again) == str(storage)


def test_a_storage_is_named_as_people_write_it(bucket, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert str(Storage.open("results")) == str(tmp_path / "results")
    assert str(Storage.open("~/x")) == os.path.join(os.environ["HOME"], "x")
    assert str(Storage.open(f"file://{tmp_path}/y") / "z") == f"{tmp_path}/y/z"
    assert str(Storage.open(f"s3://bucket/a/?{bucket[1]}") / "b") == "s3://bucket/a/b"
    assert str(Storage.open("memory://a")) == "memory:///a"


def test_a_storage_is_named_without_its_secrets(bucket):
    opened = Storage.open(f"s3://KEY:SEC%2FRET@nobucket/a?{bucket[1]}")
    said = [str(opened / "b"), refused(lambda: opened.write("x", "1"))]
    assert said[0] == "s3://nobucket/a/b" and not any(word in line for line in said for word in ("KEY", "SEC", "RET"))
    assert str(Storage.open("http://KEY:SECRET@localhost/x?token=SECRET")) == "http://***@localhost/x?token=***"


@pytest.mark.parametrize(
    "uri",
    ["s3://KEY:SEC RET@bucket", "s3://KEY:SEC/RET@bucket/x", "ftp://KEY:SECRET@nowhere.invalid/x", "nope://K:SECRET@b"],
)
def test_a_uri_that_cannot_be_opened_is_refused_without_its_secrets(uri):
    assert not any(word in refused(lambda: Storage.open(uri)) for word in ("SEC", "RET@", "KEY"))


def test_a_file_system_that_takes_no_options_is_opened():
    """As sftp's, whose client refuses what it does not know."""

    class Plain(MemoryFileSystem):
        protocol = "plain"

        def __init__(self):
            super().__init__()

    fsspec.register_implementation("plain", Plain, clobber=True)
    storage = Storage.open(f"plain://{uuid.uuid4().hex}")
    storage.write("a", b"1")
    assert storage.read("a") == b"1"


def test_folders_are_named_and_nothing_else(place):
    storage, _ = place
    assert storage.folders() == storage.folders("a") == []
    for path in ("b/x", "a/y/z", "a/w", ".hidden/x", ".DS_Store"):
        storage.write(path, "1")
    assert storage.folders() == ["a", "b"] and storage.folders("a") == ["y"]


def test_a_folder_is_listed_while_another_makes_it(storage):
    for place in range(1000):
        maker = threading.Thread(target=storage.claim, args=(f"attempts/{place}", "a.json", b"{}"))
        maker.start()
        for _ in range(20):
            assert storage.list(f"attempts/{place}") in ([], ["a.json"])
        maker.join()


def test_a_name_that_is_no_text_hides_nothing_else(storage):
    storage.write("a/x", "1")
    os.mkdir(os.fsencode(storage.root) + b"/a/\xff")
    os.mkdir(os.fsencode(storage.root) + b"/\xff")
    assert storage.list() == storage.folders() == ["a"] and storage.list("a") == ["x"]
    with storage.snapshot():
        assert storage.list() == storage.folders() == ["a"] and storage.list("a") == ["x"]


@pytest.mark.parametrize(
    "text", ["[1]", '"x"', "3", "null", "{}", '{"a": "1"}', '{"a": null}', '{"a": [1]}', "[" * 9**5]
)
def test_a_record_of_the_wrong_shape_is_named_with_the_remedy(storage, text):
    storage.write("x.json", text)
    line = refused(lambda: storage.read_record("x.json", {"a": int}, "mend it"))
    assert line.startswith(f"{storage}/x.json: ") and line.endswith(("; mend it", "; remove it and run again"))
    storage.write("x.json", '{"a": 1, "b": 2}')
    assert storage.read_record("x.json", {"a": (int, str)}) == {"a": 1, "b": 2}
    with pytest.raises(FileNotFoundError):
        storage.read_record("y.json", {})


@pytest.mark.parametrize("moment", ["fsync", "replace"])
@pytest.mark.parametrize("failure", [KeyboardInterrupt(), OSError(errno.EIO, "the disk died")])
def test_a_writer_that_is_stopped_leaves_the_old_file_and_nothing_else(storage, monkeypatch, moment, failure):
    storage.write("a/x", "old")

    def stop(*_):
        raise failure

    with monkeypatch.context() as patch:
        patch.setattr(os, moment, stop)
        with pytest.raises(type(failure)):
            storage.write("a/x", "new")
        with pytest.raises(type(failure)):
            storage.write("a/fresh", "new")
    assert storage.read("a/x") == b"old"
    assert storage.list("a") == os.listdir(f"{storage.root}/a") == ["x"]


def test_a_writer_that_is_killed_leaves_nothing_that_can_be_seen(storage):
    storage.write("a/x", "old")
    code = (
        "import os\nfrom retable.platform.store.storage import Storage\nos.fsync = lambda _: os._exit(9)\n"
        f"Storage.open({storage.root!r}).write('a/x', 'new')"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 9
    assert len(os.listdir(f"{storage.root}/a")) == 2  # the half-written file is there, and hidden
    assert storage.list("a") == ["x"] and storage.read("a/x") == b"old"


def test_an_fsspec_writer_that_is_stopped_leaves_the_old_file(monkeypatch):
    storage = Storage.open(f"memory://{uuid.uuid4().hex}")
    storage.write("x", "old")
    system = type(fsspec.filesystem("memory"))

    def stop(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(system, "cp_file", stop)
        with pytest.raises(KeyboardInterrupt):
            storage.write("x", "new")
    assert storage.read("x") == b"old" and storage.list() == ["x"]
    assert fsspec.filesystem("memory").ls(storage.root, detail=False) == [f"{storage.root}/x"]


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "the disk is full; free some space and run the same command again"),
        (errno.EDQUOT, "quota"),
        (errno.EACCES, "no permission; choose another place"),
        (errno.EROFS, "read-only"),
    ],
)
def test_a_disk_that_refuses_is_named_with_the_remedy(storage, monkeypatch, number, words):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    text = refused(lambda: storage.write("a/x.json", "1"))
    assert text.startswith(f"{storage.root}/a/x.json: ") and words in text
    assert os.listdir(f"{storage.root}/a") == []
    monkeypatch.setattr(os, "mkdir", refuse)
    text = refused(lambda: storage.claim("a/1", "x.json", b"1"))
    assert text.startswith(f"{storage.root}/a/1: ") and words in text


def test_a_disk_that_is_really_full_is_named(storage, monkeypatch):
    monkeypatch.setattr(uuid.UUID, "hex", "full")
    Path(storage.root).mkdir()
    Path(storage.root, ".writing-full-x").symlink_to("/dev/full")
    assert "the disk is full" in refused(lambda: storage.write("x", "1"))
    assert os.listdir(storage.root) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_named(storage):
    Path(storage.root).mkdir(mode=0o500)
    assert "no permission" in refused(lambda: storage.write("x", "1"))


def test_a_path_through_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for where in ("file", "file/deeper"):
        storage = Storage.open(tmp_path / where)
        for call in (lambda: storage.write("x", "1"), lambda: storage.write("y/x", "1")):  # noqa: B023
            assert "a part of the path is a file; choose another place" in refused(call)
    storage = Storage.open(tmp_path / "file")
    assert "is a file" in refused(lambda: storage.read("x")) and "is a file" in refused(storage.list)


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("nope://x/y", "Protocol not known: nope"),
        ("s3://bucket/x?endpoint_overide=here", "endpoint_overide"),
        ("hdfs://nowhere.invalid/x", "hdfs://nowhere.invalid/x: "),
        ("dir://x", "NoneType"),
        ("reference://x", "missing 1 required positional argument"),
        ("generic://x", "missing 1 required positional argument"),
        ("a://x", "write it as in s3://bucket/path"),
        ("s3:/bucket/x", "write it as in s3://bucket/path"),
        ("GS:/bucket", "write it as in s3://bucket/path"),
    ],
)
def test_a_uri_that_cannot_be_opened_is_refused(uri, words):
    text = refused(lambda: Storage.open(uri))
    assert text.startswith(f"--storage {uri}: ") and words in text


def test_an_fsspec_store_with_errors_of_its_own_is_refused(monkeypatch):
    def refusing(*_, **__):
        raise RuntimeError("not\ntoday")

    monkeypatch.setattr(fsspec.get_filesystem_class("memory"), "info", refusing)
    assert refused(lambda: Storage.open("memory://x")) == "--storage memory://x: not today; choose another"


@pytest.mark.parametrize("name", ["./s3:/bucket", "a:b", "C:\\results", "sub/s3:/x"])
def test_folders_with_colons_are_folders(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert Storage.open(name).root == str(tmp_path / name)


def test_a_bucket_that_is_not_there_is_refused(bucket):
    storage = Storage.open(f"s3://nobucket/x?{bucket[1]}")
    text = refused(lambda: storage.write("y", "1"))
    assert text.startswith("s3://nobucket/x/y: ") and "bucket does not exist" in text


def test_a_place_where_no_folder_can_be_made_is_one_line():
    with pytest.raises(UserError, match="no folder can be made here; choose another --storage") as caught:
        Storage.open("/proc/retable").check_writable()
    assert "\n" not in str(caught.value)


def failing(monkeypatch, name, *errors):
    """Let a method of the file system raise these errors first."""
    from pyarrow import fs

    left = list(errors)
    real = getattr(fs.LocalFileSystem, name)

    class Failing:
        def __getattr__(self, attribute):
            return getattr(local, attribute)

        def equals(self, other):
            return other is self

        def call(self, *arguments, **named):
            if left:
                raise left.pop(0)
            return real(local, *arguments, **named)

    local = fs.LocalFileSystem()
    wrapped = Failing()
    setattr(wrapped, name, wrapped.call)
    return wrapped, left


AWAY = (
    OSError(
        "When reading key 'a': AWS Error NETWORK_CONNECTION during GetObject operation: curlCode: 7, no connection"
    ),
    OSError("When reading key 'a': AWS Error SLOW_DOWN during GetObject operation: Please reduce your request rate."),
    OSError("AWS Error UNKNOWN (HTTP status 503) during HeadObject operation: No response body."),
    OSError(errno.ESTALE, "Stale file handle"),
    TimeoutError(),
)


@pytest.mark.parametrize("error", AWAY, ids=str)
def test_what_is_away_is_asked_again_until_it_is_back(tmp_path, monkeypatch, error):
    pauses = []
    monkeypatch.setattr("retable.platform.store.patience.time.sleep", pauses.append)
    Storage.open(tmp_path).write("a", b"there")
    filesystem, left = failing(monkeypatch, "open_input_stream", error, error, error)
    assert Storage(filesystem, str(tmp_path)).read("a") == b"there" and not left
    assert len(pauses) == 3 and pauses == sorted(pauses) and 0.25 <= pauses[0] <= 0.5


def test_a_folder_is_claimed_once_its_disk_is_back(storage, monkeypatch):
    storage.write("a/x", "1")
    pauses, make, left = [], os.mkdir, [OSError(errno.ESTALE, "Stale file handle")]

    def away(path, *arguments):
        if left and path.endswith("/1"):
            raise left.pop()
        make(path, *arguments)

    monkeypatch.setattr("retable.platform.store.patience.time.sleep", pauses.append)
    monkeypatch.setattr(os, "mkdir", away)
    assert storage.claim("a/1", "x", b"1") and len(pauses) == 1 and not storage.claim("a/1", "x", b"1")


DENIED = (
    OSError("When reading key 'a': AWS Error ACCESS_DENIED during GetObject operation: Access Denied."),
    OSError("AWS Error UNKNOWN (HTTP status 403) during HeadObject operation: No response body."),
    OSError("When listing: AWS Error UNKNOWN (HTTP status 400): ExpiredToken: The provided token has expired."),
)


@pytest.mark.parametrize("error", DENIED, ids=str)
def test_credentials_that_were_good_are_waited_for(tmp_path, monkeypatch, error):
    """They expire, and are renewed; a bucket that never let us in is not asked twice (below)."""
    pauses = []
    monkeypatch.setattr("retable.platform.store.patience.time.sleep", pauses.append)
    Storage.open(tmp_path).write("a/b", b"there")
    filesystem, left = failing(monkeypatch, "open_input_stream", error, error)
    assert (Storage(filesystem, str(tmp_path)) / "a").read("b") == b"there" and not left and len(pauses) == 2


@pytest.mark.parametrize("method", ["exists", "list", "folders", "read", "read_json"])
@pytest.mark.parametrize("error", [AWAY[2], DENIED[1]], ids=["503", "403"])
@pytest.mark.parametrize("name", ["runs/rl", "data"])
def test_a_plan_asks_again_too(tmp_path, monkeypatch, method, error, name):
    """A plan reads from a snapshot, whose own reading was neither repeated nor told in one line."""
    monkeypatch.setattr("retable.platform.store.patience.time.sleep", lambda seconds: None)
    path = f"{name}/a" if method.startswith("read") else name
    storage = Storage.open(tmp_path)
    storage.write(f"{name}/a", b"{}")
    expected = getattr(storage, method)(path)
    filesystem, left = failing(monkeypatch, "get_file_info", error)
    shaky = Storage(filesystem, str(tmp_path))
    with shaky.snapshot():
        assert getattr(shaky, method)(path) == expected and not left


@pytest.mark.parametrize(
    "ask", [lambda s: dict(s.files("runs")), lambda s: dict(s.files(".ray")), lambda s: unused_bundles(s, [])]
)
@pytest.mark.parametrize("error", [AWAY[2], DENIED[1]], ids=["503", "403"])
def test_files_are_listed_again_too(tmp_path, monkeypatch, error, ask):
    """For `retable gc`, `retable show` and the estimate of a plan."""
    monkeypatch.setattr("retable.platform.store.patience.time.sleep", lambda seconds: None)
    storage = Storage.open(tmp_path)
    for path in ("runs/rl/a/b/c", "bundles/d", ".ray/e/f"):
        storage.write(path, b"1234")
    expected = ask(storage)
    filesystem, left = failing(monkeypatch, "get_file_info", error)
    assert ask(Storage(filesystem, str(tmp_path))) == expected and expected and not left


def test_a_refusal_in_the_middle_is_waited_for_up_to_the_bound_and_then_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RETABLE_PATIENCE", "1.2")
    monkeypatch.setattr(patience, "_told", {})
    Storage.open(tmp_path).write("a", b"1")
    assert Storage.open(tmp_path).read("a") == b"1"
    filesystem, left = failing(monkeypatch, "open_input_stream", *DENIED * 4)
    said = refused(lambda: Storage(filesystem, str(tmp_path)).read("a"))
    assert "ACCESS_DENIED" in said or "403" in said or "ExpiredToken" in said
    assert "\n" not in said and 1 <= 12 - len(left) <= 4  # half a second and a second of pauses, cut short at random
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{tmp_path}/a: When reading" in line and line.endswith("tried again for 1 s")


@pytest.mark.parametrize("known", [True, False])
def test_a_process_that_starts_in_the_middle_knows_that_its_credentials_were_good(tmp_path, monkeypatch, known):
    monkeypatch.setattr(patience, "_answered", set())
    monkeypatch.setattr(patience.time, "sleep", lambda seconds: None)
    storage = Storage.open(tmp_path)
    if known:
        storage.write("a", b"1")
    else:
        patience._answered.clear()
        (tmp_path / "a").write_bytes(b"1")
    sent = pickle.dumps(storage)
    patience._answered.clear()  # of the process that sends; the one that receives has none
    received = pickle.loads(sent)
    filesystem, left = failing(monkeypatch, "open_input_stream", *DENIED)
    shaky = Storage(filesystem, received.root)
    if known:
        assert shaky.read("a") == b"1" and not left
    else:
        assert "ACCESS_DENIED" in refused(lambda: shaky.read("a")) and len(left) == 2


def test_and_in_the_end_it_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("RETABLE_PATIENCE", "0.1")
    filesystem, left = failing(monkeypatch, "open_input_stream", *AWAY)
    assert "NETWORK_CONNECTION" in refused(lambda: Storage(filesystem, str(tmp_path)).read("a")) and len(left) == 4


@pytest.mark.parametrize(
    "error",
    [
        OSError("When reading key 'a': AWS Error ACCESS_DENIED during GetObject operation: Access Denied."),
        OSError("AWS Error UNKNOWN (HTTP status 403) during HeadObject operation: No response body."),
        OSError("When opening bucket 'a': AWS Error NO_SUCH_BUCKET during ListObjectsV2 operation"),
        OSError(errno.ENOSPC, "No space left on device"),
    ],
    ids=str,
)
def test_what_will_not_pass_is_not_waited_for(tmp_path, monkeypatch, error):
    monkeypatch.setattr("retable.platform.store.patience.time.sleep", pytest.fail)
    filesystem, _ = failing(monkeypatch, "open_input_stream", error)
    refused(lambda: Storage(filesystem, str(tmp_path)).read("a"))


@pytest.mark.parametrize("text", ["long", "nan", "inf", "-1"])
def test_a_patience_that_is_no_number_is_refused(tmp_path, monkeypatch, text):
    monkeypatch.setenv("RETABLE_PATIENCE", text)
    assert f"RETABLE_PATIENCE='{text}'" in refused(lambda: Storage.open(tmp_path).write("a", b""))


def test_who_may_read_alone_is_told_so_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr("retable.platform.store.patience.time.sleep", pytest.fail)
    storage = Storage.open(tmp_path / "mine")
    assert not storage.exists("a")
    filesystem, _ = failing(monkeypatch, "open_output_stream", DENIED[0])
    refused(lambda: Storage(filesystem, storage.root).write("a", b""))


def test_a_folder_is_made_by_one_alone(place):
    storage, look = place
    assert storage.claim("a/b", "one", b"1") and not storage.claim("a/b", "two", b"2")
    assert storage.list("a/b") == ["one"] and look("a/b/one") == b"1"
