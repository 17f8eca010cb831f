"""Run the benchmarks that write RESULTS.md, one after the other: `make bench`.

    python bench/run_all.py [NAME ...] [--list]

Without names all of them, the long ones last. The minutes are those of a quiet machine of two cores. What
fails is named at the end and stops nothing. Peers need their harness: see bench_peers.py.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent


class Run(NamedTuple):
    name: str
    minutes: int
    command: str


RUNS = (
    Run("peers-redis", 10, "bench_peers.py --store redis"),
    Run("handlers", 3, "bench_handlers.py"),
    Run("looking", 6, "bench_growth.py --drivers sqlite,postgres,redis --looking"),
    Run("http", 3, "bench_http.py"),
    Run("mix", 2, "bench_mix.py --jobs 10000"),
    Run("singles", 1, "bench_singles.py"),
    Run("before", 6, "bench_before.py"),
    Run("queues", 2, "bench_queues.py"),
    Run("peers-sqlite", 8, "bench_peers.py --store sqlite"),
    Run("peers-postgres", 15, "bench_peers.py --store postgres"),
    Run("functions-redis", 5, "bench_peers.py --functions --store redis --drain-n 10000"),
    Run("functions-sqlite", 1, "bench_peers.py --functions --store sqlite --drain-n 10000"),
    Run("defaults", 1, "bench_defaults.py"),
    Run("features", 10, "bench_features.py"),
    Run("cluster", 2, "bench_cluster.py"),
    Run("floor-postgres", 3, "bench_postgres.py"),
    Run("floor-redis", 2, "bench_redis.py"),
    Run("floor-sqlite", 1, "bench_sqlite_floor.py"),
    Run("worker", 1, "bench_worker.py"),
    Run("idle", 3, "bench_idle.py"),
    Run("idle-workers", 11, "bench_idle_workers.py"),
    Run("hostile", 2, "bench_hostile.py"),
    Run("metrics", 3, "bench_metrics.py"),
    Run("connection", 1, "bench_redis_connection.py"),
    Run("dashboard", 6, "bench_dashboard.py"),
    Run("scheduler", 15, "bench_scheduler.py"),
    Run("kill", 9, "bench_kill.py"),
    Run("growth", 12, "bench_growth.py"),
    Run("snapshot", 12, "bench_postgres.py --steady 600"),
    Run("workflows", 15, "bench_workflows.py"),
    Run("workflows-peers", 20, "bench_workflows.py --peers"),
    Run("callbacks", 60, "bench_callbacks.py"),
    Run("backlog-postgres", 45, "bench_peers.py --store postgres --backlog 1000000"),
)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [run.name for run in RUNS]
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(names))
    parser.add_argument("--list", action="store_true", help="print the commands and their minutes")
    args = parser.parse_args()
    if unknown := set(args.names) - set(names):
        parser.error(f"no such run: {', '.join(sorted(unknown))}")
    chosen = [run for run in RUNS if not args.names or run.name in args.names]
    if args.list:
        print("\n".join(f"{run.minutes:3} min  {run.name:16}  {run.command}" for run in chosen))
        return 0
    failed = [run.name for run in chosen if not done(run)]
    print(f"failed: {', '.join(failed)}" if failed else "all done")
    return 1 if failed else 0


def done(run: Run) -> bool:
    print(f"== {time.strftime('%H:%M')} {run.name}, about {run.minutes} minutes: {run.command}", flush=True)
    file, *options = run.command.split()
    return subprocess.run([sys.executable, str(HERE / file), *options], check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
