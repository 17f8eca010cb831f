"""Who is woken, and when: one job wakes one handle, and a due time wakes by itself."""

import asyncio
from datetime import timedelta

import pytest

from taskharbor.drivers import connect
from taskharbor.drivers.messages import Claim, WakeupKind
from taskharbor.drivers.redis.driver import RedisDriver
from taskharbor.model.settlement import Ack
from taskharbor.testing.conformance.kit import new_job, new_jobs

PATIENCE = 30.0
MINUTE = timedelta(minutes=1)
QUEUES = ("kit",)


class Listener:
    """A handle that listens; it counts what it hears."""

    def __init__(self, driver, name, queues=QUEUES):
        self.driver = driver
        self.heard = 0
        self.name = name
        self._hints = driver.wakeups(queues, name)
        self._task = asyncio.create_task(self._listen())

    async def _listen(self):
        async for hint in self._hints:
            assert hint.kind is WakeupKind.WORK
            self.heard += 1

    async def close(self):
        await self._hints.aclose()
        await self._task


async def blocked_clients(driver):
    info = (await driver.primary.command("INFO", "clients")).decode()
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


async def test_a_worker_that_cannot_take_all_wakes_the_next(own_server):
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
        [job] = (await driver.reserve(Claim(queues=QUEUES, worker_id="worker-x"))).jobs
        await driver.settle([Ack(job.lease)])
        await close(found)


async def is_ready(driver):
    return (await driver.count())["kit"].ready == 1


class Worker(Listener):
    """It claims whenever it gets a hint, until there is none, and never else: it does not poll."""

    def __init__(self, driver, name, **asks):
        self.claim = Claim(queues=QUEUES, worker_id=name, limit=10, **asks)
        self.done = []
        super().__init__(driver, name)

    async def _listen(self):
        async for _ in self._hints:
            self.heard += 1
            while jobs := (await self.driver.reserve(self.claim)).jobs:
                await self.driver.settle([Ack(job.lease) for job in jobs])
                self.done += [job.id for job in jobs]


async def workers(driver, url, count, **asks):
    found = [Worker(await connect(url).open(), f"other-{number}", **asks) for number in range(count)]
    await until(lambda: all_heard(found, 1))
    return found


@pytest.mark.parametrize("asks", [{"lanes": ("gpu",)}, {"types": ("other",)}], ids=["lanes", "types"])
async def test_a_job_wakes_a_worker_that_can_take_it(own_server, asks):
    async with connect(own_server.url) as driver:
        others = await workers(driver, own_server.url, 3, **asks)
        [able] = await workers(driver, own_server.url, 1)
        await until(lambda: enough_wait(driver, 4))

        for count in range(1, 9):  # the one that has waited longest is woken first
            await driver.enqueue([new_job()])
            await until(lambda count=count: is_done(able, count))

        assert [worker.done for worker in others] == [[], [], []]
        await close([*others, able])


async def is_done(worker, count):
    return len(worker.done) == count


async def test_a_job_that_nobody_can_take_goes_round_once(own_server):
    async with connect(own_server.url) as driver:
        others = await workers(driver, own_server.url, 3, lanes=("gpu",))
        await until(lambda: enough_wait(driver, 3))
        before = sum(worker.heard for worker in others)
        assert isinstance(driver, RedisDriver)
        markers = await driver.primary.command("LLEN", driver.keys.queue("kit").wake)

        await driver.enqueue([new_job()])
        await until(lambda: has_gone_round(driver))
        await until(lambda: enough_wait(driver, 3))

        assert markers == 0
        assert sum(worker.heard for worker in others) - before <= 4
        await close(others)


async def has_gone_round(driver):
    """Every handle has passed it on, and the first has kept it."""
    calls = (await driver.primary.command("INFO", "commandstats")).decode()
    passed = calls.partition("cmdstat_zrangebylex:calls=")[2].partition(",")[0]
    return int(passed or 0) >= 3 and await driver.primary.command("LLEN", driver.keys.queue("kit").wake) == 0


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


async def test_a_sleep_asks_for_the_due_times_of_many_queues_at_once(own_server, admin):
    """No command per queue; and what is due in one of them wakes by itself, with many others scheduled."""
    queues = tuple(f"kit-{number}" for number in range(2_000))
    async with connect(own_server.url) as driver:
        await driver.enqueue([new_job(queue=f"other-{number}", delay=MINUTE) for number in range(300)])
        await driver.enqueue([new_job(queue=queue, delay=MINUTE) for queue in queues[:50]])
        admin.delete(*(f"{{taskharbor}}:q:{queue}:wake" for queue in queues))
        admin.config_resetstat()
        listener = Listener(driver, "worker", queues)
        await until(lambda: all_heard([listener], len(queues)))
        await until(lambda: enough_wait(driver, 1))
        done = admin.info("commandstats")
        assert "cmdstat_zrange" not in done
        assert sum(figures["calls"] for name, figures in done.items() if name.startswith("cmdstat_z")) < 10

        await driver.enqueue([new_job(queue=queues[-1], delay=timedelta(seconds=1))])
        await until(lambda: all_heard([listener], len(queues) + 2))  # of the enqueue, and when it is due

        await listener.close()
