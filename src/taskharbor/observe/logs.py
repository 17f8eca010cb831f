"""Logs: records of the standard library for people, as JSON or as logfmt, each with its job.

One event is one line; only for people a traceback follows it, on indented lines of its own. Passwords in
URLs are hidden in every message; payloads and tokens are never logged.

    handler.addFilter(JobLogFilter())      # for handlers of your own: records get taskharbor_job_id …
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import sys
from collections import Counter
from collections.abc import Collection
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, TextIO

from taskharbor.drivers.messages import Settled
from taskharbor.events import (
    AttemptsAnswered,
    AttemptWentWrong,
    DeadlineMissed,
    EventBus,
    WorkerStopped,
    WorkflowEnded,
)
from taskharbor.middleware import running
from taskharbor.model.clock import SystemClock
from taskharbor.model.outcome import Released, Snoozed, Succeeded
from taskharbor.model.secrets import HIDDEN, is_secret_name, redacted
from taskharbor.model.state import JobState
from taskharbor.observe.plain_text import clean, without_passwords

PREFIX = "taskharbor_"
VARIABLE = "TASKHARBOR_LOGS"
"""How this process logs, for the handler processes that it starts: format, a space, level."""

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
    handler.addFilter(JobLogFilter())
    root = logging.getLogger()
    others = [] if alone else [one for one in root.handlers if not isinstance(one, StderrHandler)]
    root.handlers[:] = [*others, handler]
    root.setLevel(level.upper())
    os.environ[VARIABLE] = f"{form.value} {level.value}"


def log_in_child(setting: str) -> None:
    """Log like the parent process; `setting` is its setting from VARIABLE."""
    form, _, level = setting.partition(" ")
    log_to_stderr(LogFormat(form), LogLevel(level))


class StderrHandler(logging.StreamHandler[TextIO]):
    """Ours: a second call takes the place of the first, and handlers of others stay."""


class JobLogFilter(logging.Filter):
    """Puts the job that runs here into every record: taskharbor_job_id, _task, _queue, _attempt, _worker.

    Fields that a record has already are kept.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        ctx = running.get(None)
        if ctx is not None:
            for name, value in ctx.log_fields.items():
                vars(record).setdefault(name, value)
        return True


# ------------------------------------------------------------------ a line per attempt


_WENT_WELL: dict[type, str] = {Succeeded: "completed", Snoozed: "snoozed", Released: "released"}
LINES_A_SECOND = 500
"""This many successful attempts per second get a line each; of more, only the number is logged.

A line costs more than a small job does: with one for each, a worker would do a third of them.
"""


def log_attempts(events: EventBus) -> None:
    """A line for every attempt: ERROR when it failed for good, WARNING when it is tried again, else INFO.

    So has each whole workflow that is over, and each job that missed its deadline. Failures come with their
    traceback. Above the level INFO, successful attempts are not even listened to; at debug level each of them
    has its line, however many there are.
    """
    events.listen(_went_wrong, AttemptWentWrong)
    events.listen(_workflow_ended, WorkflowEnded)
    events.listen(_deadline_missed, DeadlineMissed)
    if _log.isEnabledFor(logging.INFO):
        successes = _Successes(math.inf if _log.isEnabledFor(logging.DEBUG) else LINES_A_SECOND)
        events.listen(successes.answered, AttemptsAnswered)
        events.listen(successes.report_the_rest, WorkerStopped)


def _went_wrong(event: AttemptWentWrong) -> None:
    level = logging.ERROR if event.state == JobState.FAILED else logging.WARNING
    if _log.isEnabledFor(level):
        about = (event.job_id, event.type, event.queue, event.attempt, event.worker_id)
        _say(level, about, event.outcome, event.seconds, f": {event.error}", event.trace)


def _workflow_ended(event: WorkflowEnded) -> None:
    if event.parent is None:
        level = logging.WARNING if event.state == JobState.FAILED else logging.INFO
        counts = event.counts
        _log.log(
            level,
            "workflow %s %s after %.3f s (jobs: %d, failed: %d, cancelled: %d)",
            event.type,
            event.state,
            event.seconds,
            counts.total,
            counts.failed + counts.excused,
            counts.cancelled,
            extra=_about(event),
        )


def _deadline_missed(event: DeadlineMissed) -> None:
    words = "job %s missed its deadline after %.3f s"
    _log.warning(words, event.type, event.seconds, extra=_about(event))


def _about(event: WorkflowEnded | DeadlineMissed) -> dict[str, object]:
    return {
        "taskharbor_job_id": event.job_id,
        "taskharbor_task": event.type,
        "taskharbor_queue": event.queue,
        "seconds": round(event.seconds, 6),
    }


def _say(
    level: int,
    about: tuple[str, str, str, int, str],
    outcome: str,
    seconds: float,
    error: str = "",
    trace: str | None = None,
) -> None:
    job_id, task, queue, attempt, worker = about
    extra = {
        "taskharbor_job_id": job_id,
        "taskharbor_task": task,
        "taskharbor_queue": queue,
        "taskharbor_attempt": attempt,
        "taskharbor_worker": worker,
        "outcome": outcome,
        "seconds": round(seconds, 6),
    }
    words, values = "%s %s in %.3f s%s", (task, outcome, seconds, error)
    record = _log.makeRecord(_log.name, level, __file__, 0, words, values, None, "attempt", extra)
    record.exc_text = trace.rstrip() if trace else None  # every formatter shows it, as that of an exception
    _log.handle(record)


class _Successes:
    """Logs successful attempts, in batches as the store confirms them, and not too many at once."""

    def __init__(self, lines_a_second: float) -> None:
        self._most = lines_a_second
        self._clock = SystemClock()
        self._second = 0.0
        self._lines = 0
        self._more: Counter[str] = Counter()
        self._timer: asyncio.TimerHandle | None = None

    def answered(self, batch: AttemptsAnswered) -> None:
        now = self._clock.monotonic()
        if now - self._second >= 1.0:
            self.report_the_rest()
            self._second, self._lines = now, 0
        for job, answer in zip(batch.jobs, batch.answers, strict=True):
            outcome = _WENT_WELL.get(type(job.end.outcome))
            if outcome is None or not isinstance(answer, Settled):
                continue
            record, attempt = job.record, job.attempt
            if self._lines < self._most:
                self._lines += 1
                about = (record.id, record.type, record.queue, record.attempts + 1, batch.worker_id)
                seconds = 0.0 if attempt.started is None else attempt.ended - attempt.started
                _say(logging.INFO, about, outcome, seconds)
            else:
                self._more[record.type] += 1
        if self._more and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(1.0, self.report_the_rest)

    def report_the_rest(self, _event: object = None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._more:
            tasks = ", ".join(f"{count} {task}" for task, count in sorted(self._more.items()))
            _log.info("%d more completed within a second: %s", self._more.total(), tasks)
            self._more.clear()


# ------------------------------------------------------------------ formats


class Console(logging.Formatter):
    """For people."""

    def format(self, record: logging.LogRecord) -> str:
        extra = _extra(record, _SHOWN_TO_PEOPLE)
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


def _extra(record: logging.LogRecord, names: Collection[str] | None = None) -> dict[str, Any]:
    """The extra fields of a record, or those of these names; our own lines omit the prefix."""
    extra = {}
    for name, value in vars(record).items():
        short = name.removeprefix(PREFIX)
        if name not in _USUAL and (names is None or short in names):
            extra[short] = HIDDEN if is_secret_name(name) else redacted(value)
    return extra


def _message(record: logging.LogRecord) -> str:
    text = record.getMessage()
    trace = _trace(record)
    return f"{text}\n{trace}" if trace else text


def _trace(record: logging.LogRecord) -> str:
    if record.exc_info:
        return logging.Formatter().formatException(record.exc_info)
    return record.exc_text or ""


def _trace_lines(record: logging.LogRecord) -> list[str]:
    """Indented, so that nothing in an error's text can pass for an event of its own."""
    return [f"    {clean(line)}" for line in _trace(record).splitlines()]


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
