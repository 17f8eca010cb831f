"""TaskHarborIntegration, and its layers around enqueues and attempts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from fnmatch import fnmatchcase
from logging import LogRecord
from typing import TYPE_CHECKING, Any

import msgspec
import sentry_sdk
from sentry_sdk.consts import OP
from sentry_sdk.integrations import Integration
from sentry_sdk.scope import (
    Scope,
    _current_scope,
    _isolation_scope,
    add_global_event_processor,
    should_send_default_pii,
)
from sentry_sdk.tracing_utils import Baggage
from sentry_sdk.utils import (
    capture_internal_exceptions,
    disable_capture_event,
    has_data_collection_enabled,
)

from taskharbor.errors import ConfigurationError, InvalidArgument, Parked, TimedOut
from taskharbor.integrations.sentry.check_ins import CheckIn, NoCheckIn
from taskharbor.integrations.sentry.errors import report
from taskharbor.integrations.sentry.spans import ORIGIN, processing, publishing, stepping
from taskharbor.middleware import (
    EnqueueNext,
    around_every_attempt,
    around_every_enqueue,
    around_every_process_call,
    around_every_step,
)
from taskharbor.model.checks import check_headers
from taskharbor.model.job import Job, NewJob
from taskharbor.model.outcome import Cancel, Snooze
from taskharbor.model.schedule import SCHEDULE_HEADER
from taskharbor.model.secrets import redacted

if TYPE_CHECKING:
    from taskharbor.worker.attempt import JobContext

_STOPPED = {"cancel": "cancelled", "shutdown": "released", "lease_lost": "lost"}


class TaskHarborIntegration(Integration):
    """Traces, errors and cron check-ins of every client and worker in this process.

    `every_attempt` reports the error of each failed attempt, and not only of the last one.
    `monitor_schedules` sends a check-in for every job that a schedule made; `exclude_schedules` names
    schedules without one, also by patterns such as `clean-*`.
    """

    identifier = "taskharbor"
    origin = ORIGIN

    def __init__(
        self,
        *,
        every_attempt: bool = False,
        monitor_schedules: bool = True,
        exclude_schedules: Iterable[str] = (),
    ) -> None:
        if isinstance(exclude_schedules, str):
            raise ConfigurationError(f"exclude_schedules must be a list: [{exclude_schedules!r}]")
        self.every_attempt = every_attempt
        self.monitor_schedules = monitor_schedules
        self.exclude_schedules = tuple(exclude_schedules)

    @staticmethod
    def setup_once() -> None:
        """What `sentry_sdk.init` calls."""
        around_every_enqueue.append(_around_enqueue)
        around_every_attempt.append(_around_attempt)
        around_every_process_call.append(_around_process_call)
        around_every_step.append(_around_step)
        add_global_event_processor(_without_attempt_lines)

    def monitors(self, schedule: str) -> bool:
        """Whether jobs of this schedule send check-ins."""
        return self.monitor_schedules and not any(
            fnmatchcase(schedule, pattern) for pattern in self.exclude_schedules
        )


def _active() -> TaskHarborIntegration | None:
    """The integration as the program configured it; None after an `init` without it."""
    return sentry_sdk.get_client().get_integration(TaskHarborIntegration)


def _without_attempt_lines(event: Any, hint: dict[str, Any]) -> Any:
    """Drop events made of the log lines about failed attempts: those errors are reported with more here."""
    record = hint.get("log_record")
    is_line = (
        isinstance(record, LogRecord) and record.name == "taskharbor.job" and record.funcName == "attempt"
    )
    return None if is_line and _active() is not None else event


def _around_step(ctx: JobContext, name: str) -> AbstractContextManager[Any]:
    return nullcontext() if _active() is None else stepping(ctx, name)


# ------------------------------------------------------------------ jobs in


async def _around_enqueue(jobs: Sequence[NewJob], call_next: EnqueueNext) -> Any:
    if not jobs or _active() is None:
        return await call_next(jobs)
    with sentry_sdk.new_scope() as scope, publishing(jobs) as span:
        with capture_internal_exceptions():
            headers = dict(scope.iter_trace_propagation_headers(span=span))
            jobs = [msgspec.structs.replace(job, headers=_with_trace(job.headers, headers)) for job in jobs]
        return await call_next(jobs)


def _with_trace(headers: Mapping[str, str], trace: Mapping[str, str]) -> dict[str, str]:
    """Headers with the trace context in them; without it where there is no room."""
    merged = {**headers, **trace}
    if "baggage" in headers and "baggage" in trace:
        merged["baggage"] = _both(headers["baggage"], trace["baggage"])
    for fitting in (merged, {name: value for name, value in merged.items() if name != "baggage"}):
        with suppress(InvalidArgument):
            check_headers(fitting)
            return fitting
    return dict(headers)


def _both(others: str, ours: str) -> str:
    """The baggage of Sentry and that of others, such as OpenTelemetry, in one header."""
    third_party = Baggage.from_incoming_header(others).third_party_items
    return ",".join(filter(None, (ours, third_party)))


# ------------------------------------------------------------------ jobs at work


async def _around_attempt(ctx: JobContext, job: Job, call_next: Callable[[Any, Job], Awaitable[Any]]) -> Any:
    integration = _active()
    if integration is None:
        return await call_next(ctx, job)
    with _own_scope() as scope:
        _describe(scope, ctx, job)
        check_in = _check_in(job, integration)
        with processing(ctx, job, OP.QUEUE_PROCESS) as run:
            value, error = None, None
            with capture_internal_exceptions():
                job = msgspec.structs.replace(job, headers=_with_trace(job.headers, run.headers()))
            try:
                value = await call_next(ctx, job)
            except BaseException as raised:  # noqa: BLE001 - raised again below
                error = raised
            with capture_internal_exceptions():
                outcome = _outcome(ctx, value, error)
                run.end(outcome)
                if outcome == "failed" or (outcome == "retried" and integration.every_attempt):
                    report(ctx, job, error, is_last=outcome == "failed")
                check_in.end(outcome)
    if error is None:
        return value
    try:
        raise error
    finally:
        del error  # its traceback holds this frame


@contextmanager
def _around_process_call(ctx: JobContext, job: Job) -> Iterator[None]:
    """In a handler process: what the handler sends belongs to the trace. The worker reports its errors."""
    if _active() is None:
        yield
        return
    with _own_scope() as scope:
        _describe(scope, ctx, job)
        with processing(ctx, job, OP.FUNCTION):
            yield


@contextmanager
def _own_scope() -> Iterator[Scope]:
    """A scope for one attempt. Afterwards the context is what it was: else its slot needs a new task.

    Sentry sets these variables at first use, and leaves them there.
    """
    variables = ((_isolation_scope, None), (_current_scope, None), (disable_capture_event, False))
    before = [(variable, variable.set(variable.get(unset))) for variable, unset in variables]
    try:
        with sentry_sdk.isolation_scope() as scope:
            yield scope
    finally:
        for variable, token in reversed(before):
            variable.reset(token)


def _check_in(job: Job, integration: TaskHarborIntegration) -> CheckIn | NoCheckIn:
    schedule = job.headers.get(SCHEDULE_HEADER)
    return NoCheckIn() if schedule is None or not integration.monitors(schedule) else CheckIn(job, schedule)


def _describe(scope: Scope, ctx: JobContext, job: Job) -> None:
    scope.clear_breadcrumbs()  # of other jobs
    with capture_internal_exceptions():
        scope.set_tags(
            {"taskharbor_task": job.type, "taskharbor_queue": job.queue, "taskharbor_job_id": job.id}
        )
        about = {
            "attempt": ctx.attempt,
            "max_attempts": job.max_attempts,
            "stalls": job.stalls,
            "worker": ctx.worker,
            "created_at": job.created_at.isoformat(),
            "schedule": job.headers.get(SCHEDULE_HEADER),
        }
        scope.set_context("taskharbor", about)
        if _sends_arguments():
            scope.set_extra("taskharbor-job", {"arguments": _arguments(job)})


def _sends_arguments() -> bool:
    options = sentry_sdk.get_client().options
    if has_data_collection_enabled(options):
        return bool(options["data_collection"].get("queues"))
    return should_send_default_pii()


def _arguments(job: Job) -> Any:
    """As they are shown elsewhere: what has the name of a secret is hidden."""
    try:
        return redacted(msgspec.json.decode(job.payload))
    except msgspec.DecodeError:
        return f"{len(job.payload)} bytes"


def _outcome(ctx: JobContext, value: Any, error: BaseException | None) -> str:
    """How the attempt ended, in the words of the history; `lost` for a lease that was lost."""
    reason = ctx.cancelled.reason
    if error is None and reason in (None, "shutdown"):
        if isinstance(value, Snooze):
            return "snoozed"
        return "cancelled" if isinstance(value, Cancel) else "completed"
    if reason in _STOPPED:
        return _STOPPED[reason]
    if isinstance(error, Parked):
        return "parked"
    return "retried" if ctx.will_retry(error or TimedOut(ctx.job.timeout)) else "failed"
