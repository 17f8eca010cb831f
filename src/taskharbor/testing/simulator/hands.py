"""Hands: workers of another make, which speak the contract themselves and are not always polite.

A real worker is careful: it settles once, extends in time, and sweeps seldom. Whoever writes a worker of
their own may be less so, and the store must bear it. Hands claim, extend, settle, sweep and look in an
order that chance picks, say things twice, try leases that are long over, and now and then forget one.
Nothing of them but their calls costs time, so a world of hands makes several times as many of those.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec

from taskharbor.drivers.messages import Claim, Extended
from taskharbor.errors import DriverError
from taskharbor.model.job import FailureKind, JobRecord, Lease
from taskharbor.model.outcome import Died, Failed, Outcome, Released, Snoozed, Succeeded, WasCancelled
from taskharbor.model.settlement import Settlement, attempts_allowed, decide
from taskharbor.testing.history.events import Event
from taskharbor.testing.simulator.actors import RETRY, Actor
from taskharbor.testing.simulator.loop import Process

if TYPE_CHECKING:
    from taskharbor.testing.simulator.world import World

_MOST_HELD = 8
_MOST_REMEMBERED = 20
_SOON = timedelta(milliseconds=300)


class Held(msgspec.Struct):
    """One job in hand; `touched` is when its lease was last counted anew, on this process's clock."""

    record: JobRecord
    lease: Lease
    touched: float
    is_cancelled: bool = False


class Hands(Actor):
    """One of them."""

    def __init__(self, world: World, process: Process) -> None:
        super().__init__(world, process)
        self._held: dict[str, Held] = {}
        self._unanswered: list[Settlement] = []
        """Sent, and nobody knows whether they came: sent again as they were."""
        self._over: list[Settlement] = []
        """Answered once: whatever is said about them again must change nothing."""
        self._rests_until = 0.0
        self._lease_for = timedelta(seconds=world.plan.lease_seconds)
        self._recorder = world.recorder_of(process.name)

    async def live(self) -> None:
        async with self.line:
            while True:
                await self.clock.sleep(self.dice.seconds(0.0, 0.05))
                try:
                    await self._next_deed()
                except DriverError:
                    continue  # what it was about is held on to, or runs out by itself

    async def _next_deed(self) -> None:
        self._forget_one()
        if self._unanswered:
            await self._say_again()
        elif old := self._old_ones():
            await (self._extend(old) if self.dice.chance(0.5) else self._settle(old))
        elif self._held:
            await self.dice.pick(_WITH_SOMETHING)(self)
        elif self.clock.monotonic() >= self._rests_until:
            await (self._claim() if self.dice.chance(0.5) else self._exchange())
        elif self.dice.chance(0.3):
            await self.dice.pick(_AT_REST)(self)
        else:
            await self.clock.sleep(self._rests_until - self.clock.monotonic())

    # ------------------------------------------------------------------ deeds

    async def _claim(self) -> None:
        if claim := self._next_claim():
            asked = self.clock.monotonic()
            self._take(await self.line.reserve(claim), asked)

    async def _exchange(self) -> None:
        claim = self._next_claim()
        if claim is None:
            return
        ended = [self._end(held) for held in self._some(3)]
        self._unanswered += ended
        asked = self.clock.monotonic()
        done = await self.line.exchange(ended, claim)
        self._answered(ended)
        self._take(done.claimed, asked)

    async def _settle_some(self) -> None:
        await self._settle(self._some(3))

    async def _extend_some(self) -> None:
        await self._extend(self._some(_MOST_HELD))

    async def _say_once_more(self) -> None:
        """About jobs that are over for us: refused, and without any effect."""
        if self._over:
            await self.line.settle([self.dice.pick(self._over)])

    async def _hold_on_to_what_is_over(self) -> None:
        if self._over:
            await self.line.extend_leases([self.dice.pick(self._over).lease], self._lease_for)

    async def _sweep(self) -> None:
        await self.line.reclaim(self.dice.whole(1, 5))
        await self.line.promote(self.dice.whole(1, 5))

    async def _look(self) -> None:
        if ids := self.world.ids[-20:]:
            await self.line.get([self.dice.pick(ids)])

    # ------------------------------------------------------------------ how

    def _next_claim(self) -> Claim | None:
        if len(self._held) >= _MOST_HELD or self.clock.monotonic() < self._rests_until:
            return None
        return Claim(
            queues=self.world.queue_names,
            worker_id=self.process.name,
            limit=self.dice.whole(1, 4),
            lease_for=self._lease_for,
            lanes=("any", "cpu") if self.world.plan.has("lanes") else ("any",),
        )

    def _take(self, records: list[JobRecord], asked: float) -> None:
        for record in records:
            self._held[record.id] = Held(record, record.lease, asked)
        if not records:
            self._rests_until = self.clock.monotonic() + self.dice.seconds(0.03, 0.2)

    def _some(self, most: int) -> list[Held]:
        return list(self._held.values())[: self.dice.whole(1, most)]

    def _old_ones(self) -> list[Held]:
        """Whoever holds a lease must say so before half of it is over."""
        before = self.clock.monotonic() - self._lease_for.total_seconds() * self.dice.seconds(0.2, 0.5)
        return [held for held in self._held.values() if held.touched < before]

    async def _extend(self, some: list[Held]) -> None:
        asked = self.clock.monotonic()
        answers = await self.line.extend_leases([held.lease for held in some], self._lease_for)
        for held, answer in zip(some, answers, strict=True):
            if not isinstance(answer, Extended):
                self._held.pop(held.record.id, None)
                continue
            held.lease, held.touched, held.is_cancelled = answer.lease, asked, answer.cancel_requested

    async def _settle(self, some: list[Held]) -> None:
        ended = [self._end(held) for held in some]
        self._unanswered += ended
        await self.line.settle(ended)
        self._answered(ended)

    async def _say_again(self) -> None:
        again = self._unanswered[:3]
        await self.line.settle(again)
        self._answered(again)

    def _answered(self, settlements: list[Settlement]) -> None:
        known = {id(one) for one in settlements}
        self._unanswered = [one for one in self._unanswered if id(one) not in known]
        self._over = [*self._over, *settlements][-_MOST_REMEMBERED:]

    def _end(self, held: Held) -> Settlement:
        """What the attempt came to, as the core decides it."""
        self._held.pop(held.record.id, None)
        outcome = WasCancelled("asked for") if held.is_cancelled else self._outcome()
        if isinstance(outcome, Failed):
            [run] = self._recorder.asked(
                [Event(kind="invoke", op="run", job=held.record.id, version=held.record.fence)]
            )
            self._recorder.note(run, kind="fail", result="ValueError")
        limit = attempts_allowed(held.record.max_attempts, RETRY.max_attempts)
        return decide(held.record, outcome, limit=limit, backoff=lambda _: _SOON)

    def _outcome(self) -> Outcome:
        match self.dice.below(20):
            case 0 | 1:
                return Failed("it broke")
            case 2:
                return Failed("no use", FailureKind.UNRECOVERABLE)
            case 3:
                return Released()
            case 4:
                return Snoozed(_SOON)
            case 5:
                return Died("killed")
        return Succeeded()

    def _forget_one(self) -> None:
        """A lease that nobody looks after any more: the store has to find it by itself."""
        if self._held and self.world.has_faults and self.dice.chance(0.002):
            job_id = next(iter(self._held))
            if self.world.allows("forget", self.process.name, job_id):
                del self._held[job_id]


_WITH_SOMETHING = (
    Hands._claim,
    Hands._exchange,
    Hands._exchange,
    Hands._settle_some,
    Hands._extend_some,
    Hands._say_once_more,
    Hands._hold_on_to_what_is_over,
    Hands._look,
)
_AT_REST = (Hands._say_once_more, Hands._hold_on_to_what_is_over, Hands._sweep, Hands._look)
