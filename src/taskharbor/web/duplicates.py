"""An idempotency key leads its own producer back to the job, and shows nobody else's.

A producer may look at jobs whose id it knows. Keys can be guessed, ids cannot: so who may not list jobs is
told the id of a job that a key led to only if the job is the very one that was sent, as in a repeat.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Enqueued, EnqueueResult
from taskharbor.model.job import JobRecord, NewJob
from taskharbor.web.auth import Principal
from taskharbor.web.call import Call


async def own_duplicates(
    call: Call, driver: Driver, jobs: Sequence[NewJob], answers: Sequence[Enqueued]
) -> Sequence[Enqueued]:
    """The answers, and in place of the id of another's job the one that was sent, under which nothing is."""
    if call.principal.may("viewer") and call.principal.queues is None:
        return answers
    known = [at for at, answer in enumerate(answers) if answer.result is EnqueueResult.DUPLICATE]
    if not known:
        return answers
    shown = list(answers)
    named: dict[str, list[int]] = {}
    for at in known:
        named.setdefault(answers[at].id, []).append(at)
    async for job_id, record in call.service.portions.each(driver, list(named), now=call.service.now()):
        for at in named[job_id]:
            if record is not None and not _may_hear(call.principal, record, jobs[at]):
                shown[at] = replace(answers[at], id=jobs[at].id, version=0)
    return shown


def _may_hear(principal: Principal, record: JobRecord, sent: NewJob) -> bool:
    if not principal.may_use(record.queue):
        return False
    return principal.may("viewer") or (record.type, record.payload) == (sent.type, sent.payload)
