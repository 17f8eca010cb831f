"""The connection that listens does other calls, too: one at a time, and none of them is cut off."""

import asyncio

from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.drivers.postgres.connections import Connections

SLOW = 30.0


def of(driver: PostgresDriver) -> Connections:
    return driver._connections


async def until_lent(connections: Connections, connection: object) -> None:
    async with asyncio.timeout(SLOW):
        while connection not in connections._lent:
            await asyncio.sleep(0.001)


async def test_a_caller_that_waits_for_it_gets_it_alone(driver: PostgresDriver) -> None:
    connections = of(driver)
    kept = await connections.keep()
    first = asyncio.create_task(connections.rows("select pg_sleep(0.02), 1"))
    await until_lent(connections, kept)

    second = asyncio.create_task(connections.rows("select pg_sleep(0.02), 2"))  # waits for any
    third = asyncio.create_task(connections.on(kept, lambda own: own.fetchval("select 3")))

    [[[_, one]], [[_, two]], three] = await asyncio.gather(first, second, third)
    assert (one, two, three) == (1, 2, 3)
    assert len(connections._idle) == len(set(connections._idle))


async def test_a_caller_that_gives_up_waiting_for_it_leaves_it_to_others(driver: PostgresDriver) -> None:
    connections = of(driver)
    kept = await connections.keep()
    call = asyncio.create_task(connections.rows("select pg_sleep(0.02)"))
    await until_lent(connections, kept)
    waits = asyncio.create_task(connections.on(kept, lambda own: own.fetchval("select 1")))
    call.add_done_callback(lambda _: waits.cancel())  # in the moment in which it is handed over

    await asyncio.wait([call, waits], timeout=SLOW)

    async with asyncio.timeout(SLOW):
        assert await connections.on(kept, lambda own: own.fetchval("select 2")) == 2


async def test_the_end_of_listening_waits_for_the_call_on_it(driver: PostgresDriver) -> None:
    connections = of(driver)
    kept = await connections.keep()
    call = asyncio.create_task(connections.rows("select pg_sleep(0.1), 7"))
    await until_lent(connections, kept)

    await connections.let_go(kept)

    [[_, answer]] = await call
    assert answer == 7
    async with asyncio.timeout(SLOW):
        while not kept.is_closed():
            await asyncio.sleep(0.001)
