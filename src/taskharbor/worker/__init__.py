"""How a job gets done."""

from taskharbor.worker.config import WorkerConfig
from taskharbor.worker.context import Cancellation, JobContext
from taskharbor.worker.worker import Worker

__all__ = ["Cancellation", "JobContext", "Worker", "WorkerConfig"]
