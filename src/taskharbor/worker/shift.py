"""One run of a worker: the parts, how they are joined, and the order in which they stop.

fetcher ──jobs──► slots ──outcomes──► decide ──settlements──► settler ──► fetcher ──► store
                    ▲ stop                                       ▲ newest tokens
                  watch ◄────────────── heart (extends leases) ──┘

working ──stop──► draining ──grace over, or stop again──► releasing ──► over
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Settled
from taskharbor.errors import LeaseLost
from taskharbor.events import EventBus
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import JobRecord
from taskharbor.model.outcome import Failed, Outcome, Released, Succeeded
from taskharbor.model.settlement import Ack, Retry, Settlement, attempts_allowed, decide
from taskharbor.worker.announcer import Announcer
from taskharbor.worker.attempt import Runner, stopped_by
from taskharbor.worker.config import WorkerConfig
from taskharbor.worker.context import Reason
from taskharbor.worker.executors.contract import Executor
from taskharbor.worker.fetcher import Fetcher
from taskharbor.worker.footprint import resident_memory
from taskharbor.worker.gpus import GpuPool
from taskharbor.worker.heart import Heart, HeartTask, HeartThread
from taskharbor.worker.heartbeat import Heartbeat
from taskharbor.worker.held import Held, Holdings
from taskharbor.worker.hints import Hints
from taskharbor.worker.lag import LoopEye
from taskharbor.worker.presence import MAX_SAMPLES, Durations, Presence
from taskharbor.worker.settler import Settler
from taskharbor.worker.slots import Slots
from taskharbor.worker.timing import Timing
from taskharbor.worker.transaction import Transactions
from taskharbor.worker.watch import Watch

_log = logging.getLogger("taskharbor.worker")

LAST_PATIENCE_SECONDS = 0.5  # for handlers told that the worker goes, before their jobs are released
LAST_WORDS_SECONDS = 3.0  # for the last settlements on a slow store


class Shift:
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
        self._runners = runners
        self._executors = executors
        self._timing = timing
        self._entropy = entropy
        self.announcer = Announcer(config, worker_id, events)
        self._loop = asyncio.get_running_loop()
        self._types = tuple(sorted(runners))
        self._durations: Durations = deque(maxlen=MAX_SAMPLES)
        self._has_news = asyncio.Event()
        self._told_to_stop = asyncio.Event()
        self._is_hurried = False
        self._stops_when_idle = False
        self.why = ""

        self.holdings = Holdings()
        self._gpus = GpuPool(config.gpus)
        self._settler = Settler(
            driver, self.holdings, timing, self._settled, self._refused, self.announcer.answered
        )
        self._watch = Watch(timing, config.patience.total_seconds(), self._give_up)
        self._slots = Slots(
            config.concurrency,
            runners,
            timing,
            self._watch,
            self._finished,
            self.announcer.started,
            driver.max_payload,
            Transactions(driver, self.holdings, timing) if driver.capabilities.tx else None,
        )
        self._fetcher = Fetcher(
            config,
            driver,
            worker_id,
            self._types if config.unknown_types == "skip" else None,
            self.holdings,
            self._settler,
            timing,
            entropy,
            self._claimed,
            self.announcer.trouble,
            self._idle,
            lambda: self.announcer.finished,
        )
        self._hints = Hints(
            driver,
            config.queues,
            worker_id,
            timing,
            entropy,
            self._fetcher.hint,
            self._cancel_hinted,
            self.announcer.trouble,
        )
        self._eye = LoopEye(timing, self._loop, worker_id, events)
        self._heart: HeartThread | HeartTask = (
            HeartTask(driver, self._new_heart)
            if timing.is_virtual
            else HeartThread(driver, self._new_heart, timing)
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
        oldest = min((held.extended for held in self.holdings), default=None)
        if oldest is None:
            return 0.0
        late = self._timing.monotonic() - oldest - self._config.renew_every.total_seconds()
        return max(late, 0.0)

    # ------------------------------------------------------------------ the run

    async def run(self, *, until_idle: bool) -> None:
        self._stops_when_idle = until_idle
        self.announcer.worker_started()
        self._heart.start()
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
        for held in self._slots.take_waiting():
            self._release(held)
        await self._settled_within(self._config.grace.total_seconds(), lambda: self._is_hurried)
        for held in self._running():
            self._watch.tell(held, "shutdown", LAST_PATIENCE_SECONDS)
        await self._settled_within(LAST_PATIENCE_SECONDS, lambda: not self._running())
        for held in self._running():
            self._give_up(held)
        if not await self._settled_within(LAST_WORDS_SECONDS, lambda: False):
            _log.warning(
                "%d jobs could not be released; they wait for their leases to end", self.holdings.count
            )

    async def _settled_within(self, seconds: float, is_enough: Callable[[], bool]) -> bool:
        """Wait until nothing is held any more; whether it came to that in time."""
        over = self._timing.monotonic() + seconds
        while self.holdings.count and not is_enough():
            left = over - self._timing.monotonic()
            if left <= 0:
                return False
            self._has_news.clear()
            await self._timing.until(self._has_news, left)
        return not self.holdings.count

    def _running(self) -> list[Held]:
        return [held for held in (*self.holdings, *self.holdings.lost) if not held.is_over]

    async def _close(self, fetching: asyncio.Task[None], listening: asyncio.Task[None] | None) -> None:
        self._fetcher.end()
        with suppress(TimeoutError):
            await self._timing.within(LAST_WORDS_SECONDS, _ended(fetching))
        fetching.cancel()
        if listening is not None:
            listening.cancel()
            await _ended(listening)
        self._watch.close()
        await self._heart.stop()
        for executor in self._executors:
            await executor.close()
        await self._slots.close()
        self.announcer.worker_stopped(self.why)

    # ------------------------------------------------------------------ a job's way

    def _claimed(self, records: list[JobRecord], sent: float) -> None:
        self.announcer.claimed(records)
        trusted_until = sent + self._config.trust_seconds
        batch = [Held(record, sent, trusted_until) for record in records]
        for held in batch:
            self.holdings.add(held)
            if self._config.gpus:
                self._gpus.equip(held)
        if not self._fetcher.may_claim:  # told to stop while the claim was under way
            for held in batch:
                self._release(held)
            return
        if trusted_until - self._timing.monotonic() < self._config.renew_every.total_seconds():
            self._heart.poke(batch)  # the claim took so long that the next beat would come too late
        self._slots.put(batch)

    def _finished(self, held: Held, outcome: Outcome) -> None:
        """An attempt has its outcome: decide, and hand the settlement over."""
        record = held.record
        if held.started is not None:
            self._durations.append((record.type, held.ended - held.started))
        if held.acked is not None:
            self._completed(held, held.acked, outcome)
            return
        if held.is_lost:
            if held.ran_to_its_end:
                self.announcer.ran_twice(held)
            self._free(held)
            self._fetcher.ring()
            return
        held.outcome = outcome
        self._settler.add(held, self._decided(record, outcome))
        self._fetcher.ring()

    def _completed(self, held: Held, answer: Settled, outcome: Outcome) -> None:
        """The handler's own transaction has completed the job, whatever it came to after that."""
        if not isinstance(outcome, Succeeded):
            self.announcer.overtaken(held, outcome)
        held.outcome = Succeeded()
        held.settlement = Ack(held.lease)
        self._settler.answered([held], [answer])
        self._fetcher.ring()

    def _decided(self, record: JobRecord, outcome: Outcome) -> Settlement:
        if not isinstance(outcome, Failed):
            return decide(record, outcome, limit=0, backoff=_never)
        runner = self._runners.get(record.type)
        policy = (runner and runner.handler.retry) or self._config.retry

        def backoff(failures: int) -> timedelta:
            return policy.next_delay(
                failures, self._entropy, least=record.min_backoff, most=record.max_backoff
            )

        limit = attempts_allowed(record.max_attempts, policy.max_attempts)
        return decide(record, outcome, limit=limit, backoff=backoff)

    def _release(self, held: Held) -> None:
        held.is_over = True
        self._finished(held, Released())

    def _settled(self, held: Held, answer: Settled) -> None:
        self.announcer.settled(held, answer)
        settlement = held.settlement
        if type(settlement) is Retry and settlement.delay is not None:
            self._fetcher.expect_after(settlement.delay.total_seconds())
        self._free(held)
        if self.announcer.finished == self._config.max_jobs:
            self.stop("recycle")

    def _free(self, held: Held) -> None:
        self.holdings.leave(held)
        self._gpus.give_back(held)
        if not self.holdings.count:
            self._has_news.set()

    # ------------------------------------------------------------------ a job that must stop

    def _stop_job(self, held: Held, reason: Reason, cause: str) -> None:
        """From the heart, in whatever thread it lives: the handler sees it at once, the loop acts on it."""
        held.cancellation.set(reason)
        if self._timing.is_virtual:
            self._act_on_stop(held, reason, cause)
        else:
            with suppress(RuntimeError):  # the worker has just ended
                self._loop.call_soon_threadsafe(self._act_on_stop, held, reason, cause)

    def _act_on_stop(self, held: Held, reason: Reason, cause: str) -> None:
        if held.is_over or held.is_lost or held.acked is not None:
            return
        if reason == "lease_lost":
            held.is_lost = True
            self.holdings.forget(held)
            self.announcer.lost(held, cause)
        self._watch.tell(held, reason)

    def _refused(self, held: Held, error: LeaseLost) -> None:
        """The store refused a settlement: whatever the handler did is thrown away."""
        self.announcer.lost(held, f"settle: {error}")
        if isinstance(held.outcome, Succeeded):
            self.announcer.ran_twice(held)
        self._free(held)

    def _give_up(self, held: Held) -> None:
        """A handler was told to stop and did not: settle its job without it."""
        executor = held.executor
        if executor is None or held.is_over:
            return
        slot_goes_on = executor.give_up(held)
        if executor.where != "process":
            self.announcer.abandoned(held, executor.where)
        if not slot_goes_on:
            held.ended = self._timing.monotonic()
            self._slots.replace(held)
            self._finished(held, stopped_by(held, held.record.timeout) or Released())

    def _cancel_hinted(self, job_id: str) -> None:
        """A hint may be wrong: the lease itself says whether a cancel was requested."""
        held = self.holdings.get(job_id)
        if held is not None:
            self._heart.poke([held])

    # ------------------------------------------------------------------ the heart and the store

    def _new_heart(self, driver: Driver) -> Heart:
        heartbeat = Heartbeat(
            self._config,
            driver,
            self.holdings,
            self._timing,
            self._stop_job,
            self.announcer.extended,
            self._extension_over,
        )
        presence = Presence(
            self._config,
            self._worker_id,
            self._types,
            driver,
            self.holdings,
            self._durations,
            self._timing,
            self._timing.clock.now(),
        )
        return Heart(
            heartbeat,
            presence,
            self._timing,
            self._entropy.split("heart"),
            self.announcer.trouble,
            self._ticked,
        )

    def _ticked(self) -> bool:
        """From the heart, at every look at the clock; whether jobs run."""
        is_busy = bool(len(self.holdings))
        if not self._timing.is_virtual:
            self._eye.look(is_busy)
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

    def _idle(self) -> None:
        if self._stops_when_idle:
            self.stop("idle")


async def _ended(task: asyncio.Task[None]) -> None:
    with suppress(asyncio.CancelledError, Exception):
        await task


def _never(failures: int) -> timedelta:
    raise AssertionError("only a failure waits for another try")
