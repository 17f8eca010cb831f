"""The event stream: a snapshot first, then what changes, from any store, until somebody ends it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from taskharbor import Harbor, JobRequest
from taskharbor.errors import DriverUnavailable
from taskharbor.model.presence import WorkerReport
from taskharbor.model.settlement import Ack, Fail
from taskharbor.testing.servers import fresh_postgres_url, fresh_redis_url
from taskharbor.web import feed
from tests.integration.http.api import GENEROUS_SECONDS, Api, make_token, stream, token_file

STORES: dict[str, Callable[[Path], str]] = {
    "memory": lambda _: "memory://",
    "sqlite": lambda folder: f"sqlite:///{folder / 'jobs.db'}?durability=normal",
    "postgres": lambda _: fresh_postgres_url(),
    "redis": lambda _: fresh_redis_url(),
}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "POLL_SECONDS", 0.02)


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    found = Api()
    yield found
    await found.aclose()


@pytest.mark.parametrize("store", sorted(STORES))
async def test_counts_and_followed_jobs_are_streamed_from_any_store(store: str, tmp_path: Path) -> None:
    harbor = Harbor(STORES[store](tmp_path))
    async with await harbor.driver.another().open_unmigrated() as driver:
        await driver.migrate()
    api = Api(harbor)
    job_id = await api.put({"type": "x"})
    other = await api.put({"type": "x", "queue": "other"})

    async with stream(api, f"jobs={job_id}") as events:
        _, kind, snapshot = await events.next()
        job = await api.claim()
        _, _, running = await events.next("job")
        driver = await api.harbor.client.adriver()
        await driver.settle([Ack(job.lease)])
        _, _, over = await events.next("job")
        await api("POST", f"/api/jobs/{other}/cancel")
        changed = await events.next("queue")
        while changed[2]["name"] != "other":
            changed = await events.next("queue")

    assert kind == "snapshot"
    assert events.headers["content-type"].startswith("text/event-stream")
    assert {one["name"]: one["ready"] for one in snapshot["queues"]} == {"default": 1, "other": 1}
    assert [one["id"] for one in snapshot["jobs"]] == [job_id]
    assert (running["state"], over["state"]) == ("running", "completed")
    assert "payload" not in running
    assert changed[2]["cancelled"] == 1
    await api.aclose()


async def test_a_reader_that_comes_back_gets_what_was_missed_and_nothing_twice(api: Api) -> None:
    job_id = await api.put({"type": "x"})
    async with stream(api, f"jobs={job_id}") as events:
        await events.next()
        await api.claim()
        last_id, _, _ = await events.next("job")

    await api("POST", f"/api/jobs/{job_id}/cancel")
    async with stream(api, f"jobs={job_id}", {"Last-Event-ID": last_id}) as again:
        seen_id, kind, data = await again.next("snapshot", "job")

    assert (kind, data["cancel_requested"]) == ("job", True)
    assert int(seen_id.rpartition("-")[2]) > int(last_id.rpartition("-")[2])


@pytest.mark.parametrize("last_id", ["nonsense", "00000000-7", "", "-", "9" * 400])
async def test_an_id_of_another_life_gets_a_snapshot(api: Api, last_id: str) -> None:
    async with stream(api, headers={"Last-Event-ID": last_id}) as events:
        assert (await events.next())[1] == "snapshot"


async def test_a_stream_shows_only_the_queues_it_asked_for(api: Api) -> None:
    async with stream(api, "queues=mail") as events:
        await events.next()
        await api.put({"type": "x"})
        await api.put({"type": "x", "queue": "mail"})
        assert (await events.next())[2]["name"] == "mail"


async def test_a_narrowed_token_hears_of_its_queues_only(tmp_path: Path) -> None:
    token = make_token(token_file(tmp_path), "viewer", ("mail",))
    api = Api(tokens=tmp_path / "tokens.json")
    foreign = await api.harbor.client._aenqueue_job(api.harbor.client._new_job(request("other")))
    async with stream(api, f"jobs={foreign.id}", {"Authorization": f"Bearer {token}"}) as events:
        _, _, snapshot = await events.next()
        await api.harbor.client.acancel(foreign.id)
        await api.harbor.client._aenqueue_job(api.harbor.client._new_job(request("mail")))
        _, kind, data = await events.next()

    assert (snapshot["queues"], snapshot["jobs"]) == ([], [])
    assert (kind, data["name"]) == ("queue", "mail")
    await api.aclose()


async def test_a_revoked_token_loses_its_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskharbor.web.api.events._CHECK_SECONDS", 0.02)
    monkeypatch.setattr("taskharbor.web.tokens.RECHECK_SECONDS", 0.02)
    file = token_file(tmp_path)
    token = make_token(file, "viewer")
    api = Api(tokens=tmp_path / "tokens.json")
    async with stream(api, headers={"Authorization": f"Bearer {token}"}) as events:
        await events.next()
        file.revoke(token.split("_")[1])
        await events.ended()
    await api.aclose()


async def test_streams_end_when_the_server_stops(api: Api) -> None:
    async with stream(api) as events:
        await events.next()
        api.app.stop()
        await events.ended()


async def test_one_stream_too_many_is_asked_to_come_back() -> None:
    api = Api(max_streams=1)
    async with stream(api) as first:
        await first.next()
        refused = await api("GET", "/api/events")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
    async with stream(api) as second:
        assert (await second.next())[1] == "snapshot"
    await api.aclose()


async def test_one_token_cannot_take_every_stream(tmp_path: Path) -> None:
    file = token_file(tmp_path)
    greedy, modest = (make_token(file, "viewer") for _ in range(2))
    api = Api(tokens=tmp_path / "tokens.json", max_streams=3, max_streams_per_token=1)
    async with stream(api, headers={"Authorization": f"Bearer {greedy}"}) as first:
        await first.next()
        assert (await api("GET", "/api/events", token=greedy)).status_code == 503
        async with stream(api, headers={"Authorization": f"Bearer {modest}"}) as other:
            assert (await other.next())[1] == "snapshot"
    async with stream(api, headers={"Authorization": f"Bearer {greedy}"}) as again:
        assert (await again.next())[1] == "snapshot"
    await api.aclose()


@pytest.mark.parametrize("config", [{"max_wakeup_streams": 1}, {"max_wakeup_streams_per_token": 1}])
async def test_streams_of_hints_have_places_too(config: dict[str, int]) -> None:
    api = Api(None, **config)
    listen = {"queues": ["mail"], "worker_id": "w-1"}
    first = asyncio.ensure_future(api("POST", "/api/driver/wakeups", listen))
    async with asyncio.timeout(GENEROUS_SECONDS):
        while not api.app.service.wakeup_streams._taken:
            await asyncio.sleep(0.01)
        refused = await api("POST", "/api/driver/wakeups", listen)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        api.app.stop()
        assert (await first).status_code == 200
    assert not api.app.service.wakeup_streams._taken, "its place is free again"
    await api.aclose()


async def test_a_reader_that_does_not_keep_up_is_dropped(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "MAX_UNREAD", 3)
    async with stream(api) as events:
        await events.next()
        # Without an await in between the stream cannot read: that is what slowness looks like from here.
        for number in range(10):
            api.app.service.feed._happened("queue", {"name": f"q{number}"}, queue=f"q{number}")
        assert (await events.next("overflow"))[1] == "overflow"
        await events.ended()


async def test_a_store_that_goes_away_is_reported_and_the_stream_goes_on(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stream(api) as events:
        await events.next()
        driver = await api.harbor.client.adriver()
        whole = driver.do_queues

        async def away(*_: object) -> object:
            raise DriverUnavailable("away")

        monkeypatch.setattr(driver, "do_queues", away)
        assert (await events.next("notice"))[2]["text"].startswith("the store does not answer")
        monkeypatch.setattr(driver, "do_queues", whole)
        await api.put({"type": "x"})
        assert (await events.next("queue"))[2]["ready"] == 1


@pytest.mark.parametrize("query", ["jobs=x", "queues=a%20b", "topics=jobs", "jobs=" + ",".join(["a"] * 3000)])
async def test_a_stream_that_makes_no_sense_is_rejected(api: Api, query: str) -> None:
    assert (await api("GET", f"/api/events?{query}")).status_code == 422


def request(queue: str) -> JobRequest:
    return JobRequest(type="x", queue=queue)


async def test_a_followed_job_that_is_deleted_is_reported_as_gone(api: Api) -> None:
    job_id = await api.put({"type": "x"})
    await api.kill()
    async with stream(api, f"jobs={job_id}") as events:
        await events.next("snapshot")
        await api("DELETE", f"/api/dlq/{job_id}")
        assert (await events.next("job_gone"))[2] == {"id": job_id}


async def test_the_head_of_a_stream_is_not_answered_because_it_would_not_end(api: Api) -> None:
    answer = await api("HEAD", "/api/events")

    assert (answer.status_code, answer.headers["allow"]) == (405, "GET")


# ------------------------------------------------------------------ topics


async def test_a_board_is_sent_whole_first_and_then_its_changes(api: Api) -> None:
    await api.put({"type": "x"})
    async with stream(api, "topics=board,workers,failures") as events:
        _, kind, snapshot = await events.next()
        await api.kill()
        seen: dict[str, Any] = {}
        while "queues" not in seen:
            _, _, delta = await events.next("board")
            seen |= delta
        _, _, failures = await events.next("failures")
        driver = await api.harbor.client.adriver()
        await driver.report_worker(WorkerReport(worker_id="w-1", concurrency=3))
        while "slots" not in seen:
            seen |= (await events.next("board"))[2]
        await events.next("workers")

    assert kind == "snapshot"
    assert len(snapshot["stream"]) == 16
    assert "queues" not in snapshot
    assert snapshot["board"]["counts"]["ready"] == 1
    assert snapshot["board"]["verdict"]["text"] == "All calm"
    assert failures == {"failed": 1}
    assert seen["counts"]["failed"] == 1
    assert [row["name"] for row in seen["queues"]] == ["default"]
    assert seen["slots"] == {"any": {"busy": 0, "total": 3}}
    assert {"at", "age_s"} <= set(seen)


async def test_a_stream_of_topics_has_no_other_events(api: Api) -> None:
    async with stream(api, "topics=bulk") as events:
        await events.next()
        await api.put({"type": "x"})
        api.app.service.feed.publish("workers", {})
        api.app.service.feed.publish("bulk", {"id": "of others"}, audience=frozenset({"mail"}))
        api.app.service.feed.publish("bulk", {"id": "b-1"}, audience=None)

        assert (await events.next())[1:] == ("bulk", {"id": "b-1"})


async def test_a_narrowed_token_gets_a_board_of_its_own(tmp_path: Path) -> None:
    token = make_token(token_file(tmp_path), "viewer", ("mail",))
    api = Api(tokens=tmp_path / "tokens.json")
    client = api.harbor.client
    await client._aenqueue_job(client._new_job(request("other")))
    async with stream(api, "topics=board", {"Authorization": f"Bearer {token}"}) as events:
        _, _, snapshot = await events.next()
        await client._aenqueue_job(client._new_job(request("other")))
        await client._aenqueue_job(client._new_job(request("mail")))
        seen: dict[str, Any] = {}
        while "queues" not in seen:
            seen |= (await events.next("board"))[2]

    assert snapshot["board"]["queues"] == []
    assert ([row["name"] for row in seen["queues"]], seen["counts"]["ready"]) == (["mail"], 1)
    await api.aclose()


async def test_an_unknown_topic_is_refused(api: Api) -> None:
    answer = await api("GET", "/api/events?topics=board,weather")

    assert (answer.status_code, "'weather'" in answer.json()["detail"]) == (422, True)


async def test_a_page_that_scrolls_follows_other_jobs_on_the_same_stream(api: Api) -> None:
    first, second = await api.put({"type": "x"}), await api.put({"type": "x"})
    async with stream(api, f"topics=bulk&jobs={first}") as events:
        _, _, snapshot = await events.next()
        path = f"/api/events/{snapshot['stream']}/follow"
        answer = await api("POST", path, {"jobs": [second]})
        await api("POST", f"/api/jobs/{first}/cancel")
        await api("POST", f"/api/jobs/{second}/cancel")
        _, _, data = await events.next("job")

    assert [one["id"] for one in snapshot["jobs"]] == [first]
    assert [(one["id"], one["state"]) for one in answer.json()["jobs"]] == [(second, "ready")]
    assert (data["id"], data["state"]) == (second, "cancelled")


async def test_a_changed_job_names_the_worker_that_ran_it_last_as_a_list_does(api: Api) -> None:
    job_id = await api.put({"type": "x"})
    async with stream(api, f"topics=bulk&jobs={job_id}") as events:
        await events.next()
        job = await api.claim()
        await events.next("job")
        driver = await api.harbor.client.adriver()
        await driver.settle([Fail(job.lease, "no", "error")])
        _, _, failed = await events.next("job")

    [listed] = (await api("GET", "/api/jobs")).json()["items"]
    assert (failed["state"], failed["worker_id"]) == ("failed", job.worker_id)
    assert (failed["worker_id"], failed["cause"]) == (listed["worker_id"], listed["cause"])


async def test_nobody_steers_the_stream_of_another(tmp_path: Path) -> None:
    file = token_file(tmp_path)
    mine, other = make_token(file, "viewer"), make_token(file, "viewer")
    api = Api(tokens=tmp_path / "tokens.json")
    async with stream(api, "topics=bulk", {"Authorization": f"Bearer {mine}"}) as events:
        path = f"/api/events/{(await events.next())[2]['stream']}/follow"
        refused = await api("POST", path, {"jobs": []}, token=other)
        too_many = await api(
            "POST", path, {"jobs": [f"{n:08x}-0000-7000-8000-000000000000" for n in range(101)]}, token=mine
        )
        allowed = await api("POST", path, {"jobs": []}, token=mine)
    closed = await api("POST", path, {"jobs": []}, token=mine)

    assert [one.status_code for one in (refused, too_many, allowed, closed)] == [404, 422, 200, 404]
    await api.aclose()


async def test_who_comes_back_learns_the_id_of_the_new_stream(api: Api) -> None:
    async with stream(api, "topics=board") as events:
        last_id, _, snapshot = await events.next()
    async with stream(api, "topics=board", {"Last-Event-ID": last_id}) as again:
        _, kind, resumed = await again.next()

    assert kind == "resumed"
    assert resumed["stream"] != snapshot["stream"]


async def test_a_store_that_goes_away_is_on_the_board(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away() -> Any:
        raise DriverUnavailable("gone")

    await api.put({"type": "x"})
    async with stream(api, "topics=board") as events:
        await events.next()
        monkeypatch.setattr(api.app.service.board, "_driver", away)
        seen: dict[str, Any] = {}
        while not seen.get("is_away"):
            seen |= (await events.next("board"))[2]
        answer = (await api("GET", "/api/board")).json()

    assert seen["needs"][0]["text"] == answer["needs"][0]["text"] == "The store does not answer"
    assert answer["counts"]["ready"] == 1
    assert (await api("GET", "/api/queues")).status_code == 503


async def test_an_action_on_many_jobs_is_followed_to_its_end(api: Api) -> None:
    job_id = await api.put({"type": "x"})
    async with stream(api, "topics=bulk") as events:
        await events.next()
        asked = {"action": "cancel", "ids": [job_id], "expect": 1}
        action = (await api("POST", "/api/bulk", asked)).json()
        _, _, held = await events.next("bulk")
        await api("POST", f"/api/bulk/{action['id']}/now")
        data = held
        while data["state"] != "done":
            _, _, data = await events.next("bulk")

    assert (held["id"], held["state"], held["done"]) == (action["id"], "held", 0)
    assert (data["done"], data["of"]) == (1, 1)
    assert data == (await api("GET", f"/api/bulk/{action['id']}")).json()


async def test_who_comes_back_gets_the_newest_board_though_others_listened_meanwhile(
    tmp_path: Path,
) -> None:
    file = token_file(tmp_path)
    whole, narrow = make_token(file, "viewer"), make_token(file, "viewer", ("mail",))
    api = Api(tokens=tmp_path / "tokens.json")
    client = api.harbor.client
    mine = {"Authorization": f"Bearer {narrow}"}
    async with stream(api, "topics=board", {"Authorization": f"Bearer {whole}"}) as others:
        await others.next()
        async with stream(api, "topics=board", mine) as events:
            last_id, _, _ = await events.next()
        await client._aenqueue_job(client._new_job(request("mail")))
        seen: dict[str, Any] = {}
        while "queues" not in seen:  # the change is on its way to the others
            seen |= (await others.next("board"))[2]
        async with stream(api, "topics=board", {**mine, "Last-Event-ID": last_id}) as again:
            assert (await again.next())[1] == "resumed"
            data: dict[str, Any] = {}
            while "queues" not in data:
                data |= (await again.next("board"))[2]

    assert [(row["name"], row["ready"]) for row in data["queues"]] == [("mail", 1)]
    await api.aclose()
