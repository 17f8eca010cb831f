"""One run of a worker: the parts, how they are joined, and the order in which they stop.

fetcher ──jobs──► custody ──settlements──► fetcher ──► store
                     ▲ stop, newest tokens
                   heart (extends leases)

working ──stop──► draining ──grace over, or stop again──► releasing ──► over
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from taskharbor.drivers.contract import Driver
from taskharbor.errors import ConfigurationError, Forbidden
from taskharbor.events import EventBus
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import JobRecord
from taskharbor.worker.announcer import Announcer
from taskharbor.worker.attempt import Runner
from taskharbor.worker.config import WorkerConfig
from taskharbor.worker.custody import Custody
from taskharbor.worker.executors.contract import Executor
from taskharbor.worker.fetcher import Fetcher
from taskharbor.worker.heartbeat_loop import HeartbeatLoop, HeartbeatTask, HeartbeatThread
from taskharbor.worker.lease_keeper import LeaseKeeper
from taskharbor.worker.loop_monitor import LoopMonitor
from taskharbor.worker.memory_use import resident_memory
from taskharbor.worker.presence import Presence
from taskharbor.worker.timing import Timing
from taskharbor.worker.wakeup_listener import WakeupListener

_log = logging.getLogger("taskharbor.worker")

LAST_PATIENCE_SECONDS = 0.5  # for handlers told that the worker goes, before their jobs are released
LAST_WORDS_SECONDS = 3.0  # for the last settlements on a slow store


class WorkerRun:
    """One run of a worker, from its first claim to its last settlement."""

    def __init__(
        self,
        config: WorkerConfig,
        driver: Driver,
        worker_id: str,
        runners: dict[str, Runner],
        executors: list[Executor],
        timing: Timing,
        entropy: Entropy,
        events: EventBus,
    ) -> None:
        self._config = config
        self._driver = driver
        self._worker_id = worker_id
        self._executors = executors
        self._timing = timing
        self._entropy = entropy
        self.announcer = Announcer(config, worker_id, events, driver.outage)
        self._loop = asyncio.get_running_loop()
        self._types = tuple(sorted(runners))
        self._has_news = asyncio.Event()
        self._told_to_stop = asyncio.Event()
        self._is_hurried = False
        self._stops_when_idle = False
        self.why = ""
        self.error: ConfigurationError | None = None
        """Why it cannot go on, where that is known."""

        self._custody = custody = Custody(
            config,
            driver,
            runners,
            timing,
            entropy,
            events,
            self.announcer,
            self._ring,
            self._expect_after,
            self._hear_news,
        )
        self.leased_jobs = custody.leased_jobs
        self._fetcher = Fetcher(
            config,
            driver,
            worker_id,
            self._types if config.unknown_types == "skip" else None,
            custody.leased_jobs,
            custody.settler,
            timing,
            entropy,
            lambda: custody.slots.waiting,
            self._claimed,
            self.announcer.given_up,
            self.announcer.trouble,
            self._forbidden,
            self._idle,
            lambda: self.announcer.finished,
        )
        self._hints = WakeupListener(
            driver,
            config.queues,
            worker_id,
            timing,
            entropy,
            self._fetcher.hint,
            self._cancel_hinted,
            self.announcer.trouble,
        )
        self._loop_monitor = LoopMonitor(timing, self._loop, worker_id, events)
        self._heartbeat: HeartbeatThread | HeartbeatTask = (
            HeartbeatTask(driver, self._new_heartbeat)
            if timing.is_virtual
            else HeartbeatThread(driver, self._new_heartbeat, timing)
        )

    # ------------------------------------------------------------------ from outside

    def stop(self, why: str = "stop", *, now: bool = False) -> None:
        """Claim nothing more and end after the running jobs; `now`: release them at once."""
        self.why = self.why or why
        self._is_hurried = self._is_hurried or now
        self._fetcher.may_claim = False
        self._told_to_stop.set()
        self._has_news.set()

    def quiet(self) -> None:
        """Claim nothing more, and stay."""
        self._fetcher.may_claim = False

    @property
    def heartbeat_lag(self) -> float:
        """By how many seconds the most overdue extension of a lease is late."""
        oldest = min((leased.extended for leased in self.leased_jobs), default=None)
        if oldest is None:
            return 0.0
        late = self._timing.monotonic() - oldest - self._config.renew_every.total_seconds()
        return max(late, 0.0)

    # ------------------------------------------------------------------ the run

    async def run(self, *, until_idle: bool) -> None:
        self._stops_when_idle = until_idle
        self.announcer.worker_started(self._types)
        self._heartbeat.start()
        fetching = self._loop.create_task(self._fetcher.run())
        listening = (
            self._loop.create_task(self._hints.follow()) if self._driver.capabilities.wakeups else None
        )
        try:
            await self._told_to_stop.wait()
            await self._drain()
        except asyncio.CancelledError:
            self.stop("cancelled", now=True)
            await self._drain()
            raise
        finally:
            await self._close(fetching, listening)

    async def _drain(self) -> None:
        for leased in self._custody.slots.take_waiting():
            self._custody.release(leased)
        await self._settled_within(self._config.grace.total_seconds(), lambda: self._is_hurried)
        for leased in self._custody.running():
            self._custody.deadlines.tell(leased, "shutdown", LAST_PATIENCE_SECONDS)
        await self._settled_within(LAST_PATIENCE_SECONDS, lambda: not self._custody.running())
        for leased in self._custody.running():
            self._custody.give_up(leased)
        if not await self._settled_within(LAST_WORDS_SECONDS, lambda: False):
            _log.warning(
                "%d jobs could not be released; they wait for their leases to end", self.leased_jobs.count
            )

    async def _settled_within(self, seconds: float, is_enough: Callable[[], bool]) -> bool:
        """Wait until nothing is leased any more; whether it came to that in time."""
        over = self._timing.monotonic() + seconds
        while self.leased_jobs.count and not is_enough():
            left = over - self._timing.monotonic()
            if left <= 0:
                return False
            self._has_news.clear()
            await self._timing.until(self._has_news, left)
        return not self.leased_jobs.count

    async def _close(self, fetching: asyncio.Task[None], listening: asyncio.Task[None] | None) -> None:
        self._fetcher.end()
        with suppress(TimeoutError):
            await self._timing.within(LAST_WORDS_SECONDS, _ended(fetching))
        fetching.cancel()
        if listening is not None:
            listening.cancel()
            await _ended(listening)
        self._custody.deadlines.close()
        await self._heartbeat.stop()
        for executor in self._executors:
            await executor.close()
        await self._custody.slots.close()
        self.announcer.worker_stopped(self.why)

    # ------------------------------------------------------------------ jobs come and go

    def _claimed(self, records: list[JobRecord], sent: float) -> None:
        batch = self._custody.take(records, sent)
        if not self._fetcher.may_claim:  # told to stop while the claim was under way
            for leased in batch:
                self._custody.release(leased)
            return
        trusted_for = sent + self._config.trust_seconds - self._timing.monotonic()
        if trusted_for < self._config.renew_every.total_seconds():
            self._heartbeat.poke(batch)  # the claim took so long that the next beat would come too late
        self._custody.slots.put(batch)

    def _ring(self) -> None:
        self._fetcher.ring()

    def _expect_after(self, seconds: float) -> None:
        self._fetcher.expect_after(seconds)

    def _hear_news(self) -> None:
        """Nothing is leased any more, or as many jobs are done as this run may do."""
        self._has_news.set()
        if self.announcer.finished == self._config.max_jobs > 0:
            self.stop("recycle")

    def _cancel_hinted(self, job_id: str) -> None:
        """A hint may be wrong: the lease itself says whether a cancel was requested."""
        leased = self.leased_jobs.get(job_id)
        if leased is not None:
            self._heartbeat.poke([leased])

    # ------------------------------------------------------------------ the heart

    def _new_heartbeat(self, driver: Driver) -> HeartbeatLoop:
        heartbeat = LeaseKeeper(
            self._config,
            driver,
            self.leased_jobs,
            self._timing,
            self._custody.stop,
            self.announcer.extended,
            self._extension_over,
        )
        presence = Presence(
            self._config,
            self._worker_id,
            self._types,
            driver,
            self.leased_jobs,
            self._custody.durations,
            self._timing,
            self._timing.clock.now(),
            lambda: not self._fetcher.may_claim,
        )
        return HeartbeatLoop(
            heartbeat,
            presence,
            self._timing,
            self._entropy.split("heart"),
            self.announcer.trouble,
            driver.outage.answered,
            self._ticked,
        )

    def _ticked(self) -> bool:
        """From the heart, at every look at the clock; whether jobs run."""
        is_busy = bool(len(self.leased_jobs))
        if not self._timing.is_virtual:
            self._loop_monitor.look(is_busy)
            self._mind_memory()
        return is_busy

    def _mind_memory(self) -> None:
        if 0 < self._config.max_memory < resident_memory() and not self._told_to_stop.is_set():
            with suppress(RuntimeError):  # the worker has just ended
                self._loop.call_soon_threadsafe(self.stop, "recycle")

    def _extension_over(self) -> None:
        """Settlements that waited for an extension may leave now."""
        if self._timing.is_virtual:
            self._fetcher.ring()
        else:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._fetcher.ring)

    def _forbidden(self, error: Forbidden) -> None:
        """The server will never let this worker do its work: end it, and say what would help."""
        if self.error is None:
            queues = ", ".join(self._config.queues)
            self.error = ConfigurationError(
                f"{error}. This worker serves {queues}: let it name the queues that its token is for "
                "(--queues), or give it a token of the role worker for all of these"
            )
            self.stop("forbidden", now=True)

    def _idle(self) -> None:
        if self._stops_when_idle:
            self.stop("idle")


async def _ended(task: asyncio.Task[None]) -> None:
    with suppress(asyncio.CancelledError, Exception):
        await task
