"""What does a job cost on a Cluster of three primaries, beside one node?

    python bench/bench_cluster.py [--jobs 1000000] [--queues 48] [--workers 3] [--only-print]

The jobs are spread evenly over the queues: filled in, a thousand a call, then done by worker processes with
`-c 400`, which have some of the queues each. CPU per job of the client, the workers and each server, so that
it does not matter how many cores the servers share here: on machines of its own a Cluster carries as many
jobs as its busiest primary has time for. For a short look: --jobs 20000 --only-print.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from cpu import Stopwatch, cpu_seconds
from results import table, write_section

from taskharbor import Harbor
from taskharbor.testing.servers import ValkeyServer
from taskharbor.testing.servers.valkey import ValkeyCluster

BATCH = 1000
PRIMARIES = 3


@contextmanager
def one_node() -> Iterator[tuple[str, list[int]]]:
    with ValkeyServer() as server:
        yield server.url, [server.pid]


@contextmanager
def cluster() -> Iterator[tuple[str, list[int]]]:
    with ValkeyCluster(PRIMARIES) as servers:
        yield servers.url, [node.pid for node in servers.nodes]


def harbor_at(url: str) -> Harbor:
    harbor = Harbor(url)

    @harbor.task
    async def noop(number: int, pad: str) -> None:
        return None

    return harbor


def drain(url: str, queues: list[str]) -> None:
    """Do everything in these queues, and print the CPU seconds of it."""
    worker = harbor_at(url).worker(queues=queues, concurrency=400, scheduler=False)
    watch = Stopwatch()
    worker.run(until_idle=True)
    print(watch.spent().own, flush=True)


async def fill(url: str, queues: list[str], jobs: int) -> None:
    harbor = harbor_at(url)
    async with harbor:
        noop = harbor.tasks.get("noop")
        for number, start in enumerate(range(0, jobs, BATCH)):
            task = noop.with_options(queue=queues[number % len(queues)])
            some = range(start, min(start + BATCH, jobs))
            await harbor.aenqueue_many([task.call(n, "x" * 52) for n in some])


async def completed(url: str, queues: list[str]) -> int:
    async with Harbor(url) as harbor:
        return sum([(await harbor.queue(queue).acounts()).completed for queue in queues])


def measure(title: str, url: str, pids: list[int], options: argparse.Namespace) -> list[list[str]]:
    queues = [f"queue{number}" for number in range(options.queues)]
    jobs = options.jobs

    def row(phase: str, seconds: float, clients: float, before: list[float]) -> list[str]:
        servers = [(cpu_seconds(pid) - was) / jobs * 1e6 for pid, was in zip(pids, before, strict=True)]
        spread = " + ".join(f"{one:.2f}" for one in servers)
        cells = [f"{title}, {phase}", f"{clients / jobs * 1e6:.1f}", f"{sum(servers):.2f} ({spread})"]
        return [*cells, f"{1e6 / max(servers):,.0f}", f"{jobs / seconds:,.0f}"]

    before, watch = [cpu_seconds(pid) for pid in pids], Stopwatch()
    asyncio.run(fill(url, queues, jobs))
    spent = watch.spent()
    rows = [row("bulk", spent.seconds, spent.own, before)]
    before, began = [cpu_seconds(pid) for pid in pids], time.perf_counter()
    command = [sys.executable, __file__, "--drain", url]
    workers = [
        subprocess.Popen([*command, *queues[number :: options.workers]], stdout=subprocess.PIPE, text=True)
        for number in range(options.workers)
    ]
    clients = sum(float(worker.communicate()[0]) for worker in workers)
    rows.append(row("drain", time.perf_counter() - began, clients, before))
    assert asyncio.run(completed(url, queues)) == jobs
    for one in rows:
        print("  ".join(one), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--queues", type=int, default=48)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--only-print", action="store_true", help="write no section of RESULTS.md")
    parser.add_argument("--drain", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.drain:
        url, *queues = options.drain
        drain(url, queues)
        return
    rows = []
    for title, servers in (("one node", one_node), (f"{PRIMARIES} primaries", cluster)):
        with servers() as (url, pids):
            rows += measure(title, url, pids, options)
    head = ["", "client µs", "servers µs (each)", "jobs/s of the busiest server alone", "jobs/s here"]
    text = table(head, rows)
    print(text)
    if not options.only_print:
        how = (
            f"{options.jobs:,} jobs in {options.queues} queues, {options.workers} worker processes with "
            "-c 400, no persistence. CPU per job; all servers and workers share the cores of this machine."
        )
        write_section("A Cluster beside one node", f"{how}\n\n{text}")


if __name__ == "__main__":
    main()
