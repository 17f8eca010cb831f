"""What does an option cost? The same jobs with one thing changed, beside the plain row of the same run.

    python bench/bench_mix.py [--store sqlite postgres redis http] [--rows plain ...] [--jobs 20000]
                              [--concurrency 400] [--rounds 3] [--only-print]

Each row: jobs stored in calls of a thousand (bulk), then one worker in the same process does all of them
(drain). No-op handlers, default settings else; each row in each round has a store of its own. Medians of the
rounds; the percentages are of the plain row, the second of them by CPU time, which other programs on the
machine disturb less. On Postgres and Redis the servers are durable as their wheels set them up, on SQLite
`synchronous` is the driver's default. For a short look: --jobs 4000 --rounds 1 --only-print.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from statistics import median
from typing import Any

from cpu import Spent, Stopwatch
from results import table, write_section
from stores import DURABILITY, STORES, Store, opened

from taskharbor import Harbor
from taskharbor.model.limits import RateLimit

BATCH = 1000
MOST_BYTES = 8_000_000  # of one call: a server refuses messages of more than 16 MiB
QUEUE = "default"
Call = Callable[[Any, int], Any]
"""The request of the job of this number, by the task that the row names."""
Figures = tuple[float, ...]
"""Jobs per second, and µs of CPU per job in this process and in the servers."""


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
        chosen = {name: value for name, of in options.items() if (value := of(number)) is not None}
        return plain(task.with_options(**chosen) if chosen else task, number)

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


async def run_row(store: Store, row: Row, jobs: int, concurrency: int) -> tuple[Spent, Spent]:
    """What the jobs took in bulk and in the drain."""
    harbor = Harbor(store.url)
    task = tasks_of(harbor)[row.task]
    async with harbor:
        if row.queue:
            await harbor.queue(QUEUE).aconfigure(**row.queue)
        requests = [row.call(task, number) for number in range(jobs)]
        gc.collect()
        watch = Stopwatch(store.servers)
        batch = min(BATCH, MOST_BYTES // len(requests[0].payload["pad"]))
        for start in range(0, jobs, batch):
            await harbor.aenqueue_many(requests[start : start + batch])
        bulk = watch.spent()
        worker = harbor.worker(concurrency=concurrency, scheduler=False)
        watch = Stopwatch(store.servers)
        await worker.arun(until_idle=True)
        drain = watch.spent()
        counts = await harbor.queue(QUEUE).acounts()
        assert counts.completed == jobs, counts
    return bulk, drain


# ------------------------------------------------------------------ a run


def measure(store: str, rows: list[str], options: argparse.Namespace) -> dict[str, list[Figures]]:
    """Bulk and drain, by row, in medians of the rounds."""
    found: dict[str, list[tuple[Figures, Figures]]] = defaultdict(list)
    with opened(store) as fresh:
        with fresh() as place:  # the first run of a process imports modules and fills caches
            asyncio.run(run_row(place, ROWS["plain"], BATCH, options.concurrency))
        for number in range(options.rounds):
            for name in rows if number % 2 == 0 else reversed(rows):
                jobs = options.jobs // 10 if "50 KB" in name else options.jobs
                with fresh() as place:
                    bulk, drain = asyncio.run(run_row(place, ROWS[name], jobs, options.concurrency))
                found[name].append((figures(bulk, jobs), figures(drain, jobs)))
                print(f"{store}, {name}: {found[name][-1]}", flush=True)
    return {
        name: [tuple(map(median, zip(*part, strict=True))) for part in zip(*rounds, strict=True)]
        for name, rounds in found.items()
    }


def figures(spent: Spent, jobs: int) -> Figures:
    own, servers = spent.micros(jobs)
    return round(jobs / spent.seconds), round(own, 1), round(servers, 1)


def report(found: dict[str, list[Figures]]) -> str:
    """One line for each row, with its share of the plain one by the clock and by CPU time."""
    lines = []
    for name, parts in found.items():
        cells = [name]
        for (rate, own, servers), plain in zip(parts, found["plain"], strict=True):
            cells += [
                f"{rate:,.0f}",
                f"{own:.1f} + {servers:.1f}",
                f"{rate / plain[0]:.0%}, {(plain[1] + plain[2]) / (own + servers):.0%}",
            ]
        lines.append(cells)
    columns = ["per second", "CPU µs + server", "of plain, by CPU"]
    head = ["jobs", *(f"{part} {column}" for part in ("bulk", "drain") for column in columns)]
    return table(head, lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--store", nargs="+", choices=STORES, default=STORES)
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
            f"{options.jobs:,} jobs, one worker with -c {options.concurrency}, medians of {options.rounds} "
            f"rounds. {DURABILITY[store]}"
        )
        print(text, flush=True)
        if not options.only_print:
            write_section(f"One option changed, {store}", f"{settings}\n\n{text}")


if __name__ == "__main__":
    main()
