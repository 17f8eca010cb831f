"""TaskHarborBackend, built for one family of Django's Tasks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from taskharbor.errors import InvalidArgument, JobNotFound, SchemaOutOfDate
from taskharbor.integrations.django.family import TaskFamily
from taskharbor.integrations.django.options import key_of, options_of
from taskharbor.integrations.django.results import (
    BACKEND_HEADER,
    RUN_AFTER_HEADER,
    as_aware,
    new_result,
    result_of,
)
from taskharbor.integrations.django.store import BackendStore, DjangoHarbor
from taskharbor.model.checks import check_name
from taskharbor.model.job import JobRecord
from taskharbor.tasks.request import JobRequest


class StoredTasks:
    """What both back ends are; `our_backends` finds them by it."""

    family: TaskFamily
    store: BackendStore
    alias: str
    queues: set[str]
    options: dict[str, Any]


def make_backend(family: TaskFamily, module: str) -> Any:
    """The back end for this family, as a class of the module that exports it."""
    body = {
        "__doc__": TaskHarborTasks.__doc__,
        "__module__": module,
        "family": family,
        "supports_defer": True,
        "supports_async_task": True,
        "supports_get_result": True,
        "supports_priority": True,
    }
    return type("TaskHarborBackend", (TaskHarborTasks, family.BaseTaskBackend), body)


class TaskHarborTasks(StoredTasks):
    """Keeps tasks as jobs of TaskHarbor, in a database of the project (`database`) or behind a `url`.

    In a database a task is part of the transaction that is open there. `aenqueue` and `aget_result` run on
    the thread of that transaction.
    """

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)  # type: ignore[call-arg]
        self.store = BackendStore(alias, self.options)

    @property
    def harbor(self) -> DjangoHarbor:
        return self.store.harbor(self)

    def validate_task(self, task: Any) -> None:
        super().validate_task(task)  # type: ignore[misc]
        try:
            check_name(task.module_path, "the path of a task")
            check_name(task.queue_name, "the queue of a task")
        except InvalidArgument as error:
            raise self.family.InvalidTask(str(error)) from None

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Store the task as a job; its id is the id of the result.

        Raises:
            InvalidTask, TypeError, ValueError: a task or arguments that cannot be stored.
            SchemaOutOfDate: the database is not migrated.
        """
        self.validate_task(task)
        harbor = self.harbor
        request = self._request(task, args, kwargs)
        if self.store.database is not None:
            try:
                [handle] = harbor.enqueue_on(self.store.connection, [request])
            except SchemaOutOfDate as error:
                raise self.store.unmigrated(error) from error
        elif self.store.on_commit:
            return self._enqueue_on_commit(harbor, request, task)
        else:
            [handle] = harbor.enqueue_many([request])
        answer = handle.enqueued
        result = new_result(self, task, handle.id, request.payload, None if answer is None else answer.at)
        self.family.signals.task_enqueued.send(type(self), task_result=result)
        return result

    def _enqueue_on_commit(self, harbor: DjangoHarbor, request: JobRequest, task: Any) -> Any:
        """Enqueue after the commit of the transaction that is open now; at once if there is none."""
        from django.db import transaction

        request = replace(request, id=harbor.driver.entropy.job_id(harbor.client.clock.now()))
        result = new_result(self, task, request.id or "", request.payload, harbor.client.clock.now())

        def enqueue() -> None:
            harbor.enqueue_many([request])
            self.family.signals.task_enqueued.send(type(self), task_result=result)

        transaction.on_commit(enqueue)
        return result

    def _request(self, task: Any, args: Any, kwargs: Any) -> JobRequest:
        chosen = options_of(task.func)
        normalize = self.family.normalize_json
        payload = {"args": normalize(list(args)), "kwargs": normalize(dict(kwargs))}
        headers = {BACKEND_HEADER: self.alias}
        run_at = None
        if task.run_after is not None:
            run_at = as_aware(task.run_after)
            headers[RUN_AFTER_HEADER] = run_at.isoformat()
        return JobRequest(
            type=task.module_path,
            payload=payload,
            queue=task.queue_name,
            priority=task.priority,
            run_at=run_at,
            headers=headers,
            max_attempts=chosen.max_attempts or self.options.get("max_attempts", 1),
            timeout=self.options.get("timeout") if chosen.timeout is None else chosen.timeout,
            max_stalls=chosen.max_stalls,
            min_backoff=chosen.min_backoff,
            max_backoff=chosen.max_backoff,
            requires=chosen.requires,
            key=key_of(chosen.key, args, kwargs),
            idempotency_key=key_of(chosen.idempotency_key, args, kwargs),
        )

    def get_result(self, result_id: str) -> Any:
        """The result of a task. Raises TaskResultDoesNotExist for an id that is not known, or is no id."""
        record = self._record(result_id)
        if record is None or BACKEND_HEADER not in record.headers:
            raise self.family.TaskResultDoesNotExist(result_id)
        return result_of(self, record)

    def _record(self, result_id: str) -> JobRecord | None:
        try:
            if self.store.database is None:
                return self.harbor.get(result_id).record
            return self.harbor.get_on(self.store.connection, [result_id])[0]
        except (InvalidArgument, JobNotFound):
            return None
        except SchemaOutOfDate as error:
            raise self.store.unmigrated(error) from error

    def check(self, **kwargs: Any) -> Iterable[Any]:
        from taskharbor.integrations.django.checks import check_backend

        return check_backend(self)


def our_backends() -> list[Any]:
    """The back ends in TASKS that are ours."""
    from django.conf import settings
    from django.utils.module_loading import import_string

    found = []
    for alias, params in (getattr(settings, "TASKS", None) or {}).items():
        kind = import_string(params["BACKEND"])
        if isinstance(kind, type) and issubclass(kind, TaskHarborTasks):
            found.append(kind.family.backends[alias])
    return found
