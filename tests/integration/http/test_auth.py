"""Who may do what: tokens, roles, queues, and what the audit log says about it."""

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import HTTPConnection

from taskharbor import Harbor
from taskharbor.drivers.wire import Role
from taskharbor.errors import ConfigurationError
from taskharbor.model.clock import SystemClock
from taskharbor.model.job import NewJob
from taskharbor.testing.clock import SimulatedClock
from taskharbor.web.app import OPERATIONS, create_app
from taskharbor.web.auth import Principal
from taskharbor.web.config import ServerConfig
from tests.integration.http.api import GENEROUS_SECONDS, Api, make_token, token_file

UNKNOWN = "00000000-0000-7000-8000-000000000000"


class Guarded(Api):
    """A server with a token of every role."""

    def __init__(self, folder: Path, **config: Any) -> None:
        self.file = token_file(folder)
        self.tokens: dict[str, str] = {
            role: make_token(self.file, role)
            for role in ("viewer", "producer", "worker", "operator", "admin")
        }
        super().__init__(tokens=folder / "tokens.json", **config)

    async def as_(self, role: str, method: str, path: str, body: Any = None, **options: Any) -> Any:
        return await self(method, path, body, token=self.tokens[role], **options)


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Guarded]:
    found = Guarded(tmp_path)
    yield found
    await found.aclose()


# ------------------------------------------------------------------ tokens


async def test_without_a_token_everything_but_probes_is_refused_alike(api: Guarded) -> None:
    job_id = (await api.as_("admin", "POST", "/api/jobs", {"type": "x"})).json()["id"]

    answers = [await api("GET", f"/api/jobs/{one}") for one in (job_id, UNKNOWN)]
    bodies = [{**answer.json(), "instance": "", "request_id": ""} for answer in answers]

    assert [answer.status_code for answer in answers] == [401, 401]
    assert bodies[0] == bodies[1]
    assert answers[0].headers["www-authenticate"].startswith("Bearer")
    for path in ("/livez", "/readyz", "/api/openapi.json"):
        assert (await api("GET", path)).status_code == 200


@pytest.mark.parametrize(
    "credentials",
    [
        "Bearer nonsense",
        "Bearer taskharbor_000000000000_" + "0" * 64,
        "Basic dXNlcjpwYXNz",
        "Bearer eyJhbGciOiJub25lIn0.eyJyb2xlIjoiYWRtaW4ifQ.",
        "Bearer ",
        "",
    ],
)
async def test_a_token_that_is_none_is_refused(api: Guarded, credentials: str) -> None:
    assert (await api("GET", "/api/jobs", headers={"Authorization": credentials})).status_code == 401


async def test_the_secret_of_one_token_does_not_open_the_door_of_another(api: Guarded) -> None:
    mixed = api.tokens["viewer"][:24] + api.tokens["admin"][24:]

    assert (await api("GET", "/api/jobs", token=mixed)).status_code == 401


async def test_a_token_may_come_in_the_header_that_keda_uses(api: Guarded) -> None:
    answer = await api("GET", "/api/queues/q/scale", headers={"X-API-Key": api.tokens["viewer"]})

    assert answer.status_code == 200


async def test_a_token_in_the_query_string_does_not_count_and_is_warned_about(
    api: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    token = api.tokens["admin"]

    answer = await api("GET", "/api/jobs", params={"token": token})

    records = [one for one in caplog.records if one.name.startswith("taskharbor")]
    assert answer.status_code == 401
    assert any("query string" in one.getMessage() for one in records)
    assert token not in json.dumps([vars(one) for one in records], default=str)
    assert token not in answer.text


async def test_a_revoked_token_is_refused_within_five_seconds(tmp_path: Path) -> None:
    clock = SimulatedClock()
    harbor = Harbor("memory://", clock=clock)
    file = token_file(tmp_path)
    token = make_token(file, "viewer")
    api = Api(harbor, tokens=tmp_path / "tokens.json")
    assert (await api("GET", "/api/jobs", token=token)).status_code == 200

    file.revoke(token.split("_")[1])
    clock.advance(timedelta(seconds=5))

    assert (await api("GET", "/api/jobs", token=token)).status_code == 401
    await api.aclose()


async def test_an_expired_token_is_refused(tmp_path: Path) -> None:
    file, now = token_file(tmp_path), SystemClock().now()
    over = make_token(file, "admin", expires_at=now - timedelta(microseconds=1))
    good = make_token(file, "admin", expires_at=now + timedelta(hours=1))
    api = Api(tokens=tmp_path / "tokens.json")

    assert (await api("GET", "/api/jobs", token=over)).status_code == 401
    assert (await api("GET", "/api/jobs", token=good)).status_code == 200
    await api.aclose()


async def test_a_token_file_that_breaks_or_goes_lets_nobody_in(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = SimulatedClock()
    token = make_token(token_file(tmp_path), "admin")
    path = tmp_path / "tokens.json"
    good = path.read_bytes()
    api = Api(Harbor("memory://", clock=clock), tokens=path)
    codes = []
    for content in (good, b"{", good, None, good):
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content)
        clock.advance(timedelta(seconds=5))
        codes.append((await api("GET", "/api/jobs", token=token)).status_code)

    assert codes == [200, 401, 200, 401, 200]
    assert any(one.levelno == logging.ERROR for one in caplog.records)
    await api.aclose()


async def test_the_file_holds_no_secret(api: Guarded, tmp_path: Path) -> None:
    content = (tmp_path / "tokens.json").read_text()

    assert all(token.split("_")[2] not in content for token in api.tokens.values())
    assert (tmp_path / "tokens.json").stat().st_mode & 0o077 == 0


# ------------------------------------------------------------------ without tokens


async def test_without_tokens_only_this_machine_is_served() -> None:
    api = Api()
    async with api.caller("192.0.2.7") as stranger, api.caller("::1") as neighbour:
        assert (await stranger.get("/api/jobs")).status_code == 401
        assert (await stranger.post("/api/jobs", json={"type": "x"})).status_code == 401
        assert (await stranger.get("/livez")).status_code == 200
        assert (await neighbour.get("/api/jobs")).status_code == 200
    await api.aclose()


# ------------------------------------------------------------------ roles

ROLES: tuple[Role, ...] = ("viewer", "producer", "worker", "operator", "admin")
ALLOWED: dict[tuple[str, str], set[str]] = {
    ("GET", "/api/jobs"): {"viewer", "worker", "operator", "admin"},
    ("GET", "/api/jobs/count"): {"viewer", "worker", "operator", "admin"},
    ("GET", "/api/types"): {"viewer", "worker", "operator", "admin"},
    ("GET", "/api/search"): {"viewer", "worker", "operator", "admin"},
    ("GET", f"/api/jobs/{UNKNOWN}"): set(ROLES),
    ("GET", f"/api/jobs/{UNKNOWN}/why"): set(ROLES),
    ("GET", f"/api/jobs/{UNKNOWN}/result"): set(ROLES),
    ("POST", "/api/jobs"): {"producer", "operator", "admin"},
    ("POST", "/api/jobs/batch"): {"producer", "operator", "admin"},
    ("POST", f"/api/jobs/{UNKNOWN}/cancel"): {"operator", "admin"},
    ("DELETE", f"/api/jobs/{UNKNOWN}/cancel"): {"operator", "admin"},
    ("POST", f"/api/jobs/{UNKNOWN}/retry"): {"operator", "admin"},
    ("POST", "/api/workflows"): {"producer", "operator", "admin"},
    ("GET", "/api/workflows"): {"viewer", "worker", "operator", "admin"},
    ("GET", f"/api/workflows/{UNKNOWN}"): set(ROLES),
    ("GET", f"/api/workflows/{UNKNOWN}/graph"): set(ROLES),
    ("GET", f"/api/workflows/{UNKNOWN}/children"): set(ROLES),
    ("POST", f"/api/workflows/{UNKNOWN}/cancel"): {"operator", "admin"},
    ("POST", f"/api/workflows/{UNKNOWN}/retry"): {"operator", "admin"},
    ("POST", f"/api/jobs/{UNKNOWN}/events/{{name}}"): {"producer", "operator", "admin"},
    ("GET", "/api/dlq"): {"viewer", "worker", "operator", "admin"},
    ("POST", "/api/dlq/retry"): {"operator", "admin"},
    ("DELETE", f"/api/dlq/{UNKNOWN}"): {"operator", "admin"},
    ("POST", "/api/bulk"): {"operator", "admin"},
    ("GET", "/api/bulk/x"): {"viewer", "worker", "operator", "admin"},
    ("DELETE", "/api/bulk/x"): {"operator", "admin"},
    ("POST", "/api/bulk/x/now"): {"operator", "admin"},
    ("GET", "/api/failures"): {"viewer", "worker", "operator", "admin"},
    ("GET", "/api/failures/x"): {"viewer", "worker", "operator", "admin"},
    ("POST", "/api/failures/x/mute"): {"operator", "admin"},
    ("POST", "/api/failures/x/snooze"): {"operator", "admin"},
    ("POST", "/api/failures/x/open"): {"operator", "admin"},
    ("GET", "/api/audit"): {"operator", "admin"},
    ("POST", "/api/audit/x/undo"): {"operator", "admin"},
    ("GET", "/api/tokens"): {"admin"},
    ("POST", "/api/tokens"): {"admin"},
    ("DELETE", "/api/tokens/x"): {"admin"},
    ("GET", "/api/queues"): {"viewer", "worker", "operator", "admin"},
    ("GET", "/api/queues/q"): {"viewer", "worker", "operator", "admin"},
    ("GET", "/api/queues/q/scale"): {"viewer", "worker", "operator", "admin"},
    ("PATCH", "/api/queues/q"): {"operator", "admin"},
    ("POST", "/api/queues/q/pause"): {"operator", "admin"},
    ("POST", "/api/queues/q/resume"): {"operator", "admin"},
    ("POST", "/api/queues/q/cancel"): {"producer", "operator", "admin"},
    ("GET", "/api/session"): set(ROLES),
    ("GET", "/api/board"): {"viewer", "worker", "operator", "admin"},
    ("GET", "/api/series"): {"viewer", "worker", "operator", "admin"},
    ("GET", "/api/store"): {"viewer", "worker", "operator", "admin"},
    ("POST", "/api/events/x/follow"): {"viewer", "worker", "operator", "admin"},
    ("GET", "/api/workers"): {"viewer", "worker", "operator", "admin"},
    ("GET", "/api/stats"): {"viewer", "worker", "operator", "admin"},
    ("GET", "/api/schedules"): {"viewer", "worker", "operator", "admin"},
    ("POST", "/api/schedules/preview"): {"viewer", "worker", "operator", "admin"},
    ("PUT", "/api/schedules/s"): {"operator", "admin"},
    ("DELETE", "/api/schedules/s"): {"operator", "admin"},
    ("POST", "/api/schedules/s/pause"): {"operator", "admin"},
    ("POST", "/api/schedules/s/resume"): {"operator", "admin"},
    ("POST", "/api/schedules/s/run"): {"operator", "admin"},
}


@pytest.mark.parametrize(("method", "path"), ALLOWED)
async def test_each_role_may_do_its_own_and_no_more(api: Guarded, method: str, path: str) -> None:
    answers = {role: (await api.as_(role, method, path)).status_code for role in ROLES}

    assert {role for role, status in answers.items() if status != 403} == ALLOWED[(method, path)]
    assert 401 not in answers.values()
    assert all(status < 500 for status in answers.values())


NAMES = {
    "queues": "queue",
    "schedules": "name",
    "bulk": "bulk",
    "events": "stream",
    "audit": "request_id",
    "failures": "cause",
    "tokens": "token",
}


def _named(found: re.Match[str]) -> str:
    return f"/{found[1]}/{{{NAMES[found[1]]}}}"


def test_the_table_of_roles_has_every_operation() -> None:
    listed = {(method, re.sub(rf"/({'|'.join(NAMES)})/[qsx]\b", _named, path)) for method, path in ALLOWED}
    listed = {(method, path.replace(UNKNOWN, "{id}")) for method, path in listed}
    there = {(one.method, one.path) for one in OPERATIONS if not one.access_rule.is_open}
    assert there - listed == {("GET", "/api/events")}


async def test_viewers_see_no_secrets(api: Guarded) -> None:
    body = {"type": "x", "payload": {"user": 1, "password": "hunter2"}, "headers": {"authorization": "abc"}}
    job_id = (await api.as_("producer", "POST", "/api/jobs", body)).json()["id"]
    path = f"/api/jobs/{job_id}"

    viewer = (await api.as_("viewer", "GET", path)).json()
    operator = (await api.as_("operator", "GET", path)).json()
    careful = (await api.as_("operator", "GET", f"{path}?redact=true")).json()

    assert viewer["payload"] == careful["payload"] == {"user": 1, "password": "***"}
    assert viewer["headers"] == {"authorization": "***"}
    assert operator["payload"] == {"user": 1, "password": "hunter2"}


async def test_what_cannot_be_read_is_hidden_from_viewers_whole(api: Guarded) -> None:
    driver = await api.harbor.client.adriver()
    job = NewJob(id=UNKNOWN, type="x", payload=b"\x80password", headers={"taskharbor-codec": "own"})
    await driver.enqueue([job])

    viewer = (await api.as_("viewer", "GET", f"/api/jobs/{UNKNOWN}")).json()
    admin = (await api.as_("admin", "GET", f"/api/jobs/{UNKNOWN}")).json()

    assert (viewer["payload"], "payload_base64" in viewer) == ("***", False)
    assert admin["payload_base64"] == "gHBhc3N3b3Jk"


# ------------------------------------------------------------------ queues


async def test_a_narrowed_token_sees_and_touches_its_queues_only(api: Guarded) -> None:
    mine, ours = (
        make_token(api.file, "operator", ("mail",)),
        make_token(api.file, "operator", ("mail", "sms")),
    )
    ids = {
        queue: (await api.as_("admin", "POST", "/api/jobs", {"type": "x", "queue": queue})).json()["id"]
        for queue in ("mail", "sms", "other")
    }
    put = {"job": {"type": "x", "queue": "other"}, "every_s": 60}
    await api.as_("admin", "PUT", "/api/schedules/foreign", put)
    api.app.service.authenticator._tokens.load()  # type: ignore[union-attr]

    seen = [
        {item["queue"] for item in (await api("GET", "/api/jobs", token=one)).json()["items"]}
        for one in (mine, ours)
    ]
    assert seen == [{"mail"}, {"mail", "sms"}]
    assert [item["name"] for item in (await api("GET", "/api/queues", token=mine)).json()["items"]] == [
        "mail"
    ]
    assert (await api("GET", "/api/schedules", token=mine)).json()["items"] == []
    assert (await api("GET", "/api/stats", token=mine)).json()["counts"]["ready"] == 1
    refused = {
        ("GET", "/api/jobs?queue=other"): 403,
        ("GET", f"/api/jobs/{ids['other']}"): 404,
        ("POST", f"/api/jobs/{ids['other']}/cancel"): 404,
        ("POST", "/api/queues/other/pause"): 403,
        ("POST", "/api/queues/*/pause"): 403,
        ("GET", "/api/queues/*"): 403,
        ("POST", "/api/schedules/foreign/run"): 404,
        ("GET", "/api/events?queues=other"): 403,
    }
    for (method, path), status in refused.items():
        assert (await api(method, path, token=mine)).status_code == status, path
    bodies: tuple[tuple[str, Any], ...] = (
        ("/api/jobs", {"type": "x", "queue": "other"}),
        ("/api/jobs", {"type": "x"}),
        ("/api/jobs/batch", {"jobs": [{"type": "x", "queue": "mail"}, {"type": "x", "queue": "other"}]}),
    )
    for path, body in bodies:
        assert (await api("POST", path, body, token=mine)).status_code == 403
    steal = {"job": {"type": "x", "queue": "mail"}, "every_s": 60}
    assert (await api("PUT", "/api/schedules/foreign", steal, token=mine)).status_code == 403
    assert (await api("POST", "/api/dlq/retry", {"ids": [ids["other"]]}, token=mine)).json()["items"][0][
        "result"
    ] == "not_found"
    assert (await api("POST", f"/api/jobs/{ids['mail']}/cancel", token=mine)).status_code == 200


# ------------------------------------------------------------------ rates and quotas


async def test_a_token_that_calls_too_often_learns_when_to_come_back_and_others_are_not_slowed(
    tmp_path: Path,
) -> None:
    clock = SimulatedClock()
    file = token_file(tmp_path)
    eager, calm = make_token(file, "viewer"), make_token(file, "viewer")
    api = Api(Harbor("memory://", clock=clock), tokens=tmp_path / "tokens.json", rate_per_second=5.0)

    codes = [(await api("GET", "/api/workers", token=eager)).status_code for _ in range(11)]
    last = await api("GET", "/api/workers", token=eager)

    assert codes == [200] * 10 + [429]
    assert int(last.headers["retry-after"]) == 1
    assert (await api("GET", "/api/workers", token=calm)).status_code == 200
    clock.advance(timedelta(seconds=1))
    assert [(await api("GET", "/api/workers", token=eager)).status_code for _ in range(6)] == [200] * 5 + [
        429
    ]
    await api.aclose()


async def test_a_program_on_the_driver_has_a_rate_of_its_own_and_attempts_have_none(tmp_path: Path) -> None:
    file, clock = token_file(tmp_path), SimulatedClock()
    token = make_token(file, "admin")
    api = Api(
        Harbor("memory://", clock=clock),
        tokens=tmp_path / "tokens.json",
        rate_per_second=1.0,
        driver_rate_per_second=2.0,
    )

    async def codes(method: str, path: str, times: int, body: Any = None) -> list[int]:
        return [(await api(method, path, body, token=token)).status_code for _ in range(times)]

    assert await codes("GET", "/api/workers", 3) == [200, 200, 429]
    assert await codes("POST", "/api/driver/workers", 5, {}) == [200, 200, 200, 200, 429]
    assert await codes("POST", "/api/driver/promote", 20, {}) == [200] * 20
    refused = await api("POST", "/api/driver/workers", {}, token=token)
    assert refused.headers["ratelimit-policy"] == '"driver";q=2;w=1'
    await api.aclose()


def test_a_token_may_call_a_hundred_times_a_second_by_default() -> None:
    assert (ServerConfig().rate_per_second, ServerConfig().driver_rate_per_second) == (100, 1000)


async def test_a_token_cannot_invent_queues_without_end(tmp_path: Path) -> None:
    api = Guarded(tmp_path, max_queues_per_token=3)
    codes = [
        (await api.as_("producer", "POST", "/api/jobs", {"type": "x", "queue": f"q{number}"})).status_code
        for number in (1, 2, 3, 4, 1)
    ]

    assert codes == [201, 201, 201, 429, 201]
    await api.aclose()


# ------------------------------------------------------------------ audit


def audited(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [vars(one) for one in caplog.records if one.name == "taskharbor.audit"]


async def test_changes_and_refusals_are_audited_and_looking_is_not(
    api: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "taskharbor.audit")
    job_id = (await api.as_("producer", "POST", "/api/jobs", {"type": "x"})).json()["id"]
    await api.as_("viewer", "GET", "/api/jobs")
    await api.as_("viewer", "POST", f"/api/jobs/{job_id}/cancel")
    await api("POST", f"/api/jobs/{job_id}/cancel")
    await api.as_("operator", "POST", f"/api/jobs/{job_id}/cancel")
    await api.as_("operator", "POST", f"/api/jobs/{job_id}/cancel")
    await asyncio.sleep(0)

    entries = [(one["operation"], one["status"], one["role"], one["levelname"]) for one in audited(caplog)]
    assert entries == [
        ("enqueue", 201, "producer", "INFO"),
        ("cancel", 403, "viewer", "WARNING"),
        ("cancel", 401, None, "WARNING"),
        ("cancel", 200, "operator", "INFO"),
        ("cancel", 409, "operator", "INFO"),
    ]
    first = audited(caplog)[0]
    assert first["job_id"] == job_id
    assert first["principal"] == api.tokens["producer"].split("_")[1]
    assert first["client"] == "127.0.0.1"


async def test_calls_that_end_together_share_a_record_that_names_each(
    api: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "taskharbor.audit")
    answers = await asyncio.gather(
        *(api.as_("producer", "POST", "/api/jobs", {"type": "x", "payload": n}) for n in range(20))
    )
    await asyncio.sleep(0)

    ids = {answer.json()["id"] for answer in answers}
    job_ids = [call["job_id"] for one in audited(caplog) for call in one.get("calls", [one])]
    assert (len(job_ids), set(job_ids)) == (20, ids)


async def test_a_flood_of_refusals_is_logged_in_few_short_records_and_every_call_is_counted(
    api: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "taskharbor.audit")
    paths = ("/api/jobs", "/api/queues", "/api/workers", "/api/stats", "/api/schedules")
    answers = [await api("GET", path) for _ in range(40) for path in paths]
    assert [(one["status"], one["request_id"]) for one in audited(caplog)] == [
        (401, answers[0].headers["x-request-id"])
    ]
    api.app.service.audit.close()

    [_, rest] = audited(caplog)
    assert rest["refused"] == 199
    assert [call["request_id"] for call in rest["calls"]] == [
        answer.headers["x-request-id"] for answer in answers[1:11]
    ]
    assert {call["operation"] for call in rest["calls"]} >= {"list_jobs", "list_queues"}


async def test_refusals_that_follow_are_logged_after_a_while_without_another_call(
    api: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "taskharbor.audit")
    for _ in range(3):
        await api("GET", "/api/jobs")
    async with asyncio.timeout(GENEROUS_SECONDS):
        while sum(len(one.get("calls", [one])) for one in audited(caplog)) < 3:
            await asyncio.sleep(0.01)


async def test_refusals_that_go_on_are_logged_ever_more_seldom(
    api: Guarded, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taskharbor.web.audit.FIRST_PAUSE_SECONDS", 3600.0)
    caplog.set_level(logging.INFO, "taskharbor.audit")
    log, pauses = api.app.service.audit, []
    monkeypatch.setattr(log, "_log_later", lambda caller, seconds: pauses.append(seconds))
    await api("GET", "/api/jobs")
    monkeypatch.setattr(log._refused["127.0.0.1"], "pause", 1.0)
    for _ in range(8):
        await api("GET", "/api/jobs")
        log._log_refusals("127.0.0.1")
    log._log_refusals("127.0.0.1")

    assert pauses[1:] == [2, 4, 8, 16, 32, 60, 60, 60]
    assert len(audited(caplog)) == 9
    assert not log._refused, "after a quiet while the next one is logged at once again"


async def test_refusals_from_very_many_addresses_share_a_record(
    api: Guarded, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taskharbor.web.audit.MOST_CALLERS", 3)
    caplog.set_level(logging.INFO, "taskharbor.audit")
    for number in range(20):
        async with api.caller(f"192.0.2.{number}") as caller:
            await caller.get("/api/jobs")
    api.app.service.audit.close()

    entries = audited(caplog)
    assert [one["client"] for one in entries[:4]] == [
        "192.0.2.0",
        "192.0.2.1",
        "192.0.2.2",
        "other addresses",
    ]
    assert (len(entries), entries[4]["refused"]) == (5, 16)


async def test_what_anybody_can_cause_is_not_logged_each_time(
    api: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(5):
        await api("GET", "/api/jobs", params={"token": api.tokens["admin"]})

    assert sum("query string" in one.getMessage() for one in caplog.records) == 1


# ------------------------------------------------------------------ a host's own users


async def test_a_host_application_may_say_who_calls() -> None:
    async def users(connection: HTTPConnection) -> Principal | None:
        name = connection.headers.get("x-user")
        return None if name is None else Principal(name=name, role="producer", queues=frozenset({"mail"}))

    api = Api()
    api.app = create_app(api.harbor, authenticate=users)
    async with api.caller("192.0.2.7") as caller:
        mail = {"type": "x", "queue": "mail"}
        assert (await caller.post("/api/jobs", json=mail)).status_code == 401
        assert (await caller.post("/api/jobs", json=mail, headers={"X-User": "ann"})).status_code == 201
        assert (
            await caller.post("/api/jobs", json={"type": "x"}, headers={"X-User": "ann"})
        ).status_code == 403
    await api.aclose()


async def test_somebody_who_is_known_and_has_no_rights_is_forbidden_and_audited_by_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    api = Api()
    api.app = create_app(api.harbor, authenticate=lambda _: Principal(name="ann", role=None))
    async with api.caller("192.0.2.7") as caller:
        answers = [await caller.get("/api/jobs"), await caller.post("/api/driver/hello", json={})]
    await api.aclose()

    assert [answer.status_code for answer in answers] == [403, 403]
    assert {one["principal"] for one in audited(caplog)} == {"ann"}


async def test_no_access_is_forbidden_and_not_asked_to_log_in() -> None:
    api = Api()
    api.app = create_app(api.harbor, authenticate=lambda _: Principal.NO_ACCESS)
    async with api.caller("192.0.2.7") as caller:
        answer = await caller.get("/api/board")
    await api.aclose()

    assert (answer.status_code, "www-authenticate" in answer.headers) == (403, False)
    assert answer.json()["detail"].endswith("this caller has no rights here")


# ------------------------------------------------------------------ no way to authenticate callers


def test_an_application_that_nobody_guards_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="local_callers_are_admin=True"):
        create_app(Harbor("memory://"))
    with pytest.raises(ConfigurationError, match="no way to authenticate callers"):
        create_app(Harbor("memory://"), ServerConfig())


async def test_a_caller_without_an_address_is_not_taken_for_a_local_one() -> None:
    api, statuses = Api(), list[int]()

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        statuses.append(message.get("status", 0))

    scope = {"type": "http", "method": "GET", "path": "/api/jobs", "query_string": b""}
    for client in (None, ("", 0), ("unix:", 0)):
        await api.app({**scope, "headers": [(b"host", b"localhost")], "client": client}, receive, send)
    await api.aclose()

    assert statuses[::2] == [401] * 3


# ------------------------------------------------------------------ what could be read in two ways


@pytest.mark.parametrize("name", ["Authorization", "X-API-Key", "Idempotency-Key", "Content-Type", "Origin"])
async def test_a_header_that_decides_something_may_be_sent_once(api: Guarded, name: str) -> None:
    credentials = [(name, f"Bearer {api.tokens['viewer']}"), (name, f"Bearer {api.tokens['admin']}")]
    answer = await api._client.get("/api/jobs", headers=credentials)

    assert answer.status_code == 400
    assert "twice" in answer.json()["detail"]
