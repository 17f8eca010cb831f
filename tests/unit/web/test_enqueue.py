"""What a batch is answered with, and what becomes of bodies that are much alike."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from taskharbor import Harbor
from taskharbor.drivers.messages import Enqueued, EnqueueResult
from taskharbor.web.api.answers import BatchOut, EnqueuedOut
from taskharbor.web.api.enqueue import batch_text, new_job, new_jobs, view
from taskharbor.web.api.schemas import BatchIn
from taskharbor.web.app import create_app
from tests.integration.http.api import Api

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
IDS = [f"01900000-0000-7000-8000-00000000000{number}" for number in range(4)]


def answers(*changed: dict[str, Any]) -> list[Enqueued]:
    alike = Enqueued(IDS[0], EnqueueResult.CREATED, NOW, 1)
    return [
        msgspec.structs.replace(alike, id=job_id, **(changed[at] if at < len(changed) else {}))
        for at, job_id in enumerate(IDS)
    ]


@pytest.mark.parametrize(
    "answers",
    [
        answers(),
        answers()[:1],
        answers({}, {"result": EnqueueResult.DUPLICATE}),
        answers({"version": 2}),
        answers({}, {}, {}, {"at": NOW + timedelta(microseconds=1)}),
    ],
)
def test_a_batch_is_answered_with_every_answer_in_full(answers: list[Enqueued]) -> None:
    assert batch_text(answers) == msgspec.json.encode(BatchOut(items=[view(answer) for answer in answers]))
    read = msgspec.json.decode(batch_text(answers), type=BatchOut)
    assert [(one.id, one.result, one.version) for one in read.items] == [
        (one.id, one.result, one.version) for one in answers
    ]
    assert isinstance(read.items[0], EnqueuedOut)


async def test_a_job_of_a_batch_is_the_job_that_it_would_be_alone() -> None:
    service = create_app(Harbor("memory://"), local_callers_are_admin=True).service
    bodies_sent: list[dict[str, Any]] = [
        {"type": "a", "payload": {"n": 1}},
        {"type": "a", "payload": {"n": 2}},
        {"type": "b", "payload": [1]},
        {"type": "b", "queue": "q", "priority": 3},
        {"type": "b", "queue": "q", "priority": 3, "payload": "x" * 500},
        {"type": "b", "queue": "q", "id": IDS[0], "payload": None},
        {"type": "b", "queue": "q", "key": "k", "update": {"data": False}, "run_at": "2026-05-01T00:00:00Z"},
        {"type": "b", "queue": "q", "key": "k", "update": {"data": False}, "run_at": "2026-05-01T00:00:00Z"},
        {"type": "a", "headers": {"x": "y"}, "delay_s": 5, "idempotency_key": "i"},
        {"type": "a", "payload": {"n": 3}},
    ]
    bodies = msgspec.json.decode(msgspec.json.encode({"jobs": bodies_sent}), type=BatchIn).jobs
    ids = service.harbor.client._new_ids(len(bodies))

    together = new_jobs(service, bodies, ids)

    alone = [new_job(service, body, body.id or job_id) for body, job_id in zip(bodies, ids, strict=True)]
    assert together == alone
    assert [job.payload for job in together][:4] == [b'{"n":1}', b'{"n":2}', b"[1]", b"null"]


@pytest.mark.parametrize(
    ("spoilt", "path"),
    [
        ({"type": "welcome", "payload": {"user_id": "x"}}, "$.jobs[2].payload.user_id"),
        ({"type": "welcome", "payload": {}}, "$.jobs[2]"),
        ({"type": "nobody"}, "$.jobs[2]"),
        ({"type": "welcome", "payload": [1], "queue": "a b"}, "$.jobs[2]"),
        ({"type": "welcome", "payload": [1], "priority": 1000}, "$.jobs[2].priority"),
        ({"type": "welcome", "payload": ["x" * 1024 * 1024]}, "$.jobs[2]"),
    ],
)
async def test_what_is_wrong_with_one_job_of_a_batch_says_which(spoilt: dict[str, Any], path: str) -> None:
    api = Api(harbor_with_a_task())
    good = {"type": "welcome", "payload": [1]}

    answer = await api("POST", "/api/jobs/batch", {"jobs": [good, good, spoilt, good]})
    stored = (await api("GET", "/api/jobs")).json()["items"]
    await api.aclose()

    assert answer.status_code in (413, 422)
    assert [error["path"] for error in answer.json()["errors"]] == [path]
    assert path in answer.json()["detail"]
    assert stored == []


async def test_what_is_wrong_with_a_payload_is_named_by_its_place_in_the_body() -> None:
    api = Api(harbor_with_a_task())

    answer = await api("POST", "/api/jobs", {"type": "welcome", "payload": {"user_id": "x"}})
    await api.aclose()

    assert answer.status_code == 422
    assert [error["path"] for error in answer.json()["errors"]] == ["$.payload.user_id"]


async def test_what_is_wrong_with_a_batch_as_a_whole_is_not_laid_on_one_job() -> None:
    api = Api(harbor_with_a_task())
    await api("PATCH", "/api/queues/mail", {"enqueue_rate": {"count": 1, "per_s": 60}})

    answer = await api("POST", "/api/jobs/batch", {"jobs": [{"type": "welcome", "payload": [1]}] * 2})
    await api.aclose()

    assert answer.status_code == 422
    assert "errors" not in answer.json()


async def test_a_batch_that_comes_again_says_so_when_all_of_it_is_a_repeat() -> None:
    api = Api(harbor_with_a_task())
    one, key = {"type": "welcome", "payload": [1]}, {"Idempotency-Key": "k"}

    first = await api("POST", "/api/jobs/batch", {"jobs": [one, one]}, headers=key)
    again = await api("POST", "/api/jobs/batch", {"jobs": [one, one]}, headers=key)
    longer = await api("POST", "/api/jobs/batch", {"jobs": [one, one, one]}, headers=key)
    await api.aclose()

    replayed = [answer.headers.get("idempotency-replayed") for answer in (first, again, longer)]
    assert replayed == [None, "true", None]
    assert [item["id"] for item in again.json()["items"]] == [item["id"] for item in first.json()["items"]]
    assert [item["result"] for item in longer.json()["items"]] == ["duplicate", "duplicate", "created"]


def harbor_with_a_task() -> Harbor:
    harbor = Harbor("memory://")

    @harbor.task(queue="mail")
    async def welcome(user_id: int) -> None: ...

    return harbor
