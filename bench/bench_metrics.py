"""What do metrics cost a drain of no-op jobs?

One long drain, in which everything that `--metrics-port` turns on in a worker (the listeners and the timed
store) is turned on and off again every few hundred jobs, in the order off, on, on, off: what the machine does
slowly, it does to both. Counted in CPU time, and compared by the quarter of the stretches that were disturbed
least. Every second such block stays off throughout and is compared in the same way, which shows what the
method itself is worth. Promised: less than 5 %. What a scrape costs is measured apart: it comes every few
seconds, however many jobs there are.

    python bench/bench_metrics.py [blocks]
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

from results import table, write_section

from taskharbor.drivers import connect
from taskharbor.drivers.contract import Driver
from taskharbor.model.clock import SystemClock
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import NewJob
from taskharbor.observe.meter import Meter
from taskharbor.observe.metrics import Exposition
from taskharbor.observe.store_times import OPS, time_store
from taskharbor.worker import Worker

PROMISED = 1.05
BLOCK = 4  # stretches: off, on, on, off
STRETCH = 500
CONCURRENCY = 100
PAYLOAD = b'{"user_id": 12345, "tags": ["a", "b"]}'


class Switch:
    """Turns metrics on and off while a worker works, and notes what each stretch of jobs cost."""

    def __init__(self, driver: Driver, worker: Worker) -> None:
        self.meter = Meter()
        self._driver = driver
        self._worker = worker
        time_store(driver, self.meter)
        self._timed = {op: vars(driver).pop(op) for op in OPS}
        self._stop: Callable[[], None] | None = None
        self._done = 0
        self._since = 0.0
        self.stretches: list[float] = []

    async def handler(self, ctx: object, job: object) -> None:
        self._done += 1
        if self._done % STRETCH == 0:
            self._turn()

    def _turn(self) -> None:
        now = time.process_time()
        if self._since:  # the first stretch warms up
            self.stretches.append((now - self._since) / STRETCH * 1e6)
        block, place = divmod(len(self.stretches), BLOCK)
        self._set(is_on=block % 2 == 0 and place in (1, 2))
        gc.collect()
        self._since = time.process_time()

    def _set(self, *, is_on: bool) -> None:
        if is_on and self._stop is None:
            self._stop = self.meter.listen(self._worker.events)
            vars(self._driver).update(self._timed)
        elif not is_on and self._stop is not None:
            self._stop()
            self._stop = None
            for op in OPS:
                del vars(self._driver)[op]


async def drained(url: str, blocks: int) -> Switch:
    driver = connect(url)
    worker = Worker(driver, concurrency=CONCURRENCY)
    switch = Switch(driver, worker)
    worker.register("nothing", switch.handler)
    async with driver:
        await fill(driver, blocks * BLOCK * STRETCH + 2000)
        gc.collect()
        gc.freeze()
        await worker.arun(until_idle=True)
        gc.unfreeze()
    return switch


async def fill(driver: Driver, count: int) -> None:
    entropy, now = Entropy(), SystemClock().now()
    for _ in range(0, count, 1000):
        jobs = [NewJob(id=entropy.job_id(now), type="nothing", payload=PAYLOAD) for _ in range(1000)]
        await driver.enqueue(jobs)


def compared(stretches: list[float], *, are_on: bool) -> tuple[float, float]:
    """µs per job in the outer two stretches of the blocks, which are off, and in the inner two."""
    blocks = [stretches[at : at + BLOCK] for at in range(0, len(stretches) - BLOCK + 1, BLOCK)]
    chosen = blocks[0 if are_on else 1 :: 2]
    outer = [cost for first, _, _, last in chosen for cost in (first, last)]
    inner = [cost for block in chosen for cost in block[1:3]]
    return least_disturbed(outer), least_disturbed(inner)


def least_disturbed(costs: list[float]) -> float:
    return statistics.mean(sorted(costs)[: max(len(costs) // 4, 1)])


def scrape_milliseconds(meter: Meter) -> float:
    exposition = Exposition(meter.sample)
    costs = []
    for _ in range(20):
        started = time.process_time()
        exposition.page()
        costs.append(time.process_time() - started)
    return statistics.median(costs) * 1e3


def main() -> None:
    blocks = int(sys.argv[1]) if len(sys.argv) > 1 else 120
    rows, scrape = [], 0.0
    for store in ("memory", "sqlite"):
        with tempfile.TemporaryDirectory() as folder:
            url = "memory://" if store == "memory" else f"sqlite:///{folder}/jobs.db"
            switch = asyncio.run(drained(url, blocks))
        off, on = compared(switch.stretches, are_on=True)
        control, control_again = compared(switch.stretches, are_on=False)
        scrape = scrape_milliseconds(switch.meter)
        cost, noise = f"{(on / off - 1) * 100:+.1f} %", f"{(control_again / control - 1) * 100:+.1f} %"
        rows.append([store, f"{off:.2f}", f"{on:.2f}", cost, noise, "yes" if on <= off * PROMISED else "NO"])
        print(f"{store:8} off {off:6.2f} µs  on {on:6.2f} µs per job  {cost}  (off beside off: {noise})")
    head = ["store", "off, µs of CPU per job", "on, µs of CPU per job", "cost", "off beside off", "≤ 5 %"]
    summary = (
        f"No-op jobs, {CONCURRENCY} at once; metrics off, on, on, off for {STRETCH:,} jobs each, "
        f"{blocks // 2} times in one drain, and as many times off throughout; the mean of the least "
        f"disturbed quarter of each. A scrape takes {scrape:.1f} ms."
    )
    write_section("Metrics: cost of a no-op drain", f"{summary}\n\n{table(head, rows)}")


if __name__ == "__main__":
    main()
