"""What a worker does with the job of a Django task."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from taskharbor.integrations.django.results import (
    BACKEND_HEADER,
    RUN_AFTER_HEADER,
    arguments_of,
    as_django,
    import_task,
)
from taskharbor.model.job import Job
from taskharbor.model.retry import name_of_error
from taskharbor.tasks import job_handler
from taskharbor.tasks.handler import Handler
from taskharbor.worker.attempt import JobContext

if TYPE_CHECKING:
    from taskharbor.integrations.django.backend import StoredTasks


def handler_of(backend: StoredTasks, path: str) -> Handler | None:
    """The handler for jobs of this type; None if the code here has no such task.

    What is there and is no task makes its jobs fail: it must not be called.
    """
    from django.core.exceptions import SuspiciousOperation

    try:
        import_task(backend, path)
    except ImportError:
        return None
    except SuspiciousOperation as error:
        return job_handler(path, _refuse(error), run_in="thread")
    return job_handler(path, TaskRunner(backend, path), run_in="thread")


def _refuse(error: Exception) -> Callable[[JobContext, Job], None]:
    def refuse(ctx: JobContext, job: Job) -> None:
        raise error

    return refuse


class TaskRunner:
    """Runs one task for its jobs, each in a thread of the worker."""

    def __init__(self, backend: StoredTasks, path: str) -> None:
        self._backend = backend
        self._path = path
        self.__name__ = path

    def __call__(self, ctx: JobContext, job: Job) -> Any:
        from django.db import close_old_connections

        close_old_connections()
        try:
            return self._run(ctx, job)
        finally:
            close_old_connections()

    def _run(self, ctx: JobContext, job: Job) -> Any:
        family = self._backend.family
        result = self._started(ctx, job)
        self._send("task_started", result)
        context = [family.TaskContext(task_result=result)] if result.task.takes_context else []
        try:
            value = family.normalize_json(result.task.call(*context, *result.args, **result.kwargs))
        except BaseException as error:
            if not ctx.will_retry(error):
                self._failed(result, error)
            raise
        _set(result, status=family.TaskResultStatus.SUCCESSFUL, finished_at=_now(), _return_value=value)
        self._send("task_finished", result)
        return value

    def _started(self, ctx: JobContext, job: Job) -> Any:
        family, given = self._backend.family, arguments_of(job.payload)
        backend = job.headers.get(BACKEND_HEADER, self._backend.alias)
        now = _now()
        return family.TaskResult(
            task=import_task(self._backend, self._path).using(
                priority=job.priority,
                queue_name=job.queue,
                run_after=as_django(job.run_at) if RUN_AFTER_HEADER in job.headers else None,
                backend=backend,
            ),
            id=job.id,
            status=family.TaskResultStatus.RUNNING,
            enqueued_at=as_django(job.created_at),
            started_at=now,
            last_attempted_at=now,
            finished_at=None,
            args=given.args,
            kwargs=given.kwargs,
            backend=backend,
            errors=[],
            worker_ids=[""] * (job.starts - 1) + [ctx.worker],
        )

    def _failed(self, result: Any, error: BaseException) -> None:
        """Django logs the exception that is being handled, so this is called inside the except block."""
        from traceback import format_exception

        family = self._backend.family
        failure = family.TaskError(
            exception_class_path=name_of_error(type(error)), traceback="".join(format_exception(error))
        )
        result.errors.append(failure)
        _set(result, status=family.TaskResultStatus.FAILED, finished_at=_now())
        self._send("task_finished", result)

    def _send(self, signal: str, result: Any) -> None:
        """A receiver that raises is logged by Django; it does not change what becomes of the job."""
        kind = type(self._backend)
        getattr(self._backend.family.signals, signal).send_robust(sender=kind, task_result=result)


def _set(result: Any, **values: Any) -> None:
    for name, value in values.items():
        object.__setattr__(result, name, value)


def _now() -> Any:
    from django.utils import timezone

    return timezone.now()
