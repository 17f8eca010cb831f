"""Every verb of the driver, over HTTP, answers what the OpenAPI document says that it answers."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest

from taskharbor.drivers import wire
from taskharbor.drivers.messages import Claim, Query, Wakeup, WakeupKind
from taskharbor.model.bonds import Bonds
from taskharbor.model.job import NewJob, Update
from taskharbor.model.limits import RateLimit
from taskharbor.model.logbook import LogEntry, LogKey
from taskharbor.model.presence import Sample, WorkerReport
from taskharbor.model.queue import QueueSettings, Retention
from taskharbor.model.schedule import Schedule
from taskharbor.model.state import JobState
from taskharbor.web.app import OPERATIONS
from taskharbor.web.driver_routes import DriverVerbs
from taskharbor.web.openapi import openapi_document
from tests.unit.web.in_process import Server, in_process

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
NOBODY = "00000000-0000-7000-8000-000000000000"


def job_id(number: int) -> str:
    return f"01900000-0000-7000-8000-{number:012x}"


_documents: list[dict[str, Any]] = []


def document_of(server: Server) -> dict[str, Any]:
    """Made once: it is the same for all of these servers."""
    if not _documents:
        operations = [*OPERATIONS, *DriverVerbs(server.app.service).operations()]
        _documents.append(openapi_document(operations))
    return _documents[0]


class Judge:
    """A server, and the document by which its answers are judged."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.asked: set[str] = set()
        self._document = document_of(server)

    def ask(self, verb: str, *headers: tuple[bytes, bytes], **arguments: Any) -> Any:
        """What the verb answers, which is what the document says."""
        status, body = self.server.post(verb, wire.encode(arguments), *headers)
        assert status == 200, (verb, body)
        self.asked.add(verb)
        return self.judged(verb, status, body)

    def refused(self, verb: str, *headers: tuple[bytes, bytes], **arguments: Any) -> Any:
        """The problem that the verb answers with: one that the document names."""
        status, body = self.server.post(verb, wire.encode(arguments), *headers)
        assert status >= 400, (verb, body)
        return self.judged(verb, status, body)

    def judged(self, verb: str, status: int, body: bytes) -> Any:
        answer = msgspec.json.decode(body)
        described = self._document["paths"][f"/api/driver/{verb}"]["post"]["responses"][str(status)]
        [content] = described["content"].values()
        schema = {**content["schema"], "components": self._document["components"]}
        jsonschema_rs.validate(schema, answer, validate_formats=True)
        return answer


@pytest.fixture
def judge() -> Iterator[Judge]:
    with in_process(accepts_now=True) as server:
        yield Judge(server)


def put_in(judge: Judge, *jobs: NewJob) -> list[Any]:
    answers: list[Any] = judge.ask("enqueue", jobs=list(jobs), now=NOW)
    return answers


def claimed(judge: Judge, limit: int = 1, now: datetime = NOW, worker_id: str = "w-1") -> list[Any]:
    claim = Claim(queues=("default",), worker_id=worker_id, limit=limit, lease_for=60 * SECOND)
    jobs: list[Any] = judge.ask("reserve", claim=claim, now=now)["jobs"]
    assert len(jobs) == limit
    return jobs


def lease_of(job: Any, **changed: Any) -> dict[str, Any]:
    return {"job_id": job["id"], "token": job["token"], **changed}


def see_jobs_in(judge: Judge) -> None:
    everything = NewJob(
        id=job_id(1),
        type="t",
        payload=b"\x00\xff",
        key=b"k",
        update=Update(run_at="if_later", reset_counts=False),
        idempotency_key=b"i",
        headers={"a": "b"},
        priority=-100,
        delay=SECOND,
        timeout=SECOND,
        max_attempts=3,
        max_stalls=3,
        min_backoff=SECOND,
        max_backoff=2 * SECOND,
    )
    plain = [
        NewJob(id=job_id(number), type="t", payload=b"1", timeout=2.5 * SECOND, min_backoff=1.25 * SECOND)
        for number in range(2, 10)
    ]
    created = put_in(judge, everything, *plain)
    again = put_in(judge, everything, NewJob(id=job_id(20), type="t", key=b"k"))
    assert [one["result"] for one in [*created, *again]] == ["created"] * 9 + ["duplicate", "updated"]


def see_attempts(judge: Judge) -> None:
    one, two, three, four, five = claimed(judge, 5)
    extended = judge.ask(
        "extend_leases",
        leases=[lease_of(one), lease_of(two, token="another")],
        lease_for=60 * SECOND,
        progress={one["id"]: {"fraction": 0.5, "text": "half"}},
        now=NOW,
    )
    assert [item["type"] for item in extended] == ["Extended", "Failure"]
    settled = judge.ask(
        "settle",
        settlements=[
            {"type": "Ack", "lease": lease_of(one), "result": "MQ=="},
            {"type": "Retry", "lease": lease_of(two), "delay": "PT1S", "reason": "later"},
            {"type": "Fail", "lease": lease_of(three), "reason": "never"},
            {"type": "Release", "lease": lease_of(three)},
            {"type": "Stalled", "lease": lease_of(five), "reason": "died"},
        ],
        now=NOW,
    )
    assert [item["type"] for item in settled] == ["Settled"] * 3 + ["Failure", "Settled"]
    claim = Claim(queues=("default",), worker_id="w-1", limit=1)
    exchanged = judge.ask(
        "exchange",
        settlements=[{"type": "Cancelled", "lease": lease_of(four)}, {"type": "Ack", "lease": lease_of(one)}],
        claim=claim,
        now=NOW,
    )
    assert [item["type"] for item in exchanged["settled"]] == ["Settled", "Failure"]
    assert len(exchanged["claimed"]) == 1
    speculated = judge.ask("speculate", job_id=exchanged["claimed"][0]["id"], now=NOW)
    assert speculated["type"] == "Speculated"
    assert judge.ask("speculate", job_id=NOBODY, now=NOW)["type"] == "Failure"
    empty = judge.ask("reserve", claim=Claim(queues=("empty",), worker_id="w"), now=NOW)
    assert empty == {"jobs": []}


def see_looking(judge: Judge) -> None:
    records = judge.ask("get", ids=[*(job_id(number) for number in range(1, 10)), NOBODY], now=NOW)
    assert [record is None for record in records] == [False] * 9 + [True]
    assert {record["state"] for record in records if record} >= {
        "completed",
        "failed",
        "cancelled",
        "running",
    }
    page = judge.ask("find", query=Query(limit=2, newest_first=True), now=NOW)
    assert len(page["jobs"]) == 2
    assert len(judge.ask("find", query=Query(limit=1000), now=NOW)["jobs"]) == 9
    assert judge.ask("count", queues=["default", "empty"], now=NOW)["default"]["failed"] == 1
    assert judge.ask("count", now=NOW)


def see_control(judge: Judge) -> None:
    rules = judge.ask(
        "configure_queue",
        settings=QueueSettings(
            queue="default",
            max_running=10,
            enqueue_rate=RateLimit(1000, SECOND),
            execute_rate=RateLimit(1000, SECOND),
            fail_queue="failures",
            retention=Retention(completed=None, failed=SECOND),
        ),
        now=NOW,
    )
    assert rules["max_running"] == 10
    assert judge.ask("configure_queue", settings=QueueSettings(queue="*", paused=False), now=NOW)
    assert {queue["queue"] for queue in judge.ask("queues", now=NOW)} == {"*", "default"}
    over, waiting = (
        judge.ask("find", query=Query(states=(state,)), now=NOW)["jobs"][0]["id"]
        for state in (JobState.COMPLETED, JobState.SCHEDULED)
    )
    cancelled = judge.ask("cancel", ids=[waiting, over, NOBODY], now=NOW)
    assert [item["result"] for item in cancelled] == ["cancelled", "already_over", "not_found"]
    requeued = judge.ask("requeue", ids=[over, over, NOBODY], edit={"priority": 3}, delay="PT1S", now=NOW)
    assert [item["type"] for item in requeued] == ["Requeued", "Failure", "Failure"]
    deleted = judge.ask("delete", ids=[waiting, over, NOBODY], now=NOW)
    assert [item["type"] for item in deleted] == ["Deleted", "Failure", "Failure"]
    put_in(judge, NewJob(id=job_id(30), type="t", key=b"again"))
    assert judge.ask("cancel_waiting", queue="default", key="YWdhaW4=", now=NOW) is True
    assert judge.ask("cancel_waiting", queue="default", key="YWdhaW4=", now=NOW) is False


def see_presence(judge: Judge) -> None:
    report = WorkerReport(
        worker_id="w-1",
        name="w",
        queues=("default",),
        started_at=NOW,
        labels={"zone": "a"},
        running=(NOBODY,),
    )
    samples = [Sample("t", SECOND)]
    assert judge.ask("report_worker", report=report, samples=samples, ttl=60 * SECOND, now=NOW) is None
    assert judge.ask("workers", now=NOW)[0]["latency"] is not None
    assert judge.ask("types", now=NOW)
    assert judge.ask("forget_worker", worker_id="w-1", now=NOW) is True
    assert judge.ask("hold_role", role="leader", holder="w-1", ttl=60 * SECOND, now=NOW)["is_mine"] is True
    assert judge.ask("hold_role", role="leader", holder="w-2", ttl=60 * SECOND, now=NOW)["is_mine"] is False
    assert judge.ask("release_role", role="leader", holder="w-1", now=NOW) is True


def see_schedules(judge: Judge) -> None:
    template = NewJob(id="", type="t", key=b"s")
    by_cron = Schedule(name="night", template=template, cron="0 3 * * *", timezone="Europe/Berlin")
    by_span = Schedule(name="often", template=template, every=60 * SECOND, misfire="all", paused=True)
    assert judge.ask("put_schedule", schedule=by_cron, now=NOW)["paused"] is False
    assert judge.ask("put_schedule", schedule=by_span, now=NOW)["paused"] is True
    assert judge.ask("advance_schedule", name="night", tick=NOW, now=NOW) is True
    assert len(judge.ask("schedules", now=NOW)) == 2
    assert judge.ask("delete_schedule", name="often", now=NOW) is True
    assert judge.ask("delete_schedule", name="often", now=NOW) is False


def see_logbook(judge: Judge) -> None:
    cell = LogEntry(book="kit", at=NOW, by="w-1", data=b"\x00\xff", until=NOW + 60 * SECOND)
    assert judge.ask("write_log", entries=[cell], instead_of=[LogKey("kit", NOW)], now=NOW) is None
    span = {"since": NOW, "until": NOW + SECOND}
    assert len(judge.ask("read_log", book="kit", **span, limit=5, newest_first=True, now=NOW)) == 1


def see_time_pass(judge: Judge) -> None:
    put_in(judge, NewJob(id=job_id(40), type="t", delay=30 * SECOND))
    assert judge.ask("reclaim", now=NOW + 3600 * SECOND)
    judge.ask("promote", now=NOW + 3600 * SECOND)
    assert judge.ask("prune", now=NOW + timedelta(days=400)) > 0
    assert judge.ask("ring", queues=["default"]) is None


def see_the_store(judge: Judge) -> None:
    assert judge.ask("hello")["takes_now"] is True
    assert judge.ask("info")["driver"]
    assert judge.ask("pending_migrations") == []
    assert judge.ask("migrate") == []


def see_families(judge: Judge) -> None:
    root, event = job_id(900), job_id(901)
    family = [
        NewJob(id=root, type="t", queue="families"),
        NewJob(id=event, type="t", queue="families", bonds=Bonds(parent=root, done_by="call", within=SECOND)),
    ]
    if not judge.ask("hello")["capabilities"]["workflows"]:
        judge.refused("enqueue", jobs=family, now=NOW)
        judge.asked |= {"note", "resolve"}
        return
    put_in(judge, *family)
    claim = Claim(queues=("families",), worker_id="w-1", lease_for=60 * SECOND)
    [job] = judge.ask("reserve", claim=claim, now=NOW)["jobs"]
    note = {"name": "step", "data": "eA==", "lease": lease_of(job)}
    lost = {**note, "lease": lease_of(job, token="0" * 32)}
    [kept, refused] = judge.ask("note", notes=[note, lost], now=NOW)
    assert (kept["data"], refused["error"]) == ("eA==", "LeaseMismatch")
    items = [{"id": event, "result": "eA=="}, {"id": NOBODY}, {"id": root}]
    answers = judge.ask("resolve", items=items, now=NOW)
    assert [answer["type"] for answer in answers] == ["Resolved", "Failure", "Failure"]
    park = {"type": "Park", "lease": lease_of(job), "delay": "PT1S", "notes": [{"name": "nap", "data": ""}]}
    [settled] = judge.ask("settle", settlements=[park], now=NOW)
    assert settled["state"] == "scheduled"
    [record] = judge.ask("get", ids=[root], now=NOW)
    assert [one["name"] for one in record["notes"]] == ["step", "nap"]
    judge.refused("enqueue", jobs=[NewJob(id=job_id(902), type="t", bonds=Bonds(parent=NOBODY))], now=NOW)


SIGHTS = (
    see_the_store,
    see_jobs_in,
    see_attempts,
    see_looking,
    see_control,
    see_presence,
    see_schedules,
    see_logbook,
    see_time_pass,
    see_families,
)


@pytest.mark.parametrize("store", ["memory://", "sqlite:///{}/jobs.db"], ids=["memory", "sqlite"])
def test_what_every_verb_answers_is_what_the_document_says(store: str, tmp_path: Path) -> None:
    with in_process(store.format(tmp_path), accepts_now=True) as server:
        judge = Judge(server)
        for see in SIGHTS:
            see(judge)

    assert judge.asked == set(wire.VERBS) - {"wakeups"}, "which is a stream, and comes next"


def test_what_a_stream_of_hints_says_is_what_the_document_says(judge: Judge) -> None:
    for hint in (Wakeup(WakeupKind.WORK, queue="q"), Wakeup(WakeupKind.CANCEL, job_id=NOBODY)):
        judge.judged("wakeups", 200, wire.encode(hint))


# ------------------------------------------------------------------ calls that come again

FIRST = ("report_worker", "migrate", "promote", "put_schedule")
THEN = ("reserve", "settle", "speculate", "requeue", "delete", "hold_role", "prune")
CALLS: dict[str, dict[str, Any]] = {
    "report_worker": {"report": WorkerReport(worker_id="w"), "ttl": "PT30S"},
    "migrate": {},
    "promote": {},
    "put_schedule": {"schedule": Schedule(name="s", template=NewJob(id="", type="t"), every=60 * SECOND)},
    "reserve": {"claim": Claim(queues=("default",), worker_id="w")},
    "settle": {"settlements": []},
    "speculate": {"job_id": NOBODY},
    "requeue": {"ids": [NOBODY]},
    "delete": {"ids": [NOBODY]},
    "hold_role": {"role": "leader", "holder": "w", "ttl": "PT30S"},
    "prune": {},
}


def test_an_answer_is_never_given_to_another_verb(judge: Judge) -> None:
    """An id that is used again for something else: the verb does what it does, or says that it cannot."""
    again = (b"taskharbor-repeat", b"elsewhere 0")
    for number, (first, second) in enumerate(product(FIRST, THEN)):
        call = (b"taskharbor-call", b"%d" % number)
        judge.ask(first, call, **CALLS[first])
        status, body = judge.server.post(second, wire.encode(CALLS[second]), call, again)

        answer = judge.judged(second, status, body)
        if wire.VERBS[second].may_repeat:
            assert status == 200, (first, second)
        else:
            assert (status, answer["type"]) == (409, "urn:taskharbor:problem:cannot-tell"), (first, second)


def test_an_answer_is_never_given_to_another_body(judge: Judge) -> None:
    call, again = (b"taskharbor-call", b"1"), (b"taskharbor-repeat", b"elsewhere 0")
    assert judge.ask("delete_schedule", call, name="s") is False
    assert judge.ask("delete_schedule", call, again, name="s") is False

    assert judge.refused("delete_schedule", call, again, name="s*")["status"] == 409


def test_a_repeat_that_nobody_can_vouch_for_is_a_documented_refusal_and_nothing_is_done(judge: Judge) -> None:
    put_in(judge, NewJob(id=job_id(1), type="t"))
    [job] = claimed(judge)
    problem = judge.refused(
        "settle",
        (b"taskharbor-call", b"1"),
        (b"taskharbor-repeat", b"elsewhere 1.5"),
        settlements=[{"type": "Ack", "lease": lease_of(job)}],
        now=NOW,
    )

    assert (problem["status"], problem["retryable"]) == (409, False)
    assert problem["type"] == "urn:taskharbor:problem:cannot-tell"
    assert problem["failure"]["error"] == "DriverUnavailable"
    assert problem["failure"]["data"] == {"done": None}
    [record] = judge.ask("get", ids=[job["id"]], now=NOW)
    assert record["state"] == "running"
