"""One attempt and its outcome: R000-23 to R000-26, R000-31 to R000-35, AM61, C26."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from datetime import timedelta

import pytest

from taskharbor.errors import ConfigurationError, DecodeError, InvalidArgument, Unrecoverable
from taskharbor.events import AttemptFinished, HandlerAbandoned, JobStarted
from taskharbor.model.job import FailureKind, Job
from taskharbor.model.outcome import Cancel, Snooze
from taskharbor.model.retry import RetryPolicy
from taskharbor.model.state import JobState
from taskharbor.tasks import Handler
from taskharbor.testing.clock import turn_loop
from taskharbor.worker import JobContext
from taskharbor.worker.cancellation import Cancellation, stopped_by
from taskharbor.worker.outcomes import trace_of

EXACT = RetryPolicy(jitter=0.0)


async def outcome_of(harness, handler, **fields):
    """The job's record after one try."""
    job_id = await harness.put(**fields)
    await harness.run_until_idle(harness.worker({"work": handler}, retry=EXACT))
    return await harness.job(job_id)


# ------------------------------------------------------------------ what a handler sees


async def test_a_handler_sees_its_job_and_nothing_about_the_lease(harness):
    """R000-23"""
    seen: list[tuple[JobContext, Job]] = []

    async def handler(ctx, job):
        seen.append((ctx, job))

    record = await outcome_of(
        harness, handler, payload=b"\x00raw", headers={"a": "b"}, timeout=timedelta(seconds=9), priority=3
    )

    ctx, job = seen[0]
    assert (job.id, job.type, job.queue, job.payload) == (record.id, "work", "default", b"\x00raw")
    assert (job.run_at, job.timeout, job.created_at) == (None, timedelta(seconds=9), record.created_at)
    assert not {"token", "lease_expires_at", "worker_id"} & set(Job.__struct_fields__)
    assert (ctx.job, ctx.attempt, ctx.fence, ctx.gpu) == (job, 1, record.fence, None)
    assert ctx.deadline == record.created_at + timedelta(seconds=9)


async def test_the_attempt_number_rises_and_so_does_the_fence(harness):
    seen = []

    async def handler(ctx, job):
        seen.append((ctx.attempt, ctx.fence))
        if ctx.attempt < 3:
            raise ValueError

    await harness.put()
    async with harness.at_work(harness.worker({"work": handler}, retry=EXACT)):
        await harness.pass_time(10)

    assert [attempt for attempt, _ in seen] == [1, 2, 3]
    assert seen[0][1] < seen[1][1] < seen[2][1]


async def test_each_job_has_a_context_of_its_own(harness):
    """R000-24"""
    contexts = []

    async def handler(ctx, job):
        contexts.append(ctx)
        assert not ctx.cancelled.is_set()
        assert ctx.cancelled.reason is None

    await harness.put_many(2)
    await harness.run_until_idle(harness.worker({"work": handler}))

    assert contexts[0].cancelled is not contexts[1].cancelled


async def test_progress_must_be_a_number_and_a_transaction_needs_a_store_that_has_one(harness):
    async def handler(ctx, job):
        with pytest.raises(InvalidArgument):
            ctx.progress(float("nan"))
        with pytest.raises(ConfigurationError, match="fence"):
            ctx.transaction()
        ctx.log.info("hello")
        return ctx.log.extra["taskharbor_job_id"]

    record = await outcome_of(harness, handler)
    assert record.result == f'"{record.id}"'.encode()


# ------------------------------------------------------------------ how it ends


async def test_success_keeps_the_result(harness):
    """R000-31"""

    async def handler(ctx, job):
        return {"sum": 3}

    record = await outcome_of(harness, handler)
    assert (record.state, record.result, record.attempts) == (JobState.COMPLETED, b'{"sum":3}', 0)
    assert record.token is None
    assert [event.outcome for event in harness.heard(AttemptFinished)] == ["completed"]


async def test_a_failure_waits_for_its_backoff(harness):
    """R000-32, R000-33"""

    async def handler(ctx, job):
        raise ValueError("no luck")

    record = await outcome_of(harness, handler, max_attempts=5)
    assert (record.state, record.attempts, record.last_error) == (
        JobState.SCHEDULED,
        1,
        "ValueError: no luck",
    )
    assert record.run_at == record.failed_at + timedelta(seconds=1)
    assert "no luck" in (record.history[0].error or "")
    assert "Traceback" in (record.history[0].error or "")


async def test_the_jobs_own_backoff_range_counts(harness):
    """R000-33"""

    async def handler(ctx, job):
        raise ValueError

    record = await outcome_of(
        harness, handler, min_backoff=timedelta(seconds=40), max_backoff=timedelta(seconds=60)
    )
    assert record.run_at == record.failed_at + timedelta(seconds=40)


@pytest.mark.parametrize(("of_job", "of_policy", "executions"), [(3, 0, 3), (3, 2, 3), (0, 2, 2), (0, 0, 25)])
async def test_with_max_attempts_n_there_are_exactly_n_executions(harness, of_job, of_policy, executions):
    """R000-34"""
    runs = 0

    async def handler(ctx, job):
        nonlocal runs
        runs += 1
        raise ValueError

    job_id = await harness.put(max_attempts=of_job)
    policy = RetryPolicy(
        base=timedelta(milliseconds=1), maximum=timedelta(milliseconds=1), max_attempts=of_policy
    )
    async with harness.at_work(harness.worker({"work": handler}, retry=policy)):
        await harness.pass_time(60)

    record = await harness.job(job_id)
    assert (record.state, runs, record.attempts) == (JobState.FAILED, executions, executions)


async def test_a_tasks_own_policy_comes_before_the_workers(harness):
    def fails(ctx, job):
        raise ValueError

    worker = harness.worker(retry=RetryPolicy(max_attempts=9))
    worker.add(
        Handler(
            type="work",
            function=fails,
            bind=lambda ctx, job: ((ctx, job), {}),
            encode_result=lambda value: None,
            retry=RetryPolicy(max_attempts=1),
        )
    )
    job_id = await harness.put()
    await harness.run_until_idle(worker)

    assert (await harness.job(job_id)).state is JobState.FAILED


async def test_a_handler_knows_whether_an_error_would_be_its_last(harness):
    """As the settlement decides it, with the policy of the worker."""
    seen = []

    async def handler(ctx, job):
        seen.append(
            (ctx.will_retry(ValueError()), ctx.will_retry(KeyError()), ctx.will_retry(Unrecoverable()))
        )
        raise ValueError("not yet")

    worker = harness.worker({"work": handler}, retry=RetryPolicy(max_attempts=2, no_retry_on=(KeyError,)))
    job_id = await harness.put()
    async with harness.at_work(worker):
        await harness.pass_time(60)

    assert seen == [(True, False, False), (False, False, False)]
    assert (await harness.job(job_id)).state is JobState.FAILED


@pytest.mark.parametrize(
    ("reason", "expected"), [("timeout", True), ("cancel", False), ("shutdown", True), ("lease_lost", True)]
)
async def test_a_stop_decides_before_the_error_does(harness, reason, expected):
    answers = []

    async def handler(ctx, job):
        stopped = JobContext(job, cancelled=Cancellation())
        stopped.cancelled.set(reason)
        answers.append(stopped.will_retry(Unrecoverable("whatever")))

    await outcome_of(harness, handler, max_attempts=2)

    assert answers == [expected]


async def test_unrecoverable_fails_at_once_also_when_it_is_the_cause(harness):
    """R000-32, R000-35"""

    async def direct(ctx, job):
        raise Unrecoverable("no such user")

    async def wrapped(ctx, job):
        try:
            raise Unrecoverable("deep inside")
        except Unrecoverable as error:
            raise RuntimeError("outer") from error

    for handler, text in ((direct, "no such user"), (wrapped, "RuntimeError: outer")):
        record = await outcome_of(harness, handler, max_attempts=5)
        assert (record.state, record.failure_kind) == (JobState.FAILED, FailureKind.UNRECOVERABLE)
        assert text in (record.last_error or "")


@pytest.mark.parametrize(("asked", "waited"), [(90, 90), (timedelta(seconds=90), 90), (0.25, 1), ("soon", 1)])
async def test_the_later_of_backoff_and_retry_after_counts(harness, asked, waited):
    class Busy(Exception):
        retry_after = asked

    async def handler(ctx, job):
        raise Busy

    record = await outcome_of(harness, handler)
    assert record.run_at == record.failed_at + timedelta(seconds=waited)


async def test_snooze_runs_it_later_and_counts_nothing(harness):
    async def handler(ctx, job):
        return Snooze(timedelta(minutes=5))

    record = await outcome_of(harness, handler)
    assert (record.state, record.attempts, record.stalls) == (JobState.SCHEDULED, 0, 0)
    assert record.run_at == record.updated_at + timedelta(minutes=5)
    assert [event.outcome for event in harness.heard(AttemptFinished)] == ["snoozed"]


async def test_a_snooze_that_makes_no_sense_fails(harness):
    async def handler(ctx, job):
        return Snooze(timedelta(seconds=-1))

    assert (await outcome_of(harness, handler)).state is JobState.FAILED


async def test_a_handler_may_cancel_its_job(harness):
    async def handler(ctx, job):
        return Cancel("not needed any more")

    record = await outcome_of(harness, handler)
    assert (record.state, record.last_error) == (JobState.CANCELLED, "not needed any more")


async def test_a_job_without_a_handler_fails_and_names_its_type(harness):
    """R000-26: and nobody extends its lease afterwards."""
    job_id = await harness.put("stranger", max_attempts=5)
    async with harness.at_work(harness.worker({}, unknown_types="fail")):
        await harness.pass_time(60)

    record = await harness.job(job_id)
    assert (record.state, record.failure_kind) == (JobState.FAILED, FailureKind.NO_HANDLER)
    assert "stranger" in (record.last_error or "")
    assert harness.driver.named("extend_leases") == []


async def test_a_payload_that_does_not_fit_fails_without_another_try(harness):
    def bind(ctx, job):
        raise DecodeError("expected an int - at $.x", "$.x")

    worker = harness.worker()
    worker.add(Handler(type="work", function=print, bind=bind, encode_result=lambda value: None))
    job_id = await harness.put(max_attempts=5)
    await harness.run_until_idle(worker)

    record = await harness.job(job_id)
    assert (record.state, record.failure_kind) == (JobState.FAILED, FailureKind.INVALID_PAYLOAD)
    assert "$.x" in (record.last_error or "")


async def test_a_decode_error_of_the_handler_itself_is_an_ordinary_failure(harness):
    async def handler(ctx, job):
        raise DecodeError("some other file")

    assert (await outcome_of(harness, handler)).state is JobState.SCHEDULED


async def test_a_result_that_cannot_be_kept_fails_the_job_and_hurts_no_other(harness):
    async def unencodable(ctx, job):
        return object()

    async def too_large(ctx, job):
        return "x" * (2 * 1024 * 1024)

    async def fine(ctx, job):
        return 1

    first, second, third = await harness.put("a"), await harness.put("b"), await harness.put("c")
    await harness.run_until_idle(harness.worker({"a": unencodable, "b": too_large, "c": fine}))

    assert (await harness.job(first)).state is JobState.FAILED
    assert (await harness.job(second)).state is JobState.FAILED
    assert (await harness.job(third)).state is JobState.COMPLETED


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even that")


class Enormous(Exception):
    def __str__(self) -> str:
        return "é" * 1_000_000 + "\0\ud800"


def forever(n=0):
    return forever(n + 1)


def raising(error):
    async def handler(ctx, job):
        raise error

    return handler


async def recursing(ctx, job):
    forever()


@pytest.mark.parametrize(
    ("handler", "text"),
    [
        (raising(KeyboardInterrupt()), "KeyboardInterrupt"),
        (raising(SystemExit(3)), "SystemExit: 3"),
        (raising(asyncio.CancelledError()), "CancelledError"),
        (raising(GeneratorExit()), "GeneratorExit"),
        (raising(StopAsyncIteration()), "StopAsyncIteration"),
        (raising(Unprintable()), "Unprintable (its message cannot be read)"),
        (raising(Enormous()), "Enormous: éé"),
        (raising(MemoryError()), "out of memory"),
        (recursing, "RecursionError"),
    ],
)
async def test_whatever_a_handler_raises_is_a_failure_with_a_short_safe_text(harness, handler, text):
    """R000-25, AM61, C26"""
    record = await outcome_of(harness, handler)

    assert (record.state, record.attempts) == (JobState.SCHEDULED, 1)
    assert text in (record.last_error or "")
    assert len((record.last_error or "").encode()) <= 1024
    assert len((record.history[0].error or "").encode()) <= 8192

    async def fine(ctx, job):
        return None

    assert (await outcome_of(harness, fine)).state is JobState.COMPLETED


# ------------------------------------------------------------------ layers


async def test_layers_surround_the_handler_in_the_order_of_registration(harness):
    """R000-25"""
    order = []

    def layer(name):
        async def around(ctx, job, call_next):
            order.append(f"{name} in")
            try:
                return await call_next(ctx, job)
            finally:
                order.append(f"{name} out")

        return around

    async def handler(ctx, job):
        order.append("handler")
        return 1

    worker = harness.worker({"work": handler})
    worker.use(layer("first"))
    worker.use(layer("second"))
    job_id = await harness.put()
    await harness.run_until_idle(worker)

    assert order == ["first in", "second in", "handler", "second out", "first out"]
    assert (await harness.job(job_id)).result == b"1"


async def test_an_error_in_a_layer_is_an_error_of_the_handler(harness):
    """R000-25"""

    async def refuses(ctx, job, call_next):
        raise Unrecoverable("not today")

    async def handler(ctx, job):
        pytest.fail("must not run")

    worker = harness.worker({"work": handler})
    worker.use(refuses)
    job_id = await harness.put()
    await harness.run_until_idle(worker)

    assert (await harness.job(job_id)).last_error == "Unrecoverable: not today"


async def test_a_layer_may_hand_on_another_job_and_another_result(harness):
    async def changes(ctx, job, call_next):
        import msgspec

        return await call_next(ctx, msgspec.structs.replace(job, payload=b"changed")) + "!"

    async def handler(ctx, job):
        return job.payload.decode()

    worker = harness.worker({"work": handler})
    worker.use(changes)
    job_id = await harness.put()
    await harness.run_until_idle(worker)

    assert (await harness.job(job_id)).result == b'"changed!"'


def test_a_layer_must_be_callable(harness):
    with pytest.raises(ConfigurationError):
        harness.worker().use("not a function")


# ------------------------------------------------------------------ time limits


async def test_a_handler_is_cancelled_when_its_time_is_over(harness):
    """R000-25, R003-12: a timeout is a failure and is retried."""
    reasons = []

    async def handler(ctx, job):
        try:
            await ctx.clock.sleep(3600)
        finally:
            reasons.append(ctx.cancelled.reason)

    job_id = await harness.put(timeout=timedelta(seconds=2))
    async with harness.at_work(harness.worker({"work": handler}, retry=EXACT)):
        await harness.pass_time(1.9)
        assert (await harness.job(job_id)).state is JobState.RUNNING
        await harness.pass_time(0.2)
        record = await harness.job(job_id)

    assert reasons[0] == "timeout"
    assert (record.state, record.attempts, record.failure_kind) == (
        JobState.SCHEDULED,
        1,
        FailureKind.TIMEOUT,
    )
    assert "time limit of 2 s" in (record.last_error or "")
    assert record.failed_at == record.created_at + timedelta(seconds=2)


async def test_an_earlier_time_limit_that_comes_later_is_kept(harness):
    ended = []

    async def handler(ctx, job):
        try:
            await ctx.clock.sleep(3600)
        finally:
            ended.append((job.timeout.seconds, ctx.clock.monotonic()))

    await harness.put(timeout=timedelta(seconds=9), max_attempts=1)
    async with harness.at_work(harness.worker({"work": handler})):
        await harness.pass_time(1)
        await harness.put(timeout=timedelta(seconds=3), max_attempts=1)
        await harness.pass_time(20)

    assert ended == [(3, pytest.approx(4)), (9, pytest.approx(9))]


async def test_a_handler_that_returns_after_its_time_limit_has_timed_out(harness):
    async def handler(ctx, job):
        try:
            await ctx.clock.sleep(3600)
        except asyncio.CancelledError:
            return "too late"

    async with harness.at_work(harness.worker({"work": handler})):
        job_id = await harness.put(timeout=timedelta(seconds=2))
        await harness.pass_time(2.5)
        assert (await harness.job(job_id)).failure_kind == FailureKind.TIMEOUT


async def test_a_handler_that_blocked_the_loop_past_its_time_limit_has_timed_out(harness):
    async def handler(ctx, job):
        harness.clock.advance(timedelta(seconds=5))  # nothing could notify it meanwhile
        return "done"

    record = await outcome_of(harness, handler, timeout=timedelta(seconds=2))
    assert (record.failure_kind, record.attempts) == (FailureKind.TIMEOUT, 1)


async def test_a_handler_that_ignores_its_time_limit_is_given_up_and_its_slot_reused(harness):
    """A failure all the same, and the next job does not wait for it."""
    go_on = asyncio.Event()
    second = []

    async def stubborn(ctx, job):
        while not go_on.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await go_on.wait()

    async def polite(ctx, job):
        second.append(job.id)

    worker = harness.worker({"stubborn": stubborn, "polite": polite}, concurrency=1, retry=EXACT)
    first_id = await harness.put("stubborn", timeout=timedelta(seconds=2), max_attempts=1)
    second_id = await harness.put("polite")
    async with harness.at_work(worker):
        await harness.pass_time(2.5)
        assert (await harness.job(first_id)).state is JobState.RUNNING
        await harness.pass_time(1)
        assert (await harness.job(first_id)).failure_kind == FailureKind.TIMEOUT
        assert (await harness.job(second_id)).state is JobState.COMPLETED
        assert worker.counts["abandoned"] == 1
        go_on.set()
        await harness.pass_time(1)
        third_id = await harness.put("polite")
        await harness.pass_time(1)
        assert (await harness.job(third_id)).state is JobState.COMPLETED

    assert [event.where for event in harness.heard(HandlerAbandoned)] == ["loop"]


# ------------------------------------------------------------------ slots are clean


async def test_what_a_handler_leaves_in_its_context_reaches_no_other_job(harness):
    leaked = contextvars.ContextVar("leaked", default="clean")
    seen = []

    async def handler(ctx, job):
        seen.append(leaked.get())
        leaked.set("dirty")

    await harness.put_many(5)
    await harness.run_until_idle(harness.worker({"work": handler}, concurrency=1))

    assert seen == ["clean"] * 5


async def test_a_handler_that_cancels_itself_harms_no_other_job(harness):
    async def handler(ctx, job):
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    async def fine(ctx, job):
        await ctx.clock.sleep(0.1)

    await harness.put("selfish", max_attempts=1)
    job_id = await harness.put("fine")
    await harness.run_until_idle(harness.worker({"selfish": handler, "fine": fine}, concurrency=1))

    assert (await harness.job(job_id)).state is JobState.COMPLETED


async def test_asyncio_timeout_inside_a_handler_works_as_everywhere(harness):
    async def handler(ctx, job):
        try:
            async with asyncio.timeout(0):
                await asyncio.Event().wait()
        except TimeoutError:
            return "caught"

    assert (await outcome_of(harness, handler)).result == b'"caught"'


async def test_handlers_that_never_suspend_still_let_the_loop_turn(harness):
    """One slot runs many of them in a row, and gives the rest of the program its turns."""
    clock = harness.clock
    turns = 0
    ids = await harness.put_many(50)

    async def count_turns():
        nonlocal turns
        while True:
            turns += 1
            await turn_loop(1)

    async def handler(ctx, job):
        clock.advance(timedelta(milliseconds=1))  # as if it had worked for a millisecond

    counting = asyncio.ensure_future(count_turns())
    before = turns
    await harness.run_until_idle(harness.worker({"work": handler}))
    counting.cancel()

    assert turns - before >= 20
    assert (await harness.job(ids[-1])).state is JobState.COMPLETED


async def test_no_event_is_made_for_a_start_without_a_listener(harness):
    async def handler(ctx, job):
        return None

    await outcome_of(harness, handler)
    assert [event.attempt for event in harness.heard(JobStarted)] == [1]
    assert harness.heard(JobStarted)[0].waited_seconds == 0.0


# ------------------------------------------------------------------ tracebacks


async def passing_on(ctx, job, call_next):
    return await call_next(ctx, job)


async def breaks_late(ctx, job):
    await turn_loop()
    try:
        dict[str, str]()["paper"]
    except KeyError as error:
        raise ValueError("no print") from error


def breaks_in_thread(ctx, job):
    raise ValueError("no print")


@pytest.mark.parametrize("handler", [breaks_late, breaks_in_thread])
async def test_a_traceback_shows_the_users_frames_and_none_of_the_worker(harness, handler):
    worker = harness.worker({"work": handler})
    worker.use(passing_on)
    await harness.put(max_attempts=1)
    await harness.run_until_idle(worker)

    [event] = harness.heard(AttemptFinished)
    trace = event.trace
    assert "in passing_on" in trace
    assert f"in {handler.__name__}" in trace
    assert "ValueError: no print" in trace
    assert ("KeyError: 'paper'" in trace) is (handler is breaks_late)
    assert "taskharbor/worker" not in trace
    assert "taskharbor/middleware" not in trace


def test_a_traceback_that_is_all_our_own_is_kept():
    with pytest.raises(AttributeError) as caught:
        stopped_by(None)  # type: ignore[arg-type]

    caught.value.__traceback__ = caught.tb.tb_next  # without the frame of this test
    assert "in stopped_by" in (trace_of(caught.value) or "")
