"""Functions in child processes: what they import and read is released with the process."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from retable.platform.errors import UserError

_DAY = 86_400.0
FAULT = "a fault of the server's; its log says more"


class ProgressProcess:
    """A function in a child process, started when the object is made, that reports its progress.

    Its first argument is a function that sends one picklable value. The child ends with its parent, however that ends,
    and can be killed at any moment: it holds nothing but its files.
    """

    def __init__(self, function: Callable[..., object], *arguments: object, nice: int = 0) -> None:
        """Start the child; the function gets a progress callback, then the arguments. All can be pickled."""
        self.result: Any = None
        """Return value of the function, once it has returned."""
        context = multiprocessing.get_context("spawn")
        self._told, telling = context.Pipe(duplex=False)
        self.process = context.Process(target=_tell, args=(telling, nice, function, arguments), daemon=True)
        self.process.start()
        telling.close()

    def progress(self, seconds: float) -> Iterator[Any]:
        """Yield the reported progress until the function returns; the child has ended afterwards.

        Raises:
            UserError: as the function does, or where its process has died, or takes longer than so many seconds.
        """
        end = time.monotonic() + seconds
        try:
            while self._told.poll(max(0.0, end - time.monotonic())):
                last, value = self._told.recv()
                if isinstance(value, UserError):
                    raise value
                if last:
                    self.result = value
                    return
                yield value
            raise UserError(f"it took longer than {seconds:g} s")
        except (EOFError, OSError) as error:
            raise UserError("a process of the server's was ended; is the memory full?") from error
        finally:
            self.process.kill()
            self.process.join()
            self._told.close()

    def wait(self, seconds: float = _DAY) -> Any:
        """Return what the function returns; its progress is dropped.

        Raises:
            UserError: as `progress` does.
        """
        deque(self.progress(seconds))
        return self.result


def _tell(telling: Connection, nice: int, function: Callable[..., object], arguments: tuple[object, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(multiprocessing.parent_process(),), daemon=True).start()
    os.nice(nice)
    try:
        answer = function(lambda value: telling.send((False, value)), *arguments)
    except UserError as error:
        answer = UserError(str(error))
    except Exception:
        traceback.print_exc()  # for the log
        answer = UserError(FAULT)
    telling.send((True, answer))


def _end_with(parent: BaseProcess) -> None:
    """End this process when its parent has ended, even if that was killed."""
    parent.join()
    os._exit(1)
