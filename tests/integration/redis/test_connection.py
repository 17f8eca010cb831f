"""One connection: whose answer is whose, and when a server that says nothing is given up."""

import asyncio

import pytest

from taskharbor.drivers.redis.address import address_of
from taskharbor.drivers.redis.connection import connect
from taskharbor.errors import DriverUnavailable

PATIENCE = 30.0


@pytest.fixture
async def link(store_url):
    address = address_of(store_url)
    link = await connect(address, address.hosts[0], timeout=PATIENCE)
    yield link
    link.close()


async def echoed(link, word):
    return await link.call(("ECHO", word), writes=False)


async def test_callers_at_the_same_time_get_their_own_answers(link):
    words = [f"{number}" * (number * 1000 + 1) for number in range(10)] * 20

    assert await asyncio.gather(*(echoed(link, word) for word in words)) == [word.encode() for word in words]


async def test_the_answer_of_a_caller_who_left_goes_to_nobody_else(link):
    leaving = asyncio.create_task(echoed(link, "left"))
    staying = asyncio.create_task(echoed(link, "stayed"))
    await asyncio.sleep(0)
    leaving.cancel()

    assert await staying == b"stayed"
    assert await echoed(link, "next") == b"next"
    with pytest.raises(asyncio.CancelledError):
        await leaving


async def test_a_time_limit_ends_a_call_and_leaves_the_connection_in_order(link, driver):
    key = driver.keys.inbox("test")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await link.call(("BLPOP", key, "0"), writes=False)
    await driver.primary.command("RPUSH", key, "late")

    assert await echoed(link, "next") == b"next"


async def test_a_connection_that_was_idle_is_not_taken_for_a_dead_one(link):
    """A server has its time from the call on, not from its last reply."""
    await echoed(link, "long ago")
    link._quiet_since -= 10 * PATIENCE

    waiting = asyncio.create_task(echoed(link, "now"))
    await asyncio.sleep(0)
    link._look()

    assert await waiting == b"now"


async def test_a_server_that_says_nothing_for_too_long_is_given_up(link):
    async def hear():
        return await link.call(("BLPOP", "{nobody}:pushes", "0"), writes=False)

    waiting = asyncio.create_task(hear())
    await asyncio.sleep(0)
    link._quiet_since -= 10 * PATIENCE
    link._look()

    with pytest.raises(DriverUnavailable) as error:
        await waiting
    assert error.value.done is False
    assert not link.is_open
