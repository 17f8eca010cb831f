"""What does the worker itself cost per job?

No-op jobs on the memory store, three ways in one run: the driver alone (settle and claim in a
loop), the whole worker, and a bare "task per job + json.loads + asyncio.timeout" for scale. Counted
in CPU time, so that a busy machine shows the same; one process does nothing but this.

    python bench/bench_worker.py [--jobs 20000]
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import time
from datetime import timedelta

from results import table, write_section

from taskharbor.drivers import connect
from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Claim
from taskharbor.model.clock import SystemClock
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import NewJob
from taskharbor.model.settlement import Ack
from taskharbor.worker import Worker

BATCH = 100
ROUNDS = 5
PAYLOAD = json.dumps({"user_id": 12345, "text": "x" * 60, "tags": ["a", "b"]})


async def nothing(ctx: object, job: object) -> None:
    return None


async def filled(count: int) -> Driver:
    driver = await connect("memory://").open()
    entropy, now = Entropy(), SystemClock().now()
    jobs = [NewJob(id=entropy.job_id(now), type="nothing", payload=PAYLOAD.encode()) for _ in range(count)]
    for start in range(0, count, 1000):
        await driver.enqueue(jobs[start : start + 1000])
    gc.collect()
    return driver


async def driver_alone(count: int) -> float:
    driver = await filled(count)
    claim = Claim(queues=("default",), worker_id="bench", limit=BATCH, lease_for=timedelta(seconds=30))
    started = time.process_time()
    jobs = (await driver.reserve(claim)).jobs
    while jobs:
        jobs = (await driver.exchange([Ack(job.lease) for job in jobs], claim)).claimed
    return count / (time.process_time() - started)


async def whole_worker(count: int) -> float:
    driver = await filled(count)
    worker = Worker(driver, concurrency=BATCH)
    worker.register("nothing", nothing)
    started = time.process_time()
    await worker.arun(until_idle=True)
    rate = count / (time.process_time() - started)
    counted = (await driver.count(["default"]))["default"]
    assert counted.completed == count, counted
    return rate


async def task_json_timeout(count: int) -> float:
    async def job() -> None:
        async with asyncio.timeout(30):
            await nothing(None, json.loads(PAYLOAD))

    started = time.process_time()
    for _ in range(count // BATCH):
        await asyncio.gather(*[asyncio.create_task(job()) for _ in range(BATCH)])
    return count / (time.process_time() - started)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=20_000)
    count = parser.parse_args().jobs
    ways = (task_json_timeout, driver_alone, whole_worker)
    rates = dict.fromkeys((way.__name__ for way in ways), 0.0)
    for _ in range(ROUNDS):  # in turns, and the best of each: the machine is seldom alone
        for way in ways:
            rates[way.__name__] = max(rates[way.__name__], asyncio.run(way(count)))
    bare = rates["task_json_timeout"]
    rows = [
        [name.replace("_", " "), f"{rate:,.0f}", f"{1e6 / rate:.2f}", f"{rate / bare:.0%}"]
        for name, rate in rates.items()
    ]
    text = table(["no-op jobs on the memory store", "jobs per CPU second", "µs per job", "ratio"], rows)
    print(text)
    write_section("What the worker costs per job", text)


if __name__ == "__main__":
    main()
