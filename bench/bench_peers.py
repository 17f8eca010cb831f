"""TaskHarbor beside other queues, on the same store, in one run.

    python bench/bench_peers.py [--store sqlite|postgres|redis] [--repeat 3] [--peers a,b] [--drain-n 20000]
    python bench/bench_peers.py --functions [--store sqlite|redis]
    python bench/bench_peers.py --store postgres --backlog 1000000 [--minutes 15] [--peers a,b]

Needs the side-by-side benchmark of the peers in the folder named by BENCH_PEERS (by default
`../shared/bench`); without it there is nothing to compare with, and a line says so. Each peer gets a
virtual environment of its own on the first run.
Postgres and Valkey come from their wheels, with fsync on where the peers have it on.
Peers that need minutes for 20,000 jobs drain 2,000, once, and are asked for less: see SLOW.
--functions: drains of plain functions, in our threads and by the queues that run nothing else.
--backlog: only how fast the beginning of a backlog that deep is drained, see backlog.py.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import backlog
from results import write_section

from taskharbor.testing.servers import PostgresServer, ValkeyServer, postgres_binaries

HERE = Path(__file__).resolve().parent
PEERS = Path(os.environ.get("BENCH_PEERS", HERE.parents[1] / "shared" / "bench"))
SIDE_BY_SIDE = {
    "sqlite": "huey-sqlite,litequeue,persist-queue,ceiling-sqlite,taskharbor-sqlite,taskharbor-sqlite-full",
    "postgres": "pgqueuer,procrastinate,saq-postgres,chancy,oban,dbos,graphile-worker,pg-boss,ceiling-pg,"
    "taskharbor-postgres,taskharbor-postgres-async,taskharbor-postgres-delete",
    "redis": "celery,rq,dramatiq,huey-redis,arq,saq-redis,taskiq-list,taskiq-stream,streaq,bullmq,"
    "ceiling-redis,taskharbor-redis,taskharbor-redis-async",
}
SLOW = (
    "procrastinate,saq-postgres,chancy,oban,dbos,celery,rq,dramatiq,arq,saq-redis,taskiq-list,taskiq-stream,"
    "streaq,persist-queue"
)
FUNCTIONS = {
    "sqlite": "huey-sqlite,taskharbor-sqlite-function,taskharbor-sqlite-function-default",
    "redis": "dramatiq,huey-redis,rq,taskharbor-redis-function,taskharbor-redis-function-default",
}
OF_SLOW = ["--repeat", "1", "--drain-n", "2000", "--scenarios", "single,drain1,drain2,latency"]
TITLES = {"sqlite": "SQLite", "postgres": "Postgres", "redis": "Valkey"}
DURABILITY = {
    "sqlite": "`synchronous` is NORMAL for ours where its row does not say FULL; the others set their own.",
    "postgres": "The server has fsync and synchronous_commit on.",
    "redis": "The server writes nothing to the disk (no append-only file, no snapshots).",
}


@contextlib.contextmanager
def servers(store: str) -> Iterator[dict[str, str]]:
    """Where the peers find their servers; where none is needed, a port that only listens."""
    with contextlib.ExitStack() as stack:
        deaf = stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
        env = {
            "BENCH_PG_DSN": f"postgresql://bench@127.0.0.1:{deaf}/postgres",
            "BENCH_REDIS_URL": f"redis://127.0.0.1:{deaf}/0",
        }
        if store == "postgres":
            durable = {"max_connections": "200", "shared_buffers": "128MB"}
            postgres = stack.enter_context(PostgresServer(durable=True, settings=durable))
            env |= {"BENCH_PG_DSN": postgres.url, "BENCH_PG_PID": str(postgres.pid)}
        if store == "redis":
            valkey = stack.enter_context(ValkeyServer())
            env |= {"BENCH_REDIS_URL": valkey.url, "BENCH_REDIS_PID": str(valkey.pid)}
        yield env


def run(arguments: list[str], env: dict[str, str]) -> str:
    """The peers' own command, with our adapters added to theirs."""
    done = subprocess.run(
        [sys.executable, str(PEERS / "run.py"), *arguments],
        env={**os.environ, **_of_ours(), **env},
        cwd=PEERS,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout


def _of_ours() -> dict[str, str]:
    """Where the peers' command finds our adapters and the tools of Postgres."""
    return {
        "TASKHARBOR_REPO": str(HERE.parent),
        "BENCH_EXTRA_PEERS": str(HERE / "peers" / "peers.json"),
        "PATH": os.pathsep.join([str(postgres_binaries()), os.environ["PATH"]]),
    }


def losses(results: dict) -> str:
    """What failed, was lost or ran twice: a rate without that says little."""
    lines = []
    for peer, scenarios in results["median"].items():
        for scenario, answer in scenarios.items():
            if "error" in answer:
                lines.append(
                    f"- {peer}, {scenario}: failed ({answer['error'].strip().splitlines()[-1][:120]})"
                )
            elif answer.get("executions", answer.get("unique")) != answer.get("unique"):
                lines.append(f"- {peer}, {scenario}: {answer['executions']} runs of {answer['unique']} jobs")
            elif answer.get("foreign_cpu", 0) >= 0.1:
                lines.append(
                    f"- {peer}, {scenario}: others took {answer['foreign_cpu']:.0%} of a core meanwhile"
                )
    return "\n".join(lines)


def settings(results: dict) -> str:
    """How the worker of each peer is set up, as its adapter says."""
    return "\n".join(
        f"- {peer}: {about['config']}; acknowledged: {about['ack']}"
        for peer, about in results["info"].items()
        if about.get("config")
    )


def deep_backlog(args: argparse.Namespace) -> None:
    if args.store != "postgres":
        raise SystemExit("--backlog is there for --store postgres only")
    peers = args.peers or backlog.ALL
    most, seconds = max(1, args.backlog // 5), 15.0
    with servers("postgres") as env:
        run(["--install", "--peers", peers], env)
        text = backlog.measured(
            peers.split(","),
            {**env, **_of_ours()},
            PEERS,
            jobs=args.backlog,
            most=most,
            seconds=seconds,
            minutes=args.minutes,
            rounds=int(args.repeat),
        )
    body = (
        f"{args.backlog:,} jobs by the peer's bulk verb, then ANALYZE; one worker process, then two, each "
        f"for {most:,} jobs or {seconds:g} s, whichever comes first. Rates: jobs started, from the first on. "
        "µs per job: CPU of a worker + its waits (for the server, the disk, a core), and CPU of the server "
        "meanwhile. Medians, with the slowest and the fastest round. "
        f"Load {os.getloadavg()[0]:.1f} at the end.\n\n{text}"
    )
    print(body)
    if not args.only_print:
        write_section(f"Postgres beside its peers, {args.backlog:,} jobs waiting", body)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--store", choices=SIDE_BY_SIDE, default="sqlite")
    parser.add_argument("--peers", help="instead of all there are for the store")
    parser.add_argument("--functions", action="store_true", help="plain functions instead of coroutines")
    parser.add_argument("--scenarios", default="single,bulk,drain1,drain2,latency,idle")
    parser.add_argument("--repeat", default="3")
    parser.add_argument("--drain-n", default="20000")
    parser.add_argument("--backlog", type=int, help="jobs that wait before the first worker starts")
    parser.add_argument("--only-print", action="store_true", help="write no section of RESULTS.md")
    parser.add_argument("--minutes", type=float, default=30, help="that all of --backlog may take")
    args = parser.parse_args()
    if not (PEERS / "run.py").exists():
        print(f"no peers to compare with: {PEERS} is not there (set BENCH_PEERS)")
        return
    if args.functions and args.store not in FUNCTIONS:
        raise SystemExit("--functions is there for --store sqlite and redis")
    if args.backlog:
        deep_backlog(args)
        return
    side_by_side(args)


def side_by_side(args: argparse.Namespace) -> None:
    """Everything that --scenarios names, of every peer; the section of the store."""
    peers = args.peers or (FUNCTIONS if args.functions else SIDE_BY_SIDE)[args.store]
    scenarios = "drain1,drain2" if args.functions else args.scenarios
    slow = [] if args.functions else [peer for peer in peers.split(",") if peer in SLOW.split(",")]
    quick = [peer for peer in peers.split(",") if peer not in slow]
    repeats = ["--repeat", args.repeat, "--slow-repeat", args.repeat]
    options = [*repeats, "--drain-n", args.drain_n, "--scenarios", scenarios]
    with tempfile.TemporaryDirectory() as folder, servers(args.store) as env:
        run(["--install", "--peers", peers], env)
        out = str(Path(folder, "results.json"))
        for names, asked in ((slow, OF_SLOW), (quick, options)):
            if names:
                run(["--merge", "--peers", ",".join(names), "--out", out, *asked], env)
        text = run(["--table", out], env)
        results = json.loads(Path(out).read_text())
    how = (
        f"Medians of {args.repeat} repeats, {int(args.drain_n):,} jobs a drain; ratios to the fastest that "
        f"is no ceiling. {DURABILITY[args.store]}"
    )
    once = f" Once, and 2,000 jobs a drain: {', '.join(slow)}." if slow else ""
    parts = [how + once, text, losses(results), "How the workers are set up:\n\n" + settings(results)]
    body = "\n\n".join(part.strip() for part in parts if part)
    print(body)
    if not args.only_print:
        kind = ", plain functions" if args.functions else ""
        write_section(f"{TITLES[args.store]} beside its peers{kind}", body)


if __name__ == "__main__":
    main()
