"""`make chaos`: run the chaos cases on real stores, print what happened, and write the results page.

    python -m tests.chaos                          every case on every store
    python -m tests.chaos --case C34 --store postgres --seed 7
    python -m tests.chaos --skip C63               all but these
    python -m tests.chaos --smoke                  the small ones, as in the tests
    python -m tests.chaos --one-by-one             nothing beside anything else: twice as long
    python -m tests.chaos --resume                 what the last run did not reach, or did not pass

Without `--seed` each case gets a new one; it is printed, and replays the same schedule of faults. The page
is written after every case, so a run that is broken off leaves what it has seen, and `--resume` goes on
from there: with `make`, `make chaos ARGS=--resume`.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Callable

from tests.chaos import cases  # noqa: F401 - the cases enter themselves
from tests.chaos.case import CASES, Case
from tests.chaos.kept import keep, seen_before
from tests.chaos.report import write_page
from tests.chaos.runner import Run, run_all, turns_of
from tests.chaos.stores import KINDS, available
from tests.chaos.world import FULL_SECONDS, SMOKE, full

BROKEN_OFF = 130


def main() -> int:
    options = _options()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # or its workers would outlive it
    size = SMOKE if options.smoke else full(options.seconds)
    run = Run(size, seed=options.seed, beside=not options.one_by_one, most_minutes=options.minutes)
    there = [name for name in available() if name in (options.store or KINDS)]
    chosen = [name for name in options.case or sorted(CASES) if name not in (options.skip or ())]
    turns = turns_of(chosen, there)
    if options.resume:
        turns = _go_on(run, turns)
    try:
        asyncio.run(run_all(run, turns, _after_each(options)))
    except KeyboardInterrupt:
        _print_totals(run)
        sys.stdout.write("broken off; --resume goes on from here\n")
        return BROKEN_OFF
    return _print_totals(run)


def _go_on(run: Run, turns: list[tuple[Case, str]]) -> list[tuple[Case, str]]:
    """Take over what was good; the rest is run again."""
    before = seen_before(run.size)
    run.minutes_before = before.minutes
    run.outcomes = [one for one in before.outcomes() if one.is_good]
    done = {(one.case.id, one.store) for one in run.outcomes}
    return [(one, store) for one, store in turns if (one.id, store) not in done]


def _print_totals(run: Run) -> int:
    counts = {
        "passed": sum(one.is_good for one in run.outcomes),
        "failed": sum(one.is_broken for one in run.outcomes),
        "late": sum(one.is_only_late for one in run.outcomes),
        "not to be run here": sum(bool(one.not_here) for one in run.outcomes),
        "still to come": run.turns - len(run.outcomes),
    }
    always = ("passed", "failed", "late")
    totals = ", ".join(f"{count} {what}" for what, count in counts.items() if count or what in always)
    sys.stdout.write(f"{totals}; {run.minutes:.1f} min\n")
    return 1 if counts["failed"] or counts["late"] or counts["still to come"] else 0


def _after_each(options: argparse.Namespace) -> Callable[[Run], None]:
    """A run to look at one thing neither writes the page nor forgets what a whole one has seen."""
    return _write if options.write else _keep if options.resume else _leave


def _leave(run: Run) -> None:
    """Nothing to be written."""


def _write(run: Run) -> None:
    """After each: a run that is broken off leaves what it has seen."""
    _keep(run)
    minutes = run.minutes_before + run.minutes
    write_page(run.sorted_outcomes(), run.size, planned=run.turns, minutes=minutes)


def _keep(run: Run) -> None:
    """For the run that continues from here."""
    keep(run.sorted_outcomes(), run.size, run.minutes_before + run.minutes)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description="Chaos on real stores.")
    parser.add_argument("--case", "--only", action="append", choices=sorted(CASES), help="only these")
    parser.add_argument("--skip", action="append", choices=sorted(CASES), help="all but these")
    parser.add_argument("--store", action="append", choices=sorted(KINDS), help="only these")
    parser.add_argument("--seed", type=int, help="the same faults at the same moments as a run before")
    parser.add_argument(
        "--seconds", type=float, default=FULL_SECONDS, help=f"load of each case ({FULL_SECONDS:g})"
    )
    parser.add_argument("--minutes", type=float, help="begin no case after so many; --resume runs the rest")
    parser.add_argument("--smoke", action="store_true", help="few jobs, short leases, one fault each")
    parser.add_argument("--one-by-one", action="store_true", help="no store beside another")
    parser.add_argument("--resume", action="store_true", help="go on from where the last run ended")
    parser.add_argument("--write", action="store_true", help="write docs/operations/chaos-results.md")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
