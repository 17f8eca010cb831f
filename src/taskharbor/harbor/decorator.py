"""TaskMaker: what `harbor.task(...)` returns; give it a function and it makes the task.

The overloads show type checkers what each kind of function becomes. A first parameter
annotated `JobContext` is filled in by the worker, so callers do not see it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, overload

import msgspec

from taskharbor.client.client import Client
from taskharbor.client.task import AsyncTask, Task
from taskharbor.errors import ConfigurationError
from taskharbor.harbor.registry import TaskRegistry
from taskharbor.harbor.schedules import waiting_declarations
from taskharbor.model.duration import Duration, duration
from taskharbor.model.retry import PRESETS, ErrorKind, RetryPolicy, RetryPreset, error_kinds
from taskharbor.model.speculation import Speculate
from taskharbor.tasks.handler import RecycleOn, RunIn
from taskharbor.tasks.request import JobRequest

if TYPE_CHECKING:
    from taskharbor.worker.attempt import JobContext

P = ParamSpec("P")
R = TypeVar("R")


class TaskOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `@harbor.task(...)`."""

    name: str | None = None
    queue: str | None = None
    priority: int = 0
    requires: str = "any"
    timeout: Duration | None = None
    max_attempts: int | None = None
    max_stalls: int | None = None
    min_backoff: Duration | None = None
    max_backoff: Duration | None = None
    retry: RetryPolicy | RetryPreset | None = None
    retry_on: ErrorKind | Iterable[ErrorKind] | None = None
    no_retry_on: ErrorKind | Iterable[ErrorKind] | None = None
    run_in: RunIn = "auto"
    speculate: Speculate | Duration | None = None
    recycle_on: RecycleOn | Iterable[RecycleOn] = ()


class TaskMaker:
    """Makes tasks of functions with given options, and registers them."""

    def __init__(
        self,
        client: Client,
        registry: TaskRegistry,
        options: TaskOptions,
        *,
        retry: RetryPolicy,
        default_queue: str,
        around: Callable[[Callable[..., Any]], Callable[..., Any]],
    ) -> None:
        self._client = client
        self._registry = registry
        self._options = options
        self._retry = retry
        self._default_queue = default_queue
        self._around = around

    @overload
    def __call__(
        self, function: Callable[Concatenate[JobContext, P], Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[JobContext, P], R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...

    def __call__(self, function: Callable[..., Any], /) -> Task[..., Any]:
        if not callable(function):
            hint = ": use task(name=...)" if isinstance(function, str) else ""
            raise ConfigurationError(f"harbor.task goes on a function, not on {function!r:.80}{hint}")
        options = self._options
        declarations = waiting_declarations(function)
        function = self._around(function)
        task_class = AsyncTask if inspect.iscoroutinefunction(function) else Task
        task: Task[..., Any] = task_class(
            function,
            self._request(function),
            codec=self._client.codec,
            default_queue=self._default_queue,
            run_in=options.run_in,
            retry=_with_kinds(_policy(options.retry) or self._retry, options),
            speculate=_speculation(options.speculate),
            recycle_on=options.recycle_on,
        )
        self._registry.add(task)
        bound = task.bound_to(self._client)
        for declare in declarations:
            declare(bound)
        return bound

    def _request(self, function: Callable[..., Any]) -> JobRequest:
        options = self._options
        return JobRequest(
            type=options.name or _name_of(function),
            queue=options.queue,
            priority=options.priority,
            requires=options.requires,
            timeout=options.timeout,
            max_attempts=options.max_attempts,
            max_stalls=options.max_stalls,
            min_backoff=options.min_backoff,
            max_backoff=options.max_backoff,
        )


def _name_of(function: Callable[..., Any]) -> str:
    """The function's own name, without its module: a script and a worker import it differently."""
    name = getattr(function, "__name__", None)
    if not isinstance(name, str) or not name[:1].isalnum() or not name.isascii():
        raise ConfigurationError(f"{function!r} needs a name for its jobs: use task(name=...)")
    return name


def _policy(retry: RetryPolicy | RetryPreset | None) -> RetryPolicy | None:
    if retry is None or isinstance(retry, RetryPolicy):
        return retry
    if retry not in PRESETS:
        raise ConfigurationError(f"retry={retry!r} is not a preset; presets are {', '.join(PRESETS)}")
    return PRESETS[retry]


def _with_kinds(policy: RetryPolicy, options: TaskOptions) -> RetryPolicy:
    """The policy with the exceptions of the task, where it names any."""
    named = {"retry_on": options.retry_on, "no_retry_on": options.no_retry_on}
    kinds = {name: error_kinds(value) for name, value in named.items() if value is not None}
    return msgspec.structs.replace(policy, **kinds) if kinds else policy


def _speculation(speculate: Speculate | Duration | None) -> Speculate | None:
    if speculate is None or isinstance(speculate, Speculate):
        return speculate
    return Speculate(after=duration(speculate, "speculate"))
