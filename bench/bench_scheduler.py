"""Does a full house keep its slots busy, and do second runs help stragglers? Jobs that only sleep.

    python bench/bench_scheduler.py [--stores sqlite,postgres] [--jobs 2000] [--uneven 1000] [--only slots]

Four real worker processes of ten slots each. The first question: 2,000 jobs of 3 s need 150 s, that is
13.3 jobs/s, when no slot ever waits. The second: one run in twenty takes ten times as long, with
`speculate=` and without; the time of a run goes from its first claim to its end.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from results import table, write_section
from scheduler_app import RULE, SECONDS, SLOW_FACTOR, SLOW_ONE_IN

from taskharbor.drivers import Driver, connect
from taskharbor.drivers.messages import Query
from taskharbor.model.clock import SystemClock
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import JobRecord, NewJob
from taskharbor.model.speculation import SPECULATE_HEADER, header_of

PROCESSES, SLOTS = 4, 10
AIM = 0.95


@contextmanager
def workers(url: str) -> Iterator[None]:
    command = [sys.executable, "-m", "taskharbor", "worker", "scheduler_app:harbor"]
    flags = ["--processes", str(PROCESSES), "-c", str(SLOTS), "--log-level", "warning"]
    env = {**os.environ, "TASKHARBOR_URL": url, "PYTHONPATH": str(Path(__file__).parent)}
    process = subprocess.Popen([*command, *flags], env=env, cwd=Path(__file__).parent)
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


@asynccontextmanager
async def store(name: str) -> AsyncIterator[tuple[str, Driver]]:
    """A new, empty store and its address."""
    if name == "postgres":
        from taskharbor.testing.servers import fresh_postgres_url

        url = fresh_postgres_url()
        async with connect(url) as driver:
            yield url, driver
    else:
        with tempfile.TemporaryDirectory() as folder:
            url = f"sqlite:///{folder}/jobs.db"
            async with connect(url) as driver:
                yield url, driver


async def done(url: str, driver: Driver, count: int, type_name: str) -> list[JobRecord]:
    """Put jobs in, let the workers do them, and give back how it went."""
    entropy, clock = Entropy(), SystemClock()
    headers = {SPECULATE_HEADER: header_of(RULE)} if type_name == "guarded" else {}
    jobs = [
        NewJob(id=entropy.job_id(clock.now()), type=type_name, payload=b"{}", headers=headers, max_stalls=3)
        for _ in range(count)
    ]
    for start in range(0, count, 1000):
        await driver.enqueue(jobs[start : start + 1000])
    with workers(url):
        while (await driver.count(["default"]))["default"].completed < count:
            await asyncio.sleep(1)
    return await all_jobs(driver)


async def all_jobs(driver: Driver) -> list[JobRecord]:
    found: list[JobRecord] = []
    query: Query | None = Query(limit=1000)
    while query is not None:
        page = await driver.find(query)
        found += page.jobs
        query = Query(limit=1000, cursor=page.next_cursor) if page.next_cursor else None
    return found


def makespan(jobs: list[JobRecord]) -> float:
    began = min(job.started_at for job in jobs if job.started_at)
    ended = max(job.finished_at for job in jobs if job.finished_at)
    return (ended - began).total_seconds()


def percentile(jobs: list[JobRecord], share: float) -> float:
    spans = sorted((job.finished_at - job.started_at).total_seconds() for job in jobs)  # type: ignore[operator]
    return spans[min(int(len(spans) * share), len(spans) - 1)]


async def slots(names: list[str], count: int) -> None:
    ideal = PROCESSES * SLOTS / SECONDS
    rows = []
    for name in names:
        async with store(name) as (url, driver):
            began = time.perf_counter()
            jobs = await done(url, driver, count, "even")
            whole = time.perf_counter() - began
        rate = count / makespan(jobs)
        verdict = "yes" if rate / ideal >= AIM else "no"
        rows.append(
            [name, f"{rate:.2f}", f"{rate / ideal:.1%}", f"{makespan(jobs):.1f}", f"{whole:.1f}", verdict]
        )
        print(*rows[-1], flush=True)
    text = (
        f"{count:,} jobs of {SECONDS:g} s on {PROCESSES} processes × {SLOTS} slots: {ideal:.2f} jobs/s when "
        "no slot ever waits. Counted from the first claim to the last end; the last time includes starting "
        "and stopping the processes. Sleeping jobs: a busy machine disturbs this little.\n\n"
    )
    head = ["store", "jobs/s", "of the ideal", "first claim to last end, s", "all in all, s", f"≥ {AIM:.0%}"]
    write_section("Slots kept busy: jobs of 3 s", text + table(head, rows))


async def speculation(names: list[str], count: int) -> None:
    rows = []
    for name in names:
        plain, guarded = [await _tail(name, count, kind) for kind in ("uneven", "guarded")]
        gain = plain[1] / guarded[1]
        for what, (p50, p99, longest, span, copies) in (("without", plain), ("with", guarded)):
            figures = [f"{value:.1f}" for value in (p50, p99, longest, span)]
            gained = f"{gain:.1f}× less" if what == "with" else ""
            rows.append([name, what, *figures, str(copies), gained])
            print(*rows[-1], flush=True)
    text = (
        f"{count:,} jobs of {SECONDS:g} s, of whose runs, copies included, one in {SLOW_ONE_IN} takes "
        f"{SLOW_FACTOR} times as long; {PROCESSES} processes × {SLOTS} slots, all jobs there from the start. "
        f"`speculate` after {RULE.after.total_seconds():g} s and {RULE.factor:g} × the usual time. Seconds "
        "from the first claim of a job to its end; the aim is half the p99.\n\n"
    )
    head = ["store", "second runs", "p50", "p99", "longest", "all jobs done in", "won by copies", "p99"]
    write_section("Second runs for stragglers", text + table(head, rows))


async def _tail(name: str, count: int, type_name: str) -> tuple[float, float, float, float, int]:
    async with store(name) as (url, driver):
        jobs = await done(url, driver, count, type_name)
    copies = sum(any(attempt.outcome == "superseded" for attempt in job.history) for job in jobs)
    return percentile(jobs, 0.5), percentile(jobs, 0.99), percentile(jobs, 1.0), makespan(jobs), copies


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--stores", default="sqlite,postgres")
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--uneven", type=int, default=1000)
    parser.add_argument("--only", choices=["slots", "speculation"])
    options = parser.parse_args()
    names = options.stores.split(",")
    if options.only != "speculation":
        asyncio.run(slots(names, options.jobs))
    if options.only != "slots":
        asyncio.run(speculation(names, options.uneven))


if __name__ == "__main__":
    main()
