"""What does an option cost? The same jobs with one thing changed, beside the plain row of the same run.

    python bench/bench_mix.py [--store sqlite postgres redis http] [--rows plain ...] [--jobs 20000]
                              [--concurrency 400] [--rounds 3] [--only-print]

Each row: jobs stored in calls of a thousand (bulk), then one worker in the same process does all of them
(drain). No-op handlers, default settings else; each row in each round has a store of its own. Medians of the
rounds; the percentages are of the plain row. On Postgres and Redis the servers are durable as their wheels
set them up, on SQLite `synchronous` is the driver's default.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from statistics import median
from typing import Any

from results import table, write_section

from taskharbor import Harbor
from taskharbor.model.limits import RateLimit
from taskharbor.testing.http_server import HttpServer
from taskharbor.testing.servers import PostgresServer, ValkeyServer
from taskharbor.testing.servers.postgres import migrate_blocking

BATCH = 1000
QUEUE = "default"
Call = Callable[[Any, int], Any]
"""The request of the job of this number, by the task that the row names."""


@dataclass(frozen=True)
class Row:
    task: str
    call: Call
    queue: dict[str, Any] = field(default_factory=dict)
    """Settings of the queue, none of which makes a job wait."""


def plain(task: Any, number: int) -> Any:
    return task.call(number, "x" * 52)


def option(**options: Callable[[int], Any]) -> Call:
    """Options that depend on the number of the job."""

    def asked(task: Any, number: int) -> Any:
        return plain(task.with_options(**{name: of(number) for name, of in options.items()}), number)

    return asked


ROWS = {
    "plain": Row("noop", plain),
    "2 % have a key": Row("noop", option(key=lambda number: None if number % 50 else f"k{number}")),
    "all have a key": Row("noop", option(key=lambda number: f"k{number}")),
    "five priorities": Row("noop", option(priority=lambda number: number * 7 % 5)),
    "a fifth delayed by 1 ms": Row("noop", option(delay=lambda number: None if number % 5 else 0.001)),
    "each returns a result": Row("returns", plain),
    "a tenth retried once": Row("flaky", plain),
    "queue with a rate": Row("noop", plain, {"execute_rate": RateLimit(1_000_000, timedelta(seconds=1))}),
    "queue with max_running": Row("noop", plain, {"max_running": 100_000}),
    "payload of 1 KB": Row("noop", lambda task, number: task.call(number, "x" * 1000)),
    "payload of 50 KB": Row("noop", lambda task, number: task.call(number, "x" * 50_000)),
}


def tasks_of(harbor: Harbor) -> dict[str, Any]:
    """The program that every row runs."""
    failed: set[int] = set()

    @harbor.task
    async def noop(number: int, pad: str) -> None:
        return None

    @harbor.task
    async def returns(number: int, pad: str) -> dict[str, int]:
        return {"number": number}

    @harbor.task(min_backoff=0.001, max_backoff=0.001)
    async def flaky(number: int, pad: str) -> None:
        if number % 10 == 0 and number not in failed:
            failed.add(number)
            raise ValueError("the first time")

    return {"noop": noop, "returns": returns, "flaky": flaky}


async def run_row(url: str, row: Row, jobs: int, concurrency: int) -> tuple[float, float]:
    """Jobs per second in bulk and in the drain."""
    harbor = Harbor(url)
    task = tasks_of(harbor)[row.task]
    async with harbor:
        if row.queue:
            await harbor.queue(QUEUE).aconfigure(**row.queue)
        requests = [row.call(task, number) for number in range(jobs)]
        gc.collect()
        began = time.perf_counter()
        for start in range(0, jobs, BATCH):
            await harbor.aenqueue_many(requests[start : start + BATCH])
        stored = time.perf_counter()
        worker = harbor.worker(concurrency=concurrency, scheduler=False)
        await worker.arun(until_idle=True)
        ended = time.perf_counter()
        counts = await harbor.queue(QUEUE).acounts()
        assert counts.completed == jobs, counts
    return jobs / (stored - began), jobs / (ended - stored)


# ------------------------------------------------------------------ stores


@contextmanager
def sqlite_url() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        yield f"sqlite:///{folder}/jobs.db"


@contextmanager
def postgres_url() -> Iterator[str]:
    with PostgresServer(durable=True) as server:
        migrate_blocking(server.url)
        yield server.url


@contextmanager
def redis_url() -> Iterator[str]:
    with ValkeyServer(durable=True) as server:
        yield server.url


@contextmanager
def http_url() -> Iterator[str]:
    with sqlite_url() as url, HttpServer(url) as server:
        yield server.url


STORES = {"sqlite": sqlite_url, "postgres": postgres_url, "redis": redis_url, "http": http_url}


# ------------------------------------------------------------------ a run


def measure(store: str, rows: list[str], options: argparse.Namespace) -> dict[str, tuple[float, float]]:
    """Medians of bulk and drain, by row."""
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    with STORES[store]() as url:  # the first run of a process imports modules and fills caches
        asyncio.run(run_row(url, ROWS["plain"], BATCH, options.concurrency))
    for number in range(options.rounds):
        for name in rows if number % 2 == 0 else reversed(rows):
            jobs = options.jobs // 10 if "50 KB" in name else options.jobs
            with STORES[store]() as url:
                rates = asyncio.run(run_row(url, ROWS[name], jobs, options.concurrency))
            found[name].append(rates)
            print(f"{store}, {name}: bulk {rates[0]:,.0f}, drain {rates[1]:,.0f}", flush=True)
    return {
        name: (median(one[0] for one in rates), median(one[1] for one in rates))
        for name, rates in found.items()
    }


def report(found: dict[str, tuple[float, float]]) -> str:
    plain_bulk, plain_drain = found["plain"]
    lines = [
        [name, f"{bulk:,.0f}", f"{bulk / plain_bulk:.0%}", f"{drain:,.0f}", f"{drain / plain_drain:.0%}"]
        for name, (bulk, drain) in found.items()
    ]
    return table(["jobs", "bulk per second", "of plain", "drain per second", "of plain"], lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--store", nargs="+", choices=STORES, default=list(STORES))
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--concurrency", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only-print", action="store_true", help="write no section of RESULTS.md")
    options = parser.parse_args()
    rows = ["plain", *(row for row in options.rows if row != "plain")]
    for store in options.store:
        text = report(measure(store, rows, options))
        settings = (
            f"{options.jobs:,} jobs, one worker with -c {options.concurrency}, {options.rounds} rounds."
        )
        print(text, flush=True)
        if not options.only_print:
            write_section(f"One option changed, {store}", f"{settings}\n\n{text}")


if __name__ == "__main__":
    main()
