"""Policies: observations in, actions out, many requests in one pass of the networks."""

# No `from __future__ import annotations` in the modules of deployments; `app.py` says why.
import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32
from ray import serve

from retable.platform.models.export import kept
from retable.serve.deployments.episodes import Stage, weight
from retable.serve.deployments.served import Served, raised, together
from retable.serve.ingress.limits import LIMITS, Limits
from retable.serve.ingress.replies import Problem, Reply, json_reply, returns_problems, wrong
from retable.tasks.rl.answer import ROWS
from retable.tasks.rl.config import View
from retable.tasks.rl.export import Exported

Rows = Float32[np.ndarray, "rows width"]

BATCH, WAIT = 64, 0.002
"""Requests of one batch, and the seconds that the first of them waits for others."""
_SEEDS, _LARGEST = 2**63, float(np.finfo(np.float32).max)
"""Seeds are below the one, numbers of observations not beyond the other."""


@dataclass(frozen=True, eq=False)
class Question:
    """Observations that were checked, and the noise that their request's seed draws."""

    policy: Exported
    observations: Rows
    noise: torch.Tensor


def question(policy: Exported, body: bytes, limits: Limits = LIMITS) -> Question:
    """Read and check a request, so that nothing in it can fail a batch.

    Raises:
        Problem: which names the field, what was got and what is wanted.
    """
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Problem(400, "the body is no JSON") from error
    if not isinstance(fields, dict) or "observations" not in fields:
        raise wrong("observations", "nothing", "rows of numbers")
    if unknown := fields.keys() - {"observations", "seed"}:
        raise wrong(min(unknown), "a field that is unknown", "observations, and seed")
    seed = fields.get("seed", 0)
    if type(seed) is not int or not 0 <= seed < _SEEDS:
        raise wrong("seed", repr(seed)[:40], "a whole number from 0 to 2^63 - 1")
    rows = numbers(fields["observations"], int(policy.info["states"]), limits.observations)
    return Question(policy, rows, policy.noise(len(rows), View.samples, seed))


def numbers(value: object, width: int, most: int) -> Rows:
    """Return a list of lists as rows of so many finite float32, `most` of them at most.

    Every item is checked before NumPy gets it, which gives each the room of the longest word among them.

    Raises:
        Problem: where they are something else.
    """
    wanted = f"numbers of shape (rows, {width})"
    if not isinstance(value, list) or not all(isinstance(row, list) for row in value):
        raise wrong("observations", "no rows of numbers", wanted)
    if not 1 <= len(value) <= most:
        raise wrong("observations", f"{len(value)} rows", f"1 to {most}")
    widths = {len(row) for row in value}
    if widths != {width}:
        got = "rows of different lengths" if len(widths) > 1 else f"shape {(len(value), *widths)}"
        raise wrong("observations", got, wanted)
    if not all(type(number) in (int, float) for row in value for number in row):
        raise wrong("observations", "something else than numbers", wanted)
    if not all(abs(number) <= _LARGEST for row in value for number in row):
        raise wrong("observations", "numbers that are not finite in float32", wanted)
    return np.array(value, np.float32)


def answers(questions: Sequence[Question]) -> list[Rows | Exception]:
    """Return the actions of each question; those of one policy share its networks' passes."""
    return together(questions, actions, lambda request: request.policy, lambda request: len(request.observations), ROWS)


def actions(questions: Sequence[Question]) -> list[Rows]:
    """Return the actions of questions to one policy, in one pass of its networks."""
    rows = torch.from_numpy(np.concatenate([question.observations for question in questions]))
    with torch.inference_mode():
        chosen = questions[0].policy.act(rows, torch.cat([question.noise for question in questions])).numpy()
    ends = np.cumsum([len(question.observations) for question in questions])
    return np.split(chosen, ends[:-1])


class Policies(Served[Exported]):
    """Holds every policy that is served."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.stage = Stage()

    def probe(self, model: Exported) -> None:
        """Ask a policy for one action."""
        rows = np.zeros((1, int(model.info["states"])), np.float32)
        actions([Question(model, rows, model.noise(1, View.samples, 0))])

    @returns_problems
    async def act(self, sha256: str, body: bytes) -> Reply:
        """Choose actions for the observations in a body."""

        async def acted() -> Rows:
            asked = await asyncio.to_thread(question, await self.model(sha256), body)
            return raised(await self.batch(asked))

        rows = await self.line.run(acted)
        return json_reply({"actions": rows.tolist()})

    @returns_problems
    async def episode(self, sha256: str, seed: int, steps: int) -> Reply:
        """Play an episode, and tell how large the policy is that played it."""
        policy = await self.model(sha256)
        summary = await self.stage.play(policy, seed, steps)
        summary |= {**weight(policy), "bytes": len(await asyncio.to_thread(kept, self.task, sha256, self.storage))}
        return json_reply(summary)

    @serve.batch(max_batch_size=BATCH, batch_wait_timeout_s=WAIT)
    async def batch(self, questions: list[Question]) -> list[Rows | Exception]:
        """Answer questions together, in a thread, so that health checks are answered meanwhile."""
        return await asyncio.to_thread(answers, questions)
