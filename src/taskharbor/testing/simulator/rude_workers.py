"""Rude workers: they call the driver directly and do not always keep to good manners.

Our worker is careful: it settles once, extends in time, and sweeps seldom. A worker that somebody else wrote
may be less careful, and the store must cope. A rude worker claims, extends, settles, sweeps and reads in
random order, repeats calls, uses leases that ended long ago, and sometimes forgets one. Calls are all
it does, so a world of rude workers makes several times as many calls as a world of real ones.
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
from taskharbor.testing.history.events import HistoryEvent
from taskharbor.testing.simulator.actors import RETRY, Actor
from taskharbor.testing.simulator.loop import Process

if TYPE_CHECKING:
    from taskharbor.testing.simulator.world import World

_MOST_HELD = 8
_MOST_REMEMBERED = 20
_SOON = timedelta(milliseconds=300)


class HeldJob(msgspec.Struct):
    """A leased job. `touched`: when it was last granted or extended, by the clock of this process."""

    record: JobRecord
    lease: Lease
    touched: float
    is_cancelled: bool = False


class RudeWorker(Actor):
    """One worker that calls the driver itself, in an order drawn from the seed."""

    def __init__(self, world: World, process: Process) -> None:
        super().__init__(world, process)
        self._held: dict[str, HeldJob] = {}
        self._unanswered: list[Settlement] = []
        """Sent, but the reply was lost: they are sent again unchanged."""
        self._over: list[Settlement] = []
        """Already answered: sending them again must change nothing."""
        self._rests_until = 0.0
        self._lease_for = timedelta(seconds=world.plan.lease_seconds)
        self._recorder = world.recorder_of(process.name)

    async def live(self) -> None:
        async with self.line:
            while True:
                await self.clock.sleep(self.choices.seconds(0.0, 0.05))
                try:
                    await self._next_call()
                except DriverError:
                    continue  # the jobs stay leased, or their leases expire

    async def _next_call(self) -> None:
        self._forget_one()
        if self._unanswered:
            await self._resend()
        elif old := self._old_ones():
            await (self._extend(old) if self.choices.chance(0.5) else self._settle(old))
        elif self._held:
            await self.choices.pick(_WITH_SOMETHING)(self)
        elif self.clock.monotonic() >= self._rests_until:
            await (self._claim() if self.choices.chance(0.5) else self._exchange())
        elif self.choices.chance(0.3):
            await self.choices.pick(_AT_REST)(self)
        else:
            await self.clock.sleep(self._rests_until - self.clock.monotonic())

    # ------------------------------------------------------------------ calls

    async def _claim(self) -> None:
        if claim := self._next_claim():
            asked = self.clock.monotonic()
            self._take((await self.line.reserve(claim)).jobs, asked)

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

    async def _settle_again(self) -> None:
        """Settle a job that this worker has settled already: refused, without effect."""
        if self._over:
            await self.line.settle([self.choices.pick(self._over)])

    async def _extend_an_old_lease(self) -> None:
        if self._over:
            await self.line.extend_leases([self.choices.pick(self._over).lease], self._lease_for)

    async def _sweep(self) -> None:
        await self.line.reclaim(self.choices.whole(1, 5))
        await self.line.promote(self.choices.whole(1, 5))

    async def _look(self) -> None:
        if ids := self.world.ids[-20:]:
            await self.line.get([self.choices.pick(ids)])

    # ------------------------------------------------------------------ small parts

    def _next_claim(self) -> Claim | None:
        if len(self._held) >= _MOST_HELD or self.clock.monotonic() < self._rests_until:
            return None
        return Claim(
            queues=self.world.queue_names,
            worker_id=self.process.name,
            limit=self.choices.whole(1, 4),
            lease_for=self._lease_for,
            lanes=("any", "cpu") if self.world.plan.has("lanes") else ("any",),
        )

    def _take(self, records: list[JobRecord], asked: float) -> None:
        for record in records:
            self._held[record.id] = HeldJob(record, record.lease, asked)
        if not records:
            self._rests_until = self.clock.monotonic() + self.choices.seconds(0.03, 0.2)

    def _some(self, most: int) -> list[HeldJob]:
        return list(self._held.values())[: self.choices.whole(1, most)]

    def _old_ones(self) -> list[HeldJob]:
        """The jobs whose lease must be extended now: before half of it is over."""
        before = self.clock.monotonic() - self._lease_for.total_seconds() * self.choices.seconds(0.2, 0.5)
        return [held for held in self._held.values() if held.touched < before]

    async def _extend(self, some: list[HeldJob]) -> None:
        asked = self.clock.monotonic()
        answers = await self.line.extend_leases([held.lease for held in some], self._lease_for)
        for held, answer in zip(some, answers, strict=True):
            if not isinstance(answer, Extended):
                self._held.pop(held.record.id, None)
                continue
            held.lease, held.touched, held.is_cancelled = answer.lease, asked, answer.cancel_requested

    async def _settle(self, some: list[HeldJob]) -> None:
        ended = [self._end(held) for held in some]
        self._unanswered += ended
        await self.line.settle(ended)
        self._answered(ended)

    async def _resend(self) -> None:
        again = self._unanswered[:3]
        await self.line.settle(again)
        self._answered(again)

    def _answered(self, settlements: list[Settlement]) -> None:
        known = {id(one) for one in settlements}
        self._unanswered = [one for one in self._unanswered if id(one) not in known]
        self._over = [*self._over, *settlements][-_MOST_REMEMBERED:]

    def _end(self, held: HeldJob) -> Settlement:
        """End the attempt: the settlement that `decide` picks for its outcome."""
        self._held.pop(held.record.id, None)
        outcome = WasCancelled("asked for") if held.is_cancelled else self._outcome()
        if isinstance(outcome, Failed):
            [run] = self._recorder.asked(
                [HistoryEvent(kind="invoke", op="run", job=held.record.id, version=held.record.fence)]
            )
            self._recorder.note(run, kind="fail", result="ValueError")
        limit = attempts_allowed(held.record.max_attempts, RETRY.max_attempts)
        return decide(held.record, outcome, limit=limit, backoff=lambda _: _SOON)

    def _outcome(self) -> Outcome:
        match self.choices.below(20):
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
        """Drop a leased job without a word: the store must reclaim it."""
        if self._held and self.world.has_faults and self.choices.chance(0.002):
            job_id = next(iter(self._held))
            if self.world.allows("forget", self.process.name, job_id):
                del self._held[job_id]


_WITH_SOMETHING = (
    RudeWorker._claim,
    RudeWorker._exchange,
    RudeWorker._exchange,
    RudeWorker._settle_some,
    RudeWorker._extend_some,
    RudeWorker._settle_again,
    RudeWorker._extend_an_old_lease,
    RudeWorker._look,
)
_AT_REST = (RudeWorker._settle_again, RudeWorker._extend_an_old_lease, RudeWorker._sweep, RudeWorker._look)
