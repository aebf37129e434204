"""Client of a server, with the standard library and NumPy alone.

client = Client("http://127.0.0.1:8000")
actions = client.act("HalfCheetah", observations, seed=3)
"""

from __future__ import annotations

import http.client
import io
import json
import socket
import ssl
import time
import urllib.parse
import uuid
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from retable.platform.spec.arrays import Array
from retable.serve.ingress.replies import PROBLEM, Json, plain_line

_AGAIN = (408, 429, 502, 503)
"""Status codes of a busy server, or of one whose replica died; every call here can be made twice without harm."""

_POLL = 1.0
"""Seconds between two looks at a job."""


class ServeError(Exception):
    """A server's refusal: its status, and its one line."""

    def __init__(self, status: int, detail: str, again: bool = False) -> None:
        super().__init__(f"{status}: {detail}")
        self.status, self.detail = status, detail
        self.again = again
        """Whether it was asked before, without an answer."""


@dataclass(frozen=True)
class Answer:
    """The body of an answer, and its headers by their names in lower case."""

    status: int
    body: bytes
    headers: Mapping[str, str]

    @property
    def worth_another(self) -> bool:
        """Whether the same request may be answered if it is sent again."""
        ours = self.headers.get("content-type", "") == PROBLEM
        return self.status in _AGAIN or (self.status == 500 and not ours)  # Serve's own 500: a replica died


@dataclass(frozen=True)
class Hit:
    """A recording that was found."""

    id: str
    file: str
    score: float
    offset: float
    """Second at which the part begins that fits best."""
    tags: tuple[str, ...] = ()
    """Category and name of a file that is named by the Universal Category System."""


@dataclass(frozen=True)
class Added:
    """A recording that a server took in."""

    id: str
    file: str
    """Name of the recording's file."""
    seconds: float


@dataclass(frozen=True)
class Client:
    """Asks one server; where it is busy or a connection breaks, again, with the same request id."""

    url: str = "http://127.0.0.1:8000"
    token: str = ""
    tries: int = 10
    """How often a request is sent at most, over 42 s or more: Serve takes a while to start a killed proxy again."""
    timeout: float = 150.0
    """Seconds of one try."""

    def __post_init__(self) -> None:
        address = urllib.parse.urlsplit(self.url)
        if address.scheme not in ("http", "https") or not address.hostname:  # the token would go to another server
            raise ValueError(f"{self.url!r} is no address of a server; write http://HOST:PORT, or https://HOST")

    def models(self) -> list[Json]:
        """Return what is served, and where it is from."""
        return list(self._json("GET", "/v1/models"))

    def limits(self) -> Json:
        """Return what a request may hold."""
        return dict(self._json("GET", "/v1/limits"))

    def act(self, environment: str, observations: Array, seed: int = 0, model: str = "") -> Array:
        """Return an action for each observation: float32 (n, actions) for (n, states)."""
        body = json.dumps({"observations": np.asarray(observations, np.float32).tolist(), "seed": seed}).encode()
        answer = self._json("POST", f"/v1/rl/{_part(environment)}", {"model": model}, body)
        return np.array(answer["actions"], np.float32)

    def episode(self, environment: str, seed: int = 0, steps: int = 200, model: str = "") -> Json:
        """Return the first steps of an episode that a policy plays: `return`, `rewards`, and `frames` to draw."""
        query = {"model": model, "seed": seed, "steps": steps}
        return dict(self._json("POST", f"/v1/rl/{_part(environment)}/episode", query))

    def answer(self, task: str, name: str, file: bytes, called: str, model: str = "", **options: object) -> bytes:
        """Return the answer of a task beside the papers' to a file, as `retable predict` writes it.

        Args:
            task: whose model.
            name: of the model.
            file: the file's content.
            called: its name; the suffix says what it is.
            model: which, where several have the name.
            **options: of the task.
        """
        settings = [f"{key}={json.dumps(value)}" for key, value in options.items()]
        query = {"model": model, "file": called, "set": settings}
        return self.ask("POST", f"/v1/{_part(task)}/{_part(name)}", query, file).body

    def stylise(
        self,
        style: str,
        picture: bytes,
        size: int = 0,
        strength: float = 1.0,
        colours: Literal["style", "original"] = "style",
        format: Literal["png", "jpeg"] = "png",
    ) -> bytes:
        """Return the file of a picture, painted in a style."""
        options = {"size": size, "strength": strength, "colours": colours, "format": format}
        return self.ask("POST", f"/v1/style/{_part(style)}", options, picture).body

    def stylise_video(
        self,
        style: str,
        video: bytes,
        size: int = 0,
        strength: float = 1.0,
        colours: Literal["style", "original"] = "style",
        steady: Literal["off", "statistics", "flow"] = "off",
        format: Literal["mp4", "webm", "mkv"] = "mp4",
        report: Callable[[dict[str, object]], None] | None = None,
    ) -> bytes:
        """Return the file of a video, painted in a style; an exception meanwhile, as of Ctrl-C, cancels the job.

        Args:
            style: a name of `models`.
            video: MP4, MOV, Matroska, WebM or AVI.
            size: pixels of the longer side; 0: the video's own.
            strength: share of the painting.
            colours: the style's, or the video's own.
            steady: against flicker.
            format: of the result.
            report: is called now and then with what `job` returns.

        Raises:
            ServeError: where the server refuses, or the job fails.
        """
        options = {"size": size, "strength": strength, "colours": colours, "steady": steady, "format": format}
        answer = self._json("POST", f"/v1/style/{_part(style)}/video", options, video)
        id = str(answer["id"])
        try:
            while answer["state"] in ("queued", "running"):
                time.sleep(_POLL)
                answer = self.job(id)
                if report:
                    report(answer)
        except BaseException:
            with suppress(ServeError, ConnectionError):
                replace(self, tries=2).cancel(id)  # who waits for Ctrl-C does not wait for a server that is gone
            raise
        if answer["state"] != "done":
            raise ServeError(500, answer.get("detail") or f"the video is {answer['state']}")
        return self.file(id)

    def job(self, id: str) -> Json:
        """Return how far a job is: `state`, `progress`, `frames` of `frames_total`, `seconds_left`."""
        return dict(self._json("GET", f"/v1/jobs/{_part(id)}"))

    def file(self, id: str) -> bytes:
        """Return the file that a job has made."""
        return self._file(f"/v1/jobs/{_part(id)}/file")

    def cancel(self, id: str) -> None:
        """Cancel a job; remove one that is over, with its file."""
        try:
            self.ask("DELETE", f"/v1/jobs/{_part(id)}")
        except ServeError as error:
            if not (error.again and error.status == 404):  # the first time it was done, and its answer lost
                raise

    def search(self, words: str, top: int = 10) -> list[Hit]:
        """Return the recordings that fit words best."""
        answer = self._json("GET", "/v1/audio", {"q": words, "top": top})
        return [Hit(**{**hit, "tags": tuple(hit.get("tags", ()))}) for hit in answer["hits"]]

    def recording(self, id: str) -> bytes:
        """Return a recording that a search found."""
        return self._file(f"/v1/audio/{_part(id)}")

    def add_recording(self, recording: bytes, name: str = "") -> Added:
        """Put a recording, a WAV, FLAC, Ogg or MP3 file, among those that searches find; twice the same is one."""
        return Added(**self._json("POST", "/v1/audio", {"name": name}, recording))

    def forecast(
        self,
        images: Array,
        region: str = "",
        model: str = "",
        members: str = "",
        combine: Literal["mean", "vote"] = "mean",
    ) -> dict[str, Array]:
        """Return `probability` of rain, uint8 steps of 1/200 (leads, S, S), for images (inputs, 11, S, S).

        `members` names several forecasters, with commas, or `all`; `combine` says how they are joined.
        """
        file = io.BytesIO()
        np.savez_compressed(file, images=images)
        query = {"region": region, "model": model, "members": members, "combine": combine}
        answer = self.ask("POST", "/v1/weather", query, file.getvalue())
        with np.load(io.BytesIO(answer.body), allow_pickle=False) as arrays:
            return dict(arrays)

    def tables(self) -> list[Json]:
        """Return which result tables were filled on the server's storage, in the papers' order."""
        return list(self._json("GET", "/v1/tables"))

    def table(self, name: str, at: str = "") -> Json:
        """Return a result table with its claims: `name` as `rl/table1`, `at` as `tables` says."""
        return dict(self._json("GET", f"/v1/tables/{urllib.parse.quote(name)}", {"at": at}))

    def ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, object] | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Return the answer to a request; after a pause again, while that may help.

        Raises:
            ServeError: where the server refuses, or what answers is no `retable serve`.
            ConnectionError: where no server answers; at once after `timeout`, or if host or certificate are wrong.
        """
        parameters = {key: value for key, value in (query or {}).items() if value != ""}
        target = f"{path}?{urllib.parse.urlencode(parameters, doseq=True)}" if parameters else path
        own = {"X-Request-Id": uuid.uuid4().hex, **(headers or {})} | (
            {"Authorization": f"Bearer {self.token}"} if self.token else {}
        )
        for attempt in range(self.tries):
            last = attempt == self.tries - 1
            answer = None  # how long to wait, the one before does not say
            try:
                answer = self._once(method, target, body, own)
            except (OSError, http.client.HTTPException) as error:
                if last or _is_lasting(error):
                    why = plain_line(f"{type(error).__name__}: {error}")
                    raise ConnectionError(f"{self.url}: no answer ({why})") from error
            else:
                if last or not answer.worth_another:
                    break
            time.sleep(_pause(answer, attempt))
        assert answer is not None
        if answer.status >= 400:
            raise ServeError(answer.status, _detail(answer), again=attempt > 0)
        return answer

    def _json(
        self, method: str, path: str, query: Mapping[str, object] | None = None, body: bytes | None = None
    ) -> Any:
        answer = self.ask(method, path, query, body)
        try:
            return json.loads(answer.body)
        except ValueError as error:
            raise ServeError(answer.status, f"no JSON; is {self.url} the address of `retable serve`?") from error

    def _file(self, path: str) -> bytes:
        """Return a file, in as many answers as it takes."""
        content = bytearray()
        while True:
            answer = self.ask("GET", path, headers={"Range": f"bytes={len(content)}-"})
            if "content-range" not in answer.headers:  # a proxy may answer with the whole
                return answer.body
            content += answer.body
            if len(content) >= int(answer.headers["content-range"].rpartition("/")[2]):
                return bytes(content)

    def _once(self, method: str, target: str, body: bytes | None, headers: Mapping[str, str]) -> Answer:
        address = urllib.parse.urlsplit(self.url)
        kind = http.client.HTTPSConnection if address.scheme == "https" else http.client.HTTPConnection
        with closing(kind(address.netloc, timeout=self.timeout)) as connection:
            connection.request(method, address.path.rstrip("/") + target, body, dict(headers))
            answer = connection.getresponse()
            return Answer(answer.status, answer.read(), {name.lower(): value for name, value in answer.getheaders()})


def _is_lasting(error: Exception) -> bool:
    """Return whether a request that failed is not worth another try: a timeout, a wrong host, URL or certificate."""
    if isinstance(error, socket.gaierror):
        return error.errno == socket.EAI_NONAME
    if isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):  # the connection broke
        return False
    return isinstance(error, (TimeoutError, ssl.SSLError, http.client.InvalidURL))


def _part(name: str) -> str:
    """Return a name as one part of a path."""
    return urllib.parse.quote(name, safe="")


def _pause(answer: Answer | None, attempt: int) -> float:
    """Return the seconds before another try: ever longer, and at least what the server asks for; 10 at most."""
    retry_after = answer.headers.get("retry-after", "") if answer else ""
    return min(10.0, max(float(retry_after) if retry_after.isdigit() else 0.0, 0.2 * 2.0**attempt))


def _detail(answer: Answer) -> str:
    try:
        return str(json.loads(answer.body)["detail"])
    except (ValueError, KeyError, TypeError):
        return answer.body[:200].decode(errors="replace")
