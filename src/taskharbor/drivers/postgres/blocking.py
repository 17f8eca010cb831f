"""Enqueue for blocking callers, and inside a transaction of the caller's own.

A blocking enqueue has psycopg connections of its own, one per thread that needs one at a time. With
`tx` the statement runs on the caller's connection and nothing else happens there: no commit, no
rollback, no retry. Its wake-up travels with the caller's commit.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import psycopg

from taskharbor.drivers.messages import Enqueued
from taskharbor.drivers.postgres.address import Address
from taskharbor.drivers.postgres.connections import CONNECT_SECONDS
from taskharbor.drivers.postgres.faults import RETRYABLE, ours, sqlstate
from taskharbor.drivers.postgres.statements import (
    Statements,
    enqueue_arguments,
    enqueued,
    enqueued_one,
    numbered,
    one_arguments,
    usual_job,
)
from taskharbor.drivers.postgres.transactions import run_in
from taskharbor.model.job import NewJob

_TRIES = 6


class Blocking:
    """The blocking side of one driver handle. Any thread may call it."""

    def __init__(self, address: Address, statements: Statements) -> None:
        self._address = address
        self._statement = statements["enqueue"]
        self._for_many = numbered(self._statement, lambda _: "%s").encode()
        self._for_one = numbered(statements["enqueue_one"], lambda _: "%s").encode()
        self._idle: list[psycopg.Connection[Any]] = []
        self._lock = threading.Lock()

    def enqueue(self, jobs: Sequence[NewJob], now: datetime | None, tx: Any) -> Any:
        if tx is not None:
            arguments = enqueue_arguments(jobs, now, always_wake=True, is_new=False)
            return run_in(tx, self._statement, arguments, lambda rows: enqueued(jobs, rows))
        try:
            return self._enqueue(jobs, now)
        except psycopg.Error as error:
            raise ours(error) from error

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _enqueue(self, jobs: Sequence[NewJob], now: datetime | None) -> list[Enqueued]:
        try:
            if (job := usual_job(jobs)) is not None:
                rows = self._tried(self._for_one, one_arguments(job, now))
                if answer := enqueued_one(job, rows):
                    return answer
            return enqueued(jobs, self._tried(self._for_many, _arguments(jobs, now, is_new=True)))
        except psycopg.errors.UniqueViolation:
            return enqueued(jobs, self._tried(self._for_many, _arguments(jobs, now, is_new=False)))

    def _tried(self, statement: bytes, arguments: list[Any]) -> Sequence[Any]:
        for left in reversed(range(_TRIES)):
            try:
                return self._rows(statement, arguments)
            except psycopg.Error as error:
                if not left or sqlstate(error) not in RETRYABLE:
                    raise
        raise AssertionError("unreachable")

    def _rows(self, statement: bytes, arguments: list[Any]) -> Sequence[Any]:
        connection = self._take()
        try:
            return connection.execute(statement, arguments, binary=True).fetchall()
        finally:
            self._give_back(connection)

    def _take(self) -> psycopg.Connection[Any]:
        with self._lock:
            while self._idle:
                connection = self._idle.pop()
                if not connection.closed:
                    return connection
        return psycopg.connect(
            self._address.dsn,
            autocommit=True,
            connect_timeout=int(CONNECT_SECONDS),
            prepare_threshold=None if self._address.behind_pooler else 2,
            application_name="taskharbor",
        )

    def _give_back(self, connection: psycopg.Connection[Any]) -> None:
        is_idle = connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        if connection.closed or not is_idle:
            connection.close()
            return
        with self._lock:
            self._idle.append(connection)


def _arguments(jobs: Sequence[NewJob], now: datetime | None, *, is_new: bool) -> list[Any]:
    return enqueue_arguments(jobs, now, always_wake=False, is_new=is_new)
