"""Lanes from end to end, on every store: who takes what, in which order, and what becomes of the rest."""

from __future__ import annotations

import pytest

from taskharbor.model.state import JobState
from tests.integration.scheduler.scheduler_fixture import AT_ONCE


def noting(came):
    async def handler(ctx, job):
        came.append(job.payload.decode())

    return handler


@pytest.mark.parametrize(
    ("kind", "order"),
    [
        ("cpu", ["cpu 9", "cpu 0", "any 50", "any 0"]),
        ("gpu", ["gpu 9", "gpu 0", "any 50", "any 0"]),
        ("any", ["any 50", "any 0"]),
        ("arm", ["arm 0", "any 50", "any 0"]),
    ],
)
async def test_a_worker_prefers_its_own_lane_and_then_takes_any(harness, kind, order):
    """Even over a higher priority in `any`; never the lane of somebody else."""
    came: list[str] = []
    jobs = [("any", 0), ("any", 50), ("cpu", 0), ("gpu", 0), ("arm", 0), ("cpu", 9), ("gpu", 9)]
    ids = {
        f"{lane} {level}": await harness.add(
            requires=lane, priority=level, payload=f"{lane} {level}".encode()
        )
        for lane, level in jobs
    }

    async with harness.working(noting(came), kind=kind, concurrency=1):
        await harness.all_ended([ids[name] for name in order])

    assert came == order
    rest = [job_id for name, job_id in ids.items() if name not in order]
    assert [(await harness.job(job_id)).state for job_id in rest] == [JobState.READY] * len(rest)


async def test_a_list_of_lanes_is_kept_as_given(harness):
    came: list[str] = []
    ids = [await harness.add(requires=lane, payload=lane.encode()) for lane in ("gpu", "cpu", "any")]

    async with harness.working(noting(came), lanes=["any", "cpu", "gpu"], concurrency=1):
        await harness.all_ended(ids)

    assert came == ["any", "cpu", "gpu"]


async def test_lane_and_priority_survive_a_retry_and_a_replay(harness):
    attempts = []

    async def handler(ctx, job):
        attempts.append((job.requires, job.priority))
        if len(attempts) == 1:
            raise ValueError("again")

    async with (
        harness.working(handler, kind="any", retry=AT_ONCE),
        harness.working(handler, kind="gpu", retry=AT_ONCE),
    ):
        job_id = await harness.add(requires="gpu", priority=7, max_attempts=3)
        record = await harness.ended(job_id)
        await harness.driver.requeue([job_id])
        again = await harness.when(job_id, lambda job: job.state.is_terminal and job.starts > record.starts)

    assert attempts == [("gpu", 7)] * 3
    assert (again.requires, again.priority) == ("gpu", 7)
