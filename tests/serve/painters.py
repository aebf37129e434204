"""What stands for the work of a process of its own, and imports little."""

import os
import shutil
import time

from retable.platform.errors import UserError


def quick(tell, source, target, order, storage, limits):
    """Copy what was sent: two steps."""
    tell((1, 2)), tell((2, 2))
    shutil.copyfile(source, target)
    return ("a note",)


def slow(tell, source, target, order, storage, limits):
    """Never end; leave a half-written file."""
    target.with_name(f".half{target.suffix}").write_bytes(b"half")
    for step in range(10_000):
        tell((step + 1, 20_000))
        time.sleep(0.01)


def wrong(tell, source, target, order, storage, limits):
    """Fail, in words that name a file."""
    raise UserError(f"{source}: no frame can be decoded")


def broken(tell, *given):
    raise RuntimeError("/secret/path")


def patient(tell, source, target, order, storage, limits):
    """Wait for a file beside the jobs."""
    while not (source.parents[1] / "go").exists():
        time.sleep(0.01)
    return quick(tell, source, target, order, storage, limits)


def ordered(tell, numbers):
    return sorted(numbers)


def refused(tell, text):
    raise UserError(text)


def killed(tell):
    os._exit(1)
