"""Queues, workers, schedules, dead letters and probes over HTTP."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from taskharbor import Harbor
from taskharbor.errors import DriverUnavailable
from taskharbor.model.clock import SystemClock
from taskharbor.model.log_cells import Numbers, packed
from taskharbor.model.log_series import MINUTE, floor
from taskharbor.model.logbook import KEPT, NUMBERS, LogEntry
from taskharbor.model.presence import Sample, WorkerReport
from tests.integration.http.api import Api

UNKNOWN = "00000000-0000-7000-8000-000000000000"


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    found = Api()
    yield found
    await found.aclose()


# ------------------------------------------------------------------ queues


async def test_settings_are_changed_one_by_one_and_taken_away_by_null(api: Api) -> None:
    await api(
        "PATCH",
        "/api/queues/mail",
        {
            "max_running": 4,
            "execute_rate": {"count": 10, "per_s": 0.5},
            "fail_queue": "mail-fail",
            "retention": {"completed_s": 0, "failed_s": None},
        },
    )
    after = (await api("PATCH", "/api/queues/mail", {"paused": True, "fail_queue": None})).json()

    assert after == {
        "paused": True,
        "max_running": 4,
        "enqueue_rate": None,
        "execute_rate": {"count": 10, "per_s": 0.5},
        "fail_queue": None,
        "retention": {"completed_s": 0.0, "failed_s": None, "cancelled_s": 1209600.0},
    }
    whole = (await api("GET", "/api/queues/mail")).json()
    assert {name: whole[name] for name in after} == after


async def test_the_waiting_job_of_a_key_is_cancelled_by_its_key(api: Api) -> None:
    job = (await api("POST", "/api/jobs", {"type": "t", "queue": "mail", "key": "customer/7"})).json()

    first = await api("POST", "/api/queues/mail/cancel", {"key": "customer/7"})
    again = await api("POST", "/api/queues/mail/cancel", {"key": "customer/7"})

    assert (first.json(), again.json()) == ({"cancelled": True}, {"cancelled": False})
    found = (await api("GET", f"/api/jobs/{job['id']}")).json()
    assert (found["state"], found["last_error"]) == ("cancelled", "cancelled while it waited")
    assert (await api("POST", "/api/queues/mail/cancel", {})).status_code == 422
    assert (await api("POST", "/api/queues/*/cancel", {"key": "k"})).status_code == 404


async def test_a_retry_can_insist_on_a_queue(api: Api) -> None:
    job = (await api("POST", "/api/jobs", {"type": "t", "queue": "mail"})).json()
    await api("POST", f"/api/jobs/{job['id']}/cancel")

    refused = await api("POST", f"/api/jobs/{job['id']}/retry", {"queue": "other"})
    done = await api("POST", f"/api/jobs/{job['id']}/retry", {"queue": "mail"})

    assert (refused.status_code, done.status_code) == (409, 200)
    assert "of queue mail, not of other" in refused.json()["detail"]


@pytest.mark.parametrize(
    "changes",
    [
        {"max_running": -1},
        {"max_running": "4"},
        {"paused": None},
        {"enqueue_rate": {"count": 0, "per_s": 1}},
        {"enqueue_rate": {"count": 1, "per_s": 0}},
        {"enqueue_rate": {"count": 1}},
        {"fail_queue": "a b"},
        {"retention": {"completed_s": -1}},
        {"colour": "red"},
    ],
)
async def test_settings_that_make_no_sense_change_nothing(api: Api, changes: dict[str, Any]) -> None:
    before = (await api("GET", "/api/queues/mail")).json()

    assert (await api("PATCH", "/api/queues/mail", changes)).status_code == 422
    after = (await api("GET", "/api/queues/mail")).json()
    assert {**after, "age_s": 0} == {**before, "age_s": 0}


async def test_the_star_is_the_whole_harbor(api: Api) -> None:
    await api("PATCH", "/api/queues/*", {"max_running": 9})

    assert (await api("GET", "/api/queues/*")).json()["max_running"] == 9
    assert (await api("GET", "/api/queues")).json()["items"] == []
    assert (await api("GET", "/api/queues/*/scale")).status_code == 404


async def test_a_paused_queue_hands_out_nothing_until_it_is_resumed(api: Api) -> None:
    await api.put({"type": "x"})

    assert (await api("POST", "/api/queues/default/pause")).json()["paused"] is True
    with pytest.raises(ValueError, match="not enough values"):
        await api.claim()
    assert (await api("POST", "/api/queues/default/resume")).json()["paused"] is False
    assert (await api.claim()).type == "x"


async def test_scaling_counts_running_jobs_too(api: Api) -> None:
    for _ in range(7):
        await api.put({"type": "x"})
    await api.put({"type": "x", "delay_s": 3600})
    for _ in range(3):
        await api.claim()

    async def scale(query: str = "") -> Any:
        return (await api("GET", f"/api/queues/default/scale{query}")).json()

    found = await scale()
    assert (found["desired_workers"], found["ready"], found["running"]) == (7, 4, 3)
    assert found["oldest_s"] >= 0
    assert (await scale("?per_worker=2"))["desired_workers"] == 4
    await api("PATCH", "/api/queues/default", {"max_running": 5})
    assert (await scale())["desired_workers"] == 5
    await api("POST", "/api/queues/default/pause")
    assert (await scale())["desired_workers"] == 3


async def test_a_queue_that_nobody_has_used_needs_no_workers(api: Api) -> None:
    found = (await api("GET", "/api/queues/empty/scale")).json()
    del found["age_s"]
    assert found == {"desired_workers": 0, "ready": 0, "running": 0, "oldest_s": None}


# ------------------------------------------------------------------ workers and numbers


async def test_workers_are_ranked_by_how_quick_they_are(api: Api) -> None:
    driver = await api.harbor.client.adriver()
    for name, seconds in (("slow", 2.0), ("fast", 0.1)):
        report = WorkerReport(
            worker_id=name, name=name, queues=("default",), concurrency=4, running=(UNKNOWN,)
        )
        await driver.report_worker(report, [Sample("x", timedelta(seconds=seconds))])

    found = (await api("GET", "/api/workers")).json()["items"]
    stats = (await api("GET", "/api/stats")).json()

    assert [(one["id"], one["latency_s"]) for one in found] == [("fast", 0.1), ("slow", 2.0)]
    assert stats["workers"] == {"count": 2, "slots": 8, "busy": 2}
    assert stats["types"][0]["type"] == "x"


async def test_a_worker_is_slow_if_the_same_tasks_take_longer_there(api: Api) -> None:
    driver = await api.harbor.client.adriver()
    minute = SystemClock().now().replace(second=0, microsecond=0)
    for name, seconds in (("quick", 0.1), ("lazy", 0.3)):
        row = Numbers("default", "x")
        row.ran([seconds] * 20)
        await driver.report_worker(WorkerReport(worker_id=name, queues=("default",)))
        cell = LogEntry(book=NUMBERS, at=minute, by=name, data=packed([row]), until=minute + KEPT[NUMBERS])
        await driver.write_log([cell])
    await driver.report_worker(WorkerReport(worker_id="idle", queues=("default",)))

    found = (await api("GET", "/api/workers")).json()["items"]

    assert {one["id"]: one["times_slower"] for one in found} == {"quick": 0.33, "lazy": 3.0, "idle": None}


# ------------------------------------------------------------------ schedules


async def test_a_schedule_is_made_changed_paused_run_and_taken_out(api: Api) -> None:
    rule = {"job": {"type": "report", "queue": "mail", "payload": {"day": 1}}, "cron": "0 3 * * *"}
    made = await api("PUT", "/api/schedules/nightly", {**rule, "timezone": "Europe/Berlin"})
    changed = await api("PUT", "/api/schedules/nightly", {**rule, "every_s": 60, "cron": None})
    paused = await api("POST", "/api/schedules/nightly/pause")
    run = await api("POST", "/api/schedules/nightly/run")
    resumed = await api("POST", "/api/schedules/nightly/resume")

    assert (made.status_code, changed.status_code) == (201, 200)
    assert (made.json()["cron"], made.json()["timezone"]) == ("0 3 * * *", "Europe/Berlin")
    assert (changed.json()["every_s"], changed.json()["cron"]) == (60.0, None)
    assert (paused.json()["paused"], paused.json()["next_tick_at"]) == (True, None)
    assert resumed.json()["next_tick_at"] is not None
    assert run.status_code == 201
    job = (await api("GET", f"/api/jobs/{run.json()['id']}")).json()
    assert (job["type"], job["queue"], job["payload"]) == ("report", "mail", {"day": 1})
    assert [one["name"] for one in (await api("GET", "/api/schedules")).json()["items"]] == ["nightly"]
    assert (await api("DELETE", "/api/schedules/nightly")).status_code == 204
    assert (await api("DELETE", "/api/schedules/nightly")).status_code == 404


# ------------------------------------------------------------------ dead letters


async def test_dead_letters_are_listed_retried_and_deleted(api: Api) -> None:
    dead = []
    for number in range(3):
        await api.put({"type": f"t{number}"})
        dead.append(await api.kill())
    alive = await api.put({"type": "alive"})

    listed = (await api("GET", "/api/dlq?sort=seq")).json()["items"]
    retried = (await api("POST", "/api/dlq/retry", {"ids": [dead[0], alive, UNKNOWN]})).json()["items"]
    by_type = (await api("POST", "/api/dlq/retry", {"type": "t1"})).json()["items"]
    deleted = [(await api("DELETE", f"/api/dlq/{one}")).status_code for one in (dead[2], dead[2], alive)]

    assert [(item["id"], item["last_error"]) for item in listed] == [(one, "no luck") for one in dead]
    assert [item["result"] for item in retried] == ["retried", "refused", "not_found"]
    assert [(item["id"], item["result"]) for item in by_type] == [(dead[1], "retried")]
    assert deleted == [204, 404, 409]
    assert (await api("GET", "/api/dlq")).json()["items"] == []


async def test_the_old_path_of_a_retry_of_dead_letters_means_the_same(api: Api) -> None:
    answer = await api("POST", "/api/dlq/replay", {"type": "t1"})

    assert (answer.status_code, answer.json()) == (200, {"items": []})
    assert "/api/dlq/replay" not in (await api("GET", "/api/openapi.json")).json()["paths"]


async def test_a_retry_of_dead_letters_takes_no_more_than_its_limit(api: Api) -> None:
    for _ in range(5):
        await api.put({"type": "x"})
        await api.kill()

    found = (await api("POST", "/api/dlq/retry", {"limit": 2, "delay_s": 60})).json()["items"]

    assert [item["state"] for item in found] == ["scheduled", "scheduled"]
    assert len((await api("GET", "/api/dlq")).json()["items"]) == 3


@pytest.mark.parametrize(
    "body", [{"ids": []}, {"ids": ["x"]}, {"ids": [UNKNOWN], "queue": "q"}, {"limit": 0}, []]
)
async def test_a_retry_of_dead_letters_that_makes_no_sense_is_rejected(api: Api, body: Any) -> None:
    assert (await api("POST", "/api/dlq/retry", body)).status_code == 422


# ------------------------------------------------------------------ probes and a store that is away


class Away(Harbor):
    """A harbor whose store cannot be opened."""

    def __init__(self) -> None:
        super().__init__("memory://")

        async def no_driver() -> Any:
            raise DriverUnavailable("the store is out of reach", done=False)

        self.client.adriver = no_driver  # type: ignore[method-assign]


async def test_a_store_that_is_away_fails_readiness_and_not_liveness() -> None:
    api = Api(Away())

    answers = {path: await api("GET", path) for path in ("/livez", "/readyz", "/api/jobs", "/api/events")}

    assert {path: answer.status_code for path, answer in answers.items()} == {
        "/livez": 200,
        "/readyz": 503,
        "/api/jobs": 503,
        "/api/events": 503,
    }
    assert answers["/api/jobs"].headers["retry-after"] == "1"
    assert answers["/api/jobs"].json()["retryable"] is True


async def test_a_server_that_is_about_to_stop_is_not_ready(api: Api) -> None:
    api.app.stop()

    assert (await api("GET", "/readyz")).status_code == 503
    assert (await api("GET", "/livez")).status_code == 200
    assert (await api("GET", "/api/events")).status_code == 503


async def test_an_unforeseen_error_shows_the_caller_nothing(
    api: Api, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    driver = await api.harbor.client.adriver()

    async def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("postgres://user:hunter2@host/db")

    monkeypatch.setattr(driver, "do_find", broken)
    answer = await api("GET", "/api/jobs")

    assert answer.status_code == 500
    assert "hunter2" not in answer.text
    assert answer.json()["request_id"] in caplog.text


# ------------------------------------------------------------------ the board and the store


async def test_the_board_shows_everything_at_one_glance(api: Api) -> None:
    for _ in range(3):
        await api.put({"type": "x", "queue": "mail"})
    await api.kill("mail")
    board = (await api("GET", "/api/board")).json()
    [row] = board["queues"]

    assert (board["counts"]["ready"], board["counts"]["failed"]) == (2, 1)
    assert (row["name"], row["ready"], row["target_s"], row["workers"]) == ("mail", 2, 60.0, 0)
    assert (row["arrived_per_s"], row["throttled_until"]) == (None, None)
    assert (board["verdict"]["text"], board["needs"], board["more"]) == ("All calm", [], 0)


async def test_callers_within_a_second_share_a_look() -> None:
    api = Api()
    board = api.app.service.board
    board.least_seconds = 3600.0
    first = (await api("GET", "/api/queues")).json()
    assert board.last is not None
    board.last = replace(board.last, taken=board.last.taken - 60)  # a minute has passed
    await api.put({"type": "x"})
    paths = ("/api/queues", "/api/board", "/api/stats", "/api/queues/default/scale", "/api/queues/default")
    later = [(await api("GET", path)).json() for path in paths]

    assert first["items"] == later[0]["items"] == later[1]["queues"] == []
    assert (later[2]["queues"], later[3]["ready"], later[4]["ready"]) == (0, 0, 0)
    assert all(answer["age_s"] >= 60 for answer in later)
    await api("POST", "/api/queues/default/pause")
    assert board.last.queues["default"].rules.paused  # a change through this server is shown at once
    await api.aclose()


async def test_the_store_says_what_it_is_and_can(tmp_path: Path) -> None:
    api = Api(Harbor(f"sqlite:///{tmp_path / 'jobs.db'}"))
    found = (await api("GET", "/api/store")).json()

    assert (found["driver"], found["capabilities"]["tx"]) == ("sqlite", True)
    assert str(tmp_path) in found["location"]
    assert found["answers_in_s"] >= 0
    await api.aclose()


async def test_a_schedule_shows_its_next_ticks_and_a_paused_one_none(api: Api) -> None:
    body = {"job": {"type": "x"}, "cron": "0 3 * * *"}
    await api("PUT", "/api/schedules/nightly", body)
    await api("PUT", "/api/schedules/idle", {**body, "paused": True})

    idle, nightly = (await api("GET", "/api/schedules")).json()["items"]

    assert len(nightly["next"]) == 3
    assert nightly["next"] == sorted(nightly["next"])
    assert nightly["next"][0] == nightly["next_tick_at"]
    assert (idle["next"], idle["runs"]) == ([], [])


async def test_a_rule_can_be_tried_without_storing_it(api: Api) -> None:
    rule = {"cron": "30 2 * * *", "timezone": "Europe/Berlin", "n": 5}
    tried = (await api("POST", "/api/schedules/preview", rule)).json()

    assert len(tried["next"]) == 5
    assert any("02:30 does not exist" in change for change in tried["changes"])
    every = (await api("POST", "/api/schedules/preview", {"every_s": 60})).json()
    assert (len(every["next"]), every["changes"]) == (10, [])
    assert (await api("GET", "/api/schedules")).json()["items"] == []


@pytest.mark.parametrize(
    "rule",
    [{}, {"cron": "61 * * * *"}, {"cron": "* * * * *", "every_s": 5}, {"every_s": 5, "timezone": "Mars"}],
)
async def test_a_rule_that_is_none_is_refused(api: Api, rule: dict[str, object]) -> None:
    assert (await api("POST", "/api/schedules/preview", rule)).status_code == 422


async def test_series_come_from_the_logbook_with_marks_for_what_was_changed(api: Api) -> None:
    driver = await api.harbor.client.adriver()
    at = floor(api.harbor.client.clock.now(), MINUTE)
    cell = packed([Numbers("mail", "x", completed=7), Numbers("sms", "x", completed=2)])
    await driver.write_log([LogEntry(book=NUMBERS, at=at, by="w", data=cell, until=at + timedelta(hours=1))])
    await driver.report_worker(WorkerReport(worker_id="w-1", started_at=at, release="4f2a9c1"))
    await api("PATCH", "/api/queues/mail", {"max_running": 20})
    while not await api.app.service.audit_book.page(None, 1):  # it is written after the answer
        await asyncio.sleep(0.01)
    found = (await api("GET", "/api/series?window=15m&by=queue&names=mail,none")).json()
    total = (await api("GET", "/api/series")).json()

    assert (found["step_s"], found["is_kept"]) == (60.0, True)
    assert [one["name"] for one in found["series"]] == ["mail", "none"]
    assert 7 in found["series"][0]["done"]
    assert found["from"] < found["to"]
    assert [(one["name"], sum(filter(None, one["done"]))) for one in total["series"]] == [("total", 9)]
    marks = {one["kind"]: one for one in total["marks"]}
    assert (marks["release"]["text"], marks["setting"]["text"]) == ("4f2a9c1", "mail max_running none → 20")
    assert (await api("GET", "/api/series?window=2h")).status_code == 422
    assert (await api("GET", "/api/series?names=mail")).status_code == 422


async def test_a_store_without_a_logbook_has_no_series() -> None:
    api = Api()
    driver: Any = await api.harbor.client.adriver()
    driver.capabilities = msgspec.structs.replace(driver.capabilities, logbook=False)
    found = (await api("GET", "/api/series?window=24h")).json()

    assert (found["series"], found["marks"], found["is_kept"], found["step_s"]) == ([], [], False, 900.0)
    await api.aclose()
