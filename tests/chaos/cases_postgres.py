"""What can happen to a Postgres alone: no connection left, statements given up, tables changed under load."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any

from tests.chaos.case import case
from tests.chaos.cases_network import no_stalls, works_again
from tests.chaos.cases_processes import drain
from tests.chaos.world import World


@asynccontextmanager
async def asking(world: World, **settings: str) -> AsyncIterator[Any]:
    """A connection of the harness, as the one who may do everything."""
    import asyncpg

    url = f"postgresql://postgres@127.0.0.1:{world.store.port}/postgres"
    admin = await asyncpg.connect(url, server_settings={"application_name": "harness", **settings})
    try:
        yield admin
    finally:
        await admin.close()


def schema_of(world: World) -> str:
    return world.store.url().rpartition("schema=")[2]


async def tables_of(admin: Any, schema: str) -> list[str]:
    rows = await admin.fetch("select tablename from pg_tables where schemaname = $1", schema)
    return [row[0] for row in rows if row[0] != "migration"]


async def hang_up_on_everybody(admin: Any) -> int:
    """A worker that comes back finds the settings as they are now."""
    count: int = await admin.fetchval(
        "select count(pg_terminate_backend(pid)) from pg_stat_activity where application_name = 'taskharbor'"
    )
    return count


@case("C43", "every connection of the server taken by others", stores=("postgres",))
async def no_connection_left(world: World) -> None:
    """Workers wait, fewer and fewer times, and are back soon after there is room."""
    worker = world.worker("-c", "4")
    await world.workers_at_work(1)
    for _ in range(world.size.injections):
        await world.put(*(world.some_work() for _ in range(5)))
        async with asking(world) as admin:
            holders: list[Any] = []
            try:
                await _take_all(world, admin, holders)
                world.inject(f"{len(holders)} connections taken, those of the workers ended")
                await asyncio.sleep(world.size.lease / 2)
            finally:
                for holder in holders:
                    holder.terminate()
        await works_again(world, time.time(), "work after there were connections again")
    await drain(world)
    assert worker.poll() is None


async def _take_all(world: World, admin: Any, holders: list[Any]) -> None:
    """Whatever becomes free is taken, until two rounds found nothing."""
    for _ in range(3):
        await hang_up_on_everybody(admin)
        await _take_free(world, holders)


async def _take_free(world: World, holders: list[Any]) -> None:
    import asyncpg

    url = f"postgresql://postgres@127.0.0.1:{world.store.port}/postgres"
    with suppress(asyncpg.TooManyConnectionsError):
        while True:
            holders.append(await asyncpg.connect(url))


_TROUBLE = """
create sequence "{schema}".trouble_count;
create function "{schema}".trouble() returns trigger language plpgsql as $$
begin
    if random() < 0.03 then
        perform nextval('"{schema}".trouble_count');
        raise exception 'chaos' using errcode = case when random() < 0.5 then '40001' else '40P01' end;
    end if;
    return null;
end $$
"""


@case("C45", "serialisation failures and deadlocks at every statement", stores=("postgres",))
async def undone_by_the_server(world: World) -> None:
    """The server undoes a step and says so: it is done again, nobody hears of it, all counts are exact."""
    schema = schema_of(world)
    async with asking(world) as admin:
        await admin.execute(_TROUBLE.format(schema=schema))
        for table in await tables_of(admin, schema):
            await admin.execute(
                f'create trigger trouble before insert or update or delete on "{schema}"."{table}"'
                f' for each statement execute function "{schema}".trouble()'
            )
        for _ in range(2):
            world.worker("-c", "8")
        await world.workers_at_work(2)
        await world.produce(min(world.size.jobs, 600), world.size.seconds)
        await drain(world)
        await world.stop_workers()
        count = await admin.fetchval(f'select last_value from "{schema}".trouble_count')
        world.inject(f"{count} statements undone")
        for table in await tables_of(admin, schema):
            await admin.execute(f'drop trigger trouble on "{schema}"."{table}"')
    heard = sum(world.log(process).count("failed (") for process in world.processes)
    world.facts.append(f"{count} steps undone by the server, {heard} of them heard of by a worker")


_TIMEOUTS = {
    "statement_timeout": "400ms",
    "lock_timeout": "200ms",
    "idle_in_transaction_session_timeout": "300ms",
}


@case("C46", "statements given up by the server: locks, time limits", stores=("postgres",))
async def statements_given_up(world: World) -> None:
    """Reported as the store's fault, never a lost lease: tried again, and nothing is counted twice."""
    lease = max(world.size.lease, 5.0)
    schema = schema_of(world)
    async with asking(world) as admin:
        try:
            await _set_timeouts(admin, _TIMEOUTS.items())
            world.worker("-c", "4", lease=lease)
            await world.workers_at_work(1)
            producing = asyncio.create_task(world.produce(min(world.size.jobs, 300), world.size.seconds))
            for _ in range(world.size.injections):
                tables = ", ".join(f'"{schema}"."{table}"' for table in await tables_of(admin, schema))
                async with admin.transaction():
                    await admin.execute(f"set local lock_timeout = 0; lock table {tables}")
                    world.inject("every table locked for 1.5 s, locks waited for 0.2 s")
                    await asyncio.sleep(1.5)
                await works_again(world, time.time(), "work after the lock")
                await asyncio.sleep(world.size.seconds / world.size.injections / 2)
            await producing
            await drain(world)
        finally:
            await _set_timeouts(admin, ((name, None) for name in _TIMEOUTS))
    await no_stalls(world)
    assert not world.lines("stopped"), "a handler was stopped although its lease held"


async def _set_timeouts(admin: Any, settings: Iterable[tuple[str, str | None]]) -> None:
    for name, value in settings:
        change = f"reset {name}" if value is None else f"set {name} = '{value}'"
        await admin.execute(f"alter role postgres {change}")
    await hang_up_on_everybody(admin)


@case("C56", "the schema changed while four workers run", stores=("postgres",))
async def schema_changed(world: World) -> None:
    """Migrations wait for no longer than a second for a lock, and nobody notices the new columns."""
    from taskharbor.testing.servers.postgres import migrate_blocking

    schema = schema_of(world)
    for _ in range(4):
        world.worker("-c", "2")
    await world.workers_at_work(4)
    producing = asyncio.create_task(world.produce(min(world.size.jobs, 600), world.size.seconds))
    longest = 0.0
    async with asking(world, lock_timeout="1s") as admin:
        number = 0
        while not producing.done():
            await asyncio.to_thread(migrate_blocking, world.store.url())
            for table in await tables_of(admin, schema):
                number += 1
                began = time.monotonic()
                await _change(admin, f'"{schema}"."{table}"', f"chaos_{number}")
                longest = max(longest, time.monotonic() - began)
            world.inject("every table changed: a column and an index more, and away again")
            await asyncio.sleep(0.5)
    await producing
    await drain(world)
    await no_stalls(world)
    refused = sum(world.log(process).count("DriverMisbehaved") for process in world.processes)
    assert not refused, f"{refused} calls failed because of the change"
    world.facts.append(f"longest change of a table under load: {longest * 1000:.0f} ms")


async def _change(admin: Any, table: str, name: str) -> None:
    """What later migrations do: a column, and an index on it; tried again when a lock is not to be had."""
    import asyncpg

    for statement in (
        f"alter table {table} add column {name} integer",
        f"create index on {table} ({name})",
        f"alter table {table} drop column {name}",
    ):
        for _ in range(20):
            try:
                await admin.execute(statement)
                break
            except asyncpg.LockNotAvailableError:
                await asyncio.sleep(0.1)
        else:
            raise AssertionError(f"no lock to be had for: {statement}")
