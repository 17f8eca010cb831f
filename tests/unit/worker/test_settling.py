"""Settlements: batched, repeated after trouble, kept apart from a loss after a lost reply."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import msgspec
import pytest

from taskharbor.errors import DriverUnavailable, InvalidArgument
from taskharbor.events import AttemptFinished, LeaseWasLost
from taskharbor.model.settlement import Ack, Retry
from taskharbor.model.state import JobState
from taskharbor.worker.settling import Settler


def sleeps(seconds):
    async def handler(ctx, job):
        await ctx.clock.sleep(seconds)

    return handler


async def nothing(ctx, job):
    return None


async def test_jobs_that_end_together_are_settled_and_replaced_in_one_call(harness):
    await harness.put_many(30)
    await harness.run_until_idle(harness.worker({"work": nothing}, concurrency=10))

    sizes = [len(settlements) for settlements, _ in harness.driver.named("settle")]
    assert sizes == [10, 10, 10]


async def test_on_a_slow_store_too_jobs_that_end_together_leave_in_one_call(harness):
    def slowly():
        return harness.clock.sleep(0.01)

    harness.driver.before = {"settle": slowly, "reserve": slowly}
    await harness.put_many(50)
    await harness.run_until_idle(harness.worker({"work": nothing}, concurrency=10))

    sizes = [len(settlements) for settlements, _ in harness.driver.named("settle")]
    assert sizes == [10, 10, 10, 10, 10]


@pytest.mark.parametrize(
    ("is_remote", "options", "sizes", "ran_by_then"),
    [
        (True, {"concurrency": 400}, [200] * 6, [200, 400]),
        (True, {"concurrency": 100, "prefetch": 200}, [150] * 8, [150, 300]),
        (
            True,
            {"concurrency": 100, "prefetch": 0},
            [100] * 12,
            [100, 200],
        ),  # half of that is not worth a call
        (False, {"concurrency": 400}, [400] * 3, [400, 800]),  # nobody would work on the half
    ],
)
async def test_of_many_jobs_one_half_leaves_while_the_other_runs(
    harness, is_remote, options, sizes, ran_by_then
):
    harness.driver.capabilities = msgspec.structs.replace(harness.driver.capabilities, remote=is_remote)
    ran, ran_by_call = 0, []

    async def handler(ctx, job):
        nonlocal ran
        ran += 1

    def under_way():
        ran_by_call.append(ran)
        return harness.clock.sleep(0.01)

    harness.driver.before["settle"] = under_way
    await harness.put_many(1200)
    await harness.run_until_idle(harness.worker({"work": handler}, **options))

    # A slot that was just woken may run one job more.
    assert [len(batch) for batch, _ in harness.driver.named("settle")] == pytest.approx(sizes, abs=1)
    assert ran_by_call[:2] == pytest.approx(ran_by_then, abs=1)


async def test_a_half_whose_reply_was_lost_is_kept_apart_from_one_that_was_not_stored(harness):
    harness.driver.capabilities = msgspec.structs.replace(harness.driver.capabilities, remote=True)
    calls = 0

    def lose_some():
        nonlocal calls
        calls += 1
        if calls in (2, 3):
            raise DriverUnavailable("reply lost", done=None)

    harness.driver.after["settle"] = lose_some
    ids = await harness.put_many(1000)
    async with harness.at_work(
        harness.worker({"work": nothing}, concurrency=400, lease=timedelta(seconds=5))
    ):
        await harness.pass_time(30)  # what the lost replies had handed out comes back when its lease ends

    records = [await harness.job(job_id) for job_id in ids]
    assert {record.state for record in records} == {JobState.COMPLETED}
    settled = [event.job_id for event in harness.heard(AttemptFinished)]
    assert sorted(settled) == sorted(ids), "each is reported once, lost reply or not"


async def test_where_settling_takes_longer_than_a_lease_jobs_are_claimed_apart_from_it(harness):
    """C30: what came with a slow settlement was handed back by the next one, which took as long, for ever."""

    def slowly():
        return harness.clock.sleep(20)

    harness.driver.before = {"exchange": slowly, "settle": slowly}
    ids = await harness.put_many(4)
    async with harness.at_work(harness.worker({"work": nothing}, concurrency=1, lease=timedelta(seconds=15))):
        await harness.pass_time(200)

    assert [(await harness.job(job_id)).state for job_id in ids] == [JobState.COMPLETED] * 4


@pytest.mark.parametrize(("seconds", "apart"), [(0.3, True), (0.01, False)], ids=["slow", "quick"])
async def test_on_a_slow_line_a_retry_is_settled_before_jobs_are_claimed(harness, seconds, apart):
    """C67: a store takes several round trips for it, and jobs claimed beside it would lose them."""

    async def handler(ctx, job):
        await ctx.clock.sleep(0.05)
        if job.payload == b"fails":
            raise RuntimeError(job.payload)

    harness.driver.before = {"settle": lambda: harness.clock.sleep(seconds)}
    await harness.put_many(2)
    await harness.put(payload=b"fails")
    await harness.put_many(2)
    async with harness.at_work(harness.worker({"work": handler}, concurrency=1, lease=timedelta(seconds=3))):
        await harness.pass_time(10)

    claimed_at = {now for _, now in harness.driver.named("reserve")}
    settled_at = [
        (type(one), now) for settlements, now in harness.driver.named("settle") for one in settlements
    ]
    first_retry = next(now for kind, now in settled_at if kind is Retry)
    assert (first_retry not in claimed_at) == apart


async def test_a_job_that_ends_does_not_wait_for_the_extension_of_another(harness):
    async def handler(ctx, job):
        await ctx.clock.sleep(float(job.payload))

    async with harness.at_work(harness.worker({"work": handler}, lease=timedelta(seconds=30))):
        first = await harness.put(payload=b"10.2")
        await harness.pass_time(8)
        second = await harness.put(payload=b"2.5")  # its lease is fresh when that of the first is extended
        harness.driver.before["extend_leases"] = asyncio.Event().wait
        await harness.pass_time(4)

        assert (await harness.job(first)).state is JobState.RUNNING, "its extension is under way"
        assert (await harness.job(second)).state is JobState.COMPLETED


async def test_settlements_gather_while_a_call_is_under_way(harness):
    slow = asyncio.Event()

    async def handler(ctx, job):
        await ctx.clock.sleep(int(job.payload))

    for seconds in (1, 2, 3, 4):
        await harness.put(payload=str(seconds).encode())
    async with harness.at_work(harness.worker({"work": handler}, concurrency=4)):
        harness.driver.before["settle"] = slow.wait
        await harness.pass_time(5)
        slow.set()
        await harness.pass_time(1)

    assert [len(settlements) for settlements, _ in harness.driver.named("settle")] == [1, 3]


async def test_a_settlement_is_tried_until_the_store_takes_it(harness):
    tries = 0

    def fail():
        nonlocal tries
        tries += 1
        if tries <= 4:
            raise DriverUnavailable("not now")

    job_id = await harness.put()
    harness.driver.before["settle"] = fail
    async with harness.at_work(harness.worker({"work": nothing})):
        await harness.pass_time(10)

    assert (await harness.job(job_id)).state is JobState.COMPLETED
    assert tries == 5
    assert [event.outcome for event in harness.heard(AttemptFinished)] == ["completed"]


async def test_a_repeat_after_a_lost_reply_counts_as_done_only_when_it_was_stored(harness):
    def lose():
        harness.driver.after.clear()
        raise DriverUnavailable("reply lost", done=None)

    job_id = await harness.put()
    harness.driver.after["settle"] = lose
    async with harness.at_work(harness.worker({"work": nothing})):
        await harness.pass_time(2)

    assert [event.state for event in harness.heard(AttemptFinished)] == ["completed"]
    assert harness.heard(LeaseWasLost) == []
    assert (await harness.job(job_id)).version == 3, "enqueued, claimed, settled: once each"


async def test_a_repeat_after_a_lost_reply_of_a_retry_counts_once(harness):
    async def fails(ctx, job):
        raise ValueError

    def lose():
        harness.driver.after.clear()
        raise DriverUnavailable("reply lost", done=None)

    job_id = await harness.put(min_backoff=timedelta(hours=1), max_backoff=timedelta(hours=1))
    harness.driver.after["settle"] = lose
    async with harness.at_work(harness.worker({"work": fails})):
        await harness.pass_time(2)

    assert (await harness.job(job_id)).attempts == 1
    assert [event.outcome for event in harness.heard(AttemptFinished)] == ["retried"]


async def test_a_repeat_after_a_lost_reply_is_a_loss_when_somebody_else_settled(harness):
    async def lose():
        """The request never arrived, the lease ran out, and another worker did the job."""
        harness.driver.before.clear()
        records = harness.driver._store
        [record] = [job for job in records.jobs.values() if job.state is JobState.RUNNING]
        other = msgspec.structs.replace(record, token="e" * 32, worker_id="other")
        records.put(other)
        await harness.driver.settle([Ack(other.lease)], now=harness.clock.now())
        raise DriverUnavailable("no reply", done=None)

    await harness.put()
    harness.driver.before["settle"] = lose
    async with harness.at_work(harness.worker({"work": nothing})):
        await harness.pass_time(3)

    assert [event.cause for event in harness.heard(LeaseWasLost)] == ["settle"]
    assert harness.heard(AttemptFinished) == []


async def test_an_unclear_end_is_asked_about_until_the_store_answers(harness):
    asked = 0
    get = harness.driver.do_get

    async def flaky_get(ids, now):
        nonlocal asked
        asked += 1
        if asked <= 2:
            raise DriverUnavailable("not now")
        return await get(ids, now)

    def lose():
        harness.driver.after.clear()
        raise DriverUnavailable("reply lost", done=None)

    await harness.put()
    harness.driver.do_get = flaky_get
    harness.driver.after["settle"] = lose
    async with harness.at_work(harness.worker({"work": nothing})):
        await harness.pass_time(5)

    assert asked == 3
    assert [event.outcome for event in harness.heard(AttemptFinished)] == ["completed"]


async def test_one_settlement_that_no_store_would_take_fails_its_job_alone(harness, monkeypatch):
    """The net below all checks: a batch is never lost because of one of its items."""
    add = Settler.add

    def spoiled(self, held, settlement):
        if held.record.payload == b"bad":
            settlement = Retry(settlement.lease, delay=timedelta(days=99_999))
        add(self, held, settlement)

    monkeypatch.setattr(Settler, "add", spoiled)
    ids = [await harness.put(payload=payload) for payload in (b"", b"bad", b"")]
    await harness.run_until_idle(harness.worker({"work": nothing}))

    states = [(await harness.job(job_id)).state for job_id in ids]
    assert states == [JobState.COMPLETED, JobState.FAILED, JobState.COMPLETED]
    assert "cannot be settled" in ((await harness.job(ids[1])).last_error or "")


async def test_an_unclear_end_is_not_forgotten_when_a_later_settlement_fails(harness):
    """Stored unanswered, then refused as a batch, then sent one by one until the store went away."""
    calls = 0

    def before():
        nonlocal calls
        calls += 1
        if calls == 2:
            raise InvalidArgument("one of them is wrong")
        if calls == 4:
            raise DriverUnavailable("not now", done=False)

    def after():
        if calls == 1:
            raise DriverUnavailable("reply lost", done=None)

    await harness.put_many(2)
    harness.driver.before["settle"] = before
    harness.driver.after["settle"] = after
    async with harness.at_work(harness.worker({"work": nothing})) as task:
        await harness.pass_time(5)
        assert [event.outcome for event in harness.heard(AttemptFinished)] == ["completed"] * 2

    assert calls == 5
    assert task.done()


async def test_a_claim_that_fails_does_not_lose_the_answers_of_its_settlements(harness):
    exchange = harness.driver.do_exchange
    failures = 0

    async def half(settlements, claim, now):
        nonlocal failures
        answer = await exchange(settlements, claim, now)
        if settlements and not failures:
            failures += 1
            return msgspec.structs.replace(answer, claimed=[], error=DriverUnavailable("claim failed"))
        return answer

    harness.driver.do_exchange = half
    await harness.put()
    async with harness.at_work(harness.worker({"work": nothing})):
        await harness.pass_time(3)

    assert failures == 1
    assert [event.outcome for event in harness.heard(AttemptFinished)] == ["completed"]


async def test_durations_are_reported_and_the_worker_is_forgotten_at_its_end(harness):
    """R003-27, R003-29: failures count too."""

    async def fails(ctx, job):
        await ctx.clock.sleep(4)
        raise ValueError

    await harness.put("good")
    await harness.put("bad", max_attempts=1)
    worker = harness.worker({"good": sleeps(2), "bad": fails}, name="w1")
    async with harness.at_work(worker):
        await harness.pass_time(6)
        [seen] = await harness.driver.workers(now=harness.clock.now())
        assert (seen.report.worker_id, seen.report.name, seen.samples) == (worker.id, "w1", 2)
        assert seen.report.types == ("bad", "good")
        usual = {info.type: info.usual for info in await harness.driver.types(now=harness.clock.now())}
        assert usual == {"good": timedelta(seconds=2), "bad": timedelta(seconds=4)}

    assert await harness.driver.workers(now=harness.clock.now()) == []
