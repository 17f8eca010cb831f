"""Causes: which failures are the same failure, as a pure function of text.

A cause is a hash of the job's type, the shape of the error's first line, and the last own frame of the
traceback. Worker, server and command line work it out alike, so nothing is stored for it.

    ConnectionError: no route to 10.0.0.7:25 for ana@example.com     first line of the error
    ConnectionError: no route to … for …                             its shape, and the title of the cause
    app/mail/smtp.py in connect                                      its own frame, without the line number
"""

from __future__ import annotations

import re
from hashlib import blake2b

import msgspec

from taskharbor.model.job import FailureKind, JobRecord

MAX_LINE = 1024
"""The part of the first line that counts; stores keep no more of it."""
MAX_TRACE = 8 * 1024
"""The part of a traceback that counts: its end."""
MAX_TITLE = 200
_MAX_FRAME = 200
_MAX_WORD = 64

_BLANK = "…"
# Every alternative either has a fixed length or begins where the signs before it cannot, so that no two
# matches look at the same signs: the time is linear.
_IDS = re.compile(
    r"""
      (?<![\w.+-])[\w.+-]++@[\w.-]++                                                # a mail address
    | [0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}   # a UUID
    | (?<![0-9A-Za-z])(?:0[xX])?[0-9a-fA-F]{8,}+(?![0-9A-Za-z])                     # hex: an id, an address
    """,
    re.VERBOSE,
)
_REST = re.compile(
    r"""
      (?<!\w)'[^']{25,}+'(?!\w) | "[^"]{25,}+"     # a long quote
    | (?P<errno>\[Errno\ -?[0-9]++\])
    | [0-9]++(?:[.:,][0-9]++)*+                     # any other number
    """,
    re.VERBOSE,
)
_CLASS = re.compile(r"[A-Za-z_][\w.]*+(?::\ |$)")
_FIRST_NUMBER = re.compile(r"[0-9]++(?![\w.:])")
_SPACE = re.compile(r"\s++")
_FRAME = re.compile(r'[\s|+]*+File "([^"]++)", line [0-9]++, in (.++)')
_FOREIGN = ("site-packages", "dist-packages", "lib/python3", "<frozen")
_OF_HANDLER = frozenset({FailureKind.ERROR, FailureKind.UNRECOVERABLE})
_TITLES = {
    FailureKind.TIMEOUT: "It ran longer than its timeout",
    FailureKind.STALLED: "Its worker fell silent or died",
    FailureKind.NO_HANDLER: "No handler for this type",
    FailureKind.INVALID_PAYLOAD: "The payload does not fit the handler",
}


class Cause(msgspec.Struct, frozen=True):
    """Why jobs of a type fail: equal `id`, equal cause."""

    id: str
    """16 hex digits."""

    title: str
    frame: str | None = None
    """File and function that failed, in the code of the application; None if unknown."""


def cause_of(
    type: str, error_first_line: str, traceback: str | None = None, failure_kind: str | None = None
) -> Cause:
    """The cause of one failure. The time is linear in the texts, of which long ones are cut.

    Without a frame of the application, a timeout, a stall, a missing handler and a bad payload are grouped by
    type and `failure_kind` alone.
    """
    kind = failure_kind or FailureKind.ERROR
    frame = own_frame(traceback) if traceback else None
    if frame is None and kind not in _OF_HANDLER:
        return Cause(_digest(type, "", kind[:_MAX_WORD]), _TITLES.get(kind, kind[:_MAX_WORD]))
    title = shape_of(error_first_line)
    return Cause(_digest(type, title, frame or ""), title, frame)


def cause_of_job(job: JobRecord) -> Cause | None:
    """The cause of a job's last failure; None if none is recorded."""
    if job.failure_kind is None:
        return None
    return cause_of(job.type, job.last_error or "", _last_trace(job), job.failure_kind)


def _last_trace(job: JobRecord) -> str | None:
    """The text of the last attempt that failed: a traceback, or just the error."""
    for attempt in reversed(job.history):
        if attempt.outcome in ("retried", "failed", "stalled"):
            return attempt.error
    return None


def shape_of(line: str) -> str:
    """An error's first line with everything blank that differs from job to job."""
    line = _SPACE.sub(" ", line[:MAX_LINE].partition("\n")[0]).strip()
    found = _CLASS.match(line)
    kept = found.end() if found else 0
    number = _FIRST_NUMBER.match(line, kept)
    kept = number.end() if number else kept
    rest = _IDS.sub(_BLANK, line[kept:])
    shape = line[:kept] + _REST.sub(lambda match: match["errno"] or _BLANK, rest)
    return shape if len(shape) <= MAX_TITLE else shape[: MAX_TITLE - 1] + _BLANK


def marked_message(line: str) -> str:
    """An error's first line without its class. Words that differ from job to job are between backticks."""
    line = _SPACE.sub(" ", line[:MAX_LINE].partition("\n")[0]).strip().replace("`", "'")
    found = _CLASS.match(line)
    text = line[found.end() if found else 0 :][:MAX_TITLE]
    number = _FIRST_NUMBER.match(text)
    parts, end = [], 0
    for first, last in _words_that_differ(text, number.end() if number else 0):
        if first < end:  # in a word that is marked
            continue
        parts += [text[end:first], f"`{text[first:last]}`"]
        end = last
    return "".join([*parts, text[end:]])


def _words_that_differ(text: str, kept: int) -> list[tuple[int, int]]:
    """Where each word begins and ends that has what `shape_of` leaves blank, from the first to the last."""
    found = [match for pattern in (_IDS, _REST) for match in pattern.finditer(text, kept)]
    spans = (match.span() for match in found if match.lastgroup != "errno")
    return sorted((text.rfind(" ", 0, first) + 1, _end_of_word(text, last)) for first, last in spans)


def _end_of_word(text: str, at: int) -> int:
    end = text.find(" ", at)
    return len(text) if end < 0 else end


def own_frame(traceback: str) -> str | None:
    """The last frame outside of installed packages and Python: the end of its path, and its function."""
    for line in reversed(traceback[-MAX_TRACE:].splitlines()):
        found = _FRAME.match(line)
        path = found[1].replace("\\", "/") if found else ""
        if found and not any(part in path for part in _FOREIGN):
            return f"{'/'.join(path.split('/')[-3:])} in {found[2].strip()}"[:_MAX_FRAME]
    return None


def _digest(*parts: str) -> str:
    return blake2b("\0".join(parts).encode("utf-8", "replace"), digest_size=8).hexdigest()
