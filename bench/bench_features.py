"""Keyed and prioritised jobs beside the queues that have such jobs, on the same store, in one run.

    python bench/bench_features.py [--store postgres redis sqlite] [--jobs 20000] [--repeat 3] [--only-print]

Every job has a key of its own, or one of five priorities, mixed. Bulk: a thousand jobs a call, where the
queue has such a verb. Drain: one worker process, then two. The peers and their settings are those of
bench_peers.py, which says where their harness is. For a short look: --jobs 1000 --repeat 1 --only-print.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from bench_peers import DURABILITY, PEERS, TITLES, losses, run, servers
from results import table, write_section

BESIDE = {
    ("postgres", "keyed"): "taskharbor-postgres,graphile-options,pgqueuer-options",
    ("postgres", "prioritised"): "taskharbor-postgres,graphile-options,pgqueuer-options",
    ("redis", "keyed"): "taskharbor-redis,bullmq-options",
    ("redis", "prioritised"): "taskharbor-redis,bullmq-options,huey-redis-options",
    ("sqlite", "prioritised"): "taskharbor-sqlite,huey-sqlite-options",
}
SCENARIOS = ("bulk", "drain1", "drain2")


def measured(store: str, kind: str, jobs: int, repeat: int) -> dict[str, Any]:
    """What the harness of the peers found."""
    peers = ["--peers", BESIDE[store, kind]]
    with tempfile.TemporaryDirectory() as folder, servers(store) as env:
        out = Path(folder, "results.json")
        run(["--install", *peers], env)
        options = ["--repeat", str(repeat), "--drain-n", str(jobs), "--scenarios", ",".join(SCENARIOS)]
        run([*peers, *options, "--out", str(out)], {**env, "BENCH_JOBS": kind})
        return json.loads(out.read_text())


def rows_of(kind: str, results: dict[str, Any]) -> list[list[str]]:
    """One row a queue, ours first, with the factor by which ours is ahead."""
    found = {
        peer: [scenarios.get(name, {}).get("jobs_s") for name in SCENARIOS]
        for peer, scenarios in results["median"].items()
    }
    ours = next(rates for peer, rates in found.items() if peer.startswith("taskharbor"))
    return [
        [
            f"{peer.removesuffix('-options')} {results['info'][peer].get('version', '')}",
            kind,
            *(_cell(rate, beside) for rate, beside in zip(rates, ours, strict=True)),
        ]
        for peer, rates in found.items()
    ]


def _cell(rate: float | None, ours: float | None) -> str:
    return f"{rate:,.0f} ({ours / rate:.1f}×)" if rate and ours else "–"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--store", nargs="+", choices=TITLES, default=["postgres", "redis", "sqlite"])
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only-print", action="store_true", help="write no section of RESULTS.md")
    options = parser.parse_args()
    if not (PEERS / "run.py").exists():
        print(f"no peers to compare with: {PEERS} is not there (set BENCH_PEERS)")
        return
    for store in options.store:
        rows, configs, lost = [], {}, []
        for kind in (kind for of, kind in BESIDE if of == store):
            results = measured(store, kind, options.jobs, options.repeat)
            rows += rows_of(kind, results)
            lost.append(losses(results))
            configs |= {peer: about.get("config", "") for peer, about in results["info"].items()}
        head = ["queue", "jobs", "bulk /s", "drain 1 proc /s", "drain 2 proc /s"]
        how = (
            f"{options.jobs:,} jobs a drain, medians of {options.repeat} repeats; in brackets TaskHarbor's "
            f"rate divided by this one. {DURABILITY[store]}"
        )
        set_up = "\n".join(f"- {peer}: {config}" for peer, config in configs.items())
        parts = [how, table(head, rows), "\n".join(filter(None, lost)), set_up]
        body = "\n\n".join(part for part in parts if part)
        print(body, flush=True)
        if not options.only_print:
            write_section(f"Keyed and prioritised jobs beside other queues, {TITLES[store]}", body)


if __name__ == "__main__":
    main()
