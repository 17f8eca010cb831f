"""What is hidden from whom, on the routes and on the driver verbs.

a job on a route        from viewers: values under names like `password`; a payload that cannot be decoded
a job from a verb       from viewers: payload, result and notes as a whole: decoding a page of them is slow
headers, labels         from viewers: values under such names
a schedule              from viewers: the job it makes, like any other job
the store's location    from everyone but operators of all queues
the id behind a key     from producers: an idempotency key can be guessed, a job's id cannot. So a producer
                        gets the id of the job that already has the key only if it sent that same job
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import DriverInfo, Enqueued, EnqueueResult, Page
from taskharbor.model.codec import CODEC_HEADER
from taskharbor.model.job import JobRecord, NewJob
from taskharbor.model.presence import WorkerInfo
from taskharbor.model.schedule import StoredSchedule
from taskharbor.model.secrets import HIDDEN, redacted
from taskharbor.views import JobDetails, job_details
from taskharbor.web.auth import Principal
from taskharbor.web.request import Request

_HIDDEN = b'"***"'


def shown_to(principal: Principal, answer: Any) -> Any:
    """The answer of a driver verb as this caller may see it."""
    if isinstance(answer, DriverInfo):
        may_know = principal.may("operator") and principal.queues is None
        return answer if may_know else replace(answer, location="", details={})
    return answer if principal.sees_payloads else _for_viewers(answer)


def job_shown_to(principal: Principal, job: JobRecord, *, redact: bool = False) -> JobDetails:
    """Everything about a job as this caller may see it; with `redact`, as a viewer would."""
    if principal.sees_payloads and not redact:
        return job_details(job, reveal=True)
    details = job_details(job)
    for name in ("payload", "result"):
        if getattr(details, f"{name}_base64") is not UNSET:
            details = replace(details, **{name: HIDDEN, f"{name}_base64": UNSET})
    return details


def worker_shown_to(principal: Principal, worker: WorkerInfo) -> WorkerInfo:
    return worker if principal.sees_payloads else _hidden_worker(worker)


def _for_viewers(answer: Any) -> Any:
    if isinstance(answer, Page):
        return replace(answer, jobs=[_hidden_job(job) for job in answer.jobs])
    if isinstance(answer, list):
        return [_for_viewers(item) for item in answer]
    if isinstance(answer, JobRecord):
        return _hidden_job(answer)
    if isinstance(answer, StoredSchedule):
        schedule = answer.schedule
        return replace(answer, schedule=replace(schedule, template=_hidden_template(schedule.template)))
    return _hidden_worker(answer) if isinstance(answer, WorkerInfo) else answer


def _hidden_job(job: JobRecord) -> JobRecord:
    result = None if job.result is None else _HIDDEN
    notes = tuple(replace(note, data=_HIDDEN) for note in job.notes)
    headers = _hidden_headers(job.headers)
    return replace(job, payload=_HIDDEN, result=result, notes=notes, headers=headers)


def _hidden_template(job: NewJob) -> NewJob:
    return replace(job, payload=_HIDDEN, headers=_hidden_headers(job.headers))


def _hidden_headers(headers: dict[str, str]) -> dict[str, str]:
    """Without the codec header: what replaces the payload is JSON."""
    shown: dict[str, str] = redacted(headers)
    shown.pop(CODEC_HEADER, None)
    return shown


def _hidden_worker(worker: WorkerInfo) -> WorkerInfo:
    report = worker.report
    return (
        replace(worker, report=replace(report, labels=redacted(report.labels))) if report.labels else worker
    )


# ------------------------------------------------------------------ ids behind idempotency keys


async def hide_foreign_duplicates(
    request: Request, driver: Driver, jobs: Sequence[NewJob], answers: Sequence[Enqueued]
) -> Sequence[Enqueued]:
    """The answers, with the id of somebody else's job replaced by the id that was sent, which is unused."""
    if request.principal.may("viewer") and request.principal.queues is None:
        return answers
    known = [at for at, answer in enumerate(answers) if answer.result is EnqueueResult.DUPLICATE]
    if not known:
        return answers
    shown = list(answers)
    named: dict[str, list[int]] = {}
    for at in known:
        named.setdefault(answers[at].id, []).append(at)
    async for job_id, record in request.service.answer_limit.each(
        driver, list(named), now=request.service.now()
    ):
        for at in named[job_id]:
            if record is not None and not may_know(request.principal, record, jobs[at]):
                shown[at] = replace(answers[at], id=jobs[at].id, version=0)
    return shown


def may_know(principal: Principal, record: JobRecord, sent: NewJob) -> bool:
    if principal.may("viewer"):
        return principal.may_use(record.queue)
    return is_same(principal, record, sent)


def is_same(principal: Principal, record: JobRecord, sent: NewJob) -> bool:
    """Whether a stored job is the one that a caller sent, as far as a caller says what a job is."""
    return principal.may_use(record.queue) and (record.type, record.payload) == (sent.type, sent.payload)
