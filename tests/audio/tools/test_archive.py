"""An archive as one has it, and what befalls it: ESC-10's recordings and a file of three hours, by the commands."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from retable.platform.errors import UserError
from retable.platform.store.storage import Storage
from retable.tasks.audio.config import Config, MeanMel, Untrained
from retable.tasks.audio.export import Exported, write_adopted
from retable.tasks.audio.model import build
from retable.tasks.audio.tools.compose import clips
from retable.tasks.audio.tools.search.index import update
from retable.tasks.audio.tools.search.opening import open_embedder
from retable.tasks.audio.tools.search.search import open_index, query_vector, search

ROOT = Path(__file__).parents[3]
HOURS, RATE, SEGMENT = 3, 8000, 5.0
PLANTED = 2 * 3600 + 31 * 60 + 5.0
"""Second of the long file at which a recording begins that is nowhere else in it."""
GROWTH = 500.0
"""MB that an update may grow by: one of six minutes takes 216, and the long file's sound at 32 kHz is 1,382."""

COMMAND = """
import json, resource, sys
from retable.platform.cli.app import main
from retable.tasks.audio.collect import ffmpeg
from retable.tasks.audio.tools.search import index
frames, blocks, update = {}, ffmpeg.Sound.blocks, index.update

def counted(self, lost):
    for rate, block in blocks(self, lost):
        frames[str(self.path)] = frames.get(str(self.path), 0) + len(block)
        yield rate, block

def measured(*arguments, **named):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    made = update(*arguments, **named)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(json.dumps({"grown": grown / 1024, "frames": frames}), file=sys.stderr)
    return made

ffmpeg.Sound.blocks, index.update = counted, measured
main()
"""
"""The command, which also says by how many MB it grew and how often each file's sound was decoded."""


PLAIN = "from retable.platform.cli.app import main; main()"


def command(*words, code=COMMAND, **options):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": ROOT, **options}
    return subprocess.Popen([sys.executable, "-c", code, "audio", *map(str, words)], env=environment, **options)


def write_long(path, sounds, planted):
    """Write recordings one after the other over noise, minute by minute, and one at its second; memory stays flat."""
    draw = np.random.default_rng(0)
    with soundfile.SoundFile(path, "w", RATE, 1, format="FLAC") as file:
        for minute in range(60 * HOURS):
            block = draw.normal(0, 0.003, 60 * RATE)
            for place in range(0, 60, 10):  # every other five seconds
                sound = sounds[(6 * minute + place // 10) % len(sounds)]
                block[place * RATE : place * RATE + len(sound)] += sound
            first = round((PLANTED - 60 * minute) * RATE)
            if 0 <= first < len(block):
                block[first : first + len(planted)] = planted
            file.write(np.clip(block, -1, 1))


def heard(clip):
    """Return a recording at the long file's rate, in the shape that the file has it."""
    import soxr

    sound, rate = soundfile.read(clip.path, dtype="float32", always_2d=True)
    return soxr.resample(sound.mean(1), rate, RATE)[: round(SEGMENT * RATE)]


def nearest(out, embedder, like, top=3):
    found = search(open_index(out), query_vector(embedder, "", like), top)
    return [(hit.file, hit.offset, hit.also) for hit in found]


def updated_beside_a_shell(shell, archive, out, embedder, query, long):
    """Update an index while a shell searches it: kill that, then do it to the end."""
    before = nearest(out, embedder, query)
    assert all(file.startswith("esc10/") for file, *_ in before)

    def ask():
        shell.stdin.write("a dog barks\n")
        shell.stdin.flush()
        lines = []
        while (line := shell.stdout.readline()).strip():
            lines.append(line)
        return lines

    assert "40 recordings" in shell.stdout.readline()
    answer = ask()
    assert "esc10/" in answer[-1]

    # One shell searches while another updates; a third, which would write, is told who does; the update is killed.
    updating = command("index", archive, "--out", out)
    while not (out / ".lock").read_text().startswith(f"process {updating.pid} "):
        assert updating.poll() is None, updating.stderr.read()
        time.sleep(0.05)
    assert ask() == answer and nearest(out, embedder, query) == before
    with pytest.raises(UserError, match=f"process {updating.pid} of .* writes it; try again when that is done"):
        update(archive, out, embedder)
    assert updating.poll() is None
    updating.send_signal(signal.SIGKILL)
    updating.communicate()
    assert ask() == answer and nearest(out, embedder, query) == before

    # Once more, to the end.
    said, remarks = (again := command("index", archive, "--out", out)).communicate()
    assert again.returncode == 0, remarks
    measured = json.loads(next(line for line in remarks.splitlines() if line.startswith("{")))
    print(f"grown by {measured['grown']:.0f} MB")
    assert "1 embedded" in said and measured["grown"] < GROWTH
    assert measured["frames"] == {str(long): HOURS * 3600 * RATE}  # once, and no other file
    assert nearest(out, embedder, query, 1) == [("three hours.flac", PLANTED, ())]
    assert ask()  # it sees the new index


@pytest.mark.slow
def test_an_archive_with_a_file_of_three_hours(tmp_path, shared):
    known = clips(shared / "data/audio/esc10")
    archive, out, model = tmp_path / "archive", tmp_path / "my.index", tmp_path / "model.safetensors"
    (archive / "esc10").mkdir(parents=True)
    for clip in known[:40]:
        shutil.copy(clip.path, archive / "esc10" / clip.path.name)
    config = Config(audio=MeanMel(), text=Untrained(width=16, depth=1, heads=2, vocabulary=330), segment=SEGMENT)
    torch.manual_seed(0)
    weights = build(config, ["a dog barks", "rain falls"], None).state_dict()
    model.write_bytes(write_adopted(Exported({}, config, weights, "x")))
    embedder = open_embedder(str(model), Storage.open(tmp_path), "cpu")
    update(archive, out, embedder)
    long, query = archive / "three hours.flac", tmp_path / "query.wav"
    planted = heard(known[60])
    soundfile.write(query, planted, RATE)
    write_long(long, [heard(clip) for clip in known[40:60]], planted)
    with command("shell", "--index", out, "--top", 3, code=PLAIN, stdin=subprocess.PIPE) as shell:
        updated_beside_a_shell(shell, archive, out, embedder, query, long)

    # The folder moves, a file is called otherwise, and another one lies there twice.
    moved = tmp_path / "elsewhere/archive"
    moved.parent.mkdir()
    archive.rename(moved)
    (moved / "three hours.flac").rename(moved / "esc10/night.flac")
    shutil.copy(moved / "esc10" / known[0].path.name, moved / "copy.ogg")
    made = update(moved, out, embedder)
    assert (made.added, made.info["files"], made.info["recordings"]) == (0, 42, 41)
    assert nearest(out, embedder, query, 1) == [("esc10/night.flac", PLANTED, ())]
    twice = nearest(out, embedder, known[0].path, 1)
    assert twice == [("copy.ogg", 0.0, (f"esc10/{known[0].path.name}",))]
