"""Drain the beginning of a deep backlog with one adapter. Runs in the environment of that adapter.

    python backlog.py MODULE --jobs 1000000 --most 200000 --seconds 15 --fill-seconds 240

The backlog is made by the adapter's own bulk verb (for peers that take too long for that, by copies.py),
followed by ANALYZE, as a table that lives that long has had one. Then one worker process, then two, each
until it has run `--most` jobs or for `--seconds` from its first job on. Prints one line `RESULT {json}`.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import signal
import time
from collections.abc import Iterator

import _base
from copies import COPIES


@contextlib.contextmanager
def within(seconds: float, what: str) -> Iterator[None]:
    """Give up after that long, wherever it is."""

    def too_late(*_: object) -> None:
        raise TimeoutError(f"{what} took more than {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, too_late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def filled(adapter: _base.Adapter, module: str, jobs: int, seconds: float) -> dict:
    with within(seconds, f"{jobs:,} jobs by the bulk verb"):
        adapter.reset()
        first, copying = COPIES.get(module, (jobs, None))
        start = time.monotonic()
        adapter.preload(min(first, jobs))
        took = time.monotonic() - start
        if copying is not None and jobs > first:
            _base.psql(copying.replace("$first", str(first)).replace("$times", str(-(-jobs // first) - 1)))
    _base.psql("analyze")
    return {"fill_s": round(took, 1), "fill_jobs_s": min(first, jobs) / took, "copied": max(0, jobs - first)}


def drained(adapter: _base.Adapter, procs: int, most: int, seconds: float) -> dict:
    """Jobs started per second, from the first on; CPU of workers and server in the same time."""
    log = _base.Log()
    workers = _base.Workers(adapter.worker_cmds(procs))
    try:
        _base.wait_hits(log, workers, 1, 60)
        pids = [pid for process in workers.procs for pid in _base.tree(process.pid)]
        servers = _base.server_pids(adapter.backend)
        before = log.count(), _base.cpu_seconds(pids), _base.cpu_seconds(servers)
        ends = time.monotonic() + seconds
        while log.count() < most and time.monotonic() < ends:
            workers.check()
            time.sleep(0.005)
        after = log.count(), _base.cpu_seconds(pids), _base.cpu_seconds(_base.server_pids(adapter.backend))
        rows = log.rows()[: after[0]]
    finally:
        workers.stop()
        log.remove()
    at = [now for _, _, now in rows]
    count = max(1, after[0] - before[0])
    return {
        "procs": procs,
        "runs": len(rows),
        "unique": len({seq for seq, _, _ in rows}),
        "jobs_s": (len(rows) - 1) / max(1e-9, (max(at) - min(at)) / 1e9),
        "worker_us": round((after[1] - before[1]) / count * 1e6, 1),
        "server_us": round((after[2] - before[2]) / count * 1e6, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("module")
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--most", type=int, default=200_000)
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--fill-seconds", type=float, default=240)
    args = parser.parse_args()
    adapter: _base.Adapter = importlib.import_module(args.module).ADAPTER
    answer: dict = {}
    try:
        answer |= filled(adapter, args.module, args.jobs, args.fill_seconds)
        answer["drains"] = [drained(adapter, procs, args.most, args.seconds) for procs in (1, 2)]
    except Exception as error:  # noqa: BLE001 - what a peer cannot do is part of the result
        answer["error"] = f"{type(error).__name__}: {error}"[:1500]
    print("RESULT " + json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
