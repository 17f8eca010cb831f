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
from taskharbor.drivers.postgres.statements import Statements, enqueue_arguments, enqueued, numbered
from taskharbor.drivers.postgres.transactions import run_in
from taskharbor.model.job import NewJob

_TRIES = 6


class Blocking:
    """The blocking side of one driver handle. Any thread may call it."""

    def __init__(self, address: Address, statements: Statements) -> None:
        self._address = address
        self._statement = statements["enqueue"]
        self._for_psycopg = numbered(self._statement, lambda _: "%s").encode()
        self._idle: list[psycopg.Connection[Any]] = []
        self._lock = threading.Lock()

    def enqueue(self, jobs: Sequence[NewJob], now: datetime | None, tx: Any) -> Any:
        if tx is not None:
            arguments = enqueue_arguments(jobs, now, always_wake=True)
            return run_in(tx, self._statement, arguments, lambda rows: enqueued(jobs, rows))
        return self._enqueue(jobs, enqueue_arguments(jobs, now, always_wake=False))

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _enqueue(self, jobs: Sequence[NewJob], arguments: list[Any]) -> list[Enqueued]:
        for left in reversed(range(_TRIES)):
            try:
                return enqueued(jobs, self._rows(arguments))
            except psycopg.Error as error:
                if left and sqlstate(error) in RETRYABLE:
                    continue
                raise ours(error) from error
        raise AssertionError("unreachable")

    def _rows(self, arguments: list[Any]) -> Sequence[Any]:
        connection = self._take()
        try:
            return connection.execute(self._for_psycopg, arguments, binary=True).fetchall()
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
