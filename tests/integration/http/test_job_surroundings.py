"""What a server adds to a job: its release, its trace, and until when it is kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any

import pytest

from taskharbor.errors import DriverUnavailable
from taskharbor.model.logbook import AUDIT, RELEASES
from taskharbor.model.presence import WorkerReport
from taskharbor.model.queue import EVERY_QUEUE, QueueSettings, Retention
from tests.integration.http.api import Api

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    found = Api(trace_url="https://traces.example/{trace_id}?from=jobs")
    yield found
    await found.aclose()


async def shown(api: Api, job_id: str) -> Any:
    answer = await api("GET", f"/api/jobs/{job_id}")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def kept_days(api: Api, job_id: str) -> float | None:
    job = await shown(api, job_id)
    if job["kept_until"] is None:
        return None
    kept = datetime.fromisoformat(job["kept_until"]) - datetime.fromisoformat(job["finished_at"])
    return kept / timedelta(days=1)


async def look_again(api: Api) -> None:
    """A job's page has the last look of the board, which may be seconds old."""
    assert (await api("GET", "/api/board")).status_code == 200


async def test_an_ended_job_says_until_when_it_is_kept(api: Api) -> None:
    await api.put({"type": "send"})
    dead = await api.kill()
    driver = await api.harbor.client.adriver()

    assert await kept_days(api, dead) == 14
    await driver.configure_queue(
        QueueSettings(queue=EVERY_QUEUE, retention=Retention(failed=timedelta(days=3)))
    )
    await look_again(api)
    assert await kept_days(api, dead) == 3
    await driver.configure_queue(QueueSettings(queue="default", retention=Retention(failed=None)))
    await look_again(api)
    assert await kept_days(api, dead) is None


async def test_a_job_that_is_not_over_is_not_deleted(api: Api) -> None:
    assert (await shown(api, await api.put({"type": "send"})))["kept_until"] is None


async def test_a_trace_has_the_address_that_the_server_was_given(api: Api) -> None:
    job = await shown(api, await api.put({"type": "send", "headers": {"traceparent": PARENT}}))

    assert job["trace_url"] == f"https://traces.example/{TRACE}?from=jobs"


@pytest.mark.parametrize("parent", ["javascript:alert(1)", "00-nothex-1-1", ""])
async def test_what_is_no_trace_has_no_address(api: Api, parent: str) -> None:
    job = await shown(api, await api.put({"type": "send", "headers": {"traceparent": parent}}))

    assert job["trace_url"] is None


async def test_a_server_without_an_address_of_traces_links_to_none() -> None:
    api = Api()
    try:
        job = await shown(api, await api.put({"type": "send", "headers": {"traceparent": PARENT}}))
    finally:
        await api.aclose()

    assert job["trace_url"] is None


async def test_a_job_has_the_release_of_the_worker_that_ran_it(api: Api) -> None:
    await api.put({"type": "send"})
    dead = await api.kill()
    assert (await shown(api, dead))["release"] is None
    driver = await api.harbor.client.adriver()
    await driver.report_worker(WorkerReport(worker_id="w-1", release="4f2a9c1"), ttl=timedelta(minutes=1))
    await look_again(api)

    job = await shown(api, dead)

    assert (job["release"], job["release_since"] is None) == ("4f2a9c1", False)


async def test_a_job_is_shown_when_the_board_cannot_look(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    await api.put({"type": "send"})
    dead = await api.kill()
    driver = await api.harbor.client.adriver()

    async def away(**_: Any) -> Any:
        raise DriverUnavailable("the store is away")

    monkeypatch.setattr(driver, "workers", away)
    job = await shown(api, dead)

    assert (job["state"], job["release"], job["kept_until"]) == ("failed", None, None)


async def test_a_job_does_not_wait_for_the_next_look(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = await api.put({"type": "send"})
    await look_again(api)
    driver, may_end = await api.harbor.client.adriver(), asyncio.Event()
    workers = driver.workers

    async def late(**options: Any) -> Any:
        await may_end.wait()
        return await workers(**options)

    monkeypatch.setattr(driver, "workers", late)
    try:
        job = await asyncio.wait_for(shown(api, job_id), 5)
    finally:
        may_end.set()

    assert job["id"] == job_id


async def test_the_page_of_a_job_reads_no_audit_log_and_writes_nothing(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    await api.put({"type": "send"})
    dead = await api.kill()
    driver = await api.harbor.client.adriver()
    await driver.report_worker(WorkerReport(worker_id="w-1", release="4f2a9c1"), ttl=timedelta(minutes=1))
    await look_again(api)
    read, books = driver.read_log, list[str]()

    async def noting(book: str, *place: Any, **options: Any) -> Any:
        books.append(book)
        return await read(book, *place, **options)

    async def refusing(*_: Any, **__: Any) -> None:
        raise AssertionError("a page of a job wrote into the logbook")

    monkeypatch.setattr(driver, "read_log", noting)
    monkeypatch.setattr(driver, "write_log", refusing)
    job = await shown(api, dead)

    assert job["release_since"] is not None
    assert (RELEASES in books, AUDIT in books) == (True, False)
