"""The threads behind asyncio.to_thread: daemons, so that none of them keeps an ending process alive.

At exit the interpreter waits for every thread of an ordinary pool, however long a handler's call takes in
it. A worker that was asked to stop has released that job long before.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_Call = tuple["Future[Any]", Callable[[], Any]]


class DaemonThreads(ThreadPoolExecutor):
    """A pool of daemon threads. A ThreadPoolExecutor by name, as event loops accept nothing else."""

    def __init__(self, max_workers: int | None = None) -> None:
        self._most = max_workers or min(32, (os.cpu_count() or 1) + 4)
        super().__init__(self._most)
        self._inbox: SimpleQueue[_Call | None] = SimpleQueue()
        self._guard = threading.Lock()
        self._idle = 0
        self._started = 0
        self._is_shut = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        with self._guard:
            if self._is_shut:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._inbox.put((future, lambda: fn(*args, **kwargs)))
            self._ensure_thread()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept nothing more. Never waits for running calls."""
        with self._guard:
            self._is_shut = True
            while cancel_futures and not self._inbox.empty():
                if (call := self._inbox.get()) is not None:
                    call[0].cancel()
            for _ in range(self._started):
                self._inbox.put(None)

    def _ensure_thread(self) -> None:
        if self._idle > 0:
            self._idle -= 1
        elif self._started < self._most:
            self._started += 1
            threading.Thread(target=self._serve, name=f"taskharbor-call-{self._started}", daemon=True).start()
        else:
            self._idle -= 1  # owed: the next thread to finish takes this call and is not idle

    def _serve(self) -> None:
        while (call := self._inbox.get()) is not None:
            _run(*call)
            del call
            with self._guard:
                self._idle += 1


def _run(future: Future[Any], function: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = function()
    except BaseException as error:  # noqa: BLE001 - the caller gets whatever it raises
        future.set_exception(error)
    else:
        future.set_result(result)
