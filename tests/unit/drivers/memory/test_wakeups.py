"""Wake-ups to the listeners of one process."""

import asyncio

import pytest

from taskharbor.drivers.memory.wakeups import Subscription, Subscriptions
from taskharbor.drivers.messages import WakeupKind


async def test_a_listener_gets_wakeups_of_its_queues_and_of_its_own_jobs_only():
    subscriptions = Subscriptions()
    mine, other = subscriptions.listen(("mail",), "w-1"), subscriptions.listen(("print",), "w-2")

    subscriptions.work({"mail", "scan"})
    subscriptions.cancel("job", "w-2")

    assert (await anext(mine)).queue == "mail"
    assert (await anext(other)).kind is WakeupKind.CANCEL


async def test_an_unread_wakeup_is_not_repeated():
    subscriptions = Subscriptions()
    subscription = subscriptions.listen(("mail",), "w")

    subscriptions.work(["mail"])
    subscriptions.work(["mail"])
    await anext(subscription)
    subscriptions.cancel("job", "w")

    assert (await anext(subscription)).kind is WakeupKind.CANCEL


async def test_a_reader_that_waits_stops_when_its_subscription_closes():
    subscription = Subscriptions().listen(("mail",), "w")

    waiting = asyncio.ensure_future(anext(subscription))
    await asyncio.wait([waiting], timeout=0)
    await subscription.aclose()

    with pytest.raises(StopAsyncIteration):
        await waiting


def test_a_subscription_whose_loop_is_gone_gets_nothing_more():
    subscriptions = Subscriptions()

    async def join() -> Subscription:
        return subscriptions.listen(("mail",), "w")

    asyncio.run(join())
    subscriptions.work(["mail"])
    subscriptions.work(["mail"])

    assert not subscriptions._all
