"""Lifecycle and parity: handles, threads, namespaces, and abilities that are there when declared."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.loading import connect
from taskharbor.drivers.messages import Counts, EnqueueResult
from taskharbor.drivers.wire import VERBS
from taskharbor.errors import DriverClosed, InvalidArgument, LeaseLost, StoreRefused
from taskharbor.model.job import Lease
from taskharbor.model.queue import EVERY_QUEUE, QueueSettings
from taskharbor.model.settlement import Ack
from taskharbor.model.state import JobState
from taskharbor.testing.conformance.kit import (
    LEASE,
    QUEUE,
    START,
    UNKNOWN_ID,
    WRONG_TOKEN,
    enqueue_one,
    found_ids,
    get_one,
    new_job,
    new_jobs,
    requires,
    reserve,
    reserve_one,
    running,
    settle_one,
    unchanged,
)
from taskharbor.testing.conformance.parallel import Racer, in_threads, url_from
from taskharbor.testing.conformance.verbs import EVERY_VERB

_READING = {"look", *(name for name, verb in VERBS.items() if not verb.is_change)}


async def test_the_context_manager_opens_and_closes(driver: Driver) -> None:
    """V08 N09: also when its body fails, and only this handle."""
    second = driver.another()
    with pytest.raises(DriverClosed):
        await second.count(now=START)
    with suppress(ZeroDivisionError):
        async with second as opened:
            assert opened is second
            await enqueue_one(second)
            raise ZeroDivisionError
    with pytest.raises(DriverClosed):
        await second.count(now=START)

    assert (await driver.count(now=START))[QUEUE] == Counts(ready=1)


async def test_opening_and_closing_twice_is_fine(driver: Driver) -> None:
    """N10 V08: neither does anything the second time."""
    second = driver.another()
    assert await second.open() is second
    await second.open()
    await enqueue_one(second)
    await second.close()
    await second.close()

    assert len(await reserve(driver)) == 1


async def test_handles_see_each_others_work_at_once(driver: Driver) -> None:
    """V04: nothing is kept back in a handle, and a lease is not bound to one."""
    async with driver.another() as client, driver.another() as worker:
        answer = await enqueue_one(client)
        job = await reserve_one(worker)
        assert (await get_one(driver, answer.id)).worker_id == job.worker_id
        await settle_one(client, Ack(job.lease))

    assert (await driver.count(now=START))[QUEUE] == Counts(completed=1)


async def test_a_handle_works_in_a_thread_with_a_loop_of_its_own(driver: Driver) -> None:
    """V04: a whole life of a job in each of them."""

    async def live(racer: Racer) -> str:
        queue = f"thread-{racer.number}"
        job = await running(racer.driver, queue=queue, id=ids[racer.number])
        await settle_one(racer.driver, Ack(job.lease))
        return job.id

    ids = [job.id for job in new_jobs(4)]
    done = await in_threads(driver, 4, live)

    assert done == ids
    assert all(counts == Counts(completed=1) for counts in (await driver.count(now=START)).values())


async def test_two_namespaces_of_one_store_do_not_know_each_other(
    driver: Driver, request: pytest.FixtureRequest
) -> None:
    """V09 I19: jobs, keys, settings and roles; needs the optional fixture `other_namespace_url`."""
    job = await running(driver, key=b"key", idempotency_key=b"once")
    await driver.configure_queue(QueueSettings(queue=EVERY_QUEUE, paused=True), now=START)
    await driver.hold_role("leader", "a", LEASE, now=START)

    async with connect(url_from(request, "other_namespace_url")) as other:
        assert await other.get([job.id], now=START) == [None]
        assert (await other.count(now=START), await other.queues(now=START)) == ({}, [])
        same = new_job(id=job.id, key=b"key", idempotency_key=b"once")
        [answer] = await other.enqueue([same], now=START)
        assert answer.result is EnqueueResult.CREATED
        assert len(await reserve(other)) == 1, "the pause of one harbor is not the other's"
        assert (await other.hold_role("leader", "b", LEASE, now=START)).is_mine
        assert len(await other.reclaim(now=START + LEASE)) == 1
        await other.cancel([job.id], now=START + LEASE)

    record = await get_one(driver, job.id)
    assert (record.state, record.version) == (JobState.RUNNING, job.version)
    assert await found_ids(driver) == [job.id]


async def test_a_handle_that_only_looks_sees_what_is_there_and_changes_nothing(driver: Driver) -> None:
    """V13: every verb that looks, beside a handle that works."""
    capable = driver.capabilities
    job = await running(driver)
    await enqueue_one(driver)

    async with unchanged(driver, job.id), await driver.another().open_to_look() as second:
        assert second.capabilities == capable
        assert await second.get([job.id], now=START) == await driver.get([job.id], now=START)
        assert await found_ids(second) == await found_ids(driver)
        assert await second.count(now=START) == await driver.count(now=START)
        assert await second.queues(now=START) == await driver.queues(now=START)
        assert await second.workers(now=START) == []
        assert await second.types(now=START) == []
        assert await second.schedules(now=START) == []
        assert await second.pending_migrations() == []
        assert (await second.info()).schema == (await driver.info()).schema


async def test_a_handle_that_only_looks_refuses_what_may_change_something(driver: Driver) -> None:
    """V13: every verb; those that read work, also those whose answer is empty."""
    job = await running(driver)
    async with unchanged(driver, job.id), await driver.another().open_to_look() as second:
        for name, call in EVERY_VERB.items():
            if name not in _READING:
                with pytest.raises(StoreRefused, match="opened to look only"):
                    await call(second)
            elif name != "read_log" or driver.capabilities.logbook:
                await call(second)
        with pytest.raises(StoreRefused, match="opened to look only"):
            second.enqueue_blocking([new_job()], now=START)
        with pytest.raises(StoreRefused, match="opened to look only"):
            second.wakeups((QUEUE,), "kit-looks")

    async with second:  # opened as usual now
        await enqueue_one(second)


async def test_errors_leave_nothing_open_behind_them(driver: Driver) -> None:
    """V05 V06 V07: after hundreds of refusals this handle and another one write at once."""
    job = await running(driver)
    stranger = Lease(job.id, WRONG_TOKEN)
    for _ in range(100):
        [answer] = await driver.settle([Ack(stranger)], now=START)
        assert isinstance(answer, LeaseLost)
        with pytest.raises(InvalidArgument):
            await enqueue_one(driver, queue="a b")
        with pytest.raises(LeaseLost):
            await driver.ack(UNKNOWN_ID, WRONG_TOKEN, START)

    async with asyncio.timeout(30), driver.another() as second:
        await enqueue_one(second)
        await enqueue_one(driver)
    await settle_one(driver, Ack(job.lease))
    assert (await driver.count(now=START))[QUEUE] == Counts(ready=2, completed=1)


async def test_concurrent_calls_on_one_handle_are_all_answered(driver: Driver) -> None:
    """V04: an event loop with many tasks and one handle."""
    jobs = new_jobs(60)

    answers = await asyncio.gather(*(driver.enqueue([job], now=START) for job in jobs))
    taken = await asyncio.gather(*(reserve(driver, worker_id=f"w{n}") for n in range(60)))

    assert {answer.id for [answer] in answers} == {job.id for job in jobs}
    assert len({job.id for [job] in taken}) == 60


# ------------------------------------------------------------------ declared abilities


async def test_the_blocking_enqueue_works_exactly_when_declared(driver: Driver) -> None:
    """V11: from a thread without an event loop, with the same answers."""
    job = new_job()
    if not driver.capabilities.blocking_enqueue:
        with pytest.raises(InvalidArgument):
            driver.enqueue_blocking([job], now=START)
        return

    first = await asyncio.to_thread(driver.enqueue_blocking, [job], now=START)
    second = await asyncio.to_thread(driver.enqueue_blocking, [job], now=START)

    assert [answer.result for answer in first + second] == ["created", "duplicate"]
    assert [taken.id for taken in await reserve(driver, limit=9)] == [job.id]


async def test_the_blocking_enqueue_refuses_what_the_other_refuses(driver: Driver) -> None:
    """V11 N09 N15: the same checks in the same order."""
    requires(driver, "blocking_enqueue")

    with pytest.raises(InvalidArgument):
        driver.enqueue_blocking([new_job(), new_job(queue="a b")], now=START)
    with pytest.raises(DriverClosed):
        driver.another().enqueue_blocking([new_job(queue="a b")], now=START)
    assert driver.enqueue_blocking([], now=START) == []

    assert await found_ids(driver) == []


async def test_durable_is_what_info_says(driver: Driver) -> None:
    """V11 R12: a store that dies with the process does not call itself durable."""
    assert ((await driver.info()).durability == "D0") != driver.capabilities.durable


async def test_a_remote_store_is_there_for_other_processes_too(driver: Driver) -> None:
    """V11: it cannot be remote and in this process alone."""
    assert driver.capabilities.multiprocess or not driver.capabilities.remote


async def test_a_store_outlives_each_of_its_handles(driver: Driver) -> None:
    """V08: what a closed handle wrote is there for the others."""
    async with driver.another() as second:
        await enqueue_one(second)

    assert len(await reserve(driver)) == 1


async def test_the_schema_of_an_open_store_is_complete(driver: Driver) -> None:
    """V12 P16: nothing pending, and migrating again does nothing."""
    await driver.migrate()

    assert await driver.pending_migrations() == []
    assert await driver.migrate() == []
