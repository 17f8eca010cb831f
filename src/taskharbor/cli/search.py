"""The search language of lists and bulk commands.

    state:failed type:send_* queue:mail failure:timeout age:<1d ended:<1h

Every word is field:value, and all must match. `*` and `?` are wildcards in queue, type, key, worker and
error. `age` counts from the enqueue, `ended` from the end: `<1h` is less than an hour ago, `>1h` more.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any

import msgspec
import typer

from taskharbor.cli.exit_codes import UsageError
from taskharbor.cli.parameters import parse_states
from taskharbor.drivers import Driver
from taskharbor.drivers.messages import MAX_PAGE, Query
from taskharbor.errors import InvalidArgument
from taskharbor.model.duration import duration
from taskharbor.model.job import JobRecord
from taskharbor.model.state import JobState

_ALIASES = {"task": "type", "status": "state"}
_FIELDS = ("state", "queue", "type", "key", "worker", "failure", "error", "age", "ended")
_SPANS = ("age", "ended")
MOST_CALLS = 400
"""The most pages to read from the store for one page: a search for something rare must end."""


@dataclass(frozen=True, slots=True)
class Ago:
    """Less or more than a duration ago."""

    is_more: bool
    span: timedelta

    def fits(self, at: datetime | None, now: datetime) -> bool:
        return at is not None and (now - at > self.span if self.is_more else now - at < self.span)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSearch:
    """What a job must match."""

    states: tuple[JobState, ...] | None = None
    queue: str | None = None
    type: str | None = None
    key: str | None = None
    worker: str | None = None
    failure: str | None = None
    error: str | None = None
    age: tuple[Ago, ...] = ()
    ended: tuple[Ago, ...] = ()

    @property
    def is_everything(self) -> bool:
        return self == JobSearch()

    def or_states(self, *states: JobState) -> JobSearch:
        """The same search with these states, unless it has states already."""
        return self if self.states else replace(self, states=states)

    def query(self, *, newest_first: bool = False) -> Query:
        """The part of the search that the store can do; wildcards are left to `fits`."""
        key = _exact(self.key)
        return Query(
            queue=_exact(self.queue),
            states=self.states,
            type=_exact(self.type),
            key=None if key is None else key.encode("utf-8", "surrogateescape"),
            worker_id=_exact(self.worker),
            failure_kind=self.failure,
            newest_first=newest_first,
            payloads=False,
        )

    def fits(self, job: JobRecord, now: datetime) -> bool:
        key = None if job.key is None else job.key.decode("utf-8", "backslashreplace")
        return (
            _matches(self.queue, job.queue)
            and _matches(self.type, job.type)
            and _matches(self.key, key)
            and _matches(self.worker, job.worker_id)
            and _matches(self.error and f"*{self.error}*", job.last_error)
            and all(ago.fits(job.created_at, now) for ago in self.age)
            and all(ago.fits(job.finished_at, now) for ago in self.ended)
        )


def parse_search(text: str | None) -> JobSearch:
    """Parse a search.

    Raises:
        UsageError: a word is not field:value, or the field is unknown.
    """
    said: dict[str, Any] = {}
    for word in (text or "").split():
        name, colon, value = word.partition(":")
        field = _ALIASES.get(name, name)
        if not colon or not value or field not in _FIELDS:
            raise UsageError(_not_understood(word, field))
        said[field] = (*said.get(field, ()), _ago(word, value)) if field in _SPANS else value
    states = said.pop("state", None)
    try:
        return JobSearch(states=None if states is None else parse_states(states), **said)
    except typer.BadParameter as error:
        raise UsageError(str(error)) from None


def _ago(word: str, value: str) -> Ago:
    if value[0] not in "<>":
        raise UsageError(f"{word!r} needs < or >, like age:<1h (less than an hour ago) or ended:>7d")
    try:
        return Ago(value[0] == ">", duration(value[1:]))
    except InvalidArgument as error:
        raise UsageError(f"{word!r} is not valid: {error}") from None


async def find_page(
    driver: Driver, where: JobSearch, *, limit: int, cursor: str | None = None, newest_first: bool = False
) -> tuple[list[JobRecord], str | None]:
    """Up to `limit` matching jobs and the next cursor; short pages of the store are joined."""
    query = msgspec.structs.replace(where.query(newest_first=newest_first), cursor=cursor)
    now = driver.clock.now()
    found: list[JobRecord] = []
    for _ in range(MOST_CALLS):
        page = await driver.find(msgspec.structs.replace(query, limit=min(limit - len(found), MAX_PAGE)))
        found += [job for job in page.jobs if where.fits(job, now)]
        if page.next_cursor is None or len(found) >= limit:
            return found, page.next_cursor
        query = msgspec.structs.replace(query, cursor=page.next_cursor)
    return found, query.cursor


async def find_all(driver: Driver, where: JobSearch) -> AsyncIterator[list[JobRecord]]:
    """All matching jobs, page by page in enqueue order, each once even while they change."""
    cursor: str | None = None
    now = driver.clock.now()
    while True:
        page = await driver.find(msgspec.structs.replace(where.query(), limit=MAX_PAGE, cursor=cursor))
        if fitting := [job for job in page.jobs if where.fits(job, now)]:
            yield fitting
        cursor = page.next_cursor
        if cursor is None:
            return


def _exact(pattern: str | None) -> str | None:
    return None if pattern is None or _is_pattern(pattern) else pattern


def _is_pattern(text: str) -> bool:
    return any(sign in text for sign in "*?[")


def _matches(pattern: str | None, value: str | None) -> bool:
    if pattern is None or (not _is_pattern(pattern) and value == pattern):
        return True
    return value is not None and fnmatchcase(value, pattern)


def _not_understood(word: str, field: str) -> str:
    from difflib import get_close_matches

    close = get_close_matches(field, _FIELDS, n=1)
    hint = (
        f"did you mean {close[0]}:…?"
        if close and ":" in word and field not in _FIELDS
        else f"fields: {', '.join(_FIELDS)}"
    )
    return f"{word!r} is not valid: a search is made of words like state:failed or type:send_*; {hint}"
