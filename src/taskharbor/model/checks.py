"""What a well-formed argument looks like: every name, key, number and span, checked in one place.

Drivers call these before they touch their store, so a bad argument costs nothing and means the
same everywhere. Each check returns nothing or raises InvalidArgument with what to change.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

from msgspec.structs import replace

from taskharbor.errors import ConfigurationError, InvalidArgument, InvalidLeaseDuration
from taskharbor.model.bonds import MAX_AFTER, MAX_EDGES, Bonds
from taskharbor.model.duration import shown as short
from taskharbor.model.job import NO_TIME, Lease, NewJob, Note, Update

MAX_BATCH = 10_000
MAX_HORIZON = timedelta(days=3660)  # ten years and a little: a typing error beyond it, not a plan
MAX_PAYLOAD = 1024 * 1024
MAX_KEY = 255
MAX_PRIORITY = 100
MAX_COUNT = 1_000_000
MAX_HEADERS = 64
MAX_NAMES = 10_000
MAX_TEXT = 255
MAX_LABEL = 1000
MAX_TTL = timedelta(days=1)
MAX_HEADER_BYTES = 16 * 1024
_FIRST = datetime(1970, 1, 1, tzinfo=UTC)
_LAST = datetime(2200, 1, 1, tzinfo=UTC)

NAME_PATTERN = "[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
ID_PATTERN = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_NAME = re.compile(NAME_PATTERN)
_ID = re.compile(ID_PATTERN)
ID_LENGTH, _ID_DASHES, _ID_BYTES = 36, (8, 13, 18, 23), b"0123456789abcdef-"
# Names repeat millions of times and a set look-up is a third of a match. Bounded: names may come
# from outside.
_known_names: set[str] = set()


def check_name(name: object, what: str) -> None:
    if isinstance(name, str) and name in _known_names:
        return
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidArgument(
            f"{what} {_shown(name)} is not a name: letters, digits, '.', '_' and '-', "
            "1 to 128 of them, the first a letter or digit"
        )
    if len(_known_names) < 4096:
        _known_names.add(name)


def check_all_names(names: tuple[object, ...], what: str) -> None:
    """The same for each of them. Claims name thousands of queues again and again."""
    try:
        if _known_names.issuperset(names):
            return
    except TypeError:  # one of them cannot be in a set
        pass
    for name in names:
        check_name(name, what)


def is_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


def check_id(job_id: object) -> None:
    if not isinstance(job_id, str) or not is_id(job_id):
        raise InvalidArgument(f"job id {_shown(job_id)} is not a lower-case UUID like the client makes")


def check_ids(ids: Sequence[str]) -> None:
    if len(ids) > MAX_BATCH:
        raise InvalidArgument(f"{len(ids)} ids in one call; {MAX_BATCH} are allowed, send them in parts")
    for job_id in ids:
        check_id(job_id)


def check_leases(leases: Sequence[Lease]) -> None:
    if len(leases) > MAX_BATCH:
        raise InvalidArgument(
            f"{len(leases)} leases in one call; {MAX_BATCH} are allowed, send them in parts"
        )


def check_worker_id(worker_id: object) -> None:
    if not isinstance(worker_id, str) or not 1 <= len(worker_id) <= 255 or not worker_id.isprintable():
        raise InvalidArgument(f"worker id {_shown(worker_id)} must be 1 to 255 printable characters")


def check_names(names: object, what: str) -> None:
    """Some names, none of them wrong, and not endlessly many."""
    if not isinstance(names, list | tuple) or len(names) > MAX_NAMES:
        raise InvalidArgument(f"{what} must be at most {MAX_NAMES} names")
    for name in names:
        check_name(name, what)


def check_text(text: object, what: str, *, most: int = MAX_TEXT) -> None:
    """A short text for people: it ends up on terminals and pages."""
    if not isinstance(text, str) or len(text) > most or not text.isprintable():
        raise InvalidArgument(f"{what}={_shown(text)} must be up to {most} printable characters")


def check_labels(labels: object) -> None:
    if not isinstance(labels, dict) or len(labels) > MAX_HEADERS:
        raise InvalidArgument(f"labels must be a dict of at most {MAX_HEADERS} strings")
    for name, value in labels.items():
        check_text(name, "the name of a label")
        check_text(value, "a label", most=MAX_LABEL)


def check_ttl(ttl: object) -> None:
    """How long a report or a role lasts without a renewal: its owner may be gone."""
    check_span(ttl, "ttl")
    if isinstance(ttl, timedelta) and ttl > MAX_TTL:
        raise InvalidArgument(f"ttl={ttl} is longer than {MAX_TTL}; renew it before it expires")


def check_key(key: object, what: str) -> None:
    if not isinstance(key, bytes) or not 1 <= len(key) <= MAX_KEY:
        raise InvalidArgument(f"{what} must be 1 to {MAX_KEY} bytes; leave it out for none")


def check_instant(at: object, what: str) -> None:
    if not isinstance(at, datetime):
        raise InvalidArgument(f"{what} must be a datetime, not {type(at).__name__}")
    if at.tzinfo is None or at.utcoffset() is None:
        raise InvalidArgument(f"{what}={at} has no time zone; pass an aware datetime, best in UTC")
    if not _FIRST <= at <= _LAST:
        raise InvalidArgument(f"{what}={at} lies outside the years 1970 to 2200")


def check_span(span: object, what: str, *, least: timedelta = NO_TIME) -> None:
    if not isinstance(span, timedelta):
        raise InvalidArgument(f"{what}={_shown(span)} must be a timedelta")
    if span < least:
        rule = f"must be at least {short(least)}" if least else "must not be negative"
        raise InvalidArgument(f"{what}={short(span)} {rule}")
    if span > MAX_HORIZON:
        raise InvalidArgument(f"{what}={span} is longer than {MAX_HORIZON.days} days")


def check_lease_for(lease_for: object) -> None:
    if not isinstance(lease_for, timedelta):
        raise InvalidArgument(f"lease_for must be a timedelta, not {type(lease_for).__name__}")
    if lease_for <= NO_TIME:
        raise InvalidLeaseDuration(lease_for)
    if lease_for > MAX_HORIZON:
        raise InvalidArgument(f"lease_for={lease_for} is longer than {MAX_HORIZON.days} days")


def check_count(number: object, what: str, *, least: int = 0, most: int = MAX_COUNT) -> None:
    if not isinstance(number, int) or isinstance(number, bool) or not least <= number <= most:
        raise InvalidArgument(f"{what}={_shown(number)} must be a whole number from {least} to {most}")


_KINDS: dict[str, tuple[type | tuple[type, ...], str]] = {
    "int": (int, "a whole number"),
    "float": ((int, float), "a number"),
    "bool": (bool, "True or False"),
}


def check_kinds(options: object, annotations: Mapping[str, object]) -> None:
    """For objects that hold options: numbers and flags must be what their annotations name.

    Raises:
        ConfigurationError: one is not. Without this it would fail much later, or count as something else.
    """
    for what, annotation in annotations.items():
        kind, _, rest = str(annotation).partition(" | ")
        value = getattr(options, what)
        if kind not in _KINDS or (value is None and rest == "None"):
            continue
        types, words = _KINDS[kind]
        if not isinstance(value, types) or (isinstance(value, bool) and kind != "bool"):
            raise ConfigurationError(f"{what}={_shown(value)} must be {words}")


def check_priority(priority: object) -> None:
    if type(priority) is int and -MAX_PRIORITY <= priority <= MAX_PRIORITY:
        return
    check_count(priority, "priority", least=-MAX_PRIORITY, most=MAX_PRIORITY)


def check_when(run_at: datetime | None, delay: timedelta | None, now: datetime) -> None:
    """run_at or delay, never both, and not beyond the horizon."""
    if run_at is not None:
        if delay is not None:
            raise InvalidArgument("give run_at or delay, not both")
        check_instant(run_at, "run_at")
        if run_at - now > MAX_HORIZON:
            raise InvalidArgument(f"run_at={run_at} is more than {MAX_HORIZON.days} days away")
    elif delay is not None:
        check_span(delay, "delay")


def check_update(update: Update) -> None:
    if (
        update.run_at is not True
        and update.run_at is not False
        and update.run_at not in ("if_later", "if_earlier")
    ):
        raise InvalidArgument(
            f"update.run_at={_shown(update.run_at)} must be True, False, 'if_later' or 'if_earlier'"
        )
    flags = (update.data, update.retry, update.reset_counts)
    if any(flag is not None and not isinstance(flag, bool) for flag in flags) or None in flags[:2]:
        raise InvalidArgument("update.data, update.retry and update.reset_counts are True or False")


def check_headers(headers: object) -> None:
    if not isinstance(headers, dict) or len(headers) > MAX_HEADERS:
        raise InvalidArgument(f"headers must be a dict of at most {MAX_HEADERS} strings")
    size = 0
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidArgument("headers map strings to strings")
        try:
            size += len(name.encode()) + len(value.encode())
        except UnicodeEncodeError:
            raise InvalidArgument(f"header {_shown(name)} holds a lone surrogate") from None
    if size > MAX_HEADER_BYTES:
        raise InvalidArgument(f"headers take {size} bytes; {MAX_HEADER_BYTES} are allowed")


def check_new_jobs(jobs: Sequence[NewJob], now: datetime, max_payload: int = MAX_PAYLOAD) -> bool:
    """Every job of one enqueue call, before anything is stored. True when one of them has bonds."""
    if len(jobs) > MAX_BATCH:
        raise InvalidArgument(f"{len(jobs)} jobs in one call; {MAX_BATCH} are allowed, send them in parts")
    if len(jobs) == 1 and jobs[0].bonds is None:
        _check_alone(jobs[0], now, max_payload)
        return False
    has_bonds = False
    have_ids = are_ids([job.id for job in jobs])
    like: NewJob | None = None
    for job in jobs:
        if like is not None and have_ids and _is_like(job, like, max_payload):
            if (  # asked here: to call `_check_own` for each job would be a tenth of the check
                job.priority is not like.priority
                or job.run_at is not like.run_at
                or job.delay is not like.delay
                or job.key is not like.key
                or job.idempotency_key is not like.idempotency_key
            ):
                _check_own(job, like, now)
            continue
        check_new_job(job, now, max_payload)
        has_bonds = has_bonds or job.bonds is not None
        like = job
    if has_bonds:
        _check_order(jobs)
    return has_bonds


# The last job of each type that came alone, without its payload. Bounded: types may come from outside.
_alone: dict[str, NewJob] = {}


def _check_alone(job: NewJob, now: datetime, max_payload: int) -> None:
    """A job that comes alone is mostly like the last one of its type."""
    like = _alone.get(job.type) if type(job.type) is str else None
    if like is not None and _is_like(job, like, max_payload) and type(job.id) is str and is_id(job.id):
        _check_own(job, like, now)
        return
    check_new_job(job, now, max_payload)
    if len(_alone) < 1000 or job.type in _alone:
        _alone[job.type] = replace(job, payload=b"")


def _check_order(jobs: Sequence[NewJob]) -> None:
    """A parent, and what a job comes after, is earlier in the call or already stored: so no circle can be."""
    later = {job.id for job in jobs}
    edges = 0
    for job in jobs:
        if job.bonds is not None:
            for other in (*job.bonds.after, *((job.bonds.parent,) if job.bonds.parent else ())):
                if other in later:
                    raise InvalidArgument(
                        f"job {job.id} names {other}, which comes later in the call or is itself; "
                        "put jobs behind those they name"
                    )
            edges += len(job.bonds.after)
        later.discard(job.id)
    if edges > MAX_EDGES:
        raise InvalidArgument(f"{edges} edges in one call; {MAX_EDGES} are allowed, send them in parts")


def check_bonds(job: NewJob, bonds: Bonds, now: datetime) -> None:
    if job.key is not None:
        raise InvalidArgument(
            "a job with a key cannot come after others or have a parent; leave the key out, "
            "or set max_running=1 on its queue"
        )
    if bonds.parent is not None:
        check_id(bonds.parent)
        if job.idempotency_key is not None:
            raise InvalidArgument("a child has no idempotency key: its id, made from its parent's, is enough")
    if len(bonds.after) > MAX_AFTER:
        raise InvalidArgument(f"a job after {len(bonds.after)} others; {MAX_AFTER} are allowed")
    check_ids(bonds.after)
    if len(set(bonds.after)) != len(bonds.after):
        raise InvalidArgument("after names a job twice")
    if bonds.when not in ("success", "over", "failure"):
        raise InvalidArgument(f"when={_shown(bonds.when)} must be 'success', 'over' or 'failure'")
    if bonds.when == "failure" and not bonds.after:
        raise InvalidArgument("when='failure' needs jobs in `after` that may fail")
    if bonds.done_by not in ("worker", "call", "children"):
        raise InvalidArgument(f"done_by={_shown(bonds.done_by)} must be 'worker', 'call' or 'children'")
    if bonds.tolerate is not None:
        check_count(bonds.tolerate, "tolerate")
    if bonds.deadline is not None and bonds.within is not None:
        raise InvalidArgument("give deadline or within, not both")
    if bonds.deadline is not None:
        check_instant(bonds.deadline, "deadline")
    if bonds.within is not None:
        check_span(bonds.within, "within")


def check_notes(notes: Sequence[Note], max_payload: int) -> None:
    if len(notes) > MAX_BATCH:
        raise InvalidArgument(f"{len(notes)} notes in one call; {MAX_BATCH} are allowed, send them in parts")
    for note in notes:
        check_text(note.name, "the name of a note")
        if not note.name:
            raise InvalidArgument("a note needs a name")
        if not isinstance(note.data, bytes) or len(note.data) > max_payload:
            raise InvalidArgument(f"a note is at most {max_payload} bytes; store more elsewhere")


def are_ids(values: list[str]) -> bool:
    """Whether all of these are ids. Looked at as one long text: a tenth of the work of one pattern per id."""
    if any(type(value) is not str or len(value) != ID_LENGTH for value in values):
        return False
    text = "".join(values)
    dashes = "-" * len(values)
    return (
        text.isascii()
        and not text.encode().translate(None, _ID_BYTES)
        and text.count("-") == len(_ID_DASHES) * len(values)
        and all(text[place::ID_LENGTH] == dashes for place in _ID_DASHES)
    )


def _is_like(job: NewJob, like: NewJob, max_payload: int) -> bool:
    """Whether a job has a good payload, and differs from a checked one only in what `_check_own` looks at.

    The jobs of one task share their other values as objects, and comparing those is a third of the
    work of looking at them again.
    """
    return (
        job.type is like.type
        and job.queue is like.queue
        and job.requires is like.requires
        and job.max_attempts is like.max_attempts
        and job.max_stalls is like.max_stalls
        and job.timeout is like.timeout
        and job.update is like.update
        and (job.key is like.key or None not in (job.key, like.key))  # bonds and updates ask for it
        and job.min_backoff is like.min_backoff
        and job.max_backoff is like.max_backoff
        and job.bonds is like.bonds
        and (job.bonds is None or job.idempotency_key is like.idempotency_key)
        and not job.headers
        and type(job.payload) is bytes
        and len(job.payload) <= max_payload
    )


def _check_own(job: NewJob, like: NewJob, now: datetime) -> None:
    """What the jobs of one task often have of their own."""
    if job.priority is not like.priority:
        check_priority(job.priority)
    if job.run_at is not like.run_at or job.delay is not like.delay:
        check_when(job.run_at, job.delay, now)
    if job.key is not like.key:
        check_key(job.key, "key")
    if job.idempotency_key is not like.idempotency_key and job.idempotency_key is not None:
        check_key(job.idempotency_key, "idempotency_key")


def check_new_job(job: NewJob, now: datetime, max_payload: int = MAX_PAYLOAD) -> None:
    check_id(job.id)
    check_name(job.type, "type")
    check_name(job.queue, "queue")
    check_name(job.requires, "requires")
    if not isinstance(job.payload, bytes):
        raise InvalidArgument(f"payload must be bytes, not {type(job.payload).__name__}; a codec makes them")
    if len(job.payload) > max_payload:
        raise InvalidArgument(
            f"payload of {len(job.payload)} bytes is over the limit of {max_payload}; "
            "keep large data elsewhere and send a reference"
        )
    check_priority(job.priority)
    check_count(job.max_attempts, "max_attempts")
    check_count(job.max_stalls, "max_stalls")
    check_span(job.timeout, "timeout")
    if job.run_at is not None or job.delay is not None:
        check_when(job.run_at, job.delay, now)
    if job.headers:
        check_headers(job.headers)
    if job.key is not None:
        check_key(job.key, "key")
    if job.update is not None:
        if job.key is None:
            raise InvalidArgument("update says what to do with the job of the same key: give a key too")
        check_update(job.update)
    if job.idempotency_key is not None:
        check_key(job.idempotency_key, "idempotency_key")
    if job.bonds is not None:
        check_bonds(job, job.bonds, now)
    check_backoff(job.min_backoff, job.max_backoff)


def check_backoff(low: timedelta | None, high: timedelta | None) -> None:
    if low is not None:
        check_span(low, "min_backoff")
    if high is not None:
        check_span(high, "max_backoff")
        if low is not None and high < low:
            raise InvalidArgument(f"max_backoff={high} is below min_backoff={low}")


def _shown(value: object) -> str:
    """A value for a message: quoted, escaped, short."""
    text = ascii(value)
    return text if len(text) <= 80 else text[:77] + "..."
