"""Listings: ready jobs are found behind many that have ended."""

from datetime import UTC, datetime, timedelta

from taskharbor.drivers.messages import Query
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.drivers.unclaimed import unclaimed
from taskharbor.model.settlement import Ack
from taskharbor.model.state import JobState
from taskharbor.testing.conformance.kit import QUEUE, claim, new_job, new_jobs

READY = Query(queue=QUEUE, states=(JobState.READY,), limit=2, examine=20)


async def end(driver: PostgresDriver, count: int) -> None:
    await driver.enqueue(new_jobs(count))
    taken = (await driver.reserve(claim(limit=count))).jobs
    await driver.settle([Ack(job.lease) for job in taken])
    assert len(taken) == count


async def test_ready_jobs_behind_many_that_ended_are_on_the_first_page(driver: PostgresDriver) -> None:
    await end(driver, 60)
    ready = new_jobs(5)
    await driver.enqueue([*ready, new_job(delay=timedelta(hours=1))])

    first = await driver.find(READY)
    newest = await driver.find(Query(queue=QUEUE, states=(JobState.READY,), limit=2, newest_first=True))

    assert [job.id for job in first.jobs] == [job.id for job in ready[:2]]
    assert [job.id for job in newest.jobs] == [job.id for job in ready[:2:-1]]
    rest = await driver.find(Query(queue=QUEUE, states=(JobState.READY,), cursor=first.next_cursor))
    assert [job.id for job in rest.jobs] == [job.id for job in ready[2:]]


async def test_every_ready_job_is_found_page_by_page(driver: PostgresDriver) -> None:
    await end(driver, 60)
    ready = [job.id for job in new_jobs(25)]
    await driver.enqueue([new_job(id=job_id) for job_id in ready])

    found, query, pages = list[str](), READY, 0
    while True:
        page = await driver.find(query)
        found += [job.id for job in page.jobs]
        pages += 1
        if page.next_cursor is None:
            break
        query = Query(queue=QUEUE, states=READY.states, limit=2, examine=20, cursor=page.next_cursor)

    assert found == ready
    assert pages == 13


async def test_jobs_that_no_worker_takes_are_found_behind_a_thousand_that_ended(
    driver: PostgresDriver,
) -> None:
    await end(driver, 600)
    await end(driver, 600)
    waiting = new_job(requires="gpu")
    await driver.enqueue([waiting])
    later = datetime.now(UTC) + timedelta(hours=1)

    wants = await unclaimed(driver, QUEUE, [], before=later, page=50)

    assert wants == {(QUEUE, "gpu", waiting.type): waiting.id}
