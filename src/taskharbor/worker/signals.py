"""Signals of a worker, and the event loop of a worker that owns its process.

SIGTERM, SIGINT   claim nothing more, finish, end; one more, a second later, releases the running jobs at once
SIGQUIT           print all stacks to stderr and go on
SIGUSR1           quiet: claim nothing more, and stay
SIGHUP            reopen log files that were moved away; from a terminal, which is being closed: like SIGTERM

SIGINT, and SIGHUP from a terminal, stay ignored if the process was started with them ignored, as nohup and
`sh -c '… &'` do.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, Self, TypeVar

from taskharbor.model.clock import SystemClock
from taskharbor.worker.daemon_threads import DaemonThreads

T = TypeVar("T")

_log = logging.getLogger("taskharbor.worker")


SAME_REQUEST_SECONDS = 1.0
"""A signal repeated so soon is the same request: `timeout` signals a process and then its whole group."""


class StopRequests:
    """Counts how often a process was asked to stop."""

    def __init__(self, same_seconds: float = SAME_REQUEST_SECONDS) -> None:
        self._same_seconds = same_seconds
        self._clock = SystemClock()
        self._received_at = 0.0
        self.count = 0

    def received(self) -> int:
        """The number of this request, counted from 1; 0 if the signal only repeats the last one."""
        now = self._clock.monotonic()
        if self.count and now - self._received_at < self._same_seconds:
            return 0
        self._received_at = now
        self.count += 1
        return self.count


def stop_signals() -> tuple[signal.Signals, ...]:
    """The signals that ask this process to stop: SIGTERM, and SIGINT unless it was ignored from the start."""
    is_ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    return (signal.SIGTERM,) if is_ignored else (signal.SIGTERM, signal.SIGINT)


def hangs_up() -> bool:
    """Whether SIGHUP means that the terminal is being closed, and is not ignored (nohup)."""
    return stdin_is_terminal() and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN


class Stoppable(Protocol):
    def stop(self, *, now: bool = False) -> None: ...

    def quiet(self) -> None: ...

    @property
    def waits_for(self) -> str: ...


class Signals:
    """While entered, signals reach the worker. Only in the main thread; elsewhere nothing happens.

    `only_unclaimed` takes SIGTERM alone, and only while the program has left it at its default: a
    worker inside a bigger program does not take that program's signals away.
    """

    def __init__(
        self,
        worker: Stoppable,
        *,
        only_unclaimed: bool = False,
        enabled: bool = True,
        same_seconds: float = SAME_REQUEST_SECONDS,
    ) -> None:
        self._worker = worker
        self._only_unclaimed = only_unclaimed
        self._enabled = enabled
        self._loop: asyncio.AbstractEventLoop | None = None
        self._taken: list[int] = []
        self._requests = StopRequests(same_seconds)

    def __enter__(self) -> Self:
        if self._enabled and threading.current_thread() is threading.main_thread():
            self._loop = asyncio.get_running_loop()
            for number, action in self._actions().items():
                self._take(number, action)
        return self

    def __exit__(self, *_: object) -> None:
        for number in self._taken:
            if self._loop is not None:
                self._loop.remove_signal_handler(number)
        self._taken.clear()

    def _actions(self) -> dict[int, Callable[[], None]]:
        if self._only_unclaimed:
            is_free = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
            return {signal.SIGTERM: self._stop} if is_free else {}
        actions: dict[int, Callable[[], None]] = dict.fromkeys(stop_signals(), self._stop)
        actions |= {signal.SIGQUIT: dump_stacks, signal.SIGUSR1: self._quiet}
        if hangs_up():
            actions[signal.SIGHUP] = self._hung_up
        elif not stdin_is_terminal():
            actions[signal.SIGHUP] = reopen_logs
        return actions

    def _take(self, number: int, action: Callable[[], None]) -> None:
        assert self._loop is not None  # noqa: S101 - set by __enter__
        try:
            self._loop.add_signal_handler(number, action)
        except (NotImplementedError, RuntimeError, ValueError):
            return  # this event loop takes no signals
        self._taken.append(number)

    def _stop(self) -> None:
        request = self._requests.received()
        if request:
            if request > 1:
                _log.info("stopping now: releasing the running jobs")
            else:
                _log.info("stopping: %s", self._worker.waits_for)
            self._worker.stop(now=request > 1)

    def _hung_up(self) -> None:
        if not self._requests.count:  # a closing terminal tends to send it twice
            self._stop()

    def _quiet(self) -> None:
        _log.info("quiet: nothing more is claimed")
        self._worker.quiet()


def dump_stacks() -> None:
    faulthandler.dump_traceback(file=sys.stderr, all_threads=True)


def stdin_is_terminal() -> bool:
    """Whether this process runs in a terminal, which sends SIGHUP when it is closed."""
    try:
        return sys.stdin is not None and sys.stdin.isatty()
    except ValueError:
        return False  # it has been closed


def reopen_logs() -> None:
    """Follow log files that a rotation moved away."""
    for handler in logging.getLogger().handlers:
        reopen = getattr(handler, "reopenIfNeeded", None)
        if callable(reopen):
            reopen()


def run_to_the_end(main: Coroutine[Any, Any, T]) -> T:
    """Like asyncio.run, but no handler can end the process or keep it alive.

    Neither one that ignores its cancellation, nor one that left a thread of asyncio.to_thread behind,
    nor one with a task in which SystemExit or KeyboardInterrupt is raised.
    """
    loop = asyncio.new_event_loop()
    try:
        asyncio.set_event_loop(loop)
        loop.set_default_executor(DaemonThreads())
        return _run_on(loop, main)
    finally:
        _leave_behind(loop)
        asyncio.set_event_loop(None)
        loop.close()


def _run_on(loop: asyncio.AbstractEventLoop, main: Coroutine[Any, Any, T]) -> T:
    """Until `main` itself has ended.

    An event loop raises SystemExit and KeyboardInterrupt of any task to its caller, after it has stored them
    in that task. The handler that awaits the task gets them from there; the loop continues.
    """
    task = loop.create_task(main)
    while True:
        try:
            return loop.run_until_complete(task)
        except (SystemExit, KeyboardInterrupt) as error:
            if task.done() or (isinstance(error, KeyboardInterrupt) and _interrupts_are_raised()):
                raise


def _interrupts_are_raised() -> bool:
    """Whether Ctrl-C is an exception at this moment: no worker has taken the signal."""
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def _leave_behind(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        _run_on(loop, _waited_for(tasks))
    _run_on(loop, loop.shutdown_asyncgens())


async def _waited_for(tasks: set[asyncio.Task[Any]]) -> None:
    await asyncio.wait(tasks, timeout=0.2)
