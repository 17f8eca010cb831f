"""`make chaos`: run the chaos cases on real stores, tell what happened, and write the results page.

    python -m tests.chaos                          every case on every store, then the page
    python -m tests.chaos --case C34 --store postgres --seed 7
    python -m tests.chaos --smoke                  the small ones, as in the tests

Without `--seed` each case gets a new one; it is printed, and replays the same schedule of faults.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import time

from tests.chaos import cases  # noqa: F401 - the cases enter themselves
from tests.chaos.case import CASES, Outcome, run_case
from tests.chaos.report import describe, write_page
from tests.chaos.stores import KINDS, Stores, available
from tests.chaos.world import FULL_SECONDS, SMOKE, Size, full


def main() -> int:
    options = _options()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # or its workers would outlive it
    size = SMOKE if options.smoke else full(options.seconds)
    outcomes = asyncio.run(_run(options, size))
    good = sum(outcome.is_good for outcome in outcomes)
    sys.stdout.write(f"{good} passed, {len(outcomes) - good} failed\n")
    return 0 if good == len(outcomes) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description="Chaos on real stores.")
    parser.add_argument("--case", action="append", choices=sorted(CASES), help="only these")
    parser.add_argument("--store", action="append", choices=sorted(KINDS), help="only these")
    parser.add_argument("--seed", type=int, help="the same faults at the same moments as a run before")
    parser.add_argument("--seconds", type=float, default=FULL_SECONDS, help="load of each case (60)")
    parser.add_argument("--smoke", action="store_true", help="few jobs, short leases, one fault each")
    parser.add_argument("--write", action="store_true", help="write docs/operations/chaos-results.md")
    return parser.parse_args()


async def _run(options: argparse.Namespace, size: Size) -> list[Outcome]:
    outcomes = []
    there = [name for name in available() if name in (options.store or KINDS)]
    with Stores() as stores:
        for number in options.case or sorted(CASES):
            one = CASES[number]
            for store in [name for name in one.stores if name in there]:
                seed = time.time_ns() % 1_000_000 if options.seed is None else options.seed
                outcome = await run_case(one, stores, store, size, seed)
                sys.stdout.write(describe(outcome))
                sys.stdout.flush()
                outcomes.append(outcome)
                if options.write:  # after each: a run that is broken off leaves what it has seen
                    write_page(outcomes, size)
    return outcomes


if __name__ == "__main__":
    sys.exit(main())
