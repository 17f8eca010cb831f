"""Processes and their descendants: die with the parent, kill a tree, why a process died."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from taskharbor.model.clock import SystemClock

MARK = "TASKHARBOR_CHILD"
"""The environment variable that marks descendants, even those that left the session."""

LOST_CONNECTION = 97
"""The exit code of a process that lost the connection to its worker."""

_clock = SystemClock()
_PR_SET_PDEATHSIG = 1
_OOM_COUNTERS = (Path("/sys/fs/cgroup/memory.events"), Path("/sys/fs/cgroup/memory/memory.oom_control"))


def die_with_parent(parent_pid: int) -> None:
    """From now on this process is killed when its parent ends, however that happens (Linux).

    Elsewhere the closed connection to the parent has to serve.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(1)  # it ended before the call above


def kill_tree(pid: int, mark: str) -> None:
    """Kill a process group and all its descendants, daemons that left the group too.

    Call it before the leader is reaped: the pid of a zombie cannot be reused.
    """
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    for stray in strays_of(pid, mark):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(stray, signal.SIGKILL)


def strays_of(leader: int, mark: str) -> list[int]:
    """Its descendants: in its session, or with its mark in their environment (Linux)."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*") if sys.platform == "linux" else ():
        pid = int(entry.name)
        if pid in (leader, os.getpid()):
            continue
        with suppress(OSError):
            if os.getsid(pid) == leader or wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(pid)
    return found


def cause_of_death(
    returncode: int,
    oom_kills_before: int,
    *,
    who: str = "its process",
    when: str = " in the middle of the job",
) -> str:
    """An exit status as text."""
    if returncode == LOST_CONNECTION:
        return f"{who} closed its connection to the worker"
    if returncode >= 0:
        return f"{who} exited with code {returncode}{when}"
    number = -returncode
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    if number == signal.SIGKILL and oom_kills() > oom_kills_before:
        return f"{who} ran out of memory and was killed ({name})"
    return f"{who} was killed by {name}"


def oom_kills() -> int:
    """How many processes of this control group the kernel has killed for memory, where that is known."""
    for path in _OOM_COUNTERS:
        with suppress(OSError, ValueError):
            for line in path.read_text().splitlines():
                name, _, count = line.partition(" ")
                if name == "oom_kill":
                    return int(count)
    return 0


async def ended(process: subprocess.Popen[bytes]) -> None:
    """Until it has ended. It is not reaped, so that `kill_tree` can use its pid."""
    if not await _seen_by_pidfd(process.pid):
        while not has_ended(process):
            await _clock.sleep(0.05)


def has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether it is a zombie or gone; unlike `poll` this does not reap it."""
    if process.returncode is not None:
        return True
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
    except ChildProcessError:
        return True  # it was reaped elsewhere


async def _seen_by_pidfd(pid: int) -> bool:
    """Wait for the end of a process the cheap way; False where there is none."""
    try:
        handle = os.pidfd_open(pid)
    except (OSError, AttributeError):
        return False
    loop = asyncio.get_running_loop()
    is_over = asyncio.Event()
    try:
        loop.add_reader(handle, is_over.set)
        await is_over.wait()
    except NotImplementedError:
        return False
    finally:
        loop.remove_reader(handle)
        os.close(handle)
    return True
