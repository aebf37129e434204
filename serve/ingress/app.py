"""The HTTP ingress: middleware and routes, without model code and without a GPU."""

# No `from __future__ import annotations` in modules of routes and deployments: FastAPI reads the annotations of routes
# when it is given them, and would take `request: Request`, were it a text that it cannot resolve under Serve's ingress,
# for a query parameter. Each call would then be answered with 422.
import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from ray import serve
from ray.exceptions import RayActorError
from ray.serve.exceptions import BackPressureError
from ray.serve.handle import DeploymentHandle
from starlette.exceptions import HTTPException
from starlette.routing import Match
from starlette.types import ASGIApp

from retable.platform.errors import UserError
from retable.platform.store.storage import Storage
from retable.serve.ingress import openapi
from retable.serve.ingress.limits import Limits
from retable.serve.ingress.metrics import Metrics
from retable.serve.ingress.middleware import Ask, BodyReader, SecurityMiddleware, respond
from retable.serve.ingress.replies import Problem, Reply, wrong
from retable.serve.ingress.routes import answers, audio, facts, rl, style, tables, weather
from retable.serve.launch.models import Model, by_task, models_of

_ROUTES = {"rl": rl, "style": style, "audio": audio, "weather": weather}
"""Task -> its routes; every other task has those of `answers`."""
TRIES = 4
"""How often a deployment is asked whose replica died: every request can be answered twice without harm."""
PAUSE = 1.0
"""Seconds after which models that are new, and do not answer, are asked a second time; ever longer then."""


@serve.ingress()
class Ingress:
    """The deployment that HTTP reaches."""

    def __init__(
        self,
        handles: dict[str, DeploymentHandle[object]],
        token: str,
        hosts: Sequence[str],
        limits: Limits,
        storage: Storage | None = None,
    ) -> None:
        self.handles, self.limits, self.storage = handles, limits, storage
        self.metrics = Metrics()
        self.models: dict[str, Sequence[Model]] = {}
        """Those that are served, by task."""
        self.bodies = BodyReader(limits)
        routes = routes_of([], self.ask, limits, storage, self.bodies)
        self.gate = SecurityMiddleware(routes, token, hosts, self.metrics.answered, limits)

    def __serve_build_asgi_app__(self) -> ASGIApp:
        """Return the application; Serve asks for it once the handles are here."""
        return self.gate

    async def reconfigure(self, config: Mapping[str, object]) -> None:
        """Serve the models that Serve's `user_config` names; what was begun is answered by those that it asked for.

        Raises:
            UserError: where `user_config` is none, or names a model of a task that has no deployment here.
        """
        models = by_task(models_of(config))
        if others := models.keys() - self.handles.keys():
            raise UserError(f"user_config: a model of {min(others)}, which is not among the `tasks` of `args`")
        self.models = {task: own for task, own in self.models.items() if task in models}
        self.publish()
        await asyncio.gather(*(self.renew(task, own) for task, own in models.items()))

    async def renew(self, task: str, models: Sequence[Model]) -> None:
        """Serve these models of a task once they answer; until then, and where they do not, those before."""
        problem = None
        for attempt in range(TRIES if task in self.models else 0):  # at the start nothing answers yet
            if not (problem := await facts.unready(models, self.ask, self.limits.seconds)):
                break
            await asyncio.sleep(PAUSE * 2**attempt)
        if problem:
            logging.getLogger("ray.serve").error("%s: the models stay as they were: %s", task, problem.detail)
            return
        self.models[task] = models
        self.publish()

    def publish(self) -> None:
        """Answer new requests by `models`; the bodies of those before count on."""
        served = list(chain.from_iterable(self.models.values()))
        self.gate.app = routes_of(served, self.ask, self.limits, self.storage, self.bodies)
        self.metrics.serve(served)

    async def answering(self) -> set[str]:
        """Return the digests of the models that are served."""
        return {model.sha256 for own in self.models.values() for model in own}

    async def drain(self, seconds: float) -> int:
        """Refuse new requests, and wait for the open ones; return how many are left."""
        self.gate.closing = True
        end = time.monotonic() + seconds
        while self.gate.busy and time.monotonic() < end:
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.2)  # the proxy has the last answer, and still sends it
        return self.gate.busy

    async def ask(self, task: str, method: str, *arguments: object) -> Reply | Problem:
        """Call a deployment; retry if its replica died; never longer than the limit.

        Raises:
            Problem: where it has too much to do, or does not come back.
        """
        try:
            async with asyncio.timeout(self.limits.seconds):
                for attempt in range(TRIES):
                    response = getattr(self.handles[task], method).remote(*arguments)
                    try:
                        answer: Reply | Problem = await response
                        return answer
                    except asyncio.CancelledError:
                        response.cancel()
                        raise
                    except RayActorError:
                        await asyncio.sleep(0.2 * 2**attempt)
        except BackPressureError as error:
            raise Problem(503, f"{task} has more to do than it can; try again in a moment", wait=1) from error
        except TimeoutError as error:
            raise Problem(503, f"no answer within {self.limits.seconds:g} s; ask for less at once", wait=10) from error
        raise Problem(503, f"{task} is starting again; try again in a moment", wait=5)


def routes_for(task: str) -> Any:
    """Return the module that adds a task's routes, and says how to ask a model by `curl`."""
    return _ROUTES.get(task, answers)


def routes_of(
    models: Sequence[Model],
    ask: Ask,
    limits: Limits,
    storage: Storage | None = None,
    bodies: BodyReader | None = None,
) -> FastAPI:
    """Return what is behind the gate: the routes of models, and the result tables of a storage, where one is named."""
    app = openapi.Documented(
        title="retable",
        version="1",
        docs_url=None,
        redoc_url=None,
        responses={"default": openapi.REFUSED},
        exception_handlers={
            Problem: _refused,
            HTTPException: _http_problem,
            RequestValidationError: _invalid,
            Exception: _fault,
        },
    )
    bodies = bodies or BodyReader(limits)
    facts.add(app, models, ask, limits)
    tables.add(app, models, storage)
    for task, own in by_task(models).items():
        routes_for(task).add(app, own, ask, bodies)
    return app


async def _refused(request: Request, problem: Any) -> Response:
    return respond(problem)


async def _http_problem(request: Request, error: Any) -> Response:
    texts = {404: "there is nothing here; GET /v1/models says what is served", 405: f"{request.method} is not for this"}
    problem = Problem(error.status_code, texts.get(error.status_code, str(error.detail)))
    if error.status_code == 405:  # Starlette names the methods of one route, and a path has several
        routes = [route for route in request.app.routes if route.matches(request.scope)[0] != Match.NONE]
        methods = {method for route in routes for method in route.methods}
        problem.headers["Allow"] = ", ".join(sorted(methods | ({"HEAD"} if "GET" in methods else set())))
    return respond(problem)


async def _invalid(request: Request, error: Any) -> Response:
    first = error.errors()[0]
    return respond(wrong(str(first["loc"][-1]), repr(first.get("input")), first["msg"].lower()))


async def _fault(request: Request, error: object) -> Response:
    return respond(Problem(500, "a fault of the server's; its log has it under the request's id"))
