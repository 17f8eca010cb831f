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


async def steal(harness, job_id):
    """Another worker takes the job over, as after an expiry that ours did not notice."""
    record = harness.driver._store.jobs[job_id]
    import msgspec

    harness.driver._store.put(msgspec.structs.replace(record, token="f" * 32, worker_id="thief"))


async def test_heartbeats_keep_a_long_job_alive_and_it_runs_once(harness):
    """R000-27, R000-44"""
    job_id = await harness.put()
    async with harness.at_work(harness.worker({"work": sleeps(300)})):
        await harness.pass_time(301)
        record = await harness.job(job_id)

    assert (record.state, record.starts, record.stalls) == (JobState.COMPLETED, 1, 0)
    assert 29 <= len(harness.driver.named("extend_leases")) <= 31
    assert sum(event.count for event in harness.heard(LeasesExtended)) == len(
        harness.driver.named("extend_leases")
    )


async def test_one_call_extends_all_leases_of_the_worker(harness):
    await harness.put_many(50)
    async with harness.at_work(harness.worker({"work": sleeps(25)}, concurrency=50)):
        await harness.pass_time(30)

    sizes = [len(leases) for leases, _ in harness.driver.named("extend_leases")]
    assert sizes == [50, 50]
    ids = [lease.job_id for lease in harness.driver.named("extend_leases")[0][0]]
    assert ids == sorted(ids)


async def test_a_lease_that_is_still_fresh_is_left_for_the_next_beat(harness):
    await harness.put()
    async with harness.at_work(harness.worker({"work": sleeps(100)})):
        await harness.pass_time(8)
        young = await harness.put()
        await harness.pass_time(3)

    extended = [[lease.job_id for lease in leases] for leases, _ in harness.driver.named("extend_leases")]
    assert len(extended) == 1
    assert young not in extended[0]


async def test_the_newest_token_is_used_everywhere(harness):
    """R000-28: with a store that rotates the token at every extension the final ack still counts."""
    harness.driver.rotates_tokens = True
    job_id = await harness.put()
    async with harness.at_work(harness.worker({"work": sleeps(95)})):
        await harness.pass_time(96)

    assert (await harness.job(job_id)).state is JobState.COMPLETED
    sent = [leases[0].token for leases, _ in harness.driver.named("extend_leases")]
    [[ack], _] = next(call for call in harness.driver.named("settle") if call[0])
    assert len({*sent, ack.lease.token}) == len(sent) + 1 >= 9


async def test_a_refused_extension_stops_the_handler_and_nothing_is_reported(harness):
    """R000-29, R000-40, R002-8, R002-29"""
    seen: list[Any] = []
    job_id = await harness.put()
    async with harness.at_work(harness.worker({"work": sleeps(300, seen)})) as task:
        await harness.pass_time(1)
        await steal(harness, job_id)
        await harness.pass_time(11)
        assert seen == ["lease_lost"]
        assert not task.done()
        record = await harness.job(job_id)

    assert (record.state, record.worker_id) == (JobState.RUNNING, "thief")
    assert [(event.job_id, event.cause) for event in harness.heard(LeaseWasLost)] == [(job_id, "refused")]
    assert harness.heard(AttemptFinished) == []
    assert all(call[0] == [] for call in harness.driver.named("settle"))


async def test_a_network_blip_is_no_lost_lease(harness):
    """AM54, C31: the handler goes on while the lease can still be trusted."""
    job_id = await harness.put()
    async with harness.at_work(harness.worker({"work": sleeps(100)})):
        await harness.pass_time(9)
        harness.driver.before["extend_leases"] = broken(DriverUnavailable("blip"))
        await harness.pass_time(10)
        del harness.driver.before["extend_leases"]
        await harness.pass_time(90)

    record = await harness.job(job_id)
    assert (record.state, record.starts) == (JobState.COMPLETED, 1)
    assert harness.heard(LeaseWasLost) == []


async def test_without_an_answer_the_handler_stops_before_its_lease_ends(harness):
    """AM54, C32: 30 s of lease, less a tenth, counted from before the last good call was sent."""
    stopped = []

    async def handler(ctx, job):
        try:
            await ctx.clock.sleep(300)
        finally:
            stopped.append((ctx.cancelled.reason, ctx.clock.monotonic()))

    job_id = await harness.put()
    async with harness.at_work(harness.worker({"work": handler})):
        await harness.pass_time(15)  # one good beat, at 10 s
        harness.driver.before["extend_leases"] = broken(DriverUnavailable("black hole"))
        await harness.pass_time(60)
        lost_at = stopped[0][1]

    assert stopped[0][0] == "lease_lost"
    assert 37.0 <= lost_at < 40.0, "the store's end of the lease is at 40 s"
    assert next(event.cause for event in harness.heard(LeaseWasLost) if event.job_id == job_id) == "deadline"


async def test_an_extension_that_never_answers_blocks_nothing(harness):
    """C32: a call that hangs is given up, and the local deadline still holds."""
    seen: list[Any] = []
    hangs = asyncio.Event()
    await harness.put()
    async with harness.at_work(harness.worker({"work": sleeps(300, seen)})):
        harness.driver.before["extend_leases"] = hangs.wait
        await harness.pass_time(30)
        assert seen == ["lease_lost"]


async def test_an_answer_is_waited_for_although_a_lease_ends_meanwhile(harness):
    """C30: what the end of one lease cuts short, every other job would have to ask for again."""
    seen: list[Any] = []

    async def takes_three_seconds():
        await harness.clock.sleep(3)

    await harness.put()
    async with harness.at_work(harness.worker({"work": sleeps(300, seen)}, concurrency=2)):
        await harness.pass_time(1)
        harness.driver.before["extend_leases"] = broken(DriverUnavailable("blip"))
        await harness.pass_time(14)
        await harness.put()
        await harness.pass_time(10.5)
        asked = len(harness.driver.named("extend_leases"))
        harness.driver.before["extend_leases"] = takes_three_seconds
        await harness.pass_time(6)

        assert seen == ["lease_lost"], "the lease of the first ended at 27 s"
        assert len(harness.driver.named("extend_leases")) - asked == 1
        assert harness.heard(LeasesExtended) != []


async def test_a_failing_heartbeat_is_no_storm(harness):
    """C35"""
    await harness.put()
    async with harness.at_work(harness.worker({"work": sleeps(300)})):
        await harness.pass_time(9)
        harness.driver.before["extend_leases"] = broken(DriverUnavailable("gone"))
        await harness.pass_time(10)
        assert 5 <= len(harness.driver.named("extend_leases")) <= 50


async def test_a_job_is_not_extended_after_its_settlement_was_sent(harness):
    """R000-30"""
    await harness.put_many(3)
    async with harness.at_work(harness.worker({"work": sleeps(25)})):
        await harness.pass_time(120)

    verbs = [
        verb
        for verb, call in harness.driver.calls
        if verb == "extend_leases" or (verb == "settle" and call[0])
    ]
    assert verbs == ["extend_leases", "extend_leases", "settle"]


async def test_a_lease_is_not_extended_while_its_settlement_is_on_the_wire(harness):
    """AM55, and between two tries of a settlement it is extended."""
    slow = asyncio.Event()
    job_id = await harness.put()
    async with harness.at_work(harness.worker({"work": sleeps(9)})):
        harness.driver.before["settle"] = slow.wait
        await harness.pass_time(15)
        assert harness.driver.named("extend_leases") == []

        harness.driver.before["settle"] = broken(DriverUnavailable("not now"))
        slow.set()  # this first call still goes through
        await harness.pass_time(1)

    assert (await harness.job(job_id)).state is JobState.COMPLETED


async def test_between_two_tries_of_a_settlement_the_lease_is_extended(harness):
    """AM55"""
    job_id = await harness.put()
    async with harness.at_work(harness.worker({"work": sleeps(5)})):
        harness.driver.before["settle"] = broken(DriverUnavailable("not now"))
        await harness.pass_time(100)
        assert (await harness.job(job_id)).state is JobState.RUNNING
        assert len(harness.driver.named("extend_leases")) >= 8
        del harness.driver.before["settle"]
        await harness.pass_time(6)
        record = await harness.job(job_id)

    assert (record.state, record.starts, record.stalls) == (JobState.COMPLETED, 1, 0)


async def test_a_settlement_waits_for_the_extension_that_is_on_the_wire(harness):
    """R000-28, R000-30: and then leaves under the token that came with it."""
    slow = asyncio.Event()
    harness.driver.rotates_tokens = True
    job_id = await harness.put()
    async with harness.at_work(harness.worker({"work": sleeps(12)})):
        harness.driver.before["extend_leases"] = slow.wait
        await harness.pass_time(13)
        assert all(call[0] == [] for call in harness.driver.named("settle"))
        slow.set()
        await harness.pass_time(0.1)
        assert (await harness.job(job_id)).state is JobState.COMPLETED
    assert harness.heard(LeaseWasLost) == []


async def test_a_refusal_for_a_job_that_has_ended_is_ignored(harness):
    """The settlement was stored, its answer lost: the refused extension says nothing about the job."""
    calls = 0

    async def lose_reply():
        nonlocal calls
        calls += 1
        if calls <= 6:
            raise DriverUnavailable("reply lost", done=None)

    job_id = await harness.put()
    async with harness.at_work(harness.worker({"work": sleeps(9)})):
        harness.driver.after["settle"] = lose_reply
        await harness.pass_time(60)

    assert (await harness.job(job_id)).state is JobState.COMPLETED
    assert harness.heard(LeaseWasLost) == []
    assert [event.outcome for event in harness.heard(AttemptFinished)] == ["completed"]


async def test_progress_travels_with_the_heartbeat(harness):
    async def handler(ctx, job):
        ctx.progress(0.25, "a quarter")
        await ctx.clock.sleep(15)
        ctx.progress(7)
        await ctx.clock.sleep(15)

    job_id = await harness.put()
    async with harness.at_work(harness.worker({"work": handler})):
        await harness.pass_time(12)
        assert (await harness.job(job_id)).progress == Progress(0.25, "a quarter")
        await harness.pass_time(10)
        assert (await harness.job(job_id)).progress == Progress(1.0, "")


# ------------------------------------------------------------------ the guarantees


async def test_no_second_delivery_while_a_lease_is_valid(harness):
    """R000-41: many workers, one queue; a job held by one is never seen by another."""
    held: set[str] = set()
    runs: list[str] = []

    async def handler(ctx, job):
        assert job.id not in held
        held.add(job.id)
        runs.append(job.id)
        await ctx.clock.sleep(0.002)
        held.discard(job.id)

    ids = await harness.put_many(500)
    workers = [
        harness.worker({"work": handler}, concurrency=4, lease=timedelta(milliseconds=200)) for _ in range(8)
    ]
    tasks = [harness.start(worker, until_idle=True) for worker in workers]
    for task in tasks:
        await harness.until_done(task)

    assert sorted(runs) == sorted(ids)


async def test_a_job_whose_worker_vanished_runs_after_its_lease_and_not_before(harness):
    """R000-42"""
    ran_at = []

    async def handler(ctx, job):
        ran_at.append(ctx.clock.monotonic())

    job_id = await harness.put()
    claim = Claim(queues=("default",), worker_id="vanished", lease_for=timedelta(seconds=30))
    await harness.driver.reserve(claim, now=harness.clock.now())
    async with harness.at_work(harness.worker({"work": handler})):
        await harness.pass_time(40)

    assert len(ran_at) == 1
    assert 30 <= ran_at[0] < 32
    record = await harness.job(job_id)
    assert (record.stalls, record.attempts, record.state) == (1, 0, JobState.COMPLETED)


async def test_a_stale_worker_changes_nothing(harness):
    """R000-43: expired; waiting again; leased to another."""
    claim = Claim(queues=("default",), worker_id="stale", lease_for=timedelta(seconds=30))
    job_id = await harness.put()
    [mine] = (await harness.driver.reserve(claim, now=harness.clock.now())).jobs
    answers = []
    await harness.pass_time(31)
    answers += await harness.driver.settle([Ack(mine.lease)], now=harness.clock.now())
    await harness.driver.reclaim(now=harness.clock.now())
    answers += await harness.driver.settle([Ack(mine.lease)], now=harness.clock.now())
    await harness.driver.reserve(claim, now=harness.clock.now())
    answers += await harness.driver.settle([Ack(mine.lease)], now=harness.clock.now())

    assert [type(answer) for answer in answers] == [LeaseExpired, JobNotInflight, LeaseMismatch]
    assert (await harness.job(job_id)).state is JobState.RUNNING


async def test_a_worker_that_slept_past_its_lease_reports_nothing(harness):
    """R000-40, R000-43, C11: the whole process was stopped; its late settlement is refused."""

    async def handler(ctx, job):
        harness.clock.advance(timedelta(seconds=100))  # the machine slept
        await harness.driver.reclaim(now=harness.clock.now())

    job_id = await harness.put(max_stalls=1)
    async with harness.at_work(harness.worker({"work": handler})):
        await harness.pass_time(1)

    record = await harness.job(job_id)
    assert (record.state, record.failure_kind) == (JobState.FAILED, "stalled")
    assert [event.cause for event in harness.heard(LeaseWasLost)] == ["settle"]
    assert harness.heard(AttemptFinished) == []


@pytest.mark.parametrize(
    ("took", "starts"), [(timedelta(seconds=27) - MICROSECOND, 1), (timedelta(seconds=27), 2)]
)
async def test_a_lease_is_trusted_for_nine_tenths_and_not_a_microsecond_longer(harness, took, starts):
    """A claim of thirty seconds whose answer takes that long: begun just before, handed back from then on."""

    async def handler(ctx, job):
        pass

    async def slow():
        harness.clock.advance(took)
        harness.driver.after.clear()

    job_id = await harness.put()
    harness.driver.after["reserve"] = slow
    async with harness.at_work(harness.worker({"work": handler})):
        await harness.pass_time(2.5)
        record = await harness.job(job_id)

    assert (record.state, record.starts, record.stalls) == (JobState.COMPLETED, starts, 0)


async def test_a_claim_that_took_longer_than_its_lease_is_not_begun(harness):
    ran = []

    async def handler(ctx, job):
        ran.append(job.id)

    async def slow():
        harness.clock.advance(timedelta(seconds=28))
        harness.driver.after.clear()

    job_id = await harness.put()
    harness.driver.after["reserve"] = slow
    async with harness.at_work(harness.worker({"work": handler})):
        await harness.pass_time(5)
        assert ran == [job_id]
        record = await harness.job(job_id)

    assert (record.starts, record.stalls, record.attempts) == (2, 0, 0), "handed back untouched, then run"


@pytest.mark.parametrize("lease_ms", [200, 1000, 5000])
async def test_short_leases_are_kept_alive_too(harness, lease_ms):
    job_id = await harness.put()
    lease = timedelta(milliseconds=lease_ms)
    async with harness.at_work(harness.worker({"work": sleeps(10)}, lease=lease)):
        await harness.pass_time(11)
        record = await harness.job(job_id)

    assert (record.state, record.starts) == (JobState.COMPLETED, 1)
