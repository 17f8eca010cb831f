"""What the logbook costs a drain of no-op jobs: part of bench_dashboard.py.

One long drain of one worker, whose own recorder listens or does not. A round is off, on, on, off, a few
thousand jobs each, so that what the machine does slowly is done to both. Every second round stays off
throughout: it shows what the method is worth. A stretch that is on writes its cells once; a worker does that
every five seconds, for many more jobs. CPU time of the worker and of the servers of the store.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from statistics import median

from bench_metrics import BLOCK, fill
from cpu import Stopwatch
from stores import Store, opened

from taskharbor.drivers import connect
from taskharbor.drivers.contract import Driver
from taskharbor.drivers.log_recorder import LogRecorder
from taskharbor.model.clock import SystemClock
from taskharbor.model.log_cells import Numbers, unpacked
from taskharbor.model.logbook import NUMBERS
from taskharbor.worker import Worker
from taskharbor.worker.run import WorkerRun

MOST = 2.0
"""% of a drain."""
HEAD = ["store", "off, µs of CPU per job", "on, µs of CPU per job", "cost", "off beside off", f"≤ {MOST:g} %"]
CONCURRENCY = 100
EDGES = 1000
"""Jobs of the batches that are under way while the logbook is turned on or off."""


class Recording:
    """Turns the logbook of a worker on and off while it works, and notes what each stretch of jobs cost."""

    def __init__(self, worker: Worker, store: Store, stretch: int) -> None:
        self._worker = worker
        self._servers = store.servers
        self._stretch = stretch
        self._stop: Callable[[], None] | None = None
        self._watch: Stopwatch | None = None
        self._done = 0
        self.stretches: list[float] = []

    async def handler(self, ctx: object, job: object) -> None:
        self._done += 1
        place = self._done % self._stretch
        if place == 0:
            self._turn()
        elif place == self._stretch // 2 and self._stop is not None:
            await self._worker.driver.write_log(self._recorder.take())

    def _turn(self) -> None:
        if self._watch is None:  # the first stretch warms up
            self._run._stop_recording()  # the worker began with it
        else:
            self.stretches.append(self._watch.spent().cpu / self._stretch * 1e6)
        if self._stop is not None:
            self._stop()
            self._stop = None
        block, place = divmod(len(self.stretches), BLOCK)
        if block % 2 == 0 and place in (1, 2):
            self._stop = self._recorder.listen(self._worker.events)
        gc.collect()
        self._watch = Stopwatch(self._servers)

    @property
    def _recorder(self) -> LogRecorder:
        """What the worker made for itself: it knows its types and queues."""
        recorder = self._run.recorder
        if recorder is None:
            raise RuntimeError("this worker keeps no logbook")
        return recorder

    @property
    def _run(self) -> WorkerRun:
        run = self._worker._run
        if run is None:
            raise RuntimeError("the worker does not run")
        return run


def measured(name: str, rounds: int, stretch: int) -> list[str]:
    """One row: so many rounds in which the logbook is on in the middle, and as many in which it is not."""
    with _store(name) as store:
        stretches = asyncio.run(_drained(store, 2 * rounds, stretch))
    blocks = [stretches[at : at + BLOCK] for at in range(0, 2 * rounds * BLOCK, BLOCK)]
    cost, noise = _cost(blocks[::2]), _cost(blocks[1::2])
    off = median(part for block in blocks[::2] for part in (block[0], block[3]))
    on = median(part for block in blocks[::2] for part in block[1:3])
    row = [
        name,
        f"{off:.2f}",
        f"{on:.2f}",
        f"{cost:+.1f} %",
        f"{noise:+.1f} %",
        "yes" if cost <= MOST else "NO",
    ]
    print("  ".join(row), flush=True)
    return row


def _cost(blocks: list[list[float]]) -> float:
    """% that the middle of a round takes longer than its ends: the median of the rounds."""
    return 100 * (median((two + three) / (one + four) for one, two, three, four in blocks) - 1)


@contextmanager
def _store(name: str) -> Iterator[Store]:
    if name == "memory":
        yield Store("memory://")
        return
    with opened(name) as fresh, fresh() as store:
        yield store


async def _drained(store: Store, rounds: int, stretch: int) -> list[float]:
    began = SystemClock().now()
    async with connect(store.url) as driver:
        worker = Worker(driver, concurrency=CONCURRENCY)
        recording = Recording(worker, store, stretch)
        worker.register("nothing", recording.handler)
        await fill(driver, (rounds * BLOCK + 2) * stretch)
        gc.collect()
        gc.freeze()
        await worker.arun(until_idle=True)
        gc.unfreeze()
        # half of every second round, and the first stretch
        await _check(driver, began, (rounds + 1) * stretch)
    return recording.stretches


async def _check(driver: Driver, since: datetime, expected: int) -> None:
    """What ran while the logbook was on was written down, and nothing else."""
    cells = await driver.read_log(NUMBERS, since - timedelta(minutes=1), SystemClock().now())
    noted = sum(row.completed for cell in cells for row in unpacked(cell.data, Numbers))
    if not is_about(noted, expected):
        raise RuntimeError(f"the logbook has {noted:,} jobs, not about {expected:,}")


def is_about(noted: int, expected: int) -> bool:
    """The edges may add or take some; a logbook that misses half of a tiny drain is wrong all the same."""
    return noted >= expected / 2 and abs(noted - expected) <= max(expected / 10, EDGES)
