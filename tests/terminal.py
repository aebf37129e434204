"""A command in a pseudo-terminal of 100 x 30."""

import os
import pty
import re
import select
import termios
import time

CODES = re.compile(r"\x1b\[[0-?]*[a-zA-Z]")
PATIENCE = 400


class Terminal:
    """A command in a terminal of its own, which is hung up when it is closed."""

    def __init__(self, command, cwd=".", patience=PATIENCE, **variables):
        """Start it; the variables are added to the environment."""
        self.said, self.ended, self.patience = "", False, patience
        plain = {name: text for name, text in os.environ.items() if name not in ("COLUMNS", "LINES")}
        self.pid, self.screen = pty.fork()
        if not self.pid:
            try:
                termios.tcsetwinsize(1, (30, 100))
                os.chdir(cwd)
                os.execvpe(command[0], list(command), {**plain, "TERM": "xterm-256color", **variables})
            except Exception as error:
                os.write(2, f"{error}\n".encode())
            finally:
                os._exit(127)  # else this copy of the tests would go on with them

    def read(self, until=None):
        """Read until a text was shown, or to the end."""
        end = time.monotonic() + self.patience
        while not self.ended and (until is None or until not in self.said):
            assert select.select([self.screen], [], [], max(0, end - time.monotonic()))[0], self.said[-4000:]
            try:
                found = os.read(self.screen, 1 << 16)
            except OSError:  # the other side is closed
                found = b""
            self.said += found.decode(errors="replace")
            self.ended = not found
        assert until is None or until in self.said, self.said[-4000:]

    def press(self, key):
        """Press a key."""
        os.write(self.screen, key)

    def end(self):
        """Read the rest; return the status and the lines that were shown, without codes."""
        self.read()
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return status, CODES.sub("", self.said).replace("\r", "\n").splitlines()

    def close(self):
        """Hang up: whatever still runs there is told so."""
        os.close(self.screen)
