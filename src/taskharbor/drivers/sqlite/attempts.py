"""Jobs in, jobs out, attempts end: the verbs of clients and workers, and what time brings."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from typing import Any

from taskharbor.drivers.messages import Claim, Claimed, Enqueued, Exchanged, Extended, Reclaimed, Settled
from taskharbor.drivers.sqlite.ack_transaction import AckTransaction
from taskharbor.drivers.sqlite.caller_transaction import do_in
from taskharbor.drivers.sqlite.claim import reserve
from taskharbor.drivers.sqlite.enqueue import enqueue
from taskharbor.drivers.sqlite.extend import extend
from taskharbor.drivers.sqlite.handle import Handle
from taskharbor.drivers.sqlite.settle import settle
from taskharbor.drivers.sqlite.step import Step
from taskharbor.drivers.sqlite.upkeep import promote_all, prune, reclaim
from taskharbor.errors import DriverClosed, LeaseLost, RateLimited
from taskharbor.model.job import Lease, NewJob, Progress
from taskharbor.model.settlement import Ack, Settlement


class Attempts(Handle):
    # ------------------------------------------------------------------ in

    async def do_enqueue(self, jobs: Sequence[NewJob], now: datetime | None) -> list[Enqueued]:
        return _accepted(await self._write(lambda step: enqueue(step, jobs), now))

    def do_enqueue_blocking(self, jobs: Sequence[NewJob], now: datetime | None, tx: Any) -> list[Enqueued]:
        if tx is not None:
            at = now or self.clock.now()
            answers, hints = do_in(tx, lambda step: enqueue(step, jobs), self._location, self._sql, at)
            if hints:
                self._bell.ring(hints)
            return _accepted(answers)
        if self._writer is None:
            raise DriverClosed
        return _accepted(self._writer.do_blocking(lambda step: enqueue(step, jobs), now))

    # ------------------------------------------------------------------ out

    async def do_reserve(self, claim: Claim, now: datetime | None) -> Claimed:
        token = self.entropy.token()
        return await self._write(lambda step: reserve(step, claim, token), now)

    async def do_extend_leases(
        self,
        leases: Sequence[Lease],
        lease_for: timedelta,
        progress: Mapping[str, Progress],
        now: datetime | None,
    ) -> list[Extended | LeaseLost]:
        return await self._write(lambda step: extend(step, leases, lease_for, progress), now)

    # ------------------------------------------------------------------ ends

    async def do_settle(
        self, settlements: Sequence[Settlement], now: datetime | None
    ) -> list[Settled | LeaseLost]:
        return await self._write(lambda step: settle(step, settlements), now)

    async def do_exchange(
        self, settlements: Sequence[Settlement], claim: Claim, now: datetime | None
    ) -> Exchanged:
        token = self.entropy.token()

        def work(step: Step) -> Exchanged:
            settled = settle(step, settlements)
            claimed, error = step.attempt(lambda: reserve(step, claim, token), self._location.path)
            if claimed is None:  # neither the claim nor what it reclaimed has happened
                return Exchanged(settled, [], error)
            return Exchanged(settled, claimed.jobs, given_up=claimed.given_up)

        return await self._write(work, now)

    def do_transaction(
        self, ack: Callable[[], Ack], now: datetime | None, on_settled: Callable[[Settled], None]
    ) -> AbstractAsyncContextManager[sqlite3.Connection]:
        own = AckTransaction(self._location, self._sql, self.clock, self.entropy, self._bell.ring)
        return own.transaction(ack, now, on_settled)

    # ------------------------------------------------------------------ time

    async def do_reclaim(self, limit: int, now: datetime | None) -> list[Reclaimed]:
        return await self._write(lambda step: reclaim(step, None, limit), now)

    async def do_promote(self, limit: int, now: datetime | None) -> int:
        return await self._write(lambda step: promote_all(step, limit), now)

    async def do_prune(self, limit: int, now: datetime | None) -> int:
        return await self._write(lambda step: prune(step, limit), now)


def _accepted(answer: list[Enqueued] | RateLimited) -> list[Enqueued]:
    if isinstance(answer, RateLimited):
        raise answer
    return answer
