"""Concurrent enqueues of one event loop share one call to the store."""

import asyncio
from collections import deque
from datetime import timedelta

import pytest

from taskharbor import Client
from taskharbor.drivers import connect
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.errors import DriverUnavailable, InvalidArgument, RateLimited
from taskharbor.model.clock import pause
from taskharbor.model.limits import RateLimit
from taskharbor.model.queue import QueueSettings
from taskharbor.tasks import JobRequest
from taskharbor.testing.clock import turn_loop


class Gated(MemoryDriver):
    """A store whose enqueues wait until they are let through, and are counted."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[int] = []
        self.gates: deque[asyncio.Future[None]] = deque()

    async def do_enqueue(self, jobs, now):
        self.calls.append(len(jobs))
        gate = asyncio.get_running_loop().create_future()
        self.gates.append(gate)
        await gate
        return await super().do_enqueue(jobs, now)

    async def let_through(self, error: Exception | None = None) -> None:
        await turn_loop()
        gate = self.gates.popleft()
        if error is None:
            gate.set_result(None)
        else:
            gate.set_exception(error)
        await turn_loop()


@pytest.fixture
async def driver():
    async with Gated() as driver:
        yield driver


@pytest.fixture
def client(driver):
    return Client(driver)


def start(client, count=1, **options):
    requests = [JobRequest(type="t", **options) for _ in range(count)]
    return [asyncio.create_task(client.aenqueue(request)) for request in requests]


async def total(driver):
    counts = await driver.count()
    return sum(one.total for one in counts.values())


async def test_the_first_goes_at_once_and_those_that_come_meanwhile_go_together(client, driver):
    tasks = start(client, 1)
    await turn_loop()
    tasks += start(client, 9)
    await turn_loop()
    assert driver.calls == [1]

    await driver.let_through()
    assert [task.done() for task in tasks] == [True] + [False] * 9
    assert driver.calls == [1, 9]

    await driver.let_through()
    assert all(task.done() for task in tasks)
    assert await total(driver) == 10


async def test_callers_that_come_one_turn_after_the_other_go_together(client, driver):
    tasks = start(client, 3)
    await turn_loop()
    assert driver.calls == [1]

    driver.gates.popleft().set_result(None)
    for _ in range(10):
        await pause()
        await pause()
        tasks += start(client)
    await turn_loop()
    assert driver.calls == [1, 12]

    await driver.let_through()
    await asyncio.gather(*tasks)


async def test_a_caller_that_is_alone_waits_for_nobody(client, driver):
    for number in range(1, 4):
        first, second = start(client), start(client)
        await driver.let_through()  # the first at once, and the second after it
        await driver.let_through()
        await asyncio.gather(*first, *second)
        assert driver.calls == [1, 1] * number

    [task] = start(client)
    turns = 0
    while len(driver.calls) < 7:
        await pause()
        turns += 1
    assert turns <= 2
    await driver.let_through()
    await task


async def test_nobody_is_answered_before_his_own_job_is_stored(client, driver):
    tasks = start(client, 2)
    await driver.let_through()

    assert [task.done() for task in tasks] == [True, False]
    assert await total(driver) == 1

    await driver.let_through()
    assert {task.result().id for task in tasks} == {job.id for job in (await client.afind()).jobs}


async def test_when_nobody_is_under_way_the_next_goes_alone_again(client, driver):
    for _ in range(3):
        tasks = start(client)
        await driver.let_through()
        await asyncio.gather(*tasks)

    assert driver.calls == [1, 1, 1]


async def test_one_bad_job_does_not_fail_its_neighbours(client, driver):
    first = start(client)
    [good], [bad], [fine] = start(client), start(client, priority=1000), start(client)
    await driver.let_through()  # the first
    await driver.let_through()  # the good one, alone: the shared call was refused before it was sent
    await driver.let_through()  # the fine one

    await asyncio.gather(*first, good, fine)
    with pytest.raises(InvalidArgument, match="priority"):
        await bad
    assert await total(driver) == 3


async def test_a_shared_call_over_the_budget_lets_through_what_fits(client, driver):
    await driver.configure_queue(
        QueueSettings(queue="default", enqueue_rate=RateLimit(3, timedelta(hours=1)))
    )
    tasks = start(client, 5)
    for _ in range(6):  # one alone, four together refused, then four alone
        await driver.let_through()

    results = await asyncio.gather(*tasks, return_exceptions=True)

    assert sum(isinstance(result, RateLimited) for result in results) == 2
    assert await total(driver) == 3


async def test_trouble_of_the_store_reaches_everybody_in_the_call(client, driver):
    tasks = start(client, 4)
    await driver.let_through()
    await driver.let_through(DriverUnavailable("gone for now"))

    results = await asyncio.gather(*tasks, return_exceptions=True)

    assert [type(result).__name__ for result in results] == ["JobHandle"] + ["DriverUnavailable"] * 3
    again = start(client)
    await driver.let_through()
    await asyncio.gather(*again)  # and the next one is served


async def test_trouble_of_the_first_does_not_stop_those_behind_it(client, driver):
    tasks = start(client, 3)
    await driver.let_through(DriverUnavailable("gone for now"))
    await driver.let_through()

    results = await asyncio.gather(*tasks, return_exceptions=True)

    assert [type(result).__name__ for result in results] == ["DriverUnavailable", "JobHandle", "JobHandle"]


async def test_who_stops_waiting_before_the_call_is_left_out_of_it(client, driver):
    tasks = start(client, 3)
    await turn_loop()
    tasks[1].cancel()
    await driver.let_through()
    await driver.let_through()

    assert await total(driver) == 2
    assert driver.calls == [1, 1]


async def test_the_first_may_stop_waiting_without_harm_to_the_others(client, driver):
    tasks = start(client, 3)
    await turn_loop()
    tasks[0].cancel()
    await turn_loop()
    driver.gates.popleft()
    await driver.let_through()

    await asyncio.gather(*tasks[1:])
    assert driver.calls == [1, 2]


async def test_when_the_sender_is_cancelled_nobody_waits_for_ever(client, driver):
    tasks = start(client, 1202)
    await driver.let_through()
    client._connections.by_loop[asyncio.get_running_loop()].batcher._sender.cancel()
    await turn_loop()

    results = await asyncio.gather(*tasks, return_exceptions=True)

    assert sum(isinstance(result, asyncio.CancelledError) for result in results) == 1201
    assert await total(driver) == 1
    again = start(client)
    driver.gates.clear()
    await driver.let_through()
    await asyncio.gather(*again)


async def test_very_many_are_sent_in_parts(client, driver):
    tasks = start(client, 1201)
    for _ in range(4):
        await driver.let_through()
    await asyncio.gather(*tasks)

    assert driver.calls == [1, 500, 500, 200]


async def test_jobs_of_one_caller_keep_their_order(client, driver):
    tasks = start(client, 3)
    await driver.let_through()
    await driver.let_through()
    ids = [(await task).id for task in tasks]

    assert [job.id for job in (await client.afind()).jobs] == ids


async def test_a_quick_store_serves_a_thousand_callers():
    async with connect("memory://") as driver:
        client = Client(driver)

        jobs = await asyncio.gather(*(client.aenqueue(JobRequest(type="t")) for _ in range(1000)))

        assert len({job.id for job in jobs}) == 1000
        assert (await driver.count())["default"].total == 1000
