"""This checkout beside an earlier commit, in turns: did anything become slower?

    python bench/bench_before.py [--commit ad11b1c] [--store sqlite postgres redis] [--rounds 7]

That commit is the last one before the tables of SQLite and Postgres were given their present layout. It is
checked out for the time of the run. Each round is a process of its own, with the packages of this
environment, the sources of one commit, and an empty, durable store. Handlers do nothing. Medians of the
rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from cpu import Stopwatch

HERE = Path(__file__).resolve().parent
BEFORE_THE_LAYOUT = "ad11b1c"
STORES = ("sqlite", "postgres", "redis")
HEAD = [
    "what",
    "before, a second",
    "now, a second",
    "now / before",
    "CPU before, µs",
    "CPU now, µs",
    "now / before",
]
SINGLES = 1500
PICK_UPS = 200
Figures = dict[str, tuple[float, float]]
"""How often a second, and µs of CPU of this process and the servers."""


def main() -> None:
    from results import table, write_section
    from stores import DURABILITY, opened

    options = _options()
    with _checked_out(options.commit) as before:
        for store in options.store:
            found: dict[str, list[Figures]] = {"before": [], "now": []}
            with opened(store, is_migrated=False) as opening:
                for number in range(options.rounds):
                    for which in ("before", "now") if number % 2 else ("now", "before"):
                        with opening() as place:
                            tree = before if which == "before" else HERE.parent
                            found[which].append(_round(tree, place.url, place.servers, options.jobs))
                    print(f"{store}: round {number + 1} of {options.rounds}", flush=True)
            body = table(HEAD, _rows(found))
            print(body, flush=True)
            if not options.only_print:
                write_section(
                    f"Before and after, {store}", f"{_settings(options, store, DURABILITY)}\n\n{body}"
                )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--commit", default=BEFORE_THE_LAYOUT)
    parser.add_argument("--store", nargs="+", choices=STORES, default=STORES)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--jobs", type=int, default=40_000)
    parser.add_argument("--only-print", action="store_true", help="write no section of RESULTS.md")
    return parser.parse_args()


@contextlib.contextmanager
def _checked_out(commit: str) -> Iterator[Path]:
    """A work tree of that commit."""
    git = ["git", "-C", str(HERE.parent), "worktree"]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([*git, "add", "--quiet", "--detach", f"{folder}/tree", commit], check=True)
        try:
            yield Path(folder, "tree")
        finally:
            subprocess.run([*git, "remove", "--force", f"{folder}/tree"], check=True)


def _settings(options: argparse.Namespace, store: str, durability: dict[str, str]) -> str:
    return (
        f"Commit {options.commit} and this one: {options.rounds} rounds of {options.jobs:,} jobs in turns, "
        f"medians. {durability[store]} Jobs carry 52 characters and are stored a thousand a call; completed "
        "ones are kept. One worker drains them; `-c` is its `concurrency`. Drains with `-c 10`, of plain "
        "functions and of keyed jobs are half as long. CPU of worker and servers, per job. "
        f"Load {os.getloadavg()[0]:.1f} at the end."
    )


def _rows(found: dict[str, list[Figures]]) -> list[list[str]]:
    rows = []
    for name in found["now"][0]:
        was, spent = _medians(found["before"], name)
        now, spends = _medians(found["now"], name)
        rates = [f"{was:,.0f}", f"{now:,.0f}", f"{now / was:.0%}"]
        rows.append([name, *rates, f"{spent:.1f}", f"{spends:.1f}", f"{spends / spent:.0%}"])
    return rows


def _medians(found: list[Figures], name: str) -> list[float]:
    return [statistics.median(values) for values in zip(*(one[name] for one in found), strict=True)]


def _round(tree: Path, url: str, servers: tuple[int, ...], jobs: int) -> Figures:
    env = {**os.environ, "PYTHONPATH": str(tree / "src")}
    words = [str(HERE / "bench_before.py"), "measure", url, str(jobs), *map(str, servers)]
    done = subprocess.run([sys.executable, *words], env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{tree}: {done.stderr[-2000:]}")
    answer: Figures = json.loads(done.stdout.splitlines()[-1])
    return answer


# ------------------------------------------------------------------ in the process of a round


def measured(url: str, jobs: int, servers: list[int]) -> Figures:
    found: Figures = {}
    if url.startswith("postgres"):
        _migrate(url)
    asyncio.run(_measured_queues(url, jobs, servers, found))
    _measure_blocking(url, servers, found)
    return found


def _migrate(url: str) -> None:
    """By the sources of this round."""
    command = [sys.executable, "-m", "taskharbor", "migrate", "up", "--url", url]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


async def _measured_queues(url: str, jobs: int, servers: list[int], found: Figures) -> None:
    from taskharbor import Harbor

    harbor = Harbor(url)
    started = asyncio.Queue[float]()

    @harbor.task
    async def noop(number: int, pad: str) -> None:
        return None

    @harbor.task
    def plain(number: int, pad: str) -> None:
        return None

    @harbor.task
    async def report(number: int) -> None:
        started.put_nowait(time.perf_counter())

    def calls(task: Any, count: int, *, keyed: bool = False) -> list[Any]:
        named = [task.using(key=f"{count}-{number}") if keyed else task for number in range(count)]
        return [one.call(number, "x" * 52) for number, one in enumerate(named)]

    async def store(some: list[Any]) -> None:
        for start in range(0, len(some), 1000):
            await harbor.aenqueue_many(some[start : start + 1000])

    async def drain(concurrency: int) -> None:
        await harbor.worker(concurrency=concurrency, scheduler=False).arun(until_idle=True)

    async def timed(name: str, count: int, work: Callable[[], Awaitable[None]]) -> None:
        gc.collect()
        watch = Stopwatch(servers)
        await work()
        spent = watch.spent()
        found[name] = count / spent.seconds, spent.cpu / count * 1e6

    async with harbor:
        await store(calls(noop, 2000))
        await drain(400)
        half = jobs // 2
        many, keyed = calls(noop, jobs), calls(noop, half, keyed=True)
        await timed("bulk", jobs, lambda: store(many))
        await timed("drain, -c 400", jobs, lambda: drain(400))
        await store(calls(noop, half))
        await timed("drain, -c 10", half, lambda: drain(10))
        await store(calls(plain, half))
        await timed("drain of plain functions, -c 100", half, lambda: drain(100))
        await timed("bulk, all have a key", half, lambda: store(keyed))
        await timed("drain, all have a key, -c 400", half, lambda: drain(400))

        async def singles() -> None:
            for number in range(SINGLES):
                await noop.aenqueue(number, "x" * 52)

        await timed("one by one, from a coroutine", SINGLES, singles)
        await drain(400)
        await _picked_up(harbor, report, started, servers, found)


async def _picked_up(
    harbor: Any, task: Any, started: asyncio.Queue[float], servers: list[int], found: Figures
) -> None:
    """From the call to the handler, one job after the other, by an idle worker."""
    worker = harbor.worker(concurrency=10, scheduler=False)
    running = asyncio.ensure_future(worker.arun())
    took = []
    for number in range(PICK_UPS + 20):
        await asyncio.sleep(0.01)
        if number == 20:
            watch = Stopwatch(servers)
        before = time.perf_counter()
        await task.aenqueue(number)
        took.append(await started.get() - before)
    spent = watch.spent()
    found["pick-up, 1 / p50"] = 1 / statistics.median(took[20:]), spent.cpu / PICK_UPS * 1e6
    worker.stop()
    await running


def _measure_blocking(url: str, servers: list[int], found: Figures) -> None:
    from taskharbor import Harbor

    harbor = Harbor(url)

    @harbor.task
    async def noop(number: int, pad: str) -> None:
        return None

    with harbor:
        for number in range(200):
            noop.enqueue(number, "x" * 52)
        watch = Stopwatch(servers)
        for number in range(SINGLES):
            noop.enqueue(number, "x" * 52)
        spent = watch.spent()
    found["one by one, blocking"] = SINGLES / spent.seconds, spent.cpu / SINGLES * 1e6


if __name__ == "__main__":
    if sys.argv[1:2] == ["measure"]:
        print(json.dumps(measured(sys.argv[2], int(sys.argv[3]), [int(pid) for pid in sys.argv[4:]])))
    else:
        main()
