"""How a job gets done."""

from taskharbor.model.worker_options import WorkerOptions
from taskharbor.worker.attempt import JobContext
from taskharbor.worker.cancellation import Cancellation
from taskharbor.worker.worker import Worker

__all__ = ["Cancellation", "JobContext", "Worker", "WorkerOptions"]
