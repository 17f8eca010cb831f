"""Traces: a producer span where a job goes in, a consumer span where it runs, joined through its headers.

    stop = trace_jobs()        # every client and worker of this process, until stop()

The trace context travels in the job's own headers, so that every store carries it. The names are those of
OpenTelemetry's conventions for messaging, which are not stable yet: only this module knows them.
Only the API is needed; to see spans, install an SDK. This module and the one that instruments
programs from outside are the only ones that need OpenTelemetry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

from msgspec.structs import replace

from taskharbor.errors import ConfigurationError, InvalidArgument, Parked
from taskharbor.middleware import (
    EnqueueNext,
    around_every_attempt,
    around_every_enqueue,
    around_every_step,
    running,
)
from taskharbor.model.checks import check_headers
from taskharbor.model.clock import SystemClock
from taskharbor.model.job import Job, NewJob
from taskharbor.model.outcome import Cancel, Snooze
from taskharbor.model.workflow import workflows_of

try:
    from opentelemetry import context as contexts
    from opentelemetry import metrics, propagate, trace
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode
except ModuleNotFoundError as error:
    raise ConfigurationError(
        "traces need opentelemetry-api, which is not installed: pip install 'taskharbor[otel]'"
    ) from error

SYSTEM = "taskharbor"
SCOPE = "taskharbor"
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
_NOT_ERRORS = {"cancel": "cancelled", "shutdown": "released", "lease_lost": "lost"}
_clock = SystemClock()


def trace_jobs(
    *, tracer_provider: Any = None, meter_provider: Any = None, parent: bool = False, sizes: bool = False
) -> Callable[[], None]:
    """Trace every job that this process enqueues or runs from now on; returns a function that stops it.

    A run starts a trace of its own that links to where its job came from; with `parent` it is a child of
    that span. `sizes` adds the size of payloads; nothing else of them is recorded.
    """
    tracing = Tracing(tracer_provider, meter_provider, parent=parent, sizes=sizes)
    around_every_enqueue.insert(0, tracing.around_enqueue)
    around_every_attempt.insert(0, tracing.around_attempt)
    around_every_step.insert(0, tracing.around_step)

    def stop() -> None:
        with suppress(ValueError):  # stopped before
            around_every_enqueue.remove(tracing.around_enqueue)
            around_every_attempt.remove(tracing.around_attempt)
            around_every_step.remove(tracing.around_step)

    return stop


class Tracing:
    """The two layers. Use them on one client or worker alone with its `use`."""

    def __init__(
        self,
        tracer_provider: Any = None,
        meter_provider: Any = None,
        *,
        parent: bool = False,
        sizes: bool = False,
    ) -> None:
        self._is_parent = parent
        self._has_sizes = sizes
        self._tracer = trace.get_tracer(SCOPE, tracer_provider=tracer_provider)
        meter = metrics.get_meter(SCOPE, meter_provider=meter_provider)
        self._sent = meter.create_counter(
            "messaging.client.sent.messages", "{message}", "Jobs sent to the store."
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Jobs started by a handler."
        )
        self._send_duration = meter.create_histogram(
            "messaging.client.operation.duration",
            "s",
            "How long sending jobs to the store took.",
            explicit_bucket_boundaries_advisory=BUCKETS,
        )
        self._process_duration = meter.create_histogram(
            "messaging.process.duration",
            "s",
            "How long handlers ran.",
            explicit_bucket_boundaries_advisory=BUCKETS,
        )

    # ------------------------------------------------------------------ jobs in

    async def around_enqueue(self, jobs: Sequence[NewJob], call_next: EnqueueNext) -> Any:
        if not jobs:
            return await call_next(jobs)
        with self._timed(self._send_duration, _send_attributes(jobs)):
            answers = await (self._one(jobs[0], call_next) if len(jobs) == 1 else self._many(jobs, call_next))
        for job in jobs:
            self._sent.add(1, _attributes("send", job.queue))
        return answers

    async def _one(self, job: NewJob, call_next: EnqueueNext) -> Any:
        attributes = self._of_job("send", job) | _conversation(_workflows_of([job]).get(job.id))
        with self._span(f"send {job.queue}", SpanKind.PRODUCER, attributes, of=job):
            return await call_next([carrying(job)])

    async def _many(self, jobs: Sequence[NewJob], call_next: EnqueueNext) -> Any:
        """A span per job, for each has a life of its own, and one for the call that carries them all."""
        created = []
        links = []
        roots = _workflows_of(jobs)
        for job in jobs:
            name = f"create {job.queue}"
            attributes = self._of_job("create", job) | _conversation(roots.get(job.id))
            with self._span(name, SpanKind.PRODUCER, attributes, of=job) as span:
                created.append(carrying(job))
                links.append(Link(span.get_span_context()))
        attributes = _send_attributes(jobs)
        name = " ".join(filter(None, ("send", attributes.get("messaging.destination.name"))))
        with self._span(name, SpanKind.CLIENT, attributes, links):
            return await call_next(created)

    # ------------------------------------------------------------------ jobs at work

    async def around_attempt(
        self, ctx: Any, job: Job, call_next: Callable[[Any, Job], Awaitable[Any]]
    ) -> Any:
        carried = propagate.extract(job.headers, context=contexts.Context())
        origin = trace.get_current_span(carried).get_span_context()
        links = [Link(origin)] if origin.is_valid and not self._is_parent else []
        if not self._is_parent:  # baggage stays, the parent goes
            carried = trace.set_span_in_context(trace.INVALID_SPAN, carried)
        token = contexts.attach(carried)
        attributes = {"messaging.operation.name": "process", "messaging.destination.name": job.queue}
        try:
            with (
                self._timed(self._process_duration, {"messaging.system": SYSTEM, **attributes}),
                self._span(f"process {job.queue}", SpanKind.CONSUMER, self._of_run(ctx, job), links) as span,
            ):
                value = await call_next(ctx, job)
                span.set_attribute("taskharbor.outcome", _outcome(value))
                return value
        finally:
            contexts.detach(token)
            self._consumed.add(1, _attributes("process", job.queue))

    def around_step(self, ctx: Any, name: str) -> AbstractContextManager[Span]:
        attributes = {"taskharbor.step": name, "messaging.message.id": ctx.job.id}
        return self._span(f"step {name}", SpanKind.INTERNAL, attributes | _conversation(ctx.workflow_id))

    # ------------------------------------------------------------------ spans

    @contextmanager
    def _span(
        self,
        name: str,
        kind: SpanKind,
        attributes: dict[str, Any],
        links: Sequence[Link] = (),
        of: NewJob | None = None,
    ) -> Iterator[Span]:
        with self._tracer.start_as_current_span(
            name,
            context=None if of is None else _origin_of(of),
            kind=kind,
            attributes=attributes,
            links=links,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield span
            except Parked:  # it waits, which is no error
                raise
            except BaseException as error:
                if span.is_recording():
                    _record_error(span, error)
                raise

    @contextmanager
    def _timed(self, histogram: Any, attributes: dict[str, Any]) -> Iterator[None]:
        started = _clock.monotonic()
        try:
            yield
        except Parked:
            raise
        except BaseException as error:
            attributes = {**attributes, "error.type": _error_type(error)}
            raise
        finally:
            histogram.record(_clock.monotonic() - started, attributes)

    def _of_job(self, operation: str, job: NewJob | Job) -> dict[str, Any]:
        attributes = {
            **_attributes(operation, job.queue),
            "messaging.message.id": job.id,
            "taskharbor.task": job.type,
        }
        if self._has_sizes:
            attributes["messaging.message.body.size"] = len(job.payload)
        return attributes

    def _of_run(self, ctx: Any, job: Job) -> dict[str, Any]:
        waited = (ctx.clock.now() - (job.run_at or job.created_at)).total_seconds()
        attributes = {
            **self._of_job("process", job),
            "taskharbor.attempt": ctx.attempt,
            "taskharbor.fence": ctx.fence,
            "taskharbor.wait_s": max(waited, 0.0),
            **_conversation(ctx.workflow_id),
        }
        if ctx.worker:
            attributes["messaging.client.id"] = ctx.worker
        if job.max_attempts:
            attributes["taskharbor.max_attempts"] = job.max_attempts
        return attributes


def carrying(job: NewJob) -> NewJob:
    """The job with the current trace context in its headers; as it is where there is no room for it."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    alone = {name: value for name, value in carrier.items() if name != "baggage"}
    for headers in ({**job.headers, **carrier}, {**job.headers, **alone}):
        with suppress(InvalidArgument):
            check_headers(headers)
            return replace(job, headers=headers)
    return job


def _origin_of(job: NewJob) -> contexts.Context | None:
    """Whom a producer span belongs to: the span that is current here, else the context the job brings.

    A server that passes on the trace of a request has no span of its own.
    """
    if trace.get_current_span().get_span_context().is_valid or "traceparent" not in job.headers:
        return None
    return propagate.extract(job.headers)


def _attributes(operation: str, queue: str | None) -> dict[str, Any]:
    attributes = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
    }
    if queue is not None:
        attributes["messaging.destination.name"] = queue
    return attributes


def _workflows_of(jobs: Sequence[NewJob]) -> dict[str, str]:
    """The workflows that new jobs belong to, as far as this process knows them."""
    ctx = running.get(None)
    return workflows_of(jobs, None if ctx is None else (ctx.job.id, ctx.workflow_id))


def _conversation(root: str | None) -> dict[str, Any]:
    return {} if root is None else {"messaging.message.conversation_id": root}


def _send_attributes(jobs: Sequence[NewJob]) -> dict[str, Any]:
    queues = {job.queue for job in jobs}
    attributes = _attributes("send", queues.pop() if len(queues) == 1 else None)
    if len(jobs) > 1:
        attributes["messaging.batch.message_count"] = len(jobs)
    return attributes


def _outcome(value: object) -> str:
    if isinstance(value, Snooze):
        return "snoozed"
    return "cancelled" if isinstance(value, Cancel) else "completed"


def _record_error(span: Span, error: BaseException) -> None:
    ctx = running.get(None)
    reason = None if ctx is None else ctx.cancelled.reason
    if reason in _NOT_ERRORS or (reason is None and isinstance(error, asyncio.CancelledError)):
        span.set_attribute("taskharbor.outcome", _NOT_ERRORS[reason or "cancel"])
        return
    # No outcome: whether it is retried or failed is decided after the span has ended.
    span.set_attribute("error.type", _error_type(error))
    if isinstance(error, Exception):
        span.record_exception(error)
    span.set_status(Status(StatusCode.ERROR, f"{_error_type(error)}: {error}"[:500]))


def _error_type(error: BaseException) -> str:
    """The name of an error; an error from another process is a text that starts with its name."""
    outcome = getattr(error, "outcome", None)
    name = str(getattr(outcome, "reason", "")).partition(":")[0]
    return name if name.isidentifier() else type(error).__qualname__
