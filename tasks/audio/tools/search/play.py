"""Plays the seconds of a hit, by whichever player the machine has."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

import soundfile

from retable.platform.errors import UserError
from retable.tasks.audio.collect.files import decode
from retable.tasks.audio.config import SAMPLE_RATE
from retable.tasks.audio.tools.search.search import Hit, Index

PLAYERS = (("ffplay", "-autoexit", "-nodisp", "-loglevel", "error"), ("aplay", "-q"), ("afplay",))
"""Of FFmpeg, ALSA and macOS, with what makes them play a file, end and say nothing."""


def play(index: Index, hit: Hit) -> None:
    """Play the segment for which a recording was found, from the second at which it begins.

    Raises:
        UserError: where the machine has no player, or the recording is not there any more or cannot be read.
    """
    command = next((player for player in PLAYERS if shutil.which(player[0])), None)
    if command is None:
        names = ", ".join(player[0] for player in PLAYERS)
        raise UserError(f"no player is there ({names}); install FFmpeg, or write a page with players: --page hits.html")
    samples = decode(index.folder / hit.file, hit.offset, float(index.info["segment"]))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "hit.wav"
        soundfile.write(path, samples, SAMPLE_RATE)
        subprocess.run([*command, str(path)], check=False)
