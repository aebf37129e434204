"""The application with toy answers behind a real port, without Ray: what a browser is pointed at."""

import asyncio
import io
import json
import threading
import time
import wave
from contextlib import contextmanager

import numpy as np
import uvicorn
from PIL import Image, ImageOps

from retable.platform.report.results import Cell, FilledClaim, FilledColumn, FilledReplicate, FilledRow, FilledTable
from retable.platform.spec.table import Origin
from retable.platform.store.storage import Storage
from retable.serve.deployments import maps
from retable.serve.ingress import app, middleware
from retable.serve.ingress.limits import LIMITS
from retable.serve.ingress.replies import Problem, Reply, span
from retable.serve.ingress.routes.weather import EXAMPLE
from retable.serve.launch.models import Model

HOSTILE = "<img src=x onerror=alert(1)>"
RUN = "0123456789abcdef"
WEATHER = {"size": 36, "regions": ["boxi_0015", "roxi_0004"], "fingerprint": RUN}
MODELS = [
    Model(task="style", name="great_wave", sha256="1" * 64, why="from the zoo"),
    Model(task="style", name=HOSTILE, sha256="2" * 64, why=HOSTILE),
    Model(task="audio", name="toy", sha256="3" * 64),
    Model(task="weather", name="toy", sha256="4" * 64, about=WEATHER),
    Model(task="rl", name="Toy", variant="dense", sha256="5" * 64),
    Model(task="rl", name="Toy", variant="snip-95", sha256="6" * 64),
    Model(task="fifth", name="toy", sha256="7" * 64, about={"files": [".png", ".txt"]}),
]


def steps():
    """Return a forecast that is right at the first lead time, and has too much rain at the others."""
    with np.load(EXAMPLE, allow_pickle=False) as arrays:
        truth = arrays["truth"]
    wet = truth == 1
    wet[1:, :, :9] = True
    return np.where(wet, 160, 20).astype(np.uint8), truth


def episode(seed, count, sparse):
    """Return an episode of two bodies that move on, the sparse policy's twice as fast."""
    frames = [[100 * i * (1 + sparse), 300, 100 * i * (1 + sparse) + 400, 500, 0, 100, 0, 100] for i in range(count)]
    told = {"environment": "Toy-v0", "seed": seed, "steps": count, "end": "steps", "return": 1.5 * count}
    told |= {"rewards": [1.5] * count, "plane": "xz", "ground": 0, "every": 1, "seconds_per_step": 0.02}
    told |= {"bodies": [{"radius": 50, "round": True}, {"radius": 80, "round": False}], "frames": frames}
    return told | {"weights": 50 if sparse else 1000, "weights_of": 1000, "bytes": 900 if sparse else 4000}


def sound():
    """Return two seconds of a tone, WAV."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1), out.setsampwidth(2), out.setframerate(8000)
        out.writeframes((3000 * np.sin(np.arange(16000) / 3)).astype("<i2").tobytes())
    return file.getvalue()


def painted(body):
    """Return a picture with its colours inverted, PNG."""
    file = io.BytesIO()
    ImageOps.invert(Image.open(io.BytesIO(body)).convert("RGB")).save(file, "PNG")
    return file.getvalue()


async def ask(task, method, *arguments):
    """Answer as the deployments would."""
    if task == "style":
        return Reply(painted(arguments[1]), "image/png")
    if task == "fifth":
        _, name, settings, body = arguments
        kind = "png" if name.endswith(".png") else "json"
        told = painted(body) if kind == "png" else json.dumps({"read": body.decode(), "set": [*settings]}).encode()
        media = {"png": "image/png", "json": "application/json"}[kind]
        return Reply(told, media, headers=(("Content-Disposition", f'inline; filename="answer.{kind}"'),))
    if method == "search":
        hits = [{"id": f"{i}", "file": f"{HOSTILE} {i}.wav", "score": 0.5 - i / 10, "offset": 1.0} for i in range(3)]
        return (
            Reply(json.dumps({"hits": hits}).encode(), "application/json")
            if arguments[1] != "?"
            else Problem(422, "no words")
        )
    if method == "recording":
        start, stop = span(arguments[2], len(sound()), 1 << 20)
        return Reply(sound()[start:stop], "audio/wav", 206 if arguments[2] else 200)
    if task == "weather":
        return Reply(maps.packed(steps()[0]), "application/x-npz")
    await asyncio.sleep(0.05)
    told = episode(arguments[1], arguments[2], arguments[0] == "6" * 64)
    return Reply(json.dumps(told).encode(), "application/json")


def table(name="weather/table1", scale="smoke", run=RUN, **entries):
    """Return a filled table of a row that a served run is behind, one that was not run, and three claims."""
    origin = Origin("joined", {}, "", (Origin(run, {}),))
    row = FilledRow(
        f"U-Net {HOSTILE}",
        "",
        (FilledReplicate({"seed": 0}, origin, ("retable train /secret/place",), {}),),
        (Cell((0.25,), 0.2, comparable=True),),
    )
    absent = FilledRow("half precision", "needs a GPU", (), (Cell((), 0.3),))
    claims = [("It is better.", "holds"), (HOSTILE, "does not hold"), ("It is fast.", "not tested at this scale")]
    values = {
        "title": "IoU on the test set",
        "scale_about": "proves the path",
        "changes": {},
        "figure": False,
        "columns": (FilledColumn("IoU", ".3f"),),
        "rows": (row, absent),
        "claims": tuple(FilledClaim(text, place == 2, status, "0.05") for place, (text, status) in enumerate(claims)),
        "axes": {"seed": (0,)},
        "data": ("generated rain",),
        "note": "",
        "runs": {run: {"provenance": {"command": "retable --storage /secret/place", "host": "secret"}}},
    }
    return FilledTable(name=name, scale=scale, **(values | entries))


def keep(storage, part, slug, picture=b""):
    """Keep a filled table as a report does."""
    storage.write_json(f"report/{slug}.json", {"code": "", "inputs": {}, "complete": True, "table": part.as_json()})
    if picture:
        storage.write(f"report/{slug}.png", picture)


def application(models=MODELS, asked=ask, token="", storage=None):
    """Return the application of models whose deployments answer by `asked`."""
    return middleware.SecurityMiddleware(app.routes_of(models, asked, LIMITS, storage), token, (), lambda *of: None)


@contextmanager
def served(folder, token="", prefix=""):
    """Serve it while the block runs, below a prefix as Serve does; give the address."""
    storage = Storage.open(folder)
    keep(storage, table(caution="Generated rain."), "weather-table1-smoke")
    keep(
        storage, table("weather/figure1", figure=True, columns=()), "weather-figure1-smoke", painted(example_picture())
    )
    made = application(token=token, storage=storage)

    def below(scope, receive, send):
        return made({**scope, "root_path": prefix}, receive, send)

    config = uvicorn.Config(below, port=0, log_level="error", interface="asgi3", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}{prefix}"
    finally:
        server.should_exit = True
        thread.join()


def example_picture():
    """Return a small photograph, PNG."""
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (60, 80, 3), np.uint8)).save(file, "PNG")
    return file.getvalue()
