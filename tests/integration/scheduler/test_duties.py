"""A scheduler that is killed in the middle of its duties: nothing is lost, and nothing is done twice."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from taskharbor.drivers.messages import Claim
from taskharbor.model.queue import QueueSettings, Retention
from taskharbor.model.settlement import Ack
from taskharbor.model.speculation import SPECULATE_HEADER, Speculate, header_of
from taskharbor.model.state import JobState
from tests.integration.worker.processes import SLOW

MOMENT = timedelta(milliseconds=1)
RULE = header_of(Speculate(after=MOMENT, factor=1.0))


async def claim(harness, queue, worker_id="worker-a", lease_for=timedelta(hours=1)):
    claim = Claim(queues=(queue,), worker_id=worker_id, limit=10, lease_for=lease_for)
    return (await harness.driver.reserve(claim)).jobs


async def test_killed_after_every_duty_it_leaves_each_done_once(sqlite_harness):
    """Every step is one of the store's, so that it hardly matters which store this is."""
    await killed_after_every_duty(sqlite_harness)


@pytest.mark.long
async def test_killed_after_every_duty_it_does_so_on_every_store(shared_harness):
    await killed_after_every_duty(shared_harness)


async def killed_after_every_duty(harness):
    await harness.driver.configure_queue(QueueSettings(queue="old", retention=Retention(completed=MOMENT)))
    lapsed = await harness.add(queue="lapsed", max_stalls=9)
    await claim(harness, "lapsed", lease_for=MOMENT)
    due = await harness.add(queue="later", delay=MOMENT)
    old = await harness.add(queue="old")
    [done] = await claim(harness, "old")
    await harness.driver.settle([Ack(done.lease)])
    slow = await harness.add(queue="slow", headers={SPECULATE_HEADER: RULE})
    await claim(harness, "slow")

    verbs = ["reclaim", "promote", "speculate", "prune"]
    for verb in verbs:
        assert await harness.exit_code(harness.start_scheduler(ttl=0.3, dies=f"after_{verb}")) == -9
    harness.start_scheduler(ttl=0.3)
    async with asyncio.timeout(SLOW):
        while (await harness.driver.get([old]))[0] is not None:
            await asyncio.sleep(0.05)

    record = await harness.job(lapsed)
    assert (record.state, record.stalls, record.starts) == (JobState.READY, 1, 1)
    assert [job.id for job in await claim(harness, "later")] == [due]
    [copy] = await claim(harness, "slow", worker_id="worker-b")
    assert copy.speculates_on == slow
    assert await claim(harness, "slow", worker_id="worker-c") == []
