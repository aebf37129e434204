"""README, docs and the pages for maintainers, executed: each command in a terminal, as a reader meets it.

Everything lies in `build/docs-check`, so an interrupted check goes on. What takes hours is run at the smallest scale;
what asks for machines of one's own is skipped, with the reason.
"""

import os
import re
import shutil
import sys
import time
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import retable
from retable.serve.client import Client
from retable.tasks.style.files import assets, generate
from tests import documents
from tests.terminal import Terminal

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "docs-check"
STORAGE = FOLDER / "results"
RECORDINGS = ROOT / "tasks" / "audio" / "zoo" / "recordings"
HOURS = 3600
ELSEWHERE = {
    r"make ": "is what checks a fresh clone",
    r"(pip|aws|helm|docker|kubectl|sed) ": "asks for accounts, images or a cluster of one's own",
    r"(sbatch|scancel|tail) ": "asks for Slurm; tests/test_slurm.py runs the same script by a small one",
    r"ray (up|dashboard|down|start|stop|job|get-auth-token)": "acts on machines; "
    "tests/platform/execute/test_jobs.py and tests/platform/execute/test_session.py do the same on this one",
    r"RAY_ADDRESS=HEAD": "asks for a cluster",
    r"serve (run|deploy)": "serves until it is stopped; tests/serve/test_application.py reads the same file",
    r"tensorboard ": "serves until it is stopped; tests/platform/train/test_trackers.py reads what it would show",
    r".*(s3://|JOB|submit --list)": "asks for a bucket and a cluster; tests/platform/execute/test_jobs.py has both",
    r"export (RAY|RETABLE_TASKS)": "is set where it is wanted",
    r"curl .*/my_paper/": "asks a server of one's own task; tests/serve/test_answers.py asks its deployment",
    r"RETABLE_TOKEN|curl -H": "opens a port to others; tests/serve/test_middleware.py asks with and without the token",
    r"retable data fetch \w+ \w": "downloads from others' servers; tests/test_fetch.py has a server of its own",
    r"retable style image .*--style (my_)?painting.jpg": "makes 300 evaluations of 512 pixels: minutes",
    r"retable status --watch": "watches until it is stopped; tests/platform/store/test_query.py looks at its table",
    r"retable (sweep (style|audio\w*|weather_\w+|rl_\w+ --scale small))$": "trains dozens of runs; "
    "tests/platform/execute/test_sweep.py sweeps",
    r"python (docs/|-m docs\.)": "writes pages of the documents; tests/test_documents.py compares them",
    r"(git|gh|grep|rm|\(cd) |python -m (pip|venv) ": "is a step of a release, which changes the repository or its host",
}
"""What is not run, and why."""
CHEAPER = {
    r"--scale (small|paper)": "--scale smoke",
    r"--output docs/results/\S+": "--output report",
    r"retable sweep rl$": "retable sweep rl --scale smoke",
    r"--gpus-per-run \S+": "",
    r"--samples 50": "--samples 2",
    r"--epochs 1,5,10": "--epochs 1",
    r"--workers 2": "",
    r"--set epochs=20": "--set epochs=2",
    r"(audio finetune .*)": r"\1 --set epochs=1",
    r"(style learn .*)": r"\1 --steps 20",
    r"(audio index .* --model FINGERPRINT)": r"\1 --anyway",
    r'style=\["sunflowers"\]': 'style=["great_wave"]',
}
"""What is run instead of what takes hours; a plan of it takes seconds, and stays."""
done: dict[str, str] = {}
"""What commands said that later ones need: the identity of a job."""


def recordings(folder):
    """Put the shipped recordings into a folder, and beside it their captions."""
    shutil.copytree(RECORDINGS, folder, dirs_exist_ok=True)
    names = sorted(file.name for file in folder.glob("*.ogg"))
    return "file,caption\n" + "".join(f"{name},the sound of a {name.partition('-')[0]}\n" for name in names)


@pytest.fixture(scope="module", autouse=True)
def desk():
    """A folder with what the commands name: photographs, videos, recordings, files of numbers and tables.

    What the last check left is removed, but for the runs and data sets that take long to make.
    """
    FOLDER.mkdir(parents=True, exist_ok=True)
    made = [path for path in FOLDER.iterdir() if path != STORAGE and path.is_dir() and not path.is_symlink()]
    for path in [*made, *STORAGE.glob("data/weather/opera*"), *STORAGE.glob("data/weather/imported*")]:
        shutil.rmtree(path)
    for path in FOLDER.iterdir():
        if path.is_file():
            path.unlink()
    pictures = assets.photographs() | assets.paintings()
    for folder in ("holiday", "home/Pictures"):
        (FOLDER / folder).mkdir(parents=True, exist_ok=True)
    for name in ("coffee", "mountain"):
        shutil.copy(pictures[name], FOLDER / "holiday")
    for number in range(16):
        Image.fromarray(generate.landscape(0, 0, number)).save(FOLDER / "home" / "Pictures" / f"{number}.png")
    for name in ("cluster.yaml", "prices.toml", "docs", "serve"):
        if not (FOLDER / name).exists():
            (FOLDER / name).symlink_to(ROOT / name)
    for name, picture in {"lake": "mountain", "photograph": "coffee", "painting": "the_scream"}.items():
        shutil.copy(pictures[picture], FOLDER / f"{name}.jpg")
    shutil.copy(FOLDER / "painting.jpg", FOLDER / "my_painting.jpg")
    Image.linear_gradient("L").save(FOLDER / "sky.png")
    for name in ("in", "holiday"):
        (FOLDER / f"{name}.mp4").write_bytes(generate.clip(0))
    captions = recordings(FOLDER / "home" / "Sounds")
    (FOLDER / "sounds.csv").write_text(recordings(FOLDER) and captions)
    (FOLDER / "retrieval_captions.csv").write_text("caption\na dog barks\nrain falls\n")
    recordings(FOLDER / "retrieval_audio")
    shutil.copy(next(RECORDINGS.glob("dog*")), FOLDER / "bark.ogg")
    (FOLDER / "my.py").write_text(documents.python_blocks("docs/sweeps.md")[0])
    page = (ROOT / "docs" / "extending.md").read_text()
    (FOLDER / "published.csv").write_text(next(m["text"] for m in documents.BLOCK.finditer(page) if "," in m["text"]))
    (FOLDER / "points.csv").write_text("0.1,0.2\n0.9,0.9\n")
    (FOLDER / "observations").mkdir(exist_ok=True)
    np.save(FOLDER / "observations" / "some.npy", np.zeros((5, 17), np.float32))
    if shared := os.environ.get("RETABLE_SHARED"):
        for name in ("weather/opera_20180824", "audio/esc10"):
            if not (FOLDER / Path(name).name).exists():
                (FOLDER / Path(name).name).symlink_to(Path(shared) / "data" / name)


@pytest.fixture(scope="module")
def server():
    """The models that come with the tasks, served."""
    terminal = Terminal([sys.executable, "-m", "retable.platform.cli", "serve", "--zoo"], FOLDER, **variables())
    terminal.read("Prometheus")
    yield
    terminal.press(b"\x03")
    terminal.end()
    terminal.close()


def variables():
    """Return what the commands find in their environment."""
    return {
        "HOME": str(FOLDER / "home"),
        "RETABLE_STORAGE": str(STORAGE),
        "RETABLE_TASKS": str(FOLDER / "papers") if (FOLDER / "papers").exists() else "",
        "PYTHONPATH": str(ROOT),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }


@cache
def newest(task):
    """Return the newest finished run of a task; of style, a network."""
    where = ["method=train_network"] if task == "style" else None
    return retable.runs(task, where=where, state=["finished"], storage=STORAGE)[0].run


def words_of(line):
    """Return the words that are typed: with a run, a job and a folder that are there, at the smallest scale."""
    text = line.text
    if not text.startswith("retable plan"):
        for pattern, instead in CHEAPER.items():
            text = re.sub(pattern, instead, text)
    if "--run latest" in text:  # the newest is of the paper of one's own, which no server knows
        text = text.replace("latest", newest("rl"))
    if "FINGERPRINT" in text:
        named = re.match(r"retable predict (my_\w+)", text)
        text = text.replace("FINGERPRINT", newest(named[1] if named else Path(line.page).stem.partition("_")[0]))
    text = (
        text.replace("other/results", str(STORAGE))
        .replace("jobs/ID", f"jobs/{done.get('id', '')}")
        .replace("~", str(FOLDER / "home"))
    )
    return documents.Line(line.page, text).words


def painted(job):
    """Wait until the server has made a video."""
    end = time.monotonic() + HOURS
    while Client("http://127.0.0.1:8000").job(job)["state"] in ("queued", "running"):
        assert time.monotonic() < end
        time.sleep(1)


ONCE = [
    line for number, line in enumerate(documents.ALL) if line.text not in {each.text for each in documents.ALL[:number]}
]
"""Each command where it stands first: a second time it would find what it writes."""


@pytest.mark.parametrize("line", ONCE, ids=str)
def test_it_does_what_it_says(line, request):
    for pattern, why in ELSEWHERE.items():
        if re.match(pattern, line.text):
            pytest.skip(f"{line.text}: {why}")
    if re.search("opera|esc10|data=scenes", line.text) and "RETABLE_SHARED" not in os.environ:
        pytest.skip("RETABLE_SHARED names no folder with rain composites and recordings")
    words = words_of(line)
    if words[:2] == ["retable", "predict"]:  # with other options than on another page
        shutil.rmtree(FOLDER / words[-1], ignore_errors=True)
    if words[:2] == ["retable", "new"]:  # on two pages
        shutil.rmtree(FOLDER / "papers", ignore_errors=True)
    if words[0] == "curl":
        request.getfixturevalue("server")
        if line.text.count("/ID/file"):
            painted(done["id"])
        words = ["curl", "--silent", "--show-error", "--fail-with-body", *words[1:]]
    if words[0] == "retable":
        words = [sys.executable, "-m", "retable.platform.cli", *words[1:]]
    terminal = Terminal(words, FOLDER, HOURS, **variables())
    try:
        if words[3:4] == ["serve"] and "--config-out" not in words:
            terminal.read("Prometheus")
            terminal.press(b"\x03")
        status, shown = terminal.end()
    finally:
        terminal.close()
    text = "\n".join(shown)
    assert status in ((0, 130) if words[3:4] == ["serve"] else (0,)), text[-3000:]
    assert "Traceback" not in text, text[-3000:]
    if found := re.search(r'"id": ?"([\w-]+)", ?"state"', text):
        done["id"] = found[1]
    if line.text.startswith("retable"):
        newest.cache_clear()
