"""Named handlers, and the jobs built from them."""

from taskharbor.tasks.definition import TaskDefinition
from taskharbor.tasks.handler import (
    Arguments,
    Handler,
    RunIn,
    job_handler,
    load_function,
    result_encoder,
)
from taskharbor.tasks.registry import TaskRegistry
from taskharbor.tasks.request import JobRequest, template_of

__all__ = [
    "Arguments",
    "Handler",
    "JobRequest",
    "RunIn",
    "TaskDefinition",
    "TaskRegistry",
    "job_handler",
    "load_function",
    "result_encoder",
    "template_of",
]
