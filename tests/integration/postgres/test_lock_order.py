"""The order of locks, seen from outside: a verb that waits for a row holds none that comes after it.

Another session has one row of a family, or the table of leases, and a verb runs into it. While it waits, a
third session looks what the verb has. Every verb that can wait meets everything. The order is in
docs/reference/postgres.md.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
from msgspec.structs import replace

from taskharbor.drivers.messages import Resolution
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.errors import TaskHarborError
from taskharbor.model.job import JobRecord, NewJob, Note
from taskharbor.model.queue import EVERY_QUEUE, QueueSettings
from taskharbor.model.settlement import Ack, Fail, Park, Retry
from taskharbor.testing.conformance.kit import claim, new_job
from taskharbor.testing.conformance.relatives import after, bound, children, group
from tests.integration.postgres.waiting import someone_waits_for

LEASE = timedelta(minutes=1)
TABLES = {  # in the order of locks: whose row it is, and what it is called
    "family": ("id::text", "id::text"),
    "job_key": ("convert_from(key, 'utf8')", "convert_from(key, 'utf8')"),
    "waiting": ("id::text", "id::text"),
    "job_state": ("id::text", "id::text"),
    "slot": ("id::text", "id::text"),
    "lease": ("", ""),  # the lock of the whole table
    "stripe": ("parent::text", "parent::text || no::text"),
}
ORDER = list(TABLES)
ROWS = {"family": 2, "job_key": 1, "waiting": 3, "job_state": 11, "slot": 4, "lease": 1, "stripe": 1}
LIMIT = 50


class Kin:
    """A family in the middle of its work: two members and a child run, others wait or come after them."""

    def __init__(self, queue: str) -> None:
        self.root = group(fail_fast=True, queue=queue)
        self.first, self.second = children(self.root, 2, queue=queue)
        self.kids = children(self.root, 4, queue=queue)
        self.event = bound(parent=self.root.id, done_by="call", optional=True, queue=queue)
        self.next = after(self.first, self.second, when="over", queue=queue)
        self.last = after(self.root, when="over", queue=queue)
        self.plain = new_job(queue=queue, key=queue.encode())
        self.running: dict[str, JobRecord] = {}

    @property
    def jobs(self) -> list[NewJob]:
        return [self.root, self.first, self.second, *self.kids, self.event, self.next, self.last, self.plain]

    def lease(self, job: NewJob) -> Any:
        return self.running[job.id].lease


async def a_family(driver: PostgresDriver, queue: str = "first") -> Kin:
    kin = Kin(queue)
    await driver.enqueue([kin.root, kin.first, kin.second, *kin.kids, kin.event, kin.next])
    await driver.enqueue([kin.last, kin.plain])
    taken = (await driver.reserve(claim(queues=[queue], limit=4, lease_for=LEASE))).jobs
    kin.running = {job.id: job for job in taken}
    assert set(kin.running) == {job.id for job in (kin.first, kin.second, *kin.kids[:2])}
    return kin


Verb = Callable[[PostgresDriver, Kin], Awaitable[object]]


async def _ack_in_transaction(driver: PostgresDriver, kin: Kin) -> None:
    async with driver.transaction(kin.lease(kin.first)):
        pass


async def _park(driver: PostgresDriver, kin: Kin) -> None:
    child = bound(parent=kin.first.id)
    await driver.enqueue([child], by=kin.lease(kin.first))
    await driver.settle([Park(kin.lease(kin.first), (child.id,))])


async def _limit_the_harbor(driver: PostgresDriver, kin: Kin) -> None:
    await driver.configure_queue(QueueSettings(queue=EVERY_QUEUE, max_running=LIMIT))
    await driver.configure_queue(QueueSettings(queue=EVERY_QUEUE, max_running=None))


VERBS: dict[str, Verb] = {
    "cancel the root": lambda driver, kin: driver.cancel([kin.root.id]),
    "cancel several": lambda driver, kin: driver.cancel(
        [kin.next.id, kin.kids[3].id, kin.plain.id, kin.last.id]
    ),
    "delete": lambda driver, kin: driver.delete([job.id for job in kin.jobs]),
    "requeue": lambda driver, kin: driver.requeue([job.id for job in kin.jobs]),
    "fail": lambda driver, kin: driver.settle([Fail(kin.lease(kin.first), "no")]),
    "ack two": lambda driver, kin: driver.settle([Ack(kin.lease(kin.first)), Ack(kin.lease(kin.second))]),
    "ack all": lambda driver, kin: driver.settle([Ack(job.lease) for job in kin.running.values()]),
    "ack in a transaction": _ack_in_transaction,
    "park": _park,
    "note": lambda driver, kin: driver.note([Note("one", b"1", lease=kin.lease(kin.kids[0]))]),
    "resolve": lambda driver, kin: driver.resolve([Resolution(id=kin.event.id)]),
    "enqueue": lambda driver, kin: driver.enqueue(
        [*children(kin.root, 2), after(kin.next), new_job(queue=kin.plain.queue, key=kin.plain.key)]
    ),
    "extend": lambda driver, kin: driver.extend_leases([job.lease for job in kin.running.values()], LEASE),
    "speculate": lambda driver, kin: driver.speculate(kin.first.id),
    "claim": lambda driver, kin: driver.reserve(claim(queues=[kin.plain.queue], limit=4, lease_for=LEASE)),
    "limit the harbor": _limit_the_harbor,
    "lift the limit": lambda driver, kin: driver.configure_queue(
        QueueSettings(queue=kin.plain.queue, max_running=None)
    ),
}

WAITS = {  # where each of them comes to wait; what it meets elsewhere it leaves out, or does not need
    "cancel the root": {"family", "waiting", "job_state"},
    "cancel several": {"family", "job_key", "waiting", "job_state"},
    "delete": {"family", "job_key", "waiting", "job_state"},
    "requeue": {"family", "job_key", "waiting", "job_state"},
    "fail": {"family", "waiting", "job_state", "slot"},
    "ack two": {"family", "job_state", "slot", "lease", "stripe"},
    "ack all": {"family", "job_state", "slot", "lease", "stripe"},
    "ack in a transaction": {"family", "job_state", "slot"},
    "park": {"family", "job_state", "slot"},
    "note": {"job_state"},
    "resolve": {"family", "job_state"},
    "enqueue": {"family", "job_key", "waiting", "job_state"},
    "extend": {"job_state", "slot", "lease"},
    "speculate": {"family", "job_state"},
    "claim": {"lease"},
    "limit the harbor": {"lease"},
    "lift the limit": {"job_state", "slot"},
}

# Who has a row of `waiting` has its job: no other step locks that alone, so no claim ever meets it.
MEETINGS = [(verb, table) for verb in VERBS for table in TABLES if (verb, table) != ("claim", "job_state")]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("verb", "table"), MEETINGS)
async def test_who_waits_for_a_row_holds_none_that_comes_after_it(
    store_url: str, database_url: str, verb: str, table: str
) -> None:
    async with PostgresDriver.from_url(store_url) as driver, sessions(database_url, 2) as (holder, watcher):
        look = Look(watcher, driver.address.identifier)
        rows, has_waited = ROWS[table], False
        for number in range(rows):
            kin = await a_family(driver, f"queue-{number}")
            await with_counts(kin, driver, watcher, is_limited=table != "family")
            wanted = await look.at(table, kin)
            assert len(wanted) == rows
            async with holder.transaction():
                await Look(holder, driver.address.identifier).lock(table, wanted[number])
                before = await look.taken()
                acting = asyncio.ensure_future(VERBS[verb](driver, kin))
                held = await look.held_by(acting, holder, before)
            with suppress(TaskHarborError):
                await acting

            has_waited = has_waited or held is not None
            assert not misplaced(held or {}, table, wanted[number])

    assert has_waited == (table in WAITS[verb])


async def with_counts(kin: Kin, driver: PostgresDriver, session: Any, *, is_limited: bool) -> None:
    """Every stripe of the root, whichever session counts; and a place for each job that runs."""
    stripes = f"insert into {driver.address.identifier}.stripe"
    await session.execute(f"{stripes} select '{kin.root.id}'::uuid, no, 0 from generate_series(0, 64) no")
    if is_limited:  # the one link of a chain settles otherwise without
        await driver.configure_queue(QueueSettings(queue=kin.plain.queue, max_running=LIMIT))


async def _two_jobs(driver: PostgresDriver, **fields: Any) -> list[JobRecord]:
    """Two jobs that run; the first one by id is the second one by its idempotency key."""
    one, two = sorted((new_job(), new_job()), key=lambda job: job.id)
    jobs = [replace(one, idempotency_key=b"b", **fields), replace(two, idempotency_key=b"a", **fields)]
    await driver.enqueue(jobs)
    taken = (await driver.reserve(claim(limit=2, lease_for=LEASE))).jobs
    return sorted(taken, key=lambda job: job.id)


@pytest.mark.parametrize("verb", ["settle", "cancel", "settle parents"])
async def test_idempotency_keys_are_locked_in_their_order(
    store_url: str, database_url: str, verb: str
) -> None:
    """Whatever the order of the jobs that they lead to: a repeated enqueue locks them by queue and key."""
    async with PostgresDriver.from_url(store_url) as driver, sessions(database_url, 2) as (holder, watcher):
        keys = f"select key from {driver.address.identifier}.idempotency"
        jobs = await _two_jobs(driver)
        if verb == "settle parents":
            for job in jobs:
                [child] = [bound(parent=job.id)]
                await driver.enqueue([child], by=job.lease)
                await driver.settle([Ack((await driver.reserve(claim(limit=1))).jobs[0].lease)])
        if verb == "cancel":
            await driver.settle([Retry(job.lease) for job in jobs])
        async with holder.transaction():
            await holder.execute(f"{keys} where key = 'a' for update")
            acts: Awaitable[object] = (
                driver.cancel([job.id for job in jobs])
                if verb == "cancel"
                else driver.settle([Ack(job.lease) for job in jobs])
            )
            acting = asyncio.ensure_future(acts)
            await waits(watcher, holder, acting)
            free = await watcher.fetch(f"{keys} for update skip locked")
        await acting

    assert [row[0] for row in free] == [b"b"]


@pytest.mark.parametrize("verb", ["requeue", "delete"])
async def test_jobs_that_have_ended_leave_their_rows_in_the_order_of_their_ends(
    store_url: str, database_url: str, verb: str
) -> None:
    """Many jobs share a row of `finished`, so two calls that requeue others may need the same two rows."""
    async with PostgresDriver.from_url(store_url) as driver, sessions(database_url, 2) as (holder, watcher):
        one, two = await _two_jobs(driver)
        await driver.settle([Ack(two.lease)])
        await driver.settle([Ack(one.lease)])
        rows = f"select ids[1]::text from {driver.address.identifier}.finished"
        async with holder.transaction():
            await holder.execute(f"{rows} where ids[1] = '{two.id}' for update")
            acts: Awaitable[object] = getattr(driver, verb)([one.id, two.id])
            acting = asyncio.ensure_future(acts)
            await waits(watcher, holder, acting)
            free = await watcher.fetch(f"{rows} for update skip locked")
        await acting

    assert [row[0] for row in free] == [one.id]


async def waits(watcher: Any, holder: Any, acting: asyncio.Future[Any]) -> bool:
    """Whether a verb comes to wait for a lock of the holder, and not to its end."""
    while not await someone_waits_for(holder, watcher):
        if acting.done():
            return False
        await asyncio.sleep(0)
    return True


@asynccontextmanager
async def sessions(url: str, count: int) -> AsyncIterator[list[Any]]:
    opened = [await asyncpg.connect(url) for _ in range(count)]
    try:
        yield opened
    finally:
        for connection in opened:
            await connection.close()


class Look:
    """Which rows are free, through the eyes of a session that waits for nothing."""

    def __init__(self, session: Any, schema: str) -> None:
        self._session = session
        self._schema = schema

    async def lock(self, table: str, wanted: str) -> None:
        if table == "lease":
            await self._session.execute(f"lock table {self._schema}.lease in share mode")
        else:
            assert await self._free(table, f"where {TABLES[table][0]} = $1", wanted)

    async def at(self, table: str, kin: Kin) -> list[str]:
        """Whose rows of this family there are, in the order of its jobs; in `family` its locks."""
        if table == "lease":
            return [table]
        owner, _ = TABLES[table]
        where = f"where {owner} = any ($1)" + (" and root = id" if table == "family" else "")
        owners = [kin.plain.queue, *(job.id for job in kin.jobs)]
        rows = await self._session.fetch(
            f"select distinct {owner} from {self._schema}.{table} {where}", owners
        )
        return sorted((row[0] for row in rows), key=owners.index)

    async def held_by(
        self, acting: asyncio.Future[object], holder: Any, before: dict[str, set[str]]
    ) -> dict[str, set[str]] | None:
        """The rows that a verb has locked when it waits for another one; None, if it never waits."""
        if not await waits(self._session, holder, acting):
            return None
        now = await self.taken()
        return {table: now[table] - before[table] for table in ORDER}

    async def taken(self) -> dict[str, set[str]]:
        """What somebody has locked, in each table."""
        return {table: await self._all(table) - await self._free(table) for table in ORDER}

    async def _all(self, table: str) -> set[str]:
        return {table} if table == "lease" else await self._names(table)

    async def _free(self, table: str, where: str = "", *arguments: object) -> set[str]:
        if table == "lease":
            return set() if await self._session.fetchval(LEASE_TABLE_IS_HELD, self._schema) else {table}
        return await self._names(table, f"{where} for update skip locked", *arguments)

    async def _names(self, table: str, rest: str = "", *arguments: object) -> set[str]:
        rows = await self._session.fetch(
            f"select {TABLES[table][1]} from {self._schema}.{table} {rest}", *arguments
        )
        return {row[0] for row in rows}


LEASE_TABLE_IS_HELD = """
select exists (
    select from pg_locks where relation = ($1 || '.lease')::regclass and granted
    and mode in ('RowExclusiveLock', 'ShareLock', 'ShareRowExclusiveLock'))
"""


def misplaced(held: dict[str, set[str]], table: str, wanted: str) -> dict[str, set[str]]:
    """What a verb that waits for this row of this table has, and should have taken later."""
    after_it = {name: held.get(name, set()) for name in ORDER[ORDER.index(table) + 1 :]}
    same = {name for name in held.get(table, ()) if name > wanted}
    return {name: names for name, names in {**after_it, table: same}.items() if names}
