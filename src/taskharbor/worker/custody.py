"""Custody: what becomes of a job that this worker holds, from its claim to the answer of its settlement.

claimed ──► slots ──outcome──► decide ──► settler ──► store ──answer──► gone
               ▲ stop
             watch ◄── lease refused, cancelled, time over, shutdown
"""

from __future__ import annotations

import asyncio
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
from taskharbor.worker.deadlines import Deadlines
from taskharbor.worker.gpus import GpuPool
from taskharbor.worker.leased_jobs import LeasedJob, LeasedJobs
from taskharbor.worker.presence import MAX_SAMPLES, Durations
from taskharbor.worker.settler import Settler
from taskharbor.worker.slots import Slots
from taskharbor.worker.timing import Timing
from taskharbor.worker.transaction import Transactions


class Custody:
    """The jobs of one run of a worker, and every way in which they leave it again.

    `on_ended` hears of a settlement that can be sent, `on_retry` after how many seconds a job will be
    due again, `on_news` that nothing is leased any more or that enough jobs are done.
    """

    def __init__(
        self,
        config: WorkerConfig,
        driver: Driver,
        runners: dict[str, Runner],
        timing: Timing,
        entropy: Entropy,
        events: EventBus,
        announcer: Announcer,
        on_ended: Callable[[], None],
        on_retry: Callable[[float], None],
        on_news: Callable[[], None],
    ) -> None:
        self._config = config
        self._runners = runners
        self._timing = timing
        self._entropy = entropy
        self._announcer = announcer
        self._on_ended = on_ended
        self._on_retry = on_retry
        self._on_news = on_news
        self._loop = asyncio.get_running_loop()
        self._gpus = GpuPool(config.gpus)
        self.durations: Durations = deque(maxlen=MAX_SAMPLES)
        self.leased_jobs = LeasedJobs()
        self.settler = Settler(
            driver,
            self.leased_jobs,
            timing,
            config.concurrency + config.prefetch,
            self._settled,
            self._refused,
            announcer.answered,
        )
        self.deadlines = Deadlines(timing, config.patience.total_seconds(), self.give_up)
        self.slots = Slots(
            config.concurrency,
            runners,
            timing,
            self.deadlines,
            self._finished,
            events,
            announcer.started,
            driver.max_payload,
            Transactions(driver, self.leased_jobs, timing) if driver.capabilities.tx else None,
        )

    def running(self) -> list[LeasedJob]:
        """Jobs whose handlers have not ended, their leases lost or not."""
        return [leased for leased in (*self.leased_jobs, *self.leased_jobs.lost) if not leased.is_over]

    # ------------------------------------------------------------------ in

    def take(self, records: list[JobRecord], sent: float) -> list[LeasedJob]:
        """Claimed by a call sent at that instant: the caller puts them in line, or releases them."""
        self._announcer.claimed(records)
        trusted_until = sent + self._config.trust_seconds
        batch = [LeasedJob(record, sent, trusted_until) for record in records]
        self.leased_jobs.add(batch)
        if self._config.gpus:
            for leased in batch:
                self._gpus.equip(leased)
        return batch

    # ------------------------------------------------------------------ out

    def release(self, leased: LeasedJob) -> None:
        """Hand a job back that has not started."""
        leased.is_over = True
        self._finished(leased, Released())

    def _finished(self, leased: LeasedJob, outcome: Outcome) -> None:
        """An attempt has its outcome: decide, and hand the settlement over."""
        record = leased.record
        if leased.started is not None:
            self.durations.append((record.type, leased.ended - leased.started))
        if leased.acked is not None:
            self._completed(leased, leased.acked, outcome)
        elif leased.is_lost:
            if leased.ran_to_its_end:
                self._announcer.ran_twice(leased)
            self._free(leased)
            self._on_ended()
        else:
            leased.outcome = outcome
            if self.settler.add(leased, self._decided(record, outcome)):
                self.slots.give_way()
                self._on_ended()

    def _completed(self, leased: LeasedJob, answer: Settled, outcome: Outcome) -> None:
        """The handler's own transaction has completed the job, whatever it came to after that."""
        if not isinstance(outcome, Succeeded):
            self._announcer.overtaken(leased, outcome)
        leased.outcome = Succeeded()
        leased.settlement = Ack(leased.lease)
        self.settler.answered([leased], [answer])
        self._on_ended()

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
        return decide(record, outcome, limit=limit, backoff=backoff, tries_again=policy.tries_again)

    def _settled(self, leased: LeasedJob, answer: Settled) -> None:
        self._announcer.settled(leased, answer)
        settlement = leased.settlement
        if type(settlement) is Retry and settlement.delay is not None:
            self._on_retry(settlement.delay.total_seconds())
        self._free(leased)

    def _refused(self, leased: LeasedJob, error: LeaseLost) -> None:
        """The store refused a settlement: whatever the handler did is thrown away."""
        self._announcer.lost(leased, f"settle: {error}")
        if isinstance(leased.outcome, Succeeded):
            self._announcer.ran_twice(leased)
        self._free(leased)

    def _free(self, leased: LeasedJob) -> None:
        self.leased_jobs.leave(leased)
        if leased.gpu is not None:
            self._gpus.give_back(leased)
        if not self.leased_jobs.count or self._announcer.finished == self._config.max_jobs:
            self._on_news()

    # ------------------------------------------------------------------ a job that must stop

    def stop(self, leased: LeasedJob, reason: Reason, cause: str) -> None:
        """From the heart, in whatever thread it lives: the handler sees it at once, the loop acts on it."""
        leased.cancellation.set(reason)
        if self._timing.is_virtual:
            self._act_on_stop(leased, reason, cause)
        else:
            with suppress(RuntimeError):  # the worker has just ended
                self._loop.call_soon_threadsafe(self._act_on_stop, leased, reason, cause)

    def _act_on_stop(self, leased: LeasedJob, reason: Reason, cause: str) -> None:
        if leased.is_over or leased.is_lost or leased.acked is not None:
            return
        if reason == "lease_lost":
            leased.is_lost = True
            self.leased_jobs.forget(leased)
            self._announcer.lost(leased, cause)
        self.deadlines.tell(leased, reason)

    def give_up(self, leased: LeasedJob) -> None:
        """A handler was told to stop and did not: settle its job without it."""
        executor = leased.executor
        if executor is None or leased.is_over:
            return
        slot_goes_on = executor.give_up(leased)
        if executor.where != "process":
            self._announcer.abandoned(leased, executor.where)
        if not slot_goes_on:
            leased.ended = self._timing.monotonic()
            self.slots.replace(leased)
            self._finished(leased, stopped_by(leased, leased.record.timeout) or Released())


def _never(failures: int) -> timedelta:
    raise AssertionError("only a failure waits for another try")
