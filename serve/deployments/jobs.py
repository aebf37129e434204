"""Jobs: videos that are painted one after the other, in processes of their own, and kept for a day.

Each lies in `<storage>/served/jobs/<id>`: `state.json`, what was sent, and what was made. What is kept there is what
is known: a replica that starts reads it, goes on with what waited, and says of what was being painted that it failed.
"""

# No `from __future__ import annotations` in the modules of deployments; `app.py` says why.
import asyncio
import fcntl
import logging
import re
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pydantic import TypeAdapter

from retable.platform.errors import UserError
from retable.platform.store.storage import Storage
from retable.serve.deployments.subprocess_call import FAULT, ProgressProcess
from retable.serve.deployments.video import MEDIA, NICE, STARTS, UNKNOWN, Order, check, paint
from retable.serve.ingress.limits import LIMITS, Limits
from retable.serve.ingress.replies import Json, Problem, Reply, json_reply, kind_of, plain_line, returns_problems, send

FOLDER = "served/jobs"
ID = re.compile(r"[A-Za-z0-9_-]{22}")
"""Pattern of a job's id: 128 random bits."""
_OVER = ("done", "failed", "cancelled")
CLEANING = 600.0
"""Seconds between two looks for jobs that are too old, while none is painted."""
_NO_ROOM = "there is no room for the video"
_CHECKING = 30.0
"""Seconds that a look at a header may take."""


@dataclass
class Job:
    """A video and its state."""

    id: str
    kind: str
    """Suffix of what was sent."""
    order: Order
    state: str = "queued"
    made: float = field(default_factory=time.time)
    """Seconds since 1970."""
    frames: int = 0
    total: int = 0
    detail: str = ""
    """Reason why the job failed."""
    notes: tuple[str, ...] = ()
    """Losses in the result: a file that ended too early, sound that the container cannot hold."""
    begun: float = 0.0
    """Time at which the first frame was done, in seconds of this machine's monotonic clock."""


class VideoQueue:
    """The video jobs of a folder. One process at a time owns it, by a kernel lock that ends with the process."""

    def __init__(self, storage: Storage, work: Callable[..., tuple[str, ...]] = paint, limits: Limits = LIMITS) -> None:
        """Lock the folder, and resume the jobs that wait there.

        Raises:
            BlockingIOError: where another process has it.
            OSError: where it cannot be written, or its disk has no locks.
        """
        self.storage, self.work, self.limits = storage, work, limits
        self.folder = Path((storage / FOLDER).root)
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.lock = (self.folder / ".lock").open("ab")
        fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.changed = threading.Condition()
        self.checking = threading.Lock()
        self.jobs: dict[str, Job] = {}
        self.arriving: set[str] = set()
        """Ids of videos that are written and looked at."""
        self.closed = False
        self.running: ProgressProcess | None = None
        for path in sorted(self.folder.iterdir()):
            if path.is_dir():
                self._recover(path)
        self._clean()
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def close(self) -> None:
        """Unlock the folder and kill the job in progress."""
        with self.changed:
            self.closed = True
            if self.running:
                self.running.process.kill()
            self.changed.notify_all()
        self.thread.join()
        self.lock.close()

    def create(self, id: str, body: bytes, order: Order) -> Json:
        """Add a video to the queue, after a check of its header; the same id twice is one job, also while it arrives.

        Raises:
            Problem: where it is no video that is taken, or too many wait.
        """
        if not ID.fullmatch(id):
            raise Problem(404, "no such job")
        kind = kind_of(body, STARTS, UNKNOWN)
        with self.changed:
            self.changed.wait_for(lambda: id not in self.arriving)
            if id in self.jobs:
                return self._status(self.jobs[id])
            self._clean()
            waiting = len(self.arriving) + sum(job.state not in _OVER for job in self.jobs.values())
            if waiting > self.limits.jobs_waiting:
                detail = f"{self.limits.jobs_waiting} videos wait; try again in some minutes"
                raise Problem(503, detail, wait=60)
            self.arriving.add(id)
        job = Job(id=id, kind=kind, order=order)
        try:
            self._write(job, body)
            with self.changed:
                self.jobs[id] = job
                return self._status(job)
        finally:
            with self.changed:
                self.arriving.remove(id)
                self.changed.notify_all()

    def status(self, id: str) -> Json:
        """Return the status of a job.

        Raises:
            Problem: 404.
        """
        with self.changed:
            return self._status(self._job(id))

    def file(self, id: str, wanted: str) -> Reply:
        """Return a painted video, or a range of its bytes.

        Raises:
            Problem: 404 where there is no such job, 409 where it is not done.
        """
        with self.changed:
            job = self._job(id)
            if job.state != "done":
                raise Problem(409, f"the video is {job.state}; there is no file")
        return send(self._target(job), wanted, self.limits.video_bytes, MEDIA[job.order.format])

    def cancel(self, id: str) -> None:
        """Cancel a job, or remove one that is over; no file of it is left then.

        Raises:
            Problem: 404.
        """
        with self.changed:
            job = self._job(id)
            if job.state in _OVER:
                self._remove(job)
                return
            before, job.state = job.state, "cancelled"
            if before == "running" and (mine := self.running):
                mine.process.kill()
                self.changed.wait_for(lambda: self.running is not mine, timeout=_CHECKING)  # the next one may begin
            if self.jobs.get(id) is job:  # not removed meanwhile
                self._end(job)

    def _write(self, job: Job, body: bytes) -> None:
        """Write a video and its state into a folder, which is gone again where it is not taken."""
        try:
            (self.folder / job.id).mkdir(mode=0o700)
            try:
                self._source(job).write_bytes(body)
                self._look(job)
                self._keep(job)
            except BaseException:
                shutil.rmtree(self.folder / job.id, ignore_errors=True)
                raise
        except (OSError, UserError) as error:
            why = f": {error.strerror}" if isinstance(error, OSError) else ""
            raise Problem(507, _NO_ROOM + why) from error

    def _look(self, job: Job) -> None:
        """Look at a video's header, one at a time.

        Raises:
            Problem: where it is no video that is taken.
        """
        with self.checking:
            try:
                problem = ProgressProcess(check, self._source(job), job.order.size, self.limits).wait(_CHECKING)
            except UserError as error:
                raise Problem(400, f"the video cannot be read: {error}") from error
        if problem:
            raise Problem(*problem)

    def _serve(self) -> None:
        """Process the waiting jobs one at a time, in order of arrival."""
        while job := self._next():
            try:
                end = self._paint(job)
            except Exception as error:  # such as a full disk; the next one is painted all the same
                logging.getLogger("ray.serve").exception("a job failed")
                end = "failed", _NO_ROOM if isinstance(error, UserError) else FAULT, ()
            with self.changed:
                self.running = None
                if job.state == "running" and not self.closed:  # and not cancelled
                    job.state, job.detail, job.notes = end
                    self._end(job)
                self.changed.notify_all()

    def _next(self) -> Job | None:
        """Wait for a job, and remove old ones now and then; return None where the queue is closed."""
        with self.changed:
            while not (self.closed or self._waiting()):
                self._clean()
                self.changed.wait(CLEANING)
            return None if self.closed else self._waiting()[0]

    def _paint(self, job: Job) -> tuple[str, str, tuple[str, ...]]:
        """Paint the video of a job; return the state in which it ends, why it failed, and its notes."""
        with self.changed:
            if self.closed or job.state != "queued":
                return job.state, "", ()
            job.state = "running"
            self._keep(job)
            given = (self._source(job), self._target(job), job.order, str(self.storage), self.limits)
            running = self.running = ProgressProcess(self.work, *given, nice=NICE)
        try:
            for frames, total in running.progress(self.limits.job_seconds):
                with self.changed:
                    job.begun = job.begun or time.monotonic()
                    job.frames, job.total = frames, total
        except UserError as error:
            return "failed", self._plain(str(error), job), ()
        return "done", "", running.result or ()

    def _recover(self, path: Path) -> None:
        """Restore a job that an earlier process left."""
        try:
            job = TypeAdapter(Job).validate_json((path / "state.json").read_bytes())
            if job.id != path.name or not ID.fullmatch(job.id):
                raise ValueError
        except (OSError, ValueError):  # it ended while the video came in
            shutil.rmtree(path, ignore_errors=True)
            return
        self.jobs[job.id] = job
        if job.state == "running":
            job.state, job.frames, job.total = "failed", 0, 0
            job.detail = "the server ended while the video was painted; send it again"
        if job.state != "queued":
            self._end(job)

    def _clean(self) -> None:
        """Remove jobs that are too old, and finished ones beyond the limit."""
        ended = sorted((job for job in self.jobs.values() if job.state in _OVER), key=lambda job: -job.made)
        now = time.time()
        for index, job in enumerate(ended):
            if index >= self.limits.jobs_kept or now - job.made > 3600 * self.limits.job_hours:
                self._remove(job)

    def _remove(self, job: Job) -> None:
        shutil.rmtree(self.folder / job.id, ignore_errors=True)
        self.jobs.pop(job.id, None)

    def _end(self, job: Job) -> None:
        """Keep the state of a job that is over, and remove what it no longer needs, which makes room on a full disk.

        Where there is no room even then, nothing is left of it: the next start must not find it queued.
        """
        try:
            try:
                self._keep(job)
            except UserError:
                self._tidy(job)
                self._keep(job)
            self._tidy(job)
        except (OSError, UserError):
            shutil.rmtree(self.folder / job.id, ignore_errors=True)
            if job.state == "done":
                job.state, job.detail = "failed", _NO_ROOM

    def _tidy(self, job: Job) -> None:
        """Remove all files of a finished job but its state and a complete result."""
        kept = {"state.json"} | ({self._target(job).name} if job.state == "done" else set())
        for path in (self.folder / job.id).iterdir():
            if path.name not in kept:
                path.unlink(missing_ok=True)

    def _keep(self, job: Job) -> None:
        (self.storage / FOLDER).write_json(f"{job.id}/state.json", asdict(job))

    def _job(self, id: str) -> Job:
        job = self.jobs.get(id)
        if job is None or (job.state in _OVER and time.time() - job.made > 3600 * self.limits.job_hours):
            raise Problem(404, "no such job; those that are over are gone after a day")
        return job

    def _status(self, job: Job) -> Json:
        summary: Json = {
            "id": job.id,
            "state": job.state,
            "frames": job.frames,
            "frames_total": job.total,
            "progress": 1.0 if job.state == "done" else round(job.frames / job.total, 4) if job.total else 0.0,
        }
        if job.state == "queued":
            summary["ahead"] = self._waiting().index(job) + (self.running is not None)
        if job.state == "running" and job.frames > 1 and job.total:
            rate = (job.frames - 1) / max(time.monotonic() - job.begun, 1e-6)
            summary["seconds_left"] = round((job.total - job.frames) / rate, 1)
        if job.state == "done":
            summary |= {"file": f"/v1/jobs/{job.id}/file", "notes": list(job.notes)}
        return summary | ({"detail": job.detail} if job.detail else {})

    def _waiting(self) -> list[Job]:
        return sorted((job for job in self.jobs.values() if job.state == "queued"), key=lambda job: job.made)

    def _plain(self, line: str, job: Job) -> str:
        """Return a line of the painting's without the places of its files."""
        folder = re.escape(str(self.folder / job.id))
        return plain_line(re.sub(rf"{folder}/[^\s:,]+", "the video", line).replace(str(self.storage), "storage"))

    def _source(self, job: Job) -> Path:
        return self.folder / job.id / f"sent.{job.kind}"

    def _target(self, job: Job) -> Path:
        return self.folder / job.id / f"painted.{job.order.format}"


_REPLIES: Mapping[str, Callable[..., Reply]] = {
    "create": lambda job: json_reply(job, 202, (("Location", f"/v1/jobs/{job['id']}"),)),
    "status": json_reply,
    "file": lambda reply: reply,
    "cancel": lambda _: Reply(b"", "application/json", 204),
}
"""Queue method -> function that builds the HTTP reply."""


class Jobs:
    """Answers for the jobs of a storage."""

    def __init__(self, storage: Storage) -> None:
        self.storage, self.opening = storage, threading.Lock()
        self.desk: VideoQueue | None = None
        try:
            self._desk()
        except Problem as problem:  # it is said to whom asks
            logging.getLogger("ray.serve").warning(problem.detail)

    @returns_problems
    async def call(self, method: str, *given: object) -> Reply:
        """Return the answer of the queue's `create`, `status`, `file` or `cancel`."""
        return await asyncio.to_thread(lambda: _REPLIES[method](getattr(self._desk(), method)(*given)))

    def _desk(self) -> VideoQueue:
        if not self.storage.is_local:
            raise Problem(501, "this server takes no videos: its storage is no folder")
        with self.opening:
            if self.desk is None:
                try:
                    self.desk = VideoQueue(self.storage)
                except BlockingIOError as error:
                    raise Problem(503, "another server on this storage has the jobs; ask that one", wait=5) from error
                except OSError as error:
                    why = f"its storage cannot hold them ({error.strerror})"
                    raise Problem(501, f"this server takes no videos: {why}") from error
            return self.desk
