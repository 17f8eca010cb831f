"""Does a worker of very many queues pick jobs up as soon as one of few?

    python bench/bench_queues.py [--store postgres sqlite redis] [--queues 10 2000] [--jobs 200] [--rounds 3]
                                 [--only-print]

One idle worker serves all queues. One job at a time goes into a queue by chance, 20 ms after the last one
has run. Milliseconds from just before the enqueue to the first line of the handler. Numbers of queues take
turns; medians of the rounds. The aim is at most twice the time of ten queues. For a short look: --jobs 50
--rounds 1 --only-print.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import time

from results import table, write_section
from stores import DURABILITY, STORES, Store, opened

from taskharbor import Harbor

PAUSE = 0.02


async def measured(store: Store, queues: int, jobs: int) -> list[float]:
    """The times of all pick-ups, in seconds."""
    harbor = Harbor(store.url)
    started: asyncio.Queue[float] = asyncio.Queue()

    @harbor.task
    async def nothing() -> None:
        started.put_nowait(time.perf_counter())

    names = [f"queue-{number}" for number in range(queues)]
    worker = harbor.worker(queues=names, scheduler=False)
    working = asyncio.create_task(worker.arun())
    chance, times = random.Random(1), []
    for number in range(jobs + 10):
        began = time.perf_counter()
        await nothing.using(queue=chance.choice(names)).aenqueue()
        times.append(await started.get() - began)
        await asyncio.sleep(PAUSE if number else 1.0)
    worker.stop()
    await working
    await harbor.aclose()
    return times[10:]  # the first ones open connections and fill caches


def row(name: str, queues: int, rounds: list[list[float]]) -> list[str]:
    shares = [[f"{1000 * cut:.2f}" for cut in _cuts(times)] for times in rounds]
    middle = sorted(shares, key=lambda cuts: float(cuts[0]))[len(shares) // 2]
    return [name, f"{queues:,}", *middle]


def _cuts(times: list[float]) -> tuple[float, float, float]:
    cuts = statistics.quantiles(times, n=100)
    return cuts[49], cuts[89], cuts[98]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--store", nargs="+", choices=STORES, default=["postgres", "sqlite", "redis"])
    parser.add_argument("--queues", nargs="+", type=int, default=[10, 2000])
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only-print", action="store_true", help="write no section of RESULTS.md")
    args = parser.parse_args()
    rows = []
    for name in args.store:
        rounds: dict[int, list[list[float]]] = {queues: [] for queues in args.queues}
        with opened(name) as empty:
            for _ in range(args.rounds):
                for queues, times in rounds.items():
                    with empty() as store:
                        times.append(asyncio.run(measured(store, queues, args.jobs)))
        rows += [row(name, queues, times) for queues, times in rounds.items()]
    text = table(["store", "queues of the worker", "p50, ms", "p90, ms", "p99, ms"], rows)
    body = (
        f"One idle worker, {args.jobs} jobs one by one, each into a queue by chance. From just before the "
        f"enqueue to the first line of the handler; the median of {args.rounds} rounds by p50. "
        f"{' '.join(DURABILITY[name] for name in args.store)}\n\n{text}"
    )
    print(body)
    if not args.only_print:
        write_section("Pick-up by a worker of many queues", body)


if __name__ == "__main__":
    main()
