"""Logs of long-running commands, on stderr: for people, as JSON or as logfmt.

One event is one line; only for people a traceback follows it, on indented lines of its own.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from typing import Any, TextIO

from taskharbor.cli.terminal import clean
from taskharbor.events import AttemptFinished, EventBus

_log = logging.getLogger("taskharbor.job")
_USUAL = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


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
    """Send the records of everything in this process to stderr; `alone` turns other handlers off."""
    handler = StderrHandler(sys.stderr)
    handler.setFormatter(_FORMATTERS[form]())
    root = logging.getLogger()
    others = [] if alone else [one for one in root.handlers if not isinstance(one, StderrHandler)]
    root.handlers[:] = [*others, handler]
    root.setLevel(level.upper())


class StderrHandler(logging.StreamHandler[TextIO]):
    """Ours: a second call takes the place of the first, and handlers of others stay."""


def tell_attempts(events: EventBus) -> None:
    """A line for every attempt that failed; for those that went well too where somebody watches.

    A line costs more than a small job does, so without a terminal success is told at debug level only.
    """
    success = logging.INFO if sys.stderr.isatty() else logging.DEBUG
    events.listen(partial(_attempt, success), AttemptFinished)


def _attempt(success: int, event: AttemptFinished) -> None:
    level = success if event.error is None else logging.WARNING
    if not _log.isEnabledFor(level):
        return
    said = f": {event.error}" if event.error else ""
    told = {
        "job_id": event.job_id,
        "job_type": event.type,
        "queue": event.queue,
        "attempt": event.attempt,
        "outcome": event.outcome,
        "seconds": round(event.seconds, 6),
    }
    _log.log(level, "%s %s in %.3f s%s", event.type, event.outcome, event.seconds, said, extra=told)


class _Console(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        words = " ".join(
            f"{name}={value}" for name, value in _extra(record).items() if name in ("job_id", "attempt")
        )
        line = f"{_instant(record)[11:23]} {record.levelname:<7} {record.getMessage()} {words}".rstrip()
        return "\n".join((_escaped(line), *_trace_lines(record)))


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = _fields(record)
        return json.dumps(fields, default=str, ensure_ascii=True)


class _Logfmt(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return " ".join(f"{name}={_quoted(value)}" for name, value in _fields(record).items())


_FORMATTERS: dict[LogFormat, type[logging.Formatter]] = {
    LogFormat.CONSOLE: _Console,
    LogFormat.JSON: _Json,
    LogFormat.LOGFMT: _Logfmt,
}


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return {
        "at": _instant(record),
        "level": record.levelname.lower(),
        "logger": record.name,
        "message": _message(record),
        **_extra(record),
    }


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in _USUAL}


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
    text = str(value)
    if text and not any(sign in text for sign in ' "=\\') and text.isprintable():
        return text
    return json.dumps(text)
