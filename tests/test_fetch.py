"""`retable data fetch`: small files in the published layouts, from a server of the test's own, to a data set."""

import hashlib
import io
import json
import sys
import zipfile
from contextlib import nullcontext

import pytest
import requests
from PIL import Image
from typer.testing import CliRunner

from retable.platform.cli import app as cli
from retable.platform.console import consent
from retable.platform.errors import UserError
from retable.platform.store.download import Hub, listed, read_published, unpack
from retable.platform.store.storage import Storage
from retable.tasks.audio import data_cli as audio
from retable.tasks.rl.recordings import d4rl
from retable.tasks.style import data_cli as style
from tests import documents
from tests.audio.generated_layout import write_layout
from tests.rl.d4rl_files import make_arrays, write
from tests.web_files import Files, serve

HUB = "huggingface.co"


@pytest.fixture
def server():
    with serve(Files({})) as files:
        yield files


@pytest.fixture
def retable(monkeypatch, tmp_path, server):
    monkeypatch.setenv("RETABLE_STORAGE", str(tmp_path / "results"))

    def run(*words):
        line = ["data", "fetch", *words]
        return CliRunner().invoke(cli.app, line, env={"COLUMNS": "160"})

    return run


def packed(folder):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for path in sorted(folder.rglob("*")):
            archive.write(path, path.relative_to(folder.parent))
    return content.getvalue()


def offer(server, path, content, url):
    """Put a file on the server, and return its entry in a list of sources."""
    server.content[url.partition("://")[2]] = content
    return {"url": url, "path": path, "bytes": len(content), "checksum": f"md5:{hashlib.md5(content).hexdigest()}"}


def write_sources(file, name, **fields):
    known = json.loads(file.read_text()) if file.exists() else {}
    about = {"about": "small", "licence": "CC0", "page": "http://data.example", **fields}
    file.write_text(json.dumps({**known, name: about}))


def test_a_file_of_d4rl_becomes_a_data_set(retable, server, tmp_path, monkeypatch):
    content = write(tmp_path / "f.hdf5", make_arrays([(40, "timeout"), (30, "terminal")])).read_bytes()
    about = {"bytes": len(content), "environment": "Hopper", "name": "d4rl-expert-v2"}
    url = "http://data.example/hopper_expert-v2.hdf5"
    monkeypatch.setitem(d4rl.D4RL, "files", {hashlib.sha256(content).hexdigest(): {**about, "url": url}})
    server.content["data.example/hopper_expert-v2.hdf5"] = content
    refused = retable("rl", "hopper-expert-v2", "--mirror", server.address)
    assert isinstance(refused.exception, UserError) and str(refused.exception).endswith("add --yes")
    done = retable("rl", "hopper-expert-v2", "--yes", "--mirror", server.address)
    assert "CC BY 4.0" in done.output and "Hopper/d4rl-expert-v2: 70 transitions" in done.output, done.exception
    assert Storage.open(tmp_path / "results/data/rl/Hopper/d4rl-expert-v2").exists("dataset.json")
    asked = len(server.asked)
    again = retable("rl", "minari-hopper-expert", "hopper-expert-v2", "--yes", "--mirror", server.address)
    assert "a data set is there already" in str(again.exception) and "--replace" in str(again.exception)
    assert len(server.asked) == asked, "nothing is downloaded first"


def test_a_set_of_minari_that_is_there_is_not_downloaded_again(retable, server, tmp_path):
    folder = Storage.open(tmp_path / "results/data/rl/Hopper/minari-expert-v0")
    folder.write_json("dataset.json", {"minari": {"id": "mujoco/hopper/expert-v0"}})
    said = retable("rl", "minari-hopper-expert", "--yes", "--mirror", server.address)
    assert "Hopper/minari-expert-v0: a data set is there already" in str(said.exception) and not server.asked
    other = retable("rl", "minari-walker2d-expert", "--yes", "--mirror", server.address)
    assert "already" not in str(other.exception) and server.asked, "of that name in another environment"


def test_photographs_in_archives_become_a_data_set(retable, server, tmp_path, monkeypatch):
    files = []
    for split, count in (("train2017", 3), ("val2017", 2)):
        (tmp_path / split).mkdir()
        for number in range(count):
            Image.linear_gradient("L").rotate(90 * number).convert("RGB").save(tmp_path / split / f"{number}.jpg")
        url = f"http://images.example/zips/{split}.zip"
        files.append(offer(server, f"{split}.zip", packed(tmp_path / split), url))
    write_sources(tmp_path / "sources.json", "little", files=files)
    monkeypatch.setattr(style, "SOURCES", tmp_path / "sources.json")
    done = retable("style", "little", "--yes", "--mirror", server.address)
    info = Storage.open(tmp_path / "results/data/style/little").read_json("dataset.json")
    assert len(info["test"]) == 2 and "3 for training" in done.output, done.exception


def test_recordings_of_zenodo_and_the_hub_become_a_data_set(retable, server, tmp_path, monkeypatch):
    from retable.tasks.audio.world.generate import World

    seconds = {"clotho_seconds": (2.4, 2.6), "wavcaps_seconds": (1.0, 1.5), "audiocaps_seconds": (0.5, 0.5)}
    layout = tmp_path / "layout"
    write_layout(World(name="little", clotho=(3, 2, 2), audiocaps=2, wavcaps=6, **seconds), layout)
    sources, files = tmp_path / "sources.json", []
    for path in sorted((layout / "clotho").iterdir()):
        content, name = (packed(path), f"{path.name}.zip") if path.is_dir() else (path.read_bytes(), path.name)
        files.append(offer(server, f"clotho/{name}", content, f"https://zenodo.org/records/1/files/{name}"))
    write_sources(sources, "clotho", files=files)
    write_sources(sources, "wavcaps", hub={"repo": "c/W", "revision": "v1", "folders": ["json_files", "Zip_files"]})
    for folder in ("json_files", "Zip_files"):
        entries = []
        for path in [path for path in sorted((layout / "wavcaps").rglob("*")) if path.is_file()]:
            below = path.relative_to(layout / "wavcaps").as_posix()
            if (folder == "json_files") == (path.suffix == ".json"):
                where = below if path.suffix == ".json" else f"Zip_files/{below}"
                entries.append({"type": "file", "path": where, "size": path.stat().st_size, "oid": "1"})
                server.content[f"{HUB}/datasets/c/W/resolve/v1/{where}"] = path.read_bytes()
        server.content[f"{HUB}/api/datasets/c/W/tree/v1/{folder}?recursive=true"] = json.dumps(entries).encode()
    monkeypatch.setattr(audio, "SOURCES", sources)
    done = retable("audio", "clotho", "wavcaps", "--yes", "--mirror", server.address)
    info = Storage.open(tmp_path / "results/data/audio/dcase2023").read_json("dataset.json")
    assert done.exit_code == 0, done.exception
    assert info["rows"]["validation"] == info["rows"]["test"] == 2 and info["rows"]["training"] > 3


@pytest.mark.parametrize("path", ["../outside", "/outside", "a/../../outside"])
def test_a_listing_cannot_name_a_file_outside_the_folder(path, server, tmp_path):
    entry = {"type": "file", "path": path, "size": 1, "oid": "1"}
    server.content[f"{HUB}/api/datasets/c/W/tree/v1/f?recursive=true"] = json.dumps([entry]).encode()
    server.content[f"{HUB}/datasets/c/W/resolve/v1/{path}"] = b"x"
    with pytest.raises(UserError, match="would leave the folder"):
        listed(Hub("c/W", "v1", ["f"]), requests.Session(), server.address)


def test_what_needs_a_login_is_not_asked_for(retable, server):
    for words in (("weather", "w4c22"), ("audio", "audiocaps", "--yes")):
        said = retable(*words)
        assert isinstance(said.exception, UserError) and "without a login" in str(said.exception)
    assert not server.asked


@pytest.mark.parametrize("task", ["weather", "style", "audio", "rl"])
def test_without_a_name_every_task_lists_its_sets_and_asks_nobody(retable, server, task):
    said = retable(task)
    names = read_published(documents.ROOT / "tasks" / task / "sources.json")
    assert said.exit_code == 0 and names and not server.asked
    assert {line.partition(":")[0] for line in said.output.splitlines()} >= names.keys()


@pytest.mark.parametrize(("answer", "refused"), [("y\n", False), ("n\n", True)])
def test_in_a_terminal_consent_is_asked_for(monkeypatch, capsys, answer, refused):
    screen = io.StringIO(answer)
    screen.isatty = lambda: True
    monkeypatch.setattr("sys.stdin", screen)
    with pytest.raises(UserError, match="nothing was downloaded") if refused else nullcontext():
        consent("little: 3 MB; CC0", yes=False)
    said = capsys.readouterr().out
    assert "little: 3 MB; CC0" in said and "download? [y/N]" in said


def test_a_7z_archive_is_unpacked_by_py7zr(tmp_path):
    py7zr = pytest.importorskip("py7zr")
    (tmp_path / "bark.txt").write_text("a dog")
    with py7zr.SevenZipFile(tmp_path / "a.7z", "w") as archive:
        archive.write(tmp_path / "bark.txt", "sub/bark.txt")
    unpack(tmp_path / "a.7z")
    assert (tmp_path / "sub/bark.txt").read_text() == "a dog" and not (tmp_path / "a.7z").exists()
    (tmp_path / "b.7z").write_bytes(b"no archive")
    with pytest.raises(UserError, match="remove it and run the same command again"):
        unpack(tmp_path / "b.7z")


def test_without_py7zr_a_line_says_what_to_install_and_the_archive_stays(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "py7zr", None)
    (tmp_path / "a.7z").write_bytes(b"7z")
    with pytest.raises(UserError, match=r"a.7z: is unpacked by py7zr; pip install 'retable\[archives\]'$"):
        unpack(tmp_path / "a.7z")
    assert (tmp_path / "a.7z").exists()


@pytest.mark.parametrize("task", ["weather", "style", "audio", "rl"])
def test_every_source_has_a_licence_a_page_and_one_way_to_it(task):
    for each in read_published(documents.ROOT / "tasks" / task / "sources.json").values():
        assert each.licence and each.page.startswith("https://")
        assert sum(map(bool, (each.files, each.hub, each.by_hand))) == 1
        assert all(file.checksum for file in each.files)


def test_without_a_name_the_sets_are_listed(retable):
    said = retable("rl")
    assert "hopper-expert-v2: D4RL Hopper expert-v2; 152 MB; CC BY 4.0" in said.output
    assert "minari-hopper-expert" in said.output and said.exit_code == 0
