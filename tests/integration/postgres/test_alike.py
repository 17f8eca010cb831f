"""A single job without keys has a shorter way into a Postgres store, and looks the same afterwards."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from taskharbor.drivers.messages import EnqueueResult
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.drivers.postgres.statements import usual_job
from taskharbor.errors import RateLimited
from taskharbor.model.job import JobRecord, NewJob
from taskharbor.model.limits import RateLimit
from taskharbor.model.queue import QueueSettings
from taskharbor.testing.conformance.kit import HOUR, QUEUE, START, claim, new_job, new_jobs

OPTIONS: dict[str, Any] = {
    "type": "kit.rich",
    "queue": "rich",
    "headers": {"trace": "ä"},
    "priority": 7,
    "requires": "gpu",
    "timeout": timedelta(seconds=90),
    "max_attempts": 4,
    "max_stalls": 2,
    "min_backoff": timedelta(seconds=1),
    "max_backoff": timedelta(minutes=5),
}


async def records(driver: PostgresDriver, jobs: list[NewJob]) -> list[JobRecord]:
    found = await driver.get([job.id for job in jobs], now=START)
    return [record for record in found if record is not None]


def but_for_ids(record: JobRecord) -> JobRecord:
    return msgspec.structs.replace(record, id="", seq=0)


@pytest.mark.parametrize("options", [{}, OPTIONS], ids=["plain", "rich"])
@pytest.mark.parametrize("blocking", [False, True], ids=["async", "blocking"])
async def test_alone_or_not_the_same_is_stored(
    driver: PostgresDriver, options: dict[str, Any], blocking: bool
) -> None:
    alike = [new_job(payload=b"\x00'\"\\{}", **options)]
    mixed = [*new_jobs(1, payload=b"\x00'\"\\{}", **options), new_job(type="kit.other")]
    assert usual_job(alike) is alike[0]
    assert usual_job(mixed) is None

    if blocking:
        answers = driver.enqueue_blocking(alike, now=START)
    else:
        answers = await driver.enqueue(alike, now=START)
    await driver.enqueue(mixed, now=START)

    assert [(answer.id, answer.result, answer.at, answer.version) for answer in answers] == [
        (job.id, EnqueueResult.CREATED, START, 1) for job in alike
    ]
    stored = await records(driver, alike)
    assert [record.seq for record in stored] == sorted(record.seq for record in stored)
    others = [but_for_ids(record) for record in (await records(driver, mixed))[:1]]
    assert [but_for_ids(record) for record in stored] == others
    wanted = claim(limit=10, queues=(alike[0].queue,), lanes=(alike[0].requires,))
    taken = (await driver.reserve(wanted, now=START)).jobs
    assert [job.id for job in taken][:1] == [job.id for job in alike]


@pytest.mark.parametrize("blocking", [False, True], ids=["async", "blocking"])
async def test_among_many_jobs_the_known_ones_are_duplicates(driver: PostgresDriver, blocking: bool) -> None:
    known, absorbed = new_job(), new_job(key=b"k")
    await driver.enqueue([known, new_job(key=b"k"), absorbed], now=START)
    for old in (known, absorbed):  # by its own id, and by one that another job answers to
        fresh = new_jobs(3)
        jobs = [fresh[0], msgspec.structs.replace(fresh[1], id=old.id), fresh[2]]

        if blocking:
            answers = driver.enqueue_blocking(jobs, now=START)
        else:
            answers = await driver.enqueue(jobs, now=START)

        assert [answer.result for answer in answers] == [
            EnqueueResult.CREATED,
            EnqueueResult.DUPLICATE,
            EnqueueResult.CREATED,
        ]


async def test_a_rate_holds_for_a_single_job(driver: PostgresDriver) -> None:
    rate = RateLimit(3, HOUR)
    await driver.configure_queue(QueueSettings(queue=QUEUE, enqueue_rate=rate), now=START)

    await driver.enqueue(new_jobs(2), now=START)
    await driver.enqueue(new_jobs(1), now=START)
    with pytest.raises(RateLimited):
        await driver.enqueue(new_jobs(1), now=START)

    assert (await driver.count(now=START))[QUEUE].ready == 3
