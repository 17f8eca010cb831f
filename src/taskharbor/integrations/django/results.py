"""From a stored job to Django's TaskResult."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from taskharbor.errors import AttemptStalled, JobFailed
from taskharbor.model.job import AttemptRecord, JobRecord
from taskharbor.model.state import JobState

if TYPE_CHECKING:
    from taskharbor.integrations.django.backend import StoredTasks

BACKEND_HEADER = "django-backend"
RUN_AFTER_HEADER = "django-run-after"
_FAILURES = ("retried", "failed", "stalled", "cancelled")


class Arguments(msgspec.Struct):
    """The payload of a task's job."""

    args: list[Any] = []
    kwargs: dict[str, Any] = {}


_decode = msgspec.json.Decoder(Arguments).decode


def arguments_of(payload: bytes) -> Arguments:
    return _decode(payload)


def new_result(
    backend: StoredTasks, task: Any, job_id: str, payload: dict[str, Any], at: datetime | None
) -> Any:
    """The result of a task that was enqueued just now."""
    family = backend.family
    return family.TaskResult(
        task=task,
        id=job_id,
        status=family.TaskResultStatus.READY,
        enqueued_at=as_django(at),
        started_at=None,
        last_attempted_at=None,
        finished_at=None,
        args=payload["args"],
        kwargs=payload["kwargs"],
        backend=backend.alias,
        errors=[],
        worker_ids=[],
    )


def result_of(backend: StoredTasks, record: JobRecord) -> Any:
    """The result of a stored job."""
    family = backend.family
    given = arguments_of(record.payload)
    result = family.TaskResult(
        task=task_of(backend, record),
        id=record.id,
        status=_status(family.TaskResultStatus, record.state),
        enqueued_at=as_django(record.created_at),
        started_at=as_django(record.history[0].started_at if record.history else record.started_at),
        last_attempted_at=as_django(record.started_at),
        finished_at=as_django(record.finished_at),
        args=given.args,
        kwargs=given.kwargs,
        backend=record.headers.get(BACKEND_HEADER, backend.alias),
        errors=[error_of(family, attempt) for attempt in record.history if attempt.outcome in _FAILURES],
        worker_ids=_worker_ids(record),
    )
    if record.state is JobState.COMPLETED and record.result is not None:
        object.__setattr__(result, "_return_value", msgspec.json.decode(record.result))
    return result


def task_of(backend: StoredTasks, record: JobRecord) -> Any:
    """The task of a job, with the queue, priority and time that it was enqueued with."""
    run_after = record.headers.get(RUN_AFTER_HEADER)
    task = import_task(backend, record.type)
    return task.using(
        priority=record.priority,
        queue_name=record.queue,
        run_after=None if run_after is None else as_django(datetime.fromisoformat(run_after)),
        backend=record.headers.get(BACKEND_HEADER, backend.alias),
    )


def import_task(backend: StoredTasks, path: str) -> Any:
    """The task under this import path.

    Raises:
        ImportError: there is nothing of that name.
        SuspiciousOperation: it is no task, so it must not be called.
    """
    from django.core.exceptions import SuspiciousOperation
    from django.utils.module_loading import import_string

    task = import_string(path)
    if not isinstance(task, backend.family.Task):
        raise SuspiciousOperation(f"Task {path} does not point to a Task, but to {type(task).__name__}")
    return task


def error_of(family: Any, attempt: AttemptRecord) -> Any:
    usual = AttemptStalled if attempt.outcome == "stalled" else JobFailed
    return family.TaskError(
        exception_class_path=attempt.error_class or f"{usual.__module__}.{usual.__qualname__}",
        traceback=attempt.error or "",
    )


def _status(statuses: Any, state: JobState) -> Any:
    match state:
        case JobState.RUNNING:
            return statuses.RUNNING
        case JobState.COMPLETED:
            return statuses.SUCCESSFUL
        case JobState.FAILED | JobState.CANCELLED:
            return statuses.FAILED
    return statuses.READY


def _worker_ids(record: JobRecord) -> list[str]:
    """One per start, since Django counts attempts by them; "" where the history does not know it any more."""
    known = [attempt.worker_id for attempt in record.history]
    if record.worker_id is not None:
        known.append(record.worker_id)
    return [""] * (record.starts - len(known)) + known


# ------------------------------------------------------------------ time


def as_aware(moment: datetime) -> datetime:
    from django.utils import timezone

    aware: datetime = timezone.make_aware(moment) if timezone.is_naive(moment) else moment
    return aware


def as_django(moment: datetime | None) -> datetime | None:
    """Aware with USE_TZ, else naive in the time zone of the project."""
    from django.conf import settings
    from django.utils import timezone

    if moment is None or settings.USE_TZ:
        return moment
    naive: datetime = timezone.make_naive(moment)
    return naive
