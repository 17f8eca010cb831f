"""Enqueue for blocking callers, and inside a transaction of the caller's own.

A blocking enqueue has psycopg connections of its own, one per thread that needs one at a time. The
usual single job goes over them without a cursor: one message out, one answer back. With `tx` the
statement runs on the caller's connection and nothing else happens there: no commit, no rollback, no
retry. Its wake-up travels with the caller's commit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import Any, TypeVar

import psycopg

from taskharbor.drivers.messages import Enqueued
from taskharbor.drivers.postgres.address import Address
from taskharbor.drivers.postgres.blocking_connection import BlockingConnection, connected, instant_in
from taskharbor.drivers.postgres.families import KnownJobs, arrival_of, trusted_ids
from taskharbor.drivers.postgres.family_step import FamilyStep
from taskharbor.drivers.postgres.faults import FOREIGN, RETRYABLE, Busy, is_known_id, ours, sqlstate
from taskharbor.drivers.postgres.statements import (
    ONE_FORMATS,
    Statements,
    are_new,
    enqueue_arguments,
    enqueued,
    enqueued_at,
    numbered,
    one_texts,
    usual_job,
)
from taskharbor.drivers.postgres.transactions import asked_in, run_in
from taskharbor.errors import BrokenBond, DriverError, DriverMisbehaved, InvalidArgument
from taskharbor.model.job import NewJob

_T = TypeVar("_T")
_TRIES = 6
_IDLE = psycopg.pq.TransactionStatus.IDLE


class Blocking:
    """The blocking side of one driver handle. Any thread may call it."""

    def __init__(self, address: Address, statements: Statements) -> None:
        self._address = address
        self._statements = statements
        self._statement = statements["enqueue"]
        self._for_many = numbered(self._statement, lambda _: "%s").encode()
        self._for_one = statements["enqueue_one"].encode()
        self._idle: list[BlockingConnection] = []
        self._lock = threading.Lock()

    def enqueue(self, jobs: Sequence[NewJob], now: datetime | None, tx: Any) -> Any:
        if tx is not None:
            arguments = enqueue_arguments(jobs, now, always_wake=True, is_new=False)
            return run_in(tx, self._statement, arguments, lambda rows: enqueued(jobs, rows))
        try:
            return self._enqueue(jobs, now)
        except FOREIGN as error:
            raise ours(error) from error

    def enqueue_family(self, jobs: Sequence[NewJob], now: datetime | None) -> list[Enqueued]:
        """Jobs of which some have bonds, in a transaction of its own."""

        step = FamilyStep(self._statements)

        def store(line: BlockingConnection, trusted: Collection[str] = ()) -> list[Enqueued]:
            with line.transaction():
                return asked_in(line, arrival_of(step, jobs, None, now, trusted=trusted))

        try:
            if trusted := trusted_ids(jobs):
                try:
                    return self._tried(lambda line: store(line, trusted))
                except (KnownJobs, BrokenBond, InvalidArgument):
                    pass
                except DriverMisbehaved as error:
                    if not is_known_id(error):
                        raise
            return self._tried(store)
        except FOREIGN as error:
            raise ours(error) from error

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for line in idle:
            line.close()

    def _enqueue(self, jobs: Sequence[NewJob], now: datetime | None) -> list[Enqueued]:
        usual = usual_job(jobs)
        try:
            # None: there is something about it, perhaps that it is known.
            if usual is not None and (at := self._stored_one(usual, now)) is not None:
                return enqueued_at(jobs, at)
            return self._enqueue_many(jobs, now, is_new=are_new(jobs))
        except psycopg.errors.UniqueViolation:
            return self._enqueue_many(jobs, now, is_new=False)

    def _stored_one(self, job: NewJob, now: datetime | None) -> datetime | None:
        values = one_texts(job, now)
        by_name = not self._address.behind_pooler
        return self._tried(
            lambda line: instant_in(line.ask(self._for_one, values, ONE_FORMATS, by_name=by_name))
        )

    def _enqueue_many(self, jobs: Sequence[NewJob], now: datetime | None, *, is_new: bool) -> list[Enqueued]:
        arguments = enqueue_arguments(jobs, now, always_wake=False, is_new=is_new)
        return enqueued(
            jobs,
            self._tried(lambda line: line.execute(self._for_many, arguments, binary=True).fetchall()),
        )

    def _tried(self, call: Callable[[BlockingConnection], _T]) -> _T:
        for left in reversed(range(_TRIES)):
            try:
                return self._once(call)
            except Busy:
                if not left:
                    raise
            except (psycopg.Error, DriverError) as error:  # ours: of a statement inside a transaction
                if not left or sqlstate(error.__cause__ or error) not in RETRYABLE:
                    raise
        raise AssertionError("unreachable")

    def _once(self, call: Callable[[BlockingConnection], _T]) -> _T:
        line = self._take()
        try:
            return call(line)
        finally:
            self._give_back(line)

    def _take(self) -> BlockingConnection:
        with self._lock:
            while self._idle:
                line = self._idle.pop()
                if not line.closed:
                    return line
        try:
            return connected(self._address)
        except FOREIGN as error:
            raise ours(error, writes=False) from error

    def _give_back(self, line: BlockingConnection) -> None:
        # Not idle: an answer is still to come, after a deadline or an interrupt.
        if line.closed or line.pgconn.transaction_status != _IDLE:
            line.close()
            return
        with self._lock:
            self._idle.append(line)
