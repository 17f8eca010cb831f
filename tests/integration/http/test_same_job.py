"""The same job is stored whether it came by HTTP or by the SDK, on every store."""

from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from taskharbor import Harbor, JobRequest, Update
from taskharbor.model.job import JobRecord
from taskharbor.testing.servers import fresh_postgres_url, fresh_redis_url
from tests.integration.http.api import Api

STORES: dict[str, Callable[[Path], str]] = {
    "memory": lambda _: "memory://",
    "sqlite": lambda folder: f"sqlite:///{folder / 'jobs.db'}?durability=normal",
    "postgres": lambda _: fresh_postgres_url(),
    "redis": lambda _: fresh_redis_url(),
}
WHEN = datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
OWN = ("id", "seq", "fence", "created_at", "updated_at", "run_at")


@pytest.fixture(params=sorted(STORES))
async def api(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Api]:
    harbor = Harbor(STORES[request.param](tmp_path))

    @harbor.task(name="send", queue="mail", max_attempts=4, timeout="30s", min_backoff="1s", max_backoff="1m")
    async def send(user_id: int, text: str = "hi") -> None: ...

    async with await harbor.driver.another().open_unmigrated() as driver:
        await driver.migrate()
    found = Api(harbor, any_type=True)
    yield found
    await found.aclose()


def content(record: JobRecord) -> dict[str, Any]:
    """Everything but what is each job's own."""
    return {name: value for name, value in msgspec.structs.asdict(record).items() if name not in OWN}


async def test_a_plain_request(api: Api) -> None:
    by_sdk = await api.harbor.client.aenqueue(JobRequest(type="x"))
    by_http = await api.put({"type": "x"})

    assert await stored(api, by_http) == await stored(api, by_sdk.id)


async def test_a_request_with_every_option(api: Api) -> None:
    payload = {"text": "grüß\u0000", "list": [1, 2.5, None, True], "big": 2**60}
    by_sdk = await api.harbor.client.aenqueue(
        JobRequest(
            type="x",
            payload=payload,
            queue="q1",
            run_at=WHEN,
            timeout=1.5,
            max_attempts=7,
            max_stalls=2,
            min_backoff=0.25,
            max_backoff=10,
            priority=-5,
            requires="gpu",
            key="k",
            update=Update(data=False, run_at="if_later"),
            headers={"a": "b"},
        )
    )
    sdk = await api.harbor.client.aget_record(by_sdk.id)
    await api("POST", f"/api/jobs/{by_sdk.id}/cancel")
    by_http = await api.put(
        {
            "type": "x",
            "payload": payload,
            "queue": "q1",
            "run_at": "2030-01-02T04:04:05.678901+01:00",
            "timeout_s": 1.5,
            "max_attempts": 7,
            "max_stalls": 2,
            "min_backoff_s": 0.25,
            "max_backoff_s": 10,
            "priority": -5,
            "requires": "gpu",
            "key": "k",
            "update": {"data": False, "run_at": "if_later"},
            "headers": {"a": "b"},
        }
    )

    http = await api.harbor.client.aget_record(by_http)
    assert content(http) == content(sdk)
    assert http.run_at == sdk.run_at == WHEN


async def test_a_call_of_a_task(api: Api) -> None:
    task = api.harbor.tasks.get("send")
    by_sdk = await api.harbor.client.aenqueue(task.call(7, text="grüß"))
    by_http = await api.put({"type": "send", "payload": {"user_id": 7, "text": "grüß"}})
    in_batch = await api(
        "POST", "/api/jobs/batch", {"jobs": [{"type": "send", "payload": {"user_id": 7, "text": "grüß"}}]}
    )

    first = await stored(api, by_sdk.id)
    assert await stored(api, by_http) == first
    assert await stored(api, in_batch.json()["items"][0]["id"]) == first


async def stored(api: Api, job_id: str) -> dict[str, Any]:
    return content(await api.harbor.client.aget_record(job_id))
