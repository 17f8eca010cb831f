"""Notebooks: whether a blocking call is allowed here, and a job as HTML."""

from __future__ import annotations

import asyncio
import sys
import threading
from asyncio import _get_running_loop as running_loop
from collections.abc import Callable
from html import escape
from typing import Any

from taskharbor.errors import TaskHarborError
from taskharbor.model.job import JobRecord
from taskharbor.model.state import JobState

_LONGEST = 500
"""Letters of a result or an error that are shown."""


def blocks_async_code() -> bool:
    """Whether a blocking call would stop other code: an event loop runs here, and it is no notebook's."""
    loop = running_loop()
    return loop is not None and not is_kernel_loop(loop)


def is_kernel_loop(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether ipykernel runs the cells of a notebook, or of a subshell of it, in this event loop."""
    kernelapp = sys.modules.get("ipykernel.kernelapp")
    if kernelapp is None or not kernelapp.IPKernelApp.initialized():
        return False
    runners = (kernelapp.IPKernelApp.instance(), threading.current_thread())
    return any(_asyncio_loop(runner) is loop for runner in runners)


def _asyncio_loop(runner: object) -> Any:
    """The loop of a kernel, or of a thread of ipykernel; both keep tornado's wrapper around it."""
    return getattr(getattr(runner, "io_loop", None), "asyncio_loop", None)


def html_of(job_id: str, record: JobRecord | None, result_of: Callable[[JobRecord], Any]) -> str:
    """A small table: what the job is, its state and try, and its result or last error."""
    rows = [("job", job_id)]
    if record is not None:
        rows += [("task", record.type), ("queue", record.queue), ("state", str(record.state))]
        rows += [("try", _try(record))]
        if record.state is JobState.COMPLETED:
            rows += [("result", _result(record, result_of))]
        elif record.last_error is not None:
            rows += [("error", record.last_error)]
    cells = "".join(f"<tr><th>{name}</th><td>{escape(_short(text))}</td></tr>" for name, text in rows)
    return f"<table>{cells}</table>"


def _result(record: JobRecord, result_of: Callable[[JobRecord], Any]) -> str:
    try:
        return repr(result_of(record))
    except TaskHarborError as error:  # the code has changed since: a cell shows the job all the same
        return f"cannot be read: {error}"


def _try(record: JobRecord) -> str:
    """Which run of the job this is, or was the last."""
    current = record.attempts + (record.state in (JobState.RUNNING, JobState.COMPLETED))
    return f"{current} of {record.max_attempts}" if record.max_attempts else str(current)


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
