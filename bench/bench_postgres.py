"""The Postgres driver beside the bare statements it cannot do without, on one durable server, in one run.

    python bench/bench_postgres.py [--jobs 100000] [--rounds 3] [--backlog 0.05] [--steady 0]

Bare: one table, one index; INSERT a thousand per commit; DELETE 200 + claim 200 in one statement.
Ours: enqueue a thousand per call; exchange of 200: with completed jobs kept and deleted, beside a snapshot
that another connection holds open all the while, and beside jobs that cannot run (a million scheduled,
200,000 blocked, a million finished, times --backlog). --steady: seconds of paced load under such a snapshot.
Server µs are those of all processes of the server, so other people's load counts less than in jobs/s.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
from results import table, write_section

from taskharbor.drivers.messages import Claim
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.model.clock import SystemClock
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import NO_TIME, JobRecord, NewJob
from taskharbor.model.queue import QueueSettings, Retention
from taskharbor.model.settlement import Ack
from taskharbor.testing.servers import PostgresServer
from taskharbor.testing.servers.postgres import migrate_blocking

BATCH = 200
QUEUE = "default"
PAYLOAD = b'{"seq":12345,"t0":1000000000000000,"pad":"' + b"x" * 52 + b'"}'
BARE_TABLE = """
create table bare (id bigint generated always as identity primary key, queue text not null default 'default',
  state smallint not null default 0, run_at timestamptz not null default now(), lease_until timestamptz,
  attempt int not null default 0, payload bytea not null);
create index bare_ready on bare (queue, run_at, id) where state = 0;
"""
BARE_EXCHANGE = """
with gone as (delete from bare where id = any($2::bigint[])),
     next as (select id from bare where queue = 'default' and state = 0 and run_at <= now()
              order by run_at, id limit $1 for update skip locked)
update bare b set state = 1, attempt = attempt + 1, lease_until = now() + interval '30 s'
from next where b.id = next.id returning b.id, b.payload
"""
_clock, _entropy = SystemClock(), Entropy()


@dataclass
class Cost:
    """What a number of jobs took: wall seconds, CPU seconds of server and client, bytes of WAL."""

    jobs: int
    seconds: float
    server: float
    client: float
    wal: int

    def cells(self) -> list[str]:
        micros = [f"{part / self.jobs * 1e6:.1f}" for part in (self.server, self.client)]
        return [f"{self.rate:,.0f}", *micros, f"{self.wal / self.jobs:,.0f}"]

    @property
    def rate(self) -> float:
        return self.jobs / self.seconds


class Meter:
    """Measures what happens between its two ends."""

    def __init__(self, server: PostgresServer, connection: Any) -> None:
        self._server, self._connection = server, connection

    async def measure(self, jobs: int, work: Any) -> Cost:
        wal, cpu, mine, began = await self._wal(), self._cpu(), time.process_time(), time.perf_counter()
        await work
        return Cost(
            jobs,
            time.perf_counter() - began,
            self._cpu() - cpu,
            time.process_time() - mine,
            await self._wal() - wal,
        )

    async def _wal(self) -> int:
        return int(await self._connection.fetchval("select pg_current_wal_insert_lsn() - '0/0'::pg_lsn"))

    def _cpu(self) -> float:
        """CPU seconds of the server's processes, those that have ended included."""
        pid = self._server.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
        ticks = 0
        for one in (str(pid), *children):
            fields = Path(f"/proc/{one}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
            ticks += sum(int(field) for field in fields[11:15])
        return ticks / os.sysconf("SC_CLK_TCK")


def new_jobs(count: int, **options: Any) -> list[NewJob]:
    now = _clock.now()
    return [
        NewJob(id=_entropy.job_id(now), type="noop", queue=QUEUE, payload=PAYLOAD, max_stalls=3, **options)
        for _ in range(count)
    ]


# ------------------------------------------------------------------ the two sides


async def bare(meter: Meter, connection: Any, jobs: int) -> tuple[Cost, Cost]:
    await connection.execute("drop table if exists bare")
    await connection.execute(BARE_TABLE)
    exchange = await connection.prepare(BARE_EXCHANGE)
    await exchange.fetch(BATCH, [])

    async def fill() -> None:
        for _ in range(jobs // 1000):
            await connection.execute(
                "insert into bare (payload) select unnest($1::bytea[])", [PAYLOAD] * 1000
            )

    async def drain() -> None:
        done: list[int] = []
        while rows := await exchange.fetch(BATCH, done):
            done = [row[0] for row in rows]

    return await meter.measure(jobs, fill()), await meter.measure(jobs, drain())


async def filled(driver: PostgresDriver, jobs: int) -> None:
    await stored(driver, batches(jobs))


def batches(jobs: int) -> list[list[NewJob]]:
    return [new_jobs(1000) for _ in range(jobs // 1000)]


async def stored(driver: PostgresDriver, jobs: list[list[NewJob]]) -> None:
    for batch in jobs:
        await driver.enqueue(batch)


async def drained(driver: PostgresDriver) -> int:
    claim = Claim(queues=(QUEUE,), worker_id="bench", limit=BATCH)
    done: list[JobRecord] = []
    count = 0
    while True:
        answer = await driver.exchange([Ack(job.lease) for job in done], claim)
        done = answer.claimed
        count += len(done)
        if not done:
            return count


@asynccontextmanager
async def a_store(url: str, *, keeps: bool = True) -> AsyncIterator[PostgresDriver]:
    """An empty store with a driver whose plans are older than its jobs."""
    connection = await asyncpg.connect(url)
    await connection.execute("drop schema if exists bench cascade")
    await connection.close()
    migrate_blocking(f"{url}?schema=bench")
    async with PostgresDriver.from_url(f"{url}?schema=bench") as driver:
        if not keeps:
            keep = Retention(completed=NO_TIME)
            await driver.configure_queue(QueueSettings(queue="*", retention=keep))
        for _ in range(6):
            await drained(driver)
        yield driver


@asynccontextmanager
async def a_snapshot(url: str) -> AsyncIterator[None]:
    """Somebody who looked once and does not let go."""
    connection = await asyncpg.connect(url)
    await connection.execute("begin isolation level repeatable read; select count(*) from pg_class")
    yield
    await connection.close()


# ------------------------------------------------------------------ the backlog beside


async def fill_backlog(driver: PostgresDriver, scale: float) -> None:
    """Jobs that cannot run now: scheduled, blocked behind a running key, finished."""
    await filled(driver, int(1_000_000 * scale))
    await drained(driver)
    for _ in range(int(1000 * scale)):
        await driver.enqueue(new_jobs(1000, delay=timedelta(days=1)))
    claim = Claim(queues=(QUEUE,), worker_id="holder", limit=1000, lease_for=timedelta(days=1))
    for part in range(int(200 * scale)):
        keyed = [f"{part}-{n}".encode() for n in range(1000)]
        for _ in range(2):
            await driver.enqueue([new_jobs(1, key=key)[0] for key in keyed])
            await driver.reserve(claim)


async def steady(meter: Meter, driver: PostgresDriver, seconds: float) -> tuple[Cost, Cost]:
    """Some jobs every second for a while, in and out; what they cost at the start, and what at the end."""
    end = time.monotonic() + seconds

    async def run(cycles: int) -> None:
        for _ in range(cycles):
            began = time.monotonic()
            await filled(driver, _PACE)
            await drained(driver)
            await asyncio.sleep(max(0.0, began + 1 - time.monotonic()))

    first = await meter.measure(20 * _PACE, run(20))
    while time.monotonic() < end:
        await run(1)
    return first, await meter.measure(20 * _PACE, run(20))


_PACE = 2000  # jobs a second


async def compare(options: argparse.Namespace, server: PostgresServer) -> list[list[str]]:
    url, jobs = server.url, options.jobs
    connection = await asyncpg.connect(url)
    meter = Meter(server, connection)
    costs: dict[str, list[Cost]] = {}

    def note(name: str, cost: Cost) -> None:
        costs.setdefault(name, []).append(cost)

    for _ in range(options.rounds):
        enqueue, exchange = await bare(meter, connection, jobs)
        note("enqueue 1,000: bare statement", enqueue)
        note("exchange 200: bare statement", exchange)
        for name, keeps in (("completed kept", True), ("completed deleted", False)):
            async with a_store(url, keeps=keeps) as driver:
                note("enqueue 1,000", await meter.measure(jobs, stored(driver, batches(jobs))))
                note(f"exchange 200: {name}", await meter.measure(jobs, drained(driver)))
        async with a_store(url) as driver, a_snapshot(url):
            await filled(driver, jobs)
            note("exchange 200: beside an open snapshot", await meter.measure(jobs, drained(driver)))
    if options.backlog:
        async with a_store(url) as driver:
            await fill_backlog(driver, options.backlog)
            for _ in range(options.rounds):
                await filled(driver, jobs)
                note("exchange 200: beside the backlog", await meter.measure(jobs, drained(driver)))
    if options.steady:
        async with a_store(url) as driver, a_snapshot(url):
            first, last = await steady(meter, driver, options.steady)
            note(f"{_PACE:,} a second under an open snapshot, in and out: at the start", first)
            note(f"… the same after {options.steady:,.0f} s", last)
    await connection.close()
    return [[name, *_median(several).cells()] for name, several in costs.items()]


def _median(several: list[Cost]) -> Cost:
    return sorted(several, key=lambda cost: cost.rate)[len(several) // 2]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--backlog", type=float, default=0.05)
    parser.add_argument("--steady", type=float, default=0.0)
    options = parser.parse_args()
    with PostgresServer(durable=True, settings={"shared_buffers": "128MB"}) as server:
        rows = asyncio.run(compare(options, server))
    note = (
        f"{options.jobs:,} jobs, median of {options.rounds}; backlog {options.backlog:g} of the full one. "
        f"Load average {os.getloadavg()[1]:.0f}: whatever is above 2 was other people's work."
    )
    write("Postgres beside its bare statements", note, rows if not options.steady else rows[:-2])
    if options.steady:  # a section of its own: it is asked for seldom
        note = f"{options.steady:,.0f} s, {_PACE:,} jobs a second, in and out, completed jobs kept."
        write("Postgres under a snapshot that stays open", note, rows[-2:])


def write(title: str, note: str, rows: list[list[str]]) -> None:
    body = table(["", "jobs/s", "server µs per job", "client µs per job", "WAL bytes per job"], rows)
    print(body)
    write_section(title, f"{note}\n\n{body}")


if __name__ == "__main__":
    main()
