"""The meter: what it counts while real workers work, in virtual time."""

from __future__ import annotations

from datetime import timedelta

import pytest

from taskharbor import Harbor, JobContext
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.drivers.messages import Claim
from taskharbor.errors import DriverUnavailable, Unrecoverable
from taskharbor.events import (
    AttemptsAnswered,
    DutyRan,
    Event,
    EventBus,
    JobsClaimed,
    LoopBlocked,
    SpeculationStarted,
    SpeculationWatched,
)
from taskharbor.model.outcome import Cancel, Snooze
from taskharbor.model.retry import RetryPolicy
from taskharbor.model.speculation import SPECULATE_HEADER, Speculate, header_of
from taskharbor.observe import metric_names
from taskharbor.observe.meter import Meter
from taskharbor.observe.metric_names import MAX_SERIES, OTHER, RUN_BUCKETS, WAIT_BUCKETS, Metric
from taskharbor.observe.store_times import time_store
from taskharbor.testing import SimulatedClock, drain
from tests.unit.worker.worker_fixture import WorkerHarness

AT_ONCE = RetryPolicy(base=timedelta(milliseconds=1), jitter=0.0)


def metered(harness: WorkerHarness, handlers, **options):
    worker = harness.worker(handlers, **{"retry": AT_ONCE, **options})
    meter = Meter()
    meter.listen(worker.events)
    return worker, meter


def counted(meter: Meter, metric: Metric) -> dict[tuple[str, ...], float]:
    """What was counted, without what has not happened yet."""
    values = meter.sample().counters.get(metric.name, {})
    return {labels: value for labels, value in values.items() if value}


def ends(meter: Meter) -> dict[str, float]:
    found: dict[str, float] = {}
    for labels, value in counted(meter, metric_names.JOBS_FINISHED).items():
        found[labels[3]] = found.get(labels[3], 0) + value
    return found


async def test_every_end_of_an_attempt_is_counted_under_its_outcome(harness):
    async def work(ctx, job):
        what = job.payload.decode()
        if what == "retry" and ctx.attempt == 1:
            raise RuntimeError("not yet")
        if what == "failed":
            raise Unrecoverable("never")
        if what == "snooze" and not ctx.job.headers.get("slept"):
            return Snooze(timedelta(hours=1))
        return Cancel("not needed") if what == "cancel" else None

    worker, meter = metered(harness, {"work": work})
    for what in ("ok", "ok", "retry", "failed", "snooze", "cancel"):
        await harness.put(payload=what.encode())
    async with harness.at_work(worker):
        await harness.pass_time(5)

    assert ends(meter) == {"completed": 3, "retried": 1, "failed": 1, "snoozed": 1, "cancelled": 1}
    labels = set(meter.sample().counters[metric_names.JOBS_FINISHED.name])
    assert ("default", "work", "any", "completed") in labels


async def test_waits_and_runs_land_in_the_right_buckets(harness):
    async def work(ctx, job):
        await ctx.clock.sleep(3.0)

    await harness.put()
    await harness.pass_time(40)
    worker, meter = metered(harness, {"work": work})
    await harness.run_until_idle(worker)

    sample = meter.sample()
    [wait] = sample.curves[metric_names.JOB_WAIT.name].values()
    [run] = sample.curves[metric_names.JOB_RUN.name].values()
    assert wait.counts[WAIT_BUCKETS.index(60)] == sum(wait.counts) == 1
    assert wait.sum == pytest.approx(40, abs=1)
    assert run.counts[RUN_BUCKETS.index(0.01 * 2**9)] == sum(run.counts) == 1  # 5.12 s
    assert run.sum == pytest.approx(3, abs=0.5)


async def test_a_value_on_a_bound_belongs_to_the_bucket_below_it():
    meter = Meter()
    meter.observe(metric_names.STORE_OP, ("get",), 0.0005)
    meter.observe(metric_names.STORE_OP, ("get",), 11.0)

    curve = meter.sample().curves[metric_names.STORE_OP.name]["get",]

    assert (curve.counts[0], curve.counts[-1]) == (1, 1)


async def test_a_job_that_comes_back_after_a_stall_is_counted_and_its_run_was_no_wait(harness):
    async def work(ctx, job):
        return None

    job_id = await harness.put()
    claim = Claim(queues=("default",), worker_id="silent", lease_for=timedelta(seconds=10))
    await harness.driver.reserve(claim, now=harness.clock.now())
    await harness.pass_time(30)
    worker, meter = metered(harness, {"work": work})
    await harness.run_until_idle(worker)

    sample = meter.sample()
    assert counted(meter, metric_names.STALLS) == {("default", "work"): 1}
    assert (await harness.job(job_id)).stalls == 1
    [wait] = sample.curves[metric_names.JOB_WAIT.name].values()
    assert wait.sum < 1  # reclaimed and claimed in one step, however long ago it was put in


async def nothing(ctx, job):
    return None


async def stalled_to_death(harness: WorkerHarness, **fields) -> str:
    """A job whose only lease has run out; the next claim will give it up."""
    job_id = await harness.put(max_stalls=1, **fields)
    claim = Claim(queues=("default",), worker_id="silent", lease_for=timedelta(seconds=10))
    await harness.driver.reserve(claim, now=harness.clock.now())
    await harness.pass_time(30)
    return job_id


async def test_a_job_that_a_claim_gives_up_is_a_failed_one_and_a_stall(harness, caplog):
    job_id = await stalled_to_death(harness)
    worker, meter = metered(harness, {"work": nothing})
    await harness.run_until_idle(worker)

    assert (await harness.job(job_id)).failure_kind == "stalled"
    assert counted(meter, metric_names.JOBS_FINISHED) == {("default", "work", "any", "failed"): 1}
    assert counted(meter, metric_names.STALLS) == {("default", "work"): 1}
    assert worker.counts["given_up"] == 1
    [line] = [record for record in caplog.records if "given up" in record.getMessage()]
    assert line.levelname == "WARNING"
    assert (line.taskharbor_job_id, line.taskharbor_task, line.taskharbor_queue) == (
        job_id,
        "work",
        "default",
    )


@pytest.mark.parametrize("reset_counts", [True, False])
async def test_a_job_that_was_given_up_and_put_back_is_no_second_stall(harness, reset_counts):
    job_id = await stalled_to_death(harness)
    worker, meter = metered(harness, {"work": nothing})
    await harness.run_until_idle(worker)
    await harness.driver.requeue([job_id], reset_counts=reset_counts, now=harness.clock.now())
    await harness.run_until_idle(worker)

    assert counted(meter, metric_names.STALLS) == {("default", "work"): 1}
    assert ends(meter) == {"failed": 1, "completed": 1}


async def test_a_stall_that_made_one_job_of_two_is_counted(harness):
    claim = Claim(queues=("default",), worker_id="silent", lease_for=timedelta(seconds=10))
    await harness.put(key=b"k")
    await harness.driver.reserve(claim, now=harness.clock.now())
    await harness.put(key=b"k")
    await harness.pass_time(30)
    worker, meter = metered(harness, {"work": nothing})
    await harness.run_until_idle(worker)

    assert counted(meter, metric_names.STALLS) == {("default", "work"): 1}
    assert ends(meter) == {"completed": 1}


async def test_a_lease_lost_while_the_handler_works_on_is_a_lost_lease_and_a_double_run(harness):
    async def work(ctx, job):
        await ctx.clock.sleep(60)

    async def stubborn(ctx, job):
        try:
            await ctx.clock.sleep(60)
        except BaseException:  # noqa: BLE001 - that is what makes it stubborn
            await ctx.clock.sleep(0.5)

    worker, meter = metered(
        harness,
        {"work": work, "stubborn": stubborn},
        lease=timedelta(seconds=10),
        patience=timedelta(seconds=5),
    )
    await harness.put("work")
    await harness.put("stubborn")
    async with harness.at_work(worker):
        harness.driver.before["extend_leases"] = unavailable
        harness.driver.before["reserve"] = unavailable
        await harness.pass_time(40)

        assert counted(meter, metric_names.LEASES_LOST) == {("default",): 2}
        assert ends(meter) == {"lost": 2}
        assert counted(meter, metric_names.DOUBLE_RUNS) == {("default", "stubborn"): 1}
        harness.driver.before.clear()


async def test_a_result_that_the_store_refuses_is_a_double_run(harness):
    async def work(ctx, job):
        await ctx.clock.sleep(1)
        if not job.stalls:
            await harness.driver.reclaim(now=harness.clock.now() + timedelta(hours=1))

    worker, meter = metered(harness, {"work": work})
    await harness.put()
    async with harness.at_work(worker):
        await harness.pass_time(3)

        assert counted(meter, metric_names.DOUBLE_RUNS) == {("default", "work"): 1}
        assert ends(meter) == {"lost": 1, "completed": 1}


async def test_a_type_that_asked_for_second_runs_is_no_double_run(harness):
    async def work(ctx, job):
        await ctx.clock.sleep(1)
        await harness.driver.reclaim(now=harness.clock.now() + timedelta(hours=1))

    worker, meter = metered(harness, {"work": work})
    rule = header_of(Speculate(after=timedelta(seconds=1)))
    await harness.put(headers={SPECULATE_HEADER: rule})
    async with harness.at_work(worker):
        await harness.pass_time(3)

        assert not counted(meter, metric_names.DOUBLE_RUNS)
        assert counted(meter, metric_names.LEASES_LOST)


async def test_a_copy_that_is_first_is_a_win(harness):
    started = []

    async def work(ctx, job):
        started.append(job.id)
        if len(started) == 1:
            await ctx.clock.sleep(3600)

    job_id = await harness.put()
    slow, slow_meter = metered(harness, {"work": work}, name="slow")
    fast, fast_meter = metered(harness, {"work": work}, name="fast")
    async with harness.at_work(slow):
        await harness.pass_time(1)
        await harness.driver.speculate(job_id, now=harness.clock.now())
        async with harness.at_work(fast):
            await harness.pass_time(2)

    assert counted(fast_meter, metric_names.WINS) == {("default", "work"): 1}
    assert not counted(slow_meter, metric_names.WINS)


async def test_a_store_that_fails_counts_nothing_twice(harness):
    async def work(ctx, job):
        return None

    worker, meter = metered(harness, {"work": work})
    await harness.put()
    failures = iter((True, True))
    harness.driver.after["settle"] = lambda: unavailable() if next(failures, False) else None
    await harness.run_until_idle(worker)

    assert ends(meter) == {"completed": 1}  # stored at the first try, explained after the third


def unavailable():
    raise DriverUnavailable("away", done=None)


async def test_names_beyond_the_first_thousand_share_one_series(harness):
    meter = Meter()
    for number in range(MAX_SERIES + 50):
        meter.add_job(metric_names.JOBS_ENQUEUED, "mail", f"task-{number}")

    values = meter.sample().counters[metric_names.JOBS_ENQUEUED.name]

    assert len(values) == MAX_SERIES + 1
    assert values[OTHER, OTHER] == 50


async def test_tasks_can_be_left_out(harness):
    async def work(ctx, job):
        return None

    worker = harness.worker({"one": work, "two": work})
    meter = Meter(tasks=False)
    meter.listen(worker.events)
    await harness.put("one")
    await harness.put("two")
    await harness.run_until_idle(worker)

    sample = meter.sample()
    assert counted(meter, metric_names.JOBS_FINISHED) == {("default", "", "any", "completed"): 2}
    assert sum(sample.curves[metric_names.JOB_WAIT.name]["default", ""].counts) == 2


def test_listening_stops_on_request_and_costs_nothing_before_and_after():
    bus = EventBus()
    meter = Meter()
    assert bus.heard == frozenset()

    stop = meter.listen(bus)
    bus.emit(LoopBlocked(worker_id="w", seconds=1.0, where="f"))
    assert {JobsClaimed, AttemptsAnswered} <= bus.heard
    stop()
    bus.emit(LoopBlocked(worker_id="w", seconds=1.0, where="f"))

    assert bus.heard == frozenset()
    assert counted(meter, metric_names.LOOP_BLOCKED) == {(): 1.0}


def test_whole_batches_are_heard_only_by_those_who_ask_for_them():
    bus = EventBus()
    bus.listen(lambda event: None)

    assert JobsClaimed not in bus.heard
    assert AttemptsAnswered not in bus.heard
    assert LoopBlocked in bus.heard
    assert Event in bus.heard


def test_gauges_are_asked_with_every_sample_until_they_are_left_out():
    meter = Meter()
    values = iter((3.0, 5.0))
    stop = meter.ask(lambda: {metric_names.WORKER_BUSY.name: {("any",): next(values)}})

    assert meter.sample().gauges[metric_names.WORKER_BUSY.name] == {("any",): 3.0}
    assert meter.sample().gauges[metric_names.WORKER_BUSY.name] == {("any",): 5.0}
    stop()
    assert meter.sample().gauges == {}


def test_a_sample_does_not_change_when_counting_goes_on():
    meter = Meter()
    meter.observe(metric_names.STORE_OP, ("get",), 0.1)
    before = meter.sample()

    meter.observe(metric_names.STORE_OP, ("get",), 0.1)

    assert sum(before.curves[metric_names.STORE_OP.name]["get",].counts) == 1


async def test_what_has_not_happened_yet_is_shown_as_zero(harness):
    async def work(ctx, job):
        return None

    worker, meter = metered(harness, {"work": work})
    await harness.put()
    await harness.run_until_idle(worker)

    counters = meter.sample().counters
    for metric in (metric_names.DOUBLE_RUNS, metric_names.STALLS, metric_names.COPIES, metric_names.WINS):
        assert counters[metric.name] == {("default", "work"): 0}
    assert counters[metric_names.LEASES_LOST.name] == {("default",): 0}
    assert counters[metric_names.JOBS_FINISHED.name]["default", "work", "any", "failed"] == 0


async def test_second_runs_are_shown_as_zero_where_the_scheduler_starts_them():
    """The process of the leading scheduler claims nothing, so no claim of its own brings the zero."""
    meter, bus = Meter(), EventBus()
    meter.listen(bus)

    bus.emit(SpeculationWatched(type="work", queue="default"))
    before = meter.sample().counters[metric_names.COPIES.name]
    bus.emit(SpeculationStarted(job_id="a", copy_id="b", type="work", queue="default", ran_seconds=1.0))

    assert before == {("default", "work"): 0}
    assert meter.sample().counters[metric_names.COPIES.name] == {("default", "work"): 1}


def test_what_a_scheduler_counts_is_shown_as_zero_before_it_happens():
    meter, bus = Meter(), EventBus()
    meter.listen(bus)
    meter.ask(lambda: {metric_names.SCHEDULE_LAG.name: {("nightly",): 0.0}})

    bus.emit(DutyRan(duty="sweep", count=0, seconds=0.1))

    counters = meter.sample().counters
    assert counters[metric_names.DUTY_JOBS.name] == {("sweep",): 0}
    assert counters[metric_names.DUTY_ERRORS.name] == {("sweep",): 0}
    assert counters[metric_names.SCHEDULE_FIRES.name] == {("nightly", "fired"): 0, ("nightly", "error"): 0}
    assert counters[metric_names.ORPHANS.name] == {(): 0}


async def test_entries_that_lost_their_job_are_counted_with_the_call_that_met_them():
    meter = Meter()
    driver = time_store(MemoryDriver(), meter)
    async with driver:
        driver.orphans.note(["a", "b"])
        await driver.count()
        await driver.count()

    assert meter.sample().counters[metric_names.ORPHANS.name] == {(): 2}


def test_workflows_are_counted_as_a_whole() -> None:
    meter = Meter()
    with Harbor("memory://", clock=SimulatedClock(), retry=RetryPolicy(max_attempts=1)) as harbor:
        meter.listen(harbor.events)

        @harbor.task
        async def works(number: int = 0) -> int:
            return number

        @harbor.task
        async def fails() -> None:
            raise ValueError("no")

        @harbor.task
        async def asks(ctx: JobContext) -> None:
            await ctx.astep("once", int)
            await ctx.asleep("pause", "10s")

        flow = harbor.workflow("order")
        flow.add(harbor.group([works.call(1), works.call(2)]), name="many")
        flow.enqueue()
        harbor.chain(works.call(1), fails, name="broken").enqueue()
        late = harbor.workflow("late", deadline="1m")
        late.event("approval", timeout="1h")
        late.enqueue()
        asks.enqueue()
        drain(harbor, within="2m")

    assert counted(meter, metric_names.WORKFLOWS_ENDED) == {
        ("order", "completed"): 1,
        ("broken", "failed"): 1,
        ("late", "failed"): 1,
    }
    curves = meter.sample().curves[metric_names.WORKFLOW_SECONDS.name]
    assert {task: sum(curve.counts) for (task,), curve in curves.items()} == {
        "order": 1,
        "broken": 1,
        "late": 1,
    }
    assert counted(meter, metric_names.DEADLINES_MISSED) == {("default", "late"): 1}
    assert counted(meter, metric_names.PARKS)["default", "asks"] == 1
    assert counted(meter, metric_names.STEPS) == {("false",): 1, ("true",): 1}
