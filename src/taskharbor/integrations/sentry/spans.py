"""Spans in both trace lifecycles of Sentry: `static` (transactions, the default) and `stream` (single spans).

publish   a child of the span that is current where a job is enqueued
process   the root of what a worker does for a job, in the trace that the job carries
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import sentry_sdk
from sentry_sdk import traces
from sentry_sdk.consts import OP, SPANDATA
from sentry_sdk.scope import Scope
from sentry_sdk.traces import SegmentNameSource
from sentry_sdk.tracing import TransactionSource
from sentry_sdk.tracing_utils import has_span_streaming_enabled
from sentry_sdk.utils import capture_internal_exceptions

from taskharbor.middleware import running
from taskharbor.model.job import Job, NewJob
from taskharbor.model.workflow import workflows_of

if TYPE_CHECKING:
    from taskharbor.worker.attempt import JobContext

SYSTEM = "taskharbor"
ORIGIN = "auto.queue.taskharbor"
_BODY_SIZE = "messaging.message.body.size"
_CONVERSATION = "messaging.message.conversation_id"
_BATCH_SIZE = "messaging.batch.message_count"
_STEP = "queue.step"
_STATUS = {
    "retried": "internal_error",
    "failed": "internal_error",
    "cancelled": "cancelled",
    "lost": "aborted",
}


def is_streaming() -> bool:
    return has_span_streaming_enabled(sentry_sdk.get_client().options)


# ------------------------------------------------------------------ publish


def publishing(jobs: Sequence[NewJob]) -> AbstractContextManager[Any]:
    """The span of an enqueue: its own, or that which Django has begun for it; None where there is none."""
    scope = sentry_sdk.get_current_scope()
    name, data = _name_of(jobs), _about(jobs)
    if is_streaming():
        current: Any = scope.streamed_span
        if current is None or current.get_attributes().get("sentry.op") == OP.QUEUE_SUBMIT_DJANGO:
            return nullcontext(current)
        attributes = {**data, "sentry.op": OP.QUEUE_PUBLISH, "sentry.origin": ORIGIN}
        return traces.start_span(name=name, attributes=attributes)
    if scope.span is not None and scope.span.op == OP.QUEUE_SUBMIT_DJANGO:
        return nullcontext(scope.span)
    span = sentry_sdk.start_span(op=OP.QUEUE_PUBLISH, name=name, origin=ORIGIN)
    for key, value in data.items():
        span.set_data(key, value)
    return span


def _name_of(jobs: Sequence[NewJob]) -> str:
    types = {job.type for job in jobs}
    return types.pop() if len(types) == 1 else f"{len(types)} tasks"


def _about(jobs: Sequence[NewJob]) -> dict[str, Any]:
    data: dict[str, Any] = {
        SPANDATA.MESSAGING_SYSTEM: SYSTEM,
        _BODY_SIZE: sum(len(job.payload) for job in jobs),
    }
    queues = {job.queue for job in jobs}
    if len(queues) == 1:
        data[SPANDATA.MESSAGING_DESTINATION_NAME] = queues.pop()
    if len(jobs) == 1:
        data[SPANDATA.MESSAGING_MESSAGE_ID] = jobs[0].id
    else:
        data[_BATCH_SIZE] = len(jobs)
    ctx = running.get(None)
    workflows = set(workflows_of(jobs, None if ctx is None else (ctx.job.id, ctx.workflow_id)).values())
    if len(workflows) == 1:
        data[_CONVERSATION] = workflows.pop()
    return data


# ------------------------------------------------------------------ process


def stepping(ctx: JobContext, name: str) -> AbstractContextManager[Any]:
    """The span of a step of a durable handler, within that of its attempt."""
    if is_streaming():
        attributes: Any = {"sentry.op": _STEP, "sentry.origin": ORIGIN}
        return traces.start_span(name=name, attributes=attributes)
    return sentry_sdk.start_span(op=_STEP, name=name, origin=ORIGIN)


class RunSpan:
    """The span of one attempt."""

    def __init__(self, span: Any, *, is_streamed: bool) -> None:
        self._span = span
        self._is_streamed = is_streamed

    def headers(self) -> dict[str, str]:
        """The trace context of this span, for the process that runs the handler."""
        return dict(sentry_sdk.get_current_scope().iter_trace_propagation_headers(span=self._span))

    def set(self, key: str, value: Any) -> None:
        (self._span.set_attribute if self._is_streamed else self._span.set_data)(key, value)

    def end(self, outcome: str) -> None:
        self.set("taskharbor.outcome", outcome)
        status = _STATUS.get(outcome, "ok")
        if not self._is_streamed:
            self._span.set_status(status)
        elif status == "internal_error":
            self._span.status = "error"


@contextmanager
def processing(ctx: JobContext, job: Job, op: str) -> Iterator[RunSpan]:
    """A root span in the trace that the job carries, or in a new one."""
    sampling = {
        "taskharbor_job": {"id": job.id, "type": job.type, "queue": job.queue, "attempt": ctx.attempt}
    }
    if is_streaming():
        traces.continue_trace(job.headers)
        Scope.set_custom_sampling_context(sampling)
        attributes: Any = {
            "sentry.op": op,
            "sentry.origin": ORIGIN,
            "sentry.segment.name.source": SegmentNameSource.TASK.value,
        }
        span: Any = traces.start_span(name=job.type, attributes=attributes, parent_span=None)
    else:
        continued = sentry_sdk.continue_trace(
            job.headers, op=op, name=job.type, source=TransactionSource.TASK, origin=ORIGIN
        )
        span = sentry_sdk.start_transaction(continued, custom_sampling_context=sampling)
    with span:
        run = RunSpan(span, is_streamed=is_streaming())
        with capture_internal_exceptions():
            for key, value in _about_run(ctx, job).items():
                run.set(key, value)
        yield run


def _about_run(ctx: JobContext, job: Job) -> dict[str, Any]:
    waited = (ctx.clock.now() - (job.run_at or job.created_at)).total_seconds()
    conversation = {} if ctx.workflow_id is None else {_CONVERSATION: ctx.workflow_id}
    return conversation | {
        SPANDATA.MESSAGING_SYSTEM: SYSTEM,
        SPANDATA.MESSAGING_DESTINATION_NAME: job.queue,
        SPANDATA.MESSAGING_MESSAGE_ID: job.id,
        SPANDATA.MESSAGING_MESSAGE_RECEIVE_LATENCY: max(waited, 0.0) * 1000,
        SPANDATA.MESSAGING_MESSAGE_RETRY_COUNT: job.attempts,
        _BODY_SIZE: len(job.payload),
    }
