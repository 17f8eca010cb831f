"""The columns of every table, and how times and attempts are printed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from taskharbor.cli.tables import Column

Item = Mapping[str, Any]

NARROW_STATES = {
    "ready": "READY",
    "scheduled": "SCHED",
    "blocked": "BLOCK",
    "running": "RUN",
    "completed": "DONE",
    "failed": "FAIL",
    "cancelled": "CANCEL",
}
"""The states in table order, with short titles for narrow terminals."""

_RUNS_SHOWN = 3
_ERROR_SHOWN = 200
_UNITS = (("d", 86_400), ("h", 3600), ("m", 60))


def span_text(seconds: float | None) -> str | None:
    """A short duration: 0.2s, 14s, 3m, 2h, 5d."""
    if seconds is None:
        return None
    for unit, size in _UNITS:
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return f"{seconds:.1f}s" if seconds < 10 else f"{int(seconds)}s"


def ago(text: str | None, now: datetime) -> str | None:
    """How long ago, or in how long."""
    if text is None:
        return None
    passed = (now - datetime.fromisoformat(text)) / timedelta(seconds=1)
    return f"{span_text(passed)} ago" if passed >= 0 else f"in {span_text(-passed)}"


def job_columns(now: datetime) -> Sequence[Column]:
    return (
        Column("ID", lambda job: job["id"], is_id=True),
        Column("TYPE", lambda job: job["type"]),
        Column("QUEUE", lambda job: job["queue"]),
        Column("STATE", lambda job: job["state"]),
        Column("TRY", tries),
        Column("CREATED", lambda job: ago(job["created_at"], now), raw=_field("created_at"), spare=1),
        Column("WHEN", lambda job: _when(job, now), raw=_instant_of),
        Column("ERROR", lambda job: _short(job["last_error"]), raw=_field("last_error"), is_below=True),
    )


def dead_columns(now: datetime) -> Sequence[Column]:
    return (
        Column("ID", lambda job: job["id"], is_id=True),
        Column("TYPE", lambda job: job["type"]),
        Column("QUEUE", lambda job: job["queue"]),
        Column("KIND", lambda job: job["failure_kind"]),
        Column("TRY", tries),
        Column("STALLS", lambda job: job["stalls"], is_number=True, spare=1),
        Column("FAILED", lambda job: ago(job["failed_at"], now), raw=_field("failed_at")),
        Column("ERROR", lambda job: _short(job["last_error"]), raw=_field("last_error"), is_below=True),
    )


def queue_columns() -> Sequence[Column]:
    return (
        Column("QUEUE", lambda queue: queue["name"]),
        *(
            Column(name.upper(), _field(name), is_number=True, narrow=narrow)
            for name, narrow in NARROW_STATES.items()
        ),
        Column("OLDEST", lambda queue: span_text(queue["oldest_s"]), is_number=True, raw=_field("oldest_s")),
        Column("SETTINGS", lambda queue: ", ".join(settings_of(queue)), is_below=True),
    )


def worker_columns(now: datetime) -> Sequence[Column]:
    return (
        Column("WORKER", lambda worker: worker["id"]),
        Column("KIND", lambda worker: worker["kind"]),
        Column("QUEUES", lambda worker: ",".join(worker["queues"]), is_below=True),
        Column("BUSY", _busy),
        Column(
            "LATENCY", lambda worker: _latency(worker["latency_s"]), is_number=True, raw=_field("latency_s")
        ),
        Column("RUNS", lambda worker: _runs(worker, now), is_below=True),
        Column(
            "HOST", lambda worker: f"{worker['host']}:{worker['pid']}" if worker["host"] else None, spare=1
        ),
        Column("UP", lambda worker: ago(worker["started_at"], now), raw=_field("started_at")),
        Column("SEEN", lambda worker: ago(worker["seen_at"], now), raw=_field("seen_at")),
    )


def schedule_columns(now: datetime) -> Sequence[Column]:
    return (
        Column("SCHEDULE", lambda entry: entry["name"]),
        Column("RULE", lambda entry: entry["cron"] or f"every {span_text(entry['every_s'])}"),
        Column("ZONE", lambda entry: entry["timezone"], is_below=True),
        Column("TYPE", lambda entry: entry["type"], is_below=True),
        Column("QUEUE", lambda entry: entry["queue"], is_below=True),
        Column("NEXT", lambda entry: _next_tick(entry, now), raw=_field("next_tick_at")),
        Column("LAST", lambda entry: ago(entry["fired_at"], now) or "never", raw=_field("fired_at")),
    )


def answer_columns() -> Sequence[Column]:
    return (
        Column("ID", lambda answer: answer["id"], is_id=True),
        Column("RESULT", lambda answer: answer["result"]),
        Column("STATE", lambda answer: answer["state"]),
        Column("NOTE", lambda answer: answer["note"], is_below=True),
    )


def tries(job: Item) -> str:
    """Attempts so far and allowed: 1/5 during the first."""
    tried = _tried(job)
    return f"{tried}/{job['max_attempts']}" if job["max_attempts"] else str(tried)


def _tried(job: Item) -> int:
    """`attempts` counts failed ones; one that runs or ended otherwise is added."""
    match job["state"]:
        case "running" | "completed":
            return int(job["attempts"]) + 1
        case "cancelled":
            return int(min(job["starts"] - job["stalls"], job["attempts"] + 1))
        case _:
            return int(job["attempts"])


def counted(count: int, noun: str) -> str:
    """1 job, 2 jobs."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def settings_of(rules: Item) -> list[str]:
    """The settings of a queue in words; empty if it has none."""
    words = ["paused"] if rules["paused"] else []
    if rules["max_running"] is not None:
        words.append(f"max {rules['max_running']}")
    words += [
        f"{name} {rate['count']}/{span_text(rate['per_s'])}"
        for name in ("enqueue", "execute")
        if (rate := rules[f"{name}_rate"]) is not None
    ]
    if rules["fail_queue"]:
        words.append(f"failures to {rules['fail_queue']}")
    if (kept := rules["retention"]) is not None:
        spans = (f"{name[:-2]} {span_text(value) or 'forever'}" for name, value in kept.items())
        words.append(f"keeps {' / '.join(spans)}")
    return words


def _when(job: Item, now: datetime) -> str | None:
    match job["state"]:
        case "scheduled":
            return ago(job["run_at"], now)
        case "running":
            return f"started {ago(job['started_at'], now)}"
        case "completed" | "failed" | "cancelled":
            return ago(job["finished_at"], now)
        case _:
            return None


def _instant_of(job: Item) -> str | None:
    """The instant of the column WHEN."""
    fields = {"scheduled": "run_at", "running": "started_at"}
    is_over = job["state"] in ("completed", "failed", "cancelled")
    field = "finished_at" if is_over else fields.get(job["state"])
    return None if field is None else job[field]


def _busy(worker: Item) -> str:
    quiet = " quiet" if worker["is_quiet"] else ""
    return f"{len(worker['running'])}/{worker['concurrency']}{quiet}"


def _runs(worker: Item, now: datetime) -> str | None:
    """What a worker runs: tasks and durations, longest first."""
    runs = [f"{run['type']} {_age(run['started_at'], now)}" for run in worker["runs"][:_RUNS_SHOWN]]
    more = len(worker["running"]) - len(runs)
    return ", ".join([*runs, *([f"+{more}"] if more > 0 else [])]) or None


def _age(text: str | None, now: datetime) -> str:
    if text is None:
        return "?"
    return span_text(max((now - datetime.fromisoformat(text)).total_seconds(), 0.0)) or "?"


def _next_tick(entry: Item, now: datetime) -> str | None:
    if entry["trouble"]:
        return f"broken: {_short(entry['trouble'])}"
    if entry["is_undeclared"]:
        return "undeclared"
    return "paused" if entry["paused"] else ago(entry["next_tick_at"], now)


def _short(error: str | None) -> str | None:
    return error if error is None or len(error) <= _ERROR_SHOWN else f"{error[: _ERROR_SHOWN - 1]}…"


def _latency(seconds: float | None) -> str | None:
    return None if seconds is None else f"{seconds * 1000:.1f} ms"


def _field(name: str) -> Any:
    return lambda item: item[name]
