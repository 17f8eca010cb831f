"""What TaskHarbor offers to the tests of programs that use it."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import timedelta

import pytest

from taskharbor.errors import PayloadError, UnknownTask, Unrecoverable
from taskharbor.harbor import Harbor
from taskharbor.model.outcome import Snooze
from taskharbor.model.state import JobState
from taskharbor.testing import (
    InlineHarbor,
    SimulatedClock,
    adrain,
    assert_enqueued,
    assert_not_enqueued,
    drain,
    enqueued,
    in_memory,
    run_inline,
)
from taskharbor.worker.attempt import JobContext


@dataclass
class Address:
    street: str


@pytest.fixture
def clock():
    return SimulatedClock()


@pytest.fixture
def harbor(clock):
    with Harbor("memory://", clock=clock) as harbor:
        yield harbor


# ------------------------------------------------------------------ InlineHarbor


def test_a_program_runs_its_own_harbor_inline_for_the_length_of_a_block(harbor):
    @harbor.task
    def add(a: int, b: int) -> int:
        return a + b

    @harbor.task
    def boom() -> None:
        raise RuntimeError("no luck")

    with run_inline(harbor):
        assert add.enqueue(1, 2).result() == 3
        with pytest.raises(RuntimeError, match="no luck"):
            boom.enqueue()
    with run_inline(harbor, raises=False):
        assert boom.enqueue().state is JobState.SCHEDULED

    assert add.enqueue(1, 2).state is JobState.READY
    assert len(enqueued(harbor)) == 1


def test_an_inline_harbor_refuses_a_task_that_it_does_not_have(harbor):
    @harbor.task
    def foreign() -> None: ...

    with InlineHarbor() as inline:

        @inline.task
        def own() -> None: ...

        with pytest.raises(UnknownTask, match=r"'foreign'; known: own"):
            inline.enqueue_many([foreign.call()])
        assert enqueued(inline) == []
    with InlineHarbor(raises=False) as inline:
        [job] = inline.enqueue_many([foreign.call()])
        assert job.state is JobState.READY


# ------------------------------------------------------------------ schedules


def test_drain_fires_schedules_up_to_its_end(harbor, clock):
    ran = []

    @harbor.cron(every="1h")
    @harbor.task
    def often() -> None:
        ran.append(clock.now())

    drain(harbor)
    assert ran == []
    began = clock.now()

    drain(harbor, within="1d")

    assert len(ran) == 24
    assert [at.minute for at in ran] == [0] * 24
    assert clock.now() <= began + timedelta(days=1)
    harbor.schedules.pause("often")
    drain(harbor, within="1d")
    assert len(ran) == 24


def test_exceptions_decide_about_another_try(harbor):
    """By class or by name, and by what they inherit from; what is not named follows the policy."""

    @harbor.task(retry_on=ConnectionError, no_retry_on=["ConnectionAbortedError"], max_attempts=3)
    def call(kind: str) -> None:
        raise {"reset": ConnectionResetError, "aborted": ConnectionAbortedError, "key": KeyError}[kind]("no")

    jobs = [call.enqueue(kind) for kind in ("reset", "aborted", "key")]
    drain(harbor)

    assert [(job.record.attempts, job.record.failure_kind) for job in jobs] == [
        (3, "error"),
        (1, "unrecoverable"),
        (1, "unrecoverable"),
    ]


def test_a_handler_knows_how_often_its_job_was_started_and_stalled(harbor):
    seen = []

    @harbor.task(max_attempts=2)
    def count(ctx: JobContext) -> None:
        seen.append((ctx.attempt, ctx.job.starts, ctx.stalls))
        if len(seen) == 1:
            raise RuntimeError("once more")

    count.enqueue()
    drain(harbor)

    assert seen == [(1, 1, 0), (2, 2, 0)]


def test_an_inline_harbor_runs_the_job_within_the_enqueue():
    with InlineHarbor() as harbor:

        @harbor.task
        def add(a: int, b: int) -> int:
            return a + b

        job = add.enqueue(1, 2)

        assert job.state is JobState.COMPLETED
        assert job.result() == 3


async def test_an_inline_harbor_in_async_code():
    async with InlineHarbor() as harbor:

        @harbor.task
        async def street(address: Address) -> str:
            return address.street

        job = await street.aenqueue(Address("High Street"))

        assert await job.aresult() == "High Street"


def test_an_error_of_the_handler_is_raised_by_the_enqueue():
    with InlineHarbor() as harbor:

        @harbor.task
        def fail() -> None:
            raise LookupError("no such user")

        with pytest.raises(LookupError, match="no such user"):
            fail.enqueue()

        [job] = enqueued(harbor)
        assert (job.state, job.attempts) == (JobState.SCHEDULED, 1)
        assert job.last_error == "LookupError: no such user"


def test_an_error_may_stay_with_its_job():
    with InlineHarbor(raises=False) as harbor:

        @harbor.task
        def fail() -> None:
            raise Unrecoverable("no such user")

        assert fail.enqueue().state is JobState.FAILED


def test_jobs_that_a_handler_enqueues_run_within_it():
    with InlineHarbor() as harbor:
        order = []

        @harbor.task
        def child(n: int) -> None:
            order.append(f"child {n}")

        @harbor.task
        def parent() -> None:
            child.enqueue(1)
            child.enqueue(2)
            order.append("parent")

        parent.enqueue()

        assert order == ["child 1", "child 2", "parent"]


def test_a_delayed_job_waits_in_an_inline_harbor_too():
    with InlineHarbor() as harbor:

        @harbor.task
        def task() -> None: ...

        assert task.using(delay="1h").enqueue().state is JobState.SCHEDULED


def test_wrong_arguments_are_refused_inline_too():
    with InlineHarbor() as harbor:

        @harbor.task
        def task(n: int) -> None: ...

        with pytest.raises(PayloadError):
            task.enqueue("one")  # type: ignore[arg-type]


# ------------------------------------------------------------------ drain


def test_drain_jumps_over_delays_and_backoff_until_nothing_is_left(harbor, clock):
    ran = []

    @harbor.task(max_attempts=3)
    def flaky() -> str:
        ran.append(clock.now())
        if len(ran) < 3:
            raise ConnectionError("not yet")
        return "done"

    job = flaky.using(delay="1h").enqueue()
    started = clock.now()
    attempts = drain(harbor)

    assert job.result() == "done"
    assert [attempt.outcome for attempt in attempts] == ["retried", "retried", "completed"]
    assert ran[0] == started + timedelta(hours=1)
    assert timedelta(seconds=0.8) <= ran[1] - ran[0] <= timedelta(seconds=1.2)
    assert timedelta(seconds=1.6) <= ran[2] - ran[1] <= timedelta(seconds=2.4)


def test_drain_goes_no_further_than_its_limit(harbor):
    @harbor.task
    def task() -> None: ...

    soon, late = task.using(delay="10m").enqueue(), task.using(delay="3h").enqueue()
    assert len(drain(harbor, within="1h")) == 1

    assert (soon.state, late.state) == (JobState.COMPLETED, JobState.SCHEDULED)


def test_drain_serves_every_queue_and_lane(harbor):
    @harbor.task(queue="mail", requires="gpu")
    def task() -> None: ...

    task.enqueue()
    task.using(queue="unheard-of", requires="tpu").enqueue()

    assert len(drain(harbor)) == 2


def test_drain_can_let_leases_run_out(harbor, clock):
    @harbor.task
    def task() -> None: ...

    task.enqueue()
    harbor.client._block(_claim_and_vanish, harbor)
    assert drain(harbor) == []

    [attempt] = drain(harbor, expire_leases=True)
    assert attempt.outcome == "completed"
    [job] = enqueued(harbor)
    assert (job.stalls, clock.monotonic()) == (1, 30.0)


async def _claim_and_vanish(harbor):
    driver = await harbor.client.adriver()
    return await driver.reserve_one("default", harbor.clock.now(), timedelta(seconds=30))


def test_drain_gives_up_on_a_job_that_never_ends(harbor):
    @harbor.task
    def restless() -> Snooze:
        return Snooze(timedelta(minutes=1))

    restless.enqueue()

    with pytest.raises(AssertionError, match="still not drained after 25 attempts"):
        drain(harbor, max_attempts=25)


def test_blocking_handlers_may_enqueue_while_drained(harbor):
    @harbor.task
    def child() -> str:
        return "child"

    @harbor.task
    def parent() -> None:
        child.using(delay="1m").enqueue()

    parent.enqueue()
    assert [attempt.type for attempt in drain(harbor)] == ["parent", "child"]


async def test_drain_in_async_code_runs_handlers_in_this_loop(harbor):
    @harbor.task
    async def child() -> None: ...

    @harbor.task
    async def parent() -> None:
        await child.aenqueue()

    await parent.aenqueue()
    assert [attempt.type for attempt in await adrain(harbor)] == ["parent", "child"]


def test_without_a_simulated_clock_drain_runs_what_is_due_now():
    with Harbor("memory://") as harbor:

        @harbor.task(run_in="process")
        def task() -> None: ...

        task.enqueue()
        task.using(delay="1h").enqueue()

        assert len(drain(harbor)) == 1


# ------------------------------------------------------------------ assertions


def test_assert_enqueued_finds_jobs_by_their_fields(harbor):
    @harbor.task
    def task(n: int, address: Address | None = None) -> None: ...

    task.enqueue(1)
    task.using(queue="mail", key="k").enqueue(2, address=Address("High Street"))

    assert len(assert_enqueued(harbor, task)) == 2
    assert len(assert_enqueued(harbor, "task", times=2)) == 2
    [one] = assert_enqueued(harbor, task, args=(1,), times=1)
    [two] = assert_enqueued(harbor, task, args={"address": Address("High Street")}, times=1)
    assert [one.queue, two.queue] == ["default", "mail"]
    assert_enqueued(harbor, task, queue="mail", key="k", state=JobState.READY)
    assert_not_enqueued(harbor, task, args={"n": 3})
    assert_not_enqueued(harbor, task, queue="mail", args={"n": 1})
    assert_not_enqueued(harbor, "another")


def test_a_failed_assertion_lists_what_is_there(harbor):
    @harbor.task
    def task(n: int) -> None: ...

    with pytest.raises(AssertionError, match="at least one job of task, found 0\nin the store: nothing"):
        assert_enqueued(harbor, task)

    task.enqueue(1)
    with pytest.raises(
        AssertionError, match=r"with args=\{'n': 2\}, found 0\n.*\n  task b'\{\"n\":1\}' in default, ready"
    ):
        assert_enqueued(harbor, task, args={"n": 2})
    with pytest.raises(AssertionError, match="exactly 0 jobs of task, found 1"):
        assert_not_enqueued(harbor, task)


async def test_assertions_work_inside_an_event_loop(harbor):
    @harbor.task
    def task() -> None: ...

    await task.aenqueue()

    assert_enqueued(harbor, task, times=1)


# ------------------------------------------------------------------ a program's own harbor


def test_a_programs_harbor_can_be_put_into_memory_and_back(harbor):
    @harbor.task
    def task() -> None: ...

    task.enqueue()
    with in_memory(harbor):
        assert_not_enqueued(harbor, task)
        task.enqueue()
        task.enqueue()
        assert len(enqueued(harbor)) == 2

    assert len(enqueued(harbor)) == 1


# ------------------------------------------------------------------ handlers that sleep on the clock


def test_drain_moves_the_clock_on_while_a_handler_sleeps_on_it():
    clock = SimulatedClock()
    with Harbor("memory://", clock=clock) as harbor:

        @harbor.task
        async def nap(ctx: JobContext, seconds: float) -> str:
            await ctx.clock.sleep(seconds)
            return "awake"

        job = nap.enqueue(3600)
        [attempt] = drain(harbor)

        assert attempt.outcome == "completed"
        assert job.result() == "awake"
        assert clock.monotonic() >= 3600


def test_a_handler_that_sleeps_beyond_its_time_limit_is_timed_out():
    clock = SimulatedClock()
    with Harbor("memory://", clock=clock) as harbor:

        @harbor.task(timeout="5s", max_attempts=1)
        async def nap(ctx: JobContext) -> None:
            await ctx.clock.sleep(60)

        job = nap.enqueue()
        drain(harbor)

        assert job.refresh().record.failure_kind == "timeout"
        assert 5 <= clock.monotonic() < 60


def test_a_handler_that_sleeps_beyond_the_bound_is_named():
    with Harbor("memory://", clock=SimulatedClock()) as harbor:

        @harbor.task
        async def nap(ctx: JobContext) -> None:
            await ctx.clock.sleep(3600)

        job = nap.enqueue()

        with pytest.raises(AssertionError, match=rf"beyond .*{job.id} \(nap\)"):
            drain(harbor, within="1m")


def test_a_handler_that_is_busy_in_a_thread_is_given_its_time():
    release = threading.Event()
    clock = SimulatedClock()
    with Harbor("memory://", clock=clock) as harbor:

        @harbor.task
        async def nap(ctx: JobContext) -> None:
            await ctx.clock.sleep(30)

        @harbor.task(timeout="10s")
        def busy() -> None:
            release.wait(0.2)

        nap.enqueue()
        busy.enqueue()

        assert [one.outcome for one in drain(harbor, concurrency=2)] == ["completed", "completed"]
