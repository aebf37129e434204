"""The least that Ray Serve takes for a request: an ingress that asks another deployment, which repeats the body.

`python -m benchmarks.serving_bare PORT` serves it until it is interrupted.
"""

# No `from __future__ import annotations` in the modules of deployments; `serve/ingress/app.py` says why.
import logging
import signal
import sys
from typing import Any

import ray
from fastapi import FastAPI, Request, Response
from ray import serve

APP = FastAPI()


@serve.deployment(max_ongoing_requests=128)
class Echo:
    """Repeats what it is given."""

    async def ask(self, body: bytes) -> bytes:
        """Return the body."""
        return body


@serve.deployment(max_ongoing_requests=512)
@serve.ingress(APP)
class Bare:
    """The deployment that HTTP reaches."""

    def __init__(self, echo: Any) -> None:
        self.echo = echo

    @APP.post("/")
    async def ask(self, request: Request) -> Response:
        """Return the body, once the other deployment has repeated it."""
        return Response(await self.echo.ask.remote(await request.body()))


if __name__ == "__main__":
    from retable.platform.execute import session  # its settings of Ray are ours

    with session.switches():
        ray.init(address="local", logging_level=logging.ERROR, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[1])})
    serve.run(Bare.bind(Echo.bind()), route_prefix="/", logging_config={"enable_access_log": False})
    print("is open", flush=True)
    signal.sigwait({signal.SIGINT, signal.SIGTERM})
    serve.shutdown()
    ray.shutdown()
