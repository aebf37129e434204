"""In a terminal of 100 x 30 and in pipes: what is shown, and what Ctrl-C and SIGTERM leave behind."""

import io
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import ray
from rich.console import Console

from retable.platform import console as board
from retable.platform.config import override
from retable.platform.console import ProgressBoard
from retable.platform.execute import session
from retable.platform.execute.callback import TrialCallback
from retable.platform.spec.task import find
from retable.platform.store.run import RunFolder
from retable.platform.store.storage import Storage
from tests.terminal import CODES, PATIENCE, Terminal

COMMAND = (sys.executable, "-m", "retable.platform.cli")
SLOWLY = ("--set", "epochs=200", "--set", "pause=0.05")


@pytest.fixture(scope="module")
def address():
    """A running cluster: drivers that join it start quickly."""
    with session.ray_cluster():
        yield ray.get_runtime_context().gcs_address


@pytest.fixture
def typed(address):
    """Type a command into a terminal of its own."""
    opened = []

    def start(*words):
        opened.append(Terminal([*COMMAND, *words], RAY_ADDRESS=address))
        return opened[-1]

    yield start
    for terminal in opened:
        terminal.close()


def folder_of(storage, **changes):
    task = find("line")
    return RunFolder.of(Storage.open(storage), task, override(task.config(), changes))


def scratch(storage):
    return list(Path(storage).glob(".ray/*"))


@pytest.mark.parametrize(("command", "folder"), [(["no-such-command"], "."), (["true"], "/no/such/folder")])
def test_a_command_that_cannot_start_ends_and_no_copy_of_the_tests_goes_on(command, folder):
    status, said = Terminal(command, folder).end()
    assert status == 127 and "No such file or directory" in said[0]


@pytest.mark.slow
def test_a_training_in_a_terminal_is_interrupted(typed, tmp_path):
    terminal = typed("train", "line", "--storage", str(tmp_path), *SLOWLY)
    terminal.read(until=" of 200")
    terminal.press(b"\x03")
    terminal.press(b"\x03")
    status, lines = terminal.end()
    assert status == 130
    assert [line for line in lines if "interrupted" in line] == [session.INTERRUPTED]
    assert "Traceback" not in terminal.said and "Aborted" not in terminal.said
    drawn = [line for line in lines if "━" in line]
    assert any(line.startswith("training ") and "0 of 1 done" in line for line in drawn)
    assert max(len(line) for line in drawn if "^C" not in line) <= 100  # the terminal itself echoes the key
    folder = folder_of(tmp_path, epochs=200, pause=0.05)
    assert folder.checkpoints() and folder.result() is None and not scratch(tmp_path)


@pytest.mark.slow
def test_a_table_with_a_failure_in_a_terminal(typed, tmp_path):
    folder = folder_of(tmp_path, rate=0.001)
    folder.save_checkpoint(8, {"weights": {}, "progress": {}, "sums": {}})
    folder.folder.write("checkpoint-00000008/state.pt", b"garbage")
    terminal = typed("reproduce", "line/figure1", "--storage", str(tmp_path))
    status, lines = terminal.end()
    assert status == 2 and "Traceback" not in terminal.said and "RLock" not in terminal.said
    assert any(line.startswith("training: 3 done, 1 failed in ") for line in lines)
    assert sum(line.startswith("failed: line rate=0.001 [") for line in lines) == 1
    assert not scratch(tmp_path)


@pytest.mark.slow
def test_a_sweep_in_a_terminal(typed, tmp_path):
    terminal = typed("sweep", "line_grid", "--storage", str(tmp_path))
    status, lines = terminal.end()
    assert status == 0 and "winner: --set rate=0.1" in lines, terminal.said
    assert any(line.startswith("training: 2 done in ") for line in lines)


@pytest.mark.slow
def test_colours_in_a_pipe_are_no_terminal(address, tmp_path):
    """Programs that run others (CI, editors) ask for colours with FORCE_COLOR: still one line an event."""
    done = subprocess.run(
        [*COMMAND, "train", "line", "--storage", str(tmp_path)],
        env={**os.environ, "FORCE_COLOR": "1", "RAY_ADDRESS": address},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0 and not done.stderr
    assert all(code.endswith("m") for code in CODES.findall(done.stdout)), "colours only, no moves of the cursor"
    lines = CODES.sub("", done.stdout).splitlines()
    assert lines[0] == "training: 1 to do" and re.fullmatch(r"training: done 1/1: line  ?\[\w{8}\]", lines[1])


@pytest.mark.slow
def test_sigterm_does_what_ctrl_c_does(tmp_path):
    """Slurm, Kubernetes and spot machines send it; here Ray is the command's own, and must end with it."""
    arguments = [*COMMAND, "train", "line", "--storage", str(tmp_path), *SLOWLY]
    folder = folder_of(tmp_path, epochs=200, pause=0.05)
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as driver:
        end = time.monotonic() + PATIENCE
        while len(folder.history()) < 2:
            assert driver.poll() is None and time.monotonic() < end
            time.sleep(0.05)
        family = psutil.Process(driver.pid).children(recursive=True)
        assert any(process.name() == "raylet" for process in family)
        driver.send_signal(signal.SIGTERM)
        errors = driver.communicate(timeout=PATIENCE)[1]
    assert driver.returncode == 143
    assert errors.splitlines() == [session.INTERRUPTED]
    assert folder.checkpoints() and folder.result() is None and not scratch(tmp_path)
    assert not psutil.wait_procs(family, timeout=60)[1], "processes of Ray were left behind"


def test_a_second_signal_does_not_stop_what_cleans_up():
    numbers, cleaned = (signal.SIGINT, signal.SIGTERM), []
    before = [signal.signal(number, signal.default_int_handler) for number in numbers]
    for number, ending in ((signal.SIGTERM, SystemExit), (signal.SIGINT, KeyboardInterrupt)):
        with pytest.raises(ending) as ended, session.interruptible(), session.interruptible():
            try:
                signal.raise_signal(number)
            finally:
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGTERM)
                cleaned.append(number)
        assert number == signal.SIGINT or ended.value.code == 143
    assert cleaned == [signal.SIGTERM, signal.SIGINT]
    restored = [signal.signal(number, handler) for number, handler in zip(numbers, before, strict=True)]
    assert restored == [signal.default_int_handler] * 2


@pytest.fixture
def screen(monkeypatch):
    """A terminal whose clock the test sets."""
    now = [0.0]
    console = Console(
        file=io.StringIO(), width=100, height=30, force_terminal=True, soft_wrap=True, get_time=lambda: now[0]
    )
    console.now = now
    monkeypatch.setattr(board, "console", console)
    return console


def frame(shown, screen):
    """Draw a board once more and return its lines."""
    start = len(screen.file.getvalue())
    shown.bars.refresh()
    last = screen.file.getvalue()[start:].rpartition("\x1b[2K")[2]  # the board may have drawn itself meanwhile
    return CODES.sub("", last).replace("\r", "").splitlines()


def test_the_board_fits_a_small_terminal(screen):
    names = [f"line rate={number} {'long=1 ' * 15}[{number:08}]" for number in range(11)]
    with ProgressBoard("training, wave 1 of 2", 20).show() as shown:
        for name in names:
            shown.start(name)
        shown.update(names[1], "epoch 2 of 5", 2, 5)
        shown.done("another")
        shown.fail("a third", "why [not]")
        lines = frame(shown, screen)
    assert len(lines) == 10 and max(map(len, lines)) <= 100
    assert lines[0].startswith("training, wave 1 of 2, 1 failed ") and "1 of 20 done" in lines[0]
    assert all("…" in line and line.startswith(name[:30]) for line, name in zip(lines[1:9], names[:8], strict=True))
    assert "epoch 2 of 5" in lines[2] and lines[9] == "and 3 more"


def test_what_is_running_is_shown_as_it_is_called(screen):
    with ProgressBoard("training", 2).show() as shown:
        shown.start("line [93bc5ee1]")
        assert any(line.startswith("line [93bc5ee1] ") for line in frame(shown, screen))
        shown.stop("line [93bc5ee1]")
        assert not any("93bc5ee1" in line for line in frame(shown, screen))


def test_the_rest_is_weighed_by_cost(screen):
    screen.is_interactive = False
    with ProgressBoard("training", 3, weight=10).show() as shown:
        screen.now[0] = 10.0
        shown.done("small", 1.0)
        screen.now[0] = 20.0
        shown.done("large", 7.0)
        screen.now[0] = 30.0
        shown.done("last", 2.0)
    assert CODES.sub("", screen.file.getvalue()).splitlines() == [
        "training: 3 to do",
        "training: done 1/3: small, about 1 min 30 s left",
        "training: done 2/3: large, about 5 s left",
        "training: done 3/3: last",
        "training: 3 done in 30 s",
    ]


def test_what_ray_pickles_holds_no_board(screen):
    from ray import cloudpickle

    with ProgressBoard("training", 1).show() as shown:
        copy = cloudpickle.loads(cloudpickle.dumps(TrialCallback(shown, list).callback()))
    assert not vars(copy) and copy.on_trial_start(0, [], None) is None
