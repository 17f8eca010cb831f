"""Searches over HTTP: what they find, how far they look, what they count, and what they must not find."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from taskharbor.drivers.messages import Page, Query
from taskharbor.model.presence import WorkerReport
from taskharbor.model.search import FIELDS, STATES
from taskharbor.web import job_walk
from tests.integration.http.api import Api, make_token, token_file


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    found = Api()
    yield found
    await found.aclose()


async def found(api: Api, q: str, **options: Any) -> list[str]:
    """The ids of every page of a search."""
    ids, path, params = list[str](), "/api/jobs", {"q": q, **options.pop("params", {})}
    while True:
        answer = await api("GET", path, params=params, **options)
        assert answer.status_code == 200, answer.text
        ids += [item["id"] for item in answer.json()["items"]]
        if answer.json()["next_cursor"] is None:
            return ids
        params = {**params, "cursor": answer.json()["next_cursor"]}


async def test_a_search_joins_what_the_store_and_the_server_do(api: Api) -> None:
    wanted = await api.put({"type": "send_mail", "queue": "mail", "payload": {"user": {"id": 42}}})
    other = await api.put({"type": "send_sms", "queue": "sms", "payload": {"user": {"id": 41}}})

    assert await found(api, "queue:mail type:send_* args.user.id:42 state:ready") == [wanted]
    assert await found(api, "queue:mail,sms", params={"sort": "seq"}) == [wanted, other]
    assert await found(api, "send", params={"queue": "sms"}) == [other]
    assert await found(api, wanted) == await found(api, wanted[-12:]) == [wanted]
    assert await found(api, f"{wanted} queue:sms") == await found(api, wanted, params={"queue": "sms"}) == []
    assert await found(api, "state:failed state:ready") == []
    assert (
        await found(api, 'type:"no name"') == await found(api, "queue:mail", params={"state": "failed"}) == []
    )


async def test_a_search_that_means_nothing_is_marked(api: Api) -> None:
    answer = await api("GET", "/api/jobs", params={"q": "type:x state:fialed"})

    assert answer.status_code == 422
    [wrong] = answer.json()["errors"]
    assert (wrong["path"], wrong["at"], wrong["length"]) == ("$.q", 13, 6)
    assert "failed" in wrong["expected"]


async def test_a_list_shows_arguments_in_a_line_and_hides_secrets(api: Api) -> None:
    await api.put({"type": "x", "payload": {"user_id": 7, "password": "hunter2", "text": "a" * 200}})

    [with_args] = (await api("GET", "/api/jobs?args=true")).json()["items"]
    [without] = (await api("GET", "/api/jobs")).json()["items"]

    assert with_args["args"].startswith('user_id=7, password="***", text="aaa')
    assert len(with_args["args"]) == 120
    assert "args" not in without


async def test_a_list_names_causes_and_a_search_finds_them(api: Api) -> None:
    dead = []
    for number in range(3):
        await api.put({"type": "send"})
        dead.append(await api.kill(reason=f"Late: gave up on order {number}"))
    await api.put({"type": "send"})
    await api.kill(reason="Other: gave up")

    causes = {item["id"]: item["cause"] for item in (await api("GET", "/api/jobs")).json()["items"]}

    assert len({causes[job_id] for job_id in dead}) == 1
    assert len(set(causes.values())) == 2
    assert sorted(await found(api, f"cause:{causes[dead[0]]}")) == sorted(dead)


async def test_a_viewer_finds_nothing_that_is_hidden_from_it(tmp_path: Path) -> None:
    file = token_file(tmp_path)
    viewer, operator = make_token(file, "viewer"), make_token(file, "operator")
    api = Api(tokens=tmp_path / "tokens.json")
    body = {"type": "x", "payload": {"password": "hunter2", "name": "ana"}}
    job_id = (await api("POST", "/api/jobs", body, token=operator)).json()["id"]

    assert await found(api, "args.password:hunter2", token=viewer) == []
    assert await found(api, "args.name:ana", token=viewer) == [job_id]
    assert await found(api, "args.password:hunter2", token=operator) == [job_id]
    await api.aclose()


async def test_a_token_for_some_queues_finds_and_counts_only_those(tmp_path: Path) -> None:
    file = token_file(tmp_path)
    admin, narrow = make_token(file, "admin"), make_token(file, "viewer", ("mail", "sms"))
    api = Api(tokens=tmp_path / "tokens.json")
    for queue in ("mail", "theirs", "sms", "theirs"):
        await api("POST", "/api/jobs", {"type": "x", "queue": queue}, token=admin)

    listed = (await api("GET", "/api/jobs", params={"q": "type:x*"}, token=narrow)).json()
    counts = [
        (await api("GET", "/api/jobs/count", params={"q": q}, token=narrow)).json() for q in ("type:x*", "")
    ]

    assert {item["queue"] for item in listed["items"]} == {"mail", "sms"}
    assert listed["looked_at"] == 2
    assert counts == [{"count": 2, "exact": True}] * 2
    await api.aclose()


async def test_a_search_stops_at_its_budget_and_goes_on_from_there(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await api.put({"type": "rare", "payload": {"n": 1}})
    for _ in range(40):
        await api.put({"type": "usual"})
    monkeypatch.setattr(job_walk, "FIRST_LOOK", 4)
    monkeypatch.setattr(job_walk, "WALK_JOBS", 10)

    page = (await api("GET", "/api/jobs?q=args.n:1&limit=2")).json()

    assert (page["items"], page["is_all"]) == ([], False)
    assert 10 <= page["looked_at"] < 40
    assert page["looked_back_to"] is not None
    assert await found(api, "args.n:1", params={"limit": 2}) == [first]


async def test_no_job_is_lost_or_repeated_where_a_page_ends_within_a_look(api: Api) -> None:
    ids = [await api.put({"type": f"t{number % 3}"}) for number in range(30)]
    wanted = [job_id for number, job_id in enumerate(ids) if number % 3 != 1]

    assert await found(api, "type:t0,t2", params={"limit": 7, "sort": "seq"}) == wanted
    assert await found(api, "type:t0,t2", params={"limit": 7}) == wanted[::-1]


async def test_a_list_by_end_has_the_newest_end_first(api: Api) -> None:
    first, second = await api.put({"type": "x", "queue": "a"}), await api.put({"type": "x", "queue": "b"})
    await api.put({"type": "x", "queue": "a"})
    assert [await api.kill("b"), await api.kill("a")] == [second, first]

    for q in ("", "ended:<1h", "type:x*"):
        assert await found(api, q, params={"sort": "-ended", "limit": 1}) == [first, second]
    assert await found(api, "", params={"sort": "ended"}) == [second, first]
    assert await found(api, "ended:>1h", params={"sort": "-ended"}) == []
    assert await found(api, "state:ready", params={"sort": "-ended"}) == []


async def test_a_cursor_of_another_search_is_refused(api: Api) -> None:
    for _ in range(3):
        await api.put({"type": "x"})
    cursor = (await api("GET", "/api/jobs?q=state:ready&limit=1")).json()["next_cursor"]

    answer = await api("GET", "/api/jobs", params={"q": "state:failed", "limit": 1, "cursor": cursor})

    assert answer.status_code == 400


@pytest.mark.parametrize("path", ["/api/jobs?q=type:y*&limit=1", "/api/jobs/count?q=type:x*"])
async def test_a_search_leaves_redis_alone_four_times_as_long_as_it_used_it(
    api: Api, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    driver = await api.harbor.client.adriver()
    for _ in range(12):
        await api.put({"type": "x"})
    looks: list[Query] = []
    pauses: list[float] = []
    whole_find, info = driver.find, await driver.info()

    async def counted_find(query: Query, **options: Any) -> Page:
        looks.append(query)
        return await whole_find(query, **options)

    async def as_redis() -> Any:
        return msgspec.structs.replace(info, driver="redis")

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(job_walk, "FIRST_LOOK", 1)
    monkeypatch.setattr(job_walk, "WALK_SECONDS", 600.0)
    monkeypatch.setattr("taskharbor.web.api.jobs.MAX_PAGE", 4)
    monkeypatch.setattr(driver, "find", counted_find)
    monkeypatch.setattr(driver, "info", as_redis)
    monkeypatch.setattr(api.app.service, "pause", pause)

    await api("GET", path)

    assert len(looks) > 2
    assert len(pauses) == len(looks) - 1  # after every look but the last
    assert all(seconds > 0 for seconds in pauses)


async def test_counts_by_queue_and_state_need_no_walk(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    for queue in ("a", "a", "b"):
        await api.put({"type": "x", "queue": queue})
    await api.kill("a")
    monkeypatch.setattr(job_walk, "WALK_JOBS", 0)

    async def count(q: str) -> Any:
        return (await api("GET", "/api/jobs/count", params={"q": q})).json()

    assert await count("state:ready") == {"count": 2, "exact": True}
    assert await count("queue:a,c state:ready,failed") == {"count": 2, "exact": True}
    assert await count("-queue:a -state:failed") == {"count": 1, "exact": True}


async def test_other_counts_walk_and_stop_at_ten_thousand(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        await api.put({"type": "x", "payload": {"n": number}})
    monkeypatch.setattr("taskharbor.web.api.jobs.MOST_COUNTED", 3)

    few = (await api("GET", "/api/jobs/count?q=args.n:>2")).json()
    many = (await api("GET", "/api/jobs/count?q=args.n:>0")).json()

    assert few == {"count": 2, "exact": True}
    assert many == {"count": 3, "exact": False}


async def test_types_are_known_without_a_look_at_jobs(api: Api) -> None:
    @api.harbor.task(name="send_mail")
    def send_mail() -> None: ...

    assert "send_mail" in (await api("GET", "/api/types")).json()["items"]


async def test_what_may_follow_in_a_search_is_known_without_a_look_at_jobs(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    @api.harbor.task(name="send_mail")
    def send_mail() -> None: ...

    await api.put({"type": "send_mail", "queue": "mail"})
    driver = await api.harbor.client.adriver()
    await driver.report_worker(WorkerReport(worker_id="w-1"), ttl=timedelta(minutes=1))
    monkeypatch.setattr(driver, "find", None)
    words = (await api("GET", "/api/search")).json()

    assert sorted(name.rstrip(":.") for name in words["fields"]) == sorted(FIELDS)
    assert words["states"] == list(STATES)
    assert (words["queues"], words["types"], words["workers"]) == (["mail"], ["send_mail"], ["w-1"])


async def test_a_token_for_some_queues_gets_the_names_of_these(tmp_path: Path) -> None:
    file = token_file(tmp_path)
    admin, mine = make_token(file, "admin"), make_token(file, "viewer", ("mine",))
    api = Api(tokens=tmp_path / "tokens.json")
    for queue in ("mine", "theirs"):
        await api("POST", "/api/jobs", {"type": "t", "queue": queue}, token=admin)
        driver = await api.harbor.client.adriver()
        report = WorkerReport(worker_id=f"w-{queue}", queues=(queue,))
        await driver.report_worker(report, ttl=timedelta(minutes=1))
    words = (await api("GET", "/api/search", token=mine)).json()

    assert (words["queues"], words["types"], words["workers"]) == (["mine"], [], ["w-mine"])
    await api.aclose()
