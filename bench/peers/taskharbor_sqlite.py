"""TaskHarbor on SQLite as one of the peers of the side-by-side harness.

Uses what a user uses: Harbor, @harbor.task and `taskharbor worker`, with heartbeats, fencing and
retries on and completed jobs kept for the default hour. Options beyond URL, concurrency and
processes are printed in `config`. Durability NORMAL is what the other SQLite queues run with;
BENCH_TH_DURABILITY=full measures our default.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any

import _base
from _base import SQLITE_PATH, payload
from job_options import HANDLER, JOBS, handler, options_of

from taskharbor import Harbor

DURABILITY = os.environ.get("BENCH_TH_DURABILITY", "normal")
CONCURRENCY = os.environ.get("BENCH_TH_CONCURRENCY", "100")
SLOTS = ["-c", CONCURRENCY] if CONCURRENCY != "default" else []
URL = f"sqlite:///{SQLITE_PATH}?durability={DURABILITY}"

harbor = Harbor(URL)


noop = harbor.task(name="noop")(handler())


def request(p: dict) -> Any:
    """A job with what BENCH_JOBS asks for."""
    chosen = options_of(p["seq"]) if JOBS != "plain" else {}
    return noop.with_options(**chosen).call(**p) if chosen else noop.call(**p)


class TaskHarborSqlite(_base.Adapter):
    name = f"taskharbor-sqlite-{DURABILITY}"
    package = "taskharbor"
    backend = "sqlite"
    has_bulk = True
    config = f"{HANDLER} handlers, url {URL.partition('?')[2]}, worker {' '.join(SLOTS) or 'without options'}"
    ack = "after run, with the next claim; completed jobs kept"

    def install(self) -> None:
        asyncio.run(_migrate())

    def timed_bulk(self, n: int) -> float:
        """Blocking calls too: the harness would make them inside a running loop."""
        start = time.perf_counter()
        for low in range(0, n, self.bulk_chunk):
            harbor.enqueue_many([request(payload(i)) for i in range(low, min(n, low + self.bulk_chunk))])
        took = time.perf_counter() - start
        harbor.close()
        return took

    def timed_single(self, n: int, warm: int = 100) -> float:
        """Blocking calls outside an event loop, as most programs make them."""
        for i in range(warm):
            noop.enqueue(**payload(-1 - i))
        start = time.perf_counter()
        for i in range(n):
            noop.enqueue(**payload(i))
        took = time.perf_counter() - start
        harbor.close()
        return took

    def paced(self, n: int, interval: float, seq0: int) -> None:
        due = time.monotonic()
        for i in range(n):
            time.sleep(max(0.0, due - time.monotonic()))
            noop.enqueue(**payload(seq0 + i, time.monotonic_ns()))
            due += interval
        harbor.close()

    def worker_cmd(self) -> list[str]:
        return [sys.executable, "-m", "taskharbor", "worker", "taskharbor_sqlite:harbor", *SLOTS]

    def remaining(self) -> int:
        return asyncio.run(_unfinished())


async def _migrate() -> None:
    from taskharbor.drivers import connect

    async with connect(URL):
        pass


async def _unfinished() -> int:
    from taskharbor.drivers import connect

    async with connect(URL) as driver:
        return sum(counts.waiting + counts.running for counts in (await driver.count()).values())


ADAPTER = TaskHarborSqlite()
if __name__ == "__main__":
    _base.main("taskharbor_sqlite")
