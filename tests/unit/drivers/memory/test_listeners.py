"""Hints to the readers of one process."""

import asyncio

import pytest

from taskharbor.drivers.memory.listeners import Listener, Listeners
from taskharbor.drivers.messages import WakeupKind


async def test_a_listener_hears_of_its_queues_and_of_its_own_jobs_only():
    listeners = Listeners()
    mine, other = listeners.listen(("mail",), "w-1"), listeners.listen(("print",), "w-2")

    listeners.work({"mail", "scan"})
    listeners.cancel("job", "w-2")

    assert (await anext(mine)).queue == "mail"
    assert (await anext(other)).kind is WakeupKind.CANCEL


async def test_a_hint_that_nobody_has_read_is_not_repeated():
    listeners = Listeners()
    listener = listeners.listen(("mail",), "w")

    listeners.work(["mail"])
    listeners.work(["mail"])
    await anext(listener)
    listeners.cancel("job", "w")

    assert (await anext(listener)).kind is WakeupKind.CANCEL


async def test_a_reader_that_waits_is_told_when_the_listener_closes():
    listener = Listeners().listen(("mail",), "w")

    waiting = asyncio.ensure_future(anext(listener))
    await asyncio.wait([waiting], timeout=0)
    await listener.aclose()

    with pytest.raises(StopAsyncIteration):
        await waiting


def test_a_listener_whose_loop_is_gone_is_told_nothing_more():
    listeners = Listeners()

    async def join() -> Listener:
        return listeners.listen(("mail",), "w")

    asyncio.run(join())
    listeners.work(["mail"])
    listeners.work(["mail"])

    assert not listeners._all
