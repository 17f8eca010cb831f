"""Somebody deletes a row of `job` by hand: what is left of it blocks nothing."""

from typing import Any

import psycopg
import pytest

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import EnqueueResult
from taskharbor.drivers.postgres.address import address_of
from taskharbor.model.settlement import Ack
from taskharbor.testing.conformance.kit import (
    LEASE,
    START,
    enqueue,
    enqueue_one,
    found_ids,
    new_jobs,
    reserve,
    running,
    settle_one,
)

END = START + LEASE


def lose(url: str, job_id: str) -> None:
    with psycopg.connect(url.partition("?")[0]) as connection:
        schema = address_of(url).schema
        assert connection.execute(f'delete from "{schema}".job where id = %s', [job_id]).rowcount == 1


@pytest.mark.parametrize("place", [0, 1, 2])
async def test_a_claim_goes_past_a_waiting_job_that_was_deleted(
    driver: Driver, store_url: str, place: int
) -> None:
    ids = await enqueue(driver, *new_jobs(3))
    lose(store_url, ids.pop(place))

    listed = await found_ids(driver)
    taken = await reserve(driver, limit=10)
    more = await enqueue_one(driver)

    assert listed == [job.id for job in taken] == ids
    assert [job.id for job in await reserve(driver, limit=10)] == [more.id]
    for job in taken:
        await settle_one(driver, Ack(job.lease))


@pytest.mark.parametrize("by_claim", [True, False])
async def test_a_sweep_goes_past_a_running_job_that_was_deleted(
    driver: Driver, store_url: str, by_claim: bool
) -> None:
    ids = await enqueue(driver, *new_jobs(3))
    await reserve(driver, limit=3)
    lose(store_url, ids.pop(1))

    if not by_claim:
        assert [answer.id for answer in await driver.reclaim(now=END)] == ids
        assert await driver.reclaim(now=END) == []
    taken = await reserve(driver, limit=10, now=END)

    assert [job.id for job in taken] == ids
    assert await found_ids(driver, now=END) == ids


async def test_leases_of_deleted_jobs_do_not_hide_the_others_from_a_sweep(
    driver: Driver, store_url: str
) -> None:
    """With keys they have rows of their own, and there are more of them than a sweep takes at a time."""
    for key in (b"a", b"b", b"c", b"d", b"e"):
        lose(store_url, (await running(driver, key=key)).id)
    kept = await running(driver, key=b"f", lease_for=LEASE * 2)

    found = [one.id for _ in range(6) for one in await driver.reclaim(2, now=START + 2 * LEASE)]

    assert found == [kept.id]


@pytest.mark.parametrize(
    "fields", [{"key": b"key"}, {"idempotency_key": b"once"}], ids=lambda f: next(iter(f))
)
@pytest.mark.parametrize("is_running", [False, True], ids=["waiting", "running"])
async def test_the_key_of_a_deleted_job_is_free_again(
    driver: Driver, store_url: str, fields: dict[str, Any], is_running: bool
) -> None:
    lost = await running(driver, **fields) if is_running else await enqueue_one(driver, **fields)
    lose(store_url, lost.id)

    answer = await enqueue_one(driver, **fields)

    assert answer.result is EnqueueResult.CREATED
    assert [job.id for job in await reserve(driver, limit=10)] == [answer.id]
