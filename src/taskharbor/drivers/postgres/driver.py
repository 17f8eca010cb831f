"""PostgresDriver: many machines on one Postgres.

Each verb is one statement or one short transaction on a connection of its own. The hot ones
(enqueue, exchange, extend) are functions in the database; the rarer ones lock records, let
`taskharbor.model.transitions` decide, and write them back: see attempts.py and ledger.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from typing import Any, Self

from taskharbor.drivers.capabilities import Capabilities
from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import (
    CancelAnswer,
    Claim,
    Claimed,
    Counts,
    Deleted,
    DriverInfo,
    Enqueued,
    Exchanged,
    Extended,
    Page,
    Query,
    QueueInfo,
    Reclaimed,
    Requeued,
    RoleLease,
    Settled,
    Speculated,
    Wakeups,
)
from taskharbor.drivers.postgres import schema
from taskharbor.drivers.postgres.address import Address, address_of
from taskharbor.drivers.postgres.attempts import Attempts
from taskharbor.drivers.postgres.blocking import Blocking
from taskharbor.drivers.postgres.connections import Connections, connect, our_names
from taskharbor.drivers.postgres.control import Control
from taskharbor.drivers.postgres.faults import FOREIGN, is_known_id, ours, translated
from taskharbor.drivers.postgres.listen import Listening
from taskharbor.drivers.postgres.looking import Looking
from taskharbor.drivers.postgres.presence import Presence
from taskharbor.drivers.postgres.statements import (
    Statements,
    enqueue_arguments,
    enqueued,
    enqueued_at,
    usual_arguments,
    usual_job,
)
from taskharbor.drivers.postgres.transactions import is_async
from taskharbor.errors import (
    ConflictError,
    DriverMisbehaved,
    InvalidArgument,
    JobNotFound,
    LeaseLost,
    StoreRefused,
)
from taskharbor.model.clock import Clock
from taskharbor.model.edit import Edit
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import JobRecord, Lease, NewJob, Progress
from taskharbor.model.presence import Sample, TypeInfo, WorkerInfo, WorkerReport
from taskharbor.model.queue import QueueRules, QueueSettings
from taskharbor.model.schedule import Schedule, StoredSchedule
from taskharbor.model.settlement import Ack, Settlement
from taskharbor.model.speculation import HeadStart

_CAPABILITIES = Capabilities(
    wakeups=True,
    multiprocess=True,
    durable=True,
    tx=True,
    blocking_enqueue=True,
    remote=True,
    atomic_across_queues=True,
)


class PostgresDriver(Driver):
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
            if self._checks_schema:
                schema.check(await schema.applied_names(connection, self.address), self.address)
        except FOREIGN as error:
            connection.terminate()
            raise ours(error, writes=False) from error
        except BaseException:
            connection.terminate()
            raise
        self._connections = Connections(self.address, first=connection)
        self._attempts = Attempts(self._connections, self._sql, self.entropy, self.clock, self.orphans)
        self._control = Control(self._connections, self._sql)
        self._looking = Looking(self._connections, self._sql)
        self._presence = Presence(self._connections, self._sql)
        self._listening = Listening(
            self.address, self._connections, self._sql, self._attempts, self.clock, self.entropy
        )
        self._listening.outage = self.outage

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
        await self._listening.close()
        await self._connections.close()
        await asyncio.to_thread(self._blocking.close)

    # ------------------------------------------------------------------ jobs in

    async def do_enqueue(self, jobs: Sequence[NewJob], now: datetime | None) -> list[Enqueued]:
        usual = usual_job(jobs)
        if usual is not None and (answer := await self._enqueue_usual(usual, jobs, now)):
            return answer
        # Usual jobs, or one, come here only when there is something about them: perhaps that one is known.
        return await self._enqueue(jobs, now, is_new=usual is None and len(jobs) > 1)

    async def _enqueue_usual(
        self, usual: NewJob, jobs: Sequence[NewJob], now: datetime | None
    ) -> list[Enqueued] | None:
        statement = self._sql["enqueue_one" if len(jobs) == 1 else "enqueue_alike"]
        try:
            rows = await self._connections.rows(statement, *usual_arguments(usual, jobs, now))
        except DriverMisbehaved as error:
            if not is_known_id(error):
                raise
            return None
        at = rows[0][0]  # none: they have to go the longer way
        return None if at is None else enqueued_at(jobs, at)

    async def _enqueue(self, jobs: Sequence[NewJob], now: datetime | None, *, is_new: bool) -> list[Enqueued]:
        arguments = enqueue_arguments(jobs, now, always_wake=False, is_new=is_new)
        try:
            return enqueued(jobs, await self._connections.rows(self._sql["enqueue"], *arguments))
        except DriverMisbehaved as error:
            if not (is_new and is_known_id(error)):
                raise
        return await self._enqueue(jobs, now, is_new=False)

    def do_enqueue_blocking(self, jobs: Sequence[NewJob], now: datetime | None, tx: Any) -> list[Enqueued]:
        if tx is not None and is_async(tx):
            raise InvalidArgument("tx is an async connection: use `await aenqueue()`; nothing was stored")
        answers: list[Enqueued] = self._blocking.enqueue(jobs, now, tx)
        return answers

    async def do_enqueue_in(self, jobs: Sequence[NewJob], tx: Any, now: datetime | None) -> list[Enqueued]:
        answers: Any = self._blocking.enqueue(jobs, now, tx)
        stored: list[Enqueued] = await answers if is_async(tx) else answers
        return stored

    # ------------------------------------------------------------------ attempts

    async def do_reserve(self, claim: Claim, now: datetime | None) -> Claimed:
        answer = await self._attempts.exchange((), claim, now)
        return Claimed(answer.claimed, answer.given_up)

    async def do_extend_leases(
        self,
        leases: Sequence[Lease],
        lease_for: timedelta,
        progress: Mapping[str, Progress],
        now: datetime | None,
    ) -> list[Extended | LeaseLost]:
        return await self._attempts.extend(leases, lease_for, progress, now)

    async def do_settle(
        self, settlements: Sequence[Settlement], now: datetime | None
    ) -> list[Settled | LeaseLost]:
        return (await self._attempts.exchange(settlements, None, now)).settled

    async def do_exchange(
        self, settlements: Sequence[Settlement], claim: Claim, now: datetime | None
    ) -> Exchanged:
        return await self._attempts.exchange(settlements, claim, now)

    @asynccontextmanager
    async def do_transaction(
        self, ack: Callable[[], Ack], now: datetime | None, on_settled: Callable[[Settled], None]
    ) -> AsyncIterator[Any]:
        """Hands out an asyncpg connection."""
        async with self._connections.lend() as connection:
            transaction = connection.transaction(isolation="read_committed")
            with translated(writes=False):
                await transaction.start()
            try:
                yield connection
                with translated(writes=False):
                    async with our_names(connection):
                        answer = await self._attempts.settle_in(connection, ack(), now)
                if isinstance(answer, LeaseLost):
                    raise answer
            except BaseException:
                if not connection.is_closed():
                    with suppress(*FOREIGN):
                        await transaction.rollback()
                raise
            with translated():
                await transaction.commit()
            on_settled(answer)

    # ------------------------------------------------------------------ time

    async def do_reclaim(self, limit: int, now: datetime | None) -> list[Reclaimed]:
        return await self._attempts.reclaim(limit, now)

    async def do_promote(self, limit: int, now: datetime | None) -> int:
        return await self._number("promote", now, limit)

    async def do_prune(self, limit: int, now: datetime | None) -> int:
        return await self._number("prune", now, limit)

    # ------------------------------------------------------------------ control

    async def do_cancel(self, ids: Sequence[str], now: datetime | None) -> list[CancelAnswer]:
        return await self._control.cancel(ids, now)

    async def do_cancel_waiting(self, queue: str, key: bytes, now: datetime | None) -> bool:
        return await self._control.cancel_waiting(queue, key, now)

    async def do_requeue(
        self,
        ids: Sequence[str],
        edit: Edit,
        reset_counts: bool,
        run_at: datetime | None,
        delay: timedelta | None,
        now: datetime | None,
    ) -> list[Requeued | JobNotFound | ConflictError]:
        return await self._control.requeue(ids, edit, reset_counts, run_at, delay, now)

    async def do_delete(
        self, ids: Sequence[str], now: datetime | None
    ) -> list[Deleted | JobNotFound | ConflictError]:
        return await self._control.delete(ids, now)

    async def do_configure_queue(self, settings: QueueSettings, now: datetime | None) -> QueueRules:
        return await self._presence.configure(settings)

    async def do_speculate(
        self, job_id: str, head_start: HeadStart | None, now: datetime | None
    ) -> Speculated | JobNotFound | ConflictError:
        return await self._control.speculate(job_id, head_start, now)

    # ------------------------------------------------------------------ looking

    async def do_get(self, ids: Sequence[str], now: datetime | None) -> list[JobRecord | None]:
        return await self._looking.get(ids, now)

    async def do_look(self, ids: Sequence[str], now: datetime | None) -> list[JobRecord | None]:
        return await self._looking.get(ids, now, payloads=False)

    async def do_find(self, query: Query, now: datetime | None) -> Page:
        return await self._looking.find(query, now)

    async def do_count(self, queues: Sequence[str] | None, now: datetime | None) -> dict[str, Counts]:
        return await self._looking.count(queues, now)

    async def do_queues(self, now: datetime | None) -> list[QueueInfo]:
        return await self._looking.queues(now)

    async def do_info(self) -> DriverInfo:
        [row] = await self._connections.rows(self._sql["info"], writes=False)
        health = await self._connections.rows(self._sql["health"], writes=False)
        return DriverInfo(
            driver="postgres",
            store=f"PostgreSQL {row[1]}",
            location=self.address.shown,
            durability="D3" if row[2] == "on" and row[3] != "off" else "D1",
            schema=row[4] or "none",
            at=row[0],
            details={
                "fsync": row[2],
                "synchronous_commit": row[3],
                "pooler": "transaction" if self.address.behind_pooler else "none",
                **dict(health),
            },
        )

    # ------------------------------------------------------------------ presence

    async def do_report_worker(
        self, report: WorkerReport, samples: Sequence[Sample], ttl: timedelta, now: datetime | None
    ) -> None:
        await self._presence.report(report, samples, ttl, now)

    async def do_forget_worker(self, worker_id: str, now: datetime | None) -> bool:
        return await self._presence.forget(worker_id, now)

    async def do_workers(self, now: datetime | None) -> list[WorkerInfo]:
        return await self._presence.workers(now)

    async def do_types(self, now: datetime | None) -> list[TypeInfo]:
        return await self._presence.types()

    async def do_hold_role(self, role: str, holder: str, ttl: timedelta, now: datetime | None) -> RoleLease:
        return await self._presence.hold(role, holder, ttl, now)

    async def do_release_role(self, role: str, holder: str, now: datetime | None) -> bool:
        return await self._presence.release(role, holder, now)

    def do_wakeups(self, queues: tuple[str, ...], worker_id: str) -> Wakeups:
        return self._listening.listen(queues, worker_id)

    # ------------------------------------------------------------------ schedules

    async def do_put_schedule(self, schedule: Schedule, now: datetime | None) -> StoredSchedule:
        return await self._presence.put(schedule, now)

    async def do_advance_schedule(self, name: str, tick: datetime, fired: bool, now: datetime | None) -> bool:
        return await self._presence.advance(name, tick, fired, now)

    async def do_delete_schedule(self, name: str, now: datetime | None) -> bool:
        return await self._presence.delete(name)

    async def do_schedules(self, now: datetime | None) -> list[StoredSchedule]:
        return await self._presence.schedules()

    # ------------------------------------------------------------------ schema

    def migration_scripts(self) -> list[tuple[str, str]]:
        return schema.scripts(self.address)

    async def do_pending_migrations(self) -> list[str]:
        connection = await self._first_connection()
        try:
            applied = await schema.applied_names(connection, self.address)
        finally:
            connection.terminate()
        return [migration.name for migration in schema.needed(applied)]

    async def do_migrate(self) -> list[str]:
        connection = await self._first_connection()
        try:
            return await schema.migrate(connection, self.address)
        except FOREIGN as error:
            raise ours(error) from error
        finally:
            connection.terminate()

    async def _number(self, name: str, *arguments: object) -> int:
        [row] = await self._connections.rows(self._sql[name], *arguments)
        return int(row[0])
