"""The app of the worker processes under chaos: `taskharbor worker tests.chaos.app:harbor`.

Every run of a handler leaves lines in a file that is only ever appended to, and writes into a table
that refuses a smaller fence, so that a verdict can see who did what, and who was too late.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

from taskharbor import Harbor, JobContext
from taskharbor.drivers import connect
from taskharbor.model.clock import SystemClock
from taskharbor.model.retry import RetryPolicy
from taskharbor.testing.history import Recorded, Recorder, into_file

FOLDER = Path(os.environ["CHAOS_FOLDER"]) if "CHAOS_FOLDER" in os.environ else None


class RightClock(SystemClock):
    """What is written down is written by this one, whatever a case does to the clock of its process."""

    def monotonic(self) -> float:
        return time.monotonic()


def recorded(url: str, name: str, folder: Path) -> Recorded:
    """The store, with every call of this process written down for the checker of histories."""
    recorder = Recorder(name, into_file(folder / f"history-{name.replace(' ', '-')}"), RightClock())
    return Recorded(connect(url), recorder)


def _harbor() -> Harbor:
    if FOLDER is None:  # imported by programs that only enqueue
        return Harbor("memory://")
    return Harbor(driver=recorded(os.environ["CHAOS_URL"], f"worker {os.getpid()}", FOLDER))


harbor = _harbor()
SOON = RetryPolicy(base=timedelta(milliseconds=100), max_attempts=5)


def note(what: str, ctx: JobContext, mark: str, **more: object) -> None:
    """One line, written at once and whole, also by many processes."""
    line = {"what": what, "job": ctx.job.id, "fence": ctx.fence, "pid": os.getpid(), "at": time.time()}
    assert FOLDER is not None
    path = FOLDER / "runs"
    out = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(out, (json.dumps({**line, "mark": mark, **more}) + "\n").encode())
    finally:
        os.close(out)


def write_effect(ctx: JobContext) -> bool:
    """Write to the guarded table under this run's fence; whether it was let in."""
    assert FOLDER is not None
    with closing(sqlite3.connect(FOLDER / "effects.db", timeout=60, isolation_level=None)) as db:
        db.execute("pragma synchronous = off")
        db.execute("begin immediate")
        row = db.execute("select max(fence) from effect where job = ?", (ctx.job.id,)).fetchone()
        is_let_in = row[0] is None or row[0] <= ctx.fence
        if is_let_in:
            db.execute("insert into effect (job, fence) values (?, ?)", (ctx.job.id, ctx.fence))
        db.execute("commit")
        return is_let_in


@harbor.task(name="work", max_stalls=50, retry=SOON)
async def work(ctx: JobContext, mark: str, seconds: float = 0.0, fate: str = "", cargo: str = "") -> str:
    """Waits a while, writes its effect, and returns; or fails as its fate says. Cargo is only carried."""
    note("begin", ctx, mark)
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        note("stopped", ctx, mark, reason=ctx.cancelled.reason)
        raise
    if fate == "fails" or (fate == "fails once" and ctx.attempt == 1):
        note("raised", ctx, mark)
        raise RuntimeError(fate)
    write_effect(ctx)
    note("end", ctx, mark)
    return mark


@harbor.task(name="grind", max_stalls=50, retry=SOON)
def grind(ctx: JobContext, mark: str, seconds: float = 1.0, until: str = "") -> str:
    """Writes its effect again and again, in a thread, until it is asked to stop, or its time is over.

    `until`: a file in the folder of the case; it does not end before that exists.
    """
    note("begin", ctx, mark)
    over = time.monotonic() + seconds
    while (time.monotonic() < over or _is_missing(until)) and not ctx.cancelled:
        write_effect(ctx)
        time.sleep(0.05)
    note("stopped" if ctx.cancelled else "end", ctx, mark, reason=ctx.cancelled.reason)
    return mark


def _is_missing(name: str) -> bool:
    return FOLDER is not None and bool(name) and not (FOLDER / name).exists()


@harbor.task(name="crunch", max_stalls=50, retry=SOON, run_in="process")
def crunch(ctx: JobContext, mark: str, seconds: float = 1.0) -> str:
    """Keeps a core busy in a process of its own."""
    note("begin", ctx, mark)
    over = time.monotonic() + seconds
    while time.monotonic() < over:
        sum(range(1000))
    write_effect(ctx)
    note("end", ctx, mark)
    return mark


def _skew_clock(path: Path) -> None:
    """Let this process see another time than everybody else: so many seconds off as the file says.

    The wall clock only, and only where TaskHarbor asks for it; the monotonic clock goes on as it is.
    """

    def now(self: SystemClock) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=float(path.read_text()))

    SystemClock.now = now  # type: ignore[method-assign]


def _run_clock_at(rate: float) -> None:
    """Let the clock of this process run too fast or too slow: what it waits for, and what it measures."""
    was, sleep = SystemClock.monotonic, SystemClock.sleep

    def monotonic() -> float:
        return was() * rate

    async def slept(self: SystemClock, seconds: float) -> None:
        await sleep(self, seconds / rate)

    SystemClock.monotonic = staticmethod(monotonic)
    SystemClock.sleep = slept  # type: ignore[method-assign]


if "CHAOS_CLOCK" in os.environ:
    _skew_clock(Path(os.environ["CHAOS_CLOCK"]))
if "CHAOS_RATE" in os.environ:
    _run_clock_at(float(os.environ["CHAOS_RATE"]))
