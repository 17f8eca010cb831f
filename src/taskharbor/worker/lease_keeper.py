"""The heartbeat: extends every lease of the worker in one call, and says which jobs must stop.

It can do two things only: extend leases, and have attempts stopped. In production it lives in a
thread with an event loop and a store handle of its own, so that neither a busy event loop nor a
CPU-bound handler can starve it; in virtual time it is a task beside the others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any, TypeVar

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Extended
from taskharbor.errors import LeaseLost
from taskharbor.model.entropy import Entropy
from taskharbor.worker.config import WorkerConfig
from taskharbor.worker.context import Reason
from taskharbor.worker.leased_jobs import LeasedJob, LeasedJobs
from taskharbor.worker.timing import Timing, dropped

_log = logging.getLogger("taskharbor.worker")

MAX_BATCH = 1000

T = TypeVar("T")

Stop = Callable[[LeasedJob, Reason, str], None]
"""Called with a job that must stop, the reason, and the cause in words. From the heartbeat's thread."""


class LeaseKeeper:
    """Keeps the leases of one worker alive, and notices those that are not."""

    def __init__(
        self,
        config: WorkerConfig,
        driver: Driver,
        leased_jobs: LeasedJobs,
        timing: Timing,
        stop: Stop,
        on_extended: Callable[[int, int, float], None],
        on_free: Callable[[], None],
    ) -> None:
        self._config = config
        self._driver = driver
        self._leased_jobs = leased_jobs
        self._timing = timing
        self._stop = stop
        self._on_extended = on_extended
        self._on_free = on_free  # extended leases may be settled now
        self._every = config.renew_every.total_seconds()
        self._trust = config.trust_seconds

    # ------------------------------------------------------------------ when

    def wait_seconds(self) -> float:
        """How long until the next extension is due, or a lease can no longer be trusted."""
        now = self._timing.monotonic()
        due = now + self._every
        for leased in self._leased_jobs:
            due = min(due, leased.extended + self._every, leased.trusted_until)
        # What is overdue is either being settled or being retried: look again soon, not at once.
        return max(due - now, self._every / 20)

    def retry_seconds(self, failures: int, entropy: Entropy) -> float:
        """How long to wait after so many failed beats in a row: far less than a lease keeps."""
        longest = min(0.1 * 2 ** min(failures, 10), self._every / 8)
        return entropy.between(longest / 2, longest)

    def wanted(self) -> list[LeasedJob]:
        """The leases to extend now: when one is due, all that are not fresh; else those with news."""
        now = self._timing.monotonic()
        all_held = list(self._leased_jobs)
        if any(leased.extended + self._every <= now for leased in all_held):
            # Fresh ones keep for the next time; most of them end before.
            return [leased for leased in all_held if leased.extended + self._every / 2 <= now]
        return [leased for leased in all_held if leased.progress is not None and leased.extended + 1.0 <= now]

    # ------------------------------------------------------------------ one beat

    async def beat(self, wanted: Iterable[LeasedJob]) -> None:
        """Extend these leases.

        Raises:
            DriverError, TimeoutError: nothing is known; the leases run out at their old end.
        """
        batch = self._leased_jobs.mark_extending(wanted)
        for start in range(0, len(batch), MAX_BATCH):
            await self._extend(batch[start : start + MAX_BATCH], batch[start:])

    async def _extend(self, batch: list[LeasedJob], marked: list[LeasedJob]) -> None:
        sent = self._timing.monotonic()
        leases = [leased.lease for leased in batch]
        news = {leased.record.id: leased.progress for leased in batch if leased.progress is not None}
        try:
            answers = await self._answered(
                sent,
                self._driver.extend_leases(
                    leases, self._config.lease, progress=news, now=self._timing.stated()
                ),
            )
        except BaseException:
            self._leased_jobs.unmark_extending(marked)
            self._on_free()
            raise
        for leased, answer in zip(batch, answers, strict=True):
            if leased.progress is news.get(leased.record.id):
                leased.progress = None
            if isinstance(answer, Extended):
                leased.renew(answer.lease, sent, sent + self._trust)
            else:
                leased.extended = sent  # the answer will not change: no need to ask again at once
        self._leased_jobs.unmark_extending(batch)
        self._on_free()
        self._deal_with(batch, answers)
        refused = sum(isinstance(answer, LeaseLost) for answer in answers)
        self._on_extended(len(batch), refused, self._timing.monotonic() - sent)

    async def _answered(self, sent: float, call: Coroutine[Any, Any, T]) -> T:
        """The answer, if it comes before the next beat is due.

        The store may be a black hole, and leases end meanwhile: what runs on them is stopped at that
        instant, and the answer that the others need is waited for all the same.
        """
        calling = asyncio.ensure_future(call)
        try:
            while not calling.done():
                if self._timing.monotonic() >= sent + self._every:
                    raise TimeoutError(f"no answer within {self._every:.3g} s")
                with suppress(TimeoutError):
                    await self._timing.within(self._wait_for_answer(sent), _over(calling))
                if not calling.done():
                    self.drop_overdue()
            return calling.result()
        finally:
            await dropped(calling)

    def _wait_for_answer(self, sent: float) -> float:
        """How long until the next beat is due, or the next lease is over."""
        now = self._timing.monotonic()
        due = sent + self._every
        ends = (
            leased.trusted_until for leased in self._leased_jobs if not (leased.is_over or leased.is_lost)
        )
        return max(min(due, min((end for end in ends if end > now), default=due)) - now, self._every / 100)

    def _deal_with(self, batch: list[LeasedJob], answers: list[Extended | LeaseLost]) -> None:
        for leased, answer in zip(batch, answers, strict=True):
            if isinstance(answer, LeaseLost):
                # A job that has ended meanwhile is the settler's: a refusal says nothing about it.
                if not (leased.is_over or leased.is_lost):
                    self._stop(leased, "lease_lost", f"refused: {answer}")
            elif answer.cancel_requested and not leased.cancellation.is_set():
                self._stop(leased, "cancel", "cancel requested")

    def drop_overdue(self) -> None:
        """Stop what runs on a lease that nobody has extended in time: early, never late."""
        now = self._timing.monotonic()
        for leased in self._leased_jobs:
            if leased.trusted_until <= now and not (leased.is_over or leased.is_lost):
                self._stop(leased, "lease_lost", "deadline: no extension was answered in time")


async def _over(calling: asyncio.Future[T]) -> None:
    """Until it is over; it goes on when nobody waits for this any longer."""
    await asyncio.wait([calling])
