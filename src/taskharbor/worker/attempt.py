"""One attempt: context → middleware → handler → outcome. It never raises.

    recover ( timeout ( the user's layers ( bind ( handler ))))

Recover is the try below. Timeout needs no layer: deadlines.py finds every attempt whose time is over,
cancellation.py stops its handler, and an attempt that ended too late is a timeout all the same.
`JobContext` is what the handler sees of it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Token
from datetime import datetime, timedelta
from inspect import isawaitable
from sys import modules
from typing import Any

from taskharbor.errors import ConfigurationError, DecodeError, InvalidArgument, Parked
from taskharbor.middleware import AttemptMiddleware, compose, running
from taskharbor.model.clock import Clock, SystemClock
from taskharbor.model.job import FailureKind, Job, Progress, job_of
from taskharbor.model.outcome import Died, Failed, Outcome, Released, WasCancelled
from taskharbor.model.retry import RetryPolicy
from taskharbor.model.settlement import runs_again
from taskharbor.model.workflow import REFS_HEADER
from taskharbor.tasks import Handler
from taskharbor.worker.attempt_tools import AttemptTools
from taskharbor.worker.cancellation import Cancellation, overruled, stopped_by
from taskharbor.worker.executors.contract import BadPayload, Call, Executor
from taskharbor.worker.gpus import Gpu
from taskharbor.worker.leased_jobs import LeasedJob
from taskharbor.worker.outcomes import DONE, failure_of, success_of
from taskharbor.worker.references import with_results
from taskharbor.worker.steps import DurableSteps
from taskharbor.worker.timing import Timing

_log = logging.getLogger("taskharbor.job")
_system_clock = SystemClock()
_DEFAULT_RETRY = RetryPolicy()


class Runner:
    """One type of job, ready to run: its handler, its executor, and the middleware around it."""

    __slots__ = ("_call_for", "_layers", "executor", "handler", "is_blocking", "plain", "retry")

    def __init__(
        self,
        handler: Handler,
        executor: Executor,
        layers: Sequence[AttemptMiddleware],
        retry: RetryPolicy = _DEFAULT_RETRY,
    ) -> None:
        self.handler = handler
        self.retry = handler.retry or retry
        self.executor = executor
        self._call_for = executor.call_of(handler)
        self._layers = tuple(layers)
        self.is_blocking = executor.where == "thread" and not layers
        """Whether a thread runs it from beginning to end (thread_slots.py)."""
        # In the loop a call does not depend on the job, so the middleware is composed once.
        self.plain: Call | None = self.call_for(None) if executor.where == "loop" else None

    def call_for(self, leased: LeasedJob | None) -> Call:
        call: Call = compose(self._layers, self._call_for(leased))  # type: ignore[arg-type]
        return call


async def run_attempt(
    leased: LeasedJob,
    runner: Runner,
    timing: Timing,
    max_result: int,
    tools: AttemptTools | None = None,
) -> Outcome:
    """Run the handler of one leased job and return its outcome."""
    attempt, ctx = leased.attempt, _context_of(leased, runner, timing, tools)
    token = running.set(ctx)
    bound = bind_structlog(ctx) if "structlog" in modules else None
    try:
        if leased.record.bonds is not None:
            await _fill_in(ctx, leased, tools)
        value = await (runner.plain or runner.call_for(leased))(ctx, ctx.job)
    except BaseException as error:
        if attempt.is_over and isinstance(error, GeneratorExit):
            raise  # given up before, and the event loop is being closed
        return stopped_by(leased) or failure_of(error)
    finally:
        try:
            running.reset(token)
            if bound is not None:
                unbind_structlog(bound)
        except ValueError:
            pass  # closed from another context, which has nothing of ours
    return _outcome_of(value, leased, runner, timing, max_result)


def run_in_thread(
    leased: LeasedJob,
    runner: Runner,
    timing: Timing,
    max_result: int,
    tools: AttemptTools | None = None,
) -> Outcome | Awaitable[Any]:
    """The same for a plain function without middleware, in a thread and in a context of its own.

    If the function returned something to await, so does this: see `awaited_outcome`.
    """
    ctx, handler = _context_of(leased, runner, timing, tools), runner.handler
    running.set(ctx)
    if "structlog" in modules:
        bind_structlog(ctx)
    try:
        if leased.record.bonds is not None and tools is not None:
            tools.block(_fill_in(ctx, leased, tools))
        try:
            args, kwargs = handler.bind(ctx, ctx.job)
        except DecodeError as error:
            raise BadPayload from error
        value = handler.function(*args, **kwargs)
    except BaseException as error:  # noqa: BLE001 - whatever a handler raises becomes its outcome
        return stopped_by(leased) or failure_of(error)
    if value is not None and isawaitable(value):
        return value
    return _outcome_of(value, leased, runner, timing, max_result)


async def awaited_outcome(
    value: Awaitable[Any], leased: LeasedJob, runner: Runner, timing: Timing, max_result: int
) -> Outcome:
    """The rest of an attempt whose function returned something to await."""
    try:
        result = await value
    except BaseException as error:
        if leased.attempt.is_over and isinstance(error, GeneratorExit):
            raise
        return stopped_by(leased) or failure_of(error)
    return _outcome_of(result, leased, runner, timing, max_result)


def refusal(leased: LeasedJob) -> Outcome:
    """Why a job did not start although it has a handler: cancelled, or its lease cannot be trusted."""
    if leased.attempt.cancellation.reason == "cancel" or leased.record.cancel_requested:
        return WasCancelled("cancelled before it started")
    return Released()


async def _fill_in(ctx: JobContext, leased: LeasedJob, tools: AttemptTools | None) -> None:
    """Put the results of other nodes into the arguments that name them."""
    if tools is not None and REFS_HEADER in leased.record.headers:
        ctx.job = await with_results(tools, leased, ctx.job)


def _context_of(leased: LeasedJob, runner: Runner, timing: Timing, tools: AttemptTools | None) -> JobContext:
    record, attempt = leased.record, leased.attempt
    ctx = JobContext(
        job_of(record),
        record.fence,
        attempt.cancellation,
        timing.clock,
        attempt.ends,
        leased.note_progress,
        record.worker_id or "",
    )
    ctx._retry = runner.retry
    if attempt.gpu is not None:
        ctx.gpu = attempt.gpu
    if tools is not None:
        ctx._tools, ctx._leased = tools, leased
    return ctx


def _outcome_of(value: Any, leased: LeasedJob, runner: Runner, timing: Timing, max_result: int) -> Outcome:
    attempt = leased.attempt
    if attempt.cancellation.reason is not None or attempt.ends is not None:
        attempt.ran_to_its_end = True
        verdict = overruled(leased, timing)
        if verdict is not None:
            return verdict
    if value is None:
        return DONE
    return success_of(value, runner.handler.encode_result, max_result)


def bind_structlog(ctx: JobContext) -> dict[str, Token[Any]]:
    """Bind the job to the context variables of structlog too."""
    from structlog.contextvars import bind_contextvars

    return dict(bind_contextvars(**ctx.log_fields))


def unbind_structlog(bound: dict[str, Token[Any]]) -> None:
    from structlog.contextvars import reset_contextvars

    reset_contextvars(**bound)


class JobContext(DurableSteps):
    """One attempt, seen by its handler.

    `attempt` counts from 1. `fence` is a number that only ever grows for a job. Store it with your own writes
    and refuse a lower one, and a stale attempt can overwrite nothing. `gpu` is the device that this job has
    to itself, on a worker with `gpus`.
    """

    gpu: Gpu | None = None
    _retry: RetryPolicy = _DEFAULT_RETRY

    def __init__(
        self,
        job: Job,
        fence: int = 0,
        cancelled: Cancellation | None = None,
        clock: Clock = _system_clock,
        ends: float | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        worker: str = "",
    ) -> None:
        self.job = job
        self.fence = fence
        self.cancelled = Cancellation() if cancelled is None else cancelled
        self.clock = clock
        self._ends = ends
        self._on_progress = on_progress
        self.worker = worker

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self.job.attempts + 1

    @property
    def stalls(self) -> int:
        """How often a lease of this job ran out or its process died: above zero, part of it may be done."""
        return self.job.stalls

    @property
    def deadline(self) -> datetime | None:
        """When the time limit of this attempt is over; None without one."""
        if self._ends is None:
            return None
        return self.clock.now() + timedelta(seconds=self._ends - self.clock.monotonic())

    def will_retry(self, error: BaseException) -> bool:
        """Whether the job runs again if this attempt ends with this error now.

        What decides: attempts left, `retry_on` and `no_retry_on`, `Unrecoverable`. A cancelled job does not
        run again; one that is released, or whose lease was lost, does.
        """
        reason = self.cancelled.reason
        if reason in ("shutdown", "lease_lost") or isinstance(error, Parked):
            return True
        outcome = Failed("", FailureKind.TIMEOUT) if reason == "timeout" else failure_of(error)
        if reason == "cancel" or not isinstance(outcome, Failed | Died):
            return False
        return runs_again(self.job, outcome, self._retry)

    def progress(self, fraction: float, text: str = "") -> None:
        """Report progress from 0 to 1. Stored with the next heartbeat; costs nothing until then."""
        if not isinstance(fraction, int | float) or math.isnan(fraction):
            raise InvalidArgument(f"progress takes a fraction from 0 to 1, not {fraction!r}")
        if self._on_progress is not None:
            self._on_progress(Progress(min(max(float(fraction), 0.0), 1.0), str(text)[:500]))

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose records carry `log_fields` for every log handler."""
        return logging.LoggerAdapter(_log, self.log_fields)

    @property
    def log_fields(self) -> dict[str, Any]:
        """The fields of log records about this attempt; nothing of its payload."""
        job = self.job
        return log_fields(job.id, job.type, job.queue, self.attempt, self.worker)

    def transaction(self) -> Any:
        """`async with ctx.transaction() as connection:` your writes and the end of this job, in one commit.

        The connection is the store's own (sqlite3 or asyncpg), with a transaction begun. When the block
        ends, the job is completed in it and both are committed, or neither: a lease that was lost
        meanwhile undoes your writes. The attempt is over then; what the handler returns is not kept.
        """
        transactions = None if self._tools is None else self._tools.transactions
        if transactions is None:
            raise ConfigurationError(
                "ctx.transaction() needs SQLite or Postgres and a handler in the worker's own process; "
                "guard your own writes with ctx.fence instead"
            )
        return transactions.begin(self._leased)


def log_fields(job_id: str, task: str, queue: str, attempt: int, worker: str) -> dict[str, Any]:
    """The fields of a log record about a job, under names that clash with no others."""
    return {
        "taskharbor_job_id": job_id,
        "taskharbor_task": task,
        "taskharbor_queue": queue,
        "taskharbor_attempt": attempt,
        "taskharbor_worker": worker,
    }
