"""The lines that `show` and `why` print."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import msgspec

from taskharbor.cli.columns import ago, counted, span_text, tries
from taskharbor.cli.tables import wrapped

View = dict[str, Any]

_WIDTH = 16


def job_lines(job: View, now: datetime) -> Iterator[str]:
    """A job from its id to its history; empty fields are left out."""
    yield f"{job['id']}  {job['type']}  {job['state']}"
    for name, value in _job_facts(job, now):
        if value not in (None, "", {}, []):
            yield f"  {name:<{_WIDTH}} {_indented(str(value))}"
    for name in ("payload", "result"):
        if (text := _data_text(job, name)) is not None:
            yield f"  {name:<{_WIDTH}} {_indented(text)}"
    if job["history"]:
        yield "  history"
    for attempt in job["history"]:
        yield from _attempt_lines(attempt, now)


def _job_facts(job: View, now: datetime) -> Iterator[tuple[str, Any]]:
    yield "queue", job["queue"]
    yield "key", job["key"]
    yield "idempotency key", job["idempotency_key"]
    yield "tries", _tries_text(job)
    yield "priority", job["priority"] or None
    yield "requires", None if job["requires"] == "any" else job["requires"]
    yield "timeout", span_text(job["timeout_s"])
    for name in ("created", "started", "finished"):
        yield name, _moment(job[f"{name}_at"], now)
    if job["failed_at"] != job["finished_at"]:  # the same for a dead letter
        yield "last failure", _moment(job["failed_at"], now)
    yield "due", _moment(job["run_at"], now)
    yield "worker", job["worker_id"]
    yield "lease ends", _moment(job["lease_expires_at"], now)
    yield "cancel", "requested" if job["cancel_requested"] else None
    progress = job["progress"]
    yield "progress", progress and f"{progress['fraction']:.0%} {progress['text']}".strip()
    yield "failure", job["failure_kind"]
    yield "last error", job["last_error"]
    yield "headers", ", ".join(f"{name}={value}" for name, value in job["headers"].items())
    yield "copy of", job["speculates_on"]


def _tries_text(job: View) -> str:
    """2/5 (1 failed, 0 stalled, 2 starts)."""
    words = [f"{job['attempts']} failed", f"{job['stalls']} stalled", counted(job["starts"], "start")]
    return f"{tries(job)} ({', '.join(words)})"


def why_lines(why: View, width: int | None = None) -> Iterator[str]:
    """The answer in one line, or as many as a terminal of this width needs; then facts, then a hint."""
    is_named = " until " in why["text"]
    until = f" (until {why['until']})" if why["until"] and not is_named else ""
    answer = f"{why['id']} {why['type']} {why['text']}{until}"
    yield from [answer] if width is None else wrapped(answer, width)
    for fact in why["facts"]:
        yield f"  {_indented(fact)}"
    if why["hint"]:
        yield why["hint"]


def _attempt_lines(attempt: View, now: datetime) -> Iterator[str]:
    span = datetime.fromisoformat(attempt["ended_at"]) - datetime.fromisoformat(attempt["started_at"])
    ran = span_text(span.total_seconds())
    yield f"    {attempt['outcome']} {ago(attempt['ended_at'], now)} after {ran} under {attempt['worker_id']}"
    for line in (attempt["error"] or "").splitlines():
        yield f"      {line}"


def _moment(text: str | None, now: datetime) -> str | None:
    return None if text is None else f"{text} ({ago(text, now)})"


def _data_text(job: View, name: str) -> str | None:
    if f"{name}_base64" in job:
        return f"base64: {job[f'{name}_base64']}"
    value = job.get(name)
    return None if value is None else msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def _indented(text: str) -> str:
    return text.replace("\n", "\n" + " " * (_WIDTH + 3))
