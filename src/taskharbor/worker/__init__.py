"""How a job gets done."""

from taskharbor.worker.cancellation import Cancellation
from taskharbor.worker.config import WorkerConfig
from taskharbor.worker.context import JobContext
from taskharbor.worker.worker import Worker

__all__ = ["Cancellation", "JobContext", "Worker", "WorkerConfig"]
