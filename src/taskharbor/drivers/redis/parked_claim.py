"""Parked claims: an idle worker's claim is sent right after its BLPOP, so the job arrives together with
the wake-up, which saves a round trip. A handle parks at most one claim, and its next claim collects the
answer first. Jobs that the worker does not fetch in time are released. Their leases are longer by the
time they may wait here, so a worker can count every lease from its own call.
docs/internals/parked-claims.md has a drawing, the invariant and the reasons why it is correct.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from msgspec.structs import replace

from taskharbor.drivers.messages import Claim, Claimed, Exchanged
from taskharbor.drivers.redis.attempts import Attempts
from taskharbor.drivers.redis.connection import Command
from taskharbor.drivers.redis.many_queues import FEW_QUEUES
from taskharbor.errors import TaskHarborError
from taskharbor.model.job import JobRecord
from taskharbor.model.settlement import Release, Settlement

MOST_JOBS = 10
"""The most jobs a parked claim may take; if more are ready, the worker's next claim takes them."""
_LONGEST_WINDOW, _SHORTEST_WINDOW = 1.0, 0.5
_WITHDRAWN_WITHIN = 3.0


class ParkedClaim:
    """One claim that was sent ahead of its jobs."""

    def __init__(
        self, asked: Claim, token: str, now: float, result: asyncio.Future[list[JobRecord] | None]
    ) -> None:
        self.asked = asked
        self.window = _window_of(asked)
        spare = timedelta(seconds=2 * self.window)
        self.claim = replace(asked, limit=min(asked.limit, MOST_JOBS), lease_for=asked.lease_for + spare)
        self.token = token
        self.sent_at = now
        self.result = result
        self.interrupted_by: bytes | None = None
        self.is_fresh = False

    @property
    def usable_until(self) -> float:
        """Until when its jobs may be handed to the worker: their leases are longer by this time."""
        return self.sent_at + 2 * self.window

    def fits(self, claim: Claim, now: float) -> bool:
        """True if its jobs are what this claim asks for, and still usable."""
        one, other = self.asked, claim
        return (
            now <= self.usable_until
            and (one.worker_id, one.lanes, one.types) == (other.worker_id, other.lanes, other.types)
            and set(one.queues) == set(other.queues)
            and one.lease_for == other.lease_for
            and len(self.result.result() or ()) <= other.limit
        )


def _window_of(claim: Claim) -> float:
    """How long a claim stays parked before it is sent again: a small part of its lease."""
    return min(claim.lease_for.total_seconds() / 40, _LONGEST_WINDOW)


class ParkedClaims:
    """The parked claim of one driver handle, if there is one."""

    def __init__(self, attempts: Attempts) -> None:
        self._attempts = attempts
        self._loop = asyncio.get_running_loop()
        self._pending: Claim | None = None
        self._parked: ParkedClaim | None = None
        self._releasing: set[asyncio.Task[None]] = set()
        self.has_pending = asyncio.Event()
        self.on_pending: Callable[[], None] = lambda: None
        self.interrupt: Callable[[], bytes] = bytes
        """Interrupts the BLPOP, and returns the marker that it will return."""

    # ------------------------------------------------------------------ the side that claims

    @property
    def is_parked(self) -> bool:
        return self._parked is not None

    def park(self, claim: Claim) -> None:
        """Remember a claim that just found nothing, to be parked behind the next BLPOP."""
        is_short = len(claim.queues) <= FEW_QUEUES
        if self._parked is None and is_short and claim.rate is None and _window_of(claim) >= _SHORTEST_WINDOW:
            self._pending = claim
            self.has_pending.set()
            self.on_pending()

    async def reserve(self, claim: Claim, now: datetime | None) -> Claimed:
        """`reserve`, using the jobs of the parked claim. A claim that finds nothing is parked."""
        self._clear_pending()
        jobs = await self._collect(claim, now) if self._parked is not None else None
        if jobs is None:
            answer = await self._attempts.exchange((), claim, now)
        elif len(jobs) == MOST_JOBS < claim.limit:
            answer = await self._more(replace(claim, limit=claim.limit - len(jobs)))
        else:
            answer = Exchanged([], [])
        claimed = Claimed([*(jobs or ()), *answer.claimed], answer.given_up, answer.ended)
        if not claimed.jobs and now is None:
            self.park(claim)
        return claimed

    async def exchange(
        self, settlements: Sequence[Settlement], claim: Claim, now: datetime | None
    ) -> Exchanged:
        """One script call; with a parked claim, settle first, then collect that claim."""
        self._clear_pending()
        if self._parked is not None:
            settled = (await self._attempts.exchange(settlements, None, now)).settled
            try:
                claimed = await self.reserve(claim, now)
            except TaskHarborError as error:
                return Exchanged(settled, [], error)
            return Exchanged(settled, claimed.jobs, given_up=claimed.given_up, ended=claimed.ended)
        answer = await self._attempts.exchange(settlements, claim, now)
        if not answer.claimed and answer.error is None and now is None:
            self.park(claim)
        return answer

    async def _more(self, claim: Claim) -> Exchanged:
        try:
            return await self._attempts.exchange((), claim, None)
        except TaskHarborError:  # the jobs collected so far must reach their worker
            return Exchanged([], [])

    async def _collect(self, claim: Claim, now: datetime | None) -> list[JobRecord] | None:
        """The jobs of the parked claim; None if the caller must make a new claim."""
        parked = await self._unpark()
        if parked is None:
            return None
        jobs = parked.result.result()
        if now is not None or not parked.fits(claim, self._loop.time()):
            await self._give_back(jobs or ())
            return None  # an empty result for another claim says nothing about this one, either
        return jobs if jobs or parked.is_fresh else None

    async def _unpark(self) -> ParkedClaim | None:
        self._clear_pending()
        parked, self._parked = self._parked, None
        if parked is None:
            return None
        if not parked.result.done():
            parked.interrupted_by = self.interrupt()
            try:
                await asyncio.wait({parked.result})
            except asyncio.CancelledError:
                parked.result.add_done_callback(self._release_soon)
                raise
        return parked

    def _clear_pending(self) -> None:
        """Never park a claim while another one is made: together they would take too many jobs."""
        self._pending = None
        self.has_pending.clear()

    async def withdraw(self) -> None:
        """Park nothing from now on, and release the jobs that arrived."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_WITHDRAWN_WITHIN):
                parked = await self._unpark()
                if parked is not None:
                    self._release_soon(parked.result)
                if self._releasing:
                    await asyncio.wait(self._releasing)

    # ------------------------------------------------------------------ the side that listens

    def prepared(self, queues: Sequence[str], worker_id: str) -> ParkedClaim | None:
        """The claim to send with the next BLPOP of this listener, if there is one."""
        claim, self._pending = self._pending, None
        self.has_pending.clear()
        if claim is None or claim.worker_id != worker_id or set(claim.queues) != set(queues):
            return None
        now, token = self._loop.time(), self._attempts.fresh_token()
        self._parked = ParkedClaim(claim, token, now, self._loop.create_future())
        return self._parked

    async def command_of(self, parked: ParkedClaim) -> Command:
        return await self._attempts.claim_command(parked.claim, parked.token)

    def arrived(self, parked: ParkedClaim, reply: Any, word: bytes | None) -> None:
        """The server has answered it, after BLPOP returned this marker."""
        jobs = self._attempts.parked_jobs(reply, parked.claim, parked.token)
        parked.is_fresh = word is not None and word == parked.interrupted_by
        parked.result.set_result(jobs)
        if self._parked is not parked:
            return
        if jobs:
            self._loop.call_at(parked.usable_until, self._expire, parked)
            return
        self._parked = None
        if jobs is not None:
            self.park(parked.asked)

    def lost(self, parked: ParkedClaim) -> None:
        """The reply was lost: the server may or may not have made the claim."""
        if not parked.result.done():
            parked.result.set_result(None)
            if self._parked is parked:
                self._parked = None

    # ------------------------------------------------------------------ jobs that were not fetched in time

    def _expire(self, parked: ParkedClaim) -> None:
        if self._parked is parked:
            self._parked = None
            self._release_soon(parked.result)

    def _release_soon(self, result: asyncio.Future[list[JobRecord] | None]) -> None:
        if jobs := result.result():
            task = self._loop.create_task(self._give_back(jobs))
            self._releasing.add(task)
            task.add_done_callback(self._releasing.discard)

    async def _give_back(self, jobs: Sequence[JobRecord]) -> None:
        if jobs:
            with suppress(TaskHarborError):  # then their leases expire
                await self._attempts.exchange([Release(job.lease) for job in jobs], None, None)
