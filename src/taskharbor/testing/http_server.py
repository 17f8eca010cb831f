"""A TaskHarbor server of its own process, for tests of the HTTP driver.

    with HttpServer("sqlite:///jobs.db") as server:
        connect(server.url)

Without a store it serves a harbor of its own under every path: `fresh_http_url()` names one that nothing else
else uses. These servers let their callers say what time it is.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from functools import cache
from pathlib import Path

from taskharbor.testing.servers.process import Server, for_this_process

_numbers = itertools.count(1)


@cache
def http_url() -> str:
    """The server that tests of this process use."""
    return for_this_process(HttpServer()).url


def fresh_http_url(*, durable: bool = False) -> str:
    """An empty harbor behind `http_url()`, in memory or in a file; by adding `-other`, another one."""
    return f"{http_url()}/{'file-' if durable else ''}{os.getpid()}-{next(_numbers)}"


class HttpServer(Server):
    """uvicorn on a free port of this machine. Killed and started again, it is found at the same place."""

    name = "http"

    def __init__(self, store_url: str | None = None, *, tokens: Path | None = None) -> None:
        super().__init__()
        self._arguments = [store_url or "", str(tokens or "")]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _command(self) -> list[str]:
        return [sys.executable, "-m", "taskharbor.testing.http_program", str(self.port), *self._arguments]
