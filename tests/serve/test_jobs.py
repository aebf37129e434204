"""Videos as jobs: the desk with toy work, without Ray; what is taken; and once, slowly, a real video through Serve."""

import asyncio
import errno
import io
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache

import av
import numpy as np
import pytest
from PIL import Image

from retable.platform.errors import UserError
from retable.platform.store.storage import Storage
from retable.serve.client import Client, ServeError
from retable.serve.deployments import jobs, video
from retable.serve.deployments.video import Order
from retable.serve.ingress.limits import Limits
from retable.serve.ingress.replies import Problem, Reply, kind_of
from retable.serve.launch.models import Model
from tests.serve import test_parts as parts
from tests.serve import toys, web
from tests.serve.painters import broken, patient, quick, slow, wrong

# Of Ray's own, as in `test_server.py`.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
ORDER = Order(sha256="a" * 64)


@cache
def clip(count=24, size=(48, 64), format="mp4", codec="libx264", sound=True):
    """Return a clip of generated frames, a second at 24, and a tone beside it, made by FFmpeg's own tools."""
    file = io.BytesIO()
    with av.open(file, "w", format=format) as container:
        stream = container.add_stream(codec, rate=24)
        stream.height, stream.width, stream.pix_fmt = *size, "yuv420p"
        tone = container.add_stream("aac", rate=48000) if sound else None
        if tone:
            for part in range(46):
                wave = np.sin(np.arange(1024 * part, 1024 * (part + 1)) / 20).astype(np.float32)
                frame = av.AudioFrame.from_ndarray(np.stack([wave, wave]), "fltp", "stereo")
                frame.sample_rate = 48000
                container.mux(tone.encode(frame))
            container.mux(tone.encode())
        rows, columns = np.mgrid[: size[0], : size[1]]
        for number in range(count):
            picture = np.stack([rows * 3 + number * 4, columns * 2, np.full_like(rows, 90)], -1).clip(0, 255)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture.astype(np.uint8))))
        container.mux(stream.encode())
    return file.getvalue()


CLIP = clip(count=2, sound=False)


@pytest.fixture
def desk(storage):
    opened = []

    def open_desk(work=quick, **limits):
        opened.append(jobs.VideoQueue(storage, work, Limits(**limits)))
        return opened[-1]

    yield open_desk
    for each in opened:
        each.close()


def create(desk, body=CLIP, order=ORDER):
    return desk.create(secrets.token_urlsafe(16), body, order)["id"]


def reach(desk, id, *states):
    """Wait until a job is in one of these states; return what is said of it."""
    end = time.monotonic() + 30
    while (said := desk.status(id))["state"] not in states:
        assert time.monotonic() < end, said
        time.sleep(0.01)
    return said


def left(desk, id):
    return sorted(path.name for path in (desk.folder / id).iterdir())


def test_a_job_runs_and_its_file_is_there_in_ranges(desk):
    at = desk()
    id = create(at)
    said = reach(at, id, "done", "failed")
    assert said == {
        "id": id, "state": "done", "frames": 2, "frames_total": 2, "progress": 1.0,
        "file": f"/v1/jobs/{id}/file", "notes": ["a note"],
    }  # fmt: skip
    assert left(at, id) == ["painted.mp4", "state.json"]
    whole = at.file(id, "")
    assert (whole.body, whole.media) == (CLIP, "video/mp4")
    part = at.file(id, "bytes=4-7")
    assert (part.status, part.body, dict(part.headers)["Content-Range"]) == (206, b"ftyp", f"bytes 4-7/{len(CLIP)}")
    at.cancel(id)
    assert not (at.folder / id).exists()
    with pytest.raises(Problem, match="no such job"):
        at.status(id)


def test_more_than_can_wait_are_told_to_come_again(desk):
    at = desk(patient, jobs_waiting=2)
    ids = [create(at) for _ in range(3)]
    reach(at, ids[0], "running")
    assert [at.status(id).get("ahead") for id in ids] == [None, 1, 2]
    with pytest.raises(Problem, match="2 videos wait") as caught:
        create(at)
    assert caught.value.status == 503 and caught.value.headers["Retry-After"]
    at.cancel(ids[1])
    last = create(at)
    (at.folder / "go").touch()
    assert reach(at, last, "done") and at.status(ids[1])["state"] == "cancelled" and left(at, ids[1]) == ["state.json"]
    assert at.jobs[ids[0]].state == at.jobs[ids[2]].state == "done"


def test_the_same_id_twice_is_one_job(desk):
    at = desk()
    id = create(at)
    reach(at, id, "done")
    assert at.create(id, CLIP, ORDER)["state"] == "done" and len(at.jobs) == 1


def test_the_same_id_again_while_its_video_arrives_waits_for_it_and_is_one_job(desk, monkeypatch):
    """As the ingress asks again where the answer was lost; the second one took away the folder of the first."""
    at, looking, go = desk(), threading.Event(), threading.Event()

    class Look(jobs.ProgressProcess):
        def __init__(self, *given, **named):
            looking.set()
            go.wait(20)
            super().__init__(*given, **named)

    id = secrets.token_urlsafe(16)
    with monkeypatch.context() as patched, ThreadPoolExecutor(2) as pool:
        patched.setattr(jobs, "ProgressProcess", Look)
        first = pool.submit(at.create, id, CLIP, ORDER)
        looking.wait(20)
        second = pool.submit(at.create, id, CLIP, ORDER)
        time.sleep(0.3)
        waited = not second.done()
        go.set()
        assert first.result()["id"] == second.result()["id"] == id and waited
    reach(at, id, "done")
    assert list(at.jobs) == [id]


def test_the_same_id_again_is_refused_as_the_first_was(desk, monkeypatch):
    at, id = desk(), secrets.token_urlsafe(16)
    with ThreadPoolExecutor(2) as pool:
        refused = [each.exception() for each in [pool.submit(at.create, id, CLIP[:200], ORDER) for _ in range(2)]]
    assert [each.status for each in refused] == [400, 400] and os.listdir(at.folder) == [".lock"] and not at.arriving


def test_a_folder_that_another_call_has_made_is_left_alone(desk):
    at, id = desk(), secrets.token_urlsafe(16)
    (at.folder / id).mkdir()
    (at.folder / id / "sent.mp4").write_bytes(b"another's")
    with pytest.raises(Problem) as caught:
        at.create(id, CLIP, ORDER)
    assert caught.value.status == 507 and left(at, id) == ["sent.mp4"]


def test_what_runs_is_cancelled_and_leaves_no_file(desk):
    at = desk(slow)
    id = create(at)
    while not at.status(id)["frames"] > 1:
        time.sleep(0.01)
    said, process = at.status(id), at.running.process
    assert 0 < said["progress"] < 0.01 and 1 < said["seconds_left"]
    with pytest.raises(Problem, match="the video is running; there is no file"):
        at.file(id, "")
    at.cancel(id)
    assert not process.is_alive() and left(at, id) == ["state.json"] and at.status(id)["state"] == "cancelled"


def test_a_cancelled_video_is_gone_at_once_where_others_wait(desk, monkeypatch):
    """The next one begins before who cancels looks again: it was waited for, too, and 30 s long."""
    monkeypatch.setattr(jobs, "_CHECKING", 300.0)
    at = desk(slow)
    first, *others = (create(at) for _ in range(3))
    while not at.status(first)["frames"] > 1:
        time.sleep(0.01)
    begun = time.monotonic()
    for id in (first, *others):
        at.cancel(id)
        assert left(at, id) == ["state.json"] and at.status(id)["state"] == "cancelled"
    assert time.monotonic() - begun < 100


def test_a_video_that_is_removed_while_its_process_ends_does_not_come_back(desk, monkeypatch):
    at = desk(slow)
    id = create(at)
    reach(at, id, "running")
    wait_for = at.changed.wait_for

    def removed_meanwhile(ended, timeout):
        at.cancel(id)
        return wait_for(ended, timeout)

    monkeypatch.setattr(at.changed, "wait_for", removed_meanwhile)
    at.cancel(id)
    assert not (at.folder / id).exists()
    at.close()
    assert not desk().jobs


@pytest.mark.parametrize(
    ("work", "why"),
    [(wrong, "the video: no frame can be decoded"), (broken, "a fault of the server's; its log says more")],
)
def test_what_fails_says_why_in_a_line_and_the_next_one_runs(desk, work, why):
    at = desk(work)
    id = create(at)
    assert reach(at, id, "failed")["detail"] == why and left(at, id) == ["state.json"]
    at.work = quick
    reach(at, create(at), "done")


@pytest.mark.parametrize(
    ("state", "end", "why"), [("running", "failed", "there is no room for the video"), ("done", "done", "")]
)
def test_a_disk_that_is_full_fails_one_job_at_most_and_ends_no_queue(desk, monkeypatch, state, end, why):
    """Whatever else than the painting fails: a painted video is there, as the one that was sent makes room for it."""
    at = desk()
    keep, full = at._keep, [state]

    def keeping(job):
        if job.state in full:
            full.clear()
            raise UserError("state.json: the disk is full")
        keep(job)

    monkeypatch.setattr(at, "_keep", keeping)
    id = create(at)
    assert reach(at, id, end).get("detail", "") == why
    reach(at, create(at), "done")
    at.close()
    said = desk().status(id)
    assert (said["state"], said.get("detail", "")) == (end, why), "a server that starts again says the same"


def test_a_disk_that_is_full_takes_no_video_and_keeps_no_cancelled_one_running(desk, monkeypatch):
    at = desk(slow)
    id, queued = create(at), create(at)
    while not at.status(id)["frames"]:
        time.sleep(0.01)
    process = at.running.process

    def full(job):
        raise UserError("there is no room")

    with monkeypatch.context() as patched:
        patched.setattr(at, "_keep", full)
        with pytest.raises(Problem, match="there is no room for the video") as refused:
            create(at)
        assert refused.value.status == 507 and list(at.jobs) == [id, queued]
        assert set(os.listdir(at.folder)) == {".lock", id, queued}
        for each in (queued, id):
            at.cancel(each)
            assert at.status(each)["state"] == "cancelled"
    assert not process.is_alive() and os.listdir(at.folder) == [".lock"]
    at.close()
    assert not desk().jobs, "a server that starts again paints none of them"


def test_a_disk_that_stays_full_leaves_nothing_to_paint_at_the_next_start(desk, monkeypatch):
    at = desk()
    keep = at._keep

    def keeping(job):
        if job.state != "queued":
            raise UserError("state.json: the disk is full")
        keep(job)

    monkeypatch.setattr(at, "_keep", keeping)
    id = create(at)
    assert reach(at, id, "failed")["detail"] == "there is no room for the video" and not (at.folder / id).exists()
    at.close()
    assert not desk().jobs


def test_a_server_starts_on_a_full_disk_though_a_job_ran_when_the_last_one_died(desk, monkeypatch):
    at = desk()
    id = create(at)
    reach(at, id, "done")
    at.close()
    path = at.folder / id / "state.json"
    path.write_text(path.read_text().replace('"done"', '"running"'))

    def full(self, job):
        raise UserError("state.json: the disk is full")

    monkeypatch.setattr(jobs.VideoQueue, "_keep", full)
    again = desk()
    assert again.status(id)["state"] == "failed" and not (again.folder / id).exists()


def test_a_process_that_is_killed_is_a_job_that_failed(desk):
    at = desk(slow)
    id = create(at)
    while not at.status(id)["frames"]:
        time.sleep(0.01)
    os.kill(at.running.process.pid, signal.SIGKILL)
    assert "a process of the server's was ended" in reach(at, id, "failed")["detail"] and left(at, id) == ["state.json"]


def test_a_job_that_takes_too_long_is_ended(desk):
    at = desk(slow, job_seconds=1)
    id = create(at)
    assert reach(at, id, "failed")["detail"] == "it took longer than 1 s" and left(at, id) == ["state.json"]


DYING = """
import os, sys, time
from retable.platform.store.storage import Storage
from retable.serve.deployments import jobs
from retable.serve.deployments.video import Order
from tests.serve.painters import slow
if __name__ == "__main__":
    at = jobs.VideoQueue(Storage.open(sys.argv[1]), slow)
    for name in "rq":
        at.create(name * 22, open(sys.argv[2], "rb").read(), Order(sha256="a" * 64))
    while not at.status("r" * 22)["frames"]:
        time.sleep(0.01)
    print(at.running.process.pid, flush=True)
    os.kill(os.getpid(), 9)
"""


def test_after_a_death_what_was_painted_has_failed_and_what_waited_goes_on(desk, storage, tmp_path):
    (tmp_path / "dying.py").write_text(DYING)
    (tmp_path / "clip.mp4").write_bytes(CLIP)
    command = [sys.executable, tmp_path / "dying.py", str(storage), tmp_path / "clip.mp4"]
    paths = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    said = subprocess.run(command, capture_output=True, text=True, env=paths)
    assert said.returncode == -signal.SIGKILL, said.stderr
    orphan = int(said.stdout)
    end = time.monotonic() + 10
    while os.path.exists(f"/proc/{orphan}") and time.monotonic() < end:
        time.sleep(0.01)
    assert not os.path.exists(f"/proc/{orphan}")
    folder = storage.root + f"/{jobs.FOLDER}/"
    assert ".half.mp4" in os.listdir(folder + "r" * 22)
    os.makedirs(folder + "x" * 22)  # a video that came in
    at = desk()
    said = at.status("r" * 22)
    assert (said["state"], said["detail"]) == ("failed", "the server ended while the video was painted; send it again")
    assert left(at, "r" * 22) == ["state.json"] and not os.path.exists(folder + "x" * 22)
    reach(at, "q" * 22, "done")


def test_one_process_at_a_time_has_the_folder(desk, storage):
    at = desk()
    with pytest.raises(BlockingIOError):
        jobs.VideoQueue(storage)
    at.close()
    desk()


def test_old_jobs_go(desk, storage):
    at = desk(jobs_kept=2)
    ids = [create(at) for _ in range(3)]
    reach(at, ids[2], "done")
    at.close()
    at.jobs[ids[2]].made -= 25 * 3600
    with pytest.raises(Problem, match="gone after a day"):
        at.status(ids[2])
    at._keep(at.jobs[ids[2]])
    at = desk(jobs_kept=1)
    assert list(at.jobs) == [ids[1]] and sorted(os.listdir(at.folder)) == sorted([".lock", ids[1]])


def test_old_jobs_go_though_nobody_asks(desk, monkeypatch):
    monkeypatch.setattr(jobs, "CLEANING", 0.05)
    at = desk()
    id = create(at)
    reach(at, id, "done")
    at.jobs[id].made -= 25 * 3600
    end = time.monotonic() + 10
    while at.jobs and time.monotonic() < end:  # the folder goes first
        time.sleep(0.02)
    assert not (at.folder / id).exists() and not at.jobs


@pytest.mark.parametrize("id", ["", "..", "../../etc/passwd", "a" * 21, "a" * 23, "a" * 21 + "/", "a" * 22 + "\n"])
def test_other_ids_reach_no_path(desk, id):
    at = desk()
    for method in (at.status, at.cancel, lambda id: at.file(id, ""), lambda id: at.create(id, CLIP, ORDER)):
        with pytest.raises(Problem, match="no such job"):
            method(id)


PLAYLIST = b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n"


@pytest.mark.parametrize(
    ("body", "status", "why"),
    [
        (b"", 415, "no video that is known"),
        (b"GIF89a", 415, "no video that is known"),
        (PLAYLIST, 415, "no video that is known"),
        (b"ffconcat version 1.0\nfile /etc/passwd\n", 415, "no video that is known"),
        (b"\0\0\0\x20ftypisom" + PLAYLIST, 400, "broken, or cut off"),
        (CLIP[: len(CLIP) // 2], 400, "broken, or cut off"),
        (b"\x1a\x45\xdf\xa3" + bytes(range(256)) * 8, 400, "broken, or cut off"),
    ],
)
def test_what_is_no_video_is_refused_and_nothing_is_kept(desk, body, status, why):
    at = desk()
    with pytest.raises(Problem, match=why) as caught:
        create(at, body)
    assert caught.value.status == status and os.listdir(at.folder) == [".lock"] and not at.jobs


@pytest.mark.parametrize(
    ("limits", "size", "why"),
    [
        ({"video_pixels": 3000}, 0, r"64 x 48 pixels a frame, a longer side of 64 asked for; at most 3000"),
        ({"video_pixels": 4000}, 100, r"a longer side of 100 asked for; at most 4000"),
        ({"video_frames": 23}, 0, "24 frames; at most 23"),
        ({"video_seconds": 0.5}, 0, r"lasts 1 s; 0\.5 s are taken"),
    ],
)
def test_a_header_that_says_too_much_is_refused(desk, limits, size, why):
    at = desk(**limits)
    with pytest.raises(Problem, match=why) as caught:
        create(at, clip(), Order(sha256="a", size=size))
    assert caught.value.status == 413 and os.listdir(at.folder) == [".lock"]


@pytest.mark.parametrize(
    ("format", "codec", "kind"),
    [("mov", "libx264", "mp4"), ("matroska", "libx264", "mkv"), ("webm", "libvpx-vp9", "mkv"), ("avi", "mpeg4", "avi")],
)
def test_kinds_are_known_by_what_they_hold(desk, format, codec, kind):
    body = clip(3, format=format, codec=codec, sound=False)
    assert kind_of(body, video.STARTS, "") == kind
    at = desk()
    assert reach(at, create(at, body), "done")


async def stub(task, method, *arguments):
    """Answer as the jobs' deployment would."""
    asked.append((task, method, *arguments))
    if arguments[0] == "create":
        return Reply(json.dumps({"id": arguments[1]}).encode(), "application/json", 202)
    return Problem(404, "no such job") if arguments[1] == "unknown" else Reply(b"{}", "application/json")


asked: list[tuple] = []


def test_routes_ask_the_jobs_and_check_what_they_are_asked(tmp_path):
    asked.clear()
    application = web.application([Model(task="style", name="great_wave", sha256="a" * 64)], stub)
    path = "/v1/style/great_wave/video"
    query = "?size=320&strength=0.5&colours=original&steady=flow&format=webm"
    status, headers, _ = parts.ask(application, "POST", path + query, CLIP)
    assert status == 202 and headers["x-retable-model"] == "style/great_wave"
    wanted = Order(sha256="a" * 64, size=320, strength=0.5, original=True, steady="flow", format="webm")
    (task, method, name, id, sent, order), = asked  # fmt: skip
    assert (task, method, name, sent, order) == ("jobs", "call", "create", CLIP, wanted) and jobs.ID.fullmatch(id)
    for query in ("size=-1", "strength=nan", "steady=rock", "format=gif", "colours=red"):
        status, detail = parts.problem(parts.ask(application, "POST", f"{path}?{query}", CLIP))
        assert status == 422 and detail.startswith(query.partition("=")[0])
    assert parts.problem(parts.ask(application, "POST", "/v1/style/great_wafe/video", CLIP))[0] == 404
    asked.clear()
    for method, path in (("GET", "some"), ("DELETE", "some"), ("GET", "some/file")):
        headers = [(b"range", b"bytes=1-2")]
        assert parts.ask(application, method, f"/v1/jobs/{path}", headers=headers)[0] == 200
    assert {each[:2] for each in asked} == {("jobs", "call")}
    assert [each[2:] for each in asked] == [("status", "some"), ("cancel", "some"), ("file", "some", "bytes=1-2")]
    assert parts.problem(parts.ask(application, "GET", "/v1/jobs/unknown")) == (404, "no such job")
    rl = web.application([Model(task="rl", name="Hopper", sha256="a" * 64)], stub)
    assert parts.ask(rl, "GET", "/v1/jobs/some")[0] == 404


def test_a_storage_that_is_no_folder_takes_no_videos():
    answer = asyncio.run(jobs.Jobs(Storage.open("memory://results")).call("status", "a" * 22))
    assert (answer.status, answer.detail) == (501, "this server takes no videos: its storage is no folder")


@pytest.mark.parametrize(
    ("where", "fault", "status", "why"),
    [
        ("fcntl.flock", OSError(errno.ENOLCK, "No locks available"), 501, "No locks available"),
        ("pathlib.Path.mkdir", PermissionError(errno.EACCES, "Permission denied"), 501, "Permission denied"),
        ("fcntl.flock", BlockingIOError(errno.EAGAIN, "busy"), 503, "another server on this storage has the jobs"),
    ],
    ids=str,
)
def test_a_folder_that_cannot_hold_jobs_takes_no_videos_and_ends_no_server(
    storage, monkeypatch, where, fault, status, why
):
    def refuse(*_, **__):
        raise fault

    monkeypatch.setattr(where, refuse)
    answer = asyncio.run(jobs.Jobs(storage).call("status", "a" * 22))
    assert answer.status == status and why in answer.detail and str(storage) not in answer.detail


def test_jobs_are_one_deployment_where_styles_are_served():
    from retable.serve import application

    with_style = application.reserved(["weather", "style", "audio", "rl"], {})
    assert with_style["jobs"] == 0.1 and round(sum(with_style.values()), 6) <= 2
    assert "jobs" not in application.reserved(["rl"], {})


def check_photographs(client):
    from retable.tasks.style.files import assets, images
    from retable.tasks.style.networks import transformer
    from retable.tasks.style.tools.pictures.batches import nothing
    from retable.tasks.style.tools.pictures.stylise import NetworkStyle, Options

    pixels = images.fit(images.read(assets.paintings()["great_wave"]).pixels, 96)
    data, network = images.encode_png(pixels), transformer.find("great_wave")
    wanted = NetworkStyle(network, Options())([pixels], nothing)[0].pixels
    assert np.array_equal(images.read(client.stylise("great_wave", data)).pixels, wanted)
    half = images.read(client.stylise("great_wave", data, size=48, strength=0.5, colours="original", format="jpeg"))
    assert max(half.pixels.shape) == 48
    answer = client.ask("POST", "/v1/style/great_wave", body=data)
    assert answer.headers["content-type"] == "image/png" and answer.headers["x-retable-model"] == "style/great_wave"
    assert answer.headers["x-retable-data"] == "free" and answer.headers["x-request-id"]
    bomb = io.BytesIO()
    Image.new("1", (6000, 6000)).save(bomb, "PNG")
    for body, status in ((b"GIF89a", 400), (bomb.getvalue(), 413)):
        with pytest.raises(ServeError) as refused:
            client.ask("POST", "/v1/style/great_wave", body=body)
        assert refused.value.status == status


@pytest.mark.slow
def test_photographs_and_videos_are_painted_through_serve_as_by_the_command(tmp_path):
    from retable.serve.launch import address, choice, server
    from retable.tasks.style.networks import transformer
    from retable.tasks.style.tools.video import steady
    from retable.tasks.style.tools.video.video import stylise_video

    storage = Storage.open(tmp_path / "results")
    (wave,) = (m for m in choice.choose_models(choice.Wanted(["style"], zoo=True), storage) if m.name == "great_wave")
    wave = replace(wave, about={**wave.about, "data": "free"})
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    where = address.Address("127.0.0.1", port)
    body = clip()
    (tmp_path / "clip.mp4").write_bytes(body)
    stylist = steady.Stylist(transformer.find("great_wave"))
    stylise_video(tmp_path / "clip.mp4", tmp_path / "wanted.mp4", steady.stylise_stream(stylist))
    with server.serving([wave], storage, where):
        client, seen = Client(where.url), []
        check_photographs(client)
        made = client.stylise_video("great_wave", body, report=seen.append)
        assert seen[-1]["state"] == "done" and seen[-1]["frames"] == seen[-1]["frames_total"] == 24
        (pictures, sounds), (wanted, _), (_, sent) = map(look, (made, (tmp_path / "wanted.mp4").read_bytes(), body))
        assert len(pictures) == 24 and sounds == sent and sounds
        assert np.abs(pictures.astype(int) - wanted).max() <= 1
        part = client.ask("GET", seen[-1]["file"], headers={"Range": "bytes=4-7"})
        assert (part.status, part.body) == (206, b"ftyp")
        with pytest.raises(ServeError, match="415: the body is no video"):
            client.stylise_video("great_wave", b"GIF89a")
        answer = client.ask("POST", "/v1/style/great_wave/video", {"size": 1024}, clip(240))
        id = json.loads(answer.body)["id"]
        assert answer.status == 202 and answer.headers["location"] == f"/v1/jobs/{id}"
        while not client.job(id)["frames"]:
            time.sleep(0.05)
        client.cancel(id)
        assert client.job(id)["state"] == "cancelled"
        assert os.listdir(tmp_path / "results" / jobs.FOLDER / id) == ["state.json"]
        waiting = json.loads(client.ask("POST", "/v1/style/great_wave/video", {"size": 1024}, clip(240)).body)["id"]
        while not client.job(waiting)["frames"]:
            time.sleep(0.05)
        client.stylise("great_wave", web.example_picture())  # pictures are painted meanwhile
        (replica,) = toys.replicas("jobs")
        os.kill(replica, signal.SIGKILL)
        end = time.monotonic() + 60
        while (said := client.job(waiting))["state"] == "running" and time.monotonic() < end:
            time.sleep(0.2)
        assert said["state"] == "failed" and "the server ended" in said["detail"]


def look(body):
    """Decode with PyAV alone: the pictures, and every packet of sound."""
    with av.open(io.BytesIO(body)) as container:
        pictures = np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])
    with av.open(io.BytesIO(body)) as container:
        return pictures, [bytes(packet) for packet in container.demux(audio=0) if packet.size]
