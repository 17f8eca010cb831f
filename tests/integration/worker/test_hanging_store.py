"""A store that takes a call and never answers: the worker goes on with the next one."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest

from taskharbor.drivers import connect
from taskharbor.drivers.contract import Driver
from taskharbor.drivers.relay import Relay
from taskharbor.model.clock import SystemClock
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import NewJob
from taskharbor.model.state import JobState
from taskharbor.model.worker_options import WorkerOptions
from taskharbor.worker import Worker

SLOW = 30.0


class Hanging(Relay):
    """Carries calls out, and keeps the answer of the first one of this verb for ever."""

    def __init__(self, inner: Driver, verb: str) -> None:
        super().__init__(inner)
        self.verb = verb
        self.hung = 0

    def another(self) -> Driver:
        return Relay(self.inner.another())

    async def carry(self, verb: str, args: tuple[Any, ...], now: datetime | None) -> Any:
        answer = await super().carry(verb, args, now)
        if verb == self.verb and not self.hung and (answer.jobs if verb == "reserve" else True):
            self.hung += 1
            await asyncio.Event().wait()
        return answer


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(WorkerOptions, "answer_seconds", 0.3)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("verb", "lease_seconds", "stalls"),
    [
        ("reserve", 1.5, 1),
        ("exchange", 20, 0),
    ],  # what a lost claim took comes back by its lease; a settlement counts
)
async def test_a_call_that_is_never_answered_does_not_stop_the_worker(verb, lease_seconds, stalls):
    runs = []

    async def handler(ctx, job):
        runs.append(job.id)

    async with connect("memory://hanging") as store:
        driver = Hanging(connect("memory://hanging"), verb)
        worker = Worker(driver, lease=timedelta(seconds=lease_seconds))
        worker.register("work", handler)
        working = asyncio.create_task(worker.arun())
        job_id = Entropy().job_id(SystemClock().now())
        await store.enqueue([NewJob(id=job_id, type="work", max_stalls=3)])

        async with asyncio.timeout(SLOW):
            while not (record := (await store.get([job_id]))[0]) or not record.state.is_terminal:
                await asyncio.sleep(0.01)
            while not driver.hung or worker.counts["finished"] < 1:
                await asyncio.sleep(0.01)
        worker.stop(now=True)
        await asyncio.wait_for(working, SLOW)

    assert (record.state, record.stalls, len(runs)) == (JobState.COMPLETED, stalls, 1)
    assert worker.counts["driver_errors"] >= 1
