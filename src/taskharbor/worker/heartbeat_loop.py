"""Runs the lease keeper periodically in a thread of its own, or as a task in virtual time."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from taskharbor.drivers.contract import Driver
from taskharbor.worker.cancellation import HandlerStopper
from taskharbor.worker.lease_keeper import LeaseKeeper
from taskharbor.worker.leased_jobs import LeasedJob
from taskharbor.worker.presence import PresenceReporter

if TYPE_CHECKING:
    from taskharbor.worker.run import Run

_log = logging.getLogger("taskharbor.worker")

TICK_SECONDS = 0.5  # in real time, while jobs run: progress of handlers, and a look at the event loop


class HeartbeatLoop:
    """Extends leases when it is time, reports the worker now and then, and looks at the clock in between."""

    def __init__(self, run: Run, driver: Driver, keeper: LeaseKeeper, presence: PresenceReporter) -> None:
        self._run = run
        self._driver = driver
        self._keeper = keeper
        self._presence = presence
        self._timing = run.timing
        self._entropy = run.entropy.split("heart")
        self._poke = asyncio.Event()
        self._urgent: list[LeasedJob] = []
        self._failures = 0
        self._failed_reports = 0
        self._retry_at = 0.0
        self._reporting: asyncio.Future[None] | None = None
        self.is_over = False

    def poke(self, urgent: list[LeasedJob]) -> None:
        """Extend these leases at once: little of them is left, or their job may have been cancelled."""
        self._urgent += urgent
        self._poke.set()

    def end(self) -> None:
        self.is_over = True
        self._poke.set()

    async def run(self) -> None:
        while not self.is_over:
            is_busy = self._run.ticked()
            try:
                await self.tick()
            except Exception:  # noqa: BLE001 - without it every lease would run out
                _log.exception("the heartbeat failed; it continues")
            await self._timing.until(self._poke, self._wait_seconds(is_busy))
            self._poke.clear()
        with suppress(Exception):
            if self._reporting is not None:
                await self._reporting
            await self._presence.leave()

    async def tick(self) -> None:
        if self._timing.monotonic() >= self._retry_at:
            urgent, self._urgent = self._urgent, []
            await self._extend(urgent)
        self._keeper.drop_overdue()
        if self._presence.is_due() and not self._is_reporting():
            # Beside the extension: a slow report must not delay leases, and is not dropped for being slow.
            self._reporting = asyncio.ensure_future(self._report())

    def _is_reporting(self) -> bool:
        return self._reporting is not None and not self._reporting.done()

    async def _report(self) -> None:
        try:
            await self._presence.report()
            self._failed_reports = 0
            self._driver.outage.answered()
        except Exception as error:  # noqa: BLE001 - no fault of a store ends the loop
            self._failed_reports += 1
            self._run.announcer.trouble("report_worker", error, self._failed_reports)
        finally:
            self._poke.set()  # to see when the next one is due

    async def _extend(self, urgent: list[LeasedJob]) -> None:
        wanted = dict.fromkeys((*self._keeper.wanted(), *urgent))
        try:
            if wanted:
                await self._keeper.extend(wanted)
                self._failures = 0
                self._driver.outage.answered()
        except Exception as error:  # noqa: BLE001 - the same
            self._failures += 1
            self._urgent += urgent  # nothing is known about them yet
            wait = self._keeper.retry_seconds(self._failures, self._entropy)
            self._retry_at = self._timing.monotonic() + wait
            self._run.announcer.trouble("extend_leases", error, self._failures)

    def _wait_seconds(self, is_busy: bool) -> float:
        now = self._timing.monotonic()
        wait = self._keeper.wait_seconds()
        if self._retry_at > now:
            wait = max(wait, self._retry_at - now)
        if not self._is_reporting():
            wait = min(wait, self._presence.next_due() - now)
        if is_busy and not self._timing.is_virtual:
            wait = min(wait, TICK_SECONDS)
        return max(wait, 0.001)


def new_heartbeat_loop(run: Run, driver: Driver, stopper: HandlerStopper) -> HeartbeatLoop:
    return HeartbeatLoop(run, driver, LeaseKeeper(run, driver, stopper), PresenceReporter(run, driver))


class HeartbeatThread:
    """Runs the loop in a thread with an event loop and a store handle of its own."""

    def __init__(self, run: Run, stopper: HandlerStopper) -> None:
        self._run = run
        self._stopper = stopper
        self._driver = run.driver.another()
        self._home = asyncio.get_running_loop()
        self._has_ended = asyncio.Event()
        self._thread_loop: asyncio.AbstractEventLoop | None = None
        self._loop: HeartbeatLoop | None = None
        self._early: list[LeasedJob] = []  # pokes from before there was a loop
        self._is_ending = False

    def start(self) -> None:
        threading.Thread(target=self._main, name="taskharbor-heartbeat", daemon=True).start()

    def poke(self, urgent: list[LeasedJob]) -> None:
        if self._loop is None:
            self._early += urgent
        self._call(lambda loop: loop.poke(urgent))  # it may have started just now

    async def stop(self, seconds: float = 2.0) -> None:
        """End the loop after its last call; a call that hangs is abandoned with its daemon thread."""
        self._is_ending = True
        self._call(HeartbeatLoop.end)
        if not await self._run.timing.until(self._has_ended, seconds):
            _log.warning("the heartbeat does not end; its thread is abandoned")

    def _call(self, what: Callable[[HeartbeatLoop], None]) -> None:
        thread_loop, loop = self._thread_loop, self._loop
        if thread_loop is not None and loop is not None:
            with suppress(RuntimeError):  # its event loop has just been closed
                thread_loop.call_soon_threadsafe(what, loop)

    def _main(self) -> None:
        try:
            asyncio.run(self._work())
        finally:
            with suppress(RuntimeError):
                self._home.call_soon_threadsafe(self._has_ended.set)

    async def _work(self) -> None:
        if not await self._open():
            return
        try:
            self._thread_loop = asyncio.get_running_loop()
            self._loop = new_heartbeat_loop(self._run, self._driver, self._stopper)
            self._loop.poke(self._early)
            if self._is_ending:
                self._loop.end()
            await self._loop.run()
        finally:
            await self._driver.close()

    async def _open(self) -> bool:
        """Keep trying: without a heartbeat the worker could keep no lease for long."""
        while not self._is_ending:
            try:
                await self._driver.open()
                return True
            except Exception as error:  # noqa: BLE001 - no fault of a store ends the loop
                self._driver.outage.failed("open, for the heartbeat", error)
                await self._run.timing.clock.sleep(0.5)
        return False


class HeartbeatTask:
    """Runs the loop as a task of the worker's own event loop: in virtual time."""

    def __init__(self, run: Run, stopper: HandlerStopper) -> None:
        self._loop = new_heartbeat_loop(run, run.driver, stopper)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._loop.run())

    def poke(self, urgent: list[LeasedJob]) -> None:
        self._loop.poke(urgent)

    async def stop(self) -> None:
        self._loop.end()
        if self._task is not None:
            await self._task
