"""Does a claim get slower by jobs that cannot run? Reserve 100 + settle 100, beside large backlogs.

    python bench/bench_growth.py [--drivers memory,sqlite,postgres,redis] [--scale 1.0] [--rounds 40]
                                 [--looking] [--only-print]

Each backlog has a store of its own; a store without one is measured in turn with it, round by
round, so that a noisy machine disturbs both alike. The aim is a ratio of at most 1.5.
--looking asks something else: what does it cost to look at a store of that many jobs? (looking.py)
For a short look: --scale 0.02 --rounds 5 --only-print.
"""

from __future__ import annotations

import argparse
import asyncio
import atexit
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import cache
from pathlib import Path

import looking
from results import table, write_section

from taskharbor.drivers import Driver, connect
from taskharbor.drivers.messages import Claim
from taskharbor.model.clock import SystemClock
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import NewJob
from taskharbor.model.limits import RateLimit
from taskharbor.model.queue import QueueSettings, Retention
from taskharbor.model.settlement import Ack
from taskharbor.testing.servers import PostgresServer, fresh_redis_url
from taskharbor.testing.servers.postgres import migrate_blocking

DRIVERS = "memory,sqlite,postgres,redis"
BATCH = 100
LIMIT = 1.5
WORK = "work"
PAYLOAD = b'{"seq":12345,"t0":1000000000000000,"pad":"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}'
_entropy = Entropy(7)
_clock = SystemClock()


async def fill(driver: Driver, count: int, **options: object) -> None:
    """`count` jobs with these options, a thousand a call."""
    for start in range(0, count, 1000):
        await driver.enqueue([new_job(**options) for _ in range(min(1000, count - start))])


def new_job(**options: object) -> NewJob:
    made = {name: value() if callable(value) else value for name, value in options.items()}
    return NewJob(id=_entropy.job_id(_clock.now()), type="noop", payload=PAYLOAD, **made)  # type: ignore[arg-type]


async def nothing(driver: Driver, scale: float) -> str:
    return "(a) nothing else"


async def scheduled(driver: Driver, scale: float) -> str:
    count = int(1_000_000 * scale)
    await fill(driver, count, queue=WORK, delay=timedelta(days=1))
    return f"(b) {count:,} scheduled jobs"


async def blocked(driver: Driver, scale: float) -> str:
    count = int(200_000 * scale)
    keys = iter(range(count))
    for start in range(0, count, 1000):
        named = [str(next(keys)).encode() for _ in range(min(1000, count - start))]
        await driver.enqueue([new_job(queue=WORK, key=key) for key in named])
        await driver.reserve(
            Claim(queues=(WORK,), worker_id="holder", limit=1000, lease_for=timedelta(days=1))
        )
        await driver.enqueue([new_job(queue=WORK, key=key) for key in named])
    return f"(c) {count:,} blocked keyed jobs"


async def gated(driver: Driver, scale: float) -> str:
    count = int(200_000 * scale)
    await driver.configure_queue(QueueSettings(queue="paused", paused=True))
    await driver.configure_queue(QueueSettings(queue="slow", execute_rate=RateLimit(1, timedelta(days=1))))
    await fill(driver, count, queue="paused")
    await fill(driver, count, queue="slow")
    await driver.reserve(Claim(queues=("slow",), worker_id="holder"))
    return f"(d) {count:,} jobs in a paused and {count:,} in a rate-limited queue, both claimed too"


async def completed(driver: Driver, scale: float) -> str:
    count = int(1_000_000 * scale)
    await driver.configure_queue(QueueSettings(queue=WORK, retention=Retention(completed=None)))
    claim = Claim(queues=(WORK,), worker_id="done", limit=1000)
    for start in range(0, count, 1000):
        await fill(driver, min(1000, count - start), queue=WORK)
        await driver.settle([Ack(job.lease) for job in (await driver.reserve(claim)).jobs])
    return f"(e) {count:,} completed jobs kept"


async def one_round(driver: Driver) -> float:
    """Seconds for reserve 100 and settle 100, with the paused and the slow queue asked first."""
    claim = Claim(queues=("paused", "slow", WORK), worker_id="bench", limit=BATCH)
    await fill(driver, BATCH, queue=WORK)
    start = time.perf_counter()
    jobs = (await driver.reserve(claim)).jobs
    await driver.settle([Ack(job.lease) for job in jobs])
    took = time.perf_counter() - start
    if len(jobs) != BATCH:
        raise RuntimeError(f"claimed {len(jobs)} of {BATCH}")
    return took


async def compare(
    name: str, prepare: Callable[[Driver, float], Awaitable[str]], scale: float, rounds: int
) -> tuple[str, float, float]:
    """(what, median seconds without, median seconds with), measured in turn."""
    with tempfile.TemporaryDirectory() as folder:
        async with (
            connect(url_of(name, folder, "plain")) as plain,
            connect(url_of(name, folder, "full")) as full,
        ):
            what = await prepare(full, scale)
            await one_round(plain)
            await one_round(full)
            pairs = [(await one_round(plain), await one_round(full)) for _ in range(rounds)]
    return what, statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs)


@cache
def postgres() -> PostgresServer:
    """One durable server for all, with a schema for each store; it goes when this process does."""
    server = PostgresServer(durable=True)
    server.start()
    atexit.register(server.stop)
    return server


def url_of(name: str, folder: str, which: str) -> str:
    if name == "redis":
        return fresh_redis_url()
    if name == "postgres":
        url = f"{postgres().url}?schema={which}_{Path(folder).name}"
        migrate_blocking(url)
        return url
    return "memory://" if name == "memory" else f"sqlite:///{Path(folder, which + '.db')}"


async def measure(names: list[str], scale: float, rounds: int) -> list[list[str]]:
    rows = []
    for name in names:
        for prepare in (nothing, scheduled, blocked, gated, completed):
            what, plain, full = await compare(name, prepare, scale, rounds)
            verdict = "yes" if full / plain <= LIMIT else "NO"
            rows.append(
                [name, what, f"{plain * 1e3:.2f}", f"{full * 1e3:.2f}", f"{full / plain:.2f}", verdict]
            )
            print("  ".join(rows[-1]), flush=True)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--drivers", default=DRIVERS)
    parser.add_argument(
        "--scale", type=float, default=1.0, help="size of the backlogs; 1.0 is a million jobs"
    )
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--looking", action="store_true", help="measure questions, not claims")
    parser.add_argument("--only-print", action="store_true", help="write no section of RESULTS.md")
    args = parser.parse_args()
    if args.looking:
        return look_at(args)
    rows = asyncio.run(measure(args.drivers.split(","), args.scale, args.rounds))
    head = ["driver", "beside", "alone, ms", "with it, ms", "ratio", f"≤ {LIMIT}"]
    how = f"Reserve 100 + settle 100, medians of {args.rounds} rounds, in turns without the backlog."
    if not args.only_print:
        write_section("Claims beside jobs that cannot run", f"{how}\n\n{table(head, rows)}")
    return 0 if all(row[-1] == "yes" for row in rows) else 1


def look_at(args: argparse.Namespace) -> int:
    names = [name for name in args.drivers.split(",") if name != "memory"]
    count = int(1_000_000 * args.scale)
    rows = looking.look(names, count)
    if not args.only_print:
        how = f"{count:,} jobs, medians of {looking.CALLS} calls; CPU of client and server together."
        write_section("Looking at many jobs", f"{how}\n\n{table(looking.HEAD, rows)}")
    return 0 if all(row[-1] == "yes" for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
