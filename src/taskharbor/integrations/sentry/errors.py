"""Error events: of an exception here, of one in a handler process, of a time limit."""

from __future__ import annotations

import re
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import sentry_sdk
from sentry_sdk.utils import event_from_exception

from taskharbor.errors import TimedOut
from taskharbor.model.job import Job
from taskharbor.model.outcome import Failed

if TYPE_CHECKING:
    from taskharbor.worker.attempt import JobContext

_PACKAGE = str(Path(__file__).parents[2]) + "/"
_FRAME = re.compile(
    r'^  File "(?P<file>.+)", line (?P<line>\d+), in (?P<name>.+)\n(?:    (?P<text>.*)\n)?', re.MULTILINE
)


def report(ctx: JobContext, job: Job, error: BaseException | None, *, is_last: bool) -> None:
    from taskharbor.worker.executors.contract import BadPayload, HandlerDied, RemoteFailure

    mechanism = {"type": "taskharbor", "handled": not is_last}
    if ctx.cancelled.reason == "timeout":
        late = TimedOut(job.timeout)
        late.__cause__ = None if isinstance(error, RemoteFailure) else error
        event, hint = _event_of(late, mechanism)
        event["fingerprint"] = ["taskharbor", "timeout", job.type]
    elif isinstance(error, RemoteFailure) and isinstance(error.outcome, Failed):
        event, hint = _remote_event(error.outcome, mechanism), {}
    else:
        assert error is not None  # noqa: S101 - without one the attempt was completed, or timed out
        cause = error.__cause__ if isinstance(error, BadPayload) else None
        event, hint = _event_of(cause or error, mechanism)
        if isinstance(error, HandlerDied):
            event["fingerprint"] = ["taskharbor", "died", job.type]
    sentry_sdk.capture_event(event, hint=hint)


def _event_of(error: BaseException, mechanism: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    return event_from_exception(
        (type(error), error, _of_handler(error.__traceback__)),
        client_options=sentry_sdk.get_client().options,
        mechanism=mechanism,
    )


def _of_handler(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the handler on, without the frames of the worker that called it."""
    at = trace
    while at is not None and at.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        at = at.tb_next
    return at or trace


def _remote_event(failed: Failed, mechanism: dict[str, Any]) -> Any:
    """The event of an error in a handler process: only its text has travelled here."""
    name, _, text = failed.reason.partition(": ")
    full_name = failed.errors[1] if len(failed.errors) > 1 else name
    frames = [
        {
            "filename": match["file"],
            "abs_path": match["file"],
            "lineno": int(match["line"]),
            "function": match["name"],
            "context_line": match["text"],
        }
        for match in _FRAME.finditer((failed.trace or "").rpartition("Traceback (most recent call last):")[2])
    ]
    exception = {
        "type": name,
        "value": text,
        "module": full_name.removesuffix(name).rstrip(".") or None,
        "mechanism": mechanism,
        "stacktrace": {"frames": frames} if frames else None,
    }
    return {"level": "error", "exception": {"values": [exception]}}
