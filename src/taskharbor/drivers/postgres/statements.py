"""Statements and their arguments, without any connection: asyncpg, psycopg and callers' sessions share them.

Statements are files in sql/ with `$1` for arguments and `{schema}`, `{columns}`, `{channel}` filled
in once per store. psycopg and SQLAlchemy have their own signs for arguments; `numbered` rewrites.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from taskharbor.drivers.messages import Enqueued, EnqueueResult
from taskharbor.drivers.postgres.address import Address
from taskharbor.drivers.postgres.rows import (
    COLUMNS,
    COLUMNS_WITHOUT_PAYLOAD,
    TOKEN,
    flags_of,
    headers_text,
    span_us,
)
from taskharbor.drivers.sqlfiles import SqlBlocks
from taskharbor.errors import InvalidArgument, RateLimited
from taskharbor.model.job import NO_TIME, NewJob

FILES = SqlBlocks("taskharbor.drivers.postgres")

_FITS = """case when s.state > 0 then s.state when s.is_timed and s.eligible_at > (select now from at)
               then 0 else 1 end = any($3::smallint[])
      and e.speculates_on is null
      and ($6::text is null or e.type = $6::text) and ($7::bytea is null or s.key = $7::bytea)
      and ($8::text is null or s.state = 3 and s.worker = $8::text)
      and ($9::text is null or exists (
          select from {schema}.job_history k where k.id = e.id and k.failure_kind = $9::text offset 0))
      and ($11::timestamptz is null or s.state >= 4 and s.ends_at > $11::timestamptz)"""
_NOTES = """case when s.link_flags & 32 <> 0 then (
    select json_agg(json_build_array(n.name, encode(n.data, 'hex'), {schema}.micros(n.at)) order by n.no)
    from {schema}.note n where n.id = s.id)::text end"""
_QUEUES_IN = """with recursive at as materialized (
    select coalesce($1::timestamptz, clock_timestamp()) as now
), names(name) as (
    select case when $2::text is null then {first} else $2::text end
    union all
    select {next} from names n where n.name is not null and $2::text is null
)"""
_FIRST = "(select min(queue) from {schema}.%s)"
_NEXT = "(select min(t.queue) from {schema}.%s t where t.queue > n.name)"
# Only the jobs of the page, of all that the queues have chosen for it.
_FOUND = """, examined as materialized (
    select j.id, c.seq, j.type, j.speculates_on, j.ctid as job_at, c.ended from chosen c
    left join lateral (
        select k.*, k.ctid from {schema}.job k where k.queue = c.queue and k.seq = c.seq offset 0) j on true
)"""
# A row that was found once is read again at its place (ctid), which it keeps until the statement ends.
_PAGE = """, picked as (
    select e.id, e.seq, e.ended, e.job_at, s.ctid as state_at
    from examined e
    cross join lateral (select k.*, k.ctid from {schema}.job_state k where k.id = e.id offset 0) s
    where {fits}
    order by e.ended {order}, e.seq {order} limit $10::integer
)
select {listed}, z.ended, z.seq, r.examined, at.now
from at
cross join (select count(*)::integer as examined from examined) r
left join lateral (select e.ended, e.seq from examined e order by e.ended {back}, e.seq {back} limit 1) z
    on r.examined = $5::integer
left join picked x on true
left join lateral (select * from {schema}.job k where k.ctid = x.job_at offset 0) j on true
left join lateral (select * from {schema}.job_state k where k.ctid = x.state_at offset 0) s on true
left join lateral (select * from {schema}.job_history k where k.id = x.id offset 0) h on true
left join lateral (
    select * from {schema}.family k where k.id = x.id and s.link_flags & 32 <> 0 offset 0) f on true
order by x.ended {order}, x.seq {order}"""


class Statements:
    """Every statement of one store, by its name in the files of sql/."""

    def __init__(self, address: Address) -> None:
        blanks = {
            "{queues_in_job}": _queues_in("job"),
            "{queues_in_finished}": _queues_in("finished", "family_end", "child_end"),
            "{found}": _FOUND,
            "{page}": _PAGE,
            "{fits}": _FITS,
            "{notes}": _NOTES,
            **_records(COLUMNS),
            "{token}": TOKEN,
            "{schema}": address.identifier,
            "{schema_text}": f"'{address.schema}'",
            "{channel}": f"'{address.channel}'",
        }
        self._texts = {name: _filled(FILES[name], blanks) for name in FILES.names()}
        blanks |= _records(COLUMNS_WITHOUT_PAYLOAD) | {"{notes}": "null::text"}
        finds = ("find_few", "find_walk", "find_waiting", "find_ended", "find_children")
        self._lean = {name: _filled(FILES[name], blanks) for name in ("get", *finds)}

    def __getitem__(self, name: str) -> str:
        return self._texts[name]

    def reading(self, name: str, payloads: bool) -> str:
        """A statement that returns records, with payloads and results or without."""
        return self._texts[name] if payloads else self._lean[name]

    def directed(self, name: str, newest_first: bool, payloads: bool = True) -> str:
        """A listing statement for one of the two directions."""
        order = _NEWEST_FIRST if newest_first else _OLDEST_FIRST
        return _filled(self.reading(name, payloads), order)


_OLDEST_FIRST = {"{order}": "asc", "{back}": "desc", "{beyond}": ">", "{upto}": ">="}
_NEWEST_FIRST = {"{order}": "desc", "{back}": "asc", "{beyond}": "<", "{upto}": "<="}


def _records(columns: str) -> dict[str, str]:
    """What is read of a job: all of it, and without its token in listings."""
    return {"{columns}": columns, "{listed}": columns.replace("{token}", "null::text")}


def _queues_in(*tables: str) -> str:
    """The queues that these tables have, one after the other: each is a look at an index."""
    text = _QUEUES_IN
    for blank, one in (("{first}", _FIRST), ("{next}", _NEXT)):
        each = ", ".join(one % table for table in tables)
        text = text.replace(blank, f"least({each})")
    return text


def _filled(text: str, blanks: dict[str, str]) -> str:
    for blank, value in blanks.items():
        text = text.replace(blank, value)
    return text


def numbered(statement: str, sign: Callable[[int], str]) -> str:
    """The statement with `$n` written the way another library wants it."""
    return re.sub(r"\$(\d+)", lambda match: sign(int(match[1])), statement)


# ------------------------------------------------------------------ enqueue


def enqueue_arguments(
    jobs: Sequence[NewJob], now: datetime | None, *, always_wake: bool, is_new: bool
) -> list[Any]:
    """The arguments of enqueue: one array per field, None where every job has the default.

    Ids and names were checked before, so that no sign in them means anything to the server.
    """
    return [
        now,
        always_wake,
        is_new,
        as_array([job.id for job in jobs]),
        once([job.queue for job in jobs]),
        once([job.type for job in jobs]),
        [job.payload for job in jobs],
        unless_default([headers_text(job.headers) if job.headers else None for job in jobs]),
        unless_default([job.key for job in jobs]),
        unless_default([flags_of(job.update) for job in jobs]),
        unless_default([job.idempotency_key for job in jobs]),
        once([job.priority for job in jobs], 0),
        once([job.requires for job in jobs], "any"),
        unless_default([job.run_at for job in jobs]),
        unless_default([None if job.delay is None else span_us(job.delay) for job in jobs]),
        once([0 if job.timeout is NO_TIME else span_us(job.timeout) for job in jobs], 0),
        once([job.max_attempts for job in jobs], 0),
        once([job.max_stalls for job in jobs], 0),
        unless_default([span_us(job.min_backoff) for job in jobs]),
        unless_default([span_us(job.max_backoff) for job in jobs]),
    ]


def as_array(ids: list[str]) -> str:
    """Ids as one text that the server reads as an array: to encode a list costs more, element by element."""
    return f"{{{','.join(ids)}}}"


def usual_job(jobs: Sequence[NewJob]) -> NewJob | None:
    """The job of a call with one job that `enqueue_one` can store."""
    job = jobs[0]
    is_usual = job.run_at is None and job.delay is None and job.key is None and job.idempotency_key is None
    return job if is_usual and len(jobs) == 1 else None


def has_bonds(jobs: Sequence[NewJob]) -> bool:
    return any(job.bonds is not None for job in jobs)


def are_new(jobs: Sequence[NewJob]) -> bool:
    """Whether these may all be new. An id that comes twice is known the second time."""
    return len(jobs) > 1 and len({job.id for job in jobs}) == len(jobs)


def one_arguments(job: NewJob, now: datetime | None) -> list[Any]:
    """The arguments of enqueue_one."""
    return [
        *(now, job.id, job.queue, job.type, job.payload, headers_text(job.headers), -job.priority),
        *(job.requires, span_us(job.timeout), job.max_attempts, job.max_stalls),
        *(span_us(job.min_backoff), span_us(job.max_backoff)),
    ]


ONE_FORMATS = (0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0)
"""Of `one_texts`: the payload as it is, everything else as text."""


def one_texts(job: NewJob, now: datetime | None) -> list[bytes | None]:
    """The arguments of enqueue_one as the server reads them."""
    return [
        None if now is None else now.isoformat().encode(),
        job.id.encode(),
        job.queue.encode(),
        job.type.encode(),
        job.payload,
        msgspec.json.encode(job.headers) if job.headers else None,
        b"%d" % -job.priority,
        job.requires.encode(),
        _digits(span_us(job.timeout)),
        b"%d" % job.max_attempts,
        b"%d" % job.max_stalls,
        _digits(span_us(job.min_backoff)),
        _digits(span_us(job.max_backoff)),
    ]


def _digits(number: int | None) -> bytes | None:
    return None if number is None else b"%d" % number


def unless_default(values: list[Any]) -> list[Any] | None:
    return None if values.count(None) == len(values) else values


def once(values: list[Any], default: Any = None) -> list[Any] | None:
    """One value for all where they are alike, nothing at all where it is the default."""
    first = values[0]
    if values.count(first) < len(values):
        return values
    return None if first == default else [first]


def enqueued_at(jobs: Sequence[NewJob], at: datetime) -> list[Enqueued]:
    """The answers to jobs that are all new."""
    created = EnqueueResult.CREATED
    return [Enqueued(job.id, created, at, 1) for job in jobs]


def enqueued(jobs: Sequence[NewJob], rows: Sequence[Sequence[Any]]) -> list[Enqueued]:
    """The answers of enqueue, one per job; raises when a rate refused the call."""
    head = rows[0]
    at = head[4]
    if head[2] != "stored":
        raise refusal(len(jobs), queue=head[1], result=head[2], detail=head[5])
    answers = enqueued_at(jobs, at)
    for ord_, job_id, result, version, _, _ in rows[1:]:
        answers[ord_ - 1] = Enqueued(job_id, EnqueueResult(result), at, version)
    return answers


def refusal(count: int, *, queue: str, result: str, detail: int) -> Exception:
    if result == "limited":
        return RateLimited(queue, timedelta(microseconds=detail))
    return InvalidArgument(
        f"{count} jobs in one call can never pass the rate of {detail} of queue {queue!r}; send them in parts"
    )
