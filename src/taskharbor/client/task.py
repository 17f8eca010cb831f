"""Task: a task bound to a client, so that it can be enqueued."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from datetime import datetime
from typing import Any, ParamSpec, Self, TypeVar, cast

from msgspec import UNSET, UnsetType

from taskharbor.client.client import Client
from taskharbor.client.handle import JobHandle
from taskharbor.model.duration import Duration
from taskharbor.model.job import Update
from taskharbor.tasks.definition import TaskDefinition

P = ParamSpec("P")
R = TypeVar("R")


class Task(TaskDefinition[P, R]):
    """A named function whose calls can be enqueued. Calling it directly runs it here and now."""

    _client: Client
    _tx: Any = None

    def bound_to(self, client: Client) -> Self:
        self._client = client
        return self

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = self.function(*args, **kwargs)
        return result

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Store a job that will call the function with these arguments.

        Raises:
            TypeError: the function does not take these arguments.
            PayloadError: an argument does not match its parameter's annotation.
            RateLimited: over the queue's rate. In every case nothing was stored.
        """
        client = self._client
        return client._enqueue_job(self.new_job(client._new_id(), args, kwargs), self._tx)

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        client = self._client
        return await client._aenqueue_job(self.new_job(client._new_id(), args, kwargs), self._tx)

    def using(
        self,
        *,
        queue: str | UnsetType = UNSET,
        priority: int | UnsetType = UNSET,
        requires: str | UnsetType = UNSET,
        run_at: datetime | None | UnsetType = UNSET,
        delay: Duration | None | UnsetType = UNSET,
        timeout: Duration | None | UnsetType = UNSET,
        max_attempts: int | None | UnsetType = UNSET,
        max_stalls: int | None | UnsetType = UNSET,
        min_backoff: Duration | None | UnsetType = UNSET,
        max_backoff: Duration | None | UnsetType = UNSET,
        key: str | bytes | None | UnsetType = UNSET,
        update: Update | None | UnsetType = UNSET,
        idempotency_key: str | bytes | None | UnsetType = UNSET,
        headers: Mapping[str, str] | None | UnsetType = UNSET,
        tx: Any = UNSET,
    ) -> Self:
        """The same task with other options for its jobs: `task.using(delay="5m").enqueue(7)`.

        Options left out stay as they are. With `tx`, your own connection or session, the job exists
        if and only if your transaction commits.
        """
        given = {name: value for name, value in locals().items() if value is not UNSET and name in _OPTIONS}
        changed = self.with_options(**given)
        if tx is not UNSET:
            changed._tx = tx
        return changed


_OPTIONS = frozenset(cast("Any", Task.using).__kwdefaults__) - {"tx"}


class AsyncTask(Task[P, R]):
    """A task made from an `async def`: calling it returns a coroutine, and its jobs return R."""

    def __call__(  # type: ignore[override]
        self, /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]:
        coroutine: Coroutine[Any, Any, R] = self.function(*args, **kwargs)
        return coroutine
