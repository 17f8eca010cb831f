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

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
IDS = [f"01900000-0000-7000-8000-00000000000{number}" for number in range(4)]


def answers(*changed: dict[str, Any]) -> list[Enqueued]:
    alike = Enqueued(IDS[0], EnqueueResult.CREATED, NOW, 1)
    return [
        msgspec.structs.replace(alike, id=job_id, **(changed[at] if at < len(changed) else {}))
        for at, job_id in enumerate(IDS)
    ]


@pytest.mark.parametrize(
    "said",
    [
        answers(),
        answers()[:1],
        answers({}, {"result": EnqueueResult.DUPLICATE}),
        answers({"version": 2}),
        answers({}, {}, {}, {"at": NOW + timedelta(microseconds=1)}),
    ],
)
def test_a_batch_is_answered_with_every_answer_in_full(said: list[Enqueued]) -> None:
    assert batch_text(said) == msgspec.json.encode(BatchOut(items=[view(answer) for answer in said]))
    read = msgspec.json.decode(batch_text(said), type=BatchOut)
    assert [(one.id, one.result, one.version) for one in read.items] == [
        (one.id, one.result, one.version) for one in said
    ]
    assert isinstance(read.items[0], EnqueuedOut)


async def test_a_job_of_a_batch_is_the_job_that_it_would_be_alone() -> None:
    service = create_app(Harbor("memory://")).service
    said: list[dict[str, Any]] = [
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
    bodies = msgspec.json.decode(msgspec.json.encode({"jobs": said}), type=BatchIn).jobs
    ids = service.harbor.client.new_ids(len(bodies))

    together = new_jobs(service, bodies, ids)

    alone = [new_job(service, body, body.id or job_id) for body, job_id in zip(bodies, ids, strict=True)]
    assert together == alone
    assert [job.payload for job in together][:4] == [b'{"n":1}', b'{"n":2}', b"[1]", b"null"]
