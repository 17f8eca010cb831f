"""Portal: one background event loop for blocking callers."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
Farewell = Callable[[], Coroutine[Any, Any, None]]

_log = logging.getLogger("taskharbor.client")


class Portal:
    """Runs coroutines for callers without an event loop, in a thread started on first use.

    The thread is a daemon. A closed portal starts again on its next use.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        return self._loop

    def call(self, function: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run the coroutine function in the portal's loop; return or raise what it does.

        If the waiting thread is interrupted, the coroutine is cancelled.
        """
        future = asyncio.run_coroutine_threadsafe(function(*args, **kwargs), self._running())
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self, farewell: Farewell | None = None, *, quietly: bool = False) -> None:
        """Run `farewell` in the loop, then stop the loop and its thread. Other coroutines are cancelled.

        An error of `farewell` is logged as a warning; with `quietly` at debug level.
        """
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is None or thread is None:
            return
        loop.call_soon_threadsafe(lambda: loop.create_task(_end(loop, farewell, quietly)))
        if thread is not threading.current_thread():  # the garbage collector may call from any thread
            thread.join()

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._loop is not None:
            return self._loop
        with self._lock:
            if self._loop is None:
                loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_run_loop, args=(loop,), name="taskharbor-portal", daemon=True
                )
                self._thread.start()
                self._loop = loop
            return self._loop


async def _end(loop: asyncio.AbstractEventLoop, farewell: Farewell | None, quietly: bool) -> None:
    try:
        if farewell is not None:
            await farewell()
    except Exception:  # noqa: BLE001 - the thread must end even if the store fails
        level = logging.DEBUG if quietly else logging.WARNING
        _log.log(level, "closing the store failed; no jobs are affected", exc_info=True)
    finally:
        loop.stop()


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        _cancel_what_is_left(loop)
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


def _cancel_what_is_left(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
