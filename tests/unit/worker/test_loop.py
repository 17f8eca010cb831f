"""The worker's loop: R000-12 to R000-18, R002-21, and what a claim asks for."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from taskharbor.errors import ConfigurationError, DriverUnavailable, InvalidArgument
from taskharbor.events import DriverTrouble, WorkerStarted, WorkerStopped
from taskharbor.model.limits import RateLimit
from taskharbor.model.state import JobState
from taskharbor.tasks import job_handler
from taskharbor.worker import Worker, WorkerOptions


async def nothing(ctx, job):
    return None


async def test_run_stops_on_request_even_during_the_idle_sleep(harness):
    """R000-12"""
    worker = harness.worker({"work": nothing}, poll=timedelta(hours=1))
    task = harness.start(worker)
    await harness.pass_time(1)
    assert not task.done()

    worker.stop()
    await harness.pass_time(0)

    assert task.done()


async def test_a_stop_before_the_run_ends_it_at_once(harness):
    """R000-12"""
    job_id = await harness.put()
    worker = harness.worker({"work": nothing})

    worker.stop()
    await harness.until_done(harness.start(worker))

    assert (await harness.job(job_id)).state is JobState.READY


async def test_never_more_handlers_at_once_than_its_concurrency(harness):
    """R000-13, R002-21"""
    running, most = 0, 0

    async def handler(ctx, job):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await ctx.clock.sleep(0.3)
        running -= 1

    await harness.put_many(20)
    await harness.run_until_idle(harness.worker({"work": handler}, concurrency=3))

    assert most == 3


async def test_run_waits_for_the_handlers_in_progress(harness):
    """R000-14: settling works after the stop began, too (R000-24)."""
    go_on = asyncio.Event()

    async def handler(ctx, job):
        await go_on.wait()

    job_id = await harness.put()
    worker = harness.worker({"work": handler})
    task = harness.start(worker)
    await harness.pass_time(0.1)

    worker.stop()
    await harness.pass_time(5)
    assert not task.done()
    go_on.set()
    await harness.until_done(task)

    assert (await harness.job(job_id)).state is JobState.COMPLETED


async def test_every_call_carries_the_time_of_the_clock_it_was_given(harness):
    """R000-15"""
    await harness.put()
    async with harness.at_work(harness.worker({"work": nothing})):
        await harness.pass_time(1)

    claim, now = harness.driver.named("reserve")[0]
    assert (claim.lease_for, now) == (timedelta(seconds=30), harness.clock._start)
    assert all(now is not None for _, now in harness.driver.named("reserve"))


async def test_a_job_is_claimed_only_into_a_free_slot(harness):
    """R000-16: the second job stays ready while the only slot is busy."""
    go_on = asyncio.Event()

    async def handler(ctx, job):
        await go_on.wait()

    first, second = await harness.put_many(2)
    async with harness.at_work(harness.worker({"work": handler}, concurrency=1)):
        await harness.pass_time(60)
        assert (await harness.job(first)).state is JobState.RUNNING
        assert (await harness.job(second)).state is JobState.READY
        go_on.set()
        await harness.pass_time(0.1)
        assert (await harness.job(second)).state is JobState.COMPLETED


async def test_with_prefetch_jobs_wait_in_the_process_and_are_heartbeated(harness):
    go_on = asyncio.Event()

    async def handler(ctx, job):
        await go_on.wait()

    ids = await harness.put_many(4)
    worker = harness.worker({"work": handler}, concurrency=1, prefetch=2)
    task = harness.start(worker)
    await harness.pass_time(120)
    states = [(await harness.job(job_id)).state for job_id in ids]
    assert states == [JobState.RUNNING] * 3 + [JobState.READY]

    worker.stop()
    await harness.pass_time(0)
    states = [(await harness.job(job_id)).state for job_id in ids]
    assert states == [JobState.RUNNING] + [JobState.READY] * 3
    go_on.set()
    await harness.until_done(task)

    waited = await harness.job(ids[1])
    assert (waited.attempts, waited.stalls, waited.starts) == (0, 0, 1)


async def test_an_idle_worker_polls_again_and_finds_what_has_become_due(harness):
    """R000-17"""
    job_id = await harness.put(delay=timedelta(seconds=10))
    async with harness.at_work(harness.worker({"work": nothing})):
        await harness.pass_time(9.9)
        assert (await harness.job(job_id)).state is JobState.SCHEDULED
        await harness.pass_time(1.1)
        assert (await harness.job(job_id)).state is JobState.COMPLETED


async def test_new_work_wakes_an_idle_worker_without_a_poll(harness):
    worker = harness.worker({"work": nothing}, poll=timedelta(hours=1))
    async with harness.at_work(worker):
        await harness.pass_time(1)
        job_id = await harness.put()
        await harness.pass_time(0)
        assert (await harness.job(job_id)).state is JobState.COMPLETED


async def test_a_failing_store_is_waited_for_and_never_ends_the_loop(harness):
    """R000-17"""

    def fail():
        raise DriverUnavailable("gone fishing")

    job_id = await harness.put()
    harness.driver.before["reserve"] = fail
    async with harness.at_work(harness.worker({"work": nothing})) as task:
        await harness.pass_time(30)
        failed = len(harness.driver.named("reserve"))
        assert not task.done()
        assert 6 <= failed <= 20, "it waits longer each time, and no longer than five seconds"
        del harness.driver.before["reserve"]
        await harness.pass_time(5)
        assert (await harness.job(job_id)).state is JobState.COMPLETED

    troubles = harness.heard(DriverTrouble)
    assert [trouble.failures for trouble in troubles] == list(range(1, failed + 1))


async def test_a_bug_in_a_driver_does_not_end_the_loop_either(harness):
    """R000-17"""

    def fail():
        del harness.driver.before["reserve"]
        raise ZeroDivisionError

    job_id = await harness.put()
    harness.driver.before["reserve"] = fail
    async with harness.at_work(harness.worker({"work": nothing})):
        await harness.pass_time(1)
        assert (await harness.job(job_id)).state is JobState.COMPLETED


def test_the_heartbeat_is_a_third_of_the_lease_by_default():
    """R000-18, R002-7"""
    assert WorkerOptions(lease=timedelta(seconds=30)).renew_every == timedelta(seconds=10)
    assert (
        WorkerOptions(lease=timedelta(seconds=30), heartbeat=timedelta(seconds=14)).renew_every.seconds == 14
    )


def test_a_heartbeat_may_be_half_of_the_lease():
    """R004-18: every 5 s for a lease of 10 s."""
    config = WorkerOptions(lease=timedelta(seconds=10), heartbeat=timedelta(seconds=5))

    assert config.renew_every == timedelta(seconds=5)


async def test_with_a_heartbeat_of_half_the_lease_a_long_job_keeps_it(harness):
    async def long(ctx, job):
        await harness.clock.sleep(60)

    times = {"lease": timedelta(seconds=10), "heartbeat": timedelta(seconds=5)}
    job_id = await harness.put()
    async with (
        harness.at_work(harness.worker({"work": long}, **times)),
        harness.at_work(harness.worker({"work": long})),
    ):
        await harness.pass_time(61)

    record = await harness.job(job_id)
    assert (record.state, record.starts, record.stalls) == (JobState.COMPLETED, 1, 0)


@pytest.mark.parametrize(
    "settings",
    [
        {"heartbeat": timedelta(seconds=15, microseconds=1)},
        {"heartbeat": timedelta(seconds=31)},
        {"heartbeat": timedelta(0)},
        {"lease": timedelta(0)},
        {"concurrency": 0},
        {"concurrency": 10_001},
        {"prefetch": -1},
        {"queues": ()},
        {"queues": ("a", "a")},
        {"queues": ("no spaces",)},
        {"kind": ""},
        {"unknown_types": "ignore"},
        {"poll": timedelta(0)},
        {"grace": timedelta(seconds=-1)},
    ],
)
def test_settings_that_cannot_work_are_refused(settings):
    """R000-18"""
    with pytest.raises(ConfigurationError):
        WorkerOptions(**{"lease": timedelta(seconds=30), **settings})


def test_a_single_queue_name_in_place_of_a_list_is_refused(harness):
    with pytest.raises(ConfigurationError, match="takes a list"):
        Worker(harness.driver, queues="mail")


def test_registering_needs_a_type_and_a_handler(harness):
    """R000-2"""
    worker = harness.worker()
    with pytest.raises(ConfigurationError):
        worker.register("  ", nothing)
    with pytest.raises(ConfigurationError):
        worker.register("work", None)


async def test_registering_again_replaces_the_handler(harness):
    """R000-2"""
    worker = harness.worker({"work": nothing})

    async def other(ctx, job):
        return "other"

    worker.register("work", other)
    job_id = await harness.put()
    await harness.run_until_idle(worker)

    assert (await harness.job(job_id)).result == b'"other"'


async def test_queues_take_turns_unless_the_worker_is_strict(harness):
    for strict in (False, True):
        harness.driver.calls.clear()
        worker = harness.worker({"work": nothing}, queues=["a", "b", "c"], strict=strict)
        async with harness.at_work(worker):
            await harness.pass_time(5)
        firsts = {claim.queues[0] for claim, _ in harness.driver.named("reserve")}
        assert firsts == ({"a"} if strict else {"a", "b", "c"})


@pytest.mark.parametrize(
    ("settings", "lanes"),
    [
        ({"kind": "any"}, ("any",)),
        ({"kind": "cpu"}, ("cpu", "any")),
        ({"kind": "gpu"}, ("gpu", "any")),
        ({"kind": "gpu", "lanes": ("any", "cpu", "gpu")}, ("any", "cpu", "gpu")),
    ],
)
def test_the_kind_of_a_worker_picks_its_lanes(settings, lanes):
    assert WorkerOptions(**settings).claimed_lanes == lanes


async def test_a_worker_leaves_types_that_it_does_not_know_to_others(harness):
    known, unknown = await harness.put("known"), await harness.put("unknown")

    await harness.run_until_idle(harness.worker({"known": nothing}))

    assert (await harness.job(known)).state is JobState.COMPLETED
    assert ((await harness.job(unknown)).state, (await harness.job(unknown)).starts) == (JobState.READY, 0)


async def test_a_failure_job_without_a_handler_waits_for_one(harness):
    """The queue of failures is often watched by nobody at first: its jobs must not be buried for that."""
    job_id = await harness.put("taskharbor.failed")

    await harness.run_until_idle(harness.worker({"known": nothing}))

    assert (await harness.job(job_id)).state is JobState.READY


async def test_a_worker_that_is_set_to_it_buries_what_it_does_not_know(harness):
    job_id = await harness.put("unknown")

    await harness.run_until_idle(harness.worker({"known": nothing}, unknown_types="fail"))

    assert (await harness.job(job_id)).state is JobState.FAILED


async def test_a_worker_without_any_task_refuses_to_start_unless_it_is_allowed_to(harness):
    with pytest.raises(ConfigurationError, match=r"knows no task.*--include"):
        await harness.worker({}).arun()

    await harness.run_until_idle(harness.worker({}, unknown_types="fail"))


async def test_a_worker_says_at_its_start_which_tasks_it_runs(harness, caplog):
    caplog.set_level("INFO", logger="taskharbor.worker")

    await harness.run_until_idle(harness.worker({"b.two": nothing, "a.one": nothing}))

    started = [event for event in harness.events if isinstance(event, WorkerStarted)]
    assert "runs 2 tasks: a.one, b.two; jobs of other tasks are left to other workers" in caplog.text
    assert [event.types for event in started] == [("a.one", "b.two")]


async def test_a_worker_that_claims_nothing_more_says_so_in_its_report(harness):
    worker = harness.worker({"known": nothing})
    async with harness.at_work(worker):
        await harness.pass_time(1)
        [before] = await harness.driver.workers(now=harness.clock.now())
        worker.quiet()
        await harness.pass_time(10)
        [after] = await harness.driver.workers(now=harness.clock.now())

    assert (before.report.is_quiet, after.report.is_quiet) == (False, True)


async def test_a_handler_that_cannot_be_imported_cannot_run_in_a_process(harness):
    worker = harness.worker(clock=None)
    worker.add(job_handler("work", lambda ctx, job: None, run_in="process"))
    with pytest.raises(ConfigurationError, match="top level"):
        await worker.arun()


async def test_a_worker_can_run_again_under_a_new_id(harness):
    worker = harness.worker({"work": nothing})
    await harness.run_until_idle(worker)
    first = worker.id
    job_id = await harness.put()
    await harness.run_until_idle(worker)

    assert (await harness.job(job_id)).state is JobState.COMPLETED
    assert worker.id != first
    assert [event.worker_id for event in harness.heard(WorkerStarted)] == [first, worker.id]
    assert [event.why for event in harness.heard(WorkerStopped)] == ["idle", "idle"]


async def test_one_worker_runs_once_at_a_time(harness):
    worker = harness.worker({"work": nothing})
    async with harness.at_work(worker):
        with pytest.raises(ConfigurationError, match="already running"):
            await worker.arun()


async def test_the_blocking_run_is_refused_inside_an_event_loop(harness):
    with pytest.raises(InvalidArgument, match="await arun"):
        harness.worker({"work": nothing}).run()


async def test_it_ends_after_its_last_job_so_that_a_fresh_one_can_start(harness):
    await harness.put_many(10)
    worker = harness.worker({"work": nothing}, concurrency=1, max_jobs=4)
    await harness.until_done(harness.start(worker))

    assert [event.why for event in harness.heard(WorkerStopped)] == ["recycle"]
    counts = (await harness.driver.count(["default"], now=harness.clock.now()))["default"]
    assert (counts.completed, counts.ready) == (4, 6)


async def test_it_claims_no_more_than_it_may_still_do(harness):
    """Nothing is claimed only to be handed back, also when the last jobs end one by one."""

    async def handler(ctx, job):
        await ctx.clock.sleep(int(job.payload))

    ids = [await harness.put(payload=str(1 + place % 3).encode()) for place in range(12)]
    worker = harness.worker({"work": handler}, concurrency=4, max_jobs=6)
    await harness.until_done(harness.start(worker))

    records = [await harness.job(job_id) for job_id in ids]
    assert sum(record.starts for record in records) == 6
    assert [record.state for record in records].count(JobState.COMPLETED) == 6
    assert worker.counts.get("released", 0) == 0


async def test_a_worker_keeps_to_its_own_rate(harness):
    started = []

    async def handler(ctx, job):
        started.append(ctx.clock.monotonic())

    await harness.put_many(12)
    rate = RateLimit(5, timedelta(seconds=10))
    async with harness.at_work(harness.worker({"work": handler}, rate=rate)):
        await harness.pass_time(25)

    assert len(started) == 12
    assert all(later - earlier >= 10 for earlier, later in zip(started, started[5:], strict=False))


async def test_a_quiet_worker_claims_nothing_more_and_stays(harness):
    worker = harness.worker({"work": nothing})
    async with harness.at_work(worker) as task:
        worker.quiet()
        await harness.pass_time(0)
        job_id = await harness.put()
        await harness.pass_time(10)
        assert not task.done()
        assert (await harness.job(job_id)).state is JobState.READY


async def looks_within(harness, seconds, **options):
    """How often an idle worker that hears of nothing asks the store."""
    async with harness.at_work(harness.worker({"work": nothing}, **options)):
        await harness.pass_time(5)
        before = len(harness.driver.named("reserve"))
        await harness.pass_time(seconds)
        return len(harness.driver.named("reserve")) - before


async def test_an_idle_worker_may_look_less_and_less_often(harness):
    """R002-25"""
    steady = await looks_within(harness, 200)
    fewer = await looks_within(harness, 200, max_poll=timedelta(seconds=20))

    assert steady > 300
    assert fewer < 60


async def test_work_ends_the_long_waits(harness):
    worker = harness.worker({"work": nothing}, poll=timedelta(seconds=1), max_poll=timedelta(seconds=60))
    async with harness.at_work(worker):
        await harness.pass_time(600)
        job_id = await harness.put()
        await harness.pass_time(0.1)
        assert (await harness.job(job_id)).state is JobState.COMPLETED


def test_a_longest_poll_below_the_poll_is_refused():
    with pytest.raises(ConfigurationError, match="max_poll"):
        WorkerOptions(poll=timedelta(seconds=2), max_poll=timedelta(seconds=1))
