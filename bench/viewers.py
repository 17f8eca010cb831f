"""A server of its own process, jobs that move through its store, and people who look: for bench_dashboard.py.

python bench/viewers.py URL    moves jobs through the store until it is stopped, and prints the rate
"""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from statistics import median

import httpx2
from bench_idle import cpu_seconds
from stores import opened

from taskharbor.drivers import connect
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
CAUSES = 20
LEAST_LOAD = 0.85
"""Of `PER_SECOND`: with less, a bound that is kept shows nothing."""
MOST_IDLE, MOST_BUSY = 1.0, 5.0
"""% of a core that the viewers add."""
HEAD = ["harbor", "jobs/s", "without", "with", "added", "at most", "kept"]
ASKED = {
    "series?window=1h&by=total": 15,
    "series?window=1h&by=queue": 30,
    "failures?window=1h": 30,
    "schedules": 30,
}
"""What the overview asks for beside its stream, and every how many seconds."""
_SETTLE_S = 3.0


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
    process = subprocess.Popen([sys.executable, __file__, url], stdout=subprocess.PIPE, text=True)
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


async def add_dead_letters(url: str, count: int) -> None:
    """So many jobs that fail for good in a worker, for some causes, as in the logbook."""
    logging.getLogger("taskharbor").setLevel(logging.CRITICAL)
    entropy, clock = Entropy(), SystemClock()
    async with connect(url) as driver:
        worker = Worker(driver, concurrency=100)
        for number in range(CAUSES):
            worker.register(f"broken{number:02}", _failing(number))
        for start in range(0, count, BATCH):
            ids = entropy.job_ids(clock.now(), min(BATCH, count - start))
            await driver.enqueue(
                [
                    NewJob(id=one, type=f"broken{place % CAUSES:02}", max_attempts=1, payload=b"{}")
                    for place, one in enumerate(ids)
                ]
            )
        await worker.arun(until_idle=True)
        counts = await driver.count()
    if (dead := sum(one.failed for one in counts.values())) != count:
        raise RuntimeError(f"{dead:,} dead letters, not {count:,}")


def _failing(number: int) -> Callable[[object, object], None]:
    async def fail(ctx: object, job: object) -> None:
        raise ValueError(f"cause {number} cannot be mended")

    return fail


# ------------------------------------------------------------------ viewers


@asynccontextmanager
async def looking(address: str, viewers: int) -> AsyncIterator[None]:
    """So many have the overview open. Each asks at moments of its own, as people open pages."""
    received = [0] * viewers
    tasks = [
        asyncio.ensure_future(_view(address, number / viewers, number, received)) for number in range(viewers)
    ]
    await asyncio.sleep(_SETTLE_S)
    yield
    for task in tasks:
        if task.done():
            task.result()
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    if not all(received):
        raise RuntimeError(f"a viewer received nothing: {received}")


async def _view(address: str, phase: float, number: int, received: list[int]) -> None:
    """What the overview does: a stream that it reads, and its questions. Counts its bytes."""
    async with httpx2.AsyncClient(base_url=address, timeout=None) as http, asyncio.TaskGroup() as group:

        async def stream() -> None:
            async with http.stream("GET", "api/events?topics=board,bulk") as answer:
                answer.raise_for_status()
                async for data in answer.aiter_raw():
                    received[number] += len(data)

        async def ask(path: str, every: float) -> None:
            wait = every * (1 - phase)
            while True:
                (await http.get(f"api/{path}")).raise_for_status()
                await asyncio.sleep(wait)
                wait = every

        group.create_task(stream())
        for path, every in ASKED.items():
            group.create_task(ask(path, every))


async def _cpu(pid: int, address: str, viewers: int, seconds: float) -> float:
    """Percent of a core of the server while so many look."""
    async with looking(address, viewers):
        before, began = cpu_seconds(pid), time.monotonic()
        await asyncio.sleep(seconds)
        return 100 * (cpu_seconds(pid) - before) / (time.monotonic() - began)


def measured(name: str, seconds: float, rounds: int, dead: int) -> list[list[str]]:
    """A row for the idle harbor on this store, and one for the busy harbor."""
    rows = []
    with opened(name) as fresh, fresh() as store:
        asyncio.run(add_dead_letters(store.url, dead))
        with serving(store.url) as (address, pid):
            rows.append(_row(f"{name}, idle", _in_turns(pid, address, seconds, rounds), None, MOST_IDLE))
            with moving(store.url) as reached:
                busy = _in_turns(pid, address, seconds, rounds)
            rows.append(_row(f"{name}, busy", busy, reached[0], MOST_BUSY))
    return rows


def _in_turns(pid: int, address: str, seconds: float, rounds: int) -> list[tuple[float, float]]:
    """Without viewers and with them, so often. Every second time with them first."""
    figures = []
    for turn in range(rounds):
        order = (0, VIEWERS) if turn % 2 == 0 else (VIEWERS, 0)
        found = {count: asyncio.run(_cpu(pid, address, count, seconds)) for count in order}
        figures.append((found[0], found[VIEWERS]))
    return figures


def _row(name: str, figures: list[tuple[float, float]], rate: float | None, most: float) -> list[str]:
    without, seen = (median(column) for column in zip(*figures, strict=True))
    added = median(seen - without for without, seen in figures)
    row = [name, "0" if rate is None else f"{rate:,.0f}", f"{without:.2f}", f"{seen:.2f}", f"{added:.2f}"]
    row += [f"{most:g}", _verdict(added <= most, rate)]
    print("  ".join(row), flush=True)
    return row


def _verdict(is_kept: bool, rate: float | None) -> str:
    if rate is not None and rate < LEAST_LOAD * PER_SECOND:
        return "load too small"
    return "yes" if is_kept else "NO"


if __name__ == "__main__":
    asyncio.run(move(sys.argv[1]))
