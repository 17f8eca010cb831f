"""Trace context: from the headers of a request into the headers of its jobs."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec.structs import replace

from taskharbor.errors import InvalidArgument
from taskharbor.model.checks import check_headers
from taskharbor.model.job import NewJob
from taskharbor.web.request import Request

_TRACEPARENT = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-[ -~]*)?")
_NAMES = ("traceparent", "tracestate", "baggage")


def traced(request: Request, jobs: Sequence[NewJob]) -> Sequence[NewJob]:
    """The jobs with the request's trace context, unless they have one or their headers are full."""
    parent = request.head(b"traceparent")
    if parent is None or _TRACEPARENT.fullmatch(parent) is None:
        return jobs
    values = {name: request.head(name.encode()) for name in _NAMES}
    carried = {name: value.decode("latin-1") for name, value in values.items() if value is not None}
    return [_carrying(job, carried) for job in jobs]


def _carrying(job: NewJob, carried: dict[str, str]) -> NewJob:
    if "traceparent" in job.headers:
        return job
    headers = {**carried, **job.headers}
    try:
        check_headers(headers)
    except InvalidArgument:
        return job
    return replace(job, headers=headers)
