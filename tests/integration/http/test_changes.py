"""The book of changes: who changed what, from what to what, and how to take it back."""

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from taskharbor.errors import DriverUnavailable
from taskharbor.model.logbook import AUDIT
from taskharbor.views import RulesView
from tests.integration.http.api import Api, make_token, token_file


class ChangesApi(Api):
    """A server with a token of an operator, whose note is a name."""

    def __init__(self, folder: Path, note: str = "ana") -> None:
        file = token_file(folder)
        self.token, self.viewer = make_token(file, "operator", note=note), make_token(file, "viewer")
        super().__init__(tokens=folder / "tokens.json", rate_per_second=0)

    async def do(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        return await self(method, path, body, token=self.token, **options)

    async def changes(self, **params: Any) -> list[dict[str, Any]]:
        await asyncio.sleep(0)  # changes of one turn are written in the next
        if self.app.service.background:
            await asyncio.wait(self.app.service.background)
        items: list[dict[str, Any]] = (await self.do("GET", "/api/audit", params=params)).json()["items"]
        return items

    async def undo(self, request_id: str) -> Any:
        return await self.do("POST", f"/api/audit/{request_id}/undo")

    async def rules(self, queue: str) -> Any:
        found = (await self.do("GET", f"/api/queues/{queue}")).json()
        return {name: found[name] for name in RulesView.__struct_fields__}


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[ChangesApi]:
    found = ChangesApi(tmp_path)
    yield found
    await found.aclose()


async def test_a_setting_is_shown_before_and_after(api: ChangesApi) -> None:
    await api.do("PATCH", "/api/queues/mail", {"max_running": 40})
    await api.do("PATCH", "/api/queues/mail", {"max_running": 20}, headers={"X-Request-Id": "mine-1"})

    newest, first = await api.changes()

    assert (newest["who"], newest["role"], newest["client"]) == ("ana", "operator", "127.0.0.1")
    assert (newest["did"], newest["what"], newest["status"]) == ("configure_queue", "mail", 200)
    assert (newest["before"], newest["after"]) == ({"max_running": 40}, {"max_running": 20})
    assert (newest["request_id"], newest["undo"]) == ("mine-1", "open")
    assert first["before"] == {"max_running": None}


async def test_what_people_do_is_there_and_enqueues_reads_and_refusals_are_not(api: ChangesApi) -> None:
    job_id = (await api.do("POST", "/api/jobs", {"type": "x"})).json()["id"]
    await api.do("GET", "/api/jobs")
    await api("POST", "/api/queues/mail/pause", token=api.viewer)
    await api.do("POST", f"/api/jobs/{job_id}/cancel")
    await api.do("POST", f"/api/jobs/{job_id}/cancel")
    await api.do("PUT", "/api/schedules/nightly", {"job": {"type": "x"}, "cron": "0 3 * * *"})
    await api.do("DELETE", "/api/schedules/nightly")

    seen = [(one["did"], one["what"], one["status"]) for one in await api.changes()]

    assert seen == [
        ("delete_schedule", "nightly", 204),
        ("put_schedule", "nightly", 201),
        ("cancel", job_id, 409),
        ("cancel", job_id, 200),
    ]


@pytest.mark.parametrize(
    "body",
    [
        {"max_running": 20},
        {"paused": True},
        {"enqueue_rate": {"count": 5, "per_s": 60}, "retention": {"failed_s": 60}},
        {"max_running": None},
    ],
)
async def test_a_setting_can_be_changed_back(api: ChangesApi, body: Any) -> None:
    await api.do("PATCH", "/api/queues/mail", {"max_running": 40})
    before = await api.rules("mail")
    await api.do("PATCH", "/api/queues/mail", body)
    [changed, _] = await api.changes()

    undone = await api.undo(changed["request_id"])

    assert undone.status_code == 200
    assert await api.rules("mail") == before
    newest, second, _ = await api.changes()
    assert (newest["did"], newest["undoes"], newest["undo"]) == ("undo_change", changed["request_id"], None)
    assert (newest["before"], newest["after"]) == (changed["after"], changed["before"])
    assert (second["request_id"], second["undo"]) == (changed["request_id"], "done")
    assert (await api.undo(changed["request_id"])).status_code == 409


async def test_a_setting_that_was_changed_again_is_not_changed_back(api: ChangesApi) -> None:
    await api.do("PATCH", "/api/queues/mail", {"max_running": 40})
    [first] = await api.changes()
    await api.do("PATCH", "/api/queues/mail", {"max_running": 20})

    refused = await api.undo(first["request_id"])

    assert refused.status_code == 409
    assert (await api.rules("mail"))["max_running"] == 20


async def test_a_paused_schedule_can_be_resumed_by_undo(api: ChangesApi) -> None:
    await api.do("PUT", "/api/schedules/nightly", {"job": {"type": "x"}, "cron": "0 3 * * *"})
    await api.do("POST", "/api/schedules/nightly/pause")
    paused, put = await api.changes()

    assert (await api.undo(put["request_id"])).status_code == 409
    assert (await api.undo(paused["request_id"])).status_code == 200
    [schedule] = (await api.do("GET", "/api/schedules")).json()["items"]
    assert schedule["paused"] is False


async def test_an_unknown_change_cannot_be_taken_back(api: ChangesApi) -> None:
    assert (await api.undo("no-such-request")).status_code == 404


async def test_the_book_is_read_page_by_page(api: ChangesApi) -> None:
    for number in range(1, 6):
        await api.do("PATCH", "/api/queues/mail", {"max_running": number})
    await api.changes()

    seen, before = [], ""
    while True:
        page = (await api.do("GET", "/api/audit", params={"limit": 2, "before": before})).json()
        seen += [one["after"]["max_running"] for one in page["items"]]
        before = page["next_cursor"]
        if before is None:
            break

    assert seen == [5, 4, 3, 2, 1]


async def test_a_write_that_fails_is_logged_and_does_not_fail_the_change(
    api: ChangesApi, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def away(*_: Any, **__: Any) -> None:
        raise DriverUnavailable("the store is away")

    monkeypatch.setattr(await api.harbor.client.adriver(), "write_log", away)
    caplog.set_level(logging.ERROR)

    answer = await api.do("POST", "/api/queues/mail/pause")

    assert answer.status_code == 200
    assert await api.changes() == []
    assert [one.getMessage() for one in caplog.records if AUDIT in one.getMessage()]


async def test_control_characters_do_not_reach_the_book(tmp_path: Path) -> None:
    api = ChangesApi(tmp_path, note="ana\x1b[31m\nbob")
    await api.do("POST", "/api/queues/mail/pause")

    [change] = await api.changes()

    assert change["who"] == "ana\\x1b[31m\\nbob"
    await api.aclose()


async def test_a_preview_of_many_is_no_change(api: ChangesApi) -> None:
    looked = await api.do("POST", "/api/bulk", {"action": "retry", "q": "state:failed", "dry_run": True})
    held = await api.do("POST", "/api/bulk", {"action": "retry", "q": "state:failed"})

    await api.do("DELETE", f"/api/bulk/{held.json()['id']}")

    assert (looked.status_code, held.status_code) == (200, 202)
    assert [(one["did"], one["status"]) for one in await api.changes()] == [("stop_bulk", 200), ("bulk", 202)]
