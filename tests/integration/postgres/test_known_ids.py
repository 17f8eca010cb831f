"""An id that is known while its job is being deleted."""

import asyncio
from typing import Any

import pytest

from taskharbor.drivers.messages import EnqueueResult
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.model.job import NewJob
from taskharbor.testing.conformance.kit import new_job

STATEMENTS = [f"delete from {table} where id = any ($1::uuid[])" for table in ("waiting", "job_state", "job")]


async def enqueued(driver: PostgresDriver, job: NewJob, is_blocking: bool) -> EnqueueResult:
    if is_blocking:
        [answer] = await asyncio.to_thread(driver.enqueue_blocking, [job])
    else:
        [answer] = await driver.enqueue([job])
    return answer.result


@pytest.mark.parametrize("is_blocking", [False, True])
async def test_an_enqueue_does_not_wait_for_a_delete_with_its_clock_read(
    driver: PostgresDriver, session: Any, is_blocking: bool
) -> None:
    """To wait and then store the job would date it before the delete that it comes after."""
    job = new_job()
    await driver.enqueue([job])
    transaction = session.transaction()
    await transaction.start()
    for statement in STATEMENTS:
        await session.execute(statement, [job.id])

    async with asyncio.timeout(60):
        answer = await enqueued(driver, job, is_blocking)

    assert answer == EnqueueResult.DUPLICATE
    await transaction.rollback()
