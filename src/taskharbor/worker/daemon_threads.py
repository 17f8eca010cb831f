"""Daemon threads for blocking calls: none of them keeps an ending process alive.

At exit the interpreter waits for every thread of an ordinary pool, however long a handler's call takes in
it. A worker that was asked to stop has released that job long before.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

Work = Callable[[], Callable[[], None]]
"""Runs in a thread; returns what delivers the result, which runs once the thread counts as idle."""


class DaemonPool:
    """Starts a thread only when none is idle; at most `most` of them, without one as many as are needed."""

    def __init__(self, name: str, most: int | None = None) -> None:
        self._name = name
        self._most = most
        self._inbox: SimpleQueue[Work | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0  # less than 0: so many calls wait for a thread to finish
        self._threads = 0

    def start(self, work: Work) -> None:
        """Have this run in a thread.

        Raises:
            RuntimeError: it needs another thread, and none can be started.
        """
        with self._lock:
            needs_thread = self._idle <= 0 and (self._most is None or self._threads < self._most)
            if needs_thread:
                self._threads += 1
            else:
                self._idle -= 1
        if needs_thread:
            self._start_thread()
        self._inbox.put(work)

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._serve, name=f"{self._name}-{self._threads}", daemon=True)
        try:
            thread.start()
        except BaseException:  # the system allows no more of them
            with self._lock:
                self._threads -= 1
            raise

    def drop_waiting(self) -> list[Work]:
        """Take out the calls that no thread has begun."""
        waiting = []
        while not self._inbox.empty():
            if (work := self._inbox.get()) is not None:
                waiting.append(work)
        return waiting

    def close(self) -> None:
        """End the threads once they are idle. Never waits for running calls."""
        for _ in range(self._threads):
            self._inbox.put(None)

    def _serve(self) -> None:
        while (work := self._inbox.get()) is not None:
            deliver = work()
            with self._lock:
                self._idle += 1  # before the result: the next call must see this thread as idle
            deliver()
            del work, deliver


class DaemonThreads(ThreadPoolExecutor):
    """The threads behind asyncio.to_thread. A ThreadPoolExecutor by name: event loops accept nothing else."""

    def __init__(self, max_workers: int | None = None) -> None:
        most = max_workers or min(32, (os.cpu_count() or 1) + 4)
        super().__init__(most)
        self._pool = DaemonPool("taskharbor-call", most)
        self._guard = threading.Lock()
        self._is_shut = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        with self._guard:
            if self._is_shut:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._pool.start(_Call(future, partial(fn, *args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept nothing more. Never waits for running calls."""
        with self._guard:
            self._is_shut = True
            for call in self._pool.drop_waiting() if cancel_futures else ():
                if isinstance(call, _Call):
                    call.future.cancel()
            self._pool.close()


class _Call:
    """One call of `submit`."""

    def __init__(self, future: Future[Any], function: Callable[[], Any]) -> None:
        self.future = future
        self._function = function

    def __call__(self) -> Callable[[], None]:
        if not self.future.set_running_or_notify_cancel():
            return lambda: None
        try:
            return partial(self.future.set_result, self._function())
        except BaseException as error:  # noqa: BLE001 - the caller gets whatever it raises
            return partial(self.future.set_exception, error)
