"""A workflow as a bulk action: retried, from one job on as well, or cancelled; previewed, held, undone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from taskharbor.drivers.messages import Claim
from taskharbor.model.bonds import Bonds
from taskharbor.model.job import NewJob
from taskharbor.model.settlement import Ack, Fail
from taskharbor.model.workflow import WAIT_TYPE, placed_id
from taskharbor.web.api import bulk_workflows
from tests.integration.http.api import make_token, token_file
from tests.integration.http.test_bulk import BulkApi

UNKNOWN = "00000000-0000-7000-8000-000000000000"
MINUTE = timedelta(minutes=1)
CHAIN: dict[str, Any] = {
    "name": "order",
    "nodes": [
        {"name": "charge", "job": {"type": "charge"}},
        {"name": "pack", "job": {"type": "pack"}, "after": ["charge"]},
        {"name": "label", "job": {"type": "label"}, "after": ["charge"]},
        {"name": "ship", "job": {"type": "ship"}, "after": ["pack", "label"]},
    ],
}


class FlowApi(BulkApi):
    """Workflows whose jobs are run by hand."""

    async def flow(self, body: dict[str, Any] = CHAIN, **options: Any) -> dict[str, Any]:
        answer = await self("POST", "/api/workflows", body, **options)
        assert answer.status_code == 201, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def work(self, *, fails: tuple[str, ...] = (), rounds: int = 6) -> list[str]:
        """Run what is ready, round by round, and answer the types in their order."""
        driver, done = await self.harbor.client.adriver(), list[str]()
        for _ in range(rounds):
            self.clock.advance(MINUTE)
            claim = Claim(queues=("default", "mine"), worker_id="w", limit=100)
            for job in (await driver.reserve(claim, now=self.clock.now())).jobs:
                done.append(job.type)
                end = Fail(job.lease, "no luck") if job.type in fails else Ack(job.lease)
                await driver.settle([end], now=self.clock.now())
        return done

    async def state(self, job_id: str) -> str:
        [state] = await self.states([job_id])
        return state


@pytest.fixture
async def api() -> AsyncIterator[FlowApi]:
    found = FlowApi()
    yield found
    await found.aclose()


# ------------------------------------------------------------------ retry from one job on


async def test_a_retry_from_a_job_runs_it_and_all_after_it_again(api: FlowApi) -> None:
    flow = await api.flow()
    assert await api.work() == ["charge", "pack", "label", "ship"]
    assert await api.state(flow["id"]) == "completed"
    deed = {"workflow": flow["id"], "from_job": flow["nodes"]["pack"]}

    preview = await api.bulk("retry", 200, **deed, dry_run=True)
    assert (preview["count"], preview["exact"]) == (2, True)
    assert [one["type"] for one in preview["samples"]] == ["pack", "ship"]
    assert preview["text"] == "pack and all that comes after it run again, completed or not."
    held = await api.bulk("retry", **deed, expect=2)
    assert await api.state(flow["id"]) == "completed", "held: nothing is done yet"

    done = await api.after_hold(held)
    assert (done["state"], done["done"], done["of"]) == ("done", 2, 2)
    assert await api.state(flow["id"]) != "completed", "it is open again with its jobs"
    assert await api.states([flow["nodes"]["ship"]]) == {"blocked"}, "it waits for what comes before"
    assert await api.work() == ["pack", "ship"]
    assert await api.state(flow["id"]) == "completed"


async def test_a_retry_from_a_job_that_failed_takes_what_was_skipped_along(api: FlowApi) -> None:
    flow = await api.flow()
    await api.work(fails=("pack",))

    held = await api.bulk("retry", workflow=flow["id"], from_job=flow["nodes"]["pack"])
    await api.after_hold(held)

    assert await api.work() == ["pack", "ship"]
    assert await api.state(flow["id"]) == "completed"


async def test_what_is_not_over_is_left_alone(api: FlowApi) -> None:
    flow = await api.flow()
    await api.work(rounds=1)

    preview = await api.bulk(
        "retry", 200, workflow=flow["id"], from_job=flow["nodes"]["charge"], dry_run=True
    )

    assert [one["type"] for one in preview["samples"]] == ["charge"]


async def test_an_undo_leaves_a_workflow_as_it_is(api: FlowApi) -> None:
    flow = await api.flow()
    await api.work()
    held = await api.bulk("retry", workflow=flow["id"], from_job=flow["nodes"]["charge"])

    await api("DELETE", f"/api/bulk/{held['id']}")

    assert (await api.over(held))["state"] == "dropped"
    assert await api.work() == []


async def test_a_job_of_another_workflow_is_not_found(api: FlowApi) -> None:
    flow, other = await api.flow(), await api.flow()
    alone = await api.put({"type": "alone"})

    for job in (other["nodes"]["pack"], alone, flow["id"], UNKNOWN):
        await api.bulk("retry", 404, workflow=flow["id"], from_job=job, dry_run=True)


async def test_a_job_with_children_after_it_is_refused_by_name(api: FlowApi) -> None:
    """They would be found as they ended: a retry from here would not run them again."""
    flow = await api.flow()
    driver = await api.harbor.client.adriver()
    below = NewJob(
        id=placed_id(flow["nodes"]["ship"], "box"), type="box", bonds=Bonds(parent=flow["nodes"]["ship"])
    )
    await driver.enqueue([below], now=api.clock.now())
    await api.work()

    for job in ("charge", "ship"):
        answer = await api.bulk("retry", 422, workflow=flow["id"], from_job=flow["nodes"][job], dry_run=True)
        assert '"ship" has children' in answer["detail"]


async def test_an_event_that_came_counts_again(api: FlowApi) -> None:
    wait = {"name": "approval", "event": {"timeout_s": 3600}, "after": ["charge"]}
    flow = await api.flow({"name": "f", "nodes": [CHAIN["nodes"][0], wait]})
    await api("POST", f"/api/jobs/{flow['id']}/events/approval", {"by": "Ada"})
    assert await api.work() == ["charge", WAIT_TYPE]

    done = await api.after_hold(
        await api.bulk("retry", workflow=flow["id"], from_job=flow["nodes"]["charge"])
    )

    assert done["done"] == 2
    assert await api.work() == ["charge", WAIT_TYPE]
    assert await api.state(flow["id"]) == "completed"


# ------------------------------------------------------------------ the whole workflow


async def test_a_retry_of_a_workflow_runs_what_failed_again(api: FlowApi) -> None:
    flow = await api.flow()
    await api.work(fails=("pack",))

    preview = await api.bulk("retry", 200, workflow=flow["id"], dry_run=True)
    assert [one["type"] for one in preview["samples"]] == ["pack", "ship"]
    await api.after_hold(await api.bulk("retry", workflow=flow["id"], expect=2))

    assert await api.work() == ["pack", "ship"]


async def test_a_cancel_says_what_it_stops_and_stops_that(api: FlowApi) -> None:
    flow = await api.flow(CHAIN | {"always": {"type": "tidy"}})
    await api.claim()

    preview = await api.bulk("cancel", 200, workflow=flow["id"], dry_run=True)
    assert preview["text"] == (
        "3 waiting jobs do not run. 1 running job is asked to stop. "
        "Still to run: tidy; a second cancel takes these, too."
    )
    done = await api.after_hold(await api.bulk("cancel", workflow=flow["id"]))

    assert done["done"] == done["of"] == preview["count"] == 4
    stopping = (await api("GET", f"/api/workflows/{flow['id']}")).json()["stopping"]
    assert stopping == "cancel"


async def test_a_workflow_that_is_over_is_not_cancelled(api: FlowApi) -> None:
    flow = await api.flow()
    held = await api.bulk("cancel", workflow=flow["id"])
    await api.work()

    done = await api.after_hold(held)

    assert (done["done"], done["skipped"]) == (0, [{"why": "it is over", "count": 1}])
    await api.bulk("cancel", 409, workflow=flow["id"], dry_run=True)


async def test_a_preview_looks_at_a_bounded_number_and_the_retry_at_all(
    api: FlowApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_workflows, "MOST_LOOKED_AT", 20)
    nodes = [{"name": f"n{number}", "job": {"type": "t"}} for number in range(25)]
    flow = await api.flow({"name": "f", "nodes": nodes})
    await api.work(fails=("t",))

    preview = await api.bulk("retry", 200, workflow=flow["id"], dry_run=True)
    done = await api.after_hold(await api.bulk("retry", workflow=flow["id"]))

    assert (preview["count"], preview["exact"]) == (20, False)
    assert (done["done"], done["of"]) == (25, 25)


@pytest.mark.parametrize(
    "body",
    [
        {"action": "delete", "workflow": UNKNOWN},
        {"action": "cancel", "workflow": UNKNOWN, "from_job": UNKNOWN},
        {"action": "retry", "from_job": UNKNOWN, "q": "state:failed"},
        {"action": "retry", "workflow": UNKNOWN, "q": "state:failed"},
        {"action": "retry", "workflow": UNKNOWN, "edit": {"priority": 1}},
    ],
)
async def test_what_fits_no_workflow_is_refused(api: FlowApi, body: dict[str, Any]) -> None:
    assert (await api("POST", "/api/bulk", body)).status_code == 422


# ------------------------------------------------------------------ rights


async def test_a_token_for_some_queues_changes_only_these(tmp_path: Path) -> None:
    file = token_file(tmp_path)
    admin, mine = make_token(file, "admin"), make_token(file, "operator", ("mine",))
    api = FlowApi(tokens=tmp_path / "tokens.json")
    nodes = [
        {"name": "a", "job": {"type": "a"}},
        {"name": "b", "job": {"type": "b", "queue": "default"}, "after": ["a"]},
    ]
    flow = await api.flow({"name": "f", "queue": "mine", "nodes": nodes}, token=admin)
    theirs = await api.flow({"name": "f", "nodes": nodes}, token=admin)
    await api.work()

    held = await api.bulk("retry", workflow=flow["id"], from_job=flow["nodes"]["a"], token=mine)
    done = await api.after_hold(held, mine)
    assert done["done"] == 1
    for job in (flow["nodes"]["b"], theirs["nodes"]["a"]):
        await api.bulk("retry", 404, workflow=flow["id"], from_job=job, token=mine, dry_run=True)
    await api.bulk("cancel", 404, workflow=theirs["id"], token=mine, dry_run=True)
    await api.aclose()
