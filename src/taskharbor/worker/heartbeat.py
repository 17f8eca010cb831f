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
from taskharbor.worker.held import Held, Holdings
from taskharbor.worker.timing import Timing, dropped

_log = logging.getLogger("taskharbor.worker")

MAX_BATCH = 1000

T = TypeVar("T")

Stop = Callable[[Held, Reason, str], None]
"""Called with a job that must stop, the reason, and the cause in words. From the heartbeat's thread."""


class Heartbeat:
    """Keeps the leases of one worker alive, and notices those that are not."""

    def __init__(
        self,
        config: WorkerConfig,
        driver: Driver,
        holdings: Holdings,
        timing: Timing,
        stop: Stop,
        on_extended: Callable[[int, int, float], None],
        on_free: Callable[[], None],
    ) -> None:
        self._config = config
        self._driver = driver
        self._holdings = holdings
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
        for held in self._holdings:
            due = min(due, held.extended + self._every, held.trusted_until)
        # What is overdue is either being settled or being retried: look again soon, not at once.
        return max(due - now, self._every / 20)

    def retry_seconds(self, failures: int, entropy: Entropy) -> float:
        """How long to wait after so many failed beats in a row: far less than a lease keeps."""
        longest = min(0.1 * 2 ** min(failures, 10), self._every / 8)
        return entropy.between(longest / 2, longest)

    def wanted(self) -> list[Held]:
        """The leases to extend now: when one is due, all that are not fresh; else those with news."""
        now = self._timing.monotonic()
        all_held = list(self._holdings)
        if any(held.extended + self._every <= now for held in all_held):
            # Fresh ones keep for the next time; most of them end before.
            return [held for held in all_held if held.extended + self._every / 2 <= now]
        return [held for held in all_held if held.progress is not None and held.extended + 1.0 <= now]

    # ------------------------------------------------------------------ one beat

    async def beat(self, wanted: Iterable[Held]) -> None:
        """Extend these leases.

        Raises:
            DriverError, TimeoutError: nothing is known; the leases run out at their old end.
        """
        batch = self._holdings.mark_extending(wanted)
        for start in range(0, len(batch), MAX_BATCH):
            await self._extend(batch[start : start + MAX_BATCH], batch[start:])

    async def _extend(self, batch: list[Held], marked: list[Held]) -> None:
        sent = self._timing.monotonic()
        leases = [held.lease for held in batch]
        news = {held.record.id: held.progress for held in batch if held.progress is not None}
        try:
            answers = await self._answered(
                sent,
                self._driver.extend_leases(
                    leases, self._config.lease, progress=news, now=self._timing.stated()
                ),
            )
        except BaseException:
            self._holdings.unmark_extending(marked)
            self._on_free()
            raise
        for held, answer in zip(batch, answers, strict=True):
            if held.progress is news.get(held.record.id):
                held.progress = None
            if isinstance(answer, Extended):
                held.renew(answer.lease, sent, sent + self._trust)
            else:
                held.extended = sent  # the answer will not change: no need to ask again at once
        self._holdings.unmark_extending(batch)
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
        ends = (held.trusted_until for held in self._holdings if not (held.is_over or held.is_lost))
        return max(min(due, min((end for end in ends if end > now), default=due)) - now, self._every / 100)

    def _deal_with(self, batch: list[Held], answers: list[Extended | LeaseLost]) -> None:
        for held, answer in zip(batch, answers, strict=True):
            if isinstance(answer, LeaseLost):
                # A job that has ended meanwhile is the settler's: a refusal says nothing about it.
                if not (held.is_over or held.is_lost):
                    self._stop(held, "lease_lost", f"refused: {answer}")
            elif answer.cancel_requested and not held.cancellation.is_set():
                self._stop(held, "cancel", "cancel requested")

    def drop_overdue(self) -> None:
        """Stop what runs on a lease that nobody has extended in time: early, never late."""
        now = self._timing.monotonic()
        for held in self._holdings:
            if held.trusted_until <= now and not (held.is_over or held.is_lost):
                self._stop(held, "lease_lost", "deadline: no extension was answered in time")


async def _over(calling: asyncio.Future[T]) -> None:
    """Until it is over; it goes on when nobody waits for this any longer."""
    await asyncio.wait([calling])
