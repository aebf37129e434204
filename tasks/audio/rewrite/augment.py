"""Rewritten captions for a data set: from a language model, a published file, or rules.

Models are asked through the official SDK at any endpoint that speaks OpenAI's chat completions; where it is and its
key come from the environment, `OPENAI_BASE_URL` and `OPENAI_API_KEY`. Answers are kept beside the data set as they
come, so an interrupted command asks only for what is missing.
"""

from __future__ import annotations

import json
import os
import random
import re
import threading
import time
import uuid
from collections.abc import Generator, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from retable.platform.console import Show, counted
from retable.platform.errors import UserError
from retable.platform.store.storage import Storage
from retable.tasks.audio.collect.recordings import Item, Recording, digest, read_recordings, write_recordings
from retable.tasks.audio.rewrite import variations
from retable.tasks.audio.rewrite.prompts import Wording, parse, prompt
from retable.tasks.audio.rewrite.rewriter import Rules, rewrite
from retable.tasks.audio.rewrite.variations import Variation

if TYPE_CHECKING:
    from openai import OpenAI
    from openai.types.chat import ChatCompletionUserMessageParam


LONGEST_PAUSE = 60.0
"""Seconds between two tries, at most, unless the endpoint wants more."""
LONGEST_WISH = 600.0
"""Seconds that an endpoint may make us wait."""
KEPT_EVERY = 5.0
"""Seconds of answers that a killed command loses, at most."""
HOPELESS = 20
"""Captions that fail in a row until the command ends."""


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """A language model, and how hard it may be asked."""

    model: str
    """Its name at the endpoint; the paper's is gpt-3.5-turbo."""
    requests_per_minute: float = 0
    """Requests that are started in a minute, at most; 0: no limit."""
    concurrent: int = 8
    """Requests under way at once, at most."""
    timeout: float = 30.0
    """Seconds until a request is given up; the paper's code: 10."""
    tries: int = 10
    """Requests for one caption, at most."""
    pause: float = 1.0
    """Seconds after the first failure; twice as many after each further one."""
    prompt: Wording = "paper"
    """Whose words it is asked in."""
    price: tuple[float, float] = (0.0, 0.0)
    """Of a million tokens read and a million written, in any currency."""

    def __post_init__(self) -> None:
        if not self.model:
            raise UserError("model: no name; say which of the endpoint's models is to be asked")
        if self.concurrent < 1 or self.tries < 1 or self.timeout <= 0:
            raise UserError("concurrent, tries and timeout: must be above 0")
        if min(self.requests_per_minute, self.pause, *self.price) < 0:
            raise UserError("requests_per_minute, pause and price: cannot be negative")


@dataclass(frozen=True)
class Report:
    """The outcome of a rewriting of a data set's captions."""

    captions: int
    """Those of Clotho's training set."""
    rewritten: int
    """Captions with at least one rewritten form."""
    forms: int
    """Rewritten forms in all."""
    asked: int = 0
    """Answers that came in this call; the others were kept from earlier ones."""
    failed: tuple[str, ...] = ()
    """A line for each caption that there is no answer to."""
    dropped: tuple[str, ...] = ()
    """Parts left out of answers, with the reason, a line each."""
    tokens: tuple[int, int] = (0, 0)
    """Read and written, by all answers that are kept; those that had to be asked for again are not counted."""
    cost: float = 0.0

    def __str__(self) -> str:
        """Return the report as one line."""
        text = f"{self.rewritten} of {self.captions} captions rewritten, {self.forms} forms"
        if any(self.tokens):
            text += f"; {self.asked} answers now, {self.tokens[0]:,} + {self.tokens[1]:,} tokens in all"
            text += f", cost {self.cost:,.2f}" if self.cost else ""
        text += f"; {len(self.dropped)} lines dropped" if self.dropped else ""
        return text + (f"; {len(self.failed)} captions failed, run again" if self.failed else "")


def augment_dataset(
    folder: Storage,
    provider: Rules | Endpoint | Path,
    seed: int = 0,
    out: Path | None = None,
    show: Show = lambda done, total: None,
) -> Report:
    """Rewrite the captions of a data set's Clotho training recordings, in place of older rewritten forms.

    The data set is another one then: what was trained on it before counts as trained on other data.

    Args:
        folder: of the data set, `<storage>/data/audio/<name>`.
        provider: rules (`retable.tasks.audio.rewrite.rewriter`), a language model, or a `variations.json`.
        seed: of the rules.
        out: where to write the forms as `variations.json` besides.
        show: called with the captions done and in all.

    Raises:
        UserError: where the data set or file is missing or broken, or the endpoint refuses. Answers are kept: the
            same command goes on.
    """
    recordings, info = read_recordings(folder), folder.read_json("dataset.json")
    if "sound" not in info:
        raise UserError(f"{folder}: a data set of an older version; make or import it again")
    wanted = list(variations.captions(recordings))
    if not wanted:
        raise UserError(f"{folder}: no training captions of the corpus clotho; only those are rewritten")
    report = Report(len(wanted), 0, 0)
    if isinstance(provider, Endpoint):
        made, report = _asked(folder, wanted, provider, report, show)
    elif isinstance(provider, Path):
        made = variations.read(provider)
    else:
        made = _ruled(wanted, provider, seed, show)
    filled, count = variations.fill(recordings, made)
    if not count:
        reason = report.failed[0] if report.failed else "use one that was made from the same captions"
        raise UserError(f"{named(provider)}: rewrites no caption of {folder}; {reason}")
    write_recordings(folder, filled)
    made_of = digest(filled, [info["sound"]])
    told = {"model": asked_of(provider, made), "captions": len(wanted), "rewritten": count}
    folder.write_json("dataset.json", {**info, "digest": made_of, "rewrites": named(provider), "rewriter": told})
    if out is not None:
        variations.write(out, made)
    forms = sum(len(lines) for recording in filled for lines in recording.rewrites)
    return replace(report, rewritten=count, forms=forms)


def rewrite_items(items: Iterable[Item], how: Rules = "keywords", seed: int = 0) -> list[Item]:
    """Return recordings, each with what makes its sound, with rewritten forms by rules of Clotho's training captions.

    Args:
        items: of a data set, in order.
        how: which rules; see `retable.tasks.audio.rewrite.rewriter`.
        seed: of the rules.

    """
    recordings, makers = zip(*items, strict=True)
    made = _ruled(list(variations.captions(recordings)), how, seed)
    return list(zip(variations.fill(recordings, made)[0], makers, strict=True))


def _ruled(
    wanted: Sequence[tuple[Recording, str]], how: Rules, seed: int, show: Show = lambda done, total: None
) -> list[Variation]:
    if how not in get_args(Rules):
        raise UserError(f"{how}: no such rules; use {', '.join(get_args(Rules))}, a model or a variations.json")
    made = []
    for index, (recording, caption) in enumerate(counted(wanted, show, len(wanted))):
        lines = rewrite(caption, recording.keywords, how, seed)
        made.append(Variation(index, recording.file, caption, "", None, lines, "stop", {}))
    return made


def named(provider: Rules | Endpoint | Path) -> str:
    """Return what `dataset.json` says of who rewrote the captions."""
    if isinstance(provider, Endpoint):
        return provider.model + (" (the code's prompt)" if provider.prompt == "code" else "")
    return provider.name if isinstance(provider, Path) else f"rules ({provider})"


def asked_of(provider: Rules | Endpoint | Path, made: Sequence[Variation]) -> str:
    """Return the model that gave all answers, of a file as they name it; "" where none did, or not all are of one."""
    if isinstance(provider, Endpoint):
        return provider.model
    models = {str((variation.response or {}).get("model", "")) for variation in made}
    return models.pop() if len(models) == 1 else ""


def _asked(
    folder: Storage, wanted: Sequence[tuple[Recording, str]], endpoint: Endpoint, report: Report, show: Show
) -> tuple[list[Variation], Report]:
    """Ask for every caption that there is no answer to yet; return all answers."""
    queries = [
        prompt(caption, recording.keywords, endpoint.prompt) if caption.strip() else "" for recording, caption in wanted
    ]
    answers = Answers(folder / f"rewrites/{re.sub(r'[^A-Za-z0-9._-]+', '-', endpoint.model)}", endpoint.model)
    missing = {query: caption for query, (_, caption) in zip(queries, wanted, strict=True) if query}
    missing = {query: caption for query, caption in missing.items() if query not in answers.known}
    answered, failed = len(set(queries) - {""}) - len(missing), []
    show(answered, answered + len(missing))
    try:
        with closing(_results(endpoint, missing)) as results:
            for done, (query, result) in enumerate(results, 1):
                if isinstance(result, str):
                    failed.append(f"{missing[query][:60]!r}: {result}")
                else:
                    answers.add(result)
                show(answered + done, answered + len(missing))
    finally:
        answers.keep()
    made, dropped = [], []
    for index, ((recording, caption), query) in enumerate(zip(wanted, queries, strict=True)):
        row = answers.known.get(query)
        if row is not None:
            kept = parse(variations.content(row.response), caption, row.finish_reason == "length")
            made.append(replace(row, idx=index, path=recording.file, caption=caption, variations=kept.captions))
            dropped += [f"{caption[:60]!r}: {line}" for line in kept.dropped]
    tokens = answers.tokens()
    cost = sum(count * price for count, price in zip(tokens, endpoint.price, strict=True)) / 1e6
    asked = len(missing) - len(failed)
    report = replace(report, asked=asked, failed=(*failed,), dropped=(*dropped,), tokens=tokens, cost=cost)
    return made, report


class Answers:
    """A model's answers in a folder: files of JSON lines in the published form, each of them whole."""

    def __init__(self, folder: Storage, model: str) -> None:
        """Read the answers that are there and join their files."""
        self.known: dict[str, Variation] = {}
        self._folder, self._model, self._new = folder, model, list[Variation]()
        self._kept = time.monotonic()
        files = folder.list()
        for file in files:
            for line in folder.read(file).decode(errors="replace").splitlines():
                with suppress(ValueError, RecursionError, UserError):  # a broken line is asked for again
                    row = json.loads(line)
                    answer = variations.variation(row, file)
                    if answer.query and row.get("model") == model and variations.content(answer.response):
                        self.known[answer.query] = answer
        if len(files) > 1:
            self._write("answers.jsonl", self.known.values())
            for file in set(files) - {"answers.jsonl"}:
                folder.remove(file)

    def add(self, answer: Variation) -> None:
        """Take an answer, and write all new ones where the last writing was some seconds ago."""
        self.known[answer.query] = answer
        self._new.append(answer)
        if time.monotonic() - self._kept > KEPT_EVERY:
            self.keep()

    def keep(self) -> None:
        """Write the new answers."""
        if self._new:
            self._write(f"answers-{uuid.uuid4().hex}.jsonl", self._new)
        self._new, self._kept = [], time.monotonic()

    def tokens(self) -> tuple[int, int]:
        """Return the tokens read and written by all answers."""
        usages = [row.usage for row in self.known.values()]
        return (_sum(usages, "prompt_tokens"), _sum(usages, "completion_tokens"))

    def _write(self, file: str, rows: Iterable[Variation]) -> None:
        lines = (json.dumps({**asdict(row), "model": self._model}) for row in rows)
        self._folder.write(file, "".join(f"{line}\n" for line in lines))


def _sum(usages: Sequence[Mapping[str, Any]], key: str) -> int:
    counts = (usage.get(key) for usage in usages)
    return sum(count for count in counts if isinstance(count, int))


class Pace:
    """Lets threads start so many requests a minute, evenly."""

    def __init__(self, requests_per_minute: float) -> None:
        """Take the limit; 0 is none."""
        self._step = 60 / requests_per_minute if requests_per_minute else 0.0
        self._lock, self._next = threading.Lock(), 0.0

    def delay(self) -> float:
        """Take the next place, and return the seconds until it comes."""
        with self._lock:
            now = time.monotonic()
            start = max(now, self._next)
            self._next = start + self._step
            return start - now


def _results(endpoint: Endpoint, missing: Mapping[str, str]) -> Generator[tuple[str, Variation | str], None, None]:
    """Yield each query with its answer, or with why there is none, as they come.

    Raises:
        UserError: where no further request would succeed.
    """
    if not missing:
        return
    stop, pace, row = threading.Event(), Pace(endpoint.requests_per_minute), 0
    with _client(endpoint) as client, ThreadPoolExecutor(endpoint.concurrent) as threads:
        ahead, left = dict[Future[Variation | str], str](), iter(missing.items())
        try:
            while True:
                while len(ahead) < endpoint.concurrent and (item := next(left, None)) is not None:
                    ahead[threads.submit(_answer, client, endpoint, pace, stop, *item)] = item[0]
                if not ahead:
                    return
                for future in wait(ahead, return_when=FIRST_COMPLETED).done:
                    result = future.result()
                    row = row + 1 if isinstance(result, str) else 0
                    yield ahead.pop(future), result
                if row >= HOPELESS:
                    raise UserError(f"{endpoint.model}: {row} captions failed in a row, the last by: {result}")
        finally:
            stop.set()


def _client(endpoint: Endpoint) -> OpenAI:
    """Return the SDK's client. Its own retries are off: they would not keep the rate limit.

    Raises:
        UserError: where the SDK is missing, or the environment says neither key nor place.
    """
    try:
        from openai import OpenAI
    except ImportError as error:
        raise UserError("openai: not installed; pip install 'retable[audio]'") from error
    base_url, key = os.environ.get("OPENAI_BASE_URL", ""), os.environ.get("OPENAI_API_KEY", "")
    if not base_url and not key:
        raise UserError("OPENAI_API_KEY: not set; set it, or OPENAI_BASE_URL to a server of your own")
    if base_url and not base_url.startswith(("http://", "https://")):
        raise UserError(f"OPENAI_BASE_URL {base_url}: no web address; write http://HOST:PORT/v1")
    return OpenAI(base_url=base_url or None, api_key=key or "none", max_retries=0, timeout=endpoint.timeout)


def _answer(
    client: OpenAI, endpoint: Endpoint, pace: Pace, stop: threading.Event, query: str, caption: str
) -> Variation | str:
    """Ask until there is a usable answer; return it, or after the last try what there is, or why there is none.

    Raises:
        UserError: where no further request would succeed.
    """
    from openai import APIError

    answer: Variation | str = "not asked"
    pause = endpoint.pause
    for last in (*[False] * (endpoint.tries - 1), True):
        if stop.wait(pace.delay()):
            return "interrupted"
        wish = 0.0
        try:
            answer = _ask(client, endpoint.model, query, caption)
            if answer.variations:
                return answer
        except APIError as error:
            _check_hope(error, endpoint.model)
            if not isinstance(answer, Variation):
                answer = _reason(error)
            if getattr(error, "status_code", 500) in (400, 413, 422):
                return answer  # this caption is refused, whenever it comes
            wish = _wish(error)
            if last and type(error).__name__ == "APIConnectionError":
                raise UserError(f"{client.base_url}: cannot be reached ({_reason(error)}); run again later") from error
        if not last and stop.wait(max(wish, min(pause, LONGEST_PAUSE) * random.uniform(0.75, 1.25))):
            return "interrupted"
        pause *= 2
    if isinstance(answer, Variation) and not variations.content(answer.response):
        empty = f"an empty answer ({answer.finish_reason})" if answer.finish_reason else ""
        return empty or "the answers are no chat completions; check OPENAI_BASE_URL"  # not kept: asked again next time
    return answer


def _ask(client: OpenAI, model: str, query: str, caption: str) -> Variation:
    """Make one request. The answer is kept as it came; one that is no chat completion has no variations."""
    messages: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": query}]
    raw = client.chat.completions.with_raw_response.create(model=model, messages=messages)
    try:
        response = json.loads(raw.content)
    except (ValueError, RecursionError):
        response = None
    response = response if isinstance(response, dict) else {}
    choices = response.get("choices")
    first = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    reason, usage = str(first.get("finish_reason") or ""), response.get("usage")
    kept = parse(variations.content(response), caption, reason == "length").captions
    return Variation(0, "", caption, query, response, kept, reason, usage if isinstance(usage, dict) else {})


def _check_hope(error: Exception, model: str) -> None:
    """Raise UserError where an error will not go away by itself."""
    remedies = {
        401: "the key is refused; set OPENAI_API_KEY",
        403: "no permission; use a key that may ask this model",
        404: "no such model or address; check --model and OPENAI_BASE_URL (it often ends in /v1)",
    }
    status = getattr(error, "status_code", None)
    if status in remedies:
        raise UserError(f"{model}: {remedies[status]} ({_reason(error)})") from error
    if getattr(error, "code", None) == "insufficient_quota":
        raise UserError(f"{model}: the account has no credit left; add some and run again") from error


def _wish(error: Exception) -> float:
    """Return the seconds that the endpoint wants us to wait."""
    headers = getattr(getattr(error, "response", None), "headers", {})
    try:
        return min(max(float(headers.get("retry-after", 0)), 0.0), LONGEST_WISH)
    except ValueError:  # a date
        return 0.0


def _reason(error: Exception) -> str:
    """Return an error as one short line."""
    text = " ".join(f"{error} {error.__cause__ or ''}".split())[:160]
    return "".join(letter for letter in text if letter.isprintable())
