"""GET /metrics of a server, and the trace context of requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.http.api import Api, make_token, token_file

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SLOW = 30.0


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    api = Api(metrics=True)
    async with api.app.running():
        yield api
    await api.aclose()


def found(text: str) -> dict[str, float]:
    values: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            values[sample.name] = values.get(sample.name, 0.0) + sample.value
    return values


async def test_a_server_reports_what_goes_in_and_what_the_store_holds() -> None:
    api = Api(metrics=True)
    for _ in range(3):
        await api.put({"type": "send"})
    async with api.app.running(), asyncio.timeout(SLOW):
        while "taskharbor_jobs" not in (values := found((await api("GET", "/metrics")).text)):
            await asyncio.sleep(0.05)
        answer = await api("GET", "/metrics")
    await api.aclose()

    assert values["taskharbor_jobs"] == 3
    assert answer.headers["content-type"].startswith("text/plain")
    assert values["taskharbor_jobs_enqueued_total"] == 3
    assert values["taskharbor_store_op_seconds_count"] >= 1
    assert values["taskharbor_build_info"] == 1


async def test_metrics_are_off_unless_asked_for() -> None:
    api = Api()
    try:
        assert (await api("GET", "/metrics")).status_code == 404
    finally:
        await api.aclose()


async def test_with_tokens_a_viewer_may_look_and_a_stranger_may_not(tmp_path: Path) -> None:
    secret = make_token(token_file(tmp_path), "viewer")
    api = Api(metrics=True, tokens=tmp_path / "tokens.json")
    try:
        assert (await api("GET", "/metrics")).status_code == 401
        assert (await api("GET", "/metrics", token=secret)).status_code == 200
    finally:
        await api.aclose()


async def test_the_trace_context_of_a_request_goes_into_its_jobs(api: Api) -> None:
    headers = {"traceparent": PARENT, "tracestate": "a=1", "baggage": "tenant=blue"}
    one = await api("POST", "/api/jobs", {"type": "send"}, headers=headers)
    many = await api("POST", "/api/jobs/batch", {"jobs": [{"type": "send"}] * 2}, headers=headers)
    own = {"type": "send", "headers": {"traceparent": PARENT.replace("b7", "c8")}}
    brought = await api("POST", "/api/jobs", own, headers=headers)
    broken = await api("POST", "/api/jobs", {"type": "send"}, headers={"traceparent": "nonsense"})

    async def headers_of(job_id: str) -> dict[str, str]:
        return (await api.harbor.client.aget_record(job_id)).headers

    for job_id in (one.json()["id"], *(item["id"] for item in many.json()["items"])):
        kept = await headers_of(job_id)
        assert (kept["traceparent"], kept["tracestate"], kept["baggage"]) == (PARENT, "a=1", "tenant=blue")
    assert (await headers_of(brought.json()["id"]))["traceparent"] == own["headers"]["traceparent"]  # type: ignore[index]
    assert "traceparent" not in await headers_of(broken.json()["id"])
