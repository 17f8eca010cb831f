"""What viewers see: the one place that hides secrets, for the routes and for the verbs of the driver.

a job by a route      values under names like `password` are hidden; what cannot be read, whole
a job by a verb       payload and result are hidden whole: a page of them would be long to read
headers, labels       values under such names
a schedule            the job it makes, like any other
the store             where it is, to everybody but operators of all queues
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from taskharbor.drivers.messages import DriverInfo, Page
from taskharbor.drivers.views import View, job_view
from taskharbor.model.codec import CODEC_HEADER
from taskharbor.model.job import JobRecord, NewJob
from taskharbor.model.presence import WorkerInfo
from taskharbor.model.schedule import StoredSchedule
from taskharbor.model.secrets import HIDDEN, redacted
from taskharbor.web.auth import Principal

_HIDDEN = b'"***"'


def shown_to(principal: Principal, answer: Any) -> Any:
    """The answer of a verb as this caller may see it."""
    if isinstance(answer, DriverInfo):
        may_know = principal.may("operator") and principal.queues is None
        return answer if may_know else replace(answer, location="", details={})
    return answer if principal.sees_payloads else _for_viewers(answer)


def job_shown_to(principal: Principal, job: JobRecord, *, redact: bool = False) -> View:
    """Everything about a job as this caller may see it; with `redact`, as a viewer would."""
    if principal.sees_payloads and not redact:
        return job_view(job, is_full=True, reveal=True)
    view = job_view(job, is_full=True)
    for name in ("payload", "result"):
        if view.pop(f"{name}_base64", None) is not None:
            view[name] = HIDDEN
    return view


def worker_shown_to(principal: Principal, worker: WorkerInfo) -> WorkerInfo:
    return worker if principal.sees_payloads else _hidden_worker(worker)


def _for_viewers(answer: Any) -> Any:
    if isinstance(answer, Page):
        return Page([_hidden_job(job) for job in answer.jobs], answer.cursor)
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
    return replace(job, payload=_HIDDEN, result=result, headers=_hidden_headers(job.headers))


def _hidden_template(job: NewJob) -> NewJob:
    return replace(job, payload=_HIDDEN, headers=_hidden_headers(job.headers))


def _hidden_headers(headers: dict[str, str]) -> dict[str, str]:
    """Without the name of the codec: what stands in the place of a payload is JSON."""
    shown: dict[str, str] = redacted(headers)
    shown.pop(CODEC_HEADER, None)
    return shown


def _hidden_worker(worker: WorkerInfo) -> WorkerInfo:
    report = worker.report
    return (
        replace(worker, report=replace(report, labels=redacted(report.labels))) if report.labels else worker
    )
