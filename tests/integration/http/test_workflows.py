"""Workflows over HTTP: stored whole or not at all, listed, drawn, cancelled, retried, and sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from taskharbor import Harbor
from taskharbor.client.family_graph import AS_ONE, MOST_EDGES, MOST_NODES
from taskharbor.drivers.messages import MAX_PAGE, Claim, Query
from taskharbor.errors import BrokenBond, JobNotFound
from taskharbor.model.bonds import Bonds
from taskharbor.model.job import JobRecord, NewJob
from taskharbor.model.queue import QueueSettings
from taskharbor.model.settlement import Ack, Fail, Park
from taskharbor.model.workflow import WAIT_TYPE, placed_id
from taskharbor.web.api import workflows as routes
from tests.integration.http.api import Api, make_token, token_file

UNKNOWN = "00000000-0000-7000-8000-000000000000"
ORDER: dict[str, Any] = {
    "name": "order",
    "nodes": [
        {"name": "ship", "job": {"type": "ship_box"}, "after": ["pack", "approval"]},
        {"name": "charge", "job": {"type": "charge_card", "payload": {"cents": 5}}},
        {"name": "pack", "job": {"type": "pack_box"}, "results": {"receipt": "charge"}},
        {"name": "approval", "event": {"timeout_s": 3600}, "after": ["charge"]},
    ],
    "on_failure": {"type": "refund"},
}


class FlowApi(Api):
    """A server on which jobs can be run by hand."""

    async def find(self) -> list[JobRecord]:
        return (await (await self.harbor.client.adriver()).find(Query(limit=MAX_PAGE))).jobs

    async def work(self, *, fails: tuple[str, ...] = (), types: int = 10) -> list[str]:
        """Run what is ready, until nothing is, and answer the types in their order."""
        driver, done = await self.harbor.client.adriver(), list[str]()
        for _ in range(types):
            jobs = (await driver.reserve(Claim(queues=("default", "mine"), worker_id="w", limit=100))).jobs
            for job in jobs:
                done.append(job.type)
                waits = job.type == WAIT_TYPE and not (await driver.find(Query(parent=job.id))).jobs
                end = Fail(job.lease, "no luck") if job.type in fails else Ack(job.lease)
                await driver.settle([Park(job.lease, delay=timedelta(hours=1)) if waits else end])
        return done


@pytest.fixture
async def api() -> AsyncIterator[FlowApi]:
    found = FlowApi()
    yield found
    await found.aclose()


async def stored(api: Api, body: dict[str, Any] = ORDER, **options: Any) -> dict[str, Any]:
    answer = await api("POST", "/api/workflows", body, **options)
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def ask(api: Api, path: str, **options: Any) -> dict[str, Any]:
    answer = await api("GET", path, **options)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


# ------------------------------------------------------------------ in


async def test_a_graph_by_names_in_any_order_is_stored_whole(api: FlowApi) -> None:
    answer = await api("POST", "/api/workflows", ORDER)
    flow = answer.json()

    assert answer.status_code == 201
    assert answer.headers["location"] == f"/api/workflows/{flow['id']}"
    assert set(flow["nodes"]) == {"ship", "charge", "pack", "approval", "refund"}
    assert flow["nodes"]["pack"] == placed_id(flow["id"], "pack")
    jobs = {job.id: job for job in await api.find()}
    assert len(jobs) == 6
    pack = jobs[flow["nodes"]["pack"]]
    assert pack.bonds is not None
    assert pack.bonds.after == (flow["nodes"]["charge"],)
    assert pack.headers["taskharbor.refs"] == '{"receipt":"charge"}'
    await api("POST", f"/api/jobs/{flow['id']}/events/approval", {"by": "Ada"})
    assert await api.work() == ["charge_card", "pack_box", WAIT_TYPE, "ship_box"]


async def test_a_repeat_with_the_same_key_answers_the_first(api: FlowApi) -> None:
    first = await stored(api, headers={"Idempotency-Key": "order/42"})
    again = await api("POST", "/api/workflows", ORDER | {"idempotency_key": "order/42"})

    assert (again.status_code, again.headers["idempotency-replayed"]) == (200, "true")
    assert (again.json()["id"], again.json()["nodes"]) == (first["id"], first["nodes"])
    assert len(await api.find()) == 6


async def test_a_repeat_with_the_same_key_and_another_body_is_refused(api: FlowApi) -> None:
    flow = await stored(api, ORDER | {"idempotency_key": "k"})
    before = await api.find()
    for nodes in (
        [*ORDER["nodes"], NODE],
        [{"name": "charge", "job": {"type": "charge_card", "payload": {"cents": 6}}}],
        [{"name": "charge", "job": {"type": "refund", "payload": {"cents": 5}}}],
    ):
        again = await api("POST", "/api/workflows", ORDER | {"idempotency_key": "k", "nodes": nodes})
        assert (again.status_code, flow["id"] in again.text) == (409, False), again.text
    assert await api.find() == before


async def test_options_of_the_workflow_are_for_nodes_without_their_own(api: FlowApi) -> None:
    nodes = [{"name": "a", "job": {"type": "t"}}, {"name": "b", "job": {"type": "t", "queue": "own"}}]
    await stored(
        api, {"name": "f", "nodes": nodes, "queue": "mine", "priority": 7, "headers": {"tenant": "x"}}
    )

    found = {job.headers.get("taskharbor.node", ""): job for job in await api.find()}
    assert {name: job.queue for name, job in found.items()} == {"": "mine", "a": "mine", "b": "own"}
    assert {job.priority for job in found.values()} == {7}
    assert found["a"].headers["tenant"] == "x"


NODE = {"name": "a", "job": {"type": "t"}}
WRONG: dict[str, tuple[dict[str, Any], list[str], str]] = {
    "a circle": (
        {
            "nodes": [
                {"name": "pack", "job": {"type": "t"}, "after": ["label"]},
                {"name": "label", "job": {"type": "t"}, "after": ["pack"]},
            ]
        },
        ["$.nodes[0].after", "$.nodes[1].after"],
        "is a circle; remove one of these edges. Nothing was stored",
    ),
    "an unknown name": (
        {"nodes": [{"name": "label", "job": {"type": "t"}}, NODE | {"after": ["label", "lable"]}]},
        ["$.nodes[1].after[1]"],
        'did you mean "label"? Nothing was stored',
    ),
    "an unknown result": (
        {"nodes": [NODE | {"results": {"x": "b"}}]},
        ["$.nodes[0].results.x"],
        "does not have",
    ),
    "an unknown node to return": ({"nodes": [NODE], "returns": "b"}, ["$.returns"], "does not have"),
    "a name twice": ({"nodes": [NODE, NODE]}, ["$.nodes[1]"], "two nodes are named 'a'"),
    "a name that is a path": ({"nodes": [NODE | {"name": "a/b"}]}, ["$.nodes[0]"], "name of a node"),
    "a node with nothing to do": ({"nodes": [{"name": "a"}]}, ["$.nodes[0]"], "give one of the two"),
    "a node with too much to do": ({"nodes": [NODE | {"event": {}}]}, ["$.nodes[0]"], "give one of the two"),
    "an event without a name": ({"nodes": [{"event": {}}]}, ["$.nodes[0]"], "has a name"),
    "a key": ({"nodes": [{"job": {"type": "t", "key": "k"}}]}, ["$.nodes[0]"], "leave the key out"),
    "a key of its own": (
        {"nodes": [{"job": {"type": "t", "idempotency_key": "k"}}]},
        ["$.nodes[0]"],
        "give it to the workflow",
    ),
    "an id": ({"nodes": [{"job": {"type": "t", "id": UNKNOWN}}]}, ["$.nodes[0].job"], "no id of its own"),
    "a queue that is no name": ({"nodes": [{"job": {"type": "t", "queue": "a b"}}]}, ["$.nodes[0]"], "queue"),
    "a type that is no name": ({"nodes": [{"job": {"type": "a b"}}]}, ["$.nodes[0]"], "type"),
    "an array with results": (
        {"nodes": [NODE, {"job": {"type": "t", "payload": [1]}, "results": {"x": "a"}}]},
        ["$.nodes[1].job"],
        "must be an object",
    ),
    "a job that makes jobs out of nothing": (
        {"nodes": [{"job": {"type": "taskharbor.spawn", "payload": {}}}]},
        ["$.nodes"],
        "how many levels",
    ),
    "a circle of very many": (
        {"nodes": [NODE | {"name": f"n{at}", "after": [f"n{at - 1 or 60}"]} for at in range(1, 61)]},
        [f"$.nodes[{0 if at == 0 else 60 - at}].after" for at in range(20)],
        " → … → ",
    ),
    "a node after very many": (
        {"nodes": [NODE, {"job": {"type": "t"}, "after": ["a"] * 1001}]},
        ["$.nodes[1].after"],
        "length <= 1000",
    ),
    "a node of very many results": (
        {"nodes": [NODE, {"job": {"type": "t"}, "results": {f"p{at}": "a" for at in range(1001)}}]},
        ["$.nodes[1].results"],
        "length <= 1000",
    ),
    "more edges than fit": (
        {"nodes": [NODE, *({"job": {"type": "t"}, "after": ["a"] * 1000} for _ in range(101))]},
        ["$.nodes"],
        "name 101,000 nodes; 100,000 are allowed",
    ),
    "a wrong last job": (
        {"nodes": [NODE], "always": {"type": "t", "key": "k"}},
        ["$.always"],
        "leave the key",
    ),
    "a field that nobody knows": ({"nodes": [NODE | {"afer": ["a"]}]}, ["$.nodes[0]"], "unknown field"),
    "no nodes": ({"nodes": []}, ["$.nodes"], "length >= 1"),
    "a negative tolerance": ({"nodes": [NODE], "tolerate": -1}, ["$.tolerate"], ">= 0"),
    "a tower of results": (
        {"nodes": [NODE | {"results": {f"p{number}": "a" for number in range(101)}}]},
        ["$.nodes[0].after"],
        "circle|results as arguments",
    ),
}


@pytest.mark.parametrize(("body", "places", "words"), WRONG.values(), ids=WRONG)
async def test_what_is_wrong_is_marked_at_its_place_and_nothing_is_stored(
    api: FlowApi, body: dict[str, Any], places: list[str], words: str
) -> None:
    answer = await api("POST", "/api/workflows", {"name": "f", **body})

    assert answer.status_code == 422, answer.text
    assert [one["path"] for one in answer.json()["errors"]] == places
    assert any(word in answer.json()["detail"] for word in words.split("|")), answer.json()["detail"]
    assert await api.find() == []


async def test_arguments_are_checked_against_the_tasks_of_the_app() -> None:
    harbor = Harbor("memory://")

    @harbor.task
    def charge(cents: int) -> str:
        return f"receipt-{cents}"

    @harbor.task(queue="boxes")
    def pack(receipt: str, gift: bool = False) -> None: ...

    api = FlowApi(harbor)

    async def post(*nodes: dict[str, Any]) -> Any:
        return await api("POST", "/api/workflows", {"name": "order", "nodes": list(nodes)})

    paid = {"name": "paid", "job": {"type": "charge", "payload": [5]}}
    wrong = await post(
        paid, {"job": {"type": "pack", "payload": {"gift": "yes"}}, "results": {"receipt": "paid"}}
    )
    missing = await post(paid, {"job": {"type": "pack"}})
    unknown = await post(paid, {"job": {"type": "os.system"}})
    assert await api.find() == []
    good = await post(paid, {"job": {"type": "pack"}, "results": {"receipt": "paid"}})

    assert wrong.json()["errors"][0]["path"] == "$.nodes[1].job.payload.gift"
    assert "receipt" in missing.json()["detail"]
    assert unknown.json()["errors"][0]["path"] == "$.nodes[1].job"
    assert good.status_code == 201, good.text
    assert {job.type: job.queue for job in await api.find()} == {
        "order": "default",
        "charge": "default",
        "pack": "boxes",
    }
    await api.aclose()


# ------------------------------------------------------------------ looking


async def test_the_list_has_workflows_with_their_progress_and_no_plain_jobs(api: FlowApi) -> None:
    first, second = await stored(api), await stored(api)
    await api.put({"type": "plain"})
    for _ in range(2):  # the first one spares the refund
        await api("POST", f"/api/workflows/{first['id']}/cancel")

    listed = await ask(api, "/api/workflows")
    assert [(one["id"], one["state"]) for one in listed["items"]] == [
        (second["id"], "blocked"),
        (first["id"], "cancelled"),
    ]
    counts = {"total": 5, "open": 5, "completed": 0, "failed": 0, "excused": 0, "cancelled": 0}
    assert listed["items"][0]["counts"] == counts
    assert listed["is_all"]
    only = await ask(api, "/api/workflows?state=blocked,running&type=order&queue=default")
    assert [one["id"] for one in only["items"]] == [second["id"]]
    page = await ask(api, "/api/workflows?limit=1")
    rest = await ask(api, f"/api/workflows?limit=1&cursor={page['next_cursor']}")
    assert [page["items"][0]["id"], rest["items"][0]["id"]] == [second["id"], first["id"]]


async def test_a_workflow_behind_very_many_plain_jobs_costs_a_bounded_walk(
    api: FlowApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = await stored(api)
    driver = await api.harbor.client.adriver()
    await driver.enqueue(
        [NewJob(id=f"01900000-0000-7000-8000-{number:012x}", type="t", queue="q") for number in range(5000)]
    )
    monkeypatch.setattr("taskharbor.web.job_walk.WALK_JOBS", 2000)
    page, looked = await ask(api, "/api/workflows"), list[int]()
    while not page["items"]:
        looked.append(page["looked_at"])
        page = await ask(api, f"/api/workflows?cursor={page['next_cursor']}")

    assert len(looked) > 1
    assert max(looked) <= 2000 + MAX_PAGE
    assert page["items"][0]["id"] == flow["id"]
    near = await ask(api, "/api/workflows?state=blocked")
    assert near["items"][0]["id"] == flow["id"]
    assert near["looked_at"] < 100, "open ones are found without a walk through plain jobs"


async def test_a_workflow_has_the_counts_of_its_family(api: FlowApi) -> None:
    flow = await stored(api, ORDER | {"deadline_s": 7200, "fail_fast": True, "tolerate": None})
    await api.work(fails=("charge_card",))

    found = await ask(api, f"/api/workflows/{flow['id']}")
    assert (found["name"], found["parent"], found["root"], found["tolerate"]) == ("order", None, None, None)
    assert found["counts"] | {"open": 0} == found["counts"]
    assert (found["counts"]["failed"], found["counts"]["cancelled"], found["counts"]["completed"]) == (
        1,
        3,
        1,
    )
    below = await ask(api, f"/api/workflows/{flow['nodes']['pack']}")
    assert (below["parent"], below["root"], below["counts"]["total"]) == (flow["id"], flow["id"], 0)
    assert (await api("GET", f"/api/workflows/{UNKNOWN}")).status_code == 404


async def test_a_graph_has_layers_by_the_longest_way(api: FlowApi) -> None:
    flow = await stored(api)
    found = await ask(api, f"/api/workflows/{flow['id']}/graph")

    assert {node["name"]: node["layer"] for node in found["nodes"]} == {
        "charge": 0,
        "pack": 1,
        "approval": 1,
        "ship": 2,
        "refund": 3,
    }
    ids = flow["nodes"]
    assert [ids["charge"], ids["pack"], "success"] in found["edges"]
    assert [ids["ship"], ids["refund"], "failure"] in found["edges"]
    assert len(found["edges"]) == 8
    nodes = {node["name"]: node for node in found["nodes"]}
    assert [node["name"] for node in found["nodes"] if node["is_event"]] == ["approval"]
    assert (nodes["ship"]["waits_for"], nodes["charge"]["state"]) == (2, "ready")
    assert found["next_cursor"] is None


async def family(api: FlowApi, total: int, parent: str, first: int) -> list[str]:
    """So many children of a job."""
    driver = await api.harbor.client.adriver()
    jobs = [
        NewJob(id=f"01900000-0000-7000-8000-{first + number:012x}", type="t", bonds=Bonds(parent=parent))
        for number in range(total)
    ]
    await driver.enqueue(jobs)
    return [job.id for job in jobs]


async def root(api: FlowApi, parent: str | None = None, number: int = 1) -> str:
    job_id = f"01900000-0000-7000-8000-f{number:011x}"
    driver = await api.harbor.client.adriver()
    await driver.enqueue([NewJob(id=job_id, type="r", bonds=Bonds(parent=parent, done_by="call"))])
    return job_id


async def test_small_families_are_opened_and_large_ones_are_one_node(api: FlowApi) -> None:
    top = await root(api)
    small, large = await root(api, top, 2), await root(api, top, 3)
    await family(api, AS_ONE, small, 1)
    await family(api, AS_ONE + 1, large, 1000)

    found = await ask(api, f"/api/workflows/{top}/graph")
    by_parent = [node["parent"] for node in found["nodes"]]
    assert (by_parent.count(top), by_parent.count(small), by_parent.count(large)) == (2, AS_ONE, 0)
    [one] = [node for node in found["nodes"] if node["id"] == large]
    assert (one["counts"]["total"], one["counts"]["open"]) == (AS_ONE + 1, AS_ONE + 1)
    opened = await ask(api, f"/api/workflows/{large}/graph")
    assert len(opened["nodes"]) == AS_ONE + 1
    listed = await ask(api, f"/api/workflows/{large}/children?limit=2&state=ready")
    assert [node["layer"] for node in listed["items"]] == [None, None]
    path = f"/api/workflows/{large}/children?limit=60&state=ready&cursor={listed['next_cursor']}"
    assert len((await ask(api, path))["items"]) == AS_ONE - 1


async def test_a_large_graph_comes_in_pages_whose_layers_go_on(api: FlowApi) -> None:
    chain = [{"name": "n0", "job": {"type": "t"}}] + [
        {"name": f"n{number}", "job": {"type": "t"}, "after": [f"n{number - 1}"]}
        for number in range(1, MOST_NODES + 100)
    ]
    flow = await stored(api, {"name": "chain", "nodes": chain})
    first = await ask(api, f"/api/workflows/{flow['id']}/graph")
    second = await ask(api, f"/api/workflows/{flow['id']}/graph?cursor={first['next_cursor']}")

    assert [node["layer"] for node in first["nodes"] + second["nodes"]] == list(range(MOST_NODES + 100))
    assert second["edges"][0] == [first["nodes"][-1]["id"], second["nodes"][0]["id"], "success"]
    assert second["next_cursor"] is None
    changed = first["next_cursor"][:-1] + ("0" if first["next_cursor"][-1] != "0" else "1")
    other = await stored(api)
    for path in (
        f"{flow['id']}/graph?cursor={changed}",
        f"{other['id']}/graph?cursor={first['next_cursor']}",
    ):
        assert (await api("GET", f"/api/workflows/{path}")).status_code == 400


async def test_a_graph_of_very_many_edges_ends_its_page_early(api: FlowApi) -> None:
    nodes: list[dict[str, Any]] = []
    for number in range(160):
        nodes.append({"name": f"n{number}", "job": {"type": "t"}, "after": [one["name"] for one in nodes]})
    flow = await stored(api, {"name": "dense", "nodes": nodes})
    seen, cursor = list[dict[str, Any]](), ""
    while True:
        page = await ask(api, f"/api/workflows/{flow['id']}/graph{cursor}")
        assert len(page["edges"]) <= MOST_EDGES
        seen += page["nodes"]
        if page["next_cursor"] is None:
            break
        cursor = f"?cursor={page['next_cursor']}"

    assert cursor
    assert [node["layer"] for node in seen] == list(range(160))


async def test_a_family_is_opened_whole_or_not_at_all(api: FlowApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskharbor.client.family_graph.MOST_EDGES", 3)
    top = await root(api)
    small = await root(api, top, 2)
    first, *rest = await family(api, 3, small, 1)
    driver = await api.harbor.client.adriver()
    bonds = Bonds(parent=small, after=(first, *rest))
    await driver.enqueue(
        [NewJob(id=f"01900000-0000-7000-8000-{at:012x}", type="t", bonds=bonds) for at in (8, 9)]
    )

    found = await ask(api, f"/api/workflows/{top}/graph")
    assert [node["id"] for node in found["nodes"]] == [small]
    assert (found["edges"], found["nodes"][0]["counts"]["total"]) == ([], 5)


# ------------------------------------------------------------------ changes


async def test_a_cancel_can_be_previewed_and_then_stops_the_family(api: FlowApi) -> None:
    flow = await stored(api, ORDER | {"always": {"type": "tidy"}})
    await api.claim()
    path = f"/api/workflows/{flow['id']}/cancel"
    preview = (await api("POST", path, {"dry_run": True})).json()

    assert preview["result"] is None
    assert (preview["waiting"], preview["running"], preview["spared"]) == (3, 1, ["refund", "tidy"])
    assert (await ask(api, f"/api/workflows/{flow['id']}"))["stopping"] is None
    assert (await api("POST", path)).json()["result"] == "requested"
    assert (await ask(api, f"/api/workflows/{flow['id']}"))["stopping"] == "cancel"
    again = (await api("POST", path, {"dry_run": True})).json()
    assert again["spared"] == [], "a second cancel takes them too"


async def test_what_is_over_is_not_cancelled(api: FlowApi) -> None:
    flow = await stored(api, {"name": "f", "nodes": [NODE]})
    await api.work()

    for body in (None, {"dry_run": True}):
        assert (await api("POST", f"/api/workflows/{flow['id']}/cancel", body)).status_code == 409


async def test_a_retry_goes_on_from_what_failed(api: FlowApi) -> None:
    flow = await stored(api)
    path = f"/api/workflows/{flow['id']}"
    assert (await api("POST", f"/api/jobs/{flow['id']}/events/approval", {"by": "Ada"})).status_code == 202
    assert "refund" in await api.work(fails=("pack_box",))
    assert (await ask(api, path))["state"] == "failed"
    preview = (await api("POST", f"{path}/retry", {"dry_run": True})).json()
    assert [one["name"] for one in preview["samples"]] == ["pack", "ship"]
    assert (await ask(api, path))["state"] == "failed", "a dry run changes nothing"

    done = (await api("POST", f"{path}/retry")).json()
    assert (done["retried"], done["is_all"], done["samples"]) == (2, True, [])
    assert await api.work() == ["pack_box", "ship_box"]
    assert (await ask(api, path))["state"] == "completed"


async def test_a_retry_of_very_many_goes_on_call_by_call(
    api: FlowApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "MOST_RETRIED", 10)
    nodes = [{"name": f"n{number}", "job": {"type": "t"}} for number in range(25)]
    flow = await stored(api, {"name": "f", "nodes": nodes})
    await api.work(fails=("t",))
    path = f"/api/workflows/{flow['id']}/retry"
    preview = (await api("POST", path, {"dry_run": True})).json()
    answers = [(await api("POST", path)).json() for _ in range(3)]

    assert (preview["retried"], preview["is_all"]) == (10, False)
    assert [(one["retried"], one["is_all"]) for one in answers] == [(10, False), (10, False), (5, True)]


async def test_a_retry_looks_at_a_bounded_number_of_children(
    api: FlowApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "MOST_LOOKED_AT", 20)
    nodes = [{"name": f"n{number}", "job": {"type": "t"}} for number in range(25)]
    flow = await stored(api, {"name": "f", "nodes": nodes})
    await api.work(fails=("t",))
    path = f"/api/workflows/{flow['id']}/retry"
    preview = (await api("POST", path, {"dry_run": True})).json()
    answers = [(await api("POST", path)).json() for _ in range(2)]

    assert (preview["retried"], preview["is_all"]) == (20, False)
    assert [(one["retried"], one["is_all"]) for one in answers] == [(20, False), (5, True)]


@pytest.mark.parametrize("error", [BrokenBond(UNKNOWN, "is over"), JobNotFound(UNKNOWN)])
async def test_a_child_that_cannot_run_again_does_not_end_a_retry(
    api: FlowApi, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    nodes = [{"name": f"n{number}", "job": {"type": "t"}} for number in range(3)]
    flow = await stored(api, {"name": "f", "nodes": nodes})
    await api.work(fails=("t",))
    driver = await api.harbor.client.adriver()
    requeue = driver.requeue

    async def refused(ids: list[str], **options: Any) -> list[Any]:
        return [error] if flow["nodes"]["n0"] in ids else await requeue(ids, **options)

    monkeypatch.setattr(driver, "requeue", refused)
    assert (await api("POST", f"/api/workflows/{flow['id']}/retry")).json()["retried"] == 2


async def test_the_first_event_of_a_name_wins_and_later_ones_are_refused(api: FlowApi) -> None:
    flow = await stored(api)
    path = f"/api/jobs/{flow['id']}/events/approval"
    first = await api("POST", path, {"by": "Ada"})
    second = await api("POST", path, {"by": "Bob"})
    wrong = await api("POST", f"/api/jobs/{flow['id']}/events/aproval")

    assert (first.status_code, first.json()) == (202, {"id": flow["id"], "event": "approval"})
    assert second.status_code == 409
    assert (wrong.status_code, "no event" in wrong.json()["detail"]) == (422, True)
    await api("POST", f"/api/workflows/{flow['id']}/cancel")
    assert (await api("POST", path)).status_code == 409


async def test_a_handler_gets_its_event_before_it_asks(api: FlowApi) -> None:
    job_id = await api.put({"type": "publish"})
    answer = await api("POST", f"/api/jobs/{job_id}/events/approval", [1, {"deep": None}])
    found = await ask(api, f"/api/workflows/{job_id}/graph")

    assert answer.status_code == 202
    assert [(node["name"], node["state"], node["is_event"]) for node in found["nodes"]] == [
        ("approval", "completed", False)
    ]


# ------------------------------------------------------------------ who


class Guarded(FlowApi):
    def __init__(self, folder: Path) -> None:
        file = token_file(folder)
        self.mine = make_token(file, "operator", ("mine",))
        self.producer = make_token(file, "producer")
        self.other = make_token(file, "producer")
        self.viewer = make_token(file, "viewer")
        self.admin = make_token(file, "admin")
        super().__init__(tokens=folder / "tokens.json", rate_per_second=0)


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Guarded]:
    found = Guarded(tmp_path)
    yield found
    await found.aclose()


async def test_a_token_for_one_queue_neither_stores_nor_sees_nodes_of_another(guarded: Guarded) -> None:
    api = guarded
    body = {
        "name": "f",
        "queue": "mine",
        "nodes": [NODE, {"name": "b", "job": {"type": "t", "queue": "theirs"}}],
    }
    refused = await api("POST", "/api/workflows", body, token=api.mine)
    assert (refused.status_code, await api.find()) == (403, [])
    flow = await stored(api, body, token=api.admin)
    theirs = await stored(api, {"name": "g", "queue": "theirs", "nodes": [NODE]}, token=api.admin)

    graph = await ask(api, f"/api/workflows/{flow['id']}/graph", token=api.mine)
    children = await ask(api, f"/api/workflows/{flow['id']}/children", token=api.mine)
    listed = await ask(api, "/api/workflows", token=api.mine)
    assert [node["name"] for node in graph["nodes"]] == ["a"]
    assert [node["name"] for node in children["items"]] == ["a"]
    assert [one["id"] for one in listed["items"]] == [flow["id"]]
    for method, path in (
        ("GET", ""),
        ("GET", "/graph"),
        ("GET", "/children"),
        ("POST", "/cancel"),
        ("POST", "/retry"),
    ):
        answer = await api(method, f"/api/workflows/{theirs['id']}{path}", token=api.mine)
        assert answer.status_code == 404, path
    sent = await api("POST", f"/api/jobs/{theirs['id']}/events/a", token=api.mine)
    assert sent.status_code == 404


async def test_a_graph_has_no_edges_from_jobs_of_another_queue(guarded: Guarded) -> None:
    api = guarded
    theirs = {"name": "b", "job": {"type": "t", "queue": "theirs"}}
    last = {"name": "c", "job": {"type": "t"}, "after": ["a", "b"]}
    flow = await stored(api, {"name": "f", "queue": "mine", "nodes": [NODE, theirs, last]}, token=api.admin)
    graph = await ask(api, f"/api/workflows/{flow['id']}/graph", token=api.mine)
    whole = await ask(api, f"/api/workflows/{flow['id']}/graph", token=api.admin)

    assert graph["edges"] == [[flow["nodes"]["a"], flow["nodes"]["c"], "success"]]
    assert len(whole["edges"]) == 2


async def test_why_a_job_waits_hides_what_it_waits_for_in_other_queues(guarded: Guarded) -> None:
    api = guarded
    theirs = {"name": "secret", "job": {"type": "t", "queue": "theirs"}}
    last = {"name": "c", "job": {"type": "t"}, "after": ["a", "secret"]}
    flow = await stored(api, {"name": "f", "queue": "mine", "nodes": [NODE, theirs, last]}, token=api.admin)
    driver = await api.harbor.client.adriver()
    await driver.configure_queue(QueueSettings(queue="theirs", paused=True))

    async def why(job_id: str, token: str) -> str:
        return str((await ask(api, f"/api/jobs/{job_id}/why", token=token))["text"])

    whole = await why(flow["nodes"]["c"], api.admin)
    assert whole == "waits for 2 of 2: a (ready), secret (ready; queue theirs is paused)"
    own = await why(flow["nodes"]["c"], api.mine)
    assert own == "waits for 2 of 2: a (ready), 1 in queues that you may not see"
    above = await why(flow["id"], api.mine)
    assert "secret" not in above
    assert "theirs" not in above


async def test_a_token_for_one_queue_retries_its_own_jobs_only(guarded: Guarded) -> None:
    api = guarded
    theirs = {"name": "b", "job": {"type": "t", "queue": "default"}}
    flow = await stored(api, {"name": "f", "queue": "mine", "nodes": [NODE, theirs]}, token=api.admin)
    await api.work(fails=("t",))
    answer = await api("POST", f"/api/workflows/{flow['id']}/retry", token=api.mine)
    states = {job.headers["taskharbor.node"]: job.state.value for job in await api.find() if job.type == "t"}

    assert (answer.json()["retried"], states) == (1, {"a": "ready", "b": "failed"})


async def test_the_event_of_a_node_in_another_queue_is_not_sent(guarded: Guarded) -> None:
    api = guarded
    driver = await api.harbor.client.adriver()
    flow = await stored(api, {"name": "f", "queue": "mine", "nodes": [NODE]}, token=api.admin)
    node = NewJob(
        id=placed_id(flow["id"], "ok"),
        type="taskharbor.wait",
        queue="theirs",
        bonds=Bonds(parent=flow["id"]),
    )
    await driver.enqueue([node])

    assert (await api("POST", f"/api/jobs/{flow['id']}/events/ok", token=api.mine)).status_code == 404
    assert (await api("POST", f"/api/jobs/{flow['id']}/events/ok", token=api.admin)).status_code == 202


async def test_a_producer_learns_the_id_behind_a_key_only_of_what_it_sent(guarded: Guarded) -> None:
    api = guarded
    body = ORDER | {"idempotency_key": "k"}
    flow = await stored(api, body, token=api.producer)
    same = await api("POST", "/api/workflows", body, token=api.producer)
    guess = {"name": "order", "nodes": [{"name": "charge", "job": {"type": "charge_card"}}]}
    refused = await api("POST", "/api/workflows", guess | {"idempotency_key": "k"}, token=api.other)

    assert (same.status_code, same.json()["id"]) == (200, flow["id"])
    assert (refused.status_code, flow["id"] in refused.text) == (409, False)


async def test_changes_are_written_down_and_previews_are_not(guarded: Guarded) -> None:
    api = guarded
    flow = await stored(api, token=api.admin)
    path = f"/api/workflows/{flow['id']}"
    await api("POST", f"{path}/cancel", {"dry_run": True}, token=api.admin)
    await api("POST", f"{path}/retry", {"dry_run": True}, token=api.admin)
    for verb in ("cancel", "retry"):
        unknown = await api("POST", f"/api/workflows/{UNKNOWN}/{verb}", {"dry_run": True}, token=api.admin)
        assert unknown.status_code == 404
    await api("POST", f"/api/jobs/{flow['id']}/events/approval", {"password": "x"}, token=api.admin)
    await api("POST", f"{path}/cancel", token=api.admin)
    await api("POST", f"{path}/retry", token=api.admin)
    await asyncio.sleep(0)  # changes of one turn are written in the next
    if api.app.service.background:
        await asyncio.wait(api.app.service.background)
    items = (await ask(api, "/api/audit", token=api.admin))["items"]

    assert [one["did"] for one in items] == ["retry_workflow", "cancel_workflow", "send_event"]
    assert "password" not in str(items)
    assert items[1]["before"] == {"state": "blocked"}


# ------------------------------------------------------------------ what somebody will send some day


@pytest.mark.parametrize("name", ["a b", "%00", "..%2f..%2fx", "x" * 300, "<script>"])
async def test_an_event_name_that_is_none_is_refused(api: FlowApi, name: str) -> None:
    job_id = await api.put({"type": "publish"})
    answer = await api("POST", f"/api/jobs/{job_id}/events/{name}", {})

    assert answer.status_code in (404, 422), answer.text
    assert len(await api.find()) == 1


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"{", 400),
        (b'{"a": 1, "a": 2}', 422),
        (b"[" * 2000 + b"]" * 2000, 400),
        (b'"' + b"x" * 1_100_000 + b'"', 413),
    ],
    ids=["cut off", "a name twice", "too deep", "too large"],
)
async def test_an_event_value_that_cannot_be_kept_is_refused(
    api: FlowApi, content: bytes, status: int
) -> None:
    job_id = await api.put({"type": "publish"})
    headers = {"Content-Type": "application/json"}
    answer = await api("POST", f"/api/jobs/{job_id}/events/ok", content=content, headers=headers)

    assert answer.status_code == status, answer.text
    assert len(await api.find()) == 1


@pytest.mark.parametrize("path", ["graph", "children", ""])
@pytest.mark.parametrize("job_id", ["x", "..%2f..%2fetc", UNKNOWN[:-1]])
async def test_an_id_that_is_none_is_not_found(api: FlowApi, path: str, job_id: str) -> None:
    assert (await api("GET", f"/api/workflows/{job_id}/{path}")).status_code == 404
