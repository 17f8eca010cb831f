"""A server process of a test: started in a folder of its own, ended with the process that started it."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from taskharbor.model.clock import SystemClock
from taskharbor.model.entropy import Entropy

_START_SECONDS = 30.0
_STEP_SECONDS = 0.02
_PORTS = range(15_000, 32_000)
_clock = SystemClock()


class Server:
    """One server process in a folder of its own."""

    name = ""

    def __init__(self) -> None:
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix=f"taskharbor-{self.name}-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        raise NotImplementedError

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError(f"{self.name} is not running")
        return self._process.pid

    def start(self) -> None:
        """Start, or start again on the same data, and return when it answers."""
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509
                **self._as_account(),
            )
        if sys.platform != "linux":
            self._guard = _guard(self._process.pid)
        wait_until(self._is_answering, self._why_not)

    def stop(self) -> None:
        """Stop in order, keep the data."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """kill -9 of the whole server, as a power cut would do it; the data stay."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGSTOP)  # or it starts a child after the next line
        children = _children(self._process.pid)
        for pid in (self._process.pid, *children):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._end(signal.SIGKILL)
        # They keep the shared memory of the data for a moment, and a new server refuses to start beside them.
        wait_until(lambda: not any(map(_is_running, children)), lambda: f"{self.name} does not die")

    def close(self) -> None:
        """Stop and forget everything."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            if self._process.poll() is None:
                self._process.send_signal(how)
            self._process.wait()
            self._process = None
        if self._guard is not None:
            self._guard.kill()
            self._guard.wait()
            self._guard = None

    def _command(self) -> list[str]:
        raise NotImplementedError

    def _as_account(self) -> dict[str, Any]:
        return {}

    def _is_answering(self) -> bool:
        if self._process is not None and self._process.poll() is not None:
            raise RuntimeError(self._why_not())
        return _is_listening(self.port)

    def _why_not(self) -> str:
        log = (self.folder / "server.log").read_text(errors="replace")
        return f"{self.name} did not start; its log says:\n{log[-2000:]}"


def for_this_process(server: Server) -> Server:
    server.start()
    atexit.register(server.close)
    return server


def run_name() -> str:
    """A name that no other process and no earlier run has: named servers outlive both, pids come again."""
    return f"{_token()}_{os.getpid()}"


@cache
def _token() -> str:
    return Entropy().token()[:8]


def free_port() -> int:
    """A loopback port that is free, and stays so until the caller binds it.

    It is outside the range from which systems pick ports for connections and for port 0, and on Linux no
    other process that asks this function gets the same one.
    """
    while True:
        port = _PORTS[int(Entropy().token(), 16) % len(_PORTS)]
        if _is_free(port) and _is_ours(port):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _is_ours(port: int) -> bool:
    """Claim the port among test processes by a name that the kernel frees when this one ends."""
    if sys.platform != "linux":
        return True
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0taskharbor-test-port-{port}")
    except OSError:
        claim.close()
        return False
    claim.detach()  # its descriptor stays open until this process ends
    return True


def wheel(module: str, project: str) -> Path:
    from importlib.util import find_spec

    spec = find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError(f"{project} is not installed: pip install 'taskharbor[demo]'")
    return Path(spec.submodule_search_locations[0])


def wait_until(is_so: Callable[[], bool], why_not: Callable[[], str]) -> None:
    deadline = _clock.monotonic() + _START_SECONDS
    pause = threading.Event()
    while not is_so():
        if _clock.monotonic() > deadline:
            raise TimeoutError(why_not())
        pause.wait(_STEP_SECONDS)


def _is_listening(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def _is_running(pid: int) -> bool:
    """Whether there is such a process; one that only waits to be collected does not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _children(pid: int) -> list[int]:
    """The processes that a server has started; none where the system does not show them."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _die_with_parent() -> None:
    """In the child, before it becomes the server: SIGTERM when the thread that started it is gone."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)


def _guard(pid: int) -> subprocess.Popen[bytes]:
    """Where the kernel cannot do it: a small process that ends the server when our end of a pipe closes."""
    program = f"import os, sys; sys.stdin.read(); os.kill({pid}, {int(signal.SIGTERM)})"
    return subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, start_new_session=True)
