"""Handlers that behave badly, for processes of their own: `tests.integration.worker.handlers:name`."""

from __future__ import annotations

import asyncio
import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

from taskharbor.errors import Unrecoverable
from taskharbor.model.outcome import Snooze
from taskharbor.worker.executors import gpu_context


def note_of(job):
    """What the payload says: a path to write to, or a word."""
    return job.payload.decode()


def add(ctx, job):
    return {
        "pid": os.getpid(),
        "attempt": ctx.attempt,
        "fence": ctx.fence > 0,
        "deadline": ctx.deadline is not None,
    }


async def add_async(ctx, job):
    await asyncio.sleep(0.01)
    return os.getpid()


def says_how_far(ctx, job):
    ctx.progress(0.5, "half")
    ctx.log.warning("from a process")
    Path(note_of(job)).touch()
    while not ctx.cancelled.is_set():
        time.sleep(0.02)


def fails(ctx, job):
    raise ValueError("no luck over there")


def gives_up(ctx, job):
    raise Unrecoverable("never")


class BrokenDevice:
    """In place of the CUDA driver: every question is answered with a broken context."""

    def __getattr__(self, name):
        return self._answer

    def _answer(self, *arguments):
        for one in arguments:
            if isinstance(getattr(one, "_obj", None), ctypes.c_void_p):
                one._obj.value = 1
        return 710


def breaks_its_gpu(ctx, job):
    """As a device-side assert does: this process can never use the device again."""
    gpu_context.loaded_driver = BrokenDevice
    raise RuntimeError("CUDA error: device-side assert triggered")


def uses_its_gpu(ctx, job):
    if gpu_context.loaded_driver is BrokenDevice:
        raise RuntimeError("CUDA error: device-side assert triggered")
    return [os.getpid(), os.environ["CUDA_VISIBLE_DEVICES"]]


def loses_patience(ctx, job):
    raise ConnectionResetError(str(os.getpid()))


def snoozes(ctx, job):
    return Snooze(timedelta(hours=1))


def exits_zero(ctx, job):
    os._exit(0)


def exits_one(ctx, job):
    os._exit(1)


def segfaults(ctx, job):
    ctypes.string_at(0)


def aborts(ctx, job):
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.abort()


def system_exit(ctx, job):
    sys.exit("leaving")


def kills_itself(ctx, job):
    os.kill(os.getpid(), signal.SIGKILL)


def eats_memory(ctx, job):
    hoard = []
    while True:
        hoard.append(bytearray(16 * 1024 * 1024))


def loops_forever(ctx, job):
    Path(note_of(job)).write_text(str(os.getpid()))
    while True:
        pass


def loops_in_c(ctx, job):
    """Holds the interpreter for good: no Python signal handler will ever run."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    Path(note_of(job)).write_text(str(os.getpid()))
    ctypes.PyDLL(None).sleep(600)


async def sleeps_async(ctx, job):
    Path(note_of(job)).write_text(str(os.getpid()))
    await asyncio.sleep(3600)


def leaves_a_daemon(ctx, job):
    """A grandchild that starts a session of its own and outlives its parent."""
    sleeper = f"import os, time; open({note_of(job)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    subprocess.Popen([sys.executable, "-c", sleeper], start_new_session=True)
    while not Path(note_of(job)).exists() or not Path(note_of(job)).read_text():
        time.sleep(0.01)
    os._exit(3)


def starts_and_waits(ctx, job):
    """It stops on request, and what it has started does not."""
    sleeper = f"import os, time; open({note_of(job)!r}, 'a').write(f'{{os.getpid()}} '); time.sleep(600)"
    subprocess.Popen([sys.executable, "-c", sleeper])
    subprocess.Popen([sys.executable, "-c", sleeper], env={})
    subprocess.Popen([sys.executable, "-c", sleeper], start_new_session=True)
    while not Path(note_of(job)).exists() or len(Path(note_of(job)).read_text().split()) < 3:
        time.sleep(0.01)
    Path(note_of(job) + ".ready").write_text(str(os.getpid()))
    time.sleep(600)


def forks(ctx, job):
    """The copy comes back from the handler, too."""
    os.fork()
    return os.getpid()


def closes_everything(ctx, job):
    os.closerange(0, 4096)
    time.sleep(600)


def resets_signals(ctx, job):
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    os.chdir("/")
    return os.getpid()


def where_am_i(ctx, job):
    return [os.getpid(), os.getcwd()]


def prints_a_lot(ctx, job):
    line = "x" * 1023 + "\n"
    for _ in range(20 * 1024):
        sys.stdout.write(line)
    return "printed"


def leaks_threads(ctx, job):
    for _ in range(200):
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    return os.getpid()


def leaks_files(ctx, job):
    leaks_files.kept = [os.open("/dev/null", os.O_RDONLY) for _ in range(300)]  # type: ignore[attr-defined]
    return os.getpid()


def returns_nonsense(ctx, job):
    return object()
