"""What does a worker with no options reach, and what do threads and processes cost?

    python bench/bench_handlers.py [--store sqlite postgres redis http] [--jobs 10000] [--rounds 3]
                                   [--only-print]

Handlers that do nothing: coroutines, plain functions (threads), `run_in="process"`; and coroutines that wait
a millisecond. Each with no options and with a number of slots that suits it better; one worker process, on a
full queue, completed jobs kept. The CPU of handler processes is in that of the worker. Settings of one
kind take turns; medians of the rounds. The aim is 80 % of the best for coroutines that do nothing. For a
short look: --jobs 1000 --rounds 1 --only-print.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
from dataclasses import dataclass
from statistics import median

from cpu import Spent, Stopwatch
from handlers_app import harbor_at
from results import table, write_section
from stores import DURABILITY, STORES, Store, opened

BATCH = 1000


@dataclass(frozen=True)
class Kind:
    task: str
    slots: tuple[int | None, ...]
    share: int = 1
    """Jobs: that of --jobs, times this. Ten processes start in a second, which must not be most of a run."""


KINDS = {
    "coroutine": Kind("coroutine", (None, 100, 400)),
    "coroutine that waits 1 ms": Kind("waits", (None, 100)),
    "plain function in a thread": Kind("function", (None, 100)),
    "function in a process": Kind("process", (None, 2), share=3),
}

# ------------------------------------------------------------------ the worker's own process


def drain(url: str, slots: int | None) -> None:
    """Do everything there is, and print what it took: seconds by the clock, and of CPU."""
    harbor = harbor_at(url)
    options = {} if slots is None else {"concurrency": slots}
    worker = harbor.worker(scheduler=False, **options)
    watch = Stopwatch()
    worker.run(until_idle=True)
    spent = watch.spent()
    print(spent.seconds, spent.own, flush=True)


# ------------------------------------------------------------------ a run


async def _fill(url: str, task: str, jobs: int) -> None:
    harbor = harbor_at(url)
    async with harbor:
        chosen = harbor.tasks.find(task)
        for start in range(0, jobs, BATCH):
            some = range(start, min(start + BATCH, jobs))
            await harbor.aenqueue_many([chosen.call(number, "x" * 52) for number in some])


def one_run(store: Store, kind: Kind, slots: int | None, jobs: int) -> Spent:
    asyncio.run(_fill(store.url, kind.task, jobs))
    command = [sys.executable, __file__, "--drain", store.url, "--slots", str(slots or 0)]
    watch = Stopwatch(store.servers)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    seconds, own = map(float, done.stdout.split())
    return Spent(seconds, own, watch.spent().servers)


def measure(name: str, options: argparse.Namespace) -> list[list[str]]:
    rows = []
    with opened(name) as fresh:
        for title, kind in KINDS.items():
            jobs = options.jobs * kind.share
            found: dict[int | None, list[tuple[float, ...]]] = {slots: [] for slots in kind.slots}
            for _ in range(options.rounds):
                for slots in kind.slots:
                    with fresh() as store:
                        spent = one_run(store, kind, slots, jobs)
                    found[slots].append((jobs / spent.seconds, *spent.micros(jobs)))
            medians = {
                slots: [median(column) for column in zip(*all_, strict=True)] for slots, all_ in found.items()
            }
            best = max(rate for rate, _, _ in medians.values())
            least = min(own + servers for _, own, servers in medians.values())
            for slots, (rate, own, servers) in medians.items():
                rows.append(
                    [
                        f"{name}, {title}",
                        "no options" if slots is None else f"-c {slots}",
                        f"{rate:,.0f}",
                        f"{own:.1f} + {servers:.1f}",
                        f"{rate / best:.0%}, {least / (own + servers):.0%}",
                    ]
                )
                print("  ".join(rows[-1]), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--store", nargs="+", choices=STORES, default=STORES)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only-print", action="store_true", help="write no section of RESULTS.md")
    parser.add_argument("--drain", help=argparse.SUPPRESS)
    parser.add_argument("--slots", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.drain:
        drain(options.drain, options.slots or None)
        return
    rows = [row for name in options.store for row in measure(name, options)]
    text = table(["handler", "worker", "per second", "CPU µs + server", "of the best, by CPU"], rows)
    print(text)
    if not options.only_print:
        how = (
            f"{options.jobs:,} jobs (three times as many in processes, whose start counts), "
            f"medians of {options.rounds} rounds in turns. "
            + " ".join(DURABILITY[name] for name in options.store)
        )
        write_section("Workers with no options, threads and processes", f"{how}\n\n{text}")


if __name__ == "__main__":
    main()
