"""SqliteDriver: one method per verb. Each hands a step to the writer (commits.py) or the reader (looks.py).

What a step does is in the file of its verb: enqueue, reserve, extend, settle, reclaim, control, prune,
looking, presence. The tables are drawn in sql/migrations/0001_jobs.sql.
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
)
from taskharbor.drivers.sqlite import control, gates, looking, presence, schema
from taskharbor.drivers.sqlite.commits import Commits
from taskharbor.drivers.sqlite.completion import Completion
from taskharbor.drivers.sqlite.connection import open_looker, open_reader, open_writer, ready
from taskharbor.drivers.sqlite.enqueue import enqueue
from taskharbor.drivers.sqlite.extend import extend
from taskharbor.drivers.sqlite.joining import do_in
from taskharbor.drivers.sqlite.location import Location, location_of
from taskharbor.drivers.sqlite.looks import Looks
from taskharbor.drivers.sqlite.prune import prune
from taskharbor.drivers.sqlite.reclaim import reclaim
from taskharbor.drivers.sqlite.reserve import promote, reserve
from taskharbor.drivers.sqlite.settle import settle
from taskharbor.drivers.sqlite.statements import statements_for
from taskharbor.drivers.sqlite.step import Step
from taskharbor.drivers.sqlite.wakeups import Bell, Ear, Listener
from taskharbor.errors import (
    ConflictError,
    DriverClosed,
    JobNotFound,
    LeaseLost,
    RateLimited,
    SchemaOutOfDate,
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
from taskharbor.model.transitions import starting_at

T = TypeVar("T")

_CAPABILITIES = Capabilities(
    wakeups=True,
    multiprocess=True,
    durable=True,
    tx=True,
    one_writer=True,
    blocking_enqueue=True,
    atomic_across_queues=True,
)


class SqliteDriver(Driver):
    """Jobs in one SQLite file: no server, many processes on one machine, nothing lost in a power cut."""

    def __init__(
        self, location: Location, *, clock: Clock | None = None, entropy: Entropy | None = None
    ) -> None:
        super().__init__(_CAPABILITIES, clock=clock, entropy=entropy)
        self._location = location
        self._sql = statements_for(location.table_prefix)
        self._commits: Commits | None = None
        self._looks: Looks | None = None
        self._bell = Bell(location.path, location.namespace)
        self._listeners: set[Listener] = set()
        self._only_looks = False

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
        loop = asyncio.get_running_loop()
        writer, reader = await loop.run_in_executor(None, self._connect)
        self._commits = Commits(
            writer, self._location, self._sql, self.clock, self.entropy, self._bell.ring, self.orphans
        )
        self._looks = Looks(reader, self._location, self._sql, self.clock)

    def check_tx(self, tx: Any) -> None:
        """Whoever has a transaction open keeps us from making the store, and would wait for it in vain."""
        try:
            open_looker(self._location, schema.check).close()
        except (StoreRefused, SchemaOutOfDate) as error:
            raise no_transaction(
                f"the store in {self._location.path} is not made yet, and your transaction is in the way. "
                "Open it before you begin one, with harbor.open() or `await harbor.aopen()`"
            ) from error

    async def open_to_look(self) -> Self:
        return await self._open_reader(schema.check)

    async def open_unmigrated(self) -> Self:
        """Nothing is written before `migrate`, and a file that is not there is not made."""
        return await self._open_reader(None)

    async def _open_reader(self, check: Callable[[sqlite3.Connection, Location], None] | None) -> Self:
        if not self._is_open:
            loop = asyncio.get_running_loop()
            reader = await loop.run_in_executor(None, open_looker, self._location, check)
            self._looks = Looks(reader, self._location, self._sql, self.clock)
            self._is_open = self._only_looks = True
        return self

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
        for listener in list(self._listeners):
            await listener.aclose()
        if self._commits is not None:
            await self._commits.close()
        if self._looks is not None:
            await self._looks.close()
        self._bell.close()

    # ------------------------------------------------------------------ jobs in

    async def do_enqueue(self, jobs: Sequence[NewJob], now: datetime | None) -> list[Enqueued]:
        return _accepted(await self._write(lambda step: enqueue(step, jobs), now))

    def do_enqueue_blocking(self, jobs: Sequence[NewJob], now: datetime | None, tx: Any) -> list[Enqueued]:
        if tx is not None:
            at = now or self.clock.now()
            answers, hints = do_in(tx, lambda step: enqueue(step, jobs), self._location, self._sql, at)
            if hints:
                self._bell.ring(hints)
            return _accepted(answers)
        if self._commits is None:
            raise DriverClosed
        return _accepted(self._commits.do_here(lambda step: enqueue(step, jobs), now))

    # ------------------------------------------------------------------ attempts

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
            return Exchanged(settled, claimed.jobs, given_up=claimed.given_up)

        return await self._write(work, now)

    def do_transaction(
        self, ack: Callable[[], Ack], now: datetime | None, on_settled: Callable[[Settled], None]
    ) -> AbstractAsyncContextManager[sqlite3.Connection]:
        completion = Completion(self._location, self._sql, self.clock, self.entropy, self._bell.ring)
        return completion.transaction(ack, now, on_settled)

    # ------------------------------------------------------------------ time

    async def do_reclaim(self, limit: int, now: datetime | None) -> list[Reclaimed]:
        return await self._write(lambda step: reclaim(step, None, limit), now)

    async def do_promote(self, limit: int, now: datetime | None) -> int:
        return await self._write(lambda step: _promote(step, limit), now)

    async def do_prune(self, limit: int, now: datetime | None) -> int:
        return await self._write(lambda step: prune(step, limit), now)

    # ------------------------------------------------------------------ control

    async def do_cancel(self, ids: Sequence[str], now: datetime | None) -> list[CancelAnswer]:
        return await self._write(lambda step: [control.cancel(step, job_id) for job_id in ids], now)

    async def do_cancel_waiting(self, queue: str, key: bytes, now: datetime | None) -> bool:
        return await self._write(lambda step: control.cancel_waiting(step, queue, key), now)

    async def do_requeue(
        self,
        ids: Sequence[str],
        edit: Edit,
        reset_counts: bool,
        run_at: datetime | None,
        delay: timedelta | None,
        now: datetime | None,
    ) -> list[Requeued | JobNotFound | ConflictError]:
        def work(step: Step) -> list[Requeued | JobNotFound | ConflictError]:
            due = starting_at(run_at, delay, step.now)
            return [
                control.requeue(step, job_id, edit, reset_counts=reset_counts, run_at=due) for job_id in ids
            ]

        return await self._write(work, now)

    async def do_delete(
        self, ids: Sequence[str], now: datetime | None
    ) -> list[Deleted | JobNotFound | ConflictError]:
        return await self._write(lambda step: [control.delete(step, job_id) for job_id in ids], now)

    async def do_configure_queue(self, settings: QueueSettings, now: datetime | None) -> QueueRules:
        def work(step: Step) -> QueueRules:
            step.hints.queues.update(name for (name,) in step.all("count_queues"))  # a gate may have opened
            return gates.configure(step, settings)

        return await self._write(work, now)

    async def do_speculate(
        self, job_id: str, head_start: HeadStart | None, now: datetime | None
    ) -> Speculated | JobNotFound | ConflictError:
        return await self._write(lambda step: control.speculate(step, job_id, head_start), now)

    # ------------------------------------------------------------------ looking

    async def do_get(self, ids: Sequence[str], now: datetime | None) -> list[JobRecord | None]:
        return await self._look(lambda step: looking.get(step, ids), now)

    async def do_look(self, ids: Sequence[str], now: datetime | None) -> list[JobRecord | None]:
        return await self._look(lambda step: looking.get(step, ids, payloads=False), now)

    async def do_find(self, query: Query, now: datetime | None) -> Page:
        return await self._look(lambda step: looking.find(step, query), now)

    async def do_count(self, queues: Sequence[str] | None, now: datetime | None) -> dict[str, Counts]:
        return await self._look(lambda step: looking.count(step, queues), now)

    async def do_queues(self, now: datetime | None) -> list[QueueInfo]:
        return await self._look(looking.queues, now)

    async def do_info(self) -> DriverInfo:
        def look(step: Step) -> tuple[int, int]:
            (pages,) = step.connection.execute("pragma page_count").fetchone()
            (page_bytes,) = step.connection.execute("pragma page_size").fetchone()
            return pages, page_bytes

        pages, page_bytes = await self._look(look, None)
        return DriverInfo(
            driver="sqlite",
            store=f"SQLite {sqlite3.sqlite_version}",
            location=self._location.url,
            durability="D3" if self._location.durability == "full" else "D2",
            schema=schema.MIGRATIONS[-1].name,
            at=self.clock.now(),
            details={
                "journal": "wal",
                "synchronous": self._location.durability,
                "namespace": self._location.namespace,
                "file_bytes": str(pages * page_bytes),
            },
        )

    # ------------------------------------------------------------------ presence

    async def do_report_worker(
        self, report: WorkerReport, samples: Sequence[Sample], ttl: timedelta, now: datetime | None
    ) -> None:
        await self._write(lambda step: presence.report_worker(step, report, samples, ttl), now)

    async def do_forget_worker(self, worker_id: str, now: datetime | None) -> bool:
        return await self._write(lambda step: presence.forget_worker(step, worker_id), now)

    async def do_workers(self, now: datetime | None) -> list[WorkerInfo]:
        return await self._look(presence.workers, now)

    async def do_types(self, now: datetime | None) -> list[TypeInfo]:
        return await self._look(presence.types, now)

    async def do_hold_role(self, role: str, holder: str, ttl: timedelta, now: datetime | None) -> RoleLease:
        return await self._write(lambda step: presence.hold_role(step, role, holder, ttl), now)

    async def do_release_role(self, role: str, holder: str, now: datetime | None) -> bool:
        return await self._write(lambda step: presence.release_role(step, role, holder), now)

    def do_wakeups(self, queues: tuple[str, ...], worker_id: str) -> Listener:
        ear = Ear(self._location.namespace, worker_id, queues)
        listener = Listener(self._location.path, ear, self.entropy, self._listeners.discard)
        self._listeners.add(listener)
        return listener

    # ------------------------------------------------------------------ schedules

    async def do_put_schedule(self, schedule: Schedule, now: datetime | None) -> StoredSchedule:
        return await self._write(lambda step: presence.put_schedule(step, schedule), now)

    async def do_advance_schedule(self, name: str, tick: datetime, fired: bool, now: datetime | None) -> bool:
        return await self._write(lambda step: presence.advance_schedule(step, name, tick, fired), now)

    async def do_delete_schedule(self, name: str, now: datetime | None) -> bool:
        return await self._write(lambda step: presence.delete_schedule(step, name), now)

    async def do_schedules(self, now: datetime | None) -> list[StoredSchedule]:
        return await self._look(presence.schedules, now)

    # ------------------------------------------------------------------ schema

    def migration_scripts(self) -> list[tuple[str, str]]:
        return schema.scripts(self._location)

    async def do_pending_migrations(self) -> list[str]:
        return await self._look(lambda step: schema.pending_names(step.connection, self._location), None)

    async def do_migrate(self) -> list[str]:
        """Opening as usual has migrated already; then nothing is left."""
        if not self._only_looks:
            return await self.do_pending_migrations()
        names = await asyncio.get_running_loop().run_in_executor(None, self._migrate)
        if self._looks is not None:  # what it looked at may not have been there
            await self._looks.close()
        self._looks = Looks(open_reader(self._location), self._location, self._sql, self.clock)
        return names

    def _migrate(self) -> list[str]:
        with closing(open_writer(self._location, self.entropy)) as writer:
            return schema.migrate(writer, self._location, self.clock, self.entropy)

    # ------------------------------------------------------------------ hand over

    async def _write(self, work: Callable[[Step], T], now: datetime | None) -> T:
        if self._only_looks:
            raise StoreRefused(
                f"{self._location.path} was opened to look only; open() it to change something"
            )
        if self._commits is None:
            raise DriverClosed
        return await self._commits.do(work, now)

    async def _look(self, look: Callable[[Step], T], now: datetime | None) -> T:
        if self._looks is None:
            raise DriverClosed
        return await self._looks.do(look, now)


def _promote(step: Step, limit: int) -> int:
    moved = 0
    for (queue,) in step.all("promote_queues"):
        if moved < limit:
            moved += promote(step, queue, limit - moved)
    return moved


def _accepted(answer: list[Enqueued] | RateLimited) -> list[Enqueued]:
    if isinstance(answer, RateLimited):
        raise answer
    return answer
