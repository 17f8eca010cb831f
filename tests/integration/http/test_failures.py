"""Failures over HTTP: causes from the logbook, their jobs, and what people say about them."""

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from taskharbor import Harbor
from taskharbor.drivers.messages import Page, Query
from taskharbor.model.cause import cause_of
from taskharbor.model.clock import micros
from taskharbor.model.log_cells import CauseNumbers, Fire, packed
from taskharbor.model.logbook import CAUSES, FIRES, LogEntry
from taskharbor.model.schedule import Schedule, ticks
from taskharbor.model.settlement import Retry
from taskharbor.testing.clock import SimulatedClock
from taskharbor.web import dead_letters
from taskharbor.web.api import failures as failures_api
from tests.integration.http.api import Api, make_token, token_file

LATE = cause_of("send", "Late: gave up on order 1")
OTHER = cause_of("send", "Other: no luck")
MINUTE = timedelta(minutes=1)


class FailuresApi(Api):
    """A server in simulated time, whose logbook and dead letters the test writes."""

    def __init__(self, **config: Any) -> None:
        self.clock = SimulatedClock()
        super().__init__(Harbor("memory://", clock=self.clock), rate_per_second=0, **config)

    async def failed(
        self,
        cause: Any = LATE,
        *,
        ago: timedelta = MINUTE,
        queue: str = "mail",
        release: str = "r1",
        kills: bool = True,
        token: str | None = None,
        **numbers: int,
    ) -> None:
        at = (self.clock.now() - ago).replace(second=0, microsecond=0)
        counts = {"retried": 0, "dead": 0, **numbers}
        for _ in range(counts["dead"] if kills else 0):
            await self.dead(
                OTHER.title if cause is OTHER else "Late: gave up on order 1", queue=queue, token=token
            )
        row = CauseNumbers(
            cause.id, queue, "send", cause.title, cause.frame, "error", counts["retried"], counts["dead"],
            micros(at), micros(at), "019e", release, release,
        )  # fmt: skip
        await self.write([row], at, f"w-{queue}-{cause.id}")

    async def write(self, rows: list[CauseNumbers], at: datetime, by: str) -> None:
        """One cell of the logbook."""
        entry = LogEntry(book=CAUSES, at=at, by=by, data=packed(rows), until=at + timedelta(days=1))
        driver = await self.harbor.client.adriver()
        await driver.write_log([entry], now=self.clock.now())

    async def dead(
        self, reason: str, payload: Any = None, queue: str = "mail", token: str | None = None
    ) -> str:
        body = {"type": "send", "queue": queue, "payload": payload or {}}
        assert (await self("POST", "/api/jobs", body, token=token)).status_code == 201
        return await self.kill(queue, reason)

    async def causes(self, token: str | None = None, **params: Any) -> list[Any]:
        answer = await self("GET", "/api/failures", params=params, token=token)
        assert answer.status_code == 200, answer.text
        items: list[Any] = answer.json()["items"]
        return items

    async def say(self, verb: str, body: Any = None, code: int = 200) -> Any:
        answer = await self("POST", f"/api/failures/{LATE.id}/{verb}", body)
        assert answer.status_code == code, answer.text
        return answer.json()


@pytest.fixture
async def api() -> AsyncIterator[FailuresApi]:
    found = FailuresApi()
    yield found
    await found.aclose()


async def test_causes_are_added_up_over_queues_and_steps(api: FailuresApi) -> None:
    await api.failed(retried=3, dead=1, ago=10 * MINUTE)
    await api.failed(retried=2, dead=0, queue="push", release="r2")
    await api.failed(OTHER, dead=1)

    first, second = await api.causes(window="1h")

    assert (first["cause"], first["title"], first["type"]) == (LATE.id, LATE.title, "send")
    assert (first["attempts"], first["dead"], first["queues"]) == (6, 1, ["mail", "push"])
    assert (sum(first["per_step"]), len(first["per_step"])) == (6, 60)
    assert (first["release"], first["status"], first["is_new"]) == ("r2", "open", True)
    assert first["first_at"] < first["last_at"]
    assert (second["cause"], second["attempts"]) == (OTHER.id, 1)


async def test_the_first_verdict_knows_of_a_new_cause(api: FailuresApi) -> None:
    await api.failed(dead=1)

    board = (await api("GET", "/api/board")).json()

    assert [need["kind"] for need in board["needs"]] == ["cause"]
    assert board["verdict"]["text"] != "All calm"


async def test_a_window_a_queue_and_a_release_narrow_it(api: FailuresApi) -> None:
    await api.failed(dead=1, ago=timedelta(hours=3))
    await api.failed(OTHER, dead=1, queue="push", release="r2")

    async def seen(**params: Any) -> list[str]:
        return [one["cause"] for one in await api.causes(**params)]

    assert await seen(window="1h") == [OTHER.id]
    assert sorted(await seen(window="6h")) == sorted([LATE.id, OTHER.id])
    assert await seen(window="6h", queue="mail") == await seen(window="6h", release="r1") == [LATE.id]
    assert (await api("GET", "/api/failures?window=2h")).status_code == 422


async def test_a_cause_that_was_seen_a_day_before_is_not_new(api: FailuresApi) -> None:
    await api.failed(dead=1, ago=timedelta(hours=23, minutes=50))
    await api.causes(window="24h")
    api.clock.advance(timedelta(hours=1))
    await api.failed(dead=1)

    [cause] = await api.causes(window="1h")

    assert cause["is_new"] is False


async def test_a_token_for_one_queue_sees_causes_of_that_queue(tmp_path: Path) -> None:
    narrow = make_token(token_file(tmp_path), "viewer", ("mail",))
    admin = make_token(token_file(tmp_path), "admin")
    api = FailuresApi(tokens=tmp_path / "tokens.json")
    await api.failed(dead=2, token=admin)
    await api.failed(dead=5, queue="theirs", ago=2 * MINUTE, token=admin)
    await api.failed(OTHER, dead=1, queue="theirs", token=admin)

    [cause] = await api.causes(token=narrow)
    refused = await api("GET", "/api/failures?queue=theirs", token=narrow)

    assert (cause["dead"], cause["queues"], refused.status_code) == (2, ["mail"], 403)
    await api.aclose()


async def test_an_opened_cause_shows_its_jobs_and_what_they_have_in_common(api: FailuresApi) -> None:
    await api.failed(dead=4, kills=False)
    ids = [
        await api.dead(f"Late: gave up on order {n}", {"template": "welcome", "n": n, "password": "x"})
        for n in range(4)
    ]
    for number in range(10):
        await api.dead("Other: no luck", {"template": "bye", "n": number, "password": "x"})

    opened = (await api("GET", f"/api/failures/{LATE.id}")).json()

    assert [job["id"] for job in opened["jobs"]] == ids[::-1]
    assert opened["dead_now"] == {"count": 4, "exact": True}
    [common] = opened["common"]
    assert (common["what"], common["value"]) == ("args.template", "welcome")
    assert (common["share"], common["share_of_others"]) == (1.0, 0.0)
    assert opened["looked_at"] == 4, "those of other causes are not its own"


async def test_jobs_that_have_not_ended_are_no_comparison(api: FailuresApi) -> None:
    """They may fail for the same cause; and they come and go, so that a page would show and hide by turns."""
    await api.failed(dead=4, kills=False)
    for number in range(4):
        await api.dead(f"Late: gave up on order {number}", {"template": "welcome"})
    for _ in range(20):
        await api.put({"type": "send", "queue": "mail", "payload": {"template": "welcome"}})

    opened = (await api("GET", f"/api/failures/{LATE.id}")).json()

    assert ("args.template", None) in [(one["what"], one["share_of_others"]) for one in opened["common"]]


async def test_jobs_that_died_since_the_last_report_of_a_worker_count_as_failed(api: FailuresApi) -> None:
    await api.failed(dead=2, retried=1, kills=False)
    api.clock.advance(timedelta(hours=20))
    for number in range(4):
        await api.dead(f"Late: gave up on order {number}")

    [listed] = await api.causes()
    in_a_day = (await api("GET", f"/api/failures/{LATE.id}")).json()
    api.clock.advance(timedelta(hours=1))
    await api.failed(dead=1, kills=False)
    lately = (await api("GET", f"/api/failures/{LATE.id}", params={"window": "15m"})).json()

    assert (listed["attempts"], in_a_day["attempts"]) == (4, 4)
    assert in_a_day["outlook"] == "4 attempts failed in 24 hours. 4 jobs have used up their attempts."
    assert lately["outlook"] == "1 attempt failed in 15 minutes. 4 jobs have used up their attempts."


async def test_an_opened_cause_says_when_it_began_and_what_becomes_of_its_jobs(api: FailuresApi) -> None:
    await api.failed(retried=2, dead=1, ago=10 * MINUTE)
    driver = await api.harbor.client.adriver()
    await api.put({"type": "send", "queue": "mail"})
    job = await api.claim("mail")
    again = Retry(job.lease, timedelta(seconds=9), "Late: gave up on order 7", "error")
    await driver.settle([again], now=api.clock.now())

    found = (await api("GET", f"/api/failures/{LATE.id}", params={"window": "1h"})).json()

    assert found["began"].startswith("Began with release `r1`, 10 min ago. In the 7 days before: none.")
    assert found["outlook"] == (
        "3 attempts failed in an hour. 1 of its jobs tries again by itself, the next in 9 s. "
        "1 job has used up its attempts."
    )
    assert found["jobs"][0]["message"] == "gave up on order `1`"


async def test_a_cause_began_with_the_release_that_saw_it_first(api: FailuresApi) -> None:
    await api.failed(dead=1, ago=30 * MINUTE, release="r1")
    await api.failed(dead=1, queue="push", release="r2")

    [within_an_hour] = await api.causes(window="1h")
    [lately] = await api.causes(window="15m")

    assert (within_an_hour["began_with"], within_an_hour["release"]) == ("r1", "r2")
    assert (lately["began_with"], lately["release"]) == ("", "r2")
    assert lately["began"].startswith("New, first seen 30 min ago.")


@pytest.mark.parametrize(("first", "began"), [("r1", "r1"), ("", "")])
async def test_a_cause_whose_releases_share_a_cell_began_with_the_first(
    api: FailuresApi, first: str, began: str
) -> None:
    """A leader merges the cells of all workers; one of an older program does not say who was first."""
    at = (api.clock.now() - 10 * MINUTE).replace(second=0, microsecond=0)
    row = CauseNumbers(
        LATE.id, "mail", "send", LATE.title, LATE.frame, "error", 1, 0, micros(at), micros(at), "019e",
        "r1", first,
    )  # fmt: skip
    row.add(msgspec.structs.replace(row, first_at=row.first_at + 1, last_at=row.last_at + 1, release="r2"))
    await api.write([row], at, "leader")

    [cause] = await api.causes(window="1h")

    assert (cause["began_with"], cause["release"]) == (began, "r2")


async def test_the_walk_for_dead_letters_is_kept_for_two_seconds(api: FailuresApi) -> None:
    await api.failed(dead=1, kills=False)
    await api.dead("Late: gave up on order 7")

    async def dead_now() -> int:
        return int((await api("GET", f"/api/failures/{LATE.id}")).json()["dead_now"]["count"])

    assert await dead_now() == 1
    await api.dead("Late: gave up on order 8")
    assert await dead_now() == 1
    api.clock.advance(timedelta(seconds=2))
    assert await dead_now() == 2


async def test_a_job_that_died_again_after_a_retry_is_dead_once(api: FailuresApi) -> None:
    ids = [await api.dead(f"Late: gave up on order {number}") for number in range(3)]
    for job_id in ids[:2]:
        await api("POST", f"/api/jobs/{job_id}/retry", {})
    await api.kill("mail", "Late: gave up on order 9")
    await api.failed(dead=4, kills=False)

    [cause] = await api.causes()
    board = (await api("GET", "/api/board")).json()

    assert (cause["attempts"], cause["dead"], board["counts"]["failed"]) == (4, 2, 2)
    assert "2 jobs are dead" in board["needs"][0]["detail"]


@pytest.fixture
async def asked(api: FailuresApi, monkeypatch: pytest.MonkeyPatch) -> list[Query]:
    """What the store is asked from now on; each question takes 100 ms."""
    driver, queries = await api.harbor.client.adriver(), list[Query]()
    find = driver.find

    async def noting(query: Query, **options: Any) -> Page:
        queries.append(query)
        api.clock.advance(timedelta(milliseconds=100))
        return await find(query, **options)

    monkeypatch.setattr(driver, "find", noting)
    return queries


async def test_a_look_at_the_dead_reads_no_payloads_and_is_kept(api: FailuresApi, asked: list[Query]) -> None:
    await api.failed(dead=3)

    await api.causes()
    assert [query.payloads for query in asked] == [False]
    api.clock.advance(timedelta(seconds=3.9))
    await api.causes()
    assert len(asked) == 1
    api.clock.advance(timedelta(seconds=1.2))
    await api.causes()
    assert len(asked) == 2


async def test_more_dead_letters_than_a_walk_covers_are_not_walked_through(
    api: FailuresApi, asked: list[Query], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "MOST_LOOKED_AT", 2)
    await api.failed(dead=4, kills=False)
    for number in range(3):
        await api.dead(f"Late: gave up on order {number}")

    [cause] = await api.causes()

    assert (cause["dead"], asked) == (4, [])


async def test_a_walk_that_ran_out_of_time_says_what_a_walk_covers(
    api: FailuresApi, asked: list[Query], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "ONE_PAGE", 1)
    await api.failed(dead=8)

    await api.causes()
    assert len(asked) == 3
    api.clock.advance(timedelta(seconds=50))
    await api.causes()
    assert len(asked) == 3
    api.clock.advance(timedelta(seconds=61))
    await api.causes()
    assert len(asked) == 6


async def test_a_slow_count_leaves_the_walk_its_whole_time(
    api: FailuresApi, asked: list[Query], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "ONE_PAGE", 1)
    await api.failed(dead=7, kills=False)
    for number in range(2):
        await api.dead(f"Late: gave up on order {number}")
    driver = await api.harbor.client.adriver()
    count = driver.count

    async def slowly(**options: Any) -> Any:
        api.clock.advance(timedelta(seconds=1))
        return await count(**options)

    monkeypatch.setattr(driver, "count", slowly)

    [cause] = await api.causes()

    assert (cause["dead"], len(asked) > 1) == (2, True)


async def test_an_opened_cause_without_dead_letters_searches_for_less_than_250_ms(
    api: FailuresApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every walk has more to look at than it has time for: one job a page, 10 ms each."""
    await api.failed(retried=5)
    for _ in range(30):
        await api.dead("Other: no luck")
    await api.causes()  # the look at all dead letters is not what is measured
    driver, began = await api.harbor.client.adriver(), api.clock.monotonic()
    find = driver.find

    async def slowly(query: Query, **options: Any) -> Page:
        api.clock.advance(timedelta(milliseconds=10))
        return await find(msgspec.structs.replace(query, limit=1), **options)

    monkeypatch.setattr(driver, "find", slowly)

    opened = (await api("GET", f"/api/failures/{LATE.id}")).json()

    assert opened["dead_now"] == {"count": 0, "exact": False}
    assert opened["outlook"] == "5 attempts failed in 24 hours."
    assert api.clock.monotonic() - began <= 0.25


async def test_of_many_dead_letters_a_hundred_are_kept_and_all_are_counted(
    api: FailuresApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    await api.failed(dead=230, kills=False)
    for number in range(230):
        await api.dead(f"Late: gave up on order {number}")
    kept: list[int] = []
    find_common = failures_api._common

    async def noting(request: Any, jobs: Any, others: Any) -> Any:
        kept.append(len(jobs))
        return await find_common(request, jobs, others)

    monkeypatch.setattr(failures_api, "_common", noting)

    opened = (await api("GET", f"/api/failures/{LATE.id}")).json()

    assert (kept, opened["dead_now"]) == ([100], {"count": 230, "exact": True})


async def test_without_causes_nobody_looks_for_the_dead(api: FailuresApi, asked: list[Query]) -> None:
    await api.dead("Late: gave up on order 7")

    assert (await api.causes(), asked) == ([], [])


async def test_a_cause_is_muted_snoozed_and_opened_again(api: FailuresApi) -> None:
    await api.failed(dead=1)

    async def status() -> str:
        [cause] = await api.causes()
        return str(cause["status"])

    assert (await api.say("mute"))["status"] == await status() == "muted"
    assert (await api.say("open"))["status"] == await status() == "open"
    until = (api.clock.now() + timedelta(hours=1)).isoformat()
    assert (await api.say("snooze", {"until": until}))["status"] == await status() == "snoozed"
    api.clock.advance(timedelta(hours=2))
    assert await status() == "open"


async def test_a_snooze_until_the_next_release_ends_with_it(api: FailuresApi) -> None:
    await api.failed(dead=1, ago=2 * MINUTE, release="r1")
    await api.say("snooze", {"until": "release"})
    [before] = await api.causes()

    await api.failed(dead=1, release="r2")
    api.clock.advance(timedelta(seconds=1))  # equal questions within a second share an answer
    [after] = await api.causes()

    assert (before["status"], after["status"]) == ("snoozed", "open")


@pytest.mark.parametrize("until", ["tomorrow", "2020-01-01T00:00:00Z", "2040-01-01T00:00:00", ""])
async def test_a_snooze_ends_in_the_future(api: FailuresApi, until: str) -> None:
    await api.failed(dead=1)

    await api.say("snooze", {"until": until}, 422)


async def test_an_unknown_cause_is_not_found(api: FailuresApi) -> None:
    assert (await api("GET", f"/api/failures/{LATE.id}")).status_code == 404
    await api.say("mute", code=404)


async def test_a_new_cause_with_dead_letters_needs_a_person_until_it_is_muted(api: FailuresApi) -> None:
    await api.failed(dead=1)

    async def needs() -> list[str]:
        for _ in range(2):  # the first asks for causes, the second has them
            await api("GET", "/api/board")
            if api.app.service.background:
                await asyncio.wait(api.app.service.background)
            api.clock.advance(timedelta(seconds=40))
        return [need["text"] for need in (await api("GET", "/api/board")).json()["needs"]]

    assert any("send" in text for text in await needs())
    await api.say("mute")
    assert await needs() == []


async def test_schedules_show_their_last_runs_with_the_states_of_their_jobs(api: FailuresApi) -> None:
    await api("PUT", "/api/schedules/nightly", {"job": {"type": "x"}, "every_s": 3600})
    dead = await api.dead("Late: no luck")
    driver = await api.harbor.client.adriver()
    [entry] = await driver.schedules(now=api.clock.now())
    rule: Schedule = entry.schedule
    first = next(ticks(rule, api.clock.now() - timedelta(hours=3)))
    for number, job_id in enumerate((dead, "019e4b7f-0000-7000-8000-000000000000")):
        cell = LogEntry(
            book=FIRES, at=first + number * timedelta(hours=1), by="nightly", data=packed([Fire(job_id)]),
            until=api.clock.now() + timedelta(days=7),
        )  # fmt: skip
        await driver.write_log([cell], now=api.clock.now())

    [schedule] = (await api("GET", "/api/schedules")).json()["items"]

    assert [(run["job"], run["state"]) for run in schedule["runs"]] == [
        ("019e4b7f-0000-7000-8000-000000000000", None),
        (dead, "failed"),
    ]
