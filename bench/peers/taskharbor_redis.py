"""TaskHarbor on Redis or Valkey as one of the peers of the side-by-side harness.

Uses what a user uses: Harbor, @harbor.task and `taskharbor worker`, with heartbeats, fencing and
retries on. BENCH_TH_KEEP=0 deletes completed jobs at once; otherwise they are kept for the default
hour. BENCH_TH_ASYNC=1 measures single enqueues from async code instead of blocking code.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from datetime import timedelta
from typing import Any

import _base
from _base import REDIS_URL, payload
from job_options import HANDLER, JOBS, handler, options_of

from taskharbor import Harbor
from taskharbor.model.queue import QueueSettings, Retention

CONCURRENCY = os.environ.get("BENCH_TH_CONCURRENCY", "400")
SLOTS = ["-c", CONCURRENCY] if CONCURRENCY != "default" else []
KEEPS = os.environ.get("BENCH_TH_KEEP", "1") == "1"
FROM_ASYNC = os.environ.get("BENCH_TH_ASYNC", "0") == "1"

harbor = Harbor(REDIS_URL)


noop = harbor.task(name="noop")(handler())


def request(p: dict) -> Any:
    """A job with what BENCH_JOBS asks for."""
    chosen = options_of(p["seq"]) if JOBS != "plain" else {}
    return noop.with_options(**chosen).call(**p) if chosen else noop.call(**p)


class TaskHarborRedis(_base.Adapter):
    name = "taskharbor-redis" + ("" if KEEPS else "-delete")
    package = "taskharbor"
    backend = "redis"
    has_bulk = True
    config = (
        f"{HANDLER} handlers, worker {' '.join(SLOTS) or 'without options'}, "
        f"completed jobs {'kept' if KEEPS else 'deleted'}"
    )
    ack = "after run, with the next claim"

    def install(self) -> None:
        if not KEEPS:
            asyncio.run(_delete_completed())

    async def open(self) -> None:
        await harbor.aopen()

    async def close(self) -> None:
        await harbor.aclose()

    async def many(self, ps: list[dict]) -> None:
        await harbor.aenqueue_many([request(p) for p in ps])

    async def one(self, p: dict) -> None:
        await noop.aenqueue(**p)

    def timed_single(self, n: int, warm: int = 100) -> float:
        """Blocking calls outside an event loop, as most programs make them."""
        if FROM_ASYNC:
            return super().timed_single(n, warm)
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
        return [sys.executable, "-m", "taskharbor", "worker", "taskharbor_redis:harbor", *SLOTS]

    def remaining(self) -> int:
        # Waiting and running jobs are in one section of the list.
        return int(_base.redis_command("ZCOUNT", "{taskharbor}:q:default:list", 0, f"({2**50}"))


async def _delete_completed() -> None:
    from taskharbor.drivers import connect

    async with connect(REDIS_URL) as driver:
        keep = Retention(completed=timedelta(0))
        await driver.configure_queue(QueueSettings(queue="*", retention=keep))


ADAPTER = TaskHarborRedis()
if __name__ == "__main__":
    _base.main("taskharbor_redis")
