"""What do idle workers cost a Postgres? Real `taskharbor worker` processes with default settings.

    python bench/bench_idle_workers.py [--workers 60 1] [--seconds 20] [--rounds 4] [--dry]

Connections: the most at any look while all are idle, per worker. Aim: at most 2.

Transactions: what one enqueue adds to `xact_commit` of pg_stat_database, over what the same workers do in an
idle span. Aim: with 60 workers at most three times as many as with one.

One job is lost in the noise of thousands of idle transactions, so a busy span has many: one every --every
seconds, each done before the next. Idle and busy spans take turns and last equally long. Each ends with a
pause in which sessions report what they did: the server lets an idle one do so after ten seconds. What an
enqueue adds is shown for every round, so that the spread is seen.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
from results import table, write_section

from taskharbor.drivers import Driver, connect
from taskharbor.model.clock import SystemClock
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import NewJob
from taskharbor.testing.servers import PostgresServer
from taskharbor.testing.servers.postgres import migrate_blocking

MOST_CONNECTIONS = 2.0
MOST_TIMES = 3.0
REPORTING_SECONDS = 12.0
START_SECONDS = 300.0
HEAD = ["idle workers", "connections (usual)", "per worker", "idle transactions/s"]
HEAD += ["one enqueue adds", "rounds"]
APP = """
from taskharbor import Harbor
harbor = Harbor({url!r})

@harbor.task
async def nothing() -> None: ...
"""


@dataclass(frozen=True)
class Seen:
    workers: int
    connections: list[int]
    """At each look while all were idle."""
    idle_rate: float
    added: list[float]
    """Transactions per enqueue, of each round."""

    @property
    def per_worker(self) -> float:
        return max(self.connections) / self.workers

    @property
    def usual(self) -> float:
        return statistics.median(self.added)

    def row(self) -> list[str]:
        rounds = ", ".join(f"{one:.1f}" for one in self.added)
        return [
            str(self.workers),
            f"{max(self.connections)} ({statistics.median(self.connections):g})",
            f"{self.per_worker:.2f}",
            f"{self.idle_rate:.0f}",
            f"{self.usual:.1f}",
            rounds,
        ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, nargs="+", default=[60, 1], help="the last is compared with")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each span, without its pause")
    parser.add_argument("--every", type=float, default=0.25, help="seconds between two enqueues")
    parser.add_argument("--rounds", type=int, default=4, help="of an idle and a busy span each")
    parser.add_argument("--dry", action="store_true", help="print, and leave RESULTS.md as it is")
    args = parser.parse_args()
    seen = [measured(count, args) for count in args.workers]
    text, is_held = report(seen, args)
    print(text)
    if not args.dry:
        write_section("Postgres: idle workers", text)
    return 0 if is_held else 1


def report(seen: list[Seen], args: argparse.Namespace) -> tuple[str, bool]:
    connections = max(one.per_worker for one in seen)
    times = seen[0].usual / seen[-1].usual
    is_held = connections <= MOST_CONNECTIONS and times <= MOST_TIMES
    how = (
        f"Worker processes with default settings; {args.rounds} rounds of an idle and a busy span of "
        f"{args.seconds:g} s, with one enqueue every {args.every:g} s in the busy one. "
        "What an enqueue adds is the median of the rounds."
    )
    bars = (
        f"Connections per worker: at most {connections:.2f} (bar {MOST_CONNECTIONS:g}). One enqueue among "
        f"{seen[0].workers} adds {times:.2f} times what it adds with {seen[-1].workers} "
        f"(bar {MOST_TIMES:g}). Held: {'yes' if is_held else 'NO'}."
    )
    return "\n\n".join([how, table(HEAD, [one.row() for one in seen]), bars]), is_held


def measured(count: int, args: argparse.Namespace) -> Seen:
    """A server of its own for each number of workers: nothing is left of the ones before."""
    with PostgresServer(settings={"max_connections": str(4 * count + 50)}) as server:
        migrate_blocking(server.url)
        with tempfile.TemporaryDirectory() as folder, processes(count, server.url, Path(folder)):
            return asyncio.run(_measured(server.url, count, args))


@contextmanager
def processes(count: int, url: str, folder: Path) -> Iterator[None]:
    (folder / "idle_app.py").write_text(APP.format(url=url), encoding="utf-8")
    command = [sys.executable, "-m", "taskharbor", "worker", "idle_app:harbor"]
    with ExitStack() as stack, (folder / "log").open("w") as log:
        for _ in range(count):
            process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.terminate)
        yield


async def _measured(url: str, count: int, args: argparse.Namespace) -> Seen:
    counter = await asyncpg.connect(url, server_settings={"application_name": "counter"})
    async with connect(url) as driver:
        await _all_there(driver, count)
    await asyncio.sleep(REPORTING_SECONDS)
    connections: list[int] = []
    idle_rates, added = [], []
    for _ in range(args.rounds):
        idle, seen = await _idle_span(counter, args)
        busy, jobs = await _busy_span(counter, url, args)
        connections += seen
        idle_rates.append(idle / (args.seconds + REPORTING_SECONDS))
        added.append((busy - idle) / jobs)
        print(f"{count} workers: idle {idle:,}, with {jobs} jobs {busy:,}, {max(seen)} connections")
    await counter.close()
    return Seen(count, connections, statistics.median(idle_rates), added)


async def _all_there(driver: Driver, count: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while (there := len(await driver.workers())) < count:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{there} of {count} workers have started")
        await asyncio.sleep(1.0)


async def _idle_span(counter: Any, args: argparse.Namespace) -> tuple[int, list[int]]:
    """The transactions of a span without jobs, and the connections at each look."""
    before, ends = await _transactions(counter), time.monotonic() + args.seconds
    seen = []
    while time.monotonic() < ends:
        seen.append(await _connections(counter))
        await asyncio.sleep(args.every)
    await asyncio.sleep(REPORTING_SECONDS)
    return await _transactions(counter) - before, seen


async def _busy_span(counter: Any, url: str, args: argparse.Namespace) -> tuple[int, int]:
    """The transactions of a span with jobs, and how many jobs."""
    before, ends, jobs = await _transactions(counter), time.monotonic() + args.seconds, 0
    async with connect(url) as driver:
        while time.monotonic() < ends:
            await driver.enqueue([new_job()])
            jobs += 1
            await _connections(counter)  # as in an idle span: it counts
            await asyncio.sleep(args.every)
    await asyncio.sleep(REPORTING_SECONDS)
    async with connect(url) as driver:
        left = (await driver.count())["default"]
    if left.ready or left.running or left.failed:
        raise RuntimeError(f"not every job was done: {left}")
    return await _transactions(counter) - before, jobs


def new_job() -> NewJob:
    return NewJob(id=Entropy().job_id(SystemClock().now()), type="nothing", queue="default", payload=b"{}")


async def _connections(counter: Any) -> int:
    found = await counter.fetchval(
        "select count(*) from pg_stat_activity where application_name = 'taskharbor'"
    )
    return int(found)


async def _transactions(counter: Any) -> int:
    found = await counter.fetchval(
        "select xact_commit from pg_stat_database where datname = current_database()"
    )
    return int(found)


if __name__ == "__main__":
    sys.exit(main())
