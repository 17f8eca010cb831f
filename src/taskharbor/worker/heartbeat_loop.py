"""What keeps the heartbeat going: the loop around it, and the thread it lives in."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress

from taskharbor.drivers.contract import Driver
from taskharbor.model.entropy import Entropy
from taskharbor.worker.lease_keeper import LeaseKeeper
from taskharbor.worker.leased_jobs import LeasedJob
from taskharbor.worker.presence import Presence
from taskharbor.worker.timing import Timing

_log = logging.getLogger("taskharbor.worker")

TICK_SECONDS = 0.5  # in real time, while jobs run: news from handlers, and an eye on the event loop

Trouble = Callable[[str, BaseException, int], None]


class HeartbeatLoop:
    """The loop: beat when it is time, report now and then, look at the clock in between."""

    def __init__(
        self,
        keeper: LeaseKeeper,
        presence: Presence,
        timing: Timing,
        entropy: Entropy,
        on_trouble: Trouble,
        on_answer: Callable[[], None],
        on_tick: Callable[[], bool],
    ) -> None:
        self._keeper = keeper
        self._on_answer = on_answer
        self._presence = presence
        self._timing = timing
        self._entropy = entropy
        self._on_trouble = on_trouble
        self._on_tick = on_tick  # answers whether jobs run
        self._poke = asyncio.Event()
        self._urgent: list[LeasedJob] = []
        self._failures = 0
        self._failed_reports = 0
        self._retry_at = 0.0
        self._reporting: asyncio.Future[None] | None = None
        self.is_over = False

    def poke(self, urgent: list[LeasedJob]) -> None:
        """Look at these leases at once: something is said to have happened to them."""
        self._urgent += urgent
        self._poke.set()

    def end(self) -> None:
        self.is_over = True
        self._poke.set()

    async def run(self) -> None:
        while not self.is_over:
            is_busy = self._on_tick()
            try:
                await self.tick()
            except Exception:  # noqa: BLE001 - without it every lease would run out
                _log.exception("the heartbeat stumbled; it goes on")
            await self._timing.until(self._poke, self._wait_seconds(is_busy))
            self._poke.clear()
        with suppress(Exception):
            if self._reporting is not None:
                await self._reporting
            await self._presence.leave()

    async def tick(self) -> None:
        if self._timing.monotonic() >= self._retry_at:
            urgent, self._urgent = self._urgent, []
            await self._beat(urgent)
        self._keeper.drop_overdue()
        if self._presence.is_due() and not self._is_reporting():
            # Beside the beat: a slow report must not hold leases up, and is not thrown away for being slow.
            self._reporting = asyncio.ensure_future(self._report())

    def _is_reporting(self) -> bool:
        return self._reporting is not None and not self._reporting.done()

    async def _report(self) -> None:
        try:
            await self._presence.report()
            self._failed_reports = 0
            self._on_answer()
        except Exception as error:  # noqa: BLE001 - no fault of a store ends the loop
            self._failed_reports += 1
            self._on_trouble("report_worker", error, self._failed_reports)
        finally:
            self._poke.set()  # to see when the next one is due

    async def _beat(self, urgent: list[LeasedJob]) -> None:
        wanted = dict.fromkeys((*self._keeper.wanted(), *urgent))
        try:
            if wanted:
                await self._keeper.beat(wanted)
                self._failures = 0
                self._on_answer()
        except Exception as error:  # noqa: BLE001 - the same
            self._failures += 1
            self._urgent += urgent  # nothing is known about them yet
            wait = self._keeper.retry_seconds(self._failures, self._entropy)
            self._retry_at = self._timing.monotonic() + wait
            self._on_trouble("extend_leases", error, self._failures)

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


class HeartbeatThread:
    """Runs the heart in a thread with an event loop and a store handle of its own."""

    def __init__(self, driver: Driver, build: Callable[[Driver], HeartbeatLoop], timing: Timing) -> None:
        self._driver = driver.another()
        self._build = build
        self._timing = timing
        self._home = asyncio.get_running_loop()
        self._has_ended = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._beating: HeartbeatLoop | None = None
        self._early: list[LeasedJob] = []  # pokes from before there was a heart
        self._is_ending = False

    def start(self) -> None:
        threading.Thread(target=self._run, name="taskharbor-heartbeat", daemon=True).start()

    def poke(self, urgent: list[LeasedJob]) -> None:
        if self._beating is None:
            self._early += urgent
        self._call(lambda loop: loop.poke(urgent))  # it may have come to life just now

    async def stop(self, seconds: float = 2.0) -> None:
        """End the heart after its last call; a call that hangs is left behind with its daemon thread."""
        self._is_ending = True
        self._call(HeartbeatLoop.end)
        if not await self._timing.until(self._has_ended, seconds):
            _log.warning("the heartbeat does not end; it is left behind")

    def _call(self, what: Callable[[HeartbeatLoop], None]) -> None:
        loop, beating = self._loop, self._beating
        if loop is not None and beating is not None:
            with suppress(RuntimeError):  # its loop has just been closed
                loop.call_soon_threadsafe(what, beating)

    def _run(self) -> None:
        try:
            asyncio.run(self._live())
        finally:
            with suppress(RuntimeError):
                self._home.call_soon_threadsafe(self._has_ended.set)

    async def _live(self) -> None:
        if not await self._open():
            return
        try:
            self._loop = asyncio.get_running_loop()
            self._beating = self._build(self._driver)
            self._beating.poke(self._early)
            if self._is_ending:
                self._beating.end()
            await self._beating.run()
        finally:
            await self._driver.close()

    async def _open(self) -> bool:
        """Keep trying: without a heartbeat of its own the worker could hold nothing for long."""
        while not self._is_ending:
            try:
                await self._driver.open()
                return True
            except Exception as error:  # noqa: BLE001 - the same
                self._driver.outage.failed("open, for the heartbeat", error)
                await self._timing.clock.sleep(0.5)
        return False


class HeartbeatTask:
    """Runs the heart as a task of the worker's own event loop: in virtual time."""

    def __init__(self, driver: Driver, build: Callable[[Driver], HeartbeatLoop]) -> None:
        self._beating = build(driver)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._beating.run())

    def poke(self, urgent: list[LeasedJob]) -> None:
        self._beating.poke(urgent)

    async def stop(self) -> None:
        self._beating.end()
        if self._task is not None:
            await self._task
