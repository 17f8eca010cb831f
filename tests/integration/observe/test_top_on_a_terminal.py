"""taskharbor top on real terminals, narrow and wide."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import sys
import termios
import time

import pytest

from tests.integration.cli.conftest import Command

_SEQUENCES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-Z0-9]")


class Screen:
    """`taskharbor top` on a terminal of so many columns."""

    def __init__(self, taskharbor: Command, columns: int, rows: int = 30) -> None:
        self.text = ""
        self._pid, self._terminal = pty.fork()
        if self._pid == 0:
            os.chdir(taskharbor.folder)
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
            environment = {**taskharbor.environment, "TERM": "xterm"}
            for name in ("COLUMNS", "LINES"):  # xdist sets them, and they go before the terminal's own size
                environment.pop(name, None)
            command = [sys.executable, "-m", "taskharbor", "top", "--interval", "200ms"]
            os.execve(sys.executable, command, environment)

    def read(self) -> bool:
        if not select.select([self._terminal], [], [], 0.5)[0]:
            return True
        try:
            data = os.read(self._terminal, 65536)
        except OSError:  # what Linux answers when the other end is gone
            return False
        frames = data.decode(errors="replace").replace("\x1b[H", "\n")  # each begins at the upper left
        self.text += _SEQUENCES.sub("", frames)
        return bool(data)

    def until(self, words: str) -> None:
        deadline = time.monotonic() + 60
        while words not in self.text:
            assert time.monotonic() < deadline, self.text[-3000:]
            assert self.read() or words in self.text, self.text[-3000:]

    def press(self, key: str) -> int:
        """Press a key and wait for the end; answers the exit code."""
        os.write(self._terminal, key.encode())
        deadline = time.monotonic() + 60
        while self.read() and time.monotonic() < deadline:
            pass
        _, status = os.waitpid(self._pid, 0)
        os.close(self._terminal)
        return os.waitstatus_to_exitcode(status)


@pytest.mark.parametrize("columns", [80, 140])
def test_it_shows_what_changes_fits_the_terminal_and_ends_at_a_key(taskharbor: Command, columns: int) -> None:
    taskharbor.put("send_welcome", queue="mail")
    screen = Screen(taskharbor, columns)
    screen.until("FAILURES")
    screen.until("1 waiting")

    taskharbor.put("boom", queue="later")
    screen.until("later")
    screen.until("2 waiting")

    assert screen.press("q") == 0
    assert ("SCHEDULED" in screen.text) == (columns == 140)
    lines = screen.text.replace("\r", "").split("\n")
    assert max(len(line) for line in lines) <= columns
