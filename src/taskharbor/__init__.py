"""TaskHarbor: background jobs for Python.

Names are loaded when they are first used, so that `import taskharbor` costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = [
    "AsyncTask",
    "Cancel",
    "Client",
    "FailedJob",
    "Harbor",
    "Job",
    "JobContext",
    "JobFailed",
    "JobHandle",
    "JobRecord",
    "JobRequest",
    "JobState",
    "JsonCodec",
    "MsgpackCodec",
    "Query",
    "QueueSettings",
    "RateLimit",
    "Retention",
    "RetryPolicy",
    "Snooze",
    "Speculate",
    "Task",
    "TaskHarborError",
    "Unrecoverable",
    "Update",
    "Worker",
    "WorkerOptions",
    "__version__",
]

if TYPE_CHECKING:
    from taskharbor.client.client import Client
    from taskharbor.client.handle import JobHandle
    from taskharbor.client.task import AsyncTask, Task
    from taskharbor.drivers.messages import Query
    from taskharbor.errors import JobFailed, TaskHarborError, Unrecoverable
    from taskharbor.harbor.harbor import Harbor
    from taskharbor.model.codec import JsonCodec, MsgpackCodec
    from taskharbor.model.job import Job, JobRecord, Update
    from taskharbor.model.limits import RateLimit
    from taskharbor.model.outcome import Cancel, Snooze
    from taskharbor.model.queue import QueueSettings, Retention
    from taskharbor.model.retry import RetryPolicy
    from taskharbor.model.speculation import Speculate
    from taskharbor.model.state import JobState
    from taskharbor.model.worker_options import WorkerOptions
    from taskharbor.tasks.failed import FailedJob
    from taskharbor.tasks.request import JobRequest
    from taskharbor.worker.attempt import JobContext
    from taskharbor.worker.worker import Worker

_HOMES = {
    "taskharbor.client.client": ("Client",),
    "taskharbor.client.handle": ("JobHandle",),
    "taskharbor.client.task": ("AsyncTask", "Task"),
    "taskharbor.drivers.messages": ("Query",),
    "taskharbor.errors": ("JobFailed", "TaskHarborError", "Unrecoverable"),
    "taskharbor.harbor.harbor": ("Harbor",),
    "taskharbor.model.codec": ("JsonCodec", "MsgpackCodec"),
    "taskharbor.model.job": ("Job", "JobRecord", "Update"),
    "taskharbor.model.limits": ("RateLimit",),
    "taskharbor.model.outcome": ("Cancel", "Snooze"),
    "taskharbor.model.queue": ("QueueSettings", "Retention"),
    "taskharbor.model.retry": ("RetryPolicy",),
    "taskharbor.model.speculation": ("Speculate",),
    "taskharbor.model.state": ("JobState",),
    "taskharbor.tasks.failed": ("FailedJob",),
    "taskharbor.tasks.request": ("JobRequest",),
    "taskharbor.worker.attempt": ("JobContext",),
    "taskharbor.model.worker_options": ("WorkerOptions",),
    "taskharbor.worker.worker": ("Worker",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


if not TYPE_CHECKING:  # the type checker would take any name for granted

    def __getattr__(name: str) -> Any:
        if name not in _HOME_OF:
            raise AttributeError(f"module 'taskharbor' has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
        return value


def __dir__() -> list[str]:
    return __all__
