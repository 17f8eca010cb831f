"""A worker with a rare lane leaves jobs of `any` to idle workers without it, for a moment and no longer."""

from __future__ import annotations

import pytest

from taskharbor.model.state import JobState
from taskharbor.worker.claimed_lanes import HOLD_BACK_SECONDS, ClaimedLanes, holds_back

ALL, OWN = ("gpu", "any"), ("gpu",)
HOLD = HOLD_BACK_SECONDS


# ------------------------------------------------------------------ which lanes, when


@pytest.mark.parametrize(
    "lanes", [("any",), ("cpu", "any"), ("any", "cpu", "gpu"), ("gpu",), ("gpu", "any", "cpu")]
)
def test_a_worker_with_nothing_rare_or_with_any_first_does_not_hold_back(lanes):
    assert not holds_back(lanes)


def test_any_is_asked_for_only_after_others_had_their_time():
    chosen = ClaimedLanes(ALL)

    chosen.woken(10.0)

    assert chosen.now(10.0) == OWN
    assert not chosen.answered(OWN, [], 1, 10.0)
    assert chosen.now(10.0 + HOLD * 0.9) == OWN
    assert chosen.now(10.0 + HOLD) == ALL


def test_a_look_that_left_slots_free_is_followed_by_one_at_all_lanes():
    chosen = ClaimedLanes(ALL)

    chosen.answered(OWN, [], 1, 5.0)

    assert chosen.asks_all_at == 5.0 + HOLD


def test_news_without_end_does_not_keep_it_from_any_for_ever():
    chosen = ClaimedLanes(ALL)

    for step in range(40):
        chosen.woken(step * HOLD / 10)

    assert chosen.asks_all_at == 2 * HOLD


def test_news_that_came_while_it_had_no_slot_does_not_count():
    chosen = ClaimedLanes(ALL)
    chosen.woken(0.0)

    chosen.woken(100.0)

    assert chosen.now(100.0) == OWN


async def test_while_any_brings_something_it_goes_on_with_it(harness):
    [common, rare] = [await harness.job(await harness.put(requires=lane)) for lane in ("any", "gpu")]
    chosen = ClaimedLanes(ALL)

    assert not chosen.answered(ALL, [common], 1, 0.0)
    chosen.woken(0.0)
    assert chosen.now(0.0) == ALL

    assert not chosen.answered(ALL, [rare], 1, 1.0)
    assert chosen.now(1.0) == OWN


def test_a_look_at_all_lanes_that_brings_nothing_is_not_the_one_that_is_parked():
    chosen = ClaimedLanes(ALL)
    chosen.polled(0.0)
    assert chosen.now(0.0) == ALL

    assert chosen.answered(ALL, [], 1, 0.0)

    assert chosen.now(0.0) == OWN
    assert not chosen.answered(OWN, [], 1, 0.0)
    assert chosen.asks_all_at is None  # not round and round: the poll, or news, comes next


# ------------------------------------------------------------------ workers


def noted(who, ran):
    async def handler(ctx, job):
        ran.append(who)

    return {"work": handler}


async def test_an_idle_worker_without_a_gpu_comes_first(harness):
    ran: list[str] = []
    gpu = harness.worker(noted("gpu", ran), kind="gpu", concurrency=1)
    cpu = harness.worker(noted("cpu", ran), kind="cpu", concurrency=1)

    async with harness.at_work(gpu), harness.at_work(cpu):
        for _ in range(50):
            await harness.pass_time(0.37)
            await harness.put(requires="any")
        await harness.pass_time(1)
        await harness.put(requires="gpu")
        await harness.pass_time(0.01)

    assert ran == ["cpu"] * 50 + ["gpu"]


async def test_when_the_others_are_busy_it_helps_at_full_speed(harness):
    async def slow(ctx, job):
        await harness.clock.sleep(10)

    gpu = harness.worker({"work": slow}, kind="gpu", concurrency=1)
    cpu = harness.worker({"work": slow}, kind="cpu", concurrency=1)
    async with harness.at_work(gpu), harness.at_work(cpu):
        ids = await harness.put_many(6, requires="any")
        await harness.pass_time(30 + 2 * HOLD + 0.1)
        states = [(await harness.job(job_id)).state for job_id in ids]

    assert states == [JobState.COMPLETED] * 6


async def test_alone_it_takes_any_after_a_moment_and_ends_only_when_nothing_is_left(harness):
    ran: list[str] = []
    [job_id] = await harness.put_many(1, requires="any")

    await harness.run_until_idle(harness.worker(noted("gpu", ran), kind="gpu"))

    assert ran == ["gpu"]
    record = await harness.job(job_id)
    assert (record.started_at - record.created_at).total_seconds() == pytest.approx(HOLD)
