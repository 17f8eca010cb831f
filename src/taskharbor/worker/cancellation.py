"""Everything about a handler that must stop: who asks it, why, how long it may take, what becomes of its job.

reason       who asks                                            then
cancel       the store, through the heartbeat (lease_keeper.py)  wait for the handler; the job is cancelled
timeout      its deadline (deadlines.py)                         wait `patience`, then settle without it
lease_lost   the heartbeat: refused, or not extended in time     wait for the handler; its outcome is ignored
shutdown     the end of the run (run.py)                         wait a moment, then release the job

running ──request──► asked to stop ──patience is over──► given up: settled without its handler
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

from taskharbor.errors import TimedOut
from taskharbor.model.job import FailureKind
from taskharbor.model.outcome import Failed, Outcome, Released, WasCancelled
from taskharbor.model.retry import error_names

if TYPE_CHECKING:
    from taskharbor.worker.deadlines import Deadlines
    from taskharbor.worker.executors.contract import Executor
    from taskharbor.worker.leased_jobs import LeasedJob
    from taskharbor.worker.run import Run
    from taskharbor.worker.settling import Settler
    from taskharbor.worker.slots import Slots
    from taskharbor.worker.timing import Timing

Reason = Literal["cancel", "timeout", "lease_lost", "shutdown"]

# A handler that keeps running after one of these is given up. After a cancel it may run until its time
# limit: its lease is still valid, and no other worker waits for the job.
_IMPATIENT = frozenset({"timeout", "shutdown"})

_lock = threading.Lock()  # shared by all: waiting for a cancellation, and cancelling, are rare


class Cancellation:
    """Whether a handler should stop, and why. Set once, from any thread."""

    reason: Reason | None = None
    _in_loops: tuple[tuple[asyncio.AbstractEventLoop, asyncio.Event], ...] = ()
    _in_threads: threading.Event | None = None

    def is_set(self) -> bool:
        return self.reason is not None

    async def wait(self) -> Reason:
        """Return once the handler should stop: for coroutines."""
        event = asyncio.Event()
        with _lock:
            if self.reason is None:
                self._in_loops = (*self._in_loops, (asyncio.get_running_loop(), event))
            else:
                event.set()
        await event.wait()
        assert self.reason is not None  # noqa: S101 - the event was set because of it
        return self.reason

    def wait_blocking(self, timeout: float | None = None) -> bool:
        """Wait in a thread until the handler should stop, at most `timeout` seconds; whether it should."""
        with _lock:
            if self.reason is not None:
                return True
            if self._in_threads is None:
                self._in_threads = threading.Event()
        return self._in_threads.wait(timeout)

    def set(self, reason: Reason) -> None:
        """Ask the handler to stop. Later calls are ignored; the first reason is kept."""
        with _lock:
            if self.reason is not None:
                return
            self.reason = reason
            loops, self._in_loops = self._in_loops, ()
        if self._in_threads is not None:
            self._in_threads.set()
        for loop, event in loops:
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)

    def __bool__(self) -> bool:
        return self.reason is not None

    def __repr__(self) -> str:
        return f"<Cancellation {self.reason or 'not set'}>"


class HandlerStopper:
    """Stops the handlers of one run, and gives up on those that keep running."""

    def __init__(
        self, run: Run, executors: dict[str, Executor], deadlines: Deadlines, slots: Slots, settler: Settler
    ) -> None:
        self._run = run
        self._executors = executors  # by type of job
        self._deadlines = deadlines
        self._slots = slots
        self._settler = settler
        self._timing = run.timing
        self._patience = run.options.patience.total_seconds()
        self._loop = asyncio.get_running_loop()

    def request(self, leased: LeasedJob, reason: Reason, cause: str) -> None:
        """From the heartbeat, in any thread: the handler sees it at once, the event loop acts on it."""
        leased.attempt.cancellation.set(reason)
        if self._timing.is_virtual:
            self._requested(leased, reason, cause)
        else:
            with suppress(RuntimeError):  # the worker has just ended
                self._loop.call_soon_threadsafe(self._requested, leased, reason, cause)

    def _requested(self, leased: LeasedJob, reason: Reason, cause: str) -> None:
        if leased.attempt.is_over or leased.lease.is_lost or leased.end.acked is not None:
            return
        if reason == "lease_lost":
            self._run.leased_jobs.lose(leased)
            self._run.announcer.lost(leased, cause)
        self.stop(leased, reason)

    def stop(self, leased: LeasedJob, reason: Reason, patience_seconds: float | None = None) -> None:
        """Ask a handler to stop. Later calls are ignored; the first reason is kept."""
        attempt = leased.attempt
        attempt.cancellation.set(reason)
        if attempt.is_over or attempt.started is None or attempt.stop_requested is not None:
            return
        attempt.stop_requested = self._timing.monotonic()
        self._executors[leased.record.type].stop(leased)
        if attempt.cancellation.reason in _IMPATIENT:
            patience = self._patience if patience_seconds is None else patience_seconds
            self._deadlines.set(leased, attempt.stop_requested + patience)

    def deadline_passed(self, leased: LeasedJob) -> None:
        """Its time limit is over, or it was asked to stop and has not."""
        if leased.attempt.stop_requested is None:
            self.stop(leased, "timeout")
        else:
            self._deadlines.remove(leased)
            self.give_up(leased)

    def give_up(self, leased: LeasedJob) -> None:
        """Settle the job without its handler, which was asked to stop and keeps running."""
        attempt = leased.attempt
        if attempt.started is None or attempt.is_over:
            return
        executor = self._executors[leased.record.type]
        slot_goes_on = executor.give_up(leased)
        if executor.where != "process":
            self._run.announcer.abandoned(leased, executor.where)
        if not slot_goes_on:
            self._slots.replace(leased)
            self._settler.ended(leased, stopped_by(leased) or Released())


# ------------------------------------------------------------------ the outcome of a stopped attempt


def stopped_by(leased: LeasedJob) -> Outcome | None:
    """The outcome of an attempt that was asked to stop; None if it was not."""
    match leased.attempt.cancellation.reason:
        case "cancel":
            return WasCancelled("cancelled while it ran")
        case "timeout":
            return _timed_out(leased.record.timeout)
        case "shutdown" | "lease_lost":
            return Released()
    return None


def overruled(leased: LeasedJob, timing: Timing) -> Outcome | None:
    """The outcome of a handler that returned although it was cancelled or too late; None if it counts."""
    reason, ends = leased.attempt.cancellation.reason, leased.attempt.ends
    if reason == "shutdown":
        return None  # it has finished before its job was released
    if reason is None and ends is not None and timing.monotonic() >= ends:
        return _timed_out(leased.record.timeout)
    return stopped_by(leased)


def _timed_out(timeout: timedelta) -> Failed:
    error = TimedOut(timeout)
    return Failed(str(error), FailureKind.TIMEOUT, errors=error_names(error))
