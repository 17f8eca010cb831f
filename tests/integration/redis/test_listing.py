"""A page of jobs costs the server what the page shows, not what the store holds: counted in commands."""

from __future__ import annotations

from typing import Any

import redis

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Query
from taskharbor.drivers.redis import RedisDriver
from taskharbor.model.settlement import Ack, Fail
from taskharbor.model.state import JobState
from taskharbor.testing.conformance.kit import SECOND, START, claim, new_jobs
from taskharbor.testing.servers import ValkeyServer

QUEUES = [f"queue-{number:02}" for number in range(40)]
PER_QUEUE = 120


async def filled(driver: Driver) -> None:
    """Every queue with ready, completed and failed jobs, far more than a page shows."""
    for queue in QUEUES:
        await driver.enqueue(new_jobs(PER_QUEUE, queue=queue), now=START)
        jobs = (await driver.reserve(claim(queues=(queue,), limit=PER_QUEUE // 2), now=START)).jobs
        ends = [Ack(job.lease) if place % 3 else Fail(job.lease, "broken") for place, job in enumerate(jobs)]
        for second, at in enumerate(range(0, len(ends), 6)):
            await driver.settle(ends[at : at + 6], now=START + second * SECOND)


def commands(admin: Any) -> dict[str, int]:
    stats = admin.info("commandstats")
    return {name.removeprefix("cmdstat_"): entry["calls"] for name, entry in stats.items()}


async def test_a_page_over_all_queues_reads_little_of_each(own_server: ValkeyServer) -> None:
    async with RedisDriver.from_url(own_server.url) as driver:
        await filled(driver)
        with redis.Redis.from_url(own_server.url) as admin:
            for asked, most_commands in (
                (Query(newest_first=True, limit=50), 900),
                (Query(newest_first=True, limit=50, states=(JobState.FAILED,)), 300),
                (Query(newest_first=True, limit=50, order_by="ended"), 700),
                (Query(newest_first=True, type="kit.never"), 3200),
                (Query(newest_first=True, key=b"never"), 3200),
            ):
                admin.config_resetstat()
                page = await driver.find(asked, now=START)
                used = commands(admin)
                assert page.examined <= asked.examine
                assert len(page.jobs) == (0 if asked.type or asked.key else 50)
                instants = used.get("zrangebylex", 0)
                assert used.get("hmget", 0) <= 50 + instants  # whole records: those of the page
                assert sum(used.values()) <= most_commands, used


async def test_a_search_goes_on_where_it_stopped_and_reads_everything_once(driver: RedisDriver) -> None:
    await filled(driver)
    query: Query | None = Query(type="kit.never", newest_first=True)
    examined = 0

    while query is not None:
        page = await driver.find(query, now=START)
        assert page.examined <= query.examine
        examined += page.examined
        cursor = page.next_cursor
        query = None if cursor is None else Query(type="kit.never", newest_first=True, cursor=cursor)

    assert examined == len(QUEUES) * PER_QUEUE
