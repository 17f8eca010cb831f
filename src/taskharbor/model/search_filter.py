"""Whether a job fits a search: every word of it, looked up in the store or not."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

import msgspec

from taskharbor.model.cause import cause_of_job
from taskharbor.model.job import JobRecord
from taskharbor.model.search import ANYWHERE, NUMBERS, RETRYING, SPANS, Search, Term, Value, is_part_of_id

TAGS_HEADER = "tags"
"""The header that `tag:` reads: names with commas."""
_SECOND = timedelta(seconds=1)


def no_arguments(_job: JobRecord) -> Any:
    return None


class Circumstances(msgspec.Struct, frozen=True, kw_only=True):
    """What a filter needs to know besides the job."""

    now: datetime
    arguments: Callable[[JobRecord], Any] = no_arguments
    """The decoded payload, as the caller may see it: a search must not find what is hidden."""
    releases: Mapping[str, str] = {}
    """The release of each worker, by id."""


def matches(search: Search, job: JobRecord, facts: Circumstances) -> bool:
    """Whether a job fits every word of a search."""
    return all(_holds(term, job, facts) != term.is_negated for term in search.terms)


def fits_name(term: Term, name: str) -> bool:
    """Whether a name fits the word of a search."""
    return any(_fits_text(value, name) for value in term.values) != term.is_negated


def _holds(term: Term, job: JobRecord, facts: Circumstances) -> bool:
    match term.field:
        case "state":
            return any(_is_in_state(job, value.text) for value in term.values)
        case "id":
            return any(_fits_id(value, job) for value in term.values)
        case _ if term.field == ANYWHERE:
            return any(_is_remembered(value, job, facts) for value in term.values)
        case "args":
            found = list(_at(facts.arguments(job), term.path))
            return any(_fits_argument(value, item) for value in term.values for item in found)
        case "error":
            line = job.last_error
            return line is not None and any(_is_part(value, line) for value in term.values)
        case "tag":
            tags = [tag.strip() for tag in job.headers.get(TAGS_HEADER, "").split(",")]
            return any(_fits_text(value, tag) for value in term.values for tag in tags if tag)
    if term.field in NUMBERS or term.field in SPANS:
        number = _NUMBERS[term.field](job, facts.now)
        return number is not None and any(_compare(value, number) for value in term.values)
    text = _TEXTS[term.field](job, facts)
    return text is not None and any(_fits_text(value, text) for value in term.values)


def _is_in_state(job: JobRecord, name: str) -> bool:
    if name == RETRYING:
        return job.state.is_waiting and job.failure_kind is not None
    return job.state.value == name


# ------------------------------------------------------------------ texts


def _worker_of(job: JobRecord) -> str | None:
    """The worker that runs it, or the last one that did."""
    return job.worker_id or (job.history[-1].worker_id if job.history else None)


def _release(job: JobRecord, facts: Circumstances) -> str | None:
    worker = _worker_of(job)
    return None if worker is None else facts.releases.get(worker)


def _key(job: JobRecord) -> str | None:
    return None if job.key is None else job.key.decode("utf-8", "backslashreplace")


def _cause(job: JobRecord, _facts: Circumstances) -> str | None:
    found = cause_of_job(job)
    return None if found is None else found.id


_TEXTS: dict[str, Callable[[JobRecord, Circumstances], str | None]] = {
    "queue": lambda job, _: job.queue,
    "type": lambda job, _: job.type,
    "key": lambda job, _: _key(job),
    "worker": lambda job, _: job.worker_id,
    "failure": lambda job, _: job.failure_kind,
    "lane": lambda job, _: job.requires,
    "release": _release,
    "cause": _cause,
}


def _fits_text(value: Value, text: str) -> bool:
    return _pattern(value.text).fullmatch(text) is not None if value.is_pattern else value.text == text


def _is_part(value: Value, text: str) -> bool:
    """Errors are searched for a part, in any case: people type what they remember."""
    if value.is_pattern:
        return _pattern(f"*{value.text.lower()}*").fullmatch(text.lower()) is not None
    return value.text.lower() in text.lower()


def _fits_id(value: Value, job: JobRecord) -> bool:
    digits, part = job.id.replace("-", ""), value.text.lower().replace("-", "")
    return digits.startswith(part) or digits.endswith(part)


def _is_remembered(value: Value, job: JobRecord, facts: Circumstances) -> bool:
    """A bare word: a part of what lists show of a job. The arguments come last, as they must be decoded."""
    if any(_is_part(value, text) for text in (job.type, job.last_error, _key(job)) if text is not None):
        return True
    if is_part_of_id(value.text) and _fits_id(value, job):
        return True
    return any(_is_part(value, text) for text in _leaves(facts.arguments(job)))


@lru_cache(maxsize=512)
def _pattern(text: str) -> re.Pattern[str]:
    """A pattern with `*` and `?`. Each piece takes its first place for good, so nothing is tried twice."""
    first, *others = re.split(r"\*+", text)
    if not others:
        return re.compile(_piece(first), re.DOTALL)
    *middle, last = others
    inner = "".join(f"(?>.*?{_piece(piece)})" for piece in middle)
    return re.compile(f"{_piece(first)}{inner}.{{{len(last)},}}+(?<={_piece(last)})", re.DOTALL)


def _piece(text: str) -> str:
    return re.escape(text).replace(r"\?", ".")


# ------------------------------------------------------------------ numbers


def _wait(job: JobRecord, now: datetime) -> float | None:
    """How long it waited after its time had come; of a job that waits, how long so far."""
    if job.state.is_waiting:
        return max((now - job.eligible_at) / _SECOND, 0.0)
    return None if job.started_at is None else max((job.started_at - job.eligible_at) / _SECOND, 0.0)


def _run(job: JobRecord, now: datetime) -> float | None:
    """How long its last attempt ran, or runs."""
    if job.started_at is None or job.state.is_waiting:
        return None
    return ((job.finished_at or now) - job.started_at) / _SECOND


_NUMBERS: dict[str, Callable[[JobRecord, datetime], float | None]] = {
    "attempt": lambda job, _: job.attempts,
    "priority": lambda job, _: job.priority,
    "wait": _wait,
    "run": _run,
    "age": lambda job, now: (now - job.created_at) / _SECOND,
    "ended": lambda job, now: None if job.finished_at is None else (now - job.finished_at) / _SECOND,
}


def _compare(value: Value, number: float) -> bool:
    bound = value.number
    if bound is None:
        return False
    match value.comparison:
        case "<":
            return number < bound
        case ">":
            return number > bound
        case "<=":
            return number <= bound
        case ">=":
            return number >= bound
    return number == bound


# ------------------------------------------------------------------ arguments


def _at(value: Any, path: tuple[str, ...]) -> Iterator[Any]:
    """The values at a path. A list means its items, unless the path names one by its number."""
    if isinstance(value, list) and not (path and path[0].isdecimal()):
        for item in value:
            yield from _at(item, path)
        if not path:
            yield value
    elif not path:
        yield value
    elif isinstance(value, dict) and path[0] in value:
        yield from _at(value[path[0]], path[1:])
    elif isinstance(value, list) and len(path[0]) < 10 and int(path[0]) < len(value):
        yield from _at(value[int(path[0])], path[1:])


def _leaves(value: Any) -> Iterator[str]:
    """All single values in the arguments, as texts."""
    left = [value]
    while left:
        item = left.pop()
        if isinstance(item, dict | list):
            left.extend(item.values() if isinstance(item, dict) else item)
        elif isinstance(item, bool) or item is None:
            yield _WORDS[item]
        elif isinstance(item, str | int | float):
            yield str(item)


_WORDS = {True: "true", False: "false", None: "null"}


def _fits_argument(value: Value, item: Any) -> bool:
    if isinstance(item, bool) or item is None:
        return _fits_text(value, _WORDS[item])
    if isinstance(item, int | float):
        return _compare(value, item) if value.number is not None else _fits_text(value, str(item))
    if isinstance(item, str):
        return not value.comparison and _fits_text(value, item)
    return value.is_pattern and value.text == "*"
