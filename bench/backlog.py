"""A deep backlog beside the peers: who still drains fast when a million jobs wait?

Each peer fills its own tables by its own bulk verb and then runs its workers for a bounded time, one peer
after the other, so the whole takes minutes whatever the slowest can do. See peers/backlog.py, which runs in
the environment of each.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from results import table

HERE = Path(__file__).resolve().parent
FASTEST = (
    "taskharbor-postgres,taskharbor-postgres-delete,ceiling-pg,pgqueuer,graphile-worker,pg-boss,procrastinate"
)
SPARE_SECONDS = 60.0  # of one peer, beside filling and draining: reset, ANALYZE, starting workers


def measured(
    peers: list[str],
    env: dict[str, str],
    harness: Path,
    *,
    jobs: int,
    most: int,
    seconds: float,
    minutes: float,
) -> str:
    """The table, one row per peer; those that no time is left for are named."""
    sys.path.insert(0, str(harness))
    os.environ.update(env)
    import run as harness_of_peers  # type: ignore[import-not-found]  # known at run time only

    ends = time.monotonic() + minutes * 60
    registry = harness_of_peers.registry()
    rows, told = [], []
    for name in peers:
        fill_seconds = min(240.0, ends - time.monotonic() - 2 * seconds - SPARE_SECONDS)
        if fill_seconds < 10:
            told.append(f"- {name}: not run, the {minutes:g} minutes were over")
            continue
        options = {"jobs": jobs, "most": most, "seconds": seconds, "fill-seconds": fill_seconds}
        answer = asked(registry[name], harness_of_peers, options, fill_seconds + 2 * seconds + SPARE_SECONDS)
        print(name, json.dumps(answer), flush=True)
        rows.append(row_of(name, answer))
        if "error" in answer:
            told.append(f"- {name}: {answer['error'].strip().splitlines()[0][:160]}")
        told += [
            f"- {name}, {drain['procs']} processes: {drain['runs']} runs of {drain['unique']} jobs"
            for drain in answer.get("drains", ())
            if drain["runs"] != drain["unique"]
        ]
    return "\n".join([table(HEAD, rows), "", *told]).rstrip()


def asked(peer: dict[str, Any], harness: Any, options: dict[str, float], limit: float) -> dict[str, Any]:
    """What peers/backlog.py says in the environment of this peer."""
    adapters = str(harness.ROOT / "adapters")
    paths = [adapters, os.path.expandvars(peer.get("dir", adapters))]
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "BENCH_NODE_HOME": str(harness.PEERS_HOME / "node"),
        **peer.get("env", {}),
    }
    flags = [
        f"--{name}={value:g}" if isinstance(value, float) else f"--{name}={value}"
        for name, value in options.items()
    ]
    command = [harness.python_of(peer), str(HERE / "peers" / "backlog.py"), peer["adapter"], *flags]
    with subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as child:
        try:
            out, _ = child.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGINT)  # it stops its workers on the way out
            out, _ = child.communicate()
    said = [line for line in out.splitlines() if line.startswith("RESULT ")]
    answer: dict[str, Any] = (
        json.loads(said[-1][len("RESULT ") :]) if said else {"error": "no answer in time"}
    )
    return answer


HEAD = ["peer", "filled /s", "drain 1 proc /s", "2 proc /s", "1 proc: CPU + waits, server µs", "2 proc"]


def row_of(name: str, answer: dict[str, Any]) -> list[str]:
    fill = f"{answer['fill_jobs_s']:,.0f} ({answer['fill_s']:.0f} s)" if "fill_s" in answer else "–"
    drains = answer.get("drains", [])
    rates = [f"{drain['jobs_s']:,.0f}" for drain in drains]
    return [name, fill, *(rates or ["–", "–"]), *([cost_of(drain) for drain in drains] or ["–", "–"])]


def cost_of(drain: dict[str, Any]) -> str:
    """What a worker process does while it runs one job: it works, or it waits; and what the server does."""
    each = 1e6 * drain["procs"] / drain["jobs_s"]
    waits = max(0.0, each - drain["worker_us"])
    return f"{drain['worker_us']:.1f} + {waits:.1f}, {drain['server_us']:.1f}"
