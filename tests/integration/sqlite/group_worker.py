"""A worker that ends the jobs of a group in small steps, and prints a line after each of them."""

import asyncio
import sys
from datetime import timedelta

from taskharbor.drivers import connect
from taskharbor.drivers.messages import Claim
from taskharbor.model.settlement import Ack, Settlement


async def work(url: str, last: str) -> None:
    """Until the job `last` is over."""
    claim = Claim(queues=("default",), worker_id="w", limit=7, lease_for=timedelta(seconds=2))
    done: list[Settlement] = []
    async with connect(url) as driver:
        while True:
            answer = await driver.exchange(done, claim)
            for _ in answer.settled:
                print("settled", flush=True)
            done = [Ack(job.lease) for job in answer.claimed]
            [record] = await driver.get([last])
            if record is None or record.state.is_terminal:
                return
            if not done:
                await asyncio.sleep(0.05)


asyncio.run(work(*sys.argv[1:]))
