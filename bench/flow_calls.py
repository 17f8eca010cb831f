"""The statements and commands that a store runs for plain jobs, with the sources of one checkout.

    python flow_calls.py URL JOBS      a process of its own, as flow_plain.py starts it

Jobs are stored 100 a call and taken by exchanges of 100, so the same code asks the same every time. SQLite is
asked by a trace of its statements, Postgres by pg_stat_statements, Valkey by its own count of commands.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

BATCH = 100
Counts = dict[str, float]
Asker = Callable[[], Awaitable[Counts]]


async def counted(url: str, jobs: int) -> Counts:
    ask = await _asker(url)
    from taskharbor.drivers import connect

    driver = connect(url)
    async with driver:
        await _stored(driver, BATCH)  # the first calls of a handle prepare what the later ones use
        await _drained(driver)
        first = await ask()
        await _stored(driver, jobs)
        filled = await ask()
        await _drained(driver)
        last = await ask()
    turns = (("enqueue", first, filled), ("drain", filled, last))
    return {
        f"{name} per {BATCH} jobs, {turn}": (after[name] - before[name]) / jobs * BATCH
        for turn, before, after in turns
        for name in first
    }


async def _stored(driver: Any, jobs: int) -> None:
    from taskharbor.model.clock import SystemClock
    from taskharbor.model.entropy import Entropy
    from taskharbor.model.job import NewJob

    entropy, clock = Entropy(), SystemClock()
    for _ in range(0, jobs, BATCH):
        ids = [entropy.job_id(clock.now()) for _ in range(BATCH)]
        await driver.enqueue([NewJob(id=one, type="noop", payload=b"x" * 64) for one in ids])


async def _drained(driver: Any) -> None:
    from taskharbor.drivers.messages import Claim
    from taskharbor.model.settlement import Ack

    claim = Claim(queues=("default",), worker_id="bench", limit=BATCH, lease_for=timedelta(minutes=5))
    taken = (await driver.reserve(claim)).jobs
    while taken:
        taken = (await driver.exchange([Ack(job.lease) for job in taken], claim)).claimed


async def _asker(url: str) -> Asker:
    """Before anything of a store is opened, so that its connections are counted."""
    parts = urlsplit(url)
    if parts.scheme.startswith("postgres"):
        return await _of_postgres(url)
    return _of_redis(parts.port or 0) if parts.scheme == "redis" else _of_sqlite()


def _of_sqlite() -> Asker:
    seen, connect = [0], sqlite3.connect

    def count(statement: str) -> None:
        seen[0] += not statement.startswith("--")  # those of triggers, which say so

    def traced(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*arguments, **options)
        connection.set_trace_callback(count)
        return connection

    async def ask() -> Counts:
        return {"statements": seen[0]}

    sqlite3.connect = traced  # type: ignore[assignment]
    return ask


async def _of_postgres(url: str) -> Asker:
    import asyncpg

    db = await asyncpg.connect(url.partition("?")[0])
    own = "query not like '%pg_stat_statements%'"
    every = f"coalesce(sum(calls) filter (where {own}), 0)"

    async def ask() -> Counts:
        row = await db.fetchrow(
            f"select {every} as inside, coalesce(sum(calls) filter (where toplevel and {own}), 0) as asked"
            " from pg_stat_statements"
        )
        return {"statements asked": float(row["asked"]), "statements with those inside": float(row["inside"])}

    return ask


def _of_redis(port: int) -> Asker:
    import redis.asyncio as redis

    client = redis.Redis(port=port)

    async def ask() -> Counts:
        found = await client.info("commandstats")
        calls = {name[8:]: one["calls"] for name, one in found.items() if name != "cmdstat_info"}
        scripts = sum(count for name, count in calls.items() if name.startswith(("eval", "fcall")))
        return {"script calls": scripts, "commands": sum(calls.values())}

    return ask


if __name__ == "__main__":
    print(json.dumps(asyncio.run(counted(sys.argv[1], int(sys.argv[2])))))
