"""Looking at a store with many jobs: CPU of client and server for each question that a dashboard asks.

Part of bench_growth.py (--looking). A tenth of the jobs has ended, a fifth is scheduled, the others are
ready, in ten queues. Of Valkey also how long its longest script held it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from statistics import median
from typing import Any

from cpu import Stopwatch
from stores import Store, opened

from taskharbor.client.why import look_into
from taskharbor.drivers import Driver, connect
from taskharbor.drivers.messages import Claim, Query
from taskharbor.drivers.redis.address import address_of
from taskharbor.drivers.redis.connection import connect as connect_redis
from taskharbor.model.clock import SystemClock
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import NewJob
from taskharbor.model.settlement import Ack
from taskharbor.model.state import JobState

MOST_MS = 15
QUEUES = [f"queue{number}" for number in range(10)]
CALLS = 10
SETTLED = 200  # jobs that end at one instant, as with a worker that is busy
_clock, _entropy = SystemClock(), Entropy()
Look = Callable[[Driver], Awaitable[Any]]


async def fill(driver: Driver, count: int) -> str:
    """Fill the store; the id of a job in the middle of a line."""
    middle = ""
    for start in range(0, count, 1000):
        number, share = divmod(start // 1000, 10)
        queue = QUEUES[number % len(QUEUES)]
        ids = _entropy.job_ids(_clock.now(), min(1000, count - start))
        delay = timedelta(days=1) if share in (1, 2) else None
        await driver.enqueue(
            [NewJob(id=job_id, type="noop", queue=queue, payload=b'{"n":1}', delay=delay) for job_id in ids]
        )
        if share == 0:
            claimed = await driver.reserve(Claim(queues=(queue,), worker_id="done", limit=1000))
            for first in range(0, len(claimed.jobs), SETTLED):
                await driver.settle([Ack(job.lease) for job in claimed.jobs[first : first + SETTLED]])
        elif delay is None and start <= count // 2:
            middle = ids[-1]
    return middle


def looks(job_id: str) -> dict[str, Look]:
    def find(**asked: Any) -> Look:
        return lambda driver: driver.find(Query(payloads=False, **asked))

    return {
        "find, everything": find(),
        "find, newest first": find(newest_first=True),
        "find, one queue": find(queue=QUEUES[3]),
        "find, ready": find(states=(JobState.READY,)),
        "find, failed (there are none)": find(states=(JobState.FAILED,)),
        "find, a type that nobody has": find(type="nobody"),
        "find, a key that nobody has": find(key=b"nobody"),
        "find, last ended": find(order_by="ended", newest_first=True, states=(JobState.COMPLETED,)),
        "queues": lambda driver: driver.queues(),
        "count": lambda driver: driver.count(),
        "why of a ready job": lambda driver: look_into(driver, job_id),
    }


async def measured(name: str, store: Store, count: int) -> list[list[str]]:
    rows = []
    async with connect(store.url) as driver:
        job_id = await fill(driver, count)
        for title, look in looks(job_id).items():
            await look(driver)  # the first call reads pages and makes plans
            longest = await _held(store) if name == "redis" else None
            costs = []
            for _ in range(CALLS):
                watch = Stopwatch(store.servers)
                await look(driver)
                costs.append(watch.spent())
            if longest is not None:
                longest = await _held(store)
            mid = median(cost.cpu for cost in costs) * 1e3
            held = "–" if longest is None else f"{longest / 1e3:.1f}"
            is_kept = mid <= MOST_MS and (longest or 0) / 1e3 <= MOST_MS
            rows.append([f"{name}, {title}", f"{mid:.1f}", held, "yes" if is_kept else "NO"])
            print("  ".join(rows[-1]), flush=True)
    return rows


async def _held(store: Store) -> int:
    """µs of the longest command since this was last asked, as the server itself has noted."""
    address = address_of(store.url)
    connection = await connect_redis(address, address.hosts[0], timeout=60)
    await connection.call(("CONFIG", "SET", "slowlog-log-slower-than", "0"))
    noted = await connection.call(("SLOWLOG", "GET", "100"))
    await connection.call(("SLOWLOG", "RESET"))
    connection.close()
    return max((entry[2] for entry in noted if entry[3][0] == b"EVALSHA"), default=0)


def look(names: list[str], count: int) -> list[list[str]]:
    rows = []
    for name in names:
        with opened(name) as fresh, fresh() as store:
            rows += asyncio.run(measured(name, store, count))
    return rows


HEAD = ["asked", "CPU ms per call", "longest script ms", f"≤ {MOST_MS}"]
