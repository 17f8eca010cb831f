"""Jobs that come in and rows that change, by a process of its own.

    python -m tests.browser.moving STORE RATE

It puts in RATE jobs a second, and moves the jobs of the queue SEEN: they run, make progress, and are
completed when its input is closed. At last it prints how many jobs a second it has put in. A turn that was
late is made up for; so the rate is less only where the store does not take so many.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from datetime import timedelta

from taskharbor.drivers import connect
from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Claim
from taskharbor.model.clock import SystemClock
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import JobRecord, NewJob, Progress
from taskharbor.model.settlement import Ack

SEEN = "seen"
ROWS = 50
TURNS_PER_SECOND = 10
_SHARE = ROWS // TURNS_PER_SECOND
_LEASE = timedelta(minutes=10)
_entropy, _clock = Entropy(), SystemClock()


async def put(driver: Driver, queue: str, count: int) -> None:
    ids = _entropy.job_ids(_clock.now(), count)
    await driver.enqueue([NewJob(id=one, type="ping", queue=queue, payload=b"{}") for one in ids])


async def put_seen(store: str, queue: str = SEEN) -> None:
    """The jobs that a list of the newest ones shows before it all begins."""
    async with connect(store) as driver:
        await put(driver, queue, ROWS)


async def progress(driver: Driver, jobs: list[JobRecord], turn: int) -> None:
    """A tenth of the rows, each once a second, and each time another percentage."""
    first = turn * _SHARE % ROWS
    noted = Progress(turn // TURNS_PER_SECOND % 100 / 100, "moving")
    some = jobs[first : first + _SHARE]
    await driver.extend_leases(
        [job.lease for job in some], _LEASE, progress=dict.fromkeys([job.id for job in some], noted)
    )


async def move(store: str, rate: int) -> float:
    """Until the input is closed; the jobs a second that were put in."""
    closed = asyncio.ensure_future(asyncio.to_thread(sys.stdin.read))
    async with connect(store) as driver:
        claim = Claim(queues=(SEEN,), worker_id="mover", limit=ROWS, lease_for=_LEASE)
        jobs = (await driver.reserve(claim)).jobs
        began, turn = time.monotonic(), 0
        while not closed.done():
            await put(driver, "new", rate // TURNS_PER_SECOND)
            await progress(driver, jobs, turn)
            turn += 1
            await asyncio.sleep(max(began + turn / TURNS_PER_SECOND - time.monotonic(), 0))
        reached = turn * rate / TURNS_PER_SECOND / (time.monotonic() - began)
        await driver.settle([Ack(job.lease) for job in jobs])
    return reached


if __name__ == "__main__":
    print(json.dumps(asyncio.run(move(sys.argv[1], int(sys.argv[2])))))
