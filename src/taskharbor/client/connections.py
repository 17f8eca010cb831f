"""Connections: one open driver per event loop, and one for blocking callers.

A driver belongs to the loop that opened it. A program may have several: the loop of its web
server, those of its tests, and the portal's, which serves blocking code.
"""

from __future__ import annotations

import asyncio
import concurrent.futures.thread  # noqa: F401 - its exit hook must be registered before ours, see below
import logging
import os
import threading
import weakref
from typing import Any

from taskharbor.client.batching import EnqueueBatcher
from taskharbor.client.portal import Portal
from taskharbor.drivers.contract import Driver
from taskharbor.errors import InvalidArgument

_log = logging.getLogger("taskharbor.client")


class LoopConnection:
    """An open driver and its batcher, for one event loop."""

    def __init__(self, driver: Driver, *, is_ours: bool) -> None:
        self.driver = driver
        self.batcher = EnqueueBatcher(driver)
        self.is_ours = is_ours

    async def close(self) -> None:
        if self.is_ours:
            await self.driver.close()


def loop_here() -> asyncio.AbstractEventLoop:
    """The running event loop.

    Raises:
        InvalidArgument: no asyncio loop runs here; the caller may use trio.
    """
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise InvalidArgument(
            "async calls need an asyncio event loop, and none is running; under trio, call the blocking "
            "form in a thread: `await trio.to_thread.run_sync(task.enqueue, ...)`; nothing was done"
        ) from None


class LoopConnections:
    """The open drivers of one store, one per event loop.

    With `opens`, each loop gets a driver of its own, opened on first use and closed by us. Without
    it, the caller opens and closes the driver, and only blocking calls get one of their own.
    """

    def __init__(self, driver: Driver, *, opens: bool) -> None:
        self.driver = driver
        self.portal = Portal()
        self._opens = opens
        self._start_afresh()
        _all.add(self)

    def _start_afresh(self) -> None:
        self.by_loop: dict[asyncio.AbstractEventLoop, LoopConnection] = {}
        """The open connections."""
        self._locks: dict[asyncio.AbstractEventLoop, asyncio.Lock] = {}
        self._blocking_lock = threading.Lock()
        self.blocking: Driver | None = None
        """The portal's driver once it is open; blocking enqueues call it directly, without a loop."""
        weakref.finalize(self, _close_portal, self.portal, self.by_loop).atexit = False

    async def here(self, tx: Any = None) -> LoopConnection:
        """The connection of the running loop, opened if needed. `tx` is checked before anything opens."""
        loop = loop_here()
        if loop in self.by_loop:
            return self.by_loop[loop]
        if tx is not None:
            self.driver.check_tx(tx)
        return await self._open_in(loop)

    def for_blocking(self, tx: Any = None) -> Driver:
        """The portal's driver, opened if needed. `tx` is checked before anything opens."""
        with self._blocking_lock:
            if self.blocking is None:
                if tx is not None:
                    self.driver.check_tx(tx)
                self.blocking = self.portal.call(self.here).driver
            return self.blocking

    async def aclose(self) -> None:
        """Close this loop's driver and the portal's."""
        there = self.by_loop.pop(loop_here(), None)
        if there is not None:
            await there.close()
        await _close_all(self._of_closed_loops())
        await asyncio.to_thread(self.close)

    def close(self, *, quietly: bool = False) -> None:
        """Close the portal and its driver."""
        self.blocking = None
        _close_portal(self.portal, self.by_loop, quietly=quietly)

    async def _open_in(self, loop: asyncio.AbstractEventLoop) -> LoopConnection:
        async with self._locks.setdefault(loop, asyncio.Lock()):
            if loop in self.by_loop:
                return self.by_loop[loop]
            connection = await self._new_connection(loop)
            self.by_loop[loop] = connection
            await _close_all(self._of_closed_loops())
            return connection

    async def _new_connection(self, loop: asyncio.AbstractEventLoop) -> LoopConnection:
        if not self._opens and loop is not self.portal.loop:
            return LoopConnection(self.driver, is_ours=False)
        return LoopConnection(await self.driver.another().open(), is_ours=True)

    def _of_closed_loops(self) -> list[LoopConnection]:
        """Connections whose loop is closed, as `asyncio.run` leaves them. Only we can close them now."""
        closed = [loop for loop in list(self.by_loop) if loop.is_closed()]
        for loop in closed:
            self._locks.pop(loop, None)
        return [left for loop in closed if (left := self.by_loop.pop(loop, None)) is not None]

    def after_fork(self) -> None:
        """In a forked child: its threads are gone, and the connections belong to the parent."""
        self.portal = Portal()
        self._start_afresh()


async def _close_all(connections: list[LoopConnection]) -> None:
    """Close drivers whose own loop is gone, from the running loop."""
    for connection in connections:
        try:
            await connection.close()
        except Exception:  # noqa: BLE001 - part of it may be bound to the loop that is gone
            _log.debug("closing a driver whose event loop is closed failed", exc_info=True)


def _close_portal(
    portal: Portal, by_loop: dict[asyncio.AbstractEventLoop, LoopConnection], *, quietly: bool = False
) -> None:
    loop = portal.loop
    there = by_loop.pop(loop, None) if loop is not None else None
    portal.close(there.close if there is not None else None, quietly=quietly)


_all: weakref.WeakSet[LoopConnections] = weakref.WeakSet()


def _after_fork() -> None:
    for connections in list(_all):
        connections.after_fork()


def _at_the_end() -> None:
    """Close every store when the program exits without doing so.

    Quietly: from here on Python 3.12 starts no new threads, which closing some stores needs.
    """
    for connections in list(_all):
        connections.close(quietly=True)


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_after_fork)
# atexit would be too late: by then threads and executors, which drivers use to close, are gone.
threading._register_atexit(_at_the_end)  # type: ignore[attr-defined]
