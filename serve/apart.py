"""A function in a process of its own: what it imports and reads is gone with the process."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Generic, TypeVar

from retable.platform.errors import UserError

T = TypeVar("T")


class Apart(Generic[T]):
    """A call in a process of its own, begun when it is made."""

    def __init__(self, function: Callable[..., T], *arguments: Any) -> None:
        """Begin. The function and its arguments can be pickled."""
        context = multiprocessing.get_context("spawn")
        self._answer, sending = context.Pipe(duplex=False)
        self._process = context.Process(target=_run, args=(sending, function, arguments), daemon=True)
        self._process.start()
        sending.close()

    def result(self) -> T:
        """Wait for what the function returns.

        Raises:
            UserError: as the function does, or where its process has died.
        """
        try:
            answer: T | BaseException = self._answer.recv()
        except EOFError as error:
            raise UserError("serve: the process that chooses what is served has died; is the memory full?") from error
        finally:
            self._process.terminate()
            self._process.join()
        if isinstance(answer, BaseException):
            raise answer
        return answer


def _run(sending: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that waits: it ends this one
    try:
        answer = function(*arguments)
    except Exception as error:
        answer = error
    sending.send(answer)
