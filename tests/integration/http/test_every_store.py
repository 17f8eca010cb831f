"""What a person does on the pages, on every store: search, count, act on many, look at causes, undo."""

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from taskharbor import Harbor
from taskharbor.model.cause import cause_of
from taskharbor.model.clock import micros
from taskharbor.model.log_cells import CauseNumbers, packed
from taskharbor.model.logbook import CAUSES, LogEntry
from taskharbor.testing.http_server import fresh_http_url
from taskharbor.testing.servers import fresh_postgres_url, fresh_redis_url
from tests.integration.http.api import GENEROUS_SECONDS, Api

STORES: dict[str, Callable[[Path], str]] = {
    "sqlite": lambda folder: f"sqlite:///{folder / 'jobs.db'}?durability=normal",
    "postgres": lambda _: fresh_postgres_url(),
    "redis": lambda _: fresh_redis_url(),
    "http": lambda _: fresh_http_url(),
}


@pytest.fixture(params=sorted(STORES))
async def api(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Api]:
    harbor = Harbor(STORES[request.param](tmp_path))
    async with await harbor.driver.another().open_unmigrated() as driver:
        await driver.migrate()
    found = Api(harbor, rate_per_second=0)
    yield found
    await found.aclose()


async def ids(api: Api, q: str, **params: Any) -> list[str]:
    answer = await api("GET", "/api/jobs", params={"q": q, **params})
    assert answer.status_code == 200, answer.text
    return [item["id"] for item in answer.json()["items"]]


async def changes(api: Api) -> list[Any]:
    await asyncio.sleep(0)  # changes of one turn are written in the next
    async with asyncio.timeout(GENEROUS_SECONDS):
        while api.app.service.background:
            await asyncio.wait(api.app.service.background)
    items: list[Any] = (await api("GET", "/api/audit")).json()["items"]
    return items


async def test_a_person_finds_groups_and_retries_what_failed(api: Api) -> None:
    for number in range(6):
        await api.put({"type": "send", "queue": "mail", "payload": {"n": number}, "key": f"k{number}"})
    dead = [await api.kill("mail", f"Late: gave up on order {number}") for number in range(4)]
    [cause] = {job["cause"] for job in (await api("GET", "/api/jobs?q=state:failed")).json()["items"]}

    assert await ids(api, f"cause:{cause}") == dead[::-1]
    assert await ids(api, "state:failed", sort="-ended", limit=2) == dead[:1:-1]
    assert await ids(api, "args.n:2 type:se* ended:<1h", sort="ended") == [dead[2]]
    assert await ids(api, "key:k1 queue:mail") == [dead[1]]
    assert await ids(api, "-state:failed error:x") == await ids(api, 'type:"no name"') == []
    count = (await api("GET", "/api/jobs/count", params={"q": f"cause:{cause}"})).json()
    assert count == {"count": 4, "exact": True}

    body = {"action": "retry", "q": f"cause:{cause}", "expect": 4}
    preview = (await api("POST", "/api/bulk", {**body, "dry_run": True})).json()
    bulk = (await api("POST", "/api/bulk", body)).json()
    await api("POST", f"/api/bulk/{bulk['id']}/now")
    await changes(api)
    done = (await api("GET", f"/api/bulk/{bulk['id']}")).json()
    assert (preview["count"], done["state"], done["done"]) == (4, "done", 4)
    assert await ids(api, "state:failed") == []


async def test_a_person_mutes_a_cause_and_takes_a_setting_back(api: Api) -> None:
    driver = await api.harbor.client.adriver()
    late = cause_of("send", "Late: no luck")
    at = ((await driver.info()).at - timedelta(minutes=1)).replace(second=0, microsecond=0)
    row = CauseNumbers(
        late.id, "mail", "send", late.title, None, "error", 2, 1, micros(at), micros(at), "019e", "r1"
    )
    cell = LogEntry(book=CAUSES, at=at, by="w", data=packed([row]), until=at + timedelta(days=1))
    await driver.write_log([cell])

    async def status() -> str:
        [item] = (await api("GET", "/api/failures")).json()["items"]
        return str(item["status"])

    seen = [await status()]
    for verb in ("mute", "open"):
        assert (await api("POST", f"/api/failures/{late.id}/{verb}")).status_code == 200
        seen.append(await status())
    await api("PATCH", "/api/queues/mail", {"max_running": 5})
    [configured, opened, muted] = await changes(api)
    undone = await api("POST", f"/api/audit/{configured['request_id']}/undo")

    assert seen == ["open", "muted", "open"]
    assert (muted["did"], opened["did"]) == ("mute_cause", "open_cause")
    assert undone.status_code == 200, undone.text
    assert (await api("GET", "/api/queues/mail")).json()["max_running"] is None
    assert [one["undo"] for one in await changes(api)] == [None, "done", None, None]


async def test_a_person_looks_at_a_workflow_cancels_and_retries_it(api: Api) -> None:
    nodes = [
        {"name": "charge", "job": {"type": "charge", "queue": "money"}},
        {"name": "pack", "job": {"type": "pack", "queue": "boxes"}, "after": ["charge"]},
        {"name": "ship", "job": {"type": "ship", "queue": "boxes"}, "after": ["pack"]},
    ]
    body = {"name": "order", "queue": "orders", "nodes": nodes, "idempotency_key": "order/42"}
    flow = (await api("POST", "/api/workflows", body)).json()
    again = await api("POST", "/api/workflows", body)
    assert (again.status_code, again.json()["nodes"]) == (200, flow["nodes"])
    await api.kill("money")
    path = f"/api/workflows/{flow['id']}"

    async def states() -> dict[str, str]:
        graph = (await api("GET", f"{path}/graph")).json()
        assert [node["layer"] for node in graph["nodes"]] == [0, 1, 2]
        assert [edge[:2] for edge in graph["edges"]] == [
            [flow["nodes"]["charge"], flow["nodes"]["pack"]],
            [flow["nodes"]["pack"], flow["nodes"]["ship"]],
        ]
        return {node["name"]: node["state"] for node in graph["nodes"]}

    assert await states() == {"charge": "failed", "pack": "cancelled", "ship": "cancelled"}
    failed = (await api("GET", "/api/workflows?state=failed")).json()["items"]
    assert [(one["id"], one["counts"]["failed"]) for one in failed] == [(flow["id"], 1)]
    children = (await api("GET", f"{path}/children?state=cancelled&limit=1")).json()
    assert [one["name"] for one in children["items"]] == ["pack"]
    preview = (await api("POST", f"{path}/retry", {"dry_run": True})).json()
    assert [one["name"] for one in preview["samples"]] == ["charge", "pack", "ship"]
    assert (await api("POST", f"{path}/retry")).json()["retried"] == 3
    assert await states() == {"charge": "ready", "pack": "blocked", "ship": "blocked"}
    [listed] = (await api("GET", "/api/workflows?state=blocked,running")).json()["items"]
    assert (listed["id"], listed["counts"]["open"]) == (flow["id"], 3)
    stopping = (await api("POST", f"{path}/cancel", {"dry_run": True})).json()
    assert (stopping["waiting"], stopping["running"]) == (3, 0)
    assert (await api("POST", f"{path}/cancel")).json()["state"] == "cancelled"
    assert set((await states()).values()) == {"cancelled"}
