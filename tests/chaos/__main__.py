"""`make chaos`: run the chaos cases on real stores, tell what happened, and write the results page.

    python -m tests.chaos                          every case on every store
    python -m tests.chaos --case C34 --store postgres --seed 7
    python -m tests.chaos --smoke                  the small ones, as in the tests
    python -m tests.chaos --one-by-one             nothing beside anything else: twice as long

Without `--seed` each case gets a new one; it is printed, and replays the same schedule of faults.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys

from tests.chaos import cases  # noqa: F401 - the cases enter themselves
from tests.chaos.case import CASES
from tests.chaos.report import write_page
from tests.chaos.runner import Run, run_all, turns_of
from tests.chaos.stores import KINDS, available
from tests.chaos.world import FULL_SECONDS, SMOKE, full


def main() -> int:
    options = _options()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # or its workers would outlive it
    size = SMOKE if options.smoke else full(options.seconds)
    run = Run(size, seed=options.seed, beside=not options.one_by_one)
    there = [name for name in available() if name in (options.store or KINDS)]
    turns = turns_of(options.case or sorted(CASES), there)
    asyncio.run(run_all(run, turns, _write if options.write else _keep))
    counts = {
        "passed": sum(one.is_good for one in run.outcomes),
        "failed": sum(one.is_broken for one in run.outcomes),
        "late": sum(one.is_only_late for one in run.outcomes),
        "not to be run here": sum(bool(one.not_here) for one in run.outcomes),
    }
    told = ", ".join(
        f"{count} {what}" for what, count in counts.items() if count or what != "not to be run here"
    )
    sys.stdout.write(f"{told}; {run.minutes:.1f} min\n")
    return 1 if counts["failed"] or counts["late"] else 0


def _write(run: Run) -> None:
    """After each: a run that is broken off leaves what it has seen."""
    write_page(run.sorted_outcomes(), run.size, planned=run.turns, minutes=run.minutes)


def _keep(run: Run) -> None:
    """Nothing to be written."""


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description="Chaos on real stores.")
    parser.add_argument("--case", action="append", choices=sorted(CASES), help="only these")
    parser.add_argument("--store", action="append", choices=sorted(KINDS), help="only these")
    parser.add_argument("--seed", type=int, help="the same faults at the same moments as a run before")
    parser.add_argument(
        "--seconds", type=float, default=FULL_SECONDS, help=f"load of each case ({FULL_SECONDS:g})"
    )
    parser.add_argument("--smoke", action="store_true", help="few jobs, short leases, one fault each")
    parser.add_argument("--one-by-one", action="store_true", help="no store beside another")
    parser.add_argument("--write", action="store_true", help="write docs/operations/chaos-results.md")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
