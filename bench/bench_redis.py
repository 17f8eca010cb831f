"""The Redis driver beside the bare scripts it cannot do without, on one Valkey, in one run.

    python bench/bench_redis.py [--jobs 20000] [--rounds 5]

Bare: a list of numbers, a hash of bodies, a sorted set of leases; one script that takes jobs in and one that
ends 100 and hands out 100, sent over the same connection, without order, fencing, states or history.
Ours: enqueue one by one (blocking and async) and a thousand a call; exchange of 100, with completed jobs kept
and deleted. CPU of server and client, so other people's load counts less than in jobs/s; the least of the
rounds, which take turns. In scripts: the time that the server counts for EVALSHA, waiting for a core
included; the rest of its own goes into reading, writing and the system. Commands: what is asked of it per job
(both from INFO commandstats). At full size it takes about three minutes.
Memory: MEMORY USAGE of all keys, beyond the payload.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench_growth import BATCH
from results import table, write_section

from taskharbor.drivers.messages import Claim
from taskharbor.drivers.redis import RedisDriver
from taskharbor.drivers.redis.address import address_of
from taskharbor.drivers.redis.connection import Connection, connect
from taskharbor.model.clock import SystemClock
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import NO_TIME, JobRecord, NewJob
from taskharbor.model.queue import QueueSettings, Retention
from taskharbor.model.settlement import Ack
from taskharbor.testing.servers import ValkeyServer

PAYLOAD = b'{"seq":12345,"t0":1000000000000000,"pad":"' + b"x" * 52 + b'"}'
BARE_ENQUEUE = """
for i = 1, #ARGV do
  local id = redis.call('INCR', KEYS[3])
  redis.call('HSET', KEYS[2], id, ARGV[i])
  redis.call('RPUSH', KEYS[1], id)
end
if redis.call('LLEN', KEYS[4]) == 0 then redis.call('RPUSH', KEYS[4], 1) end
return #ARGV
"""
BARE_EXCHANGE = """
if #ARGV > 2 then
  redis.call('ZREM', KEYS[3], unpack(ARGV, 3))
  redis.call('HDEL', KEYS[2], unpack(ARGV, 3))
end
local ids = redis.call('LPOP', KEYS[1], ARGV[1])
if not ids then return {} end
local lease = {}
for i, id in ipairs(ids) do lease[#lease + 1] = ARGV[2]; lease[#lease + 1] = id end
redis.call('ZADD', KEYS[3], unpack(lease))
return {ids, redis.call('HMGET', KEYS[2], unpack(ids))}
"""
BARE_KEYS = ("q", "body", "seq", "wake")
MEMORY_JOBS = 5000
_clock, _entropy = SystemClock(), Entropy()


@dataclass
class Cost:
    """What a number of jobs took: CPU seconds of server and client, seconds in scripts, and commands."""

    jobs: int
    server: float
    scripts: float
    client: float
    commands: int

    def cells(self) -> list[str]:
        micros = [f"{part / self.jobs * 1e6:.1f}" for part in (self.server, self.scripts, self.client)]
        return [*micros, f"{self.commands / self.jobs:.2f}"]


class Meter:
    """Measures what happens between its two ends."""

    def __init__(self, server: ValkeyServer, connection: Connection) -> None:
        self._server, self._connection = server, connection

    async def measure(self, jobs: int, work: Callable[[], Awaitable[Any]]) -> Cost:
        commands, scripts = await self._stats()
        gc.collect()
        cpu, mine = self._cpu(), time.process_time()
        await work()
        mine, cpu = time.process_time() - mine, self._cpu() - cpu
        more_commands, more_scripts = await self._stats()
        return Cost(jobs, cpu, more_scripts - scripts, mine, more_commands - commands - 1)

    def _cpu(self) -> float:
        """CPU seconds of the server's threads, by the nanosecond."""
        threads = Path(f"/proc/{self._server.pid}/task").iterdir()
        return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9

    async def _stats(self) -> tuple[int, float]:
        """Commands that were carried out so far, from scripts and from connections; seconds in scripts."""
        stats = await self._connection.call(("INFO", "commandstats"), writes=False)
        lines = [line for line in stats.decode().splitlines() if "calls=" in line]
        counted = sum(int(_value(line, "calls")) for line in lines)
        return counted, sum(int(_value(line, "usec")) for line in lines if "cmdstat_evalsha:" in line) / 1e6


def _value(line: str, name: str) -> str:
    return line.partition(f"{name}=")[2].partition(",")[0]


def new_jobs(count: int) -> list[NewJob]:
    return [
        NewJob(id=job_id, type="noop", queue="default", payload=PAYLOAD, max_stalls=3, max_attempts=25)
        for job_id in _entropy.job_ids(_clock.now(), count)
    ]


# ------------------------------------------------------------------ the two sides


async def bare(meter: Meter, connection: Connection, jobs: int) -> dict[str, Cost]:
    await connection.call(("FLUSHALL",))
    enqueue = await connection.call(("SCRIPT", "LOAD", BARE_ENQUEUE))
    exchange = await connection.call(("SCRIPT", "LOAD", BARE_EXCHANGE))

    async def one_by_one() -> None:
        for _ in range(jobs // 10):
            await connection.call(("EVALSHA", enqueue, 4, *BARE_KEYS, PAYLOAD))

    async def in_bulk() -> None:
        for _ in range(jobs // 1000):
            await connection.call(("EVALSHA", enqueue, 4, *BARE_KEYS, *[PAYLOAD] * 1000))

    async def drain() -> None:
        done: list[bytes] = []
        while got := await connection.call(("EVALSHA", exchange, 3, "q", "body", "lease", BATCH, 30, *done)):
            done = got[0]

    costs = {"single enqueue, async": await meter.measure(jobs // 10, one_by_one)}
    await connection.call(("FLUSHALL",))
    costs["bulk enqueue, 1,000 a call"] = await meter.measure(jobs, in_bulk)
    costs[f"ack {BATCH} and claim {BATCH}"] = await meter.measure(jobs, drain)
    return costs


async def ours(meter: Meter, connection: Connection, url: str, jobs: int) -> dict[str, Cost]:
    await connection.call(("FLUSHALL",))
    async with RedisDriver.from_url(url) as driver:
        some, more = new_jobs(jobs // 10), new_jobs(jobs // 10)
        batches = [new_jobs(1000) for _ in range(jobs // 1000)]

        async def one_by_one() -> None:
            for job in some:
                await driver.enqueue((job,))

        async def one_by_one_blocking() -> None:
            for job in more:
                driver.enqueue_blocking((job,))

        async def in_bulk() -> None:
            for batch in batches:
                await driver.enqueue(batch)

        await driver.enqueue(new_jobs(1))
        costs = {
            "single enqueue, async": await meter.measure(len(some), one_by_one),
            "single enqueue, blocking": await meter.measure(len(more), one_by_one_blocking),
        }
        await drained(driver)
        costs["bulk enqueue, 1,000 a call"] = await meter.measure(jobs, in_bulk)
        costs[f"ack {BATCH} and claim {BATCH}"] = await meter.measure(jobs, lambda: drained(driver))
        keep = Retention(completed=NO_TIME)
        await driver.configure_queue(QueueSettings(queue="*", retention=keep))
        batches[:] = [new_jobs(1000) for _ in range(jobs // 1000)]
        await in_bulk()
        costs["… completed jobs deleted"] = await meter.measure(jobs, lambda: drained(driver))
    return costs


async def drained(driver: RedisDriver) -> None:
    claim = Claim(queues=("default",), worker_id="bench-worker-1", limit=BATCH)
    done: list[JobRecord] = []
    while True:
        done = (await driver.exchange([Ack(job.lease) for job in done], claim)).claimed
        if not done:
            return


async def memory(connection: Connection, url: str) -> str:
    """Bytes per job beyond its payload: while it waits, while it runs, when it is completed."""
    await connection.call(("FLUSHALL",))
    sizes = []
    async with RedisDriver.from_url(url) as driver:
        empty = await driver.stored_bytes()

        async def note() -> None:
            sizes.append(round((await driver.stored_bytes() - empty) / MEMORY_JOBS - len(PAYLOAD)))

        await driver.enqueue(new_jobs(MEMORY_JOBS))
        await note()
        claim = Claim(queues=("default",), worker_id="bench-worker-1", limit=MEMORY_JOBS)
        jobs = (await driver.reserve(claim)).jobs
        await note()
        for first in range(0, len(jobs), BATCH):
            await driver.settle([Ack(job.lease) for job in jobs[first : first + BATCH]])
        await note()
    waiting, running, over = sizes
    return (
        f"Memory beyond the payload of a plain job (`MEMORY USAGE`, all keys, {MEMORY_JOBS:,} jobs): "
        f"{waiting} bytes while it waits, {running} while it runs, {over} completed and kept."
    )


# ------------------------------------------------------------------ the whole


async def measure(options: argparse.Namespace, server: ValkeyServer) -> str:
    address = address_of(server.url)
    connection = await connect(address, address.hosts[0], timeout=60)
    meter = Meter(server, connection)
    sides: tuple[dict[str, list[Cost]], dict[str, list[Cost]]] = ({}, {})
    for _ in range(options.rounds):
        for side, costs in zip(
            sides,
            (
                await bare(meter, connection, options.jobs),
                await ours(meter, connection, server.url, options.jobs),
            ),
            strict=True,
        ):
            for name, cost in costs.items():
                side.setdefault(name, []).append(cost)
    used = await memory(connection, server.url)
    connection.close()
    bare_side, our_side = sides
    rows = [
        [name, *least(costs).cells(), *(least(bare_side[name]).cells() if name in bare_side else ["–"] * 4)]
        for name, costs in our_side.items()
    ]
    head = ["server µs", "in scripts µs", "client µs", "commands"]
    return table(["", *head, *(f"bare: {name}" for name in head)], rows) + "\n\n" + used


def least(costs: list[Cost]) -> Cost:
    return Cost(
        costs[0].jobs,
        min(cost.server for cost in costs),
        min(cost.scripts for cost in costs),
        min(cost.client for cost in costs),
        min(cost.commands for cost in costs),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dry", action="store_true", help="print, and leave RESULTS.md as it is")
    options = parser.parse_args()
    with ValkeyServer() as server:
        found = asyncio.run(measure(options, server))
    how = (
        f"CPU per job in driver and server alone, the least of {options.rounds} rounds of {options.jobs:,} "
        f"jobs (a tenth of that one by one). The server writes nothing to the disk. "
        f"Load average {os.getloadavg()[1]:.0f}: whatever is above 2 "
        "was other people's work."
    )
    print(found, flush=True)
    if not options.dry:
        write_section("Valkey beside its bare scripts", f"{how}\n\n{found}")


if __name__ == "__main__":
    main()
