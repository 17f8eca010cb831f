"""A claim that stands: sent ahead of the job that it will get.

A worker whose claim brought nothing waits for a hint and then asks again, which is a second way there and
back. Instead its claim goes out right behind the command that blocks, on the same connection: the server
carries it out when that command returns, and the job comes together with the hint.

    worker ──reserve──► nothing ──► BLPOP, claim ─ ─ ─ blocks ─ ─ ─► marker, job ──hint──► worker
                                                                        ▲     ◄──reserve── (here already)
                                                             an enqueue ┘

Nobody asks twice at a time: whoever claims while one stands calls it in first. A job that nobody fetches,
because its worker stops, is given back. The lease of a job that came ahead is longer by the time that it may
have waited here, so that its worker may count from its own call as always.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from msgspec.structs import replace

from taskharbor.drivers.messages import Claim, Exchanged
from taskharbor.drivers.redis.attempts import Attempts, ClaimFailed
from taskharbor.drivers.redis.link import Command
from taskharbor.errors import TaskHarborError
from taskharbor.model.job import JobRecord
from taskharbor.model.settlement import Release, Settlement

MOST_JOBS = 10
"""How many jobs a claim may get that stands: if there are more, the next claim is under way soon."""
_LONGEST_WINDOW, _SHORTEST_WINDOW = 1.0, 0.5
_WITHDRAWN_WITHIN = 3.0


class Ahead:
    """One claim that was sent ahead."""

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
        self.called_by: bytes | None = None
        self.is_fresh = False

    @property
    def kept_until(self) -> float:
        """By when its jobs must have been fetched: their leases are longer by that."""
        return self.sent_at + 2 * self.window

    def fits(self, claim: Claim, now: float) -> bool:
        """Whether its jobs are what this claim asks for, and young enough."""
        one, other = self.asked, claim
        return (
            now <= self.kept_until
            and (one.worker_id, one.lanes, one.types) == (other.worker_id, other.lanes, other.types)
            and set(one.queues) == set(other.queues)
            and one.lease_for == other.lease_for
            and len(self.result.result() or ()) <= other.limit
        )


def _window_of(claim: Claim) -> float:
    """How long a claim may stand before it is made anew: a small part of its lease."""
    return min(claim.lease_for.total_seconds() / 40, _LONGEST_WINDOW)


class Standing:
    """The claim of one driver handle that stands, if one does."""

    def __init__(self, attempts: Attempts) -> None:
        self._attempts = attempts
        self._loop = asyncio.get_running_loop()
        self._wished: Claim | None = None
        self._ahead: Ahead | None = None
        self._giving_back: set[asyncio.Task[None]] = set()
        self.has_wish = asyncio.Event()
        self.on_wish: Callable[[], None] = lambda: None
        self.call_in: Callable[[], bytes] = bytes
        """Lets the command that blocks return, and gives the word that it will return with."""

    # ------------------------------------------------------------------ the side that claims

    @property
    def is_out(self) -> bool:
        return self._ahead is not None

    def wish(self, claim: Claim) -> None:
        """This claim brought nothing just now: let it stand."""
        if self._ahead is None and claim.rate is None and _window_of(claim) >= _SHORTEST_WINDOW:
            self._wished = claim
            self.has_wish.set()
            self.on_wish()

    async def reserve(self, claim: Claim, now: datetime | None) -> list[JobRecord]:
        """`reserve`, with what the claim that stands has brought; what brings nothing stands from now on."""
        self._forget_wish()
        jobs = await self._taken(claim, now) if self._ahead is not None else None
        if jobs is None:
            _, jobs = await self._attempts.exchange((), claim, now)
        elif len(jobs) == MOST_JOBS < claim.limit:
            jobs += await self._more(replace(claim, limit=claim.limit - len(jobs)))
        if not jobs and now is None:
            self.wish(claim)
        return jobs

    async def exchange(
        self, settlements: Sequence[Settlement], claim: Claim, now: datetime | None
    ) -> Exchanged:
        """`exchange`: one step, unless a claim stands, which is called in when the settlements are done."""
        self._forget_wish()
        if self._ahead is not None:
            answers, _ = await self._attempts.exchange(settlements, None, now)
            try:
                return Exchanged(answers, await self.reserve(claim, now))
            except TaskHarborError as error:
                return Exchanged(answers, [], error)
        try:
            answers, jobs = await self._attempts.exchange(settlements, claim, now)
        except ClaimFailed as failed:
            return Exchanged(failed.answers, [], failed.error)
        if not jobs and now is None:
            self.wish(claim)
        return Exchanged(answers, jobs)

    async def _more(self, claim: Claim) -> list[JobRecord]:
        try:
            return (await self._attempts.exchange((), claim, None))[1]
        except TaskHarborError:  # those that are here already must reach their worker
            return []

    async def _taken(self, claim: Claim, now: datetime | None) -> list[JobRecord] | None:
        """What it brought; None when the claim is to be made anew."""
        ahead = await self._called_in()
        if ahead is None:
            return None
        jobs = ahead.result.result()
        if now is not None or not ahead.fits(claim, self._loop.time()):
            await self._give_back(jobs or ())
            return None  # that it brought nothing, too, says nothing about what this claim asks for
        return jobs if jobs or ahead.is_fresh else None

    async def _called_in(self) -> Ahead | None:
        self._forget_wish()
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return None
        if not ahead.result.done():
            ahead.called_by = self.call_in()
            try:
                await asyncio.wait({ahead.result})
            except asyncio.CancelledError:
                ahead.result.add_done_callback(self._give_back_soon)
                raise
        return ahead

    def _forget_wish(self) -> None:
        """A claim is made now: another one beside it would take more than there is room for."""
        self._wished = None
        self.has_wish.clear()

    async def withdraw(self) -> None:
        """From now on nothing stands; what came meanwhile is given back."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_WITHDRAWN_WITHIN):
                ahead = await self._called_in()
                if ahead is not None:
                    self._give_back_soon(ahead.result)
                if self._giving_back:
                    await asyncio.wait(self._giving_back)

    # ------------------------------------------------------------------ the side that listens

    def prepared(self, queues: Sequence[str], worker_id: str) -> Ahead | None:
        """The claim to send along, when the worker that listens has one."""
        claim, self._wished = self._wished, None
        self.has_wish.clear()
        if claim is None or claim.worker_id != worker_id or set(claim.queues) != set(queues):
            return None
        now, token = self._loop.time(), self._attempts.fresh_token()
        self._ahead = Ahead(claim, token, now, self._loop.create_future())
        return self._ahead

    async def command_of(self, ahead: Ahead) -> Command:
        return await self._attempts.claim_command(ahead.claim, ahead.token)

    def came(self, ahead: Ahead, reply: Any, word: bytes | None) -> None:
        """The server has carried it out, after it heard this word."""
        jobs = self._attempts.handed_ahead(reply, ahead.claim, ahead.token)
        ahead.is_fresh = word is not None and word == ahead.called_by
        ahead.result.set_result(jobs)
        if self._ahead is not ahead:
            return
        if jobs:
            self._loop.call_at(ahead.kept_until, self._keep_no_longer, ahead)
            return
        self._ahead = None
        if jobs is not None:
            self.wish(ahead.asked)

    def lost(self, ahead: Ahead) -> None:
        """Nobody knows whether it was carried out."""
        if not ahead.result.done():
            ahead.result.set_result(None)
            if self._ahead is ahead:
                self._ahead = None

    # ------------------------------------------------------------------ what nobody fetched

    def _keep_no_longer(self, ahead: Ahead) -> None:
        if self._ahead is ahead:
            self._ahead = None
            self._give_back_soon(ahead.result)

    def _give_back_soon(self, result: asyncio.Future[list[JobRecord] | None]) -> None:
        if jobs := result.result():
            task = self._loop.create_task(self._give_back(jobs))
            self._giving_back.add(task)
            task.add_done_callback(self._giving_back.discard)

    async def _give_back(self, jobs: Sequence[JobRecord]) -> None:
        if jobs:
            with suppress(TaskHarborError):  # then their leases run out
                await self._attempts.exchange([Release(job.lease) for job in jobs], None, None)
