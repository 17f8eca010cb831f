"""Where jobs are in the sets of their queue, in the cases that no answer of a verb shows at once."""

import asyncio
from datetime import timedelta

from taskharbor.drivers.messages import Query
from taskharbor.drivers.redis import RedisDriver
from taskharbor.drivers.redis.address import address_of
from taskharbor.drivers.redis.keys import Keys
from taskharbor.drivers.redis.primary import Primary
from taskharbor.model.bonds import Bonds
from taskharbor.model.job import Note
from taskharbor.model.settlement import Ack, Park
from taskharbor.model.state import JobState
from taskharbor.testing.conformance.kit import (
    HOUR,
    LEASE,
    START,
    claim,
    enqueue,
    enqueue_one,
    new_job,
    new_jobs,
    reserve,
    state_of,
)
from tests.integration.redis.claim_work import work_of_a_claim, work_of_queues

DATA = "{taskharbor}:data"
READY_LINE = b"\1any\0kit.job\0"


async def test_the_aliases_of_a_deleted_job_go_with_it(own_server, admin):
    async with RedisDriver.from_url(own_server.url) as driver:
        first, second = [await enqueue_one(driver, key=b"key") for _ in range(2)]
        assert second.id == first.id
        await driver.cancel([first.id], now=START)
        await driver.delete([first.id], now=START)

    assert [field for field in admin.hkeys(DATA) if field[:1] in (b"h", b"A", b"b")] == []


async def test_a_kind_of_job_that_a_claim_finds_missing_is_struck_out_and_comes_back(own_server, admin):
    async with RedisDriver.from_url(own_server.url) as driver:
        await driver.enqueue(new_jobs(2), now=START)
        assert admin.hget(DATA, "Qkit") == READY_LINE
        assert len(await reserve(driver, limit=10)) == 2
        assert admin.hget(DATA, "Qkit") == READY_LINE
        assert await reserve(driver) == []
        assert admin.hget(DATA, "Qkit") == b""
        driver.enqueue_blocking([new_job()], now=START)
        assert admin.hget(DATA, "Qkit") == READY_LINE
        assert len(await reserve(driver)) == 1


async def test_a_claim_for_a_type_looks_past_any_number_of_others_at_no_cost(own_server, admin):
    """The same commands and the same keys behind 2,000 jobs of other types as behind 20,000."""
    async with RedisDriver.from_url(own_server.url) as driver:
        few = await work_of_a_claim(driver, [admin], others=2_000)
        many = await work_of_a_claim(driver, [admin], others=18_000)

    assert sum(few.values()) > 0
    assert many == few


async def test_queues_in_which_nothing_is_cost_a_claim_nothing(own_server, admin):
    """The same commands and the same keys in a claim of 40 queues and of 2,000."""
    works = []
    for queues in (40, 2_000):
        async with RedisDriver.from_url(own_server.url) as driver:
            works.append(await work_of_queues(driver, [admin], queues=queues))

    few, many = works
    assert many == few
    assert sum(few[1].values()) < 25


async def test_jobs_of_a_version_without_instants_are_found(own_server, admin):
    """By the first claim of a handle, and by their wake-up: `look-from` is lost here after each enqueue."""
    names = [f"kit-{number}" for number in range(40)]
    async with RedisDriver.from_url(own_server.url) as driver:
        await enqueue_one(driver, queue="kit-7", now=None)
        admin.delete("{taskharbor}:look-from")
        assert len(await reserve(driver, queues=names, now=None)) == 1
        hints = driver.wakeups(tuple(names), "worker-a")
        for _ in names:  # a listener looks once at the beginning
            await anext(hints)
        assert await reserve(driver, queues=names, now=None) == []
        await enqueue_one(driver, queue="kit-30", now=None)
        admin.delete("{taskharbor}:look-from")
        assert (await asyncio.wait_for(anext(hints), 30)).queue == "kit-30"
        assert len(await reserve(driver, queues=names, now=None)) == 1
        await hints.aclose()


async def test_jobs_that_end_in_one_call_are_forgotten_each_by_itself(own_server, admin):
    async with RedisDriver.from_url(own_server.url) as driver:
        await driver.enqueue(new_jobs(5), now=START)
        jobs = await reserve(driver, limit=5)
        await driver.settle([Ack(job.lease) for job in jobs], now=START)
        assert admin.zcard("{taskharbor}:q:kit:done") == 1
        again, gone = jobs[0].id, jobs[1].id
        await driver.requeue([again], now=START)
        await driver.delete([gone], now=START)

        assert await driver.prune(2, now=START + HOUR) == 2
        assert (await driver.count(now=START + HOUR))["kit"].completed == 1
        assert await driver.prune(now=START + HOUR) == 1
        assert await state_of(driver, again, now=START + HOUR) is JobState.READY
    assert admin.zcard("{taskharbor}:q:kit:done") == 0
    assert admin.zcard("{taskharbor}:q:kit:list") == 1


async def test_children_that_end_in_one_call_leave_one_by_one(own_server, admin):
    """They share an entry of `done`, which prune does not look at: each goes with its own step."""
    done = "{taskharbor}:q:kit:done"
    async with RedisDriver.from_url(own_server.url) as driver:
        root = new_job(bonds=Bonds(done_by="children"))
        kids = [new_job(bonds=Bonds(parent=root.id)) for _ in range(5)]
        await driver.enqueue([root, *kids], now=START)
        jobs = await reserve(driver, limit=5)
        await driver.settle([Ack(job.lease) for job in jobs[:4]], now=START)
        assert [len(entry) for entry in admin.zrange(done, 0, -1)] == [9 + 4 * 17]
        await driver.requeue([jobs[1].id], now=START)
        assert [len(entry) for entry in admin.zrange(done, 0, -1)] == [9 + 3 * 17]
        ended = Query(order_by="ended", limit=9)
        assert {job.id for job in (await driver.find(ended, now=START)).jobs} == {
            jobs[i].id for i in (0, 2, 3)
        }
        [again] = await reserve(driver)
        await driver.settle([Ack(job.lease) for job in (again, jobs[4])], now=START)

        assert await driver.prune(now=START + HOUR) == 6
    assert admin.zcard(done) == 0


async def test_the_notes_of_a_job_go_with_it(own_server, admin):
    async with RedisDriver.from_url(own_server.url) as driver:
        await driver.enqueue([new_job()], now=START)
        [job] = await reserve(driver)
        for name in ("one", "two"):
            await driver.note([Note(name, b"data", lease=job.lease)], now=START)
        await driver.settle([Park(job.lease, delay=timedelta(0), notes=(Note("three", b"data"),))], now=START)
        [again] = await reserve(driver)
        assert [note.name for note in again.notes] == ["one", "two", "three"]
        await driver.settle([Ack(again.lease)], now=START)
        await driver.delete([job.id], now=START)

    assert [field for field in admin.hkeys(DATA) if len(field) > 16] == []


async def test_leases_that_end_together_are_reclaimed_in_the_order_of_enqueues(driver):
    ids = sorted([job.id for job in new_jobs(9)], reverse=True)  # the opposite of how the store sorts them
    await enqueue(driver, *(new_job(id=job_id) for job_id in ids))
    await driver.reserve(claim(limit=9), now=START)

    reclaimed = await driver.reclaim(4, now=START + LEASE)

    assert [answer.id for answer in reclaimed] == ids[:4]


async def test_a_connection_that_nobody_waits_for_any_more_is_closed_with_its_server():
    """The caller that asked for it was cancelled meanwhile, as a worker is that stops while it connects."""
    accepted = asyncio.get_running_loop().create_future()

    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.set_result((reader, writer))

    async with asyncio.timeout(30), await asyncio.start_server(deaf, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        address = address_of(f"redis://:secret@127.0.0.1:{port}/0")
        server = Primary(address, Keys("kit"), lambda: b"epoch")
        opening = asyncio.create_task(server.open())
        reader, writer = await accepted
        opening.cancel()
        writer.write(b"+OK\r\n")
        assert server._connecting is not None
        await server._connecting
        await server.close()
        while await reader.read(1000):  # its greeting, and then the end
            pass
        writer.close()
