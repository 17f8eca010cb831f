"""Looking: get, find, count and queues say what is there, page by page, and never show a token."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Counts, Query
from taskharbor.errors import InvalidArgument
from taskharbor.model.job import JobRecord
from taskharbor.model.limits import RateLimit
from taskharbor.model.queue import EVERY_QUEUE, QueueRules, QueueSettings, Retention
from taskharbor.model.settlement import Ack, Fail
from taskharbor.model.state import JobState
from taskharbor.testing.conformance.kit import (
    HOUR,
    LEASE,
    MICROSECOND,
    MINUTE,
    OTHER_QUEUE,
    OTHER_WORKER,
    QUEUE,
    START,
    UNKNOWN_ID,
    WORKER,
    enqueue,
    enqueue_one,
    find_all,
    found_ids,
    get_one,
    in_state,
    new_job,
    new_jobs,
    reserve,
    reserve_one,
    running,
    settle_one,
    state_of,
)


async def one_in_each_state(driver: Driver, queue: str = QUEUE) -> dict[JobState, JobRecord]:
    """Every state; the blocked one brings a running one. In an order that claims cannot mix up."""
    order = [JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED, JobState.BLOCKED]
    there = {state: await in_state(driver, state, queue=queue) for state in order}
    there[JobState.SCHEDULED] = await in_state(driver, JobState.SCHEDULED, queue=queue)
    there[JobState.READY] = await in_state(driver, JobState.READY, queue=queue)
    return there


async def page_of(driver: Driver, *, now: datetime = START, **fields: Any) -> tuple[list[str], str | None]:
    page = await driver.find(Query(**fields), now=now)
    return [job.id for job in page.jobs], page.next_cursor


# ------------------------------------------------------------------ get


@pytest.mark.parametrize("state", JobState)
async def test_a_job_reads_as_the_state_it_is_in(driver: Driver, state: JobState) -> None:
    """R01: by id and in the listing."""
    job = await in_state(driver, state)

    assert job.state is state
    assert await found_ids(driver, states=(state,)) == [job.id]


async def test_get_answers_in_order_with_none_for_the_unknown(driver: Driver) -> None:
    """R01: the same id twice is answered twice."""
    first, second = await enqueue(driver, *new_jobs(2))

    found = await driver.get([second, UNKNOWN_ID, first, second], now=START)

    assert [job and job.id for job in found] == [second, None, first, second]
    assert await driver.get([], now=START) == []


async def test_a_due_job_reads_ready_before_anybody_promotes_it(driver: Driver) -> None:
    """R01 A06: at the very instant, in get, find and count."""
    job = await in_state(driver, JobState.SCHEDULED)
    due = START + HOUR

    for now, state in ((due - MICROSECOND, JobState.SCHEDULED), (due, JobState.READY)):
        assert await state_of(driver, job.id, now=now) is state
        assert await found_ids(driver, now=now, states=(state,)) == [job.id]
        assert (await driver.count(now=now))[QUEUE] == msgspec.convert({state.value: 1}, Counts)


async def test_an_expired_lease_reads_running_until_it_is_reclaimed(driver: Driver) -> None:
    """R01 G13: looking changes nothing."""
    job = await running(driver)
    then = START + 10 * LEASE

    assert await state_of(driver, job.id, now=then) is JobState.RUNNING
    assert await found_ids(driver, now=then, states=(JobState.RUNNING,)) == [job.id]
    assert (await driver.count(now=then))[QUEUE].running == 1


async def test_looking_never_shows_a_token(driver: Driver) -> None:
    """R06: get shows the one of the last settlement, find not even that."""
    job = await running(driver)
    assert (await get_one(driver, job.id)).token is None
    await settle_one(driver, Ack(job.lease))

    record = await get_one(driver, job.id)
    [listed] = await find_all(driver)

    assert (record.token, record.settled_token) == (None, job.token)
    assert (listed.token, listed.settled_token) == (None, None)


async def test_looking_changes_nothing(driver: Driver) -> None:
    """R01: no version, no time, however late one looks."""
    jobs = await one_in_each_state(driver)
    ids = [job.id for job in jobs.values()]
    before = await driver.get(ids, now=START)
    late = START + 100 * HOUR

    await driver.get(ids, now=late)
    await find_all(driver, now=late)
    await driver.count(now=late)
    await driver.queues(now=late)

    assert await driver.get(ids, now=START) == before


# ------------------------------------------------------------------ find


async def test_filters_say_what_they_mean(driver: Driver) -> None:
    """R02: each alone, and all that are given must hold."""
    keyed = (await running(driver, key=b"key", type="kit.a")).id
    failed = (await running(driver, type="kit.b", worker_id=OTHER_WORKER)).id
    other = (await running(driver, queue=OTHER_QUEUE, worker_id=OTHER_WORKER)).id
    ready = (await enqueue_one(driver, type="kit.a")).id
    [failing] = [job for job in await find_all(driver) if job.id == failed]
    assert failing.worker_id == OTHER_WORKER

    assert await found_ids(driver) == [keyed, failed, other, ready]
    assert await found_ids(driver, queue=OTHER_QUEUE) == [other]
    assert await found_ids(driver, type="kit.a") == [keyed, ready]
    assert await found_ids(driver, type="kit.a", states=(JobState.READY,)) == [ready]
    assert await found_ids(driver, key=b"key") == [keyed]
    assert await found_ids(driver, worker_id=OTHER_WORKER) == [failed, other]
    assert await found_ids(driver, worker_id=OTHER_WORKER, queue=QUEUE) == [failed]
    assert await found_ids(driver, states=(JobState.READY, JobState.RUNNING), queue=QUEUE) == [
        keyed,
        failed,
        ready,
    ]
    assert await found_ids(driver, queue="kit-nothing") == []
    assert await found_ids(driver, type="kit.c") == []
    assert await found_ids(driver, key=b"ke") == []


async def test_filters_mean_the_same_in_either_order(driver: Driver) -> None:
    """R02 R03: newest first is the same listing from its other end."""
    await running(driver, key=b"key", type="kit.a")
    await running(driver, type="kit.b", worker_id=OTHER_WORKER)
    await running(driver, queue=OTHER_QUEUE, worker_id=OTHER_WORKER)
    failing = await running(driver, worker_id=OTHER_WORKER)
    await settle_one(driver, Fail(failing.lease, "broken"))
    await enqueue_one(driver, type="kit.a")
    asked: list[dict[str, Any]] = [
        {"queue": QUEUE},
        {"type": "kit.a"},
        {"key": b"key"},
        {"worker_id": OTHER_WORKER},
        {"failure_kind": "error"},
        {"states": (JobState.RUNNING,)},
    ]

    for filters in asked:
        oldest_first = await found_ids(driver, **filters)
        assert oldest_first, filters
        assert await found_ids(driver, newest_first=True, **filters) == oldest_first[::-1], filters


async def test_dead_letters_can_be_found_by_their_kind(driver: Driver) -> None:
    """R02 F16: failed by an error, a timeout or stalls."""
    by_kind: dict[str, str] = {}
    for kind in ("error", "timeout", "unrecoverable", "no_handler", "invalid_payload"):
        job = await running(driver)
        await settle_one(driver, Fail(job.lease, "broken", kind))
        by_kind[kind] = job.id
    by_kind["stalled"] = (await running(driver, max_stalls=1)).id
    await driver.reclaim(now=START + LEASE)

    for kind, job_id in by_kind.items():
        assert await found_ids(driver, failure_kind=kind) == [job_id]


async def test_a_listing_is_in_enqueue_order_or_the_reverse(driver: Driver) -> None:
    """R03: whatever priority, run_at and state."""
    ids = await enqueue(
        driver, *(new_job(priority=n * 37 % 11, run_at=START - n * MINUTE) for n in range(20))
    )
    await reserve(driver, limit=5)

    assert await found_ids(driver) == ids
    assert await found_ids(driver, newest_first=True) == ids[::-1]


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("limit", [1, 3, 7, 50])
async def test_pages_join_without_a_gap_or_a_double(driver: Driver, limit: int, newest_first: bool) -> None:
    """R03: for every page size."""
    ids = await enqueue(driver, *new_jobs(21))

    found = await found_ids(driver, limit=limit, newest_first=newest_first)

    assert found == (ids[::-1] if newest_first else ids)


async def test_a_page_holds_no_more_than_its_limit_and_the_last_has_no_cursor(driver: Driver) -> None:
    """R03: an exact fit ends too."""
    ids = await enqueue(driver, *new_jobs(4))

    first, cursor = await page_of(driver, limit=2)
    assert first == ids[:2]
    seen = list(first)
    while cursor is not None:
        page, cursor = await page_of(driver, limit=2, cursor=cursor)
        assert len(page) <= 2
        seen += page

    assert seen == ids


@pytest.mark.parametrize("newest_first", [False, True])
async def test_a_listing_is_stable_under_inserts_and_removals(driver: Driver, newest_first: bool) -> None:
    """R03: a job that stays is seen exactly once, whatever comes and goes between the pages."""
    ids = await enqueue(driver, *new_jobs(12))
    gone = {ids[1], ids[4], ids[5], ids[9]}
    seen, cursor = await page_of(driver, limit=3, newest_first=newest_first)
    await driver.cancel(list(gone), now=START)
    await driver.delete(list(gone), now=START)
    added = await enqueue(driver, *new_jobs(5))

    while cursor is not None:
        page, cursor = await page_of(driver, limit=3, cursor=cursor, newest_first=newest_first)
        seen += page

    stayed = [job_id for job_id in ids if job_id not in gone]
    assert sorted(job_id for job_id in seen if job_id in stayed) == sorted(stayed)
    assert len(set(seen)) == len(seen)
    if newest_first:
        assert not set(added) & set(seen)
    else:
        assert seen[-5:] == added


async def test_a_filtered_listing_goes_on_when_jobs_leave_the_filter(driver: Driver) -> None:
    """R03 F18: requeueing dead letters page by page skips none."""
    await driver.enqueue(new_jobs(10), now=START)
    jobs = await reserve(driver, limit=10)
    await driver.settle([Fail(job.lease, "broken") for job in jobs], now=START)
    seen: list[str] = []
    cursor: str | None = None
    while True:
        page, cursor = await page_of(driver, queue=QUEUE, states=(JobState.FAILED,), limit=3, cursor=cursor)
        await driver.requeue(page, now=START)
        seen += page
        if cursor is None:
            break

    assert seen == [job.id for job in jobs]
    assert (await driver.count(now=START))[QUEUE] == Counts(ready=10)


async def test_a_cursor_of_another_listing_is_refused(driver: Driver) -> None:
    """R03: or one that is none; the page size may change on the way."""
    await driver.enqueue(new_jobs(3), now=START)
    _, cursor = await page_of(driver, limit=1, queue=QUEUE)
    assert cursor is not None

    others: tuple[dict[str, Any], ...] = ({"queue": OTHER_QUEUE}, {}, {"queue": QUEUE, "newest_first": True})
    for fields in others:
        with pytest.raises(InvalidArgument):
            await driver.find(Query(cursor=cursor, **fields), now=START)
    for nonsense in ("", "x", "AAAA", cursor[:-2], cursor + "AAAA", "ü", "' or 1=1"):
        with pytest.raises(InvalidArgument):
            await driver.find(Query(cursor=nonsense, queue=QUEUE), now=START)
    assert len((await page_of(driver, limit=2, queue=QUEUE, cursor=cursor))[0]) == 2


@pytest.mark.parametrize(
    "fields",
    [
        {"limit": 0},
        {"limit": 1001},
        {"limit": -1},
        {"states": ()},
        {"states": ("ready?",)},
        {"queue": "*"},
        {"type": "a b"},
        {"key": b""},
    ],
    ids=str,
)
async def test_a_query_that_makes_no_sense_is_refused(driver: Driver, fields: dict[str, Any]) -> None:
    """R02 N15: before the store is asked."""
    with pytest.raises(InvalidArgument):
        await driver.find(Query(**fields), now=START)


# ------------------------------------------------------------------ counts and queues


async def test_a_look_without_payloads_leaves_payloads_and_results_out(driver: Driver) -> None:
    """R01 R02: nothing else; a caller that shows neither does not carry a megabyte per job."""
    big = b'"' + b"x" * 70_000 + b'"'
    small = await enqueue_one(driver, payload=b'{"a":1}')
    large = await enqueue_one(
        driver, payload=big, headers={"a": "b"}, queue=OTHER_QUEUE, type="kit-" + "t" * 100
    )
    middle = await enqueue_one(driver, payload=b"y" * 300, key=b"k", idempotency_key=b"i")
    plain = await enqueue_one(driver, payload=b"")
    done = await reserve_one(driver)
    await driver.settle([Ack(done.lease, big)], now=START)
    ids = [one.id for one in (small, large, middle, plain)]
    whole = [job for job in await driver.get(ids, now=START) if job is not None]
    assert whole[0].result == big

    lean = await driver.get([*ids, UNKNOWN_ID], payloads=False, now=START)
    page = await driver.find(Query(payloads=False), now=START)
    one_queue = await driver.find(Query(queue=OTHER_QUEUE, payloads=False, newest_first=True), now=START)
    few = await driver.find(Query(states=(JobState.COMPLETED,), payloads=False), now=START)

    assert lean == [*(replace(job, payload=b"", result=None) for job in whole), None]
    listed = [replace(job, settled_token=None) for job in lean if job is not None]
    assert page.jobs == listed
    assert one_queue.jobs == [listed[1]]
    assert few.jobs == [listed[0]]


async def test_counts_equal_the_lists(driver: Driver) -> None:
    """R04 R05: every job is in exactly one list, and counted there."""
    await one_in_each_state(driver)
    await one_in_each_state(driver, OTHER_QUEUE)
    counts = await driver.count(now=START)

    assert set(counts) == {QUEUE, OTHER_QUEUE}
    listed: list[str] = []
    for queue, numbers in counts.items():
        for state in JobState:
            ids = await found_ids(driver, queue=queue, states=(state,))
            assert getattr(numbers, state.value) == len(ids), (queue, state)
            listed += ids
    assert sorted(listed) == sorted(await found_ids(driver))


async def test_counts_of_named_queues(driver: Driver) -> None:
    """R04: only those asked for; one without a job counts nothing."""
    await enqueue_one(driver)
    await enqueue_one(driver, queue=OTHER_QUEUE)

    counts = await driver.count([OTHER_QUEUE, "kit-nothing"], now=START)

    assert counts.get(OTHER_QUEUE) == Counts(ready=1)
    assert counts.get("kit-nothing", Counts()) == Counts()
    assert QUEUE not in counts


async def test_an_empty_store_counts_nothing(driver: Driver) -> None:
    """R04: and lists nothing."""
    assert await driver.count(now=START) == {}
    assert await driver.queues(now=START) == []
    assert await find_all(driver) == []


async def test_queues_show_their_rules_numbers_and_oldest_job(driver: Driver) -> None:
    """R14: by name; the harbor's own rules under the star."""
    rate = RateLimit(5, MINUTE)
    keep = Retention(failed=None)
    await driver.configure_queue(QueueSettings(queue="kit-set", max_running=3, retention=keep), now=START)
    await driver.configure_queue(QueueSettings(queue=EVERY_QUEUE, execute_rate=rate), now=START)
    await enqueue(driver, new_job(), new_job(run_at=START - HOUR), new_job(run_at=START + HOUR))

    infos = {info.queue: info for info in await driver.queues(now=START)}

    assert list(infos) == sorted(infos) == [EVERY_QUEUE, QUEUE, "kit-set"]
    assert infos[EVERY_QUEUE].rules == QueueRules(execute_rate=rate)
    assert infos["kit-set"].rules == QueueRules(max_running=3, retention=keep)
    assert infos["kit-set"].oldest_ready_at is None
    assert (infos[QUEUE].rules, infos[QUEUE].counts) == (QueueRules(), Counts(ready=2, scheduled=1))
    assert infos[QUEUE].oldest_ready_at == START - HOUR


async def test_the_oldest_ready_job_is_the_one_that_could_run_first(driver: Driver) -> None:
    """R14: not the one of the highest priority; gone when nothing is ready."""

    async def oldest(now: datetime) -> datetime | None:
        return next(info.oldest_ready_at for info in await driver.queues(now=now) if info.queue == QUEUE)

    await enqueue_one(driver, priority=-9)
    await enqueue_one(driver, now=START + MINUTE, priority=9)
    assert await oldest(START + MINUTE) == START
    assert len(await reserve(driver, now=START + MINUTE, limit=2)) == 2

    assert await oldest(START + MINUTE) is None


async def test_info_says_what_the_store_is(driver: Driver) -> None:
    """R12: its kind, its place, how durable it is, and what time it has."""
    info = await driver.info()

    assert info.driver
    assert info.store
    assert info.durability in ("D0", "D1", "D2", "D3")
    assert (info.durability != "D0") == driver.capabilities.durable
    assert info.at.utcoffset() is not None


async def test_find_agrees_with_reserve(driver: Driver) -> None:
    """R001-27: what reads ready can be had, and nothing else."""
    await one_in_each_state(driver)
    ready = await found_ids(driver, states=(JobState.READY,))

    assert [job.id for job in await reserve(driver, limit=10)] == ready
    assert (await reserve_one(driver, now=START + HOUR, worker_id=WORKER)).state is JobState.RUNNING
