"""What does one enqueue cost, one after the other, beside the bare statement of the same store?

    python bench/bench_singles.py [--store sqlite postgres redis] [--jobs 2000] [--rounds 5] [--only-print]

Bare: one INSERT with its own commit (SQLite, asyncpg), or one script that stores a body and its place in line
(Redis, over our connection), with the payload encoded by `json`. Ours: `task.enqueue` of a plain job, which
checks, fences, counts, keeps order and wakes workers; and `await task.aenqueue`. Bare and ours take turns;
medians of the rounds. CPU is that of this process and of the server; jobs per second say something on a quiet
machine only. For a short look: --jobs 300 --rounds 1 --only-print.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sqlite3
import tempfile
from collections.abc import Callable, Coroutine
from statistics import median
from typing import Any

import asyncpg
from bench_redis import BARE_ENQUEUE, BARE_KEYS
from cpu import Spent, Stopwatch
from results import table, write_section
from stores import DURABILITY, Store, opened

from taskharbor import Harbor
from taskharbor.drivers.redis.address import address_of
from taskharbor.drivers.redis.connection import connect

TABLE = """
create table bare (id {id} primary key, queue text not null default 'default', state int not null default 0,
  run_at real not null default 0, lease_until real, attempt int not null default 0, payload text not null);
create index bare_ready on bare (queue, run_at, id) where state = 0;
"""
WARM = 50
Ways = dict[str, Callable[[Store, int], Spent]]


def payload(number: int) -> dict[str, Any]:
    return {"seq": number, "t0": 1_000_000_000_000_000, "pad": "x" * 52}


# ------------------------------------------------------------------ bare


def bare_sqlite(mode: str) -> Callable[[Store, int], Spent]:
    def run(store: Store, jobs: int) -> Spent:
        with tempfile.TemporaryDirectory() as folder:
            connection = sqlite3.connect(f"{folder}/bare.db", isolation_level=None)
            connection.execute("pragma journal_mode = wal")
            connection.execute(f"pragma synchronous = {mode}")
            connection.executescript(TABLE.format(id="integer"))

            def insert(number: int) -> None:
                text = json.dumps(payload(number))
                connection.execute("insert into bare (payload) values (?)", (text,))

            spent = timed(insert, jobs, store)
            connection.close()
            return spent

    return run


def bare_postgres(store: Store, jobs: int) -> Spent:
    async def run() -> Spent:
        connection = await asyncpg.connect(store.url.partition("?")[0])
        await connection.execute("drop table if exists bare")
        await connection.execute(TABLE.format(id="bigint generated always as identity"))
        insert = await connection.prepare("insert into bare (payload) values ($1)")
        spent = await timed_in_loop(lambda n: insert.fetch(json.dumps(payload(n))), jobs, store)
        await connection.close()
        return spent

    return asyncio.run(run())


def bare_redis(store: Store, jobs: int) -> Spent:
    async def run() -> Spent:
        address = address_of(store.url)
        connection = await connect(address, address.hosts[0], timeout=60)
        script = await connection.call(("SCRIPT", "LOAD", BARE_ENQUEUE))
        front = ("EVALSHA", script, len(BARE_KEYS), *BARE_KEYS)
        spent = await timed_in_loop(
            lambda number: connection.call((*front, json.dumps(payload(number)).encode())), jobs, store
        )
        connection.close()
        return spent

    return asyncio.run(run())


# ------------------------------------------------------------------ ours


def _task(harbor: Harbor) -> Any:
    @harbor.task
    async def noop(seq: int, t0: int, pad: str) -> None:
        return None

    return noop


def blocking(options: str = "") -> Callable[[Store, int], Spent]:
    def run(store: Store, jobs: int) -> Spent:
        with Harbor(store.url + options) as harbor:
            noop = _task(harbor)
            return timed(lambda number: noop.enqueue(**payload(number)), jobs, store)

    return run


def awaited(store: Store, jobs: int) -> Spent:
    async def run() -> Spent:
        async with Harbor(store.url) as harbor:
            noop = _task(harbor)
            return await timed_in_loop(lambda number: noop.aenqueue(**payload(number)), jobs, store)

    return asyncio.run(run())


def timed(enqueue: Callable[[int], Any], jobs: int, store: Store) -> Spent:
    for number in range(WARM):
        enqueue(number)
    watch = Stopwatch(store.servers)
    for number in range(jobs):
        enqueue(number)
    return watch.spent()


async def timed_in_loop(enqueue: Callable[[int], Coroutine[Any, Any, Any]], jobs: int, store: Store) -> Spent:
    for number in range(WARM):
        await enqueue(number)
    watch = Stopwatch(store.servers)
    for number in range(jobs):
        await enqueue(number)
    return watch.spent()


# ------------------------------------------------------------------ a run

WAYS: dict[str, Ways] = {
    "sqlite": {
        "NORMAL: bare": bare_sqlite("normal"),
        "NORMAL: enqueue": blocking("?durability=normal"),
        "FULL: bare": bare_sqlite("full"),
        "FULL: enqueue": blocking(),
    },
    "postgres": {"bare": bare_postgres, "enqueue": blocking(), "aenqueue": awaited},
    "redis": {"bare": bare_redis, "enqueue": blocking(), "aenqueue": awaited},
}


def measure(name: str, jobs: int, rounds: int) -> list[list[str]]:
    found: dict[str, list[tuple[float, ...]]] = {way: [] for way in WAYS[name]}
    with opened(name) as fresh:
        for _ in range(rounds):
            for way, run in WAYS[name].items():
                with fresh() as store:
                    spent = run(store, jobs)
                found[way].append((jobs / spent.seconds, *spent.micros(jobs)))
    rows = []
    floor: tuple[float, ...] = ()
    for way, figures in found.items():
        rate, own, servers = (median(column) for column in zip(*figures, strict=True))
        if way.endswith("bare"):
            floor = rate, own + servers
        rows.append(
            [
                f"{name}, {way}",
                f"{rate:,.0f}",
                f"{own:.1f} + {servers:.1f}",
                f"{rate / floor[0]:.0%}, {floor[1] / (own + servers):.0%}",
            ]
        )
        print("  ".join(rows[-1]), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--store", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only-print", action="store_true", help="write no section of RESULTS.md")
    options = parser.parse_args()
    rows = [row for name in options.store for row in measure(name, options.jobs, options.rounds)]
    text = table(["one by one", "per second", "CPU µs + server", "of bare, by CPU"], rows)
    print(text)
    if not options.only_print:
        servers = " ".join(DURABILITY[name] for name in options.store if name != "sqlite")
        how = (
            f"{options.jobs:,} jobs, medians of {options.rounds} rounds in turns, one caller. On SQLite the "
            f"row names `synchronous`. {servers}"
        )
        write_section("One by one beside the bare statement", f"{how}\n\n{text}")


if __name__ == "__main__":
    main()
