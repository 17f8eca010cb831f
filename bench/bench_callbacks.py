"""Does a callback fire once when workers are killed? Groups of 1,000 on every store, and by other queues.

    python bench/bench_callbacks.py [--store sqlite postgres valkey http cluster] [--runs 100]
    python bench/bench_callbacks.py --peers [celery rq …] [--runs 10]

In every run a worker is killed with `kill -9` while the children run, in every fifth the store is killed and
started again (where it is a file: all workers are killed); each child takes 5 ms.
A run is lost when nothing has happened for a minute, two for TaskHarbor, and its callback has not fired; or
when a queue that can say so has no job queued or held any more. Rows of stores and queues that are not run
again stay in RESULTS.md, each with its commit.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import flow_peers
from results import write_rows

from tests.chaos.callbacks import Size, Tally, tried
from tests.chaos.callbacks_app import CHILD_SECONDS
from tests.chaos.callbacks_ours import STORES, contestants

HEAD = ["queue", "runs", "fired", "lost", "twice", "again after their worker died", "children that never ran"]
HEAD += ["workers killed", "store restarted", "seconds a run", "settings"]
OUR_SETTINGS = "2 workers, -c 20, leases of 2 s, max_stalls=50"
SETTINGS = (
    "Groups of children of 5 ms each with a callback, durable servers. What counts is what was lost: the "
    "seconds depend on what else the machine did. Each row says when it was measured, at which load."
)


def row(name: str, tally: Tally, size: Size, settings: str) -> list[str]:
    counts = (tally.runs, tally.fired, len(tally.lost), len(tally.twice), tally.again, tally.missing)
    more = (tally.kills, tally.restarts)
    cells = [name, *(f"{count:,}" for count in (*counts, *more))]
    groups = f"groups of {size.children:,}, seed {size.seed}"
    cells += [f"{tally.seconds / max(tally.runs, 1):.1f}", f"{settings}; {groups}"]
    print(f"{name}: {tally}", flush=True)
    return cells


def ours(stores: list[str], size: Size) -> list[list[str]]:
    lines = []
    with contestants(stores) as some:
        for one in some:
            if one.has_workflows:
                lines.append(
                    row(f"TaskHarbor, {one.name}", asyncio.run(tried(one, size)), size, OUR_SETTINGS)
                )
            else:
                print(f"{one.name}: has no workflows")
    return lines


def theirs(names: list[str], size: Size) -> tuple[list[list[str]], list[str]]:
    """The rows, and the queues that could not be measured: what is recorded of those stays."""
    flow_peers.install(names)
    lines, failed = list[list[str]](), list[str]()
    for name in names:
        peer = flow_peers.Peer(name, CHILD_SECONDS)
        try:
            tally = asyncio.run(tried(peer, size))
        except AssertionError as error:
            failed.append(name)
            print(f"{name}: failed: {error}", flush=True)
        else:
            lines.append(row(name, tally, size, peer.settings))
    return lines, failed


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--store", nargs="+", choices=STORES, default=list(STORES))
    parser.add_argument(
        "--runs", type=int, help="100; 10 of other queues, which wait longer for a dead worker"
    )
    parser.add_argument("--children", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--peers", nargs="*", metavar="PEER", help="other queues instead; none named: all")
    parser.add_argument("--only-print", action="store_true", help="write no section of RESULTS.md")
    options = parser.parse_args()
    is_ours = options.peers is None
    size = Size(runs=options.runs or (100 if is_ours else 10), children=options.children, seed=options.seed)
    names = options.peers or list(flow_peers.PEERS)
    lines, failed = (ours(options.store, size), []) if is_ours else theirs(names, size)
    if lines and not options.only_print:
        title = "Callbacks while workers are killed" + ("" if is_ours else ", other queues")
        write_rows(title, SETTINGS, HEAD, lines)
    if failed:
        sys.exit(f"not measured: {', '.join(failed)}")


if __name__ == "__main__":
    main()
