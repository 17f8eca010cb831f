"""Logs: records of the standard library for people, as JSON or as logfmt, each with its job.

One event is one line; only for people a traceback follows it, on indented lines of its own. Passwords in
URLs are hidden, whoever wrote them into a message; payloads and tokens never get into one.

    handler.addFilter(JobContext())      # for handlers of your own: records get taskharbor_job_id …
"""

from __future__ import annotations

import json
import logging
import os
import sys
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from typing import Any, TextIO

from taskharbor.events import AttemptFinished, AttemptWentWrong, EventBus
from taskharbor.middleware import running
from taskharbor.model.secrets import HIDDEN, is_secret_name, redacted
from taskharbor.observe.plain_text import clean, without_passwords

PREFIX = "taskharbor_"
VARIABLE = "TASKHARBOR_LOGS"
"""How this process logs, told to the handler processes that it starts: format, a space, level."""

_log = logging.getLogger("taskharbor.job")
_USUAL = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_SHOWN_TO_PEOPLE = ("job_id", "attempt")


class LogFormat(StrEnum):
    CONSOLE = "console"
    JSON = "json"
    LOGFMT = "logfmt"


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def log_to_stderr(form: LogFormat, level: LogLevel, *, alone: bool = False) -> None:
    """Send the records of everything in this process to stderr; `alone` turns other handlers off.

    Handler processes that are started from here log the same way.
    """
    handler = StderrHandler(sys.stderr)
    handler.setFormatter(_FORMATTERS[form]())
    handler.addFilter(JobContext())
    root = logging.getLogger()
    others = [] if alone else [one for one in root.handlers if not isinstance(one, StderrHandler)]
    root.handlers[:] = [*others, handler]
    root.setLevel(level.upper())
    os.environ[VARIABLE] = f"{form.value} {level.value}"


def log_as_told(told: str) -> None:
    """Log as the process does that started this one; `told` is what it left in VARIABLE."""
    form, _, level = told.partition(" ")
    log_to_stderr(LogFormat(form), LogLevel(level))


class StderrHandler(logging.StreamHandler[TextIO]):
    """Ours: a second call takes the place of the first, and handlers of others stay."""


class JobContext(logging.Filter):
    """Puts the job that runs here into every record: taskharbor_job_id, _task, _queue, _attempt, _worker.

    What a record says itself stays.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        ctx = running.get(None)
        if ctx is not None:
            for name, value in ctx.log_fields.items():
                vars(record).setdefault(name, value)
        return True


# ------------------------------------------------------------------ a line per attempt


def tell_attempts(events: EventBus) -> None:
    """A line for every attempt that failed; for those that went well too where somebody watches.

    A line costs more than a small job does, so without a terminal success is told at debug level only;
    where that level is off, attempts that go well are not even heard of.
    """
    success = logging.INFO if sys.stderr.isatty() else logging.DEBUG
    wanted = AttemptFinished if _log.isEnabledFor(success) else AttemptWentWrong
    events.listen(partial(_attempt, success), wanted)


def _attempt(success: int, event: AttemptFinished) -> None:
    level = success if event.error is None else logging.WARNING
    if not _log.isEnabledFor(level):
        return
    said = f": {event.error}" if event.error else ""
    told = {
        "taskharbor_job_id": event.job_id,
        "taskharbor_task": event.type,
        "taskharbor_queue": event.queue,
        "taskharbor_attempt": event.attempt,
        "taskharbor_worker": event.worker_id,
        "outcome": event.outcome,
        "seconds": round(event.seconds, 6),
    }
    _log.log(level, "%s %s in %.3f s%s", event.type, event.outcome, event.seconds, said, extra=told)


# ------------------------------------------------------------------ formats


class Console(logging.Formatter):
    """For people."""

    def format(self, record: logging.LogRecord) -> str:
        extra = _extra(record)
        words = " ".join(f"{name}={extra[name]}" for name in _SHOWN_TO_PEOPLE if name in extra)
        line = f"{_instant(record)[11:23]} {record.levelname:<7} {record.getMessage()} {words}".rstrip()
        return without_passwords("\n".join((_escaped(line), *_trace_lines(record))))


class Json(logging.Formatter):
    """An object a line."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(_fields(record), default=str, ensure_ascii=True)


class Logfmt(logging.Formatter):
    """name=value a line."""

    def format(self, record: logging.LogRecord) -> str:
        return " ".join(f"{name}={_quoted(value)}" for name, value in _fields(record).items())


_FORMATTERS: dict[LogFormat, type[logging.Formatter]] = {
    LogFormat.CONSOLE: Console,
    LogFormat.JSON: Json,
    LogFormat.LOGFMT: Logfmt,
}


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields = {
        "at": _instant(record),
        "level": record.levelname.lower(),
        "logger": record.name,
        "message": _message(record),
        **_extra(record),
    }
    return {
        name: without_passwords(value) if isinstance(value, str) else value for name, value in fields.items()
    }


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    """What a record carries beyond the usual; in our own lines the prefix would say nothing."""
    return {
        name.removeprefix(PREFIX): HIDDEN if is_secret_name(name) else redacted(value)
        for name, value in vars(record).items()
        if name not in _USUAL
    }


def _message(record: logging.LogRecord) -> str:
    text = record.getMessage()
    if record.exc_info:
        text += "\n" + logging.Formatter().formatException(record.exc_info)
    return text


def _trace_lines(record: logging.LogRecord) -> list[str]:
    """Indented, so that nothing in an error's text can pass for an event of its own."""
    if not record.exc_info:
        return []
    trace = logging.Formatter().formatException(record.exc_info)
    return [f"    {clean(line)}" for line in trace.splitlines()]


def _instant(record: logging.LogRecord) -> str:
    return (
        datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    )


def _escaped(text: str) -> str:
    """One line whatever is in it; nothing that steers a terminal."""
    return clean(text.replace("\\", "\\\\") if "\n" in text else text).replace("\n", "\\n")


def _quoted(value: object) -> str:
    text = without_passwords(str(value))
    if text and not any(sign in text for sign in ' "=\\') and text.isprintable():
        return text
    return json.dumps(text)
