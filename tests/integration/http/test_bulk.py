"""Bulk actions over HTTP: preview, hold, undo, stop, and jobs that changed meanwhile."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from taskharbor import Harbor
from taskharbor.model.state import JobState
from taskharbor.testing.clock import SimulatedClock
from taskharbor.web.api import bulk as bulk_routes
from tests.integration.http.api import GENEROUS_SECONDS, Api, make_token, token_file

SECOND = timedelta(seconds=1)


class BulkApi(Api):
    """A server in simulated time, and dead letters to act on."""

    def __init__(self, **config: Any) -> None:
        self.clock = SimulatedClock()
        super().__init__(Harbor("memory://", clock=self.clock), rate_per_second=0, **config)

    async def dead(self, count: int, queue: str = "default", **options: Any) -> list[str]:
        found = []
        for number in range(count):
            body = {"type": "send", "queue": queue, "payload": {"n": number}}
            await self("POST", "/api/jobs", body, **options)
            found.append(await self.kill(queue, f"Late: order {number}"))
        return found

    async def bulk(self, action: str, code: int = 202, token: str | None = None, **body: Any) -> Any:
        answer = await self("POST", "/api/bulk", {"action": action, **body}, token=token)
        assert answer.status_code == code, answer.text
        return answer.json()

    async def seen(self, bulk: Any, token: str | None = None) -> Any:
        return (await self("GET", f"/api/bulk/{bulk['id']}", token=token)).json()

    async def states(self, ids: list[str]) -> set[str]:
        driver = await self.harbor.client.adriver()
        return {
            "gone" if job is None else job.state.value for job in await driver.get(ids, now=self.clock.now())
        }

    async def over(self, bulk: Any, token: str | None = None) -> Any:
        async with asyncio.timeout(GENEROUS_SECONDS):
            while (found := await self.seen(bulk, token))["state"] in ("held", "running"):
                await asyncio.sleep(0)
        return found

    async def after_hold(self, bulk: Any, token: str | None = None) -> Any:
        async with asyncio.timeout(GENEROUS_SECONDS):
            while (await self.seen(bulk, token))["state"] == "held":
                await asyncio.sleep(0)
                self.clock.advance(SECOND)
        return await self.over(bulk, token)


@pytest.fixture
async def api() -> AsyncIterator[BulkApi]:
    found = BulkApi()
    yield found
    await found.aclose()


async def test_a_preview_counts_shows_samples_and_says_what_is_skipped(api: BulkApi) -> None:
    ids = await api.dead(12)
    await api.put({"type": "send"})

    preview = await api.bulk("retry", 200, q="type:send", dry_run=True)

    assert (preview["id"], preview["state"]) == (None, None)
    assert (preview["count"], preview["exact"]) == (12, True)
    assert preview["skipped"] == [{"why": "it waits to run", "count": 1}]
    assert [sample["id"] for sample in preview["samples"]] == ids[::-1][:10]
    assert await api.states(ids) == {"failed"}


async def test_nothing_is_done_before_the_hold_is_over(api: BulkApi) -> None:
    ids = await api.dead(3)
    bulk = await api.bulk("retry", q="type:send", expect=3)

    assert bulk["state"] == "held"
    assert await api.states(ids) == {"failed"}
    done = await api.after_hold(bulk)
    assert (done["state"], done["done"], done["of"]) == ("done", 3, 3)
    assert await api.states(ids) == {"ready"}


async def test_jobs_that_fail_after_the_preview_stay_as_they_are(api: BulkApi) -> None:
    ids = await api.dead(3)
    preview = await api.bulk("retry", 200, q="type:send", dry_run=True)
    api.clock.advance(SECOND)
    later = await api.dead(5)

    await api.bulk("retry", 409, q="type:send", expect=3)
    bulk = await api.bulk("retry", q="type:send", expect=3, as_of=preview["at"])
    done = await api.after_hold(bulk)

    assert (bulk["of"], done["state"], done["done"]) == (3, "done", 3)
    assert await api.states(ids) == {"ready"}
    assert await api.states(later) == {"failed"}


async def test_no_job_is_taken_that_changes_after_the_question(api: BulkApi) -> None:
    ids = await api.dead(1)
    bulk = await api.bulk("retry", q="type:send", as_of="2099-01-01T00:00:00Z")
    api.clock.advance(SECOND)
    later = await api.dead(1)
    await api.after_hold(bulk)

    assert await api.states(ids) == {"ready"}
    assert await api.states(later) == {"failed"}


async def test_the_book_of_changes_has_the_question_and_the_end(api: BulkApi) -> None:
    await api.dead(2)
    bulk = await api.bulk("delete", q="type:send")
    await api.after_hold(bulk)
    async with asyncio.timeout(GENEROUS_SECONDS):
        while len(seen := (await api("GET", "/api/audit")).json()["items"]) < 2:
            await asyncio.sleep(0)

    ended, asked = seen
    assert (asked["did"], asked["what"]) == ("bulk", bulk["id"])
    assert asked["details"] == {"action": "delete", "jobs": 2, "q": "type:send"}
    assert (ended["did"], ended["details"]) == ("bulk_ended", {"done": 2, "skipped": {}})


async def test_a_held_action_can_be_undone(api: BulkApi) -> None:
    ids = await api.dead(2)
    bulk = await api.bulk("delete", q="state:failed")

    undone = await api("DELETE", f"/api/bulk/{bulk['id']}")
    again = await api("DELETE", f"/api/bulk/{bulk['id']}")

    assert undone.json()["state"] == "dropped"
    assert again.status_code == 409
    assert (await api.after_hold(bulk))["state"] == "dropped"
    assert await api.states(ids) == {"failed"}


async def test_a_held_action_can_be_started_now(api: BulkApi) -> None:
    ids = await api.dead(2)
    bulk = await api.bulk("delete", ids=ids)

    started = await api("POST", f"/api/bulk/{bulk['id']}/now")

    assert started.status_code == 200
    assert (await api.over(bulk))["done"] == 2
    assert await api.states(ids) == {"gone"}
    assert (await api("POST", f"/api/bulk/{bulk['id']}/now")).status_code == 409


async def test_cancel_takes_waiting_and_running_jobs(api: BulkApi) -> None:
    for _ in range(3):
        await api.put({"type": "send"})
    running = await api.claim()

    bulk = await api.bulk("cancel", q="type:send")
    done = await api.after_hold(bulk)

    assert (bulk["count"], done["done"]) == (3, 3)
    driver = await api.harbor.client.adriver()
    [job] = await driver.get([running.id], now=api.clock.now())
    assert job is not None
    assert job.cancel_requested


@pytest.mark.parametrize(
    ("expect", "code"), [(20, 202), (22, 202), (19, 202), (23, 409), (18, 409), (0, 409)]
)
async def test_another_number_than_expected_does_nothing(api: BulkApi, expect: int, code: int) -> None:
    ids = await api.dead(20)

    answer = await api.bulk("retry", code, q="type:send", expect=expect)

    if code == 409:
        assert answer["type"].endswith("count-differs")
        assert await api.states(ids) == {"failed"}


@pytest.mark.parametrize("how", ["q", "ids"])
async def test_jobs_that_changed_meanwhile_are_not_touched_and_counted(api: BulkApi, how: str) -> None:
    ids = await api.dead(3)
    bulk = await api.bulk("delete", **({"q": "type:send"} if how == "q" else {"ids": ids}))
    api.clock.advance(SECOND)
    await api("POST", f"/api/jobs/{ids[0]}/retry")
    assert await api.kill() == ids[0]

    done = await api.after_hold(bulk)

    assert (done["done"], done["skipped"]) == (2, [{"why": "it changed meanwhile", "count": 1}])
    assert await api.states(ids[:1]) == {"failed"}
    assert await api.states(ids[1:]) == {"gone"}


async def test_jobs_that_fail_later_are_not_part_of_it(api: BulkApi) -> None:
    await api.dead(2)
    bulk = await api.bulk("delete", q="type:send")
    api.clock.advance(SECOND)
    late = await api.dead(1)

    done = await api.after_hold(bulk)

    assert done["done"] == 2
    assert await api.states(late) == {"failed"}


async def test_a_running_action_stops_after_its_step(api: BulkApi, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = await api.dead(6)
    monkeypatch.setattr(bulk_routes, "STEP", 2)
    bulk = await api.bulk("retry", q="type:send")
    whole = api.app.service.pause

    async def stopped_in_the_pause(seconds: float) -> None:
        if (await api.seen(bulk))["done"] == 4:
            assert (await api("DELETE", f"/api/bulk/{bulk['id']}")).json()["state"] == "running"
        elif not (await api.seen(bulk))["done"]:
            await whole(seconds)

    monkeypatch.setattr(api.app.service, "pause", stopped_in_the_pause)
    await api("POST", f"/api/bulk/{bulk['id']}/now")
    done = await api.over(bulk)

    assert (done["state"], done["done"]) == ("stopped", 4)
    assert await api.states(ids[:4]) == {"ready"}
    assert await api.states(ids[4:]) == {"failed"}


async def test_when_the_server_stops_a_held_action_has_done_nothing() -> None:
    api = BulkApi()
    async with api.app.running():
        ids = await api.dead(2)
        bulk = await api.bulk("delete", q="type:send")
        api.app.stop()
        dropped = await api.over(bulk)

        assert (dropped["state"], dropped["done"]) == ("dropped", 0)
        assert "nothing was done" in dropped["note"]
        assert await api.states(ids) == {"failed"}


async def test_finished_jobs_run_again_only_if_they_are_named(api: BulkApi) -> None:
    job_id = await api.put({"type": "send"})
    await api("POST", f"/api/jobs/{job_id}/cancel")

    unnamed = await api.bulk("retry", 200, q="type:send", dry_run=True)
    named = await api.bulk("retry", 200, q="type:send state:cancelled", dry_run=True)

    assert (unnamed["count"], named["count"]) == (0, 1)


@pytest.mark.parametrize(
    "body",
    [
        {"action": "retry"},
        {"action": "retry", "q": "x", "ids": ["01900000-0000-7000-8000-000000000001"]},
        {"action": "cancel", "q": "x", "edit": {"priority": 1}},
        {"action": "burn", "q": "x"},
        {"action": "retry", "q": "state:fialed"},
    ],
)
async def test_a_change_that_is_not_clear_is_refused(api: BulkApi, body: Any) -> None:
    assert (await api("POST", "/api/bulk", body)).status_code == 422


async def test_an_edit_changes_every_retried_job(api: BulkApi) -> None:
    [job_id] = await api.dead(1)
    bulk = await api.bulk("retry", ids=[job_id], edit={"priority": 7, "timeout_s": 5, "delay_s": 60})

    await api.after_hold(bulk)

    job = (await api("GET", f"/api/jobs/{job_id}")).json()
    assert (job["state"], job["priority"], job["timeout_s"]) == (JobState.SCHEDULED.value, 7, 5.0)


async def test_a_token_for_some_queues_touches_and_sees_only_its_own(tmp_path: Path) -> None:
    file = token_file(tmp_path)
    admin, narrow = make_token(file, "admin"), make_token(file, "operator", ("mail",))
    other = make_token(file, "operator", ("sms",))
    api = BulkApi(tokens=tmp_path / "tokens.json")
    mine, theirs = await api.dead(1, "mail", token=admin), await api.dead(1, "sms", token=admin)

    bulk = await api.bulk("delete", token=narrow, q="type:send")
    seen = [
        (await api("GET", f"/api/bulk/{bulk['id']}", token=token)).status_code for token in (admin, other)
    ]
    done = await api.after_hold(bulk, narrow)

    assert (bulk["count"], done["done"], seen) == (1, 1, [200, 404])
    assert (await api.states(mine), await api.states(theirs)) == ({"gone"}, {"failed"})
    await api.aclose()


async def test_a_token_that_is_revoked_while_it_is_held_does_nothing(tmp_path: Path) -> None:
    file = token_file(tmp_path)
    admin, operator = make_token(file, "admin"), make_token(file, "operator")
    api = BulkApi(tokens=tmp_path / "tokens.json")
    ids = await api.dead(1, token=admin)
    bulk = await api.bulk("delete", token=operator, q="type:send")

    file.revoke(operator.split("_")[1])
    done = await api.after_hold(bulk, admin)

    assert (done["state"], done["done"]) == ("dropped", 0)
    assert await api.states(ids) == {"failed"}
    await api.aclose()
