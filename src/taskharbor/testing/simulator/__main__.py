"""python -m taskharbor.testing.simulator --seed 42 [--seeds 10] [--store sqlite] [--shrink]"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from taskharbor.testing.history.events import write_history
from taskharbor.testing.simulator import Outcome, Plan, plan_of, simulate, with_families
from taskharbor.testing.simulator.plan import FAMILIES, rude_plan_of
from taskharbor.testing.simulator.shrink import shrink
from taskharbor.testing.simulator.trace import trace_lines


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    failed = 0
    for seed in range(options.seed, options.seed + options.seeds):
        plan = (rude_plan_of if options.rude_workers else plan_of)(seed, options.store)
        outcome = simulate(with_families(plan) if options.families else plan)
        _print(f"seed {seed}: {_summary(outcome)}")
        if options.trace:
            _print("\n".join(trace_lines(outcome.history, options.job)))
        if options.history is not None:
            write_history(outcome.history, options.history)
        if not outcome.is_sound:
            failed += 1
            _report(outcome, shrinks=options.shrink)
    return 1 if failed else 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m taskharbor.testing.simulator", description=__doc__)
    parser.add_argument("--seed", type=int, required=True, help="the world to run")
    parser.add_argument("--seeds", type=int, default=1, help="how many, from that seed on")
    parser.add_argument("--store", choices=("memory", "sqlite"), default="memory")
    parser.add_argument(
        "--rude-workers", action="store_true", help="add many workers that call the store in random order"
    )
    parser.add_argument("--families", action="store_true", help="add workflows, and people who change them")
    parser.add_argument("--trace", action="store_true", help="print every event")
    parser.add_argument("--job", default="", help="of one job only")
    parser.add_argument("--history", type=Path, help="write the history into this file, one JSON per line")
    parser.add_argument("--shrink", action="store_true", help="look for the smallest world that still fails")
    return parser.parse_args(arguments)


def _report(outcome: Outcome, *, shrinks: bool) -> None:
    plan = outcome.plan
    if shrinks:
        outcome = shrink(outcome)
        _print(f"smallest: {_described(outcome.plan)}")
        _print("\n".join(outcome.kept))
    _print(str(outcome.verdict))
    for text in outcome.families:
        _print(text)
    for error in outcome.errors:
        _print(f"error: {error}")
    job = next((violation.job for violation in outcome.verdict.violations if violation.job), "")
    if job:
        _print(f"what happened to job {job}:")
        _print("\n".join(trace_lines(outcome.history, job)))
    how = " --rude-workers" if plan.rude_workers else ""
    how += " --families" if plan.has(FAMILIES) else ""
    _print(f"again: python -m taskharbor.testing.simulator --seed {plan.seed} --store {plan.store}{how}")


def _summary(outcome: Outcome) -> str:
    word = "sound" if outcome.is_sound else f"BROKEN {sorted(outcome.broken)}"
    verdict = outcome.verdict
    return (
        f"{word}; {outcome.calls} calls, {verdict.jobs} jobs, {verdict.runs} runs, "
        f"{len(outcome.faults)} faults, {outcome.seconds:.0f} simulated seconds, hash {outcome.hash[:16]}"
    )


def _described(plan: Plan) -> str:
    return (
        f"{plan.workers} workers, {plan.jobs} jobs, features {sorted(plan.features)}, "
        f"faults {sorted(plan.faults)}"
    )


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
