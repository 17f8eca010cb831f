"""Enqueue: one script for jobs that touch no other job, a unit of work for the rest."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from taskharbor.drivers import lifecycle
from taskharbor.drivers.messages import Enqueued, EnqueueResult
from taskharbor.drivers.redis import faults
from taskharbor.drivers.redis.connection import ServerError, packed
from taskharbor.drivers.redis.encoding import body_of_new, head_fields, now_arg, token_bytes
from taskharbor.drivers.redis.family_fields import bonds_bytes, is_only_child
from taskharbor.drivers.redis.keys import Keys, line_of, rank_of
from taskharbor.drivers.redis.optimistic import OptimisticStep
from taskharbor.drivers.redis.primary import Primary
from taskharbor.drivers.redis.scripts import SCRIPTS
from taskharbor.drivers.redis.snapshot import ask_for_job, scoped
from taskharbor.drivers.redis.unit_of_work import UnitOfWork
from taskharbor.errors import RateLimited
from taskharbor.model.bonds import Bonds
from taskharbor.model.clock import instant, micros, span_micros
from taskharbor.model.entropy import id_bytes, id_text
from taskharbor.model.job import Lease, NewJob
from taskharbor.model.limits import RateLimit
from taskharbor.model.queue import EVERY_QUEUE

Call = tuple[list[str], list[Any]]
ENQUEUE_ONE = SCRIPTS["enqueue_one"]


def call_of(
    keys: Keys,
    jobs: Sequence[NewJob],
    now: datetime | None,
    *,
    with_rates: bool = False,
    first_seq: int | str = "",
    by: Lease | None = None,
) -> Call:
    """The keys and arguments of enqueue.lua, after the epoch. `by`: a lease that vouches for children."""
    queues: dict[str, int] = {}
    kinds: dict[tuple[Any, ...], int] = {}
    arguments: list[Any] = []
    numbers: list[int] = []
    job_keys: list[bytes] = []
    for job in jobs:
        has_keys = job.key is not None or job.idempotency_key is not None
        kind = (job.queue, job.type, job.requires, job.priority, job.run_at, job.delay, has_keys, job.bonds)
        number = kinds.get(kind)
        if number is None:
            number = kinds[kind] = len(kinds)
            arguments += _shared(job, queues.setdefault(job.queue, len(queues) + 1), has_keys=has_keys)
        numbers.append(number)
        if has_keys:
            job_keys += (job.key or b"", job.idempotency_key or b"")
    named = [keys.data, keys.queues, keys.look_from]
    for queue in queues:
        own = keys.queue(queue)
        named += (own.list, own.ready, own.later, own.wake)
    if with_rates:
        named += [keys.queue(queue).enqueue_rate for queue in queues]
        named.append(keys.enqueue_rate)
    if jobs[0].bonds is not None:
        named.append(keys.relatives)
    ids = [job.id for job in jobs]
    twins = "1" if len(set(ids)) < len(ids) else ""
    head = [now_arg(now), first_seq, "1" if with_rates else "", len(queues), *queues]
    counts = [len(ids), twins, len(kinds), b"" if by is None else _vouching(by)]
    each = [_packed_numbers(numbers, len(kinds)), head_fields(ids), *map(body_of_new, jobs)]
    return named, [*head, *counts, *arguments, *each, *job_keys]


def _shared(job: NewJob, queue: int, *, has_keys: bool) -> tuple[Any, ...]:
    """What all jobs of one kind have in common: it is sent once."""
    line = line_of(job.requires, job.type)
    return queue, line, rank_of(job.priority), _when(job), "1" if has_keys else _relation_of(job)


def _relation_of(job: NewJob) -> bytes:
    """The parent of a child, then its other bonds, if it has any."""
    if job.bonds is None or job.bonds.parent is None:
        return b""
    parent = id_bytes(job.bonds.parent)
    return parent if is_only_child(job.bonds) else parent + bonds_bytes(job.bonds)


def _vouching(by: Lease) -> bytes:
    return id_bytes(by.job_id) + token_bytes(by.token).ljust(16, b"\0") + (by.worker_id or "").encode()


def _packed_numbers(numbers: list[int], kinds: int) -> bytes:
    """The kind of each job: nothing, a byte or two."""
    if kinds == 1:
        return b""
    return bytes(numbers) if kinds <= 256 else struct.pack(f">{len(numbers)}H", *numbers)


def are_children(jobs: Sequence[NewJob]) -> bool:
    """True if enqueue.lua can take them all: each may run at once, and its parent is none of them."""
    ids = {job.id for job in jobs}
    return all(
        job.bonds is not None
        and job.bonds.parent not in ids
        and _may_run_at_once(job.bonds)
        and job.key is job.idempotency_key is None
        for job in jobs
    )


def _may_run_at_once(bonds: Bonds) -> bool:
    has_deadline = bonds.deadline is not None or bonds.within is not None
    return bonds.parent is not None and not bonds.after and bonds.done_by == "worker" and not has_deadline


def is_plain(job: NewJob) -> bool:
    """True if enqueue_one.lua can take the job, which has no bonds."""
    return job.key is job.idempotency_key is None and job.run_at is None and not job.delay


def packed_one(keys: Keys, epoch: bytes, job: NewJob, now: datetime | None) -> bytes:
    """The encoded call of enqueue_one.lua."""
    front = _front_of_one(keys, epoch, job.queue, job.requires, job.type, job.priority)
    body = body_of_new(job)
    at = b"" if now is None else b"%d" % micros(now)
    parts = (front, id_bytes(job.id), len(body), body, len(at), at)
    return b"%b$16\r\n%b\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % parts


@lru_cache(maxsize=1024)
def _front_of_one(keys: Keys, epoch: bytes, queue: str, requires: str, type_: str, priority: int) -> bytes:
    """The part of that call that is the same for many jobs."""
    own = keys.queue(queue)
    line, rank = line_of(requires, type_), bytes((rank_of(priority),))
    named = (keys.data, own.list, own.ready, own.wake, keys.look_from)
    head = b"\0\0" + rank + b"\0\0\0\1"  # waiting, no flags, version 1
    command = ("EVALSHA", ENQUEUE_ONE.digest, len(named), *named, epoch, queue, line, line + rank, head)
    return b"*%d\r\n" % (len(command) + 3) + packed(command).partition(b"\r\n")[2]


def created(job: NewJob, at: int) -> list[Enqueued]:
    """The answer to a successful enqueue_one.lua."""
    return [Enqueued(job.id, EnqueueResult.CREATED, instant(at), 1)]


def _when(job: NewJob) -> str:
    if job.run_at is not None:
        return f"a{micros(job.run_at)}"
    return f"d{span_micros(job.delay)}" if job.delay else ""


def answered(jobs: Sequence[NewJob], reply: Sequence[Any]) -> list[Enqueued] | str:
    """The reply of enqueue.lua: answers, `care` (use a unit of work) or `rates` (send their keys, too)."""
    at = instant(int(reply[0]))
    if len(reply) == 1:
        return [Enqueued(job.id, EnqueueResult.CREATED, at, 1) for job in jobs]
    match reply[1]:
        case b"care" | b"rates" as why:
            return str(why.decode())
        case b"some":
            return [
                Enqueued(id_text(packed), EnqueueResult.DUPLICATE, at, version - 1)
                if version
                else Enqueued(job.id, EnqueueResult.CREATED, at, 1)
                for job, packed, version in zip(jobs, reply[2::2], reply[3::2], strict=True)
            ]
        case b"never":
            number, amount, count, per = reply[2:]
            rate = RateLimit(count, timedelta(microseconds=per))
            raise lifecycle.never_admitted(_queue_at(jobs, number), rate, amount)
        case _:
            raise RateLimited(_queue_at(jobs, reply[2]), timedelta(microseconds=int(reply[3])))


def _queue_at(jobs: Sequence[NewJob], number: int) -> str:
    return EVERY_QUEUE if number == 0 else list(dict.fromkeys(job.queue for job in jobs))[number - 1]


class Enqueuer:
    """The enqueue verb of one driver handle."""

    def __init__(self, primary: Primary, keys: Keys, steps: OptimisticStep) -> None:
        self._primary = primary
        self._keys = keys
        self._steps = steps
        self.sees_rates = False  # extra keys cost time: sent only after a rate was met

    async def enqueue(
        self, jobs: Sequence[NewJob], now: datetime | None, first_seq: int | str = ""
    ) -> list[Enqueued]:
        if (
            len(jobs) == 1
            and first_seq == ""
            and is_plain(jobs[0])
            and (connection := self._primary.at_hand())
        ):
            try:
                if at := await connection.send(packed_one(self._keys, self._primary.epoch, jobs[0], now)):
                    return created(jobs[0], at)
            except ServerError as error:  # nothing was done; what follows handles it
                if faults.word_of(error) == "NOSCRIPT":
                    await self._primary.command("SCRIPT", "LOAD", ENQUEUE_ONE.source)
        while True:
            keys, arguments = call_of(self._keys, jobs, now, with_rates=self.sees_rates, first_seq=first_seq)
            answers = answered(jobs, await self._primary.run_in_epoch("enqueue", keys, *arguments))
            if not isinstance(answers, str):
                return answers
            if answers == "care":
                return await self.enqueue_with_care(jobs, now)
            self.sees_rates = True

    async def enqueue_children(
        self, jobs: Sequence[NewJob], by: Lease | None, now: datetime | None, first_seq: int | str = ""
    ) -> list[Enqueued] | None:
        """Store children of stored jobs; None, and nothing is done, if a unit of work must decide."""
        while True:
            keys, arguments = call_of(
                self._keys, jobs, now, with_rates=self.sees_rates, first_seq=first_seq, by=by
            )
            answers = answered(jobs, await self._primary.run_in_epoch("enqueue", keys, *arguments))
            if not isinstance(answers, str):
                return answers
            if answers == "care":
                return None
            self.sees_rates = True

    async def enqueue_with_care(self, jobs: Sequence[NewJob], now: datetime | None) -> list[Enqueued]:
        asked: dict[bytes, None] = {}
        for job in jobs:
            asked[ask_for_job(job.id)] = None
            if job.key is not None:
                asked[b"k" + scoped(job.queue, job.key)] = None
            if job.idempotency_key is not None:
                asked[b"i" + scoped(job.queue, job.idempotency_key)] = None

        def decide(unit: UnitOfWork) -> list[Enqueued]:
            unit.rates = lifecycle.admit(unit, jobs)
            return [lifecycle.enqueue_one(unit, job) for job in jobs]

        return await self._steps.run(
            list(asked), decide, now, seqs=len(jobs), queues={job.queue for job in jobs}
        )
