"""The trace context of an enqueue reaches the run of the job, on every store."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from taskharbor.harbor import Harbor
from taskharbor.observe.tracing import trace_jobs
from taskharbor.testing.http_server import fresh_http_url
from taskharbor.testing.servers import fresh_postgres_url, fresh_redis_url

STORES: dict[str, Callable[[Path], str]] = {
    "memory": lambda _: "memory://",
    "sqlite": lambda folder: f"sqlite:///{folder}/jobs.db?durability=normal",
    "postgres": lambda _: fresh_postgres_url(),
    "redis": lambda _: fresh_redis_url(),
    "http": lambda _: fresh_http_url(durable=True),
}
THERE = [name for name in STORES if find_spec(f"taskharbor.drivers.{name}")]


@pytest.mark.parametrize("store", THERE)
async def test_a_run_links_to_where_its_job_came_from(store: str, tmp_path: Path) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    harbor = Harbor(STORES[store](tmp_path))

    @harbor.task(max_attempts=2, min_backoff="1ms", max_backoff="1ms")
    async def send(number: int) -> None:
        return None

    stop = trace_jobs(tracer_provider=provider)
    try:
        async with harbor:
            with provider.get_tracer("test").start_as_current_span("request"):
                await send.aenqueue(1)
                await harbor.aenqueue_many([send.call(2), send.call(3)])
            await harbor.worker(scheduler=False).arun(until_idle=True)
    finally:
        stop()

    spans = exporter.get_finished_spans()
    [request] = [span for span in spans if span.name == "request"]
    origins = {
        span.context.span_id
        for span in spans
        if span.name == "create default" or (span.name == "send default" and not span.links)
    }
    links = {link.context.span_id for span in spans if span.name == "process default" for link in span.links}
    assert len(links) == 3
    assert links == origins
    assert {
        link.context.trace_id for span in spans if span.name == "process default" for link in span.links
    } == {request.context.trace_id}


def test_a_program_is_traced_without_a_change_of_its_code(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from taskharbor.harbor import Harbor

exporter, provider = InMemorySpanExporter(), TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
harbor = Harbor("memory://")

@harbor.task
async def send() -> None: ...

with harbor:
    send.enqueue()
    harbor.worker(scheduler=False).run(until_idle=True)
print(*(span.name for span in exporter.get_finished_spans()), sep="|")
"""
    )
    agent = Path(sys.executable).with_name("opentelemetry-instrument")
    done = subprocess.run(
        [str(agent), sys.executable, "program.py"],
        cwd=tmp_path,
        env={**os.environ, "OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "send default|process default"
