"""A deep backlog beside the peers: who still drains fast when a million jobs wait?

Each peer fills its own tables by its own bulk verb and then runs its workers for a bounded time, one peer
after the other, so the whole takes minutes whatever the slowest can do. Those that are within half of the
fastest are asked again, in turn, so that a machine that is slow for a while is slow for each of them. See
peers/backlog.py, which runs in the environment of each.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from results import table

HERE = Path(__file__).resolve().parent
ALL = (
    "taskharbor-postgres,taskharbor-postgres-delete,ceiling-pg,pgqueuer,graphile-worker,pg-boss,procrastinate,"
    "chancy,oban,saq-postgres,dbos"
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
    rounds: int,
) -> str:
    """The table, one row per peer: medians of its rounds. Those that no time is left for are named."""
    sys.path.insert(0, str(harness))
    os.environ.update(env)
    import run as harness_of_peers  # type: ignore[import-not-found]  # known at run time only

    ends = time.monotonic() + minutes * 60
    registry = harness_of_peers.registry()
    answers: dict[str, list[dict[str, Any]]] = {name: [] for name in peers}
    remarks = []
    for turn in range(rounds):
        for name in peers if turn == 0 else contenders(answers):
            fill_seconds = min(240.0, ends - time.monotonic() - 2 * seconds - SPARE_SECONDS)
            if fill_seconds < 10:
                remarks.append(f"- {name}: round {turn + 1} not run, the {minutes:g} minutes were over")
                continue
            options = {"jobs": jobs, "most": most, "seconds": seconds, "fill-seconds": fill_seconds}
            limit = fill_seconds + 2 * seconds + SPARE_SECONDS
            answer = asked(registry[name], harness_of_peers, options, limit)
            print(name, json.dumps(answer), flush=True)
            answers[name].append(answer)
            remarks += [f"- {name}{what}" for what in trouble_in(answer)]
    rows = [row_of(name, of_peer) for name, of_peer in answers.items() if of_peer]
    if any("¹" in row[2] for row in rows):
        remarks.append("- ¹ the first jobs only: SQL copied them in the peer's tables up to the full backlog")
    return "\n".join([table(HEAD, rows), "", *remarks]).rstrip()


def contenders(answers: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Peers that one process of drained at least half as fast as the fastest did."""
    rates = {
        name: of_peer[0]["drains"][0]["jobs_s"]
        for name, of_peer in answers.items()
        if of_peer and of_peer[0].get("drains")
    }
    return [name for name, rate in rates.items() if rate >= max(rates.values()) / 2]


def trouble_in(answer: dict[str, Any]) -> list[str]:
    failed = [f": {answer['error'].strip().splitlines()[0][:160]}"] if "error" in answer else []
    return failed + [
        f", {drain['procs']} processes: {drain['runs']} runs of {drain['unique']} jobs"
        for drain in answer.get("drains", ())
        if drain["runs"] != drain["unique"]
    ]


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
    answers = [line for line in out.splitlines() if line.startswith("RESULT ")]
    answer: dict[str, Any] = (
        json.loads(answers[-1][len("RESULT ") :]) if answers else {"error": "no answer in time"}
    )
    return answer


HEAD = [
    "peer",
    "rounds",
    "filled /s",
    "drain 1 proc /s",
    "2 proc /s",
    "1 proc: CPU + waits, server µs",
    "2 proc",
]


def row_of(name: str, answers: list[dict[str, Any]]) -> list[str]:
    """Medians, and of the drains the slowest and the fastest where there was more than one round."""
    fills = [answer["fill_jobs_s"] for answer in answers if "fill_jobs_s" in answer]
    fill = f"{median(fills):,.0f}" if fills else "–"
    if any(answer.get("copied") for answer in answers):
        fill += " ¹"
    by_procs = list(zip(*(answer["drains"] for answer in answers if answer.get("drains")), strict=True))
    rates = [_spread([drain["jobs_s"] for drain in drains]) for drains in by_procs]
    costs = [cost_of(drains[0] | _medians(drains)) for drains in by_procs]
    return [name, str(len(answers)), fill, *(rates or ["–", "–"]), *(costs or ["–", "–"])]


def _medians(drains: Sequence[dict[str, Any]]) -> dict[str, float]:
    return {what: median(drain[what] for drain in drains) for what in ("jobs_s", "worker_us", "server_us")}


def _spread(rates: list[float]) -> str:
    middle = f"{median(rates):,.0f}"
    return middle if len(rates) == 1 else f"{middle} ({min(rates):,.0f}–{max(rates):,.0f})"


def cost_of(drain: dict[str, Any]) -> str:
    """What a worker process does while it runs one job: it works, or it waits; and what the server does."""
    each = 1e6 * drain["procs"] / drain["jobs_s"]
    waits = max(0.0, each - drain["worker_us"])
    return f"{drain['worker_us']:.1f} + {waits:.1f}, {drain['server_us']:.1f}"
