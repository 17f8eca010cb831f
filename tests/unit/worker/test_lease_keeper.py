"""Leases while a handler runs: R000-27 to R000-30, R000-40 to R000-44, R002-8, R002-29, AM54, AM55."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from taskharbor.drivers.messages import Claim
from taskharbor.errors import DriverUnavailable, JobNotInflight, LeaseExpired, LeaseMismatch
from taskharbor.events import AttemptFinished, LeasesExtended, LeaseWasLost
from taskharbor.model.job import Progress
from taskharbor.model.settlement import Ack
from taskharbor.model.state import JobState

MICROSECOND = timedelta(microseconds=1)


def sleeps(seconds, seen=None):
    async def handler(ctx, job):
        try:
            await ctx.clock.sleep(seconds)
        finally:
            if seen is not None:
                seen.append(ctx.cancelled.reason)

    return handler


def broken(error):
    def fail():
        raise error

    return fail


async def steal(yard, job_id):
    """Another worker takes the job over, as after an expiry that ours did not notice."""
    record = yard.driver._store.jobs[job_id]
    import msgspec

    yard.driver._store.put(msgspec.structs.replace(record, token="f" * 32, worker_id="thief"))


async def test_heartbeats_keep_a_long_job_alive_and_it_runs_once(yard):
    """R000-27, R000-44"""
    job_id = await yard.put()
    async with yard.at_work(yard.worker({"work": sleeps(300)})):
        await yard.pass_time(301)
        record = await yard.job(job_id)

    assert (record.state, record.starts, record.stalls) == (JobState.COMPLETED, 1, 0)
    assert 29 <= len(yard.driver.named("extend_leases")) <= 31
    assert sum(event.count for event in yard.heard(LeasesExtended)) == len(yard.driver.named("extend_leases"))


async def test_one_call_extends_all_leases_of_the_worker(yard):
    await yard.put_many(50)
    async with yard.at_work(yard.worker({"work": sleeps(25)}, concurrency=50)):
        await yard.pass_time(30)

    sizes = [len(leases) for leases, _ in yard.driver.named("extend_leases")]
    assert sizes == [50, 50]
    ids = [lease.job_id for lease in yard.driver.named("extend_leases")[0][0]]
    assert ids == sorted(ids)


async def test_a_lease_that_is_still_fresh_is_left_for_the_next_beat(yard):
    await yard.put()
    async with yard.at_work(yard.worker({"work": sleeps(100)})):
        await yard.pass_time(8)
        young = await yard.put()
        await yard.pass_time(3)

    extended = [[lease.job_id for lease in leases] for leases, _ in yard.driver.named("extend_leases")]
    assert len(extended) == 1
    assert young not in extended[0]


async def test_the_newest_token_is_used_everywhere(yard):
    """R000-28: with a store that rotates the token at every extension the final ack still counts."""
    yard.driver.rotates_tokens = True
    job_id = await yard.put()
    async with yard.at_work(yard.worker({"work": sleeps(95)})):
        await yard.pass_time(96)

    assert (await yard.job(job_id)).state is JobState.COMPLETED
    sent = [leases[0].token for leases, _ in yard.driver.named("extend_leases")]
    [[ack], _] = next(call for call in yard.driver.named("settle") if call[0])
    assert len({*sent, ack.lease.token}) == len(sent) + 1 >= 9


async def test_a_refused_extension_stops_the_handler_and_nothing_is_reported(yard):
    """R000-29, R000-40, R002-8, R002-29"""
    seen: list[Any] = []
    job_id = await yard.put()
    async with yard.at_work(yard.worker({"work": sleeps(300, seen)})) as task:
        await yard.pass_time(1)
        await steal(yard, job_id)
        await yard.pass_time(11)
        assert seen == ["lease_lost"]
        assert not task.done()
        record = await yard.job(job_id)

    assert (record.state, record.worker_id) == (JobState.RUNNING, "thief")
    assert [(event.job_id, event.cause) for event in yard.heard(LeaseWasLost)] == [(job_id, "refused")]
    assert yard.heard(AttemptFinished) == []
    assert all(call[0] == [] for call in yard.driver.named("settle"))


async def test_a_network_blip_is_no_lost_lease(yard):
    """AM54, C31: the handler goes on while the lease can still be trusted."""
    job_id = await yard.put()
    async with yard.at_work(yard.worker({"work": sleeps(100)})):
        await yard.pass_time(9)
        yard.driver.before["extend_leases"] = broken(DriverUnavailable("blip"))
        await yard.pass_time(10)
        del yard.driver.before["extend_leases"]
        await yard.pass_time(90)

    record = await yard.job(job_id)
    assert (record.state, record.starts) == (JobState.COMPLETED, 1)
    assert yard.heard(LeaseWasLost) == []


async def test_without_an_answer_the_handler_stops_before_its_lease_ends(yard):
    """AM54, C32: 30 s of lease, less a tenth, counted from before the last good call was sent."""
    stopped = []

    async def handler(ctx, job):
        try:
            await ctx.clock.sleep(300)
        finally:
            stopped.append((ctx.cancelled.reason, ctx.clock.monotonic()))

    job_id = await yard.put()
    async with yard.at_work(yard.worker({"work": handler})):
        await yard.pass_time(15)  # one good beat, at 10 s
        yard.driver.before["extend_leases"] = broken(DriverUnavailable("black hole"))
        await yard.pass_time(60)
        lost_at = stopped[0][1]

    assert stopped[0][0] == "lease_lost"
    assert 37.0 <= lost_at < 40.0, "the store's end of the lease is at 40 s"
    assert next(event.cause for event in yard.heard(LeaseWasLost) if event.job_id == job_id) == "deadline"


async def test_an_extension_that_never_answers_blocks_nothing(yard):
    """C32: a call that hangs is given up, and the local deadline still holds."""
    seen: list[Any] = []
    hangs = asyncio.Event()
    await yard.put()
    async with yard.at_work(yard.worker({"work": sleeps(300, seen)})):
        yard.driver.before["extend_leases"] = hangs.wait
        await yard.pass_time(30)
        assert seen == ["lease_lost"]


async def test_an_answer_is_waited_for_although_a_lease_ends_meanwhile(yard):
    """C30: what the end of one lease cuts short, every other job would have to ask for again."""
    seen: list[Any] = []

    async def takes_three_seconds():
        await yard.clock.sleep(3)

    await yard.put()
    async with yard.at_work(yard.worker({"work": sleeps(300, seen)}, concurrency=2)):
        await yard.pass_time(1)
        yard.driver.before["extend_leases"] = broken(DriverUnavailable("blip"))
        await yard.pass_time(14)
        await yard.put()
        await yard.pass_time(10.5)
        asked = len(yard.driver.named("extend_leases"))
        yard.driver.before["extend_leases"] = takes_three_seconds
        await yard.pass_time(6)

        assert seen == ["lease_lost"], "the lease of the first ended at 27 s"
        assert len(yard.driver.named("extend_leases")) - asked == 1
        assert yard.heard(LeasesExtended) != []


async def test_a_failing_heartbeat_is_no_storm(yard):
    """C35"""
    await yard.put()
    async with yard.at_work(yard.worker({"work": sleeps(300)})):
        await yard.pass_time(9)
        yard.driver.before["extend_leases"] = broken(DriverUnavailable("gone"))
        await yard.pass_time(10)
        assert 5 <= len(yard.driver.named("extend_leases")) <= 50


async def test_a_job_is_not_extended_after_its_settlement_was_sent(yard):
    """R000-30"""
    await yard.put_many(3)
    async with yard.at_work(yard.worker({"work": sleeps(25)})):
        await yard.pass_time(120)

    verbs = [
        verb for verb, call in yard.driver.calls if verb == "extend_leases" or (verb == "settle" and call[0])
    ]
    assert verbs == ["extend_leases", "extend_leases", "settle"]


async def test_a_lease_is_not_extended_while_its_settlement_is_on_the_wire(yard):
    """AM55, and between two tries of a settlement it is extended."""
    slow = asyncio.Event()
    job_id = await yard.put()
    async with yard.at_work(yard.worker({"work": sleeps(9)})):
        yard.driver.before["settle"] = slow.wait
        await yard.pass_time(15)
        assert yard.driver.named("extend_leases") == []

        yard.driver.before["settle"] = broken(DriverUnavailable("not now"))
        slow.set()  # this first call still goes through
        await yard.pass_time(1)

    assert (await yard.job(job_id)).state is JobState.COMPLETED


async def test_between_two_tries_of_a_settlement_the_lease_is_extended(yard):
    """AM55"""
    job_id = await yard.put()
    async with yard.at_work(yard.worker({"work": sleeps(5)})):
        yard.driver.before["settle"] = broken(DriverUnavailable("not now"))
        await yard.pass_time(100)
        assert (await yard.job(job_id)).state is JobState.RUNNING
        assert len(yard.driver.named("extend_leases")) >= 8
        del yard.driver.before["settle"]
        await yard.pass_time(6)
        record = await yard.job(job_id)

    assert (record.state, record.starts, record.stalls) == (JobState.COMPLETED, 1, 0)


async def test_a_settlement_waits_for_the_extension_that_is_on_the_wire(yard):
    """R000-28, R000-30: and then leaves under the token that came with it."""
    slow = asyncio.Event()
    yard.driver.rotates_tokens = True
    job_id = await yard.put()
    async with yard.at_work(yard.worker({"work": sleeps(12)})):
        yard.driver.before["extend_leases"] = slow.wait
        await yard.pass_time(13)
        assert all(call[0] == [] for call in yard.driver.named("settle"))
        slow.set()
        await yard.pass_time(0.1)
        assert (await yard.job(job_id)).state is JobState.COMPLETED
    assert yard.heard(LeaseWasLost) == []


async def test_a_refusal_for_a_job_that_has_ended_is_ignored(yard):
    """The settlement was stored, its answer lost: the refused extension says nothing about the job."""
    calls = 0

    async def lose_reply():
        nonlocal calls
        calls += 1
        if calls <= 6:
            raise DriverUnavailable("reply lost", done=None)

    job_id = await yard.put()
    async with yard.at_work(yard.worker({"work": sleeps(9)})):
        yard.driver.after["settle"] = lose_reply
        await yard.pass_time(60)

    assert (await yard.job(job_id)).state is JobState.COMPLETED
    assert yard.heard(LeaseWasLost) == []
    assert [event.outcome for event in yard.heard(AttemptFinished)] == ["completed"]


async def test_progress_travels_with_the_heartbeat(yard):
    async def handler(ctx, job):
        ctx.progress(0.25, "a quarter")
        await ctx.clock.sleep(15)
        ctx.progress(7)
        await ctx.clock.sleep(15)

    job_id = await yard.put()
    async with yard.at_work(yard.worker({"work": handler})):
        await yard.pass_time(12)
        assert (await yard.job(job_id)).progress == Progress(0.25, "a quarter")
        await yard.pass_time(10)
        assert (await yard.job(job_id)).progress == Progress(1.0, "")


# ------------------------------------------------------------------ the guarantees


async def test_no_second_delivery_while_a_lease_is_valid(yard):
    """R000-41: many workers, one queue; a job held by one is never seen by another."""
    held: set[str] = set()
    runs: list[str] = []

    async def handler(ctx, job):
        assert job.id not in held
        held.add(job.id)
        runs.append(job.id)
        await ctx.clock.sleep(0.002)
        held.discard(job.id)

    ids = await yard.put_many(500)
    workers = [
        yard.worker({"work": handler}, concurrency=4, lease=timedelta(milliseconds=200)) for _ in range(8)
    ]
    tasks = [yard.start(worker, until_idle=True) for worker in workers]
    for task in tasks:
        await yard.until_done(task)

    assert sorted(runs) == sorted(ids)


async def test_a_job_whose_worker_vanished_runs_after_its_lease_and_not_before(yard):
    """R000-42"""
    ran_at = []

    async def handler(ctx, job):
        ran_at.append(ctx.clock.monotonic())

    job_id = await yard.put()
    claim = Claim(queues=("default",), worker_id="vanished", lease_for=timedelta(seconds=30))
    await yard.driver.reserve(claim, now=yard.clock.now())
    async with yard.at_work(yard.worker({"work": handler})):
        await yard.pass_time(40)

    assert len(ran_at) == 1
    assert 30 <= ran_at[0] < 32
    record = await yard.job(job_id)
    assert (record.stalls, record.attempts, record.state) == (1, 0, JobState.COMPLETED)


async def test_a_stale_worker_changes_nothing(yard):
    """R000-43: expired; waiting again; leased to another."""
    claim = Claim(queues=("default",), worker_id="stale", lease_for=timedelta(seconds=30))
    job_id = await yard.put()
    [mine] = (await yard.driver.reserve(claim, now=yard.clock.now())).jobs
    answers = []
    await yard.pass_time(31)
    answers += await yard.driver.settle([Ack(mine.lease)], now=yard.clock.now())
    await yard.driver.reclaim(now=yard.clock.now())
    answers += await yard.driver.settle([Ack(mine.lease)], now=yard.clock.now())
    await yard.driver.reserve(claim, now=yard.clock.now())
    answers += await yard.driver.settle([Ack(mine.lease)], now=yard.clock.now())

    assert [type(answer) for answer in answers] == [LeaseExpired, JobNotInflight, LeaseMismatch]
    assert (await yard.job(job_id)).state is JobState.RUNNING


async def test_a_worker_that_slept_past_its_lease_reports_nothing(yard):
    """R000-40, R000-43, C11: the whole process stood still; its late settlement is refused."""

    async def handler(ctx, job):
        yard.clock.advance(timedelta(seconds=100))  # the machine slept
        await yard.driver.reclaim(now=yard.clock.now())

    job_id = await yard.put(max_stalls=1)
    async with yard.at_work(yard.worker({"work": handler})):
        await yard.pass_time(1)

    record = await yard.job(job_id)
    assert (record.state, record.failure_kind) == (JobState.FAILED, "stalled")
    assert [event.cause for event in yard.heard(LeaseWasLost)] == ["settle"]
    assert yard.heard(AttemptFinished) == []


@pytest.mark.parametrize(
    ("took", "starts"), [(timedelta(seconds=27) - MICROSECOND, 1), (timedelta(seconds=27), 2)]
)
async def test_a_lease_is_trusted_for_nine_tenths_and_not_a_microsecond_longer(yard, took, starts):
    """A claim of thirty seconds whose answer takes that long: begun just before, handed back from then on."""

    async def handler(ctx, job):
        pass

    async def slow():
        yard.clock.advance(took)
        yard.driver.after.clear()

    job_id = await yard.put()
    yard.driver.after["reserve"] = slow
    async with yard.at_work(yard.worker({"work": handler})):
        await yard.pass_time(2.5)
        record = await yard.job(job_id)

    assert (record.state, record.starts, record.stalls) == (JobState.COMPLETED, starts, 0)


async def test_a_claim_that_took_longer_than_its_lease_is_not_begun(yard):
    ran = []

    async def handler(ctx, job):
        ran.append(job.id)

    async def slow():
        yard.clock.advance(timedelta(seconds=28))
        yard.driver.after.clear()

    job_id = await yard.put()
    yard.driver.after["reserve"] = slow
    async with yard.at_work(yard.worker({"work": handler})):
        await yard.pass_time(5)
        assert ran == [job_id]
        record = await yard.job(job_id)

    assert (record.starts, record.stalls, record.attempts) == (2, 0, 0), "handed back untouched, then run"


@pytest.mark.parametrize("lease_ms", [200, 1000, 5000])
async def test_short_leases_are_kept_alive_too(yard, lease_ms):
    job_id = await yard.put()
    lease = timedelta(milliseconds=lease_ms)
    async with yard.at_work(yard.worker({"work": sleeps(10)}, lease=lease)):
        await yard.pass_time(11)
        record = await yard.job(job_id)

    assert (record.state, record.starts) == (JobState.COMPLETED, 1)
