"""Runs rounds on a store, judges each, and looks at the whole store in the end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import TypeVar

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Claim, Claimed, Counts, Exchanged, Extended, Query
from taskharbor.model.clock import SystemClock
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import JobRecord, Lease
from taskharbor.model.settlement import Ack
from taskharbor.testing.conformance.invariants import check_keys, check_order, check_record, counted
from tests.contract.pairs.calls import HOUR, Answer
from tests.contract.pairs.racers import RACERS, Racers
from tests.contract.pairs.serial import Ending, SerialOrder
from tests.contract.pairs.starts import AT_LAST, Site
from tests.contract.pairs.verbs import VERBS, Round

_T = TypeVar("_T")
_MARGIN = timedelta(milliseconds=2)


class Race:
    """Rounds on one store, each on a queue of its own."""

    def __init__(self, driver: Driver, racers: Racers, *, is_given: bool) -> None:
        self._driver = driver
        self._racers = racers
        self._is_given = is_given
        self._entropy = Entropy()
        self._name = self._entropy.token()[:8]
        self._queues: list[str] = []
        self._leases: dict[str, Lease] = {}  # by token: all that were ever handed out

    async def run(self, rounds: Iterable[Round]) -> None:
        for one in rounds:
            try:
                await self._run(one)
            except BaseException as error:
                error.add_note(f"in the round: {one}")
                raise
        await self._check_all()

    async def _run(self, one: Round) -> None:
        site = Site(
            self._driver, self._entropy, f"pair-{self._name}-{len(self._queues)}", is_given=self._is_given
        )
        self._queues.append(site.queue)
        await one.start.make(site)
        await site.pass_by()
        names = [one.one if racer % 2 == 0 else one.other for racer in range(RACERS)]
        calls = [VERBS[name](site, racer) for racer, name in enumerate(names)]
        answers = self._racers.make(calls, site.now)
        self._leases |= {lease.token: lease for lease in [*site.all_leases, *_leases_in(answers)]}
        await self._judge(site, answers)
        if one.start.name in ("expired", "runs_out", "last_stall"):
            await self._driver.reclaim(1000, now=site.now)  # not a matter of the rounds that follow

    async def _judge(self, site: Site, answers: list[Answer]) -> None:
        while site.moment is not None and self._now() <= site.moment + _MARGIN:
            await asyncio.sleep(_MARGIN.total_seconds())  # records and counts are of one side of it
        records = dict(zip(site.ids, await self._driver.get(site.ids, now=site.now), strict=True))
        counts = (await self._driver.count([site.queue], now=site.now)).get(site.queue, Counts())
        order = SerialOrder(site.queue, Ending(records, counts, site.queue, self._now()), site.moment)
        if not order.exists(site.model, answers, site.last_at):
            lines = "\n".join(
                f"  {one.call.verb}: {one.answer} ({one.sent:.6f} to {one.got:.6f})" for one in answers
            )
            raise AssertionError(f"no order of the calls explains\n{lines}\n  {counts}\n  {records}")

    def _now(self) -> datetime:
        return AT_LAST if self._is_given else SystemClock().now()

    # ------------------------------------------------------------------ in the end

    async def _check_all(self) -> None:
        """Records, keys and counts agree; and every job that is left can be brought to its end."""
        now = self._now() if self._is_given else None
        jobs = await self._all_jobs(now)
        for job in jobs:
            check_record(job)
        check_keys(jobs)
        check_order(jobs)
        counts = await self._driver.count(now=now)
        assert {queue: numbers for queue, numbers in counts.items() if numbers.total} == counted(jobs)
        await self._finish(None if now is None else now + 24 * HOUR)

    async def _finish(self, now: datetime | None) -> None:
        if now is None:
            for leases in _in_parts([*self._leases.values()], 500):
                await self._driver.settle([Ack(lease) for lease in leases])
        else:
            while await self._driver.reclaim(1000, now=now):
                pass
        for queues in _in_parts(self._queues, 50):
            claim = Claim(queues=tuple(queues), worker_id="last", limit=500, lease_for=HOUR)
            while jobs := (await self._driver.reserve(claim, now=now)).jobs:
                await self._driver.settle([Ack(job.lease) for job in jobs], now=now)
        left = [job for job in await self._all_jobs(now) if not job.state.is_terminal]
        if now is None:  # those that wait for hours; at a given instant there are none
            await self._driver.cancel([job.id for job in left if job.state.value == "scheduled"])
            left = [job for job in left if job.state.value != "scheduled"]
        assert left == [], f"these jobs never end: {left}"

    async def _all_jobs(self, now: datetime | None) -> list[JobRecord]:
        jobs: list[JobRecord] = []
        cursor = None
        while True:
            page = await self._driver.find(
                Query(limit=200, cursor=cursor), now=now
            )  # quick on a busy machine, too
            jobs += page.jobs
            cursor = page.next_cursor
            if cursor is None:
                return jobs


def _leases_in(answers: Iterable[Answer]) -> list[Lease]:
    leases = []
    for one in answers:
        if isinstance(one.answer, Claimed):
            leases += [job.lease for job in one.answer.jobs]
        elif isinstance(one.answer, Exchanged):
            leases += [job.lease for job in one.answer.claimed]
        elif isinstance(one.answer, list):
            leases += [extended.lease for extended in one.answer if isinstance(extended, Extended)]
    return leases


def _in_parts(things: Sequence[_T], size: int) -> Iterator[Sequence[_T]]:
    return (things[start : start + size] for start in range(0, len(things), size))
