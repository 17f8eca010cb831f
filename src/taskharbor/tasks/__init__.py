"""Named handlers, and the jobs built from them."""

from taskharbor.tasks.handler import (
    Arguments,
    Handler,
    RunIn,
    job_handler,
    load_function,
    result_encoder,
)
from taskharbor.tasks.request import Call, JobRequest, template_of

__all__ = [
    "Arguments",
    "Call",
    "Handler",
    "JobRequest",
    "RunIn",
    "job_handler",
    "load_function",
    "result_encoder",
    "template_of",
]
