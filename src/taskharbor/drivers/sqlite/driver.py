"""SqliteDriver: jobs in one file. The verbs of clients and workers are here, the others in its parts:
control.py, queries.py, registry.py and logbook.py.

The tables are drawn in sql/migrations/0001_schema.sql.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, closing
from datetime import datetime, timedelta
from typing import Any, Self, TypeVar

from taskharbor.drivers.borrowed import no_transaction
from taskharbor.drivers.capabilities import Capabilities
from taskharbor.drivers.contract import Driver
from taskharbor.drivers.families import CALL_LIMIT
from taskharbor.drivers.messages import (
    Claim,
    Claimed,
    DriverInfo,
    Enqueued,
    Exchanged,
    Extended,
    Noted,
    Promoted,
    Reclaimed,
    Resolution,
    Resolved,
    Settled,
)
from taskharbor.drivers.migrations import MigrationLedger
from taskharbor.drivers.sqlite import schema
from taskharbor.drivers.sqlite.ack_transaction import AckTransaction
from taskharbor.drivers.sqlite.caller_transaction import (
    do_in,
    do_in_async,
    do_on,
    is_async,
    look_on,
)
from taskharbor.drivers.sqlite.claim import reserve
from taskharbor.drivers.sqlite.connection import open_looker, open_reader, open_writer, ready
from taskharbor.drivers.sqlite.control import Control
from taskharbor.drivers.sqlite.enqueue import enqueue
from taskharbor.drivers.sqlite.enqueue_one import is_plain
from taskharbor.drivers.sqlite.extend import extend
from taskharbor.drivers.sqlite.family_verbs import enqueue_family, note, resolve
from taskharbor.drivers.sqlite.location import Location, location_of
from taskharbor.drivers.sqlite.logbook import Logbook
from taskharbor.drivers.sqlite.prune import prune
from taskharbor.drivers.sqlite.queries import Queries, get
from taskharbor.drivers.sqlite.reader import Reader
from taskharbor.drivers.sqlite.registry import Registry
from taskharbor.drivers.sqlite.settle import settle
from taskharbor.drivers.sqlite.step import Step, in_namespace, statements_for
from taskharbor.drivers.sqlite.upkeep import promote_all, reclaim
from taskharbor.drivers.sqlite.wakeups import Bell, ListenerInfo, Notices, Subscription
from taskharbor.drivers.sqlite.writer import Writer
from taskharbor.errors import (
    BrokenBond,
    ConflictError,
    DriverClosed,
    JobNotFound,
    LeaseLost,
    RateLimited,
    SchemaOutOfDate,
    StoreRefused,
)
from taskharbor.model.clock import Clock
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import JobRecord, Lease, NewJob, Note, Progress
from taskharbor.model.settlement import Ack, Settlement

T = TypeVar("T")

_CAPABILITIES = Capabilities(
    wakeups=True,
    multiprocess=True,
    durable=True,
    tx=True,
    one_writer=True,
    blocking_enqueue=True,
    atomic_across_queues=True,
    logbook=True,
    workflows=True,
)


class SqliteDriver(Control, Queries, Registry, Logbook, Driver):
    """Jobs in one SQLite file: no server, many processes on one machine, nothing lost in a power cut."""

    def __init__(
        self, location: Location, *, clock: Clock | None = None, entropy: Entropy | None = None
    ) -> None:
        super().__init__(_CAPABILITIES, clock=clock, entropy=entropy)
        self._location = location
        self._sql = statements_for(location.table_prefix)
        self._writer: Writer | None = None
        self._reader: Reader | None = None
        self._bell = Bell(location.path, location.namespace, self.clock.monotonic)
        self._subscriptions: set[Subscription] = set()

    @classmethod
    def from_url(
        cls, url: str, *, clock: Clock | None = None, entropy: Entropy | None = None
    ) -> SqliteDriver:
        """sqlite:///relative.db, sqlite:////absolute.db?namespace=…&durability=full|normal&timeout=5"""
        return cls(location_of(url), clock=clock, entropy=entropy)

    def another(self) -> SqliteDriver:
        one = SqliteDriver(self._location, clock=self.clock, entropy=self.entropy.split("another"))
        return one.of_the_same_store(self)

    # ------------------------------------------------------------------ open and close

    async def do_open(self) -> None:
        if self.only_looks:
            await self._open_reader(schema.check)
            return
        loop = asyncio.get_running_loop()
        writer, reader = await loop.run_in_executor(None, self._connect)
        self._writer = Writer(
            writer, self._location, self._sql, self.clock, self.entropy, self._bell.ring, self.orphans
        )
        self._reader = Reader(reader, self._location, self._sql, self.clock)

    def check_tx(self, tx: Any) -> None:
        """An open transaction of the caller keeps us from making the store: refuse, and say what to do."""
        try:
            open_looker(self._location, schema.check).close()
        except (StoreRefused, SchemaOutOfDate) as error:
            raise no_transaction(
                f"the store in {self._location.path} is not made yet, and your transaction is in the way. "
                "Open it before you begin one, with harbor.open() or `await harbor.aopen()`"
            ) from error

    async def open_unmigrated(self) -> Self:
        """Nothing is written before `migrate`, and a file that is not there is not made."""
        if not self._is_open:
            self.only_looks = False
            await self._open_reader(None)
            self._is_open = True
        return self

    async def _open_reader(self, check: Callable[[sqlite3.Connection, Location], None] | None) -> None:
        loop = asyncio.get_running_loop()
        reader = await loop.run_in_executor(None, open_looker, self._location, check)
        self._writer = None
        self._reader = Reader(reader, self._location, self._sql, self.clock)

    def _connect(self) -> tuple[sqlite3.Connection, sqlite3.Connection]:
        writer = open_writer(self._location, self.entropy)
        try:
            schema.migrate(writer, self._location, self.clock, self.entropy)
            ready(writer)
            return writer, open_reader(self._location)
        except BaseException:
            writer.close()
            raise

    async def do_close(self) -> None:
        for subscription in list(self._subscriptions):
            await subscription.aclose()
        if self._writer is not None:
            await self._writer.close()
        if self._reader is not None:
            await self._reader.close()
        self._bell.close()

    async def do_ring(self, queues: tuple[str, ...]) -> None:
        notices = Notices()
        notices.queues.update(queues)
        self._bell.ring(notices)

    def do_wakeups(self, queues: tuple[str, ...], worker_id: str) -> Subscription:
        info = ListenerInfo(self._location.namespace, worker_id, frozenset(queues))
        subscription = Subscription(self._location.path, info, self.entropy, self._subscriptions.discard)
        self._subscriptions.add(subscription)
        return subscription

    # ------------------------------------------------------------------ jobs in

    async def do_enqueue(self, jobs: Sequence[NewJob], now: datetime | None) -> list[Enqueued]:
        return _accepted(await self._write(lambda step: enqueue(step, jobs), now))

    async def do_enqueue_family(
        self, jobs: Sequence[NewJob], by: Lease | None, now: datetime | None
    ) -> list[Enqueued]:
        return _accepted(await self._write(lambda step: enqueue_family(step, jobs, by), now))

    def do_enqueue_blocking(self, jobs: Sequence[NewJob], now: datetime | None, tx: Any) -> list[Enqueued]:
        if tx is not None:
            at = now or self.clock.now()
            return _accepted(do_in(tx, lambda step: _enqueue(step, jobs), self._location, self._sql, at))
        writer = self._opened_writer()
        if len(jobs) == 1 and is_plain(jobs[0]):
            stored = writer.enqueue_one(jobs[0], now)
            if stored is not None:
                return [stored]
        return _accepted(writer.do_blocking(lambda step: _enqueue(step, jobs), now))

    async def do_enqueue_in(self, jobs: Sequence[NewJob], tx: Any, now: datetime | None) -> list[Enqueued]:
        if not is_async(tx):
            return self.do_enqueue_blocking(jobs, now, tx)
        at = now or self.clock.now()
        return _accepted(
            await do_in_async(tx, lambda step: _enqueue(step, jobs), self._location, self._sql, at)
        )

    def do_enqueue_on(self, connection: Any, jobs: Sequence[NewJob], now: datetime | None) -> list[Enqueued]:
        at = now or self.clock.now()
        return _accepted(do_on(connection, lambda step: _enqueue(step, jobs), self._location, self._sql, at))

    def do_get_on(self, connection: Any, ids: Sequence[str], now: datetime | None) -> list[JobRecord | None]:
        at = now or self.clock.now()
        return look_on(connection, lambda step: get(step, ids), self._location, self._sql, at)

    # ------------------------------------------------------------------ jobs out

    async def do_reserve(self, claim: Claim, now: datetime | None) -> Claimed:
        token = self.entropy.token()
        return await self._write(lambda step: reserve(step, claim, token), now)

    async def do_extend_leases(
        self,
        leases: Sequence[Lease],
        lease_for: timedelta,
        progress: Mapping[str, Progress],
        now: datetime | None,
    ) -> list[Extended | LeaseLost]:
        return await self._write(lambda step: extend(step, leases, lease_for, progress), now)

    # ------------------------------------------------------------------ attempts end

    async def do_settle(
        self, settlements: Sequence[Settlement], now: datetime | None
    ) -> list[Settled | LeaseLost]:
        return await self._write(lambda step: settle(step, settlements), now)

    async def do_exchange(
        self, settlements: Sequence[Settlement], claim: Claim, now: datetime | None
    ) -> Exchanged:
        token = self.entropy.token()

        def work(step: Step) -> Exchanged:
            settled = settle(step, settlements)
            claimed, error = step.attempt(lambda: reserve(step, claim, token), self._location.path)
            if claimed is None:  # neither the claim nor what it reclaimed has happened
                return Exchanged(settled, [], error)
            return Exchanged(settled, claimed.jobs, given_up=claimed.given_up, ended=claimed.ended)

        return await self._write(work, now)

    async def do_resolve(
        self, items: Sequence[Resolution], now: datetime | None
    ) -> list[Resolved | JobNotFound | ConflictError]:
        return await self._write(lambda step: resolve(step, items), now)

    async def do_note(
        self, notes: Sequence[Note], now: datetime | None
    ) -> list[Noted | LeaseLost | BrokenBond]:
        return await self._write(lambda step: note(step, notes), now)

    def do_transaction(
        self, ack: Callable[[], Ack], now: datetime | None, on_settled: Callable[[Settled], None]
    ) -> AbstractAsyncContextManager[sqlite3.Connection]:
        own = AckTransaction(self._location, self._sql, self.clock, self.entropy, self._bell.ring)
        return own.transaction(ack, now, on_settled)

    # ------------------------------------------------------------------ time

    async def do_reclaim(self, limit: int, now: datetime | None) -> list[Reclaimed]:
        return await self._write(lambda step: reclaim(step, None, limit), now)

    async def do_promote(self, limit: int, now: datetime | None) -> Promoted:
        return await self._write(lambda step: promote_all(step, limit), now)

    async def do_prune(self, limit: int, now: datetime | None) -> int:
        return await self._write(lambda step: prune(step, limit), now)

    # ------------------------------------------------------------------ info

    async def do_info(self) -> DriverInfo:
        def look(step: Step) -> tuple[int, int, int]:
            (pages,) = step.connection.execute("pragma page_count").fetchone()
            (page_bytes,) = step.connection.execute("pragma page_size").fetchone()
            # A file that is only looked at may be older than what is counted here.
            owed = 0 if self._writer is None else step.fetch_one("owed_count", limit=CALL_LIMIT)[0]
            return pages, page_bytes, owed

        pages, page_bytes, owed = await self._read(look, None)
        return DriverInfo(
            driver="sqlite",
            store=f"SQLite {sqlite3.sqlite_version}",
            location=self._location.url,
            durability="D3" if self._location.durability == "full" else "D2",
            schema=schema.MIGRATIONS[-1].name,
            at=self.clock.now(),
            owed=owed,
            details={
                "journal": "wal",
                "synchronous": self._location.durability,
                "namespace": self._location.namespace,
                "file_bytes": str(pages * page_bytes),
            },
        )

    # ------------------------------------------------------------------ schema

    def migration_scripts(self) -> list[tuple[str, str]]:
        return schema.scripts(self._location)

    def migration_ledger(self) -> MigrationLedger:
        migrations, additions = (in_namespace(one, self._location.table_prefix) for one in schema.LEDGERS)
        return MigrationLedger(migrations=migrations, additions=additions)

    async def do_pending_migrations(self) -> list[str]:
        return await self._read(lambda step: schema.pending_names(step.connection, self._location), None)

    async def do_migrate(self) -> list[str]:
        """Opening as usual has migrated already; then nothing is left."""
        if self._writer is not None:
            return await self.do_pending_migrations()
        names = await asyncio.get_running_loop().run_in_executor(None, self._migrate)
        if self._reader is not None:  # what it looked at may not have been there
            await self._reader.close()
        self._reader = Reader(open_reader(self._location), self._location, self._sql, self.clock)
        return names

    def _migrate(self) -> list[str]:
        with closing(open_writer(self._location, self.entropy)) as writer:
            return schema.migrate(writer, self._location, self.clock, self.entropy)

    # ------------------------------------------------------------------ one step

    async def _write(self, work: Callable[[Step], T], now: datetime | None) -> T:
        return await self._opened_writer().do(work, now)

    def _opened_writer(self) -> Writer:
        if self._writer is None:
            raise StoreRefused(f"{self._location.path} was opened to migrate only; open() it to use it")
        return self._writer

    async def _read(self, look: Callable[[Step], T], now: datetime | None) -> T:
        if self._reader is None:
            raise DriverClosed
        return await self._reader.do(look, now)


def _enqueue(step: Step, jobs: Sequence[NewJob]) -> list[Enqueued] | RateLimited:
    """Any jobs, from callers of whom the contract does not say which have bonds."""
    if any(job.bonds is not None for job in jobs):
        return enqueue_family(step, jobs, None)
    return enqueue(step, jobs)


def _accepted(answer: list[Enqueued] | RateLimited) -> list[Enqueued]:
    if isinstance(answer, RateLimited):
        raise answer
    return answer
