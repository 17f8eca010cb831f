"""Keywords of `Harbor.worker`, `QueueControl.configure`, `Schedules.put`, `harbor.cron`, for type checkers.

With `**options: Unpack[HarborWorkerKeywords]` a misspelt keyword, or one of the wrong type, fails in mypy and
pyright. tests/unit/harbor/test_keywords.py holds these lists to what the code really takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypedDict, TypeVar, overload

from taskharbor.client.task import Task
from taskharbor.client.workflow import Workflow
from taskharbor.model.clock import Clock
from taskharbor.model.codec import Codec
from taskharbor.model.duration import Duration
from taskharbor.model.entropy import Entropy
from taskharbor.model.limits import RateLimit
from taskharbor.model.queue import Retention
from taskharbor.model.retry import ErrorKind, RetryPolicy, RetryPreset
from taskharbor.model.schedule import Misfire
from taskharbor.model.speculation import Speculate
from taskharbor.model.worker_options import WorkerKeywords
from taskharbor.tasks.handler import RecycleOn, RunIn
from taskharbor.tasks.request import Call, JobRequest

if TYPE_CHECKING:
    from taskharbor.worker.attempt import JobContext
    from taskharbor.worker.resolver import Resolve


class HarborWorkerKeywords(WorkerKeywords, total=False):
    """The further options of `harbor.worker(...)`."""

    codec: Codec | None
    clock: Clock | None
    entropy: Entropy | None
    resolve: Resolve | None
    sweep_every: Duration


class QueueKeywords(TypedDict, total=False):
    """The settings of a queue; `QueueSettings` describes them."""

    paused: bool
    max_running: int | None
    enqueue_rate: RateLimit | None
    execute_rate: RateLimit | None
    fail_queue: str | None
    retention: Retention | None


class RuleKeywords(TypedDict, total=False):
    """When a schedule fires."""

    cron: str | None
    every: Duration | None
    timezone: str
    misfire: Misfire
    paused: bool


class FailureTaskKeywords(TypedDict, total=False):
    """The options of `harbor.task` that make sense for failure jobs."""

    priority: int
    requires: str
    timeout: Duration | None
    max_attempts: int | None
    max_stalls: int | None
    min_backoff: Duration | None
    max_backoff: Duration | None
    retry: RetryPolicy | RetryPreset | None
    retry_on: ErrorKind | Iterable[ErrorKind] | None
    no_retry_on: ErrorKind | Iterable[ErrorKind] | None
    run_in: RunIn
    speculate: Speculate | Duration | None
    recycle_on: RecycleOn | Iterable[RecycleOn]


class NodeKeywords(TypedDict, total=False):
    """What holds for all jobs of a workflow that do not say it themselves."""

    queue: str | None
    priority: int
    requires: str
    headers: Mapping[str, str] | None


class WorkflowKeywords(NodeKeywords, total=False):
    """The further options of `harbor.chain` and `harbor.group`."""

    deadline: Duration | None
    fail_fast: bool
    idempotency_key: str | bytes | None


class CallableWithoutArguments(Protocol):
    """A task whose parameters all have defaults: `task.call()` is enough."""

    def call(self) -> JobRequest: ...


R = TypeVar("R")
Link: TypeAlias = Call[R] | Task[Any, R] | Workflow[R]
"""A link of a chain: a call, or a bare task, which takes the result of the link before it."""

TaskT = TypeVar("TaskT", bound=CallableWithoutArguments)
FunctionT = TypeVar("FunctionT", bound=Callable[[], Any])
WithContextT = TypeVar("WithContextT", bound="Callable[[JobContext], Any]")


class CronDecorator(Protocol):
    """What `harbor.cron("0 3 * * *")` returns: it takes a task, or a function that becomes one."""

    @overload
    def __call__(self, task: TaskT, /) -> TaskT: ...
    @overload
    def __call__(self, function: FunctionT, /) -> FunctionT: ...
    @overload
    def __call__(self, function: WithContextT, /) -> WithContextT: ...
