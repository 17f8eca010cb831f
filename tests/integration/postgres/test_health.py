"""What `doctor` learns about the server, with something there to be found."""

import asyncio
from typing import Any

import asyncpg

from taskharbor.drivers.loading import connect
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.drivers.postgres.schema import MIGRATIONS
from taskharbor.model.settlement import Ack
from taskharbor.testing.conformance.kit import claim, new_jobs


async def test_the_oldest_transaction_is_named_with_its_holder(
    driver: PostgresDriver, database_url: str
) -> None:
    holder = await asyncpg.connect(database_url, server_settings={"application_name": "a-forgotten-report"})
    await holder.execute("begin isolation level repeatable read; select count(*) from pg_class")
    pid = holder.get_server_pid()

    async with asyncio.timeout(60):  # until the older ones of others on this server are over
        while f"pid {pid}" not in (detail := (await driver.info()).details["oldest transaction"]):
            await asyncio.sleep(0.01)

    await holder.close()
    assert "a-forgotten-report" in detail
    assert "idle in transaction" in detail


async def test_dead_rows_are_counted_per_table(driver: PostgresDriver) -> None:
    await driver.enqueue(new_jobs(50))
    taken = (await driver.reserve(claim(limit=50))).jobs
    await driver.settle([Ack(job.lease) for job in taken])  # from here on 50 rows of waiting are dead

    async with asyncio.timeout(30):  # each session reports its numbers when it has a moment
        while True:
            await driver._connections.rows("select pg_stat_force_next_flush()")
            details = (await driver.info()).details
            if _dead("waiting", details) >= 50:
                break
            await asyncio.sleep(0.05)

    assert " in lease" in details["dead rows"]
    assert " in waiting" in details["dead rows"]


def _dead(table: str, details: dict[str, str]) -> int:
    [part] = [part for part in details["dead rows"].split(", ") if part.endswith(f" in {table}")]
    return int(part.partition(" ")[0])


async def test_settings_schema_clock_and_pooler_are_shown(driver: PostgresDriver, store_url: str) -> None:
    info = await driver.info()
    async with connect(f"{store_url}&pooler=transaction") as pooled:
        behind_pooler = (await pooled.info()).details["pooler"]

    assert info.schema == MIGRATIONS[-1].name
    assert abs((info.at - driver.clock.now()).total_seconds()) < 5  # one machine, one clock
    assert (info.details["pooler"], behind_pooler) == ("none", "transaction")
    assert info.details["autovacuum"] == "on"
    assert info.details["notify queue"].endswith(" %")
    assert " of " in info.details["connections"]
    assert "last autovacuum" in info.details


async def test_a_slot_that_nobody_reads_is_reported(driver: PostgresDriver, database_url: str) -> None:
    connection: Any = await asyncpg.connect(database_url)
    await connection.execute("select pg_create_physical_replication_slot('left_behind', true)")
    try:
        detail = (await driver.info()).details["replication slots"]
    finally:
        await connection.execute("select pg_drop_replication_slot('left_behind')")
        await connection.close()

    assert "left_behind" in detail
