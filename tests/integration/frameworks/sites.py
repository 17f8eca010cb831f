"""Web applications in processes of their own, served by a real web server on a free port."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx2

T = TypeVar("T")

GENEROUS_SECONDS = 60.0
"""How long to wait for something that should happen soon, on a busy machine."""

_ADDRESS = re.compile(r"http://127\.0\.0\.1:(\d+)")


class Site:
    """A running server. What it prints is collected; its port is read from there."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.url = eventually(self._address, lambda: self.text)
        self.http = httpx2.Client(base_url=self.url, timeout=GENEROUS_SECONDS)

    @property
    def text(self) -> str:
        return "".join(self.lines)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)

    def _address(self) -> str | None:
        found = _ADDRESS.search(self.text)
        if found is None and self.process.poll() is not None:
            raise AssertionError(f"the server ended:\n{self.text}")
        return None if found is None else found[0]

    def terminate(self, seconds: float = GENEROUS_SECONDS) -> int:
        """Ask it to stop; the exit code. Raises TimeoutExpired if it is still there after these seconds."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)

    def close(self) -> None:
        self.http.close()
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._reader.join(GENEROUS_SECONDS)
        if self.process.stdout is not None:
            self.process.stdout.close()


@contextmanager
def serving(folder: Path, *command: str, **variables: str) -> Iterator[Site]:
    """Run `python -m COMMAND` in a folder, until it prints where it serves; killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=folder,
        env={**environment(), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    site = None
    try:
        site = Site(process)
        yield site
    finally:
        if site is not None:
            site.close()
        elif process.poll() is None:
            process.kill()
            process.wait()


def uvicorn(folder: Path, *flags: str, **variables: str) -> Any:
    return serving(
        folder, "uvicorn", "site_app:app", "--host", "127.0.0.1", "--port", "0", *flags, **variables
    )


def environment() -> dict[str, str]:
    """The environment without settings of ours, and with prints that are not kept back."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TASKHARBOR_")}
    return {**kept, "PYTHONUNBUFFERED": "1"}


def eventually(
    look: Callable[[], T | None], explain: Callable[[], str] = str, seconds: float = GENEROUS_SECONDS
) -> T:
    """What `look` returns once that is not None or False."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        found = look()
        if found is not None and found is not False:
            return found
        time.sleep(0.05)
    raise AssertionError(f"it did not happen within {seconds:g} s: {explain()}")
