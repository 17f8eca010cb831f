"""Records of families as the functions of the store read and write them: JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from taskharbor.drivers.postgres.rows import (
    CODES,
    flags_of,
    headers_text,
    link_flags_of,
    notes_of,
    record_of,
    span_us,
)
from taskharbor.drivers.postgres.statements import as_array, once, unless_default
from taskharbor.model.bonds import Bonds, is_spared
from taskharbor.model.clock import instant
from taskharbor.model.family_steps import bonds_of, family_of
from taskharbor.model.job import JobRecord
from taskharbor.model.state import TERMINAL, JobState

_json = msgspec.json.Decoder(list[Any])
_INSTANTS = (6, 7, 14, 25, 29, 31, 38)  # places in the order of `record_of`
_BYTES = (5, 9, 10, 32)
_COUNT = 44  # of the columns of a record


class ReadJob(NamedTuple):
    """A row of the function `family_jobs`."""

    job: JobRecord
    links: int
    is_locked: bool
    parked: tuple[str, ...]
    counted: int
    """How many of its children the stripes have counted."""


def record_in(text: str) -> ReadJob:
    row = _json.decode(text)
    for place in _INSTANTS:
        if row[place] is not None:
            row[place] = instant(row[place])
    for place in _BYTES:
        if row[place] is not None:
            row[place] = bytes.fromhex(row[place])
    is_locked, parked, notes, counted = row[_COUNT:]
    job = record_of(row)
    if notes:
        job = replace(job, notes=notes_of(notes))
    if counted:
        family = family_of(job)
        job = replace(job, family=replace(family, open=family.open - counted))
    return ReadJob(job, link_flags_of(row), is_locked, tuple(parked or ()), counted or 0)


def family_row(job: JobRecord, parked: Sequence[str], counted: int) -> dict[str, Any]:
    """What the table `family` has of a job. `counted`: by stripes, which go when the job is over."""
    bonds, family = bonds_of(job), family_of(job)
    is_open = job.state not in TERMINAL
    if counted and is_open:
        family = replace(family, open=family.open + counted)
    return {
        "id": job.id,
        "seq": job.seq,
        "root": job.root or job.id,
        "parent": bonds.parent,
        "deadline": bonds.deadline if is_open and family.stopping is None else None,
        "is_open": is_open,
        "is_blocked": job.state is JobState.BLOCKED,
        "is_event": bonds.optional and bonds.done_by == "call",
        "is_spared": is_spared(job.bonds),
        "is_stopping": family.stopping is not None,
        "spares": family.spares,
        "queue": job.queue,
        "parked": f"{{{','.join(parked)}}}" if parked else None,
        "family": None if job.family is None else msgspec.json.encode(family).decode(),
        "bonds": None if job.bonds is None else msgspec.json.encode(job.bonds).decode(),
    }


def new_row(job: JobRecord, links: int) -> dict[str, Any]:
    """A job that an enqueue stores; what it does, and its state."""
    is_waiting = job.state in (JobState.READY, JobState.SCHEDULED)
    return {
        "id": job.id,
        "seq": job.seq,
        "queue": job.queue,
        "type": job.type,
        "payload": job.payload,
        "created_at": job.created_at,
        "headers": headers_text(job.headers),
        "once": job.idempotency_key,
        "timeout": span_us(job.timeout),
        "max_attempts": job.max_attempts,
        "max_stalls": job.max_stalls,
        "min_backoff": span_us(job.min_backoff),
        "max_backoff": span_us(job.max_backoff),
        "updated_at": job.updated_at,
        "ends_at": job.finished_at,
        "version": job.version,
        "rank": -job.priority,
        "state": 0 if is_waiting else CODES[job.state],
        "links": links,
        "run_at": job.run_at,
        "lane": job.requires,
        "key": job.key,
        "update_flags": flags_of(job.update),
        "result": job.result,
        "last_error": job.last_error,
        "failed_at": job.failed_at,
        "failure_kind": job.failure_kind,
        "is_root": bonds_of(job).parent is None,
        "parent": bonds_of(job).parent,
        "root": job.root,
    }


def is_mere_child(bonds: Bonds | None) -> bool:
    """Whether a parent is the only bond."""
    return bonds is not None and bonds.parent is not None and bonds == Bonds(parent=bonds.parent)


def child_arguments(jobs: Sequence[JobRecord]) -> list[Any]:
    """The arguments of add_children but for the first two; see `enqueue_arguments`."""
    roots = [None if job.root == bonds_of(job).parent else job.root for job in jobs]
    return [
        as_array([job.id for job in jobs]),
        as_array([str(job.seq) for job in jobs]),
        as_array([str(parent) for parent in once([bonds_of(job).parent for job in jobs]) or ()]),
        as_array([root or "null" for root in once(roots) or ()]),
        once([job.queue for job in jobs]),
        once([job.type for job in jobs]),
        [job.payload for job in jobs],
        unless_default([headers_text(job.headers) for job in jobs]),
        once([job.priority for job in jobs], 0),
        once([job.requires for job in jobs], "any"),
        unless_default([job.run_at for job in jobs]),
        once([span_us(job.timeout) for job in jobs], 0),
        once([job.max_attempts for job in jobs], 0),
        once([job.max_stalls for job in jobs], 0),
        unless_default([span_us(job.min_backoff) for job in jobs]),
        unless_default([span_us(job.max_backoff) for job in jobs]),
    ]
