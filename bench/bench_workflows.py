"""What workflows cost, on every store; and the same work by other queues.

    python bench/bench_workflows.py [--store sqlite postgres redis cluster http] [--rows fan-in group ...]
                                    [--fan-in 20000] [--cancel 20000] [--rounds 3] [--only-print]
    python bench/bench_workflows.py --before FOLDER      plain jobs, beside a checkout from before workflows
    python bench/bench_workflows.py --peers [celery rq …] [--peer-size group=2000 graph=100 …]

The bars of a full run: --fan-in 1000000 --cancel 100000 --graphs 1000. Every row has a store of its own;
servers are durable (Postgres with fsync, Valkey with an append-only file flushed at every write, SQLite at
synchronous FULL), one worker of this process runs the jobs, handlers do nothing. Medians of the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import flow_peers
import flow_plain
import flow_rows as rows
from results import table, write_section

from taskharbor.drivers import connect
from taskharbor.testing.http_server import HttpServer
from taskharbor.testing.servers import PostgresServer, ValkeyCluster, ValkeyServer
from taskharbor.testing.servers.postgres import migrate_blocking

Numbers = dict[str, float]
STORES = ("sqlite", "postgres", "redis", "cluster", "http")
COUNTING = {"shared_preload_libraries": "pg_stat_statements", "pg_stat_statements.track": "none"}
"""Counts nothing until a role asks for it."""


class Servers:
    """One server a kind for the whole run; every row gets a namespace of it that nobody used."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._there: dict[str, Any] = {}
        self._number = 0

    @contextlib.contextmanager
    def url(self, store: str, *, migrated: bool = True) -> Iterator[str]:
        self._number += 1
        name = f"bench{os.getpid()}x{self._number}"
        match store:
            case "postgres":
                url = f"{self.server(store).url}?schema={name}"
                if migrated:
                    migrate_blocking(url)
                yield url
            case "redis":
                yield f"{self.server(store).url}?namespace={name}"
            case "cluster":
                yield f"{self.server(store).url}?namespace={name}"
            case _:
                with tempfile.TemporaryDirectory() as folder:
                    url = f"sqlite:///{folder}/jobs.db"
                    if store == "sqlite":
                        yield url
                    else:
                        with HttpServer(url) as server:
                            yield server.url

    @contextlib.contextmanager
    def statements_counted(self, store: str) -> Iterator[None]:
        """By Postgres, of the sessions that begin meanwhile; the other stores need no word."""
        if store != "postgres":
            yield
            return
        own = self.server(store).url
        _run_statement(own, "create extension if not exists pg_stat_statements")
        _run_statement(own, "alter role postgres set pg_stat_statements.track = 'all'")
        try:
            yield
        finally:
            _run_statement(own, "alter role postgres reset pg_stat_statements.track")

    def server(self, store: str) -> Any:
        if store not in self._there:
            made: Any = {
                "postgres": lambda: PostgresServer(durable=True, settings=COUNTING),
                "redis": lambda: ValkeyServer(durable=True),
                "cluster": lambda: ValkeyCluster(settings={"appendonly": "yes", "appendfsync": "always"}),
            }[store]()
            self._there[store] = self._stack.enter_context(made)
        return self._there[store]


def _run_statement(url: str, statement: str) -> None:
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement.encode())


class Bench:
    def __init__(self, servers: Servers, store: str, options: argparse.Namespace) -> None:
        self.servers = servers
        self.store = store
        self.options = options

    def once(self, work: Callable[..., Awaitable[Numbers]], *arguments: Any) -> Numbers:
        async def run(url: str) -> Numbers:
            app = rows.App(url, self.options.concurrency)
            async with app.harbor:
                return await work(app, *arguments)

        with self.servers.url(self.store) as url:
            return asyncio.run(run(url))

    def medians(self, *works: tuple[Any, ...]) -> list[Numbers]:
        """Of several kinds of work in turns, so that drift of the machine hits all alike."""
        found: list[list[Numbers]] = [[] for _ in works]
        for number in range(self.options.rounds):
            order = list(enumerate(works))
            for place, (work, *arguments) in order if number % 2 == 0 else order[::-1]:
                found[place].append(self.once(work, *arguments))
        return [{name: statistics.median(one[name] for one in some) for name in some[0]} for some in found]

    # ------------------------------------------------------------------ rows

    def fan_in(self) -> list[list[str]]:
        count = self.options.fan_in
        plain, family = self.medians((rows.plain, count), (rows.fan_in, count))
        return [
            self._row(
                "plain drain",
                f"{count:,} jobs",
                f"{plain['drain']:,.0f} a second, {plain['rss']:.0f} MB more",
                "",
            ),
            self._row(
                "fan-in without results",
                f"{count:,} children and a callback",
                f"{family['drain']:,.0f} a second, {family['rss']:.0f} MB more",
                f"{plain['drain'] / family['drain']:.2f} × plain; bar 1.15",
            ),
            self._row(
                "stored",
                "1,000 a call",
                f"{family['fill']:,.0f} children a second",
                f"{plain['fill'] / family['fill']:.2f} × plain",
            ),
            self._row(
                "callback after the last child",
                "by the store's clock",
                f"{family['late'] * 1000:.1f} ms",
                "bar 50 ms",
            ),
        ]

    def group(self) -> list[list[str]]:
        count = self.options.group
        plain, family = self.medians((rows.plain, count, "returns"), (rows.group, count))
        return [
            self._row(
                "group with results and callback",
                f"{count:,} children",
                f"{family['drain']:,.0f} a second (plain with results: {plain['drain']:,.0f})",
                f"{plain['drain'] / family['drain']:.2f} × plain; bar 1.25",
            )
        ]

    def graphs(self) -> list[list[str]]:
        count = self.options.graphs
        each, together = self.medians((rows.graphs, count, 1), (rows.graphs, count, 50))
        what = f"{count:,} graphs of 10 nodes, 14 edges"
        return [
            self._row("graphs stored, a call each", what, f"{each['fill']:,.0f} nodes a second", ""),
            self._row(
                "graphs stored, 50 a call", what, f"{together['fill']:,.0f} nodes a second", "bar 4,000"
            ),
            self._row("graphs run", what, f"{together['drain']:,.0f} nodes a second", "bar 4,000"),
        ]

    def chain(self) -> list[list[str]]:
        count = self.options.chain
        [one] = self.medians((rows.chain, count))
        return [
            self._row(
                "chain",
                f"{count:,} links, an exchange each",
                f"{one['link'] * 1000:.2f} ms a link (ack + claim: {one['bare'] * 1000:.2f} ms)",
                f"{one['link'] / one['bare']:.2f} × ack + claim; bar 1.2",
            ),
            self._row(
                "chain by a worker",
                f"{count:,} links with results",
                f"{one['worker'] * 1000:.2f} ms a link",
                "",
            ),
        ]

    def steps(self) -> list[list[str]]:
        count = self.options.steps
        [one] = self.medians((rows.steps, count))
        bare = statistics.median(self._bare(count) for _ in range(self.options.rounds))
        ratio = f"{one['steps'] / bare:.2f} of a bare insert; bar 0.8" if bare else ""
        shown = f" (bare insert with commit: {bare:,.0f})" if bare else ""
        return [
            self._row("steps", f"{count:,} of one handler", f"{one['steps']:,.0f} a second{shown}", ratio)
        ]

    def parks(self) -> list[list[str]]:
        [one] = self.medians((rows.parks, self.options.parks))
        what = f"p50 of {self.options.parks}"
        return [
            self._row("park and resume", f"{what}, two exchanges", _ms(one["park"]), "bar 5 ms"),
            self._row("ctx.acall of a child", "p50 of 20 calls of one handler", _ms(one["call"]), ""),
        ]

    def cancel(self) -> list[list[str]]:
        count = self.options.cancel
        [one] = self.medians((rows.cancel, count))
        return [
            self._row("cancel: mark", f"{count:,} waiting children", _ms(one["mark"]), "bar 10 ms"),
            self._row(
                "cancel: all",
                f"{count:,} waiting children",
                f"{one['all']:.2f} s",
                f"{one['all'] * 100_000 / count:.1f} s for 100,000; bar 5 s",
            ),
        ]

    def _row(self, *cells: str) -> list[str]:
        print(f"{self.store}: {' | '.join(cells)}", flush=True)
        return [self.store, *cells]

    def _bare(self, count: int) -> float:
        """One durable insert after the other on the same store; 0 where there is no such thing."""
        if self.store == "sqlite":
            return _bare_sqlite(count)
        if self.store == "postgres":
            return asyncio.run(_bare_postgres(self.servers.server("postgres").url, count))
        if self.store == "redis":
            return asyncio.run(_bare_redis(self.servers.server("redis").port, count))
        return 0.0


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms"


def _bare_sqlite(count: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        db = sqlite3.connect(Path(folder, "bare.db"), isolation_level=None)
        db.execute("pragma journal_mode = wal")
        db.execute("pragma synchronous = full")
        db.execute("create table note (job int, name text, data blob, primary key (job, name))")
        began = time.perf_counter()
        for number in range(count):
            db.execute("insert into note values (1, ?, ?)", (f"step {number}", b"0"))
        took = time.perf_counter() - began
        db.close()
    return count / took


async def _bare_postgres(url: str, count: int) -> float:
    import asyncpg

    db = await asyncpg.connect(url)
    await db.execute("drop table if exists bare_note")
    await db.execute("create table bare_note (job int, name text, data bytea, primary key (job, name))")
    began = time.perf_counter()
    for number in range(count):
        await db.execute("insert into bare_note values (1, $1, $2)", f"step {number}", b"0")
    took = time.perf_counter() - began
    await db.close()
    return count / took


async def _bare_redis(port: int, count: int) -> float:
    import redis.asyncio as redis

    async with redis.Redis(port=port) as client:
        await client.delete("bare")
        began = time.perf_counter()
        for number in range(count):
            await client.hset("bare", f"step {number}", b"0")
        return count / (time.perf_counter() - began)


ROWS = ("fan_in", "group", "graphs", "chain", "steps", "parks", "cancel")


def has_workflows(servers: Servers, store: str) -> bool:
    async def asked(url: str) -> bool:
        async with connect(url) as driver:
            return driver.capabilities.workflows

    with servers.url(store) as url:
        return asyncio.run(asked(url))


def ours(options: argparse.Namespace) -> None:
    for store in options.store:
        with contextlib.ExitStack() as stack:
            servers = Servers(stack)
            if not has_workflows(servers, store):
                print(f"{store}: has no workflows")
                continue
            bench = Bench(servers, store, options)
            bench.once(rows.plain, rows.BATCH)  # the first run of a process imports modules and fills caches
            lines = [line[1:] for name in options.rows for line in getattr(bench, name)()]
        settings = (
            f"One worker in the same process, -c {options.concurrency} (chain: 4, steps, parks: 1), handlers "
            f"that do nothing, medians of {options.rounds} rounds; load {os.getloadavg()[0]:.1f} at the end."
        )
        if not options.only_print:
            body = table(["what", "how much", "measured", "beside"], lines)
            write_section(f"Workflows, {store}", f"{settings}\n\n{body}")


def _size(text: str) -> tuple[str, int]:
    what, _, count = text.partition("=")
    if what not in flow_peers.Sizes.__dataclass_fields__:
        raise argparse.ArgumentTypeError(f"one of {', '.join(flow_peers.Sizes.__dataclass_fields__)}")
    return what, int(count)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--store", nargs="+", choices=STORES)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--fan-in", type=int, default=20_000)
    parser.add_argument("--group", type=int, default=9_990, help="with its group and callback 10,000 at most")
    parser.add_argument("--graphs", type=int, default=200)
    parser.add_argument("--chain", type=int, default=1_000)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--parks", type=int, default=100)
    parser.add_argument("--cancel", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--concurrency", type=int, default=400)
    parser.add_argument("--before", help="a checkout from before: plain jobs there and here, in turns")
    parser.add_argument("--jobs", type=int, default=20_000, help="of one round with --before")
    parser.add_argument("--peers", nargs="*", metavar="PEER", help="other queues instead; none named: all")
    parser.add_argument(
        "--peer-size", nargs="+", type=_size, default=[], metavar="WHAT=COUNT", help="group=2000 rounds=2 …"
    )
    parser.add_argument("--only-print", action="store_true", help="write no section of RESULTS.md")
    options = parser.parse_args()
    options.store = options.store or list(flow_plain.STORES if options.before else STORES)
    if options.before and (others := set(options.store) - set(flow_plain.STORES)):
        parser.error(f"--before measures {', '.join(flow_plain.STORES)}, not {', '.join(sorted(others))}")
    if options.peers is not None:
        sizes = flow_peers.Sizes(**dict(options.peer_size))
        flow_peers.compare(options.peers or list(flow_peers.PEERS), sizes, is_kept=not options.only_print)
    elif options.before:
        with contextlib.ExitStack() as stack:
            flow_plain.compare(Servers(stack), options)
    else:
        ours(options)


if __name__ == "__main__":
    sys.exit(main())
