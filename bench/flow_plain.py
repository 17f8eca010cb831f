"""Plain jobs with this checkout and with one from before, in turns: what workflows cost those who use none.

Each round is a process of its own with the packages of this environment and the sources of one checkout. It
stores jobs a thousand a call and drains them with one worker. Compared are the bytes of a stored job, the
calls that the store counted, and the CPU time of worker and store per job.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

HERE = Path(__file__).resolve().parent
LEAST_ROUNDS = 7
CLOCK = os.sysconf("SC_CLK_TCK")


def compare(servers: Any, options: argparse.Namespace) -> None:
    """Run both in turns on every store, and write a section."""
    from results import table, write_section

    trees = {"before": Path(options.before), "now": HERE.parent}
    rounds = max(options.rounds, LEAST_ROUNDS)
    lines = []
    for store in options.store:
        found: dict[str, list[dict[str, float]]] = {"before": [], "now": []}
        for number in range(rounds):
            for which in ("before", "now") if number % 2 == 0 else ("now", "before"):
                with servers.url(store) as url:
                    server = servers.server(store) if store in ("postgres", "redis") else None
                    found[which].append(_run(trees[which], url, options.jobs, server and server.pid))
        medians = {
            which: {name: statistics.median(one[name] for one in some) for name in some[0]}
            for which, some in found.items()
        }
        for name in medians["now"]:
            was, now = medians["before"][name], medians["now"][name]
            lines.append([store, name, f"{was:,.2f}", f"{now:,.2f}", f"{now / was:.3f}" if was else "–"])
            print(f"{store}: {name}: {was:,.2f} → {now:,.2f}", flush=True)
    commits = {which: _commit(tree) for which, tree in trees.items()}
    settings = (
        f"{options.jobs:,} plain jobs a round, stored a thousand a call, one worker with -c "
        f"{options.concurrency}; medians of {rounds} rounds in turns; commits {commits['before']} and "
        f"{commits['now']}; load {os.getloadavg()[0]:.1f} at the end."
    )
    if not options.only_print:
        body = table(["store", "per job", "before", "now", "now / before"], lines)
        write_section("Plain jobs before and with workflows", f"{settings}\n\n{body}")


def _commit(tree: Path) -> str:
    words = ["git", "-C", str(tree), "rev-parse", "--short", "HEAD"]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def _run(tree: Path, url: str, jobs: int, server: int | None) -> dict[str, float]:
    env = {**os.environ, "PYTHONPATH": str(tree / "src")}
    command = [sys.executable, str(HERE / "flow_plain.py"), url, str(jobs), str(server or 0)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{tree}: {done.stderr[-2000:]}")
    answer: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return answer


# ------------------------------------------------------------------ in the process of a round


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
        store = await _store(url)
        first, theirs, mine = await store(), _cpu(server), time.process_time()
        for start in range(0, jobs, 1000):
            await harbor.aenqueue_many(requests[start : start + 1000])
        filled, theirs_filled, mine_filled = await store(), _cpu(server), time.process_time()
        await harbor.worker(concurrency=400, scheduler=False).arun(until_idle=True)
        last, theirs_last, mine_last = await store(), _cpu(server), time.process_time()
    return {
        "bytes stored": (filled["bytes"] - first["bytes"]) / jobs,
        "calls of the store, enqueue": (filled["calls"] - first["calls"]) / jobs,
        "calls of the store, drain": (last["calls"] - filled["calls"]) / jobs,
        "CPU of this process, enqueue, µs": (mine_filled - mine) / jobs * 1e6,
        "CPU of this process, drain, µs": (mine_last - mine_filled) / jobs * 1e6,
        "CPU of the store, enqueue, µs": (theirs_filled - theirs) / jobs * 1e6,
        "CPU of the store, drain, µs": (theirs_last - theirs_filled) / jobs * 1e6,
    }


async def _store(url: str) -> Any:
    """Asks a store for its size and for the calls it has counted, as far as it knows them."""
    parts = urlsplit(url)
    if parts.scheme == "redis":
        import redis.asyncio as redis

        client = redis.Redis(port=parts.port or 0)

        async def ask_redis() -> dict[str, float]:
            info = await client.info("everything")
            calls = sum(
                one["calls"]
                for name, one in info.items()
                if name.startswith("cmdstat_") and "info" not in name
            )
            return {"bytes": info["used_memory"], "calls": calls}

        return ask_redis
    if parts.scheme.startswith("postgres"):
        import asyncpg

        db = await asyncpg.connect(url.partition("?")[0])

        async def ask_postgres() -> dict[str, float]:
            await db.execute("select pg_stat_clear_snapshot()")
            await asyncio.sleep(1.2)  # until the server has counted what is over
            row = await db.fetchrow(
                "select pg_database_size(current_database()) as bytes, xact_commit as calls"
                " from pg_stat_database where datname = current_database()"
            )
            return {"bytes": row["bytes"], "calls": row["calls"]}

        return ask_postgres
    path = Path(parts.path)

    async def ask_file() -> dict[str, float]:
        files = [path, path.with_name(f"{path.name}-wal")]
        return {"bytes": sum(file.stat().st_size for file in files if file.exists()), "calls": 0.0}

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


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measured(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))))
