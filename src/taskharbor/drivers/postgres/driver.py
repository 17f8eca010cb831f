"""PostgresDriver: many machines on one Postgres.

Each verb is one statement or one short transaction on a connection of its own. Jobs go in and out, are
settled and kept alive by functions in the database (attempts.py, sql/functions). The rarer verbs lock
records, let `drivers/lifecycle.py` decide, and write them back (control.py, unit_of_work.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Self

from taskharbor.drivers.capabilities import Capabilities
from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Enqueued, Wakeups
from taskharbor.drivers.migrations import MigrationLedger
from taskharbor.drivers.postgres import schema
from taskharbor.drivers.postgres.address import Address, address_of
from taskharbor.drivers.postgres.attempts import Attempts, ClaimSignals
from taskharbor.drivers.postgres.blocking import Blocking
from taskharbor.drivers.postgres.claim_start import ClaimStart
from taskharbor.drivers.postgres.connections import READ_ONLY, Connections, connect
from taskharbor.drivers.postgres.control import Control
from taskharbor.drivers.postgres.families import stored_in
from taskharbor.drivers.postgres.faults import FOREIGN, is_known_id, ours
from taskharbor.drivers.postgres.logbook import Logbook
from taskharbor.drivers.postgres.queries import Queries, found_records
from taskharbor.drivers.postgres.registry import Registry
from taskharbor.drivers.postgres.statements import (
    Statements,
    are_new,
    enqueue_arguments,
    enqueued,
    enqueued_at,
    has_bonds,
    one_arguments,
    usual_job,
)
from taskharbor.drivers.postgres.transactions import asked_in, asked_in_async, is_async, run_on
from taskharbor.drivers.postgres.wakeups import WakeupListener
from taskharbor.errors import DriverError, DriverMisbehaved, InvalidArgument, StoreRefused
from taskharbor.model.clock import Clock
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import JobRecord, NewJob

_CAPABILITIES = Capabilities(
    wakeups=True,
    multiprocess=True,
    durable=True,
    tx=True,
    blocking_enqueue=True,
    remote=True,
    atomic_across_queues=True,
    logbook=True,
    workflows=True,
)
_LAST_LOOK_SECONDS = 2.0


class PostgresDriver(Attempts, Control, Queries, Registry, Logbook, Driver):
    """A store in a schema of a Postgres database."""

    def __init__(
        self, address: Address, *, clock: Clock | None = None, entropy: Entropy | None = None
    ) -> None:
        super().__init__(_CAPABILITIES, clock=clock, entropy=entropy)
        self.address = address
        self._sql = Statements(address)
        self._blocking = Blocking(address, self._sql)
        self._checks_schema = True

    @classmethod
    def from_url(
        cls, url: str, *, clock: Clock | None = None, entropy: Entropy | None = None
    ) -> PostgresDriver:
        """postgresql://user@host/database?schema=…; the other options are in address.py."""
        return cls(address_of(url), clock=clock, entropy=entropy)

    def another(self) -> PostgresDriver:
        one = PostgresDriver(self.address, clock=self.clock, entropy=self.entropy.split("another"))
        return one.of_the_same_store(self)

    # ------------------------------------------------------------------ open and close

    async def open_unmigrated(self) -> Self:
        """Open whatever the schema is like, to look at what is pending and to migrate."""
        self._checks_schema = False
        return await self.open()

    async def do_open(self) -> None:
        connection = await self._first_connection()
        try:
            await self._check_server(connection)
            if self.only_looks and not self.address.behind_pooler:  # behind one, each transaction says so
                await connection.execute(READ_ONLY)
            if self._checks_schema:
                applied = await schema.applied_names(connection, self.address)
                schema.check(applied, await schema.function_names(connection, self.address), self.address)
        except FOREIGN as error:
            connection.terminate()
            raise ours(error, writes=False) from error
        except BaseException:
            connection.terminate()
            raise
        self._connections = Connections(self.address, first=connection, only_looks=self.only_looks)
        self._start = ClaimStart(self.clock)
        self._signals = ClaimSignals()
        self._far = {}
        self._listener = WakeupListener(
            self.address, self._connections, self._sql, self._signals, self.clock, self.entropy
        )
        self._listener.outage = self.outage

    async def _first_connection(self) -> Any:
        try:
            return await connect(self.address)
        except (*FOREIGN, ValueError) as error:
            raise ours(error, writes=False) from error

    async def _check_server(self, connection: Any) -> None:
        version, is_standby, is_read_only = await connection.fetchrow(self._sql["server"])
        if version < schema.OLDEST_SERVER:
            raise StoreRefused(f"Postgres {version // 10000} is too old; 14 or newer is needed")
        if is_standby:
            raise StoreRefused("this server is a standby and takes no writes; connect to the primary")
        if is_read_only:
            raise StoreRefused(
                "this database is set read-only (default_transaction_read_only); jobs need writes"
            )

    async def do_close(self) -> None:
        if self._far:
            with suppress(DriverError, TimeoutError):  # then claims of others find them
                async with asyncio.timeout(_LAST_LOOK_SECONDS):
                    await self._look_again(None, at_once=True)
        await self._listener.close()
        await self._connections.close()
        await asyncio.to_thread(self._blocking.close)

    # ------------------------------------------------------------------ jobs in

    async def do_enqueue(self, jobs: Sequence[NewJob], now: datetime | None) -> list[Enqueued]:
        usual = usual_job(jobs)
        try:
            if usual is not None:
                rows = await self._connections.rows(self._sql["enqueue_one"], *one_arguments(usual, now))
                if rows[0][0] is not None:  # else there is something about it, perhaps that it is known
                    return enqueued_at(jobs, rows[0][0])
            return await self._enqueue(jobs, now, is_new=are_new(jobs))
        except DriverMisbehaved as error:
            if not is_known_id(error):
                raise
        return await self._enqueue(jobs, now, is_new=False)

    async def _enqueue(self, jobs: Sequence[NewJob], now: datetime | None, *, is_new: bool) -> list[Enqueued]:
        arguments = enqueue_arguments(jobs, now, always_wake=False, is_new=is_new)
        return enqueued(jobs, await self._connections.rows(self._sql["enqueue"], *arguments))

    def do_enqueue_blocking(self, jobs: Sequence[NewJob], now: datetime | None, tx: Any) -> list[Enqueued]:
        if tx is not None and is_async(tx):
            raise InvalidArgument("tx is an async connection: use `await aenqueue()`; nothing was stored")
        if has_bonds(jobs):
            return self._blocking.enqueue_family(jobs, now) if tx is None else self._family_in(tx, jobs, now)
        answers: list[Enqueued] = self._blocking.enqueue(jobs, now, tx)
        return answers

    def _family_in(self, tx: Any, jobs: Sequence[NewJob], now: datetime | None) -> list[Enqueued]:
        return asked_in(tx, stored_in(self._sql, jobs, now))

    async def do_enqueue_in(self, jobs: Sequence[NewJob], tx: Any, now: datetime | None) -> list[Enqueued]:
        if has_bonds(jobs):
            if is_async(tx):
                return await asked_in_async(tx, stored_in(self._sql, jobs, now))
            return self._family_in(tx, jobs, now)
        answers: Any = self._blocking.enqueue(jobs, now, tx)
        stored: list[Enqueued] = await answers if is_async(tx) else answers
        return stored

    def do_enqueue_on(self, connection: Any, jobs: Sequence[NewJob], now: datetime | None) -> list[Enqueued]:
        if has_bonds(jobs):  # in several statements, so there must be a transaction
            return self._family_in(connection, jobs, now)
        arguments = enqueue_arguments(jobs, now, always_wake=True, is_new=False)
        return run_on(connection, self._sql["enqueue"], arguments, lambda rows: enqueued(jobs, rows))

    def do_get_on(self, connection: Any, ids: Sequence[str], now: datetime | None) -> list[JobRecord | None]:
        statement = self._sql["get"]
        return run_on(connection, statement, [list(ids), now], lambda rows: found_records(rows, len(ids)))

    async def do_ring(self, queues: tuple[str, ...]) -> None:
        await self._connections.rows(self._sql["ring"], list(queues))

    def do_wakeups(self, queues: tuple[str, ...], worker_id: str) -> Wakeups:
        return self._listener.listen(queues, worker_id)

    # ------------------------------------------------------------------ schema

    def migration_scripts(self) -> list[tuple[str, str]]:
        return schema.scripts(self.address)

    def migration_ledger(self) -> MigrationLedger:
        where = self.address.identifier
        return MigrationLedger(
            migrations=f"{where}.migration",
            functions=f"{where}.function_text",
            digests=schema.FUNCTIONS.digests,
            number=schema.FUNCTIONS.number,
        )

    async def do_pending_migrations(self) -> list[str]:
        connection = await self._first_connection()
        try:
            return await schema.pending_names(connection, self.address)
        finally:
            connection.terminate()

    async def do_migrate(self) -> list[str]:
        connection = await self._first_connection()
        try:
            return await schema.migrate(connection, self.address)
        except FOREIGN as error:
            raise ours(error) from error
        finally:
            connection.terminate()
