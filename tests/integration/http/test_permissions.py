"""The one table of rights, held against what the server does: every route, verb, role and limit."""

import asyncio
import base64
import json
import logging
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from taskharbor import Harbor
from taskharbor.drivers import wire
from taskharbor.drivers.messages import Claim, Resolution
from taskharbor.drivers.wire import VERBS, Role
from taskharbor.model.job import NewJob
from taskharbor.model.presence import Sample, WorkerReport
from taskharbor.model.queue import QueueSettings
from taskharbor.model.schedule import Schedule
from taskharbor.model.settlement import Ack
from taskharbor.testing.clock import SimulatedClock
from taskharbor.web.app import OPERATIONS, create_app
from taskharbor.web.auth import GRANTS, Principal
from taskharbor.web.endpoint import Operation, endpoints_of
from taskharbor.web.permissions import PERMISSIONS, QueueScope, documented
from taskharbor.web.queue_scope import queues_named
from taskharbor.web.reply import json_answer
from tests.integration.http.api import GENEROUS_SECONDS, Api, make_token, token_file

PAGE = Path(__file__).parents[3] / "docs/operations/security.md"
ROLES: tuple[Role, ...] = ("viewer", "producer", "worker", "operator", "admin")
SECOND = timedelta(seconds=1)
MINE, THEIRS = "01900000-0000-7000-8000-000000000001", "01900000-0000-7000-8000-000000000002"
SECRET = "hunter2-correct-horse"
CALLED = sorted(set(VERBS) - {"wakeups"})


def arguments_of(verb: str, queue: str = "mail", job_id: str = MINE) -> dict[str, Any]:
    """One sound call of each verb; a new verb needs a line here."""
    claim = Claim(queues=(queue,), worker_id="w-new")
    template = NewJob(id="", type="t", queue=queue)
    every: dict[str, dict[str, Any]] = {
        "hello": {},
        "info": {},
        "wakeups": {"queues": [queue], "worker_id": "w-new"},
        "pending_migrations": {},
        "migrate": {},
        "enqueue": {"jobs": [NewJob(id="01900000-0000-7000-8000-00000000000f", type="t", queue=queue)]},
        "ring": {"queues": [queue]},
        "reserve": {"claim": claim},
        "extend_leases": {"leases": [], "lease_for": 30 * SECOND},
        "settle": {"settlements": []},
        "note": {"notes": []},
        "resolve": {"items": [Resolution(id=job_id)]},
        "exchange": {"settlements": [], "claim": claim},
        "reclaim": {},
        "promote": {},
        "prune": {},
        "cancel": {"ids": [job_id]},
        "cancel_waiting": {"queue": queue, "key": b"k"},
        "requeue": {"ids": [job_id]},
        "delete": {"ids": [job_id]},
        "configure_queue": {"settings": QueueSettings(queue=queue, max_running=3)},
        "speculate": {"job_id": job_id},
        "get": {"ids": [job_id]},
        "find": {"query": {"queue": queue}},
        "count": {"queues": [queue]},
        "queues": {},
        "report_worker": {"report": WorkerReport(worker_id="w-new", queues=(queue,)), "ttl": 30 * SECOND},
        "forget_worker": {"worker_id": f"w-{queue}"},
        "workers": {},
        "types": {},
        "hold_role": {"role": "leader", "holder": "w-new", "ttl": 30 * SECOND},
        "release_role": {"role": "leader", "holder": "w-theirs"},
        "put_schedule": {"schedule": Schedule(name=f"new-{queue}", template=template, every=60 * SECOND)},
        "advance_schedule": {"name": f"every-{queue}", "tick": "2026-11-15T00:00:00Z"},
        "delete_schedule": {"name": f"every-{queue}"},
        "schedules": {},
        "write_log": {"entries": [], "instead_of": []},
        "read_log": {"book": "kit", "since": "2026-11-15T00:00:00Z", "until": "2026-11-16T00:00:00Z"},
    }
    found: dict[str, Any] = msgspec.json.decode(wire.encode(every[verb]))
    return found


class RightsApi(Api):
    """A harbor of two queues, `mail` and `theirs`, each with a job, a schedule, a worker and settings."""

    def __init__(self, folder: Path, **config: Any) -> None:
        self.file = token_file(folder)
        self.tokens: dict[str, str] = {role: make_token(self.file, role) for role in ROLES}
        self.narrow = {role: make_token(self.file, role, ("mail",)) for role in ROLES}
        super().__init__(tokens=folder / "tokens.json", metrics=True, rate_per_second=0, **config)

    async def fill(self) -> None:
        driver = await self.harbor.client.adriver()
        secret = json.dumps({"password": SECRET}).encode()
        for queue, job_id in (("mail", MINE), ("theirs", THEIRS)):
            job = NewJob(
                id=job_id, type=f"type-{queue}", queue=queue, payload=secret, headers={"api_key": SECRET}
            )
            await driver.enqueue([job])
            [held] = (await driver.reserve(Claim(queues=(queue,), worker_id=f"w-{queue}"))).jobs
            await driver.settle([Ack(held.lease, secret)])
            await driver.put_schedule(Schedule(name=f"every-{queue}", template=job, every=60 * SECOND))
            await driver.report_worker(
                WorkerReport(worker_id=f"w-{queue}", queues=(queue,), labels={"token": SECRET}, host=queue),
                [Sample(f"type-{queue}", SECOND)],
            )
            await driver.configure_queue(QueueSettings(queue=queue, max_running=7))
        shared = WorkerReport(
            worker_id="w-both", queues=("mail", "theirs"), running=(THEIRS,), host="theirs-1", pid=99
        )
        await driver.report_worker(shared)
        await driver.hold_role("leader", "w-theirs", timedelta(minutes=5))

    async def verb(self, verb: str, token: str, arguments: dict[str, Any] | None = None) -> Any:
        body = arguments_of(verb) if arguments is None else msgspec.json.decode(wire.encode(arguments))
        return await self("POST", f"/api/driver/{verb}", body, token=token)


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[RightsApi]:
    found = RightsApi(tmp_path)
    await found.fill()
    yield found
    await found.aclose()


# ------------------------------------------------------------------ the table


async def test_every_operation_has_a_row_and_every_row_an_operation(api: RightsApi) -> None:
    assert api.app.service.metrics
    routes = {one.name for one in (*OPERATIONS, api.app.service.metrics.operation())}
    routes |= {"openapi", "home", "ui", "ui_file"}

    assert set(PERMISSIONS) == routes | {f"driver.{verb}" for verb in VERBS}


async def test_what_has_no_row_is_refused_to_everybody(api: RightsApi) -> None:
    async def handler(call: Any) -> Any:
        return json_answer("done")

    forgotten = Operation(method="GET", path="/forgotten", name="forgotten", handler=handler, summary="")
    api.app._at_path |= endpoints_of(api.app.service, [forgotten])

    answers = [await api("GET", "/forgotten", token=token) for token in api.tokens.values()]

    assert [answer.status_code for answer in answers] == [403] * len(ROLES)


def test_the_table_in_the_documentation_is_this_one() -> None:
    assert documented() in PAGE.read_text(), "paste what `python -m taskharbor.web.permissions` prints"


@pytest.mark.parametrize("verb", CALLED)
async def test_a_verb_is_open_to_its_roles_and_to_no_other(api: RightsApi, verb: str) -> None:
    allowed = PERMISSIONS[f"driver.{verb}"].roles
    for role in ROLES:
        status = (await api.verb(verb, api.tokens[role])).status_code
        may = any(permission in GRANTS[role] for permission in allowed)
        assert (status == 403) != may, (role, status)


# ------------------------------------------------------------------ what viewers see


def named(path: str, job_id: str, queue: str) -> str:
    """A path that names things of this queue; bulk actions, causes, changes and tokens are not there."""
    return path.format(
        id=job_id,
        queue=queue,
        name=f"every-{queue}",
        bulk="b-0",
        stream="s-0",
        cause="0" * 16,
        request_id="r-0",
        token="0" * 12,
    )


IS_MISSING = {named(path, MINE, "mail") for path in ("/api/bulk/{bulk}", "/api/failures/{cause}")}
NOT_FOR_VIEWERS = {"/api/tokens", "/api/audit"}
OF_EVERY_QUEUE = {"/metrics", "/api/driver/read_log", *NOT_FOR_VIEWERS}


def looks() -> list[tuple[str, str]]:
    paths = {
        named(one.path, MINE, "mail")
        for one in OPERATIONS
        if one.method == "GET" and one.media_type == "application/json"
    }
    verbs = [verb for verb in CALLED if not VERBS[verb].is_change]
    return [*(("GET", path) for path in sorted(paths)), *(("POST", f"/api/driver/{verb}") for verb in verbs)]


@pytest.mark.parametrize(("method", "path"), looks())
async def test_no_viewer_sees_a_secret_anywhere(api: RightsApi, method: str, path: str) -> None:
    verb = path.rpartition("/")[2]
    body = None if method == "GET" else arguments_of(verb)

    answer = await api(method, path, body, token=api.tokens["viewer"])

    assert answer.status_code == (404 if path in IS_MISSING else 403 if path in NOT_FOR_VIEWERS else 200)
    assert SECRET not in answer.text
    hidden = json.dumps({"password": SECRET}).encode()
    assert base64.b64encode(hidden).decode() not in answer.text


async def test_the_secrets_of_that_test_are_there_for_others(api: RightsApi) -> None:
    for verb in ("get", "schedules", "workers"):
        assert SECRET in (await api.verb(verb, api.tokens["admin"])).text


async def test_where_the_store_is_concerns_operators_of_all_queues(tmp_path: Path) -> None:
    api = RightsApi(tmp_path, harbor=Harbor(f"sqlite:///{tmp_path}/jobs.db"))
    seen = {
        name: (await api.verb("info", token)).json()
        for name, token in (*api.tokens.items(), ("narrow", api.narrow["operator"]))
    }
    assert {name for name, info in seen.items() if info["location"] or info["details"]} == {
        "operator",
        "admin",
    }
    await api.aclose()


# ------------------------------------------------------------------ tokens for some queues

OF_OTHERS = ("theirs", "type-theirs", "every-theirs", THEIRS)


@pytest.mark.parametrize(("method", "path"), [*looks(), ("GET", "/metrics")])
async def test_a_token_for_one_queue_sees_nothing_of_another(api: RightsApi, method: str, path: str) -> None:
    verb = path.rpartition("/")[2]
    body = None if method == "GET" else arguments_of(verb)
    whole: dict[str, Any] | None = (
        None if verb not in ("find", "count") else {"query": {}} if verb == "find" else {}
    )

    for sent in (body, whole):
        answer = await api(method, path, sent, token=api.narrow["admin"])
        allowed = (404,) if path in IS_MISSING else (403,) if path in OF_EVERY_QUEUE else (200, 415, 422)
        assert answer.status_code in allowed
        assert not [word for word in OF_OTHERS if word in answer.text]


@pytest.mark.parametrize("verb", CALLED)
async def test_a_token_for_one_queue_may_do_what_the_table_says(api: RightsApi, verb: str) -> None:
    scope = PERMISSIONS[f"driver.{verb}"].scope
    request, foreign = VERBS[verb].request, arguments_of(verb, "theirs", THEIRS)

    own = await api.verb(verb, api.narrow["admin"])
    other = await api.verb(verb, api.narrow["admin"], foreign)

    assert (own.status_code == 403) == (scope is QueueScope.REFUSED), own.text
    names_a_queue = "theirs" in queues_named(request, wire.read_request(verb, wire.encode(foreign)))
    if names_a_queue or scope is QueueScope.REFUSED:
        assert other.status_code == 403
    else:
        assert "type-theirs" not in other.text
    kept = {entry.schedule.name for entry in await (await api.harbor.client.adriver()).schedules()}
    workers = {one.report.worker_id for one in await (await api.harbor.client.adriver()).workers()}
    assert "every-theirs" in kept
    assert "w-theirs" in workers


BODIES: dict[str, Any] = {
    "put_schedule": {"job": {"type": "x", "queue": "mail"}, "every_s": 60},
    "configure_queue": {"paused": True},
    "follow": {"jobs": [THEIRS]},
}


def changes() -> list[tuple[str, str, str]]:
    """Every route that changes one thing, here one of another queue."""
    return [
        (
            one.name,
            one.method,
            named(one.path, THEIRS, "theirs"),
        )
        for one in OPERATIONS
        if one.method != "GET" and "{" in one.path
    ]


@pytest.mark.parametrize(("name", "method", "path"), changes())
async def test_no_route_changes_anything_of_another_queue(
    api: RightsApi, name: str, method: str, path: str
) -> None:
    driver = await api.harbor.client.adriver()
    before = [await driver.get([THEIRS]), await driver.queues(), await driver.schedules()]

    answer = await api(method, path, BODIES.get(name), token=api.narrow["admin"])

    assert answer.status_code in (403, 404), answer.text
    assert [await driver.get([THEIRS]), await driver.queues(), await driver.schedules()] == before


async def test_a_shared_worker_is_seen_without_what_it_does_for_others(api: RightsApi) -> None:
    token = api.narrow["viewer"]
    by_verb = {one["report"]["worker_id"]: one["report"] for one in (await api.verb("workers", token)).json()}
    by_route = {one["id"]: one for one in (await api("GET", "/api/workers", token=token)).json()["items"]}

    assert set(by_verb) == set(by_route) == {"w-mail", "w-both"}
    for seen in (by_verb["w-both"], by_route["w-both"]):
        assert (seen["queues"], seen["running"], seen["host"], seen["pid"]) == (["mail"], [], "", 0)


async def test_nobody_works_under_the_name_of_a_worker_of_other_queues(api: RightsApi) -> None:
    token = api.narrow["worker"]
    stolen: dict[str, dict[str, Any]] = {
        "report_worker": {"report": WorkerReport(worker_id="w-theirs", queues=("mail",)), "ttl": 30 * SECOND},
        "reserve": {"claim": Claim(queues=("mail",), worker_id="w-theirs")},
        "exchange": {"settlements": [], "claim": Claim(queues=("mail",), worker_id="w-both")},
        "wakeups": {"queues": ["mail"], "worker_id": "w-theirs"},
    }
    for verb, arguments in stolen.items():
        assert (await api.verb(verb, token, arguments)).status_code == 403, verb
    assert (await api.verb("forget_worker", token, {"worker_id": "w-theirs"})).json() is False
    assert (await api.verb("forget_worker", token, {"worker_id": "w-mail"})).json() is True
    everywhere = {"report": WorkerReport(worker_id="w-new"), "ttl": 30 * SECOND}
    assert (await api.verb("report_worker", token, everywhere)).status_code == 403


async def test_nobody_for_some_queues_takes_or_gives_up_a_role(api: RightsApi) -> None:
    driver = await api.harbor.client.adriver()
    before = await driver.hold_role("leader", "w-else", SECOND)

    assert (await api.verb("release_role", api.narrow["worker"])).json() is False
    held = (await api.verb("hold_role", api.narrow["worker"])).json()

    assert held["is_mine"] is False
    assert (await driver.hold_role("leader", "w-else", SECOND)).holder == before.holder == "w-theirs"


async def test_failures_cannot_be_sent_to_the_queue_of_another(api: RightsApi) -> None:
    token = api.narrow["operator"]
    by_route = await api("PATCH", "/api/queues/mail", {"fail_queue": "theirs"}, token=token)
    by_verb = await api.verb(
        "configure_queue", token, {"settings": QueueSettings(queue="mail", fail_queue="theirs")}
    )
    own = await api("PATCH", "/api/queues/mail", {"fail_queue": "mail"}, token=token)

    assert (by_route.status_code, by_verb.status_code, own.status_code) == (403, 403, 200)


# ------------------------------------------------------------------ keys of others


async def test_an_idempotency_key_does_not_lead_to_the_job_of_another_producer(api: RightsApi) -> None:
    mine, other = api.tokens["producer"], make_token(api.file, "producer")
    operator = api.tokens["operator"]
    api.app.service.authenticator._tokens.load()  # type: ignore[union-attr]
    body = {"type": "pay", "queue": "mail", "payload": {"card": 1}, "idempotency_key": "order-7"}
    job_id = (await api("POST", "/api/jobs", body, token=mine)).json()["id"]
    guess = {**body, "payload": {}}

    again = await api("POST", "/api/jobs", body, token=mine)
    alone = await api("POST", "/api/jobs", guess, token=other)
    batch = await api("POST", "/api/jobs/batch", {"jobs": [guess]}, token=other)
    new = NewJob(id=THEIRS[:-1] + "9", type="pay", queue="mail", payload=b"{}", idempotency_key=b"order-7")
    verb = await api.verb("enqueue", other, {"jobs": [new]})
    seen = await api("POST", "/api/jobs", guess, token=operator)

    assert (again.status_code, again.json()["id"]) == (200, job_id)
    assert alone.status_code == 409
    assert (batch.json()["items"][0]["result"], verb.json()[0]["result"]) == ("duplicate", "duplicate")
    assert verb.json()[0]["id"] == new.id
    assert not [answer for answer in (alone, batch, verb) if job_id in answer.text + str(answer.headers)]
    assert seen.json()["id"] == job_id, "who may list jobs could find it anyway"


async def test_an_id_of_another_queue_says_nothing_about_its_job(api: RightsApi) -> None:
    sent = {"jobs": [NewJob(id=THEIRS, type="type-theirs", queue="mail")]}

    [answer] = (await api.verb("enqueue", api.narrow["operator"], sent)).json()
    [whole] = (await api.verb("enqueue", api.tokens["operator"], sent)).json()

    assert (answer["result"], answer["version"]) == ("duplicate", 0)
    assert whole["version"] > 0


# ------------------------------------------------------------------ audit


async def test_who_forgets_a_worker_or_gives_up_a_role_is_in_the_audit_log(
    api: RightsApi, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "taskharbor.audit")
    token = api.tokens["worker"]
    await api.verb("forget_worker", token, {"worker_id": "w-theirs"})
    await api.verb("release_role", token)
    await asyncio.sleep(0)

    entries = [vars(one) for one in caplog.records if one.name == "taskharbor.audit"]
    assert [one["operation"] for one in entries] == ["driver.forget_worker", "driver.release_role"]
    assert (entries[0]["worker"], entries[1]["harbor_role"], entries[1]["holder"]) == (
        "w-theirs",
        "leader",
        "w-theirs",
    )
    assert {one["principal"] for one in entries} == {token.split("_")[1]}


@pytest.mark.parametrize("verb", CALLED)
async def test_what_the_table_says_is_audited(
    api: RightsApi, verb: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "taskharbor.audit")
    await api.verb(verb, api.tokens["admin"])
    await asyncio.sleep(0)

    audited = {vars(one)["operation"] for one in caplog.records if one.name == "taskharbor.audit"}
    assert audited == ({f"driver.{verb}"} if PERMISSIONS[f"driver.{verb}"].is_audited else set())


def routes_of_own_things() -> list[tuple[str, str, str]]:
    """Every route that changes something, here of the queue `mail`."""
    return [
        (one.name, one.method, named(one.path, MINE, "mail")) for one in OPERATIONS if one.method != "GET"
    ]


@pytest.mark.parametrize(("name", "method", "path"), routes_of_own_things())
async def test_what_a_route_changes_is_audited_as_the_table_says(
    api: RightsApi, name: str, method: str, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "taskharbor.audit")
    answer = await api(method, path, BODIES.get(name), token=api.tokens["admin"])
    await asyncio.sleep(0)

    audited = {vars(one)["operation"] for one in caplog.records if one.name == "taskharbor.audit"}
    assert audited == ({name} if PERMISSIONS[name].is_audited else set()), answer.text


# ------------------------------------------------------------------ asked again


def test_every_row_that_is_checked_again_has_its_test() -> None:
    """`events` and `bulk` have theirs in test_events.py and test_bulk.py, the others are here."""
    again = {name for name, rule in PERMISSIONS.items() if rule.is_rechecked}
    assert again == {"result", "events", "bulk", "driver.wakeups"}


class Revoked(RightsApi):
    """An API on a simulated clock whose tokens are revoked while calls run."""

    def __init__(self, folder: Path) -> None:
        self.clock = SimulatedClock()
        super().__init__(folder, harbor=Harbor("memory://", clock=self.clock))

    def revoke(self, token: str) -> None:
        self.file.revoke(token.split("_")[1])
        self.clock.advance(timedelta(seconds=5))


async def until_listening(api: RightsApi) -> None:
    """Until the stream listens to the store, and a moment more for its first line."""
    driver: Any = await api.harbor.client.adriver()
    async with asyncio.timeout(GENEROUS_SECONDS):
        while not driver._store.subscriptions._all:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)


async def test_a_long_wait_for_a_result_ends_with_its_token(tmp_path: Path) -> None:
    api = Revoked(tmp_path)
    await (await api.harbor.client.adriver()).enqueue([NewJob(id=MINE, type="t", queue="mail")])
    token = api.tokens["viewer"]
    waiting = asyncio.ensure_future(api("GET", f"/api/jobs/{MINE}/result?wait_s=60", token=token))
    await asyncio.sleep(0.05)
    api.revoke(token)
    async with asyncio.timeout(GENEROUS_SECONDS):
        while not waiting.done():
            api.clock.advance(timedelta(milliseconds=100))
            await asyncio.sleep(0.01)

    assert waiting.result().status_code == 401
    await api.aclose()


async def test_a_stream_of_hints_ends_with_its_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskharbor.web.driver_wakeups.CHECK_SECONDS", 0.02)
    api = Revoked(tmp_path)
    token = api.tokens["worker"]
    stream = asyncio.ensure_future(api.verb("wakeups", token, {"queues": ["mail"], "worker_id": "w-new"}))
    await until_listening(api)
    assert not stream.done()
    api.revoke(token)
    await (await api.harbor.client.adriver()).enqueue([NewJob(id=MINE, type="t", queue="mail")])
    async with asyncio.timeout(GENEROUS_SECONDS):
        answer = await stream

    assert [json.loads(line)["queue"] for line in answer.text.splitlines() if line] == ["mail"]
    await api.aclose()


async def test_a_stream_of_hints_does_not_show_cancels_in_other_queues(api: RightsApi) -> None:
    driver = await api.harbor.client.adriver()
    await driver.forget_worker("w-theirs")  # its report has lapsed, and its job still runs
    ids = [f"01900000-0000-7000-8000-00000000000{number}" for number in (3, 4)]
    await driver.enqueue([NewJob(id=job_id, type="t", queue="theirs") for job_id in ids])
    before, after = (await driver.reserve(Claim(queues=("theirs",), worker_id="w-theirs", limit=2))).jobs
    await driver.cancel([before.id])
    stream = asyncio.ensure_future(
        api.verb("wakeups", api.narrow["worker"], {"queues": ["mail"], "worker_id": "w-theirs"})
    )
    await until_listening(api)
    await driver.cancel([after.id])
    await asyncio.sleep(0.1)
    api.app.stop()
    async with asyncio.timeout(GENEROUS_SECONDS):
        answer = await stream

    assert '"mail"' in answer.text
    assert not [job_id for job_id in ids if job_id in answer.text]


async def test_a_hosts_own_hook_is_asked_again_but_not_at_every_breath() -> None:
    clock, asked, is_known = SimulatedClock(), [0], [True]

    def hook(_: Any) -> Principal | None:
        asked[0] += 1
        return Principal(name="ann", role="viewer") if is_known[0] else None

    api = Api(Harbor("memory://", clock=clock))
    api.app = create_app(api.harbor, authenticate=hook)
    await (await api.harbor.client.adriver()).enqueue([NewJob(id=MINE, type="t")])
    async with api.caller("192.0.2.7") as caller:
        waiting = asyncio.ensure_future(caller.get(f"/api/jobs/{MINE}/result?wait_s=60"))
        async with asyncio.timeout(GENEROUS_SECONDS):
            for _ in range(40):  # four seconds, looked at some twenty times
                clock.advance(timedelta(milliseconds=100))
                await asyncio.sleep(0.002)
            often, is_known[0] = asked[0], False
            while not waiting.done():
                clock.advance(timedelta(milliseconds=100))
                await asyncio.sleep(0.002)
    await api.aclose()

    assert 2 <= often <= 5
    assert waiting.result().status_code == 401
