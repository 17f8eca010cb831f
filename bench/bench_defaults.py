"""Do the defaults harm anything? Workers with no options beside `-c 10 --prefetch 0`.

    python bench/bench_defaults.py [--store sqlite postgres redis] [--rounds 2] [--only-print]

A worker with no options claims short jobs ahead of its free slots; with `prefetch=0` it does not. Two workers
share jobs that wait, that block a thread, that compute, and short ones with long ones among them: how long
that takes, and the smaller worker's share of the jobs. One worker: how long a job of high priority waits
behind short ones, and memory with payloads of 50 KB. Then `kill -9` among jobs of a millisecond, with leases
of 2 s: jobs left leased, jobs that began twice, and seconds until all are done.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from defaults_app import harbor_at, starts
from results import table, write_section
from stores import DURABILITY, Store, opened

PROGRAM = Path(__file__).with_name("defaults_app.py")
SETTINGS = {"no options": "yes", "-c 10 --prefetch 0": "no"}
LEASE, SHORT_LEASE = 30.0, 2.0
START_SECONDS = 2.0  # in which both workers start, before the first job may run
Jobs = list[tuple[str, dict[str, Any]]]
Figures = dict[str, float]


def same(task: str, count: int, seconds: float, **more: Any) -> Jobs:
    return [(task, {"number": number, "seconds": seconds, **more}) for number in range(count)]


SHARED: dict[str, Jobs] = {
    "60 jobs that wait 0.5 s": same("waits", 60, 0.5),
    "200 jobs that block a thread for 50 ms": same("blocks", 200, 0.05),
    "150 jobs of 20 ms of CPU": same("computes", 150, 0.02),
    "2,400 jobs that do nothing, 40 of 0.5 s among them": [
        ("waits", {"number": number, "seconds": 0.0 if number % 60 else 0.5}) for number in range(2400)
    ],
}


class Place:
    """An empty store, the file that handlers write to, and how its workers are started."""

    def __init__(self, url: str, folder: str, ahead: str) -> None:
        self.url, self.log, self._ahead = url, f"{folder}/starts", ahead

    @contextmanager
    def worker(self, lease: float = LEASE) -> Iterator[subprocess.Popen[bytes]]:
        command = [sys.executable, str(PROGRAM), self.url, self.log, self._ahead, str(lease)]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            try:
                yield process
            finally:
                process.terminate()

    async def fill(self, jobs: Jobs) -> None:
        harbor = harbor_at(self.url, self.log)
        async with harbor:
            calls = [harbor.tasks.get(task).call(**arguments) for task, arguments in jobs]
            for start in range(0, len(calls), 100):  # a hundred of 50 KB are a message of 5 MB
                await harbor.aenqueue_many(calls[start : start + 100])

    def wait_for(self, numbers: set[int], seconds: float = 120) -> None:
        """Until each of these jobs has begun."""
        ends = time.monotonic() + seconds
        while not numbers <= {start.number for start in starts(self.log)}:
            if time.monotonic() > ends:
                raise TimeoutError(f"some of {len(numbers)} jobs have not begun")
            time.sleep(0.02)


# ------------------------------------------------------------------ the questions


def shared(jobs: Jobs) -> Callable[[Place], Figures]:
    def run(place: Place) -> Figures:
        with harbor_at(place.url, place.log) as harbor, place.worker(), place.worker():
            harbor.queue("default").pause()
            asyncio.run(place.fill(jobs))
            time.sleep(START_SECONDS)
            harbor.queue("default").resume()
            place.wait_for(set(range(len(jobs))))
        found = starts(place.log)
        at, shares = [start.at for start in found], Counter(start.pid for start in found)
        least = min(shares.values()) if len(shares) == 2 else 0
        return {"seconds": max(at) - min(at), "smaller share, %": 100 * least / len(found)}

    return run


def pick_up(place: Place, probes: int = 20) -> Figures:
    """Milliseconds until a job of high priority begins, while short ones wait."""
    asyncio.run(place.fill(same("waits", 20_000, 0.001)))
    waited = []
    with place.worker(), harbor_at(place.url, place.log) as harbor:
        urgent = harbor.tasks.get("waits").with_options(priority=5)
        place.wait_for({0})
        for number in range(-probes, 0):
            time.sleep(0.05)
            asked = time.monotonic()
            urgent.enqueue(number=number, seconds=0.0)
            place.wait_for({number})
            waited.append(next(one.at for one in starts(place.log) if one.number == number) - asked)
    return {"p50, ms": median(waited) * 1e3, "longest, ms": max(waited) * 1e3}


def memory(place: Place) -> Figures:
    """Resident MiB at the most, of a worker with short jobs of 50 KB each."""
    jobs = same("waits", 1000, 0.0, pad="x" * 50_000)
    asyncio.run(place.fill(jobs))
    with place.worker() as process:
        place.wait_for(set(range(len(jobs))))
        status = Path(f"/proc/{process.pid}/status").read_text()
    return {"MiB at most": int(status.partition("VmHWM:")[2].split()[0]) / 1024}


def killed(place: Place) -> Figures:
    jobs = same("waits", 3000, 0.001)
    asyncio.run(place.fill(jobs))
    with place.worker(SHORT_LEASE) as process:
        place.wait_for({500})
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    at = time.monotonic()
    left = asyncio.run(_running(place))
    with place.worker(SHORT_LEASE):
        place.wait_for(set(range(len(jobs))))
        took = time.monotonic() - at
    runs = Counter(start.number for start in starts(place.log))
    return {"left leased": left, "began twice": sum(n > 1 for n in runs.values()), "seconds after it": took}


async def _running(place: Place) -> int:
    harbor = harbor_at(place.url, place.log)
    async with harbor:
        return (await harbor.queue("default").acounts()).running


QUESTIONS: dict[str, Callable[[Place], Figures]] = {
    **{title: shared(jobs) for title, jobs in SHARED.items()},
    "a job of high priority behind short ones": pick_up,
    "payloads of 50 KB": memory,
    "kill -9 among jobs of 1 ms": killed,
}


# ------------------------------------------------------------------ a run


def once(store: Store, ask: Callable[[Place], Figures], ahead: str) -> Figures:
    with tempfile.TemporaryDirectory() as folder:
        return ask(Place(store.url, folder, ahead))


def measure(name: str, rounds: int) -> list[list[str]]:
    rows = []
    with opened(name) as fresh:
        for title, ask in QUESTIONS.items():
            found: dict[str, list[Figures]] = {setting: [] for setting in SETTINGS}
            for _ in range(rounds):
                for setting, ahead in SETTINGS.items():
                    with fresh() as store:
                        found[setting].append(once(store, ask, ahead))
            for figure in found["no options"][0]:
                medians = [median(one[figure] for one in found[setting]) for setting in SETTINGS]
                rows.append([f"{name}, {title}", figure, *(f"{one:,.1f}" for one in medians)])
                print("  ".join(rows[-1]), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--store", nargs="+", choices=("sqlite", "postgres", "redis"), default=["sqlite"])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only-print", action="store_true", help="write no section of RESULTS.md")
    options = parser.parse_args()
    rows = [row for name in options.store for row in measure(name, options.rounds)]
    text = table(["asked", "figure", *SETTINGS], rows)
    how = (
        f"Medians of {options.rounds} rounds in turns; two workers in the rows with shares, leases "
        "of 30 s (2 s after `kill -9`), completed jobs kept. "
        + " ".join(DURABILITY[name] for name in options.store)
    )
    print(text)
    if not options.only_print:
        write_section("Defaults beside nothing claimed ahead", f"{how}\n\n{text}")


if __name__ == "__main__":
    main()
