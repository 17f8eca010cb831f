"""Jobs over HTTP: put in, look, wait, cancel, retry."""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Any

import pytest

from taskharbor import Harbor
from taskharbor.drivers.messages import Enqueued
from taskharbor.model.job import JobRecord, NewJob
from taskharbor.model.settlement import Ack
from taskharbor.model.state import JobState
from taskharbor.web import job_walk
from tests.integration.http.api import Api


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    found = Api()
    yield found
    await found.aclose()


async def record(api: Api, job_id: str) -> JobRecord:
    return await api.harbor.client.aget_record(job_id)


async def test_a_new_job_is_answered_with_its_place(api: Api) -> None:
    answer = await api("POST", "/api/jobs", {"type": "mail", "payload": {"to": "a@b.c"}, "queue": "mail"})

    assert answer.status_code == 201
    job_id = answer.json()["id"]
    assert answer.headers["location"] == f"/api/jobs/{job_id}"
    assert answer.json()["result"] == "created"
    stored = await record(api, job_id)
    assert (stored.type, stored.queue, stored.payload) == ("mail", "mail", b'{"to":"a@b.c"}')


async def test_every_answer_forbids_caching_and_names_its_request(api: Api) -> None:
    answer = await api("GET", "/livez", headers={"X-Request-Id": "abc-1"})
    other = await api("GET", "/livez", headers={"X-Request-Id": "a b\tc"})

    assert answer.headers["x-request-id"] == "abc-1"
    assert re.fullmatch(r"[0-9a-f]+-[0-9a-f]+", other.headers["x-request-id"])
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-content-type-options"] == "nosniff"


async def test_an_idempotency_key_in_the_header_is_the_jobs_own(api: Api) -> None:
    body = {"type": "pay", "payload": [1]}
    first = await api("POST", "/api/jobs", body, headers={"Idempotency-Key": "order-7"})
    quoted = await api("POST", "/api/jobs", body, headers={"Idempotency-Key": '"order-7"'})
    in_body = await api("POST", "/api/jobs", {**body, "idempotency_key": "order-7"})

    assert first.status_code == 201
    assert "idempotency-replayed" not in first.headers
    for repeat in (quoted, in_body):
        assert (repeat.status_code, repeat.json()["id"]) == (200, first.json()["id"])
        assert repeat.headers["idempotency-replayed"] == "true"
    assert (await record(api, first.json()["id"])).idempotency_key == b"order-7"


async def test_the_key_of_the_body_goes_before_that_of_the_header(api: Api) -> None:
    answer = await api(
        "POST", "/api/jobs", {"type": "pay", "idempotency_key": "mine"}, headers={"Idempotency-Key": "other"}
    )

    assert (await record(api, answer.json()["id"])).idempotency_key == b"mine"


async def test_a_batch_is_all_or_nothing_and_its_key_counts_on(api: Api) -> None:
    jobs = {"jobs": [{"type": "a"}, {"type": "b", "idempotency_key": "own"}, {"type": "c"}]}
    first = await api("POST", "/api/jobs/batch", jobs, headers={"Idempotency-Key": "k"})
    again = await api("POST", "/api/jobs/batch", jobs, headers={"Idempotency-Key": "k"})
    bad = await api("POST", "/api/jobs/batch", {"jobs": [{"type": "a"}, {"type": ""}]})

    ids = [item["id"] for item in first.json()["items"]]
    assert [item["result"] for item in first.json()["items"]] == ["created"] * 3
    assert [(item["id"], item["result"]) for item in again.json()["items"]] == [(i, "duplicate") for i in ids]
    assert [(await record(api, one)).idempotency_key for one in ids] == [b"k/0", b"own", b"k/2"]
    assert bad.status_code == 422
    assert "type '' is not a name" in bad.json()["detail"]
    assert len((await api("GET", "/api/jobs")).json()["items"]) == 3


async def test_a_batch_has_at_most_a_thousand_jobs(api: Api) -> None:
    most = await api("POST", "/api/jobs/batch", {"jobs": [{"type": "x"}] * 1000})
    over = await api("POST", "/api/jobs/batch", {"jobs": [{"type": "x"}] * 1001})
    none = await api("POST", "/api/jobs/batch", {"jobs": []})

    assert [answer.status_code for answer in (most, over, none)] == [200, 422, 422]
    assert len({item["id"] for item in most.json()["items"]}) == 1000


async def test_a_key_that_waits_is_updated_and_one_that_runs_blocks(api: Api) -> None:
    first = await api("POST", "/api/jobs", {"type": "sync", "key": "user-1", "payload": 1})
    second = await api(
        "POST", "/api/jobs", {"type": "sync", "key": "user-1", "payload": 2, "update": {"data": False}}
    )
    await api.claim()
    third = await api("POST", "/api/jobs", {"type": "sync", "key": "user-1"})

    assert [(a.status_code, a.json()["result"]) for a in (first, second, third)] == [
        (201, "created"),
        (200, "updated"),
        (201, "blocked"),
    ]
    assert (await record(api, first.json()["id"])).payload == b"1"


async def test_lists_go_on_by_their_link_and_show_each_job_once(api: Api) -> None:
    ids = [await api.put({"type": "x", "payload": number}) for number in range(7)]

    seen, path = [], "/api/jobs?sort=seq&limit=3&queue=default"
    while path:
        page = await api("GET", path)
        seen += [item["id"] for item in page.json()["items"]]
        link = page.headers.get("link", "")
        assert bool(link) == (page.json()["next_cursor"] is not None)
        path = link.removeprefix("<").partition(">")[0]

    assert seen == ids


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("queue=b", ["two"]),
        ("state=cancelled", ["three"]),
        ("state=cancelled,ready&sort=seq", ["one", "two", "three"]),
        ("type=one", ["one"]),
        ("key=k", ["two"]),
        ("queue=null", []),
        ("worker_id=nobody", []),
        ("created_after=2020-01-01T00:00:00Z&created_before=2200-01-01T00:00:00Z&type=one", ["one"]),
        ("created_before=2020-01-01T00:00:00Z", []),
        ("ended_after=2020-01-01T00:00:00Z", ["three"]),
        ("ended_before=2020-01-01T00:00:00Z", []),
    ],
)
async def test_lists_are_narrowed(api: Api, query: str, expected: list[str]) -> None:
    await api.put({"type": "one"})
    await api.put({"type": "two", "queue": "b", "key": "k"})
    await api("POST", f"/api/jobs/{await api.put({'type': 'three'})}/cancel")

    found = await api("GET", f"/api/jobs?{query}")

    assert [item["type"] for item in found.json()["items"]] == expected


async def test_a_list_by_time_goes_on_page_by_page(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_walk, "FIRST_LOOK", 4)
    monkeypatch.setattr(job_walk, "WALK_JOBS", 10)
    ids = [await api.put({"type": "x"}) for _ in range(30)]
    await api("POST", f"/api/jobs/{ids[0]}/cancel")

    seen, pages, path = [], 0, "/api/jobs?limit=1&ended_after=2020-01-01T00:00:00Z"
    while path:
        page = await api("GET", path)
        seen += [item["id"] for item in page.json()["items"]]
        pages, path = pages + 1, page.headers.get("link", "").removeprefix("<").partition(">")[0]

    assert seen == ids[:1]
    assert pages >= 2  # at most 24 jobs are looked at for a page


@pytest.mark.parametrize("instant", ["2026-12-01T09:00:00", "null", "yesterday", "", "0.5", "7"])
async def test_an_instant_without_a_zone_is_refused(api: Api, instant: str) -> None:
    refused = await api("GET", f"/api/jobs?ended_after={instant}")

    assert refused.status_code == 422
    assert "time zone" in refused.text


async def test_whole_numbers_beyond_what_a_double_holds_come_back_whole(api: Api) -> None:
    number = 2**60 + 1

    job_id = await api.put({"type": "x", "payload": {"n": number, "zero": "\u0000", "text": "grüß"}})

    assert (await api("GET", f"/api/jobs/{job_id}")).json()["payload"] == {
        "n": number,
        "zero": "\u0000",
        "text": "grüß",
    }


async def test_a_result_is_waited_for(api: Api) -> None:
    job_id = await api.put({"type": "x"})
    waiting = asyncio.ensure_future(api("GET", f"/api/jobs/{job_id}/result?wait_s=30"))
    job = await api.claim()
    driver = await api.harbor.client.adriver()
    await driver.settle([Ack(job.lease, b'{"sum":3}')])

    answer = (await waiting).json()

    assert (answer["state"], answer["is_over"], answer["result"]) == ("completed", True, {"sum": 3})


async def test_a_wait_that_is_over_shows_how_far_the_job_is(api: Api) -> None:
    job_id = await api.put({"type": "x"})

    answer = (await api("GET", f"/api/jobs/{job_id}/result?wait_s=0.05")).json()

    assert (answer["state"], answer["is_over"], answer["result"]) == ("ready", False, None)


async def test_a_wait_ends_when_the_server_stops(api: Api) -> None:
    job_id = await api.put({"type": "x"})
    waiting = asyncio.ensure_future(api("GET", f"/api/jobs/{job_id}/result?wait_s=60"))
    await asyncio.sleep(0)

    api.app.stop()

    assert (await asyncio.wait_for(waiting, 20)).json()["is_over"] is False


async def test_why_a_job_waits_is_shown(api: Api) -> None:
    job_id = await api.put({"type": "x", "delay_s": 3600})

    answer = (await api("GET", f"/api/jobs/{job_id}/why")).json()

    assert (answer["id"], answer["reason"], answer["state"]) == (job_id, "scheduled", "scheduled")


@pytest.mark.parametrize("method", ["DELETE", "POST"])
async def test_cancel_shows_the_new_state(api: Api, method: str) -> None:
    waiting = await api.put({"type": "x"})
    running = await api.put({"type": "x", "queue": "busy"})
    await api.claim("busy")
    unknown = "00000000-0000-7000-8000-000000000000"

    answers = [await api(method, f"/api/jobs/{one}/cancel") for one in (waiting, running, unknown, waiting)]

    assert [answer.status_code for answer in answers] == [200, 200, 404, 409]
    assert answers[0].json() == {"id": waiting, "result": "cancelled", "state": "cancelled"}
    assert answers[1].json() == {"id": running, "result": "requested", "state": "running"}
    assert answers[3].json()["type"] == "urn:taskharbor:problem:wrong-state"


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH"])
async def test_cancel_by_another_method_is_not_allowed(api: Api, method: str) -> None:
    job_id = await api.put({"type": "x"})

    answer = await api(method, f"/api/jobs/{job_id}/cancel")

    assert answer.status_code == 405
    assert answer.headers["allow"] == "DELETE, POST"
    assert (await record(api, job_id)).state is JobState.READY


async def test_a_finished_job_runs_again_changed_as_asked(api: Api) -> None:
    job_id = await api.put({"type": "x", "payload": 1, "priority": 1})
    early = await api("POST", f"/api/jobs/{job_id}/retry")
    await api("POST", f"/api/jobs/{job_id}/cancel")

    bare = await api("POST", f"/api/jobs/{job_id}/retry")
    await api("POST", f"/api/jobs/{job_id}/cancel")
    edited = await api(
        "POST", f"/api/jobs/{job_id}/retry", {"payload": {"n": 2}, "priority": 9, "delay_s": 60}
    )

    assert (early.status_code, bare.status_code, edited.status_code) == (409, 200, 200)
    assert edited.json()["state"] == "scheduled"
    stored = await record(api, job_id)
    assert (stored.payload, stored.priority) == (b'{"n":2}', 9)


async def test_an_enqueue_over_the_queues_rate_says_when_to_come_back(api: Api) -> None:
    await api("PATCH", "/api/queues/slow", {"enqueue_rate": {"count": 1, "per_s": 3600}})
    first = await api("POST", "/api/jobs", {"type": "x", "queue": "slow"})
    second = await api("POST", "/api/jobs", {"type": "x", "queue": "slow"})

    assert (first.status_code, second.status_code) == (201, 429)
    assert 3000 < int(second.headers["retry-after"]) <= 3600
    assert second.json()["retryable"] is True
    assert len((await api("GET", "/api/jobs?queue=slow")).json()["items"]) == 1


async def test_tasks_bring_their_options_and_check_their_arguments() -> None:
    harbor = Harbor("memory://")

    @harbor.task(queue="mail", max_attempts=5, timeout="30s", priority=3)
    async def send(user_id: int, text: str = "") -> None: ...

    api = Api(harbor)
    by_name = await api.put({"type": "send", "payload": {"user_id": 7}})
    in_line = await api.put({"type": "send", "payload": [7, "hi"], "queue": "other", "priority": 0})
    wrong = [
        await api("POST", "/api/jobs", {"type": "send", "payload": payload})
        for payload in ({"user": 7}, {"user_id": "seven"}, {}, None, 7, [1, "a", 3])
    ]
    unknown = await api("POST", "/api/jobs", {"type": "os.system", "payload": {}})

    stored, other = await record(api, by_name), await record(api, in_line)
    assert (stored.queue, stored.max_attempts, stored.priority) == ("mail", 5, 3)
    assert (other.queue, other.max_attempts, other.priority) == ("other", 5, 0)
    assert [answer.status_code for answer in wrong] == [422] * 6
    assert unknown.status_code == 422
    assert "send" in unknown.json()["detail"]
    await api.aclose()


async def test_a_server_may_be_set_to_take_any_type() -> None:
    harbor = Harbor("memory://")

    @harbor.task
    async def known() -> None: ...

    api = Api(harbor, any_type=True)

    assert (await api("POST", "/api/jobs", {"type": "elsewhere", "payload": 3})).status_code == 201
    assert (await api("POST", "/api/jobs", {"type": "known", "payload": {"extra": 1}})).status_code == 422
    await api.aclose()


async def test_the_middleware_of_the_harbor_wraps_enqueues_over_http() -> None:
    harbor = Harbor("memory://")
    seen: list[str] = []

    async def note(jobs, call_next):
        seen.extend(job.type for job in jobs)
        return await call_next(jobs)

    harbor.client.use(note)
    api = Api(harbor)
    await api.put({"type": "a"})
    await api("POST", "/api/jobs/batch", {"jobs": [{"type": "b"}, {"type": "c"}]})

    assert seen == ["a", "b", "c"]
    await api.aclose()


async def test_jobs_that_arrive_together_share_a_write(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = await api.harbor.client.adriver()
    whole, sizes = driver.do_enqueue, list[int]()

    async def slowly(jobs: Sequence[NewJob], now: datetime | None) -> list[Enqueued]:
        sizes.append(len(jobs))
        await asyncio.sleep(0.05)
        return await whole(jobs, now)

    monkeypatch.setattr(driver, "do_enqueue", slowly)
    answers = await asyncio.gather(*(api("POST", "/api/jobs", {"type": "x"}) for _ in range(50)))

    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.json()["id"] for answer in answers}) == sum(sizes) == 50
    assert len(sizes) < 10


async def test_an_edit_never_stores_the_stars_of_a_hidden_value(api: Api) -> None:
    stored = {"user": "ana", "password": "hunter2", "list": [{"token": "t"}], "note": "***"}
    job_id = await api.put({"type": "x", "payload": stored})
    await api.kill()

    async def retried(payload: object) -> Any:
        return await api("POST", f"/api/jobs/{job_id}/retry", {"payload": payload})

    for payload, place in (
        ({**stored, "password": "***"}, "$.payload.password"),
        ({**stored, "list": [{"token": "***"}]}, "$.payload.list[0].token"),
        ({**stored, "new": "***"}, "$.payload.new"),
        ("***", "$.payload"),
    ):
        refused = await retried(payload)
        assert refused.status_code == 422
        assert [wrong["path"] for wrong in refused.json()["errors"]] == [place]
    assert (await retried({**stored, "user": "bob"})).status_code == 200
    assert (await record(api, job_id)).payload.startswith(b'{"user":"bob","password":"hunter2"')
