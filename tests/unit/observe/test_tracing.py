"""Traces: real spans of the real SDK, from where a job goes in to where it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from taskharbor import JobContext, middleware
from taskharbor.harbor import Harbor
from taskharbor.model.checks import MAX_HEADER_BYTES
from taskharbor.model.outcome import Snooze
from taskharbor.observe.tracing import trace_jobs


class Traced:
    """A harbor whose clients and workers are traced into memory."""

    def __init__(self, **options: Any) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader])
        self.harbor = Harbor("memory://")
        self.stop = trace_jobs(tracer_provider=self.provider, meter_provider=self.meters, **options)

    async def work(self) -> None:
        await self.harbor.worker(scheduler=False).arun(until_idle=True)

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def span(self, name: str) -> ReadableSpan:
        [span] = self.spans(name)
        return span

    def measured(self) -> dict[str, Any]:
        data = self.reader.get_metrics_data()
        assert data is not None
        return {
            metric.name: list(metric.data.data_points)
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


@pytest.fixture
def traced() -> Iterator[Traced]:
    traced = Traced()
    yield traced
    traced.stop()


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


async def test_a_job_has_a_producer_span_and_a_consumer_span_that_links_to_it(traced: Traced) -> None:
    @traced.harbor.task(queue="mail", max_attempts=5)
    async def send(number: int) -> None:
        return None

    async with traced.harbor:
        handle = await send.aenqueue(7)
        await traced.work()

    sent, processed = traced.span("send mail"), traced.span("process mail")
    assert (sent.kind, processed.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert [link.context.span_id for link in processed.links] == [sent.context.span_id]
    assert processed.parent is None
    assert processed.context.trace_id != sent.context.trace_id
    assert attributes(sent) == {
        "messaging.system": "taskharbor",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "mail",
        "messaging.message.id": handle.id,
        "taskharbor.task": "send",
    }
    shown = attributes(processed)
    assert shown["messaging.operation.type"] == "process"
    assert shown["messaging.message.id"] == handle.id
    assert (shown["taskharbor.attempt"], shown["taskharbor.max_attempts"]) == (1, 5)
    assert shown["taskharbor.outcome"] == "completed"
    assert shown["messaging.client.id"]
    assert "error.type" not in shown


async def test_a_parent_instead_of_a_link_is_an_option() -> None:
    traced = Traced(parent=True, sizes=True)
    try:

        @traced.harbor.task
        async def send(number: int) -> None:
            return None

        async with traced.harbor:
            await send.aenqueue(7)
            await traced.work()
    finally:
        traced.stop()

    sent, processed = traced.span("send default"), traced.span("process default")
    assert processed.parent is not None
    assert processed.parent.span_id == sent.context.span_id
    assert processed.context.trace_id == sent.context.trace_id
    assert not processed.links
    assert attributes(processed)["messaging.message.body.size"] > 0


async def test_many_jobs_have_a_span_each_and_the_call_links_to_all_of_them(traced: Traced) -> None:
    @traced.harbor.task(queue="mail")
    async def send(number: int) -> None:
        return None

    async with traced.harbor:
        await traced.harbor.aenqueue_many([send.call(number) for number in range(3)])
        await traced.work()

    created, sent = traced.spans("create mail"), traced.span("send mail")
    assert {span.kind for span in created} == {SpanKind.PRODUCER}
    assert sent.kind is SpanKind.CLIENT
    assert attributes(sent)["messaging.batch.message_count"] == 3
    origins = {span.context.span_id for span in created}
    assert {link.context.span_id for link in sent.links} == origins
    links = [link.context.span_id for span in traced.spans("process mail") for link in span.links]
    assert sorted(links) == sorted(origins)


async def test_a_batch_for_several_queues_names_none(traced: Traced) -> None:
    @traced.harbor.task(queue="mail")
    async def send() -> None: ...

    @traced.harbor.task(queue="push")
    async def push() -> None: ...

    async with traced.harbor:
        await traced.harbor.aenqueue_many([send.call(), push.call()])

    assert "messaging.destination.name" not in attributes(traced.span("send"))


async def test_a_failing_attempt_says_what_failed_and_every_attempt_has_its_span(traced: Traced) -> None:
    @traced.harbor.task(max_attempts=2, min_backoff="1ms", max_backoff="1ms")
    async def send() -> None:
        raise LookupError("nobody there")

    async with traced.harbor:
        handle = await send.aenqueue()
        await traced.work()
        while (await handle.arefresh()).state.value != "failed":
            await traced.work()

    first, second = traced.spans("process default")
    for span in (first, second):
        assert span.status.status_code is StatusCode.ERROR
        assert attributes(span)["error.type"] == "LookupError"
        assert "taskharbor.outcome" not in attributes(span)
        assert [event.name for event in span.events] == ["exception"]
    assert [attributes(span)["taskharbor.attempt"] for span in (first, second)] == [1, 2]


async def test_a_wish_is_no_error(traced: Traced) -> None:
    from datetime import timedelta

    @traced.harbor.task
    async def later() -> Snooze:
        return Snooze(timedelta(hours=1))

    async with traced.harbor:
        await later.aenqueue()
        await traced.work()

    span = traced.span("process default")
    assert span.status.status_code is StatusCode.UNSET
    assert attributes(span)["taskharbor.outcome"] == "snoozed"


async def test_a_refused_enqueue_is_an_error_of_its_span(traced: Traced) -> None:
    from datetime import timedelta

    from taskharbor.errors import RateLimited
    from taskharbor.model.limits import RateLimit
    from taskharbor.model.queue import QueueSettings

    @traced.harbor.task
    async def send() -> None: ...

    async with traced.harbor:
        driver = await traced.harbor.client.adriver()
        rate = RateLimit(1, timedelta(hours=1))
        await driver.configure_queue(QueueSettings(queue="default", enqueue_rate=rate))
        await send.aenqueue()
        with pytest.raises(RateLimited):
            await send.aenqueue()

    _, refused = traced.spans("send default")
    assert attributes(refused)["error.type"] == "RateLimited"
    assert refused.status.status_code is StatusCode.ERROR


def test_blocking_code_has_its_own_span_as_parent_and_its_baggage_reaches_the_handler(traced: Traced) -> None:
    seen: list[Any] = []

    @traced.harbor.task
    async def in_loop() -> None:
        seen.append((baggage.get_baggage("tenant"), trace.get_current_span().get_span_context().span_id))

    @traced.harbor.task
    def in_thread() -> None:
        seen.append((baggage.get_baggage("tenant"), trace.get_current_span().get_span_context().span_id))

    tracer = traced.provider.get_tracer("test")
    token = context.attach(baggage.set_baggage("tenant", "blue"))
    try:
        with traced.harbor, tracer.start_as_current_span("request") as request:
            in_loop.enqueue()
            in_thread.enqueue()
            traced.harbor.worker(scheduler=False).run(until_idle=True)
    finally:
        context.detach(token)

    for sent in traced.spans("send default"):
        assert sent.parent is not None
        assert sent.parent.span_id == request.get_span_context().span_id
    processed = {span.context.span_id for span in traced.spans("process default")}
    assert {found for _, found in seen} == processed
    assert {tenant for tenant, _ in seen} == {"blue"}


async def test_baggage_that_does_not_fit_is_left_behind_and_the_job_goes_in(traced: Traced) -> None:
    @traced.harbor.task
    async def send() -> None: ...

    huge = baggage.set_baggage("novel", "x" * min(MAX_HEADER_BYTES, 8000))
    token = context.attach(baggage.set_baggage("more", "y" * 4000, huge))
    try:
        async with traced.harbor:
            handle = await send.aenqueue()
            record = await traced.harbor.client.aget_record(handle.id)
    finally:
        context.detach(token)

    assert "traceparent" in record.headers
    if "baggage" in record.headers:
        assert sum(len(name) + len(value) for name, value in record.headers.items()) <= MAX_HEADER_BYTES


async def test_a_context_that_the_job_brings_along_is_continued(traced: Traced) -> None:
    @traced.harbor.task
    async def send() -> None: ...

    brought = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with traced.harbor:
        await send.using(headers={"traceparent": brought}).aenqueue()

    sent = traced.span("send default")
    assert f"{sent.context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"
    assert sent.parent is not None
    assert f"{sent.parent.span_id:016x}" == "b7ad6b7169203331"


async def test_one_job_leaves_no_span_behind_for_the_next(traced: Traced) -> None:
    seen = []

    @traced.harbor.task
    async def send() -> None:
        seen.append(trace.get_current_span().get_span_context().span_id)

    async with traced.harbor:
        for _ in range(3):
            await send.aenqueue()
        await asyncio.create_task(traced.work())

    assert len(set(seen)) == 3
    assert all(span.parent is None for span in traced.spans("process default"))
    assert not trace.get_current_span().get_span_context().is_valid


async def test_the_messaging_metrics_are_exported(traced: Traced) -> None:
    @traced.harbor.task
    async def send() -> None: ...

    async with traced.harbor:
        await send.aenqueue()
        await traced.work()

    measured = traced.measured()
    assert [point.value for point in measured["messaging.client.sent.messages"]] == [1]
    assert [point.value for point in measured["messaging.client.consumed.messages"]] == [1]
    assert [point.count for point in measured["messaging.client.operation.duration"]] == [1]
    assert [point.count for point in measured["messaging.process.duration"]] == [1]
    assert tuple(measured["messaging.process.duration"][0].explicit_bounds)[:2] == (0.005, 0.01)


async def test_the_instrumentor_is_found_by_its_entry_point_and_can_be_taken_off_again() -> None:
    [entry] = entry_points(group="opentelemetry_instrumentor", name="taskharbor")
    instrumentor = entry.load()()
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    harbor = Harbor("memory://")  # there before it is instrumented, as programs may be

    @harbor.task
    async def send() -> None: ...

    assert list(instrumentor.instrumentation_dependencies()) == ["taskharbor >= 0.1.0"]
    instrumentor.instrument(tracer_provider=provider)
    try:
        async with harbor:
            await send.aenqueue()
            await harbor.worker(scheduler=False).arun(until_idle=True)
            instrumentor.uninstrument()
            await send.aenqueue()
    finally:
        instrumentor.uninstrument()

    assert [span.name for span in exporter.get_finished_spans()] == ["send default", "process default"]
    assert not middleware.around_every_enqueue
    assert not middleware.around_every_attempt


async def test_the_spans_of_a_workflow_carry_its_id(traced: Traced) -> None:
    @traced.harbor.task(queue="mail")
    async def send(number: int) -> int:
        return number

    @traced.harbor.task(queue="plain")
    async def alone() -> None:
        return None

    async with traced.harbor:
        handle = await traced.harbor.group([send.call(1), send.call(2)], then=send.call(3)).aenqueue()
        await alone.aenqueue()
        await traced.work()

    spans = [*traced.spans("create mail"), *traced.spans("process mail")]
    assert len(spans) == 6
    assert {attributes(span)["messaging.message.conversation_id"] for span in spans} == {handle.id}
    assert "messaging.message.conversation_id" not in attributes(traced.span("process plain"))
    assert "messaging.message.conversation_id" not in attributes(traced.span("send plain"))


async def test_a_step_that_runs_is_a_span_within_that_of_its_attempt(traced: Traced) -> None:
    def render() -> str:
        return "text"

    @traced.harbor.task(queue="mail")
    async def publish(ctx: JobContext) -> int:
        await ctx.astep("render", render)
        return await ctx.acall(double.call(2))  # runs again from the top: the step is remembered

    @traced.harbor.task(queue="mail")
    async def double(number: int) -> int:
        return 2 * number

    async with traced.harbor:
        handle = await publish.aenqueue()
        await traced.work()

    step = traced.span("step render")
    runs = [span for span in traced.spans("process mail") if attributes(span)["taskharbor.task"] == "publish"]
    assert step.kind is SpanKind.INTERNAL
    assert step.parent is not None
    assert step.parent.span_id == runs[0].context.span_id
    assert attributes(step)["taskharbor.step"] == "render"
    [child] = [span for span in traced.spans("process mail") if span not in runs]
    assert attributes(child)["messaging.message.conversation_id"] == handle.id
    assert attributes(runs[-1])["messaging.message.conversation_id"] == handle.id
