"""Jobs with bonds over HTTP: who may tie which jobs together, what viewers see, and what is refused."""

from __future__ import annotations

import tracemalloc
from collections.abc import AsyncIterator
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest

from taskharbor.drivers import wire
from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Claim, Query, Resolution
from taskharbor.events import Event, JobSkipped, WorkflowEnded
from taskharbor.model.bonds import Bonds
from taskharbor.model.edit import Edit
from taskharbor.model.job import JobRecord, Lease, NewJob, Note
from taskharbor.model.schedule import Schedule
from taskharbor.model.settlement import Fail, Park
from taskharbor.model.state import JobState
from taskharbor.model.workflow import SPAWN_TYPE
from tests.integration.http.api import Api, make_token, token_file

_numbers = count(1)
MIB = 1024 * 1024


def job(queue: str = "mine", **bonds: Any) -> NewJob:
    job_id = f"01900000-0000-7000-8000-{next(_numbers):012x}"
    return NewJob(id=job_id, type="t", queue=queue, bonds=Bonds(**bonds) if bonds else None)


class FamilyApi(Api):
    """A server with tokens for the queue `mine`."""

    def __init__(self, folder: Path) -> None:
        file = token_file(folder)
        self.producer = make_token(file, "producer", ("mine",))
        self.worker = make_token(file, "worker", ("mine",))
        self.operator = make_token(file, "operator", ("mine",))
        self.viewer = make_token(file, "viewer")
        self.admin = make_token(file, "admin")
        super().__init__(tokens=folder / "tokens.json", rate_per_second=0)

    async def ask(self, verb: str, token: str, **arguments: Any) -> Any:
        answer = await self(
            "POST", f"/api/driver/{verb}", msgspec.json.decode(wire.encode(arguments)), token=token
        )
        self.last = answer
        return wire.read_answer(verb, answer.content) if answer.status_code == 200 else answer.json()

    async def driver(self) -> Driver:
        return await self.harbor.client.adriver()


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[FamilyApi]:
    found = FamilyApi(tmp_path)
    yield found
    await found.aclose()


async def running(api: FamilyApi, queue: str = "mine") -> JobRecord:
    driver = await api.driver()
    await driver.enqueue([job(queue)])
    [taken] = (await driver.reserve(Claim(queues=(queue,), worker_id="w"))).jobs
    return taken


async def names(api: FamilyApi) -> set[str]:
    return {one.id for one in (await (await api.driver()).find(Query())).jobs}


# ------------------------------------------------------------------ tokens for some queues


async def test_a_token_for_one_queue_ties_nothing_to_the_jobs_of_another(api: FamilyApi) -> None:
    driver = await api.driver()
    theirs, mine = job("theirs"), job()
    await driver.enqueue([theirs, mine])
    before = await names(api)
    for bonds in ({"parent": theirs.id}, {"after": (theirs.id,)}, {"after": (mine.id, theirs.id)}):
        refused = await api.ask("enqueue", api.producer, jobs=[job(**bonds)])
        unknown = await api.ask("enqueue", api.producer, jobs=[job(parent=job().id)])
        assert refused["failure"]["error"] == "BrokenBond", bonds
        assert refused["status"] == unknown["status"] == 409
        assert "theirs" not in api.last.text
    assert await names(api) == before

    [answer] = await api.ask("enqueue", api.producer, jobs=[job(parent=mine.id)])
    assert answer.result == "created"


async def test_a_lease_does_not_open_the_queue_of_its_parent(api: FamilyApi) -> None:
    """Both the queue of the child and the queue of the parent are needed."""
    driver = await api.driver()
    theirs = job("theirs", done_by="children")
    await driver.enqueue([theirs, job(parent=theirs.id)])
    claimed = await api.ask("reserve", api.worker, claim=Claim(queues=("mine",), worker_id="w"))
    [taken] = claimed.jobs
    refused = await api.ask("enqueue", api.worker, jobs=[job(parent=theirs.id)], by=taken.lease)

    assert refused["failure"]["error"] == "BrokenBond"


async def test_a_token_for_one_queue_resolves_no_job_of_another(api: FamilyApi) -> None:
    driver = await api.driver()
    theirs, mine, parent = job("theirs", done_by="call"), job(done_by="call"), job("theirs")
    await driver.enqueue([theirs, mine, parent])
    event = job(parent=parent.id, done_by="call")
    items = [
        Resolution(id=theirs.id, result=b"x"),
        Resolution(id=mine.id, result=b"1"),
        Resolution(id=event.id, result=b"x", new=event),
        Resolution(id=job().id),
    ]
    answers = await api.ask("resolve", api.producer, items=items)

    shown = [getattr(answer, "state", None) or type(answer).__name__ for answer in answers]
    assert shown == ["JobNotFound", JobState.COMPLETED, "JobNotFound", "JobNotFound"]
    [kept, there] = await driver.get([theirs.id, event.id])
    assert kept is not None
    assert (kept.state, there) == (JobState.BLOCKED, None)
    named = await api.ask("resolve", api.producer, items=[Resolution(id=theirs.id, new=theirs)])
    assert named["status"] == 403


MAKER = NewJob(id="01900000-0000-7000-8000-ffffffffffff", type=SPAWN_TYPE, payload=b"{}", queue="mine")


async def test_a_token_for_one_queue_stores_no_job_that_makes_jobs(api: FamilyApi) -> None:
    """The jobs that it makes are in its payload, for any queue."""
    schedule = Schedule(name="s", template=msgspec.structs.replace(MAKER, id=""), cron="@daily")
    event = msgspec.structs.replace(MAKER, bonds=Bonds(done_by="call"))
    for verb, token, arguments in (
        ("enqueue", api.producer, {"jobs": [job(), MAKER]}),
        ("resolve", api.producer, {"items": [Resolution(id=MAKER.id, new=event)]}),
        ("put_schedule", api.operator, {"schedule": schedule}),
    ):
        refused = await api.ask(verb, token, **arguments)
        assert (refused["status"], "all queues" in refused["detail"]) == (403, True), verb
    body = {"type": SPAWN_TYPE, "payload": {"levels": 1}, "queue": "mine"}
    for method, path, sent in (
        ("POST", "/api/jobs", body),
        ("POST", "/api/jobs/batch", {"jobs": [body]}),
        ("POST", "/api/workflows", {"name": "f", "queue": "mine", "nodes": [{"job": body}]}),
        ("PUT", "/api/schedules/s", {"job": body, "cron": "@daily"}),
    ):
        answer = await api(method, path, sent, token=api.operator)
        assert (answer.status_code, "all queues" in answer.text) == (403, True), path
    assert await names(api) == set()
    [stored] = await api.ask("enqueue", api.admin, jobs=[MAKER])
    assert stored.result == "created"


async def test_a_token_for_one_queue_makes_no_job_into_one_that_makes_jobs(api: FamilyApi) -> None:
    driver, plain = await api.driver(), job()
    await driver.enqueue([plain, MAKER])
    for taken in (await driver.reserve(Claim(queues=("mine",), worker_id="w", limit=2))).jobs:
        await driver.settle([Fail(taken.lease, "no")])

    for job_id, edit in ((plain.id, Edit(type=SPAWN_TYPE)), (MAKER.id, Edit(payload=b"[]"))):
        refused = await api.ask("requeue", api.operator, ids=[job_id], edit=edit)
        assert (refused["status"], "all queues" in refused["detail"]) == (403, True)
    path = f"/api/jobs/{MAKER.id}/retry"
    assert (await api("POST", path, {"payload": {}}, token=api.operator)).status_code == 403
    assert (await api("POST", path, token=api.operator)).status_code == 200, "as it was stored, it may run"


# ------------------------------------------------------------------ ends


def heard(api: FamilyApi) -> list[Event]:
    found: list[Event] = []
    api.harbor.events.listen(found.append, WorkflowEnded, JobSkipped)
    return found


async def a_family_over_two_queues(api: FamilyApi) -> JobRecord:
    """Running: the job whose failure skips one of either queue, and ends the family, which is theirs."""
    driver = await api.driver()
    top = job("theirs", done_by="children")
    first = job(parent=top.id)
    mine, theirs = (job(queue, parent=top.id, after=(first.id,)) for queue in ("mine", "theirs"))
    await driver.enqueue([top, first, mine, theirs])
    [taken] = (await driver.reserve(Claim(queues=("mine",), worker_id="w"))).jobs
    return taken


async def test_ends_of_another_queue_are_reported_by_the_server_alone(api: FamilyApi) -> None:
    events, taken = heard(api), await a_family_over_two_queues(api)
    [answer] = await api.ask("settle", api.worker, settlements=[Fail(taken.lease, "no")])

    assert [(end.queue, end.parent) for end in answer.ended] == [("mine", None)]
    assert "theirs" not in api.last.text
    assert sorted(type(event).__name__ for event in events) == ["JobSkipped", "WorkflowEnded"]
    assert {event.queue for event in events} == {"theirs"}  # type: ignore[attr-defined]


async def test_an_exchange_and_a_cancel_answer_their_own_ends(api: FamilyApi) -> None:
    events, taken = heard(api), await a_family_over_two_queues(api)
    claim = Claim(queues=("mine",), worker_id="w")
    exchanged = await api.ask("exchange", api.worker, settlements=[Fail(taken.lease, "no")], claim=claim)
    shown = [*exchanged.ended, *(end for answer in exchanged.settled for end in answer.ended)]
    assert [(end.queue, end.parent) for end in shown] == [("mine", None)]
    assert len(events) == 2
    events.clear()

    driver, mine = await api.driver(), job(done_by="children")
    child = job(parent=mine.id)
    await driver.enqueue([mine, child, job("theirs", parent=mine.id, after=(child.id,))])
    [answer] = await api.ask("cancel", api.operator, ids=[child.id])
    assert [end.id for end in answer.ended] == [mine.id]
    assert "theirs" not in api.last.text
    assert [event.queue for event in events] == ["theirs"]  # type: ignore[attr-defined]


async def test_a_token_for_all_queues_gets_every_end_and_the_server_is_silent(api: FamilyApi) -> None:
    events, taken = heard(api), await a_family_over_two_queues(api)
    [answer] = await api.ask("settle", api.admin, settlements=[Fail(taken.lease, "no")])

    assert sorted(end.queue for end in answer.ended) == ["mine", "theirs", "theirs"]
    assert events == []


# ------------------------------------------------------------------ roles and what they see


async def test_viewers_see_that_there_are_notes_and_not_what_they_say(api: FamilyApi) -> None:
    taken = await running(api)
    [noted] = await api.ask("note", api.worker, notes=[Note("pay", b"card 4711", lease=taken.lease)])
    assert noted.data == b"card 4711"
    [seen] = await api.ask("get", api.viewer, ids=[taken.id])
    [known] = await api.ask("get", api.admin, ids=[taken.id])

    assert [(note.name, note.data) for note in seen.notes] == [("pay", b'"***"')]
    assert [note.data for note in known.notes] == [b"card 4711"]


async def test_notes_are_part_of_the_size_of_an_answer(api: FamilyApi) -> None:
    """A job may have 4 MiB of them: a claim of many such jobs is answered in parts."""
    driver = await api.driver()
    jobs = [job() for _ in range(24)]
    await driver.enqueue(jobs)
    taken = (await driver.reserve(Claim(queues=("mine",), worker_id="w", limit=24))).jobs
    for one in taken:
        notes = tuple(Note(str(number), bytes(MIB)) for number in range(2))
        await driver.settle([Park(one.lease, delay=timedelta(0), notes=notes)])
    claim = Claim(queues=("mine",), worker_id="w", limit=24)
    first = await api.ask("reserve", api.worker, claim=claim)
    second = await api.ask("reserve", api.worker, claim=claim)

    assert 0 < len(first.jobs) <= 16
    assert first.jobs[0].notes[0].data == bytes(MIB)
    assert second.jobs


# ------------------------------------------------------------------ bad input


def as_json(one: NewJob) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(one)
    return found


KNOWN = "01900000-0000-7000-8000-ffffffffffff"
BAD_BONDS: dict[str, dict[str, Any]] = {
    "no id": {"parent": "../../x"},
    "an unknown parent": {"parent": KNOWN},
    "an unknown sibling": {"after": [KNOWN]},
    "a sibling twice": {"after": [KNOWN, KNOWN]},
    "1,001 siblings": {"after": [f"01900000-0000-7000-8000-{number:012x}" for number in range(1001)]},
    "an unknown time": {"when": "sometimes"},
    "an unknown doer": {"done_by": "magic"},
    "a negative tolerance": {"tolerate": -1},
    "a huge tolerance": {"tolerate": 10**30},
    "a flag that is a text": {"fail_fast": "yes"},
    "a deadline without a zone": {"deadline": "2026-11-16T12:00:00"},
    "a deadline twice": {"deadline": "2126-11-16T12:00:00Z", "within": "PT1H"},
    "a negative span": {"within": "-PT1H"},
    "a failure of nobody": {"when": "failure"},
    "no object": [],  # type: ignore[dict-item]
}


@pytest.mark.parametrize("bonds", BAD_BONDS.values(), ids=BAD_BONDS)
async def test_bad_bonds_are_refused_and_nothing_is_stored(api: FamilyApi, bonds: Any) -> None:
    good, bad = as_json(job()), as_json(job()) | {"bonds": bonds}
    answer = await api("POST", "/api/driver/enqueue", {"jobs": [good, bad]}, token=api.admin)

    assert answer.status_code in (400, 409, 422), answer.text
    assert await names(api) == set()


async def test_a_job_with_bonds_and_a_key_is_refused(api: FamilyApi) -> None:
    keyed = msgspec.structs.replace(job(done_by="children"), key=b"k")
    refused = await api.ask("enqueue", api.admin, jobs=[keyed])

    assert "leave the key out" in refused["detail"]
    assert await names(api) == set()


async def test_a_lease_that_does_not_hold_stores_nothing(api: FamilyApi) -> None:
    parent = job()
    await (await api.driver()).enqueue([parent])
    refused = await api.ask("enqueue", api.admin, jobs=[job(parent=parent.id)], by=Lease(parent.id, "0" * 32))

    assert refused["failure"]["error"] == "JobNotInflight"
    assert await names(api) == {parent.id}


@pytest.mark.parametrize("kind", ["chain", "circle"])
async def test_a_large_graph_is_judged_within_a_budget_of_memory(api: FamilyApi, kind: str) -> None:
    """2,000 jobs in one call: stored or refused as a whole, without a copy of the graph per job."""
    jobs = [job(done_by="children")]
    for number in range(1, 2000):
        after = tuple(one.id for one in jobs[max(1, number - 10) :])
        jobs.append(job(parent=jobs[0].id, after=after, when="over"))
    if kind == "circle":
        last = Bonds(parent=jobs[0].id, after=(jobs[-1].id,))
        jobs[1] = msgspec.structs.replace(jobs[1], bonds=last)
    body = msgspec.json.decode(wire.encode({"jobs": jobs}))
    tracemalloc.start()
    try:
        answer = await api("POST", "/api/driver/enqueue", body, token=api.admin)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert answer.status_code == (422 if kind == "circle" else 200), answer.text[:200]
    assert bool(await names(api)) == (kind != "circle")
    assert peak < 60 * MIB, f"{peak / MIB:.0f} MiB"


async def test_a_tower_of_parents_is_refused_where_it_is_too_deep(api: FamilyApi) -> None:
    tower = [job(done_by="children")]
    for _ in range(500):
        tower.append(job(parent=tower[-1].id, done_by="children"))
    refused = await api.ask("enqueue", api.admin, jobs=tower)

    assert "levels deep" in refused["detail"]
    assert await names(api) == set()


BAD_CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "a note without a lease": ("note", {"notes": [{"name": "a", "data": ""}]}),
    "a note without a name": ("note", {"notes": [{"name": "", "data": "", "lease": ["LEASE"]}]}),
    "a note that is no base64": ("note", {"notes": [{"name": "a", "data": "%", "lease": {}}]}),
    "notes without an end": ("note", {"notes": [{"name": "a", "data": ""}] * 10_001}),
    "a result and an error": ("resolve", {"items": [{"id": KNOWN, "result": "", "error": "x"}]}),
    "an id that is none": ("resolve", {"items": [{"id": "1"}]}),
    "items without an end": ("resolve", {"items": [{"id": KNOWN}] * 10_001}),
    "another new job": ("resolve", {"items": [{"id": KNOWN, "new": {"id": "x", "type": "t", "queue": "q"}}]}),
    "an unknown argument": ("resolve", {"items": [], "itemz": []}),
    "a park for ever": ("settle", {"settlements": [{"type": "Park", "lease": {"job_id": "a", "token": ""}}]}),
}


@pytest.mark.parametrize(("verb", "body"), BAD_CALLS.values(), ids=BAD_CALLS)
async def test_bad_calls_are_refused_and_nothing_is_stored(api: FamilyApi, verb: str, body: Any) -> None:
    answer = await api("POST", f"/api/driver/{verb}", body, token=api.admin)

    assert answer.status_code in (400, 422), answer.text
    assert await names(api) == set()
