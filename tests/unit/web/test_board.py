"""Board: one look for everybody, never too often; rates, lost workers, a store that is away."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from taskharbor.client.needs import Rates
from taskharbor.drivers import connect
from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Claim, Counts, QueueInfo
from taskharbor.errors import DriverUnavailable
from taskharbor.model.job import NewJob
from taskharbor.model.presence import WorkerReport
from taskharbor.model.queue import NO_RULES, QueueRules, QueueSettings
from taskharbor.model.settlement import Ack
from taskharbor.testing.clock import SimulatedClock
from taskharbor.web.auth import Principal
from taskharbor.web.board import Board
from taskharbor.web.board_view import BoardOut, board_delta, board_view
from taskharbor.web.queue_rates import EndedRates, QueueRates

SECOND = timedelta(seconds=1)
JOB = "01900000-0000-7000-8000-000000000009"
EVERYONE = Principal(name="a", role="viewer")


class Harbor:
    """A memory store on a simulated clock, and a board that counts how often it asks."""

    def __init__(self) -> None:
        self.clock = SimulatedClock()
        self.driver: Driver = connect("memory://", clock=self.clock)
        self.asked = 0
        self.is_away = False
        self.takes = timedelta()
        self.board = Board(self._open, self.clock, self.clock.now, {"slow": timedelta(hours=1)})

    async def _open(self) -> Driver:
        self.asked += 1
        if self.is_away:
            raise DriverUnavailable("gone")
        self.clock.advance(self.takes)
        return self.driver

    async def put(self, count: int, queue: str = "mail", first: int = 0) -> None:
        jobs = [
            NewJob(id=f"01900000-0000-7000-8000-{first + number:012d}", type="t", queue=queue)
            for number in range(count)
        ]
        await self.driver.enqueue(jobs)

    async def finish(self, count: int) -> None:
        claim = Claim(queues=("mail",), worker_id="w", limit=count)
        jobs = (await self.driver.reserve(claim)).jobs
        await self.driver.settle([Ack(job.lease) for job in jobs])

    async def report(self, worker_id: str, **report: Any) -> None:
        await self.driver.report_worker(WorkerReport(worker_id=worker_id, **report), ttl=20 * SECOND)

    def view(self, principal: Principal = EVERYONE) -> Any:
        assert self.board.last is not None
        return board_view(self.board, self.board.last, principal)


@pytest.fixture
async def harbor() -> AsyncIterator[Harbor]:
    found = Harbor()
    async with found.driver:
        yield found


# ------------------------------------------------------------------ how often


async def test_callers_share_one_look(harbor: Harbor) -> None:
    looks = await asyncio.gather(*[harbor.board.look() for _ in range(10)])

    assert len({id(look) for look in looks}) == 1
    assert harbor.asked == 1


async def test_it_looks_at_most_once_a_second(harbor: Harbor) -> None:
    first = await harbor.board.look()
    harbor.clock.advance(0.9 * SECOND)
    assert await harbor.board.look() is first
    assert harbor.board.age_s(first) == 0.9

    harbor.clock.advance(0.1 * SECOND)
    assert await harbor.board.look() is not first
    assert harbor.asked == 2


async def test_after_a_slow_look_it_waits_twenty_times_as_long(harbor: Harbor) -> None:
    harbor.takes = 0.7 * SECOND
    first = await harbor.board.look()
    harbor.clock.advance(13.9 * SECOND)
    assert await harbor.board.look() is first

    harbor.clock.advance(0.1 * SECOND)
    assert await harbor.board.look() is not first


async def test_a_caller_that_leaves_does_not_end_the_look_of_the_others(harbor: Harbor) -> None:
    leaving, staying = asyncio.ensure_future(harbor.board.look()), asyncio.ensure_future(harbor.board.look())
    await asyncio.wait({leaving}, timeout=0)
    leaving.cancel()

    assert (await staying).queues == {}
    assert harbor.asked == 1


async def test_a_setting_changed_here_is_shown_before_the_next_look(harbor: Harbor) -> None:
    await harbor.put(1)
    await harbor.board.look()
    rules = await harbor.driver.configure_queue(QueueSettings(queue="mail", paused=True))
    harbor.board.settings_changed("mail", rules)
    harbor.board.settings_changed("unused", rules)
    harbor.board.settings_changed("*", QueueRules(max_running=7))
    look = await harbor.board.look()

    assert [look.queues[name].rules.paused for name in ("mail", "unused")] == [True, True]
    assert (look.harbor.max_running, harbor.asked) == (7, 1)


# ------------------------------------------------------------------ the store away


async def test_while_the_store_is_away_the_last_look_stays_and_the_board_says_so(harbor: Harbor) -> None:
    await harbor.put(3)
    await harbor.board.look()
    harbor.is_away = True
    harbor.clock.advance(SECOND)
    with pytest.raises(DriverUnavailable):
        await harbor.board.look()
    with pytest.raises(DriverUnavailable):
        await harbor.board.look()
    assert harbor.asked == 2, "it is not asked again at once"

    harbor.clock.advance(timedelta(minutes=3))
    view = harbor.view()
    assert (view.is_away, view.counts.ready, view.needs[0].text) == (True, 3, "The store does not answer")

    harbor.is_away = False
    await harbor.board.look()
    assert not harbor.view().is_away


# ------------------------------------------------------------------ lost workers


async def test_a_worker_that_falls_silent_is_remembered_for_an_hour(harbor: Harbor) -> None:
    await harbor.report("w-1", name="gpu-b", queues=("mail",), running=(JOB,))
    for _ in range(25):
        harbor.clock.advance(SECOND)
        await harbor.board.look()

    look = await harbor.board.look()
    assert [(one.id, one.name, one.running) for one in look.lost] == [("w-1", "gpu-b", (JOB,))]
    assert [need.text for need in harbor.view().needs] == ["gpu-b is lost"]
    harbor.clock.advance(timedelta(hours=1))
    assert (await harbor.board.look()).lost == ()


async def test_one_that_says_goodbye_or_comes_back_is_not_lost(harbor: Harbor) -> None:
    for name in ("w-1", "w-2"):
        await harbor.report(name)
    harbor.clock.advance(SECOND)
    await harbor.board.look()
    await harbor.driver.forget_worker("w-1")
    for _ in range(25):
        harbor.clock.advance(SECOND)
        await harbor.board.look()
    assert [one.id for one in (await harbor.board.look()).lost] == ["w-2"]

    await harbor.report("w-2")
    harbor.clock.advance(SECOND)
    assert (await harbor.board.look()).lost == ()


async def test_nobody_looked_for_long_so_nothing_is_known_of_those_who_went(harbor: Harbor) -> None:
    await harbor.report("w-1")
    await harbor.board.look()
    harbor.clock.advance(timedelta(hours=2))

    assert (await harbor.board.look()).lost == ()


# ------------------------------------------------------------------ rates


async def test_rates_come_from_looks_and_are_unknown_before_there_are_two(harbor: Harbor) -> None:
    await harbor.put(10)
    assert (await harbor.board.look()).rates["mail"] == Rates()
    harbor.clock.advance(10 * SECOND)
    await harbor.put(20, first=100)
    await harbor.finish(5)
    rates = (await harbor.board.look()).rates["mail"]

    assert (rates.arrived_per_s, rates.done_per_s, rates.failed_per_s) == (2.0, 0.5, 0.0)
    row = harbor.view().queues[0]
    assert (row.ready, row.empty_in_s, row.target_s) == (25, None, 60.0)


def info(**counts: int) -> dict[str, QueueInfo]:
    return {"mail": QueueInfo(queue="mail", rules=NO_RULES, counts=Counts(**counts))}


def test_pruned_jobs_do_not_make_a_rate_negative() -> None:
    rates = QueueRates()
    for at, completed in ((0.0, 100), (10.0, 120), (20.0, 10), (30.0, 20)):
        rates.note(at, info(completed=completed, ready=5))

    assert rates.of("mail") == Rates(arrived_per_s=1.0, done_per_s=1.0, failed_per_s=0.0)


def test_the_logbook_knows_better() -> None:
    rates = QueueRates()
    rates.ended = {"mail": EndedRates(done_per_s=18.2, failed_per_s=0.28, wait_p95_s=780.0)}
    rates.note(0.0, info(ready=100))
    assert rates.of("mail").arrived_per_s is None
    rates.note(10.0, info(ready=328))

    assert rates.of("mail") == Rates(arrived_per_s=41.3, done_per_s=18.2, failed_per_s=0.28, wait_p95_s=780.0)
    assert rates.of("other") == Rates(arrived_per_s=0.0, done_per_s=0.0, failed_per_s=0.0)


def test_looks_older_than_a_minute_are_forgotten() -> None:
    rates = QueueRates()
    rates.note(0.0, info(completed=0))
    rates.note(100.0, info(completed=1000))

    assert rates.of("mail") == Rates()


# ------------------------------------------------------------------ what a caller sees


async def test_the_view_counts_slots_workers_and_targets(harbor: Harbor) -> None:
    await harbor.put(2, "slow")
    await harbor.report("w-1", kind="gpu", concurrency=4, running=(JOB, JOB[:-1] + "8"), queues=("slow",))
    await harbor.report("w-2", kind="gpu", concurrency=2)
    await harbor.board.look()
    view = harbor.view()

    assert {kind: (one.busy, one.total) for kind, one in view.slots.items()} == {"gpu": (2, 6)}
    assert [(row.name, row.workers, row.target_s) for row in view.queues] == [("slow", 2, 3600.0)]
    assert (view.verdict.text, view.needs, view.more) == ("All calm", [], 0)


async def test_a_caller_of_some_queues_sees_nothing_of_others(harbor: Harbor) -> None:
    await harbor.put(1, "mail")
    await harbor.put(1, "theirs", first=10)
    await harbor.report("w-theirs", queues=("theirs",), running=(JOB,))
    await harbor.report("w-all", name="secret", running=(JOB,))
    for _ in range(60):
        harbor.clock.advance(SECOND)
        await harbor.board.look()
    narrow = harbor.view(Principal(name="n", role="admin", queues=frozenset({"mail"})))

    assert [row.name for row in narrow.queues] == ["mail"]
    assert narrow.counts.ready == 1
    assert "theirs" not in str(narrow)
    assert "secret" not in str(narrow)
    assert "theirs" in str(harbor.view())


async def test_at_most_five_needs_are_named_and_the_rest_counted(harbor: Harbor) -> None:
    for number in range(7):
        await harbor.put(1, f"q{number}", first=number)
        await harbor.driver.configure_queue(QueueSettings(queue=f"q{number}", paused=True))
    harbor.clock.advance(timedelta(minutes=11))
    await harbor.board.look()
    view = harbor.view()

    assert (len(view.needs), view.more, view.verdict.text) == (5, 2, "Seven things need you")


async def test_a_delta_has_only_what_would_look_different(harbor: Harbor) -> None:
    await harbor.put(1, "mail")
    await harbor.put(1, "old", first=10)
    harbor.clock.advance(timedelta(hours=1))
    await harbor.report("w-1")
    await harbor.board.look()
    before = harbor.view()
    await harbor.report("w-1")
    harbor.clock.advance(SECOND)
    await harbor.board.look()
    same = board_delta(before, harbor.view())
    await harbor.put(1, "mail", first=20)
    await harbor.report("w-1")
    harbor.clock.advance(SECOND)
    await harbor.board.look()
    changed = board_delta(before, harbor.view())

    assert set(same) == {"at", "age_s"}
    assert [row.name for row in changed["queues"]] == ["mail"]
    assert changed["counts"].ready == 3
    gone = board_delta(harbor.view(), without(harbor.view(), "old"))
    assert gone["gone"] == ["old"]


def without(view: BoardOut, name: str) -> BoardOut:
    return replace(view, queues=[row for row in view.queues if row.name != name])
