"""Downloads from a server of the test's own: it breaks, refuses, lies and ignores ranges as servers do."""

import hashlib
import io
import json
import zipfile

import pytest

from retable.platform.errors import UserError
from retable.platform.store import download
from retable.platform.store.download import Hub, Published, Remote
from tests.web_files import Files, serve

CONTENT = bytes(range(256)) * 12_000
URL = "http://data.example/sets/a.bin"


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setattr(download, "PAUSE", 0.0)
    with serve(Files({"data.example/sets/a.bin": CONTENT})) as files:
        yield files


def digest(content, kind="sha256"):
    return f"{kind}:{hashlib.new(kind, content).hexdigest()}"


def published(*files, **more):
    return Published("a", "a set", "CC0", "http://data.example", files, **more)


def fetch(server, folder, *files, **more):
    wanted = more.pop("wanted", None) or published(*files)
    agree = more.pop("agree", lambda text: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(download, "consent", lambda text, yes: agree(text))
        return download.fetch(wanted, folder, mirror=server.address, **more)


def test_a_file_is_checked_and_downloaded_once(server, tmp_path):
    asked = []
    file = Remote(URL, "deep/a.bin", len(CONTENT), digest(CONTENT, "md5"))
    assert [path.read_bytes() for path in fetch(server, tmp_path, file, agree=asked.append)] == [CONTENT]
    fetch(server, tmp_path, file, agree=asked.append)
    assert len(server.asked) == 1 and len(asked) == 1
    assert "3.1 MB" in asked[0] and "CC0" in asked[0] and str(tmp_path) in asked[0]
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["a.bin"]


def test_a_broken_connection_continues_where_it_ended(server, tmp_path):
    server.breaks = [1_000_000, 2_000_000]
    (path,) = fetch(server, tmp_path, Remote(URL, "a.bin", len(CONTENT), digest(CONTENT)))
    assert path.read_bytes() == CONTENT
    assert [headers.get("Range") for _, headers in server.asked] == [None, "bytes=983040-", "bytes=1966080-"]


def test_a_later_command_continues_what_an_earlier_one_left(server, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "TRIES", 1)
    server.breaks = [500_000]
    file = Remote(URL, "a.bin", len(CONTENT), digest(CONTENT))
    with pytest.raises(UserError, match=r"after 459 kB; run the same command again"):
        fetch(server, tmp_path, file)
    assert not (tmp_path / "a.bin").exists()
    assert fetch(server, tmp_path, file)[0].read_bytes() == CONTENT
    assert server.asked[-1][1]["Range"] == "bytes=458752-"


def test_a_server_without_ranges_sends_the_file_again(server, tmp_path):
    server.breaks, server.ranges = [700_000], False
    (path,) = fetch(server, tmp_path, Remote(URL, "a.bin", len(CONTENT), digest(CONTENT)))
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("file", "said"),
    [
        (Remote(URL, "a.bin", len(CONTENT), digest(b"another")), "published is"),
        (Remote(URL, "a.bin", len(CONTENT) - 1), "larger than 3.1 MB"),
        (Remote("http://data.example/none.bin", "a.bin", 3), "answers 404"),
    ],
)
def test_what_is_not_the_published_file_is_refused_and_removed(server, tmp_path, file, said):
    with pytest.raises(UserError, match=said):
        fetch(server, tmp_path, file)
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


def test_a_file_of_unpublished_size_is_bounded(server, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "UNKNOWN", 1000)
    with pytest.raises(UserError, match=r"larger than 1\.0 kB"):
        fetch(server, tmp_path, Remote(URL, "a.bin"))


def test_the_time_is_bounded_and_the_rest_is_kept(server, tmp_path):
    with pytest.raises(UserError, match="the time is up"):
        fetch(server, tmp_path, Remote(URL, "a.bin", len(CONTENT)), until=0.0)
    assert not (tmp_path / "a.bin").exists()


def test_declining_downloads_nothing(server, tmp_path):
    def decline(text):
        raise UserError("nothing was downloaded")

    with pytest.raises(UserError, match="nothing"):
        fetch(server, tmp_path, Remote(URL, "a.bin", len(CONTENT)), agree=decline)
    assert not server.asked and not list(tmp_path.iterdir())


def test_a_disk_that_is_too_small_is_said_before_anything_is_asked(server, tmp_path):
    with pytest.raises(UserError, match="are needed"):
        fetch(server, tmp_path, Remote(URL, "a.bin", 10**18))
    assert not server.asked


def archive(members):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as written:
        for name, text in members.items():
            written.writestr(name, text)
    return content.getvalue()


def test_an_archive_is_unpacked_once_and_stays_in_its_folder(server, tmp_path):
    packed = archive({"train/1.txt": "one", "../../outside.txt": "two"})
    server.content["data.example/b.zip"] = packed
    file = Remote("http://data.example/b.zip", "in/b.zip", len(packed), digest(packed))
    for _ in range(2):
        fetch(server, tmp_path / "folder", file)
    assert (tmp_path / "folder/in/train/1.txt").read_text() == "one"
    assert not (tmp_path / "outside.txt").exists() and not (tmp_path / "folder/in/b.zip").exists()
    assert len(server.asked) == 1


def test_an_archive_that_unpacks_to_far_more_is_refused(server, tmp_path):
    packed = archive({"zeros": bytes(20_000_000)})
    server.content["data.example/b.zip"] = packed
    with pytest.raises(UserError, match=r"unpacks to 20\.0 MB"):
        fetch(server, tmp_path, Remote("http://data.example/b.zip", "b.zip", len(packed)))
    assert not (tmp_path / "zeros").exists()


def test_the_hub_lists_files_with_their_digests(server, tmp_path):
    entries = [
        {"type": "directory", "path": "x/data", "oid": "1", "size": 0},
        {"type": "file", "path": "x/data/a.bin", "size": len(CONTENT), "oid": "2", "lfs": {"oid": digest(CONTENT)[7:]}},
        {"type": "file", "path": "x/data/b.json", "size": 2, "oid": "3"},
    ]
    api = "huggingface.co/api/datasets/o/r/tree/v1/x?recursive=true"
    server.content |= {
        api: json.dumps(entries[:2]).encode(),
        api + "&cursor=2": json.dumps(entries[2:]).encode(),
        "huggingface.co/datasets/o/r/resolve/v1/x/data/a.bin": CONTENT,
        "huggingface.co/datasets/o/r/resolve/v1/x/data/b.json": b"{}",
    }
    server.next[api] = api + "&cursor=2"
    wanted = published(hub=Hub("o/r", "v1", ["x"]))
    paths = fetch(server, tmp_path, wanted=wanted)
    assert [path.relative_to(tmp_path).as_posix() for path in paths] == ["x/data/a.bin", "x/data/b.json"]
    server.content["huggingface.co/datasets/o/r/resolve/v1/x/data/a.bin"] = CONTENT[::-1]
    paths[0].unlink()
    with pytest.raises(UserError, match="published is"):
        fetch(server, tmp_path, wanted=wanted)


def test_what_unpacks_a_set_is_looked_for_before_the_download(server, tmp_path):
    with pytest.raises(UserError, match=r"pip install 'retable\[archives\]'"):
        fetch(server, tmp_path, wanted=published(Remote(URL, "a.bin"), needs="no_such_module:archives"))
    assert not server.asked


def test_without_a_name_all_sets_are_listed_and_nothing_is_downloaded(capsys, tmp_path):
    known = {"a": published(), "b": published(by_hand="ask them")}
    assert list(download.fetch_by_name(known, [], lambda wanted: tmp_path)) == []
    assert capsys.readouterr().out.splitlines() == [str(known["a"]), str(known["b"])] and not any(tmp_path.iterdir())


def test_sets_are_downloaded_by_name_once_none_of_them_is_refused(server, tmp_path):
    known = {name: Published(name, "", "", "", (Remote(URL, f"{name}.bin", len(CONTENT)),)) for name in "ab"}

    def refuse(wanted):
        if wanted.name == "b":
            raise UserError("b is there")

    def get(*names, **more):
        options = {"yes": True, "mirror": server.address, **more}
        return list(download.fetch_by_name(known, names, lambda wanted: tmp_path / wanted.name, **options))

    with pytest.raises(UserError, match="b is there"):
        get("a", "b", check=refuse)
    with pytest.raises(UserError, match="c: no such dataset"):
        get("a", "c")
    assert not any(tmp_path.rglob("*.bin"))
    assert get("a", "b") == [(known[name], [tmp_path / name / f"{name}.bin"]) for name in "ab"]
