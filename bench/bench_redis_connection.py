"""The driver's own Redis connection beside redis-py, under the same driver, on one Valkey, in one run.

    python bench/bench_redis_connection.py [--jobs 2000] [--rounds 7]

Each round runs the same verbs with drivers/redis/connection.py and with redis.asyncio (hiredis parser, one
connection per call from its pool): enqueue one by one, by 50 callers at once, and an exchange of ten jobs.
Printed are client CPU and wall-clock time per call, the median of the rounds, which take turns.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import redis.asyncio as redis

from taskharbor.drivers.messages import Claim
from taskharbor.drivers.redis import RedisDriver, enqueue, primary
from taskharbor.drivers.redis.scripts import SCRIPTS
from taskharbor.model.clock import SystemClock
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import NewJob
from taskharbor.model.settlement import Ack
from taskharbor.testing.servers import ValkeyServer

CALLERS = 50
BATCH = 10
_clock, _entropy = SystemClock(), Entropy()


class RedisPy:
    """redis-py behind the interface of our connection."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self.is_open = True

    def call(self, command: Any, *, writes: bool = True) -> Awaitable[Any]:
        return self._client.execute_command(*command)

    def send(self, command: Any, *, writes: bool = True) -> Awaitable[Any]:
        return self.call(command)

    def close(self, error: BaseException | None = None) -> None:
        self.is_open = False


@contextmanager
def over_redis_py(client: redis.Redis) -> Iterator[None]:
    """Let drivers that are opened here use this client instead of our connection."""
    ours = primary.Primary._open_connection, enqueue.packed_one

    async def opened(self: Any, host: Any, timeout: float) -> Any:
        return RedisPy(client)

    def command(keys: Any, epoch: bytes, job: NewJob, now: Any) -> Any:
        own = keys.queue(job.queue)
        line, rank = enqueue.line_of(job.requires, job.type), bytes((enqueue.rank_of(job.priority),))
        named = (keys.data, own.list, own.ready, own.wake)
        head = b"\0\0" + rank + b"\0\0\0\1"
        rest = (
            epoch,
            job.queue,
            line,
            line + rank,
            head,
            enqueue.id_bytes(job.id),
            enqueue.body_of_new(job),
            "",
        )
        return ("EVALSHA", enqueue.ENQUEUE_ONE.digest, len(named), *named, *rest)

    primary.Primary._open_connection = opened  # type: ignore[assignment,method-assign]
    enqueue.packed_one = command  # type: ignore[assignment]
    try:
        yield
    finally:
        primary.Primary._open_connection, enqueue.packed_one = ours  # type: ignore[method-assign]


def jobs(count: int) -> list[NewJob]:
    ids = _entropy.job_ids(_clock.now(), count)
    return [NewJob(id=one, type="bench", payload=b'{"n":1}', queue="bench") for one in ids]


async def one_by_one(driver: RedisDriver, count: int) -> None:
    for job in jobs(count):
        await driver.enqueue([job])


async def at_once(driver: RedisDriver, count: int) -> None:
    made = jobs(count)

    async def caller(first: int) -> None:
        for job in made[first::CALLERS]:
            await driver.enqueue([job])

    await asyncio.gather(*(caller(first) for first in range(CALLERS)))


async def exchanges(driver: RedisDriver, count: int) -> None:
    await driver.enqueue(jobs(count))
    claim = Claim(queues=("bench",), worker_id="w", limit=BATCH, lease_for=timedelta(seconds=30))
    leased: list[Any] = []
    for _ in range(count // BATCH + 1):
        answer = await driver.exchange([Ack(job.lease) for job in leased], claim)
        leased = answer.claimed


CASES: tuple[tuple[str, Callable[[RedisDriver, int], Awaitable[None]], int], ...] = (
    ("enqueue, one by one", one_by_one, 1),
    (f"enqueue, {CALLERS} callers at once", at_once, 1),
    (f"exchange of {BATCH}", exchanges, BATCH),
)


async def measured(
    url: str, case: Callable[[RedisDriver, int], Awaitable[None]], count: int
) -> tuple[float, float]:
    driver = RedisDriver.from_url(url)
    async with driver:
        await case(driver, 200)  # type: ignore[arg-type]
        wall, cpu = time.perf_counter(), time.process_time()
        await case(driver, count)  # type: ignore[arg-type]
        return time.process_time() - cpu, time.perf_counter() - wall


async def run(count: int, rounds: int) -> None:
    with ValkeyServer() as server:
        client = redis.Redis.from_url(server.url)
        client.response_callbacks.clear()
        for script in SCRIPTS.values():
            await client.execute_command("SCRIPT", "LOAD", script.source)
        found: dict[tuple[str, str], list[tuple[float, float]]] = {}
        for _ in range(rounds):
            for name, case, _ in CASES:
                found.setdefault((name, "own"), []).append(await measured(server.url, case, count))
                with over_redis_py(client):
                    found.setdefault((name, "redis-py"), []).append(await measured(server.url, case, count))
                await client.flushall()
        await client.aclose()
    print(f"{'':32}{'own CPU':>12}{'redis-py CPU':>14}{'own wall':>12}{'redis-py wall':>15}   µs per call")
    for name, _, batch in CASES:
        cells = [
            statistics.median(one[what] for one in found[name, side]) / (count / batch) * 1e6
            for what in (0, 1)
            for side in ("own", "redis-py")
        ]
        print(f"{name:32}{cells[0]:12.0f}{cells[1]:14.0f}{cells[2]:12.0f}{cells[3]:15.0f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=7)
    asked = parser.parse_args()
    asyncio.run(run(asked.jobs, asked.rounds))
