"""Answers have a budget of bytes, and jobs with payloads are read a few at a time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from taskharbor.drivers import connect
from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Claim, Claimed, Exchanged, Page, Query
from taskharbor.errors import DriverUnavailable
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import JobRecord, NewJob
from taskharbor.model.schedule import Schedule
from taskharbor.web.answer_limit import AnswerLimit
from taskharbor.web.problems import Problem

BUDGET = 1_000_000
LARGE = 50_000


class Watched:
    """A store that notes how many payloads each call brings."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.brought: list[int] = []
        self.fails_after: int | None = None

    async def get(self, ids: Sequence[str], *, now: datetime | None = None) -> list[JobRecord | None]:
        found = await self.driver.get(ids, now=now)
        self.brought.append(len(found))
        return found

    async def find(self, query: Query, *, now: datetime | None = None) -> Page:
        page = await self.driver.find(query, now=now)
        self.brought.append(len(page.jobs))
        return page

    async def reserve(self, claim: Claim, *, now: datetime | None = None) -> Claimed:
        if self.fails_after == len(self.brought):
            raise DriverUnavailable("away", done=False)
        claimed = await self.driver.reserve(claim, now=now)
        self.brought.append(len(claimed.jobs))
        return claimed

    async def exchange(self, settlements: Any, claim: Claim, *, now: datetime | None = None) -> Exchanged:
        answer = await self.driver.exchange(settlements, claim, now=now)
        self.brought.append(len(answer.claimed))
        return answer

    async def settle(self, settlements: Any, *, now: datetime | None = None) -> Any:
        return await self.driver.settle(settlements, now=now)


async def stocked(count: int, size: int) -> tuple[Any, list[str]]:
    driver, entropy = connect("memory://"), Entropy()
    await driver.open()
    ids = [entropy.job_id(driver.clock.now()) for _ in range(count)]
    await driver.enqueue([NewJob(id=job_id, type="t", payload=b"x" * size) for job_id in ids])
    return Watched(driver), ids


async def test_an_id_that_is_named_often_is_read_once_and_counted_often() -> None:
    store, [job_id] = await stocked(1, LARGE)
    answer_limit = AnswerLimit(BUDGET)

    found = await answer_limit.get(store, [job_id] * 10, now=None)
    assert [job.id for job in found if job] == [job_id] * 10
    assert store.brought == [1]

    with pytest.raises(Problem) as caught:
        await answer_limit.get(store, [job_id] * 400, now=None)
    assert caught.value.kind == "answer-too-large"


async def test_more_than_the_budget_is_refused_before_all_of_it_is_read() -> None:
    store, ids = await stocked(300, LARGE)

    with pytest.raises(Problem):
        await AnswerLimit(BUDGET).get(store, ids, now=None)

    assert sum(store.brought) < 100


async def test_one_job_is_always_given_however_large_it_is() -> None:
    store, [job_id] = await stocked(1, BUDGET)

    [job] = await AnswerLimit(BUDGET).get(store, [job_id], now=None)

    assert job is not None


async def test_small_jobs_come_in_large_portions_and_in_order() -> None:
    store, ids = await stocked(1000, 10)
    answer_limit = AnswerLimit(16 * BUDGET)

    found = await answer_limit.get(store, ids, now=None)

    assert [job.id for job in found if job] == ids
    assert len(store.brought) <= 40


async def test_a_page_of_large_jobs_is_short_and_leads_on() -> None:
    store, ids = await stocked(60, LARGE)
    answer_limit, query, listed = AnswerLimit(BUDGET), Query(limit=60), list[str]()

    while True:
        page = await answer_limit.find(store, query, now=None)
        assert len(page.jobs) < 40
        listed += [job.id for job in page.jobs]
        if page.next_cursor is None:
            break
        query = replace(query, cursor=page.next_cursor)

    assert listed == ids


async def test_jobs_that_are_shown_without_payloads_do_not_count_by_them() -> None:
    store, ids = await stocked(60, LARGE)

    page = await AnswerLimit(BUDGET).find(
        store, Query(limit=60), now=None, shown=lambda job: replace(job, payload=b"hidden")
    )

    assert [job.id for job in page.jobs] == ids
    assert max(store.brought) < 40


async def test_a_claim_of_large_jobs_gets_what_fits_and_the_rest_stays() -> None:
    store, ids = await stocked(200, LARGE)
    claim = Claim(queues=("default",), worker_id="w", limit=200, lease_for=timedelta(seconds=30))

    first = await AnswerLimit(BUDGET).claim(store, "reserve", {"claim": claim, "now": None})
    exchange = {"claim": claim, "settlements": [], "now": None}
    second = await AnswerLimit(BUDGET).claim(store, "exchange", exchange)

    assert isinstance(first, Claimed)
    assert isinstance(second, Exchanged)
    assert 0 < len(first.jobs) < 60
    taken = [*first.jobs, *second.claimed]
    assert [job.id for job in taken] == ids[: len(taken)]


async def test_a_claim_of_small_jobs_gets_all_it_asks_for() -> None:
    store, ids = await stocked(500, 10)
    claim = Claim(queues=("default",), worker_id="w", limit=400)

    claimed = await AnswerLimit(16 * BUDGET).claim(store, "reserve", {"claim": claim, "now": None})

    assert isinstance(claimed, Claimed)
    assert [job.id for job in claimed.jobs] == ids[:400]


@pytest.mark.parametrize("verb", ["reserve", "exchange"])
async def test_large_jobs_behind_small_ones_are_released_where_they_do_not_fit(verb: str) -> None:
    limit = AnswerLimit(16 * BUDGET)
    small, _ = await stocked(500, 10)
    claim = Claim(queues=("default",), worker_id="w", limit=400, lease_for=timedelta(seconds=30))
    await limit.claim(small, "reserve", {"claim": claim, "now": None})  # so the next claim is a large one
    store, ids = await stocked(300, BUDGET)
    settled: dict[str, Any] = {"settlements": []} if verb == "exchange" else {}

    answer = await limit.claim(store, verb, {"claim": claim, "now": None, **settled})

    taken = answer.jobs if isinstance(answer, Claimed) else answer.claimed
    assert store.brought == [256]
    assert 0 < sum(len(job.payload) for job in taken) * 4 / 3 < 16 * BUDGET
    assert [job.id for job in taken] == ids[: len(taken)]
    counts = (await store.driver.count())["default"]
    assert (counts.running, counts.ready) == (len(taken), 300 - len(taken))
    following = await limit.claim(store, "reserve", {"claim": claim, "now": None})
    assert isinstance(following, Claimed)
    assert following.jobs[0].id == ids[len(taken)]
    assert following.jobs[0].attempts == following.jobs[0].stalls == 0


async def test_what_was_claimed_is_handed_out_though_the_store_goes_away() -> None:
    store, ids = await stocked(500, 10)
    store.fails_after = 1
    claim = Claim(queues=("default",), worker_id="w", limit=400)

    claimed = await AnswerLimit(16 * BUDGET).claim(store, "reserve", {"claim": claim, "now": None})

    assert isinstance(claimed, Claimed)
    assert [job.id for job in claimed.jobs] == ids[: len(claimed.jobs)]
    assert 0 < len(claimed.jobs) < 400


def test_the_payloads_of_all_schedules_fit_into_an_answer() -> None:
    def schedule(name: str, size: int) -> Schedule:
        return Schedule(
            name=name, template=NewJob(id="", type="t", payload=b"x" * size), every=timedelta(hours=1)
        )

    there = [schedule("a", BUDGET // 2), schedule("b", BUDGET // 8)]
    AnswerLimit(BUDGET).check_schedules(there, schedule("a", BUDGET // 2))
    with pytest.raises(Problem):
        AnswerLimit(BUDGET).check_schedules(there, schedule("c", BUDGET // 2))
