"""What do metrics cost a drain of no-op jobs?

One long drain, in which everything that `--metrics-port` turns on in a worker (the listeners and the timed
store) is turned off and on again every thousand jobs. Counted in CPU time, and each stretch compared with
its neighbours: whatever else the machine does, it does to both. Promised: less than 5 %. What a scrape
costs is told apart: it comes every few seconds, however many jobs there are.

    python bench/bench_metrics.py [stretches]
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import sys
import tempfile
import time

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
STRETCH = 1000
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
        self._stop = lambda: None
        self._is_on = False
        self._done = 0
        self._since = 0.0
        self.stretches: list[tuple[bool, float]] = []

    async def handler(self, ctx: object, job: object) -> None:
        self._done += 1
        if self._done % STRETCH == 0:
            self._turn()

    def _turn(self) -> None:
        now = time.process_time()
        if self._since:  # the first stretch warms up
            self.stretches.append((self._is_on, (now - self._since) / STRETCH * 1e6))
        self._is_on = not self._is_on
        if self._is_on:
            self._stop = self.meter.listen(self._worker.events)
            vars(self._driver).update(self._timed)
        else:
            self._stop()
            for op in OPS:
                del vars(self._driver)[op]
        self._since = time.process_time()


async def drained(url: str, stretches: int) -> Switch:
    driver = connect(url)
    worker = Worker(driver, concurrency=CONCURRENCY)
    switch = Switch(driver, worker)
    worker.register("nothing", switch.handler)
    async with driver:
        await fill(driver, (stretches + 2) * STRETCH)
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


def compared(stretches: list[tuple[bool, float]]) -> tuple[float, float, float]:
    """Off and on, the median of each, and of the ratios of every stretch that was on to the mean of its two
    neighbours."""
    ratios = [
        cost / statistics.mean((before, after))
        for (_, before), (is_on, cost), (_, after) in zip(
            stretches, stretches[1:], stretches[2:], strict=False
        )
        if is_on
    ]
    off = statistics.median(cost for is_on, cost in stretches if not is_on)
    on = statistics.median(cost for is_on, cost in stretches if is_on)
    return off, on, statistics.median(ratios)


def scrape_milliseconds(meter: Meter) -> float:
    exposition = Exposition(meter.sample)
    costs = []
    for _ in range(20):
        started = time.process_time()
        exposition.page()
        costs.append(time.process_time() - started)
    return statistics.median(costs) * 1e3


def main() -> None:
    stretches = int(sys.argv[1]) if len(sys.argv) > 1 else 120
    rows, scrape = [], 0.0
    for store in ("memory", "sqlite"):
        with tempfile.TemporaryDirectory() as folder:
            url = "memory://" if store == "memory" else f"sqlite:///{folder}/jobs.db"
            switch = asyncio.run(drained(url, stretches))
        off, on, ratio = compared(switch.stretches)
        scrape = scrape_milliseconds(switch.meter)
        is_kept = "yes" if ratio <= PROMISED else "NO"
        rows.append([store, f"{off:.2f}", f"{on:.2f}", f"{(ratio - 1) * 100:+.1f} %", is_kept])
        print(f"{store:8} off {off:6.2f} µs  on {on:6.2f} µs per job  {(ratio - 1) * 100:+.1f} %  {is_kept}")
    head = ["store", "off, µs of CPU per job", "on, µs of CPU per job", "cost", "≤ 5 %"]
    said = (
        f"No-op jobs, {CONCURRENCY} at once; metrics off and on in turns for {STRETCH:,} jobs each, "
        f"{stretches} times in one drain; the cost is the median over neighbours. "
        f"A scrape takes {scrape:.1f} ms."
    )
    write_section("Metrics: cost of a no-op drain", f"{said}\n\n{table(head, rows)}")


if __name__ == "__main__":
    main()
