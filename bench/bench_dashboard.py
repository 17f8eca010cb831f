"""What does the dashboard cost: the server, its viewers' browsers, and the workers that write its history?

    python bench/bench_dashboard.py [--seconds 15] [--rounds 3] [--only viewers,browser,logbook]

Viewers: CPU of a server process with ten viewers of the overview less that without any, idle and while a
second process moves 10,000 jobs a second through the same SQLite file. Browser: first paint, and CPU of the
main thread, of the pages that change most, with 50 queues and the same load. Logbook: a drain of no-op jobs
in which it is turned on and off. CPU time throughout, but for the first paint: a busy machine changes little.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
from bench_idle import cpu_seconds
from bench_metrics import BLOCK, compared, fill
from results import table, write_section

from taskharbor.drivers import connect
from taskharbor.drivers.log_recorder import LogRecorder
from taskharbor.drivers.messages import Claim
from taskharbor.model.clock import SystemClock
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import NewJob
from taskharbor.model.settlement import Ack
from taskharbor.worker import Worker

VIEWERS = 10
QUEUES = 50
PER_SECOND = 10_000
BATCH = 1000
STRETCH = 2000
BLOCKS = 40
MOST_IDLE, MOST_BUSY = 1.0, 5.0  # % of a core that ten viewers add
MOST_PAINT_S, MOST_MAIN_THREAD = 0.3, 15.0
MOST_LOGBOOK = 2.0
ASKED = {
    "series?window=1h&by=total": 15,
    "series?window=1h&by=queue": 30,
    "failures?window=1h": 30,
    "schedules": 30,
}
"""What the overview asks for beside its stream, and every how many seconds."""
PAGES = {"overview": "", "jobs": "jobs", "queues": "queues"}
COUNTING = "--load"


# ------------------------------------------------------------------ a server, and jobs that move


@contextmanager
def serving(url: str) -> Iterator[tuple[str, int]]:
    """The address of a server of its own process, and its pid."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        command = [
            sys.executable,
            "-m",
            "taskharbor",
            "server",
            "--port",
            "0",
            "--any-type",
            "--url",
            url,
            "--rate",
            "0",
        ]
        with log.open("w") as out:
            process = subprocess.Popen(command, stdout=out, stderr=out)
        try:
            yield _address(log), process.pid
        finally:
            process.terminate()
            process.wait()


def _address(log: Path) -> str:
    deadline = time.monotonic() + 60
    while True:
        for line in log.read_text().splitlines():
            if "dashboard: " in line:
                return line.rpartition("dashboard: ")[2].split()[0].removesuffix("ui/")
        if time.monotonic() > deadline:
            raise RuntimeError(f"the server did not start:\n{log.read_text()}")
        time.sleep(0.05)


@contextmanager
def moving(url: str) -> Iterator[list[float]]:
    """Jobs that arrive and are done at `PER_SECOND`; afterwards the list has how many a second it were."""
    process = subprocess.Popen([sys.executable, __file__, COUNTING, url], stdout=subprocess.PIPE, text=True)
    reached: list[float] = []
    try:
        yield reached
    finally:
        process.terminate()
        printed = process.communicate()[0].split()
        reached.append(float(printed[-1]) if printed else 0.0)


async def move(url: str) -> None:
    entropy, clock = Entropy(), SystemClock()
    began, moved = time.monotonic(), 0
    async with connect(url) as driver:
        while True:
            queue = f"queue{moved // BATCH % QUEUES:02}"
            now = clock.now()
            await driver.enqueue(
                [
                    NewJob(id=entropy.job_id(now), type="nothing", queue=queue, payload=b"{}")
                    for _ in range(BATCH)
                ]
            )
            claim = Claim(queues=(queue,), worker_id="load", limit=BATCH)
            await driver.settle([Ack(job.lease) for job in (await driver.reserve(claim)).jobs])
            moved += BATCH
            print(f"{moved / (time.monotonic() - began):.0f}", flush=True)
            await asyncio.sleep(max(began + moved / PER_SECOND - time.monotonic(), 0))


# ------------------------------------------------------------------ viewers


async def view(address: str, seconds: float, received: list[int]) -> None:
    """What the overview does for so long: a stream that it reads, and its questions. Counts its bytes."""
    async with httpx2.AsyncClient(base_url=address, timeout=None) as http:

        async def stream() -> None:
            async with http.stream("GET", "api/events?topics=board,bulk") as answer:
                answer.raise_for_status()
                async for data in answer.aiter_raw():
                    received[0] += len(data)

        async def ask(path: str, every: float) -> None:
            while True:
                (await http.get(f"api/{path}")).raise_for_status()
                await asyncio.sleep(every)

        tasks = [
            asyncio.ensure_future(stream()),
            *(asyncio.ensure_future(ask(*one)) for one in ASKED.items()),
        ]
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            if task.done():
                task.result()
            task.cancel()


async def _cpu(pid: int, address: str, viewers: int, seconds: float) -> float:
    """Percent of a core while so many look."""
    received = [0]
    looking = [asyncio.ensure_future(view(address, seconds + 4, received)) for _ in range(viewers)]
    await asyncio.sleep(3)  # they have opened the page
    before, began = cpu_seconds(pid), time.monotonic()
    await asyncio.sleep(seconds)
    used = 100 * (cpu_seconds(pid) - before) / (time.monotonic() - began)
    await asyncio.gather(*looking)
    if viewers and not received[0]:
        raise RuntimeError("no viewer received anything")
    return used


def viewers(seconds: float, rounds: int) -> list[list[str]]:
    rows = []
    for name, is_busy, most in (("idle", False, MOST_IDLE), ("busy", True, MOST_BUSY)):
        with tempfile.TemporaryDirectory() as folder:
            url = f"sqlite:///{folder}/jobs.db"
            with serving(url) as (address, pid):
                rate = 0.0
                if is_busy:
                    with moving(url) as reached:
                        figures = _in_turns(pid, address, seconds, rounds)
                    rate = reached[0]
                else:
                    figures = _in_turns(pid, address, seconds, rounds)
        without, seen = (statistics.median(one) for one in figures)
        row = [name, f"{rate:,.0f}", f"{without:.2f}", f"{seen:.2f}", f"{seen - without:.2f}", f"{most:g}"]
        rows.append([*row, "yes" if seen - without <= most else "NO"])
        print("  ".join(rows[-1]), flush=True)
    return rows


def _in_turns(pid: int, address: str, seconds: float, rounds: int) -> tuple[list[float], list[float]]:
    without, seen = [], []
    for _ in range(rounds):
        without.append(asyncio.run(_cpu(pid, address, 0, seconds)))
        seen.append(asyncio.run(_cpu(pid, address, VIEWERS, seconds)))
    return without, seen


# ------------------------------------------------------------------ browser


def browser(seconds: float) -> list[list[str]]:
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from playwright.sync_api import sync_playwright

    from tools import browser as browsers

    found = browsers.find()
    if found is None:
        print(browsers.HOW)
        return []
    path, env = found
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        url = f"sqlite:///{folder}/jobs.db"
        started = playwright.chromium.launch(
            executable_path=path, args=browsers.FLAGS, env={**os.environ, **env}
        )
        with serving(url) as (address, _), moving(url):
            time.sleep(QUEUES * BATCH / PER_SECOND + 1)  # every queue has had jobs
            return [_looked(started, f"{address}ui/#/{page}", name, seconds) for name, page in PAGES.items()]


def _looked(browser: Any, address: str, name: str, seconds: float) -> list[str]:
    paints = [_first_paint(browser, address) for _ in range(9)]
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto(address)
    page.wait_for_timeout(3000)
    tools = page.context.new_cdp_session(page)
    tools.send("Performance.enable", {"timeDomain": "threadTicks"})
    before, began = _task_seconds(tools), time.monotonic()
    page.wait_for_timeout(seconds * 1000)
    share = 100 * (_task_seconds(tools) - before) / (time.monotonic() - began)
    page.context.close()
    paint = min(paints)
    row = [name, f"{paint:.2f}", f"{statistics.median(paints):.2f}", "yes" if paint <= MOST_PAINT_S else "NO"]
    row += [f"{share:.1f}", "yes" if share <= MOST_MAIN_THREAD else "NO"]
    print("  ".join(row), flush=True)
    return row


def _first_paint(browser: Any, address: str) -> float:
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto(address)
    read = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
    while (painted := page.evaluate(read)) is None:
        page.wait_for_timeout(50)
    page.context.close()
    return float(painted) / 1000


def _task_seconds(tools: Any) -> float:
    metrics = {one["name"]: one["value"] for one in tools.send("Performance.getMetrics")["metrics"]}
    return float(metrics["TaskDuration"])


# ------------------------------------------------------------------ logbook


class Recording:
    """Turns the logbook on and off while a worker works: off, on, on, off; every second time it stays off."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._recorder = LogRecorder("bench", SystemClock(), queues=("default",), types=("nothing",))
        self._stop: Callable[[], None] | None = None
        self._done = 0
        self._since = 0.0
        self.stretches: list[float] = []

    async def handler(self, ctx: object, job: object) -> None:
        self._done += 1
        if self._done % STRETCH == 0:
            self._turn()

    def _turn(self) -> None:
        if self._stop is not None:
            self._stop()
            self._recorder.take()  # where a worker counts what it noted, every five seconds
            self._stop = None
        now = time.process_time()
        if self._since:  # the first stretch warms up
            self.stretches.append((now - self._since) / STRETCH * 1e6)
        block, place = divmod(len(self.stretches), BLOCK)
        if block % 2 == 0 and place in (1, 2):
            self._stop = self._recorder.listen(self._worker.events)
        gc.collect()
        self._since = time.process_time()


async def drained(url: str, blocks: int) -> list[float]:
    async with connect(url) as driver:
        worker = Worker(driver, concurrency=100, logbook=False)
        recording = Recording(worker)
        worker.register("nothing", recording.handler)
        await fill(driver, blocks * BLOCK * STRETCH + 2000)
        gc.collect()
        gc.freeze()
        await worker.arun(until_idle=True)
        gc.unfreeze()
    return recording.stretches


def logbook(blocks: int) -> list[list[str]]:
    rows = []
    for store in ("memory", "sqlite"):
        with tempfile.TemporaryDirectory() as folder:
            url = "memory://" if store == "memory" else f"sqlite:///{folder}/jobs.db"
            stretches = asyncio.run(drained(url, blocks))
        off, on = compared(stretches, are_on=True)
        control, control_again = compared(stretches, are_on=False)
        cost, noise = 100 * (on / off - 1), 100 * (control_again / control - 1)
        row = [store, f"{off:.2f}", f"{on:.2f}", f"{cost:+.1f} %", f"{noise:+.1f} %"]
        rows.append([*row, "yes" if cost <= MOST_LOGBOOK else "NO"])
        print("  ".join(rows[-1]), flush=True)
    return rows


# ------------------------------------------------------------------ all of it


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=15.0, help="how long each figure is taken")
    parser.add_argument("--rounds", type=int, default=3, help="how often with and without viewers")
    parser.add_argument("--only", default="viewers,browser,logbook")
    parser.add_argument(COUNTING, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.load:
        asyncio.run(move(args.load))
    if "viewers" in args.only:
        body = (
            f"{VIEWERS} viewers of the overview, on SQLite with {QUEUES} queues: CPU of the server in % of "
            f"a core, medians of {args.rounds} rounds of {args.seconds:g} s with and without them.\n\n"
        )
        head = ["harbor", "jobs/s", "without", "with", "added", "at most", "kept"]
        write_section("Dashboard: viewers", body + table(head, viewers(args.seconds, args.rounds)))
    if "browser" in args.only:
        body = (
            f"{QUEUES} queues through which {PER_SECOND:,} jobs a second move on the same machine. First "
            "contentful paint: the least disturbed of 9 loads without a cache, and their median. Main thread"
            f": its CPU time over {args.seconds:g} s in % of a core.\n\n"
        )
        head = ["page", "first paint, s", "median, s", f"≤ {MOST_PAINT_S}"]
        head += ["main thread, %", f"≤ {MOST_MAIN_THREAD:g}"]
        write_section("Dashboard: browser", body + table(head, browser(args.seconds)))
    if "logbook" in args.only:
        body = (
            f"No-op jobs, 100 at once; off, on, on, off for {STRETCH:,} jobs each, {BLOCKS // 2} times "
            "in one drain, and as often off throughout; the mean of the least disturbed quarter of each.\n\n"
        )
        head = ["store", "off, µs of CPU per job", "on, µs of CPU per job", "cost", "off beside off"]
        rows = logbook(BLOCKS)
        write_section("Dashboard: cost of the logbook", body + table([*head, f"≤ {MOST_LOGBOOK:g} %"], rows))


if __name__ == "__main__":
    main()
