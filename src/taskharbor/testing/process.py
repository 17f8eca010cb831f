"""What a process of a race does. Apart from the conformance kit, so that a fresh process starts quickly."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.loading import connect
from taskharbor.drivers.messages import Claim
from taskharbor.model.job import NewJob
from taskharbor.model.settlement import Ack

Share = tuple[list[str], list[str]]
"""What became of each enqueue, and the ids of the jobs that were completed here."""


def take_part(url: str, jobs: Sequence[NewJob], claim: Claim, now: datetime) -> Share:
    """Open the store by its URL, enqueue these jobs one by one, then work until nothing is left."""

    async def live() -> Share:
        async with connect(url) as driver:
            results = [str(answer.result) for job in jobs for answer in await driver.enqueue([job], now=now)]
            return results, await work_off(driver, claim, now)

    return asyncio.run(live())


async def work_off(driver: Driver, claim: Claim, now: datetime) -> list[str]:
    """Claim and settle in one call until a claim comes back empty."""
    mine: list[str] = []
    settlements: list[Ack] = []
    while True:
        answers = await driver.exchange(settlements, claim, now=now)
        lost = [answer for answer in answers.settled if isinstance(answer, Exception)]
        if lost:
            raise lost[0]
        if not answers.claimed:
            return mine
        mine += [job.id for job in answers.claimed]
        settlements = [Ack(job.lease) for job in answers.claimed]
