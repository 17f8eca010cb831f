"""Who is woken, and when: one job wakes one handle, and a due time wakes by itself."""

import asyncio
from datetime import timedelta

from taskharbor.drivers import connect
from taskharbor.drivers.messages import Claim, WakeupKind
from taskharbor.model.settlement import Ack
from taskharbor.testing.conformance.kit import new_job, new_jobs

PATIENCE = 30.0
QUEUES = ("kit",)


class Listener:
    """A handle that listens; it counts what it hears."""

    def __init__(self, driver, name):
        self.driver = driver
        self.heard = 0
        self.name = name
        self._hints = driver.wakeups(QUEUES, name)
        self._task = asyncio.create_task(self._listen())

    async def _listen(self):
        async for hint in self._hints:
            assert hint.kind is WakeupKind.WORK
            self.heard += 1

    async def close(self):
        await self._hints.aclose()
        await self._task


async def blocked_clients(driver):
    info = (await driver._server.command("INFO", "clients")).decode()
    return int(info.partition("blocked_clients:")[2].split()[0])


async def until(is_so):
    async with asyncio.timeout(PATIENCE):
        while not await is_so():
            await asyncio.sleep(0.01)


async def listeners(driver, url, count):
    """So many handles, each of which waits on the server and has read its first hint."""
    found = [Listener(await connect(url).open(), f"worker-{number}") for number in range(count)]
    await until(lambda: all_heard(found, 1))
    await until(lambda: enough_wait(driver, count))
    return found


async def all_heard(found, count):
    return all(listener.heard >= count for listener in found)


async def enough_wait(driver, count):
    return await blocked_clients(driver) >= count


async def close(found):
    for listener in found:
        await listener.close()
        await listener.driver.close()


async def test_one_job_wakes_one_of_many_handles(own_server):
    async with connect(own_server.url) as driver:
        found = await listeners(driver, own_server.url, 5)

        await driver.enqueue([new_job()])
        await until(lambda: heard_in_all(found, 6))
        await until(lambda: enough_wait(driver, 5))

        assert sorted(listener.heard for listener in found) == [1, 1, 1, 1, 2]
        await close(found)


async def heard_in_all(found, count):
    return sum(listener.heard for listener in found) >= count


async def test_whoever_cannot_take_all_wakes_the_next(own_server):
    async with connect(own_server.url) as driver:
        found = await listeners(driver, own_server.url, 3)
        await driver.enqueue(new_jobs(3))
        await until(lambda: heard_in_all(found, 4))

        claim = Claim(queues=QUEUES, worker_id="worker-x")
        await driver.reserve(claim)
        await until(lambda: heard_in_all(found, 5))
        await driver.reserve(claim)
        await until(lambda: heard_in_all(found, 6))
        await driver.reserve(claim)
        await until(lambda: enough_wait(driver, 3))

        assert sum(listener.heard for listener in found) == 6
        await close(found)


async def test_a_due_job_wakes_one_handle_without_a_poll(own_server):
    async with connect(own_server.url) as driver:
        found = await listeners(driver, own_server.url, 3)

        await driver.enqueue([new_job(delay=timedelta(milliseconds=400))])
        await until(lambda: is_ready(driver))
        await until(lambda: heard_in_all(found, 5))  # one to look at the due time, one when it has come
        await until(lambda: enough_wait(driver, 3))

        assert sum(listener.heard for listener in found) == 5
        [job] = await driver.reserve(Claim(queues=QUEUES, worker_id="worker-x"))
        await driver.settle([Ack(job.lease)])
        await close(found)


async def is_ready(driver):
    return (await driver.count())["kit"].ready == 1


async def test_listening_goes_on_after_the_server_came_back(own_server):
    async with connect(own_server.url) as driver:
        [listener] = await listeners(driver, own_server.url, 1)
        own_server.kill()
        own_server.start()
        await until(lambda: all_heard([listener], 2))  # everybody looks after a gap

        await until(lambda: enough_wait(driver, 1))
        await driver.enqueue([new_job()])
        await until(lambda: all_heard([listener], 3))
        await close([listener])
