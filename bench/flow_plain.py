"""Plain jobs with this checkout and with one from before, in turns: what workflows cost those who use none.

Each round is a process of its own with the packages of this environment and the sources of one checkout, and
a store that these sources have migrated. It stores jobs a thousand a call and drains them with one worker.
Compared are the bytes of a stored job, the CPU time of worker and store per job, and by flow_calls.py what
the store is asked. HTTP and Cluster are not measured: their servers would run the sources of one side only.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

HERE = Path(__file__).resolve().parent
LEAST_ROUNDS = 7
COUNTED_JOBS = 2000
STORES = ("sqlite", "postgres", "redis")
CLOCK = os.sysconf("SC_CLK_TCK")


def compare(servers: Any, options: argparse.Namespace) -> None:
    """Run both in turns on every store, and write a section."""
    from results import table, write_section

    trees = {"before": Path(options.before).resolve(), "now": HERE.parent}
    rounds = max(options.rounds, LEAST_ROUNDS) if not options.only_print else options.rounds
    lines = []
    for store in options.store:
        found = _calls(servers, store, trees)
        measured = _rounds(servers, store, trees, rounds, options.jobs)
        for name in (*found["now"], *measured["now"]):
            was, now = (found[which].get(name, measured[which].get(name, 0.0)) for which in trees)
            lines.append([store, name, f"{was:,.2f}", f"{now:,.2f}", f"{now / was:.3f}" if was else "–"])
            print(" | ".join(lines[-1]), flush=True)
    commits = {which: _commit(tree) for which, tree in trees.items()}
    settings = (
        f"{options.jobs:,} plain jobs a round, stored a thousand a call, one worker with -c "
        f"{options.concurrency}; medians of {rounds} rounds in turns. Statements and commands of "
        f"{COUNTED_JOBS:,} jobs, 100 a call. Commits {commits['before']} and {commits['now']}; load "
        f"{os.getloadavg()[0]:.1f} at the end."
    )
    if not options.only_print:
        body = table(["store", "what, per job", "before", "now", "now / before"], lines)
        write_section("Plain jobs before and with workflows", f"{settings}\n\n{body}")


def _calls(servers: Any, store: str, trees: dict[str, Path]) -> dict[str, dict[str, float]]:
    found = {}
    for which, tree in trees.items():
        with servers.url(store, migrated=False) as url, servers.statements_counted(store):
            _run(tree, "flow_plain.py", "migrate", url)
            found[which] = _run(tree, "flow_calls.py", url, COUNTED_JOBS)
    return found


def _rounds(
    servers: Any, store: str, trees: dict[str, Path], rounds: int, jobs: int
) -> dict[str, dict[str, float]]:
    """Medians of rounds in turns."""
    found: dict[str, list[dict[str, float]]] = {which: [] for which in trees}
    for number in range(rounds):
        for which in list(trees) if number % 2 == 0 else list(trees)[::-1]:
            with servers.url(store, migrated=False) as url:
                server = 0 if store == "sqlite" else servers.server(store).pid
                _run(trees[which], "flow_plain.py", "migrate", url)
                found[which].append(_run(trees[which], "flow_plain.py", "measure", url, jobs, server))
    return {
        which: {name: statistics.median(one[name] for one in some) for name in some[0]}
        for which, some in found.items()
    }


def _commit(tree: Path) -> str:
    words = ["git", "-C", str(tree), "rev-parse", "--short", "HEAD"]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def _run(tree: Path, script: str, *arguments: object) -> dict[str, float]:
    env = {**os.environ, "PYTHONPATH": str(tree / "src")}
    command = [sys.executable, str(HERE / script), *map(str, arguments)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{tree}: {done.stderr[-2000:]}")
    answer: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return answer


# ------------------------------------------------------------------ in the process of a round


async def migrated(url: str) -> dict[str, float]:
    """With the sources of this round: their tables, their functions."""
    from taskharbor.drivers import connect

    driver = await connect(url).open_unmigrated()
    try:
        await driver.migrate()
    finally:
        await driver.close()
    return {}


async def measured(url: str, jobs: int, server: int) -> dict[str, float]:
    from taskharbor import Harbor

    harbor = Harbor(url)

    @harbor.task
    async def noop(number: int, pad: str) -> None:
        return None

    async with harbor:
        await harbor.aenqueue_many([noop.call(0, "") for _ in range(100)])
        await harbor.worker(concurrency=100, scheduler=False).arun(until_idle=True)
        requests = [noop.call(number, "x" * 52) for number in range(jobs)]
        stored = await _bytes(url)
        first = await stored()
        spent = [_spent(server)]
        for start in range(0, jobs, 1000):
            await harbor.aenqueue_many(requests[start : start + 1000])
        spent.append(_spent(server))
        filled = await stored()
        spent.append(_spent(server))
        await harbor.worker(concurrency=400, scheduler=False).arun(until_idle=True)
        spent.append(_spent(server))
    mine, theirs = zip(*spent, strict=True)
    answer = {
        "bytes stored": (filled - first) / jobs,
        "CPU of this process, enqueue, µs": (mine[1] - mine[0]) / jobs * 1e6,
        "CPU of this process, drain, µs": (mine[3] - mine[2]) / jobs * 1e6,
    }
    if server:
        answer["CPU of the store, enqueue, µs"] = (theirs[1] - theirs[0]) / jobs * 1e6
        answer["CPU of the store, drain, µs"] = (theirs[3] - theirs[2]) / jobs * 1e6
    return answer


def _spent(server: int) -> tuple[float, float]:
    """CPU seconds of this process, which is the store too on SQLite, and of the server."""
    return time.process_time(), _cpu(server)


async def _bytes(url: str) -> Callable[[], Awaitable[float]]:
    """Asks a store for its size."""
    parts = urlsplit(url)
    if parts.scheme == "redis":
        import redis.asyncio as redis

        client = redis.Redis(port=parts.port or 0)

        async def ask_redis() -> float:
            return float((await client.info("memory"))["used_memory"])

        return ask_redis
    if parts.scheme.startswith("postgres"):
        import asyncpg

        db = await asyncpg.connect(url.partition("?")[0])

        async def ask_postgres() -> float:
            return float(await db.fetchval("select pg_database_size(current_database())"))

        return ask_postgres
    assert parts.scheme == "sqlite", url

    async def ask_file() -> float:
        """What is in use of the file, once the log is written back to it."""
        with contextlib.closing(sqlite3.connect(parts.path)) as db:
            db.execute("pragma wal_checkpoint(truncate)")
            pages, free, size = (
                db.execute(f"pragma {name}").fetchone()[0]
                for name in ("page_count", "freelist_count", "page_size")
            )
            return float((pages - free) * size)

    return ask_file


def _cpu(pid: int) -> float:
    """CPU seconds of a server and of its processes, those that ended included."""
    if not pid:
        return 0.0
    stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            try:
                stats.append(Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split())
            except (FileNotFoundError, ProcessLookupError):
                continue
    return (
        sum(sum(map(int, stat[11:15])) for stat in stats[:1]) / CLOCK
        + sum(sum(map(int, stat[11:13])) for stat in stats[1:]) / CLOCK
    )


def main() -> None:
    url = sys.argv[2]
    work = migrated(url) if sys.argv[1] == "migrate" else measured(url, *map(int, sys.argv[3:]))
    print(json.dumps(asyncio.run(work)))


if __name__ == "__main__":
    main()
