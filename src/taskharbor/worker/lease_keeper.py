"""The lease keeper: extends all leases of the worker in one call, and reports jobs that must stop.

It does two things only: extend leases, and have handlers stopped. In production it runs in a thread with an
event loop and a store handle of its own, so that neither a busy event loop nor a CPU-bound handler can
starve it; in virtual time it is a task beside the others. `heartbeat_loop.py` says when.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Extended
from taskharbor.errors import LeaseLost
from taskharbor.model.entropy import Entropy
from taskharbor.worker.cancellation import HandlerStopper
from taskharbor.worker.leased_jobs import LeasedJob
from taskharbor.worker.timing import dropped

if TYPE_CHECKING:
    from taskharbor.worker.run import Run

LEASES_PER_CALL = 1000

T = TypeVar("T")


class LeaseKeeper:
    """Extends the leases of one worker, and notices those that are lost."""

    def __init__(self, run: Run, driver: Driver, stopper: HandlerStopper) -> None:
        self._run = run
        self._driver = driver
        self._stopper = stopper
        self._leased_jobs = run.leased_jobs
        self._timing = run.timing
        self._every = run.options.renew_every.total_seconds()
        self._trust = run.options.trust_seconds

    # ------------------------------------------------------------------ when

    def wait_seconds(self) -> float:
        """Seconds until the next extension is due, or a lease can no longer be trusted."""
        now = self._timing.monotonic()
        due = now + self._every
        for leased in self._leased_jobs:
            due = min(due, leased.lease.extended + self._every, leased.lease.trusted_until)
        # What is overdue is either being settled or being retried: look again soon, not at once.
        return max(due - now, self._every / 20)

    def retry_seconds(self, failures: int, entropy: Entropy) -> float:
        """How long to wait after so many failed calls in a row: far less than a lease lasts."""
        longest = min(0.1 * 2 ** min(failures, 10), self._every / 8)
        return entropy.between(longest / 2, longest)

    def wanted(self) -> list[LeasedJob]:
        """The leases to extend now: when one is due, all that are not fresh; else those with progress."""
        now = self._timing.monotonic()
        jobs = list(self._leased_jobs)
        if any(leased.lease.extended + self._every <= now for leased in jobs):
            # Fresh ones can wait for the next call; most of them end before it.
            return [leased for leased in jobs if leased.lease.extended + self._every / 2 <= now]
        return [leased for leased in jobs if leased.lease.progress and leased.lease.extended + 1.0 <= now]

    # ------------------------------------------------------------------ one call

    async def extend(self, wanted: Iterable[LeasedJob]) -> None:
        """Extend these leases.

        Raises:
            DriverError, TimeoutError: nothing is known; the leases end when they would have ended.
        """
        batch = self._leased_jobs.mark_extending(wanted)
        for start in range(0, len(batch), LEASES_PER_CALL):
            await self._extend(batch[start : start + LEASES_PER_CALL], batch[start:])

    async def _extend(self, batch: list[LeasedJob], marked: list[LeasedJob]) -> None:
        sent = self._timing.monotonic()
        leases = [leased.newest_lease for leased in batch]
        news = {leased.record.id: leased.lease.progress for leased in batch if leased.lease.progress}
        try:
            call = self._driver.extend_leases(
                leases, self._run.options.lease, progress=news, now=self._timing.stated()
            )
            answers = await self._answered(sent, call)
        except BaseException:
            self._leased_jobs.unmark_extending(marked)
            self._run.leases_free()
            raise
        for leased, answer in zip(batch, answers, strict=True):
            lease = leased.lease
            if lease.progress is news.get(leased.record.id):
                lease.progress = None
            if isinstance(answer, Extended):
                lease.renew(answer.lease, sent, sent + self._trust)
            else:
                lease.extended = sent  # the answer will not change: no need to ask again at once
        self._leased_jobs.unmark_extending(batch)
        self._run.leases_free()
        self._stop_refused(batch, answers)
        refused = sum(isinstance(answer, LeaseLost) for answer in answers)
        self._run.announcer.extended(len(batch), refused, self._timing.monotonic() - sent)

    async def _answered(self, sent: float, call: Coroutine[Any, Any, T]) -> T:
        """The answer, if it comes before the next extension is due.

        The store may not answer at all, and leases end meanwhile: handlers that run on them are stopped at
        that instant, while the call goes on for the others.
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
        """Seconds until the next extension is due, or the next lease ends."""
        now = self._timing.monotonic()
        due = sent + self._every
        ends = (leased.lease.trusted_until for leased in self._leased_jobs if _is_needed(leased))
        return max(min(due, min((end for end in ends if end > now), default=due)) - now, self._every / 100)

    def _stop_refused(self, batch: list[LeasedJob], answers: list[Extended | LeaseLost]) -> None:
        for leased, answer in zip(batch, answers, strict=True):
            if isinstance(answer, LeaseLost):
                # An attempt that has ended meanwhile is the settler's: a refusal says nothing about it.
                if _is_needed(leased):
                    self._stopper.request(leased, "lease_lost", f"refused: {answer}")
            elif answer.cancel_requested and not leased.attempt.cancellation.is_set():
                self._stopper.request(leased, "cancel", "cancel requested")

    def drop_overdue(self) -> None:
        """Stop handlers whose lease was not extended in time: early, never late."""
        now = self._timing.monotonic()
        for leased in self._leased_jobs:
            if leased.lease.trusted_until <= now and _is_needed(leased):
                self._stopper.request(leased, "lease_lost", "deadline: no extension was answered in time")


def _is_needed(leased: LeasedJob) -> bool:
    """Whether a handler still runs, or will run, on this lease."""
    return not (leased.attempt.is_over or leased.lease.is_lost)


async def _over(calling: asyncio.Future[T]) -> None:
    """Wait for it without cancelling it when this wait is cancelled."""
    await asyncio.wait([calling])
