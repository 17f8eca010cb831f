"""What a driver does when the server does not: nothing acknowledged is lost, nothing happens twice."""

import asyncio
import os
import signal
import time
from datetime import timedelta

import pytest
import redis

from taskharbor.drivers import connect
from taskharbor.drivers.messages import Claim, EnqueueResult, Extended, Settled
from taskharbor.drivers.redis.attempts import Attempts
from taskharbor.errors import DriverUnavailable, JobNotInflight, LeaseLost, StoreFull
from taskharbor.model.settlement import Ack, Retry, Stalled
from taskharbor.model.state import JobState
from taskharbor.testing.conformance.kit import LEASE, START, get_one, new_job, new_jobs, running, settle_one
from taskharbor.testing.servers import ValkeyServer
from tests.integration.redis.lossy import Lossy

PATIENCE = 30.0
CLAIM = Claim(queues=("kit",), worker_id="worker-a", limit=10, lease_for=timedelta(minutes=5))


async def until(is_so):
    async with asyncio.timeout(PATIENCE):
        while not await is_so():
            await asyncio.sleep(0.02)


async def test_scripts_that_the_server_forgot_are_loaded_again(own_server, admin):
    async with connect(own_server.url) as driver:
        job = await running(driver)
        admin.script_flush()

        await settle_one(driver, Ack(job.lease))
        admin.script_flush()
        await asyncio.to_thread(driver.enqueue_blocking, [new_job()], now=START)

        assert (await driver.count(now=START))["kit"].total == 2


async def test_a_busy_server_changes_nothing_and_is_tried_again(own_server, admin):
    admin.config_set("busy-reply-threshold", 10)
    async with connect(own_server.url) as driver:
        job = await running(driver)
        with redis.Redis.from_url(own_server.url) as blocker:
            spinning = asyncio.create_task(asyncio.to_thread(spin, blocker))
            error = await unavailable(driver, job)
            assert error.done is False
            await until(lambda: asyncio.to_thread(killed, admin))
            await spinning
        await settle_one(driver, Ack(job.lease))


def spin(client):
    with pytest.raises(redis.ResponseError):
        client.eval("while true do end", 0)


def killed(admin):
    try:
        admin.script_kill()
    except redis.ResponseError:
        return False
    return True


async def unavailable(driver, job):
    """The error of a call, as soon as the server cannot take one."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                await driver.extend_leases([job.lease], LEASE, now=START)
            except DriverUnavailable as error:
                return error
            await asyncio.sleep(0.01)


async def test_a_primary_that_became_a_replica_is_no_lost_lease(own_server, admin):
    async with connect(own_server.url) as driver:
        job = await running(driver)
        admin.replicaof("127.0.0.1", 1)
        with pytest.raises(DriverUnavailable) as error:
            await driver.settle([Ack(job.lease)], now=START)
        assert error.value.done is False
        admin.replicaof("NO", "ONE")

        await settle_one(driver, Ack(job.lease))


async def test_a_full_server_takes_no_jobs_but_those_that_run_can_end(own_server, admin):
    async with connect(own_server.url) as driver:
        await driver.enqueue(new_jobs(3), now=START)
        [job, other] = (
            await driver.reserve(Claim(queues=("kit",), worker_id="worker-a", limit=2), now=START)
        ).jobs
        admin.config_set("maxmemory", "1mb")
        late = new_job(payload=b"x" * 1000)
        with pytest.raises(StoreFull):
            await driver.enqueue([late], now=START)
        with pytest.raises(StoreFull):
            await asyncio.to_thread(driver.enqueue_blocking, [late], now=START)

        [extended] = await driver.extend_leases([job.lease], LEASE, now=START)
        assert isinstance(extended, Extended)
        await settle_one(driver, Ack(job.lease, b"result"))
        await settle_one(driver, Retry(other.lease, reason="broken"))
        assert len((await driver.reserve(CLAIM, now=START)).jobs) == 2
        assert await driver.get([late.id], now=START) == [None]

        admin.config_set("maxmemory", 0)
        [answer] = await driver.enqueue([late], now=START)
        assert answer.result is EnqueueResult.CREATED


async def test_flushall_is_noticed_and_no_zombie_makes_anything_again(own_server, admin, caplog):
    async with connect(own_server.url) as driver:
        job, other = await running(driver), await running(driver, key=b"key")
        admin.flushall()

        extended = await driver.extend_leases([job.lease, other.lease], LEASE, now=START)
        settled = await driver.settle([Ack(job.lease), Retry(other.lease, reason="broken")], now=START)

        assert [type(answer) for answer in (*extended, *settled)] == [JobNotInflight] * 4
        assert "was emptied or replaced" in caplog.text
        assert await driver.count(now=START) == {}
        assert [key.decode() for key in admin.keys("*")] == ["{taskharbor}:data"]  # the new epoch
        [answer] = await driver.enqueue([new_job()], now=START)
        assert answer.result is EnqueueResult.CREATED


async def test_a_restart_without_data_is_noticed(caplog):
    with ValkeyServer() as server:
        async with connect(server.url) as driver:
            job = await running(driver)
            server.kill()
            server.start()

            await until(lambda: is_gone(driver, job))

    assert "was emptied or replaced" in caplog.text


async def is_gone(driver, job):
    try:
        [answer] = await driver.settle([Ack(job.lease)], now=START)
    except DriverUnavailable:
        return False
    return isinstance(answer, JobNotInflight)


async def test_reset_connections_are_made_again(own_server):
    async with Lossy(own_server.port) as proxy, connect(f"redis://127.0.0.1:{proxy.port}/0") as driver:
        job = await running(driver)
        for _ in range(3):
            proxy.hang_up()
            await until(lambda: came_back(driver, job))
        proxy.hang_up()
        await until(lambda: came_back(driver, job))
        await settle_one(driver, Ack(job.lease))


async def came_back(driver, job):
    try:
        [answer] = await driver.extend_leases([job.lease], LEASE, now=START)
    except DriverUnavailable:
        return False
    return isinstance(answer, Extended)


async def test_a_lost_answer_makes_no_second_job_and_no_second_count(own_server):
    async with (
        Lossy(own_server.port) as proxy,
        connect(f"redis://127.0.0.1:{proxy.port}/0") as driver,
        connect(own_server.url) as witness,
    ):
        job, held = new_job(), await running(driver)
        await lose_answer(proxy, driver.enqueue([job], now=START))
        [again] = await driver.enqueue([job], now=START)
        assert again.result is EnqueueResult.DUPLICATE
        assert (await witness.count(now=START))["kit"].total == 2

        await lose_answer(proxy, driver.settle([Retry(held.lease, reason="broken")], now=START), calls=2)
        [late] = await driver.settle([Retry(held.lease, reason="broken")], now=START)
        record = await get_one(witness, held.id)
        if isinstance(late, LeaseLost):  # the first one got through
            assert record.settled_token == held.token
        assert record.attempts == 1


async def lose_answer(proxy, call, calls=1):
    """Let the server do it, and the caller never hear of it."""
    proxy.swallows = True
    with pytest.raises(DriverUnavailable):
        await call
    proxy.swallows = False


async def test_a_black_hole_is_left_after_the_timeout(own_server):
    async with connect(f"{own_server.url}?timeout=1") as driver:  # room for what a busy machine takes
        job = await running(driver)
        os.kill(own_server.pid, signal.SIGSTOP)
        try:
            with pytest.raises(DriverUnavailable) as error:
                await driver.settle([Ack(job.lease)], now=START)
        finally:
            os.kill(own_server.pid, signal.SIGCONT)
        assert error.value.done is None
        await until(lambda: over(driver, job))


async def over(driver, job):
    """Settle until it is answered; a repeat of one that got through finds nothing in flight."""
    try:
        [answer] = await driver.settle([Ack(job.lease)], now=START)
    except DriverUnavailable:
        return False
    return isinstance(answer, Settled) or (await get_one(driver, job.id)).state is JobState.COMPLETED


# ------------------------------------------------------------------ kill -9


async def test_kill_minus_nine_with_every_write_on_disk_loses_nothing(own_server):
    acknowledged = await enqueue_until_killed(own_server, seconds=1.0)
    own_server.start()

    async with connect(own_server.url) as driver:
        found = [record for ids in parts(acknowledged) for record in await driver.get(ids)]

    assert len(acknowledged) > 10
    assert None not in found


@pytest.mark.more("kills processes or servers and waits until others take over")
async def test_kill_minus_nine_with_a_sync_every_second_loses_at_most_two(capsys):
    with ValkeyServer(durable=True, settings={"appendfsync": "everysec"}) as server:
        acknowledged = await enqueue_until_killed(server, seconds=2.5)
        server.start()
        async with connect(server.url) as driver:
            found = [record for ids in parts(list(acknowledged)) for record in await driver.get(ids)]

    last = max(acknowledged.values())
    lost = [at for (_, at), record in zip(acknowledged.items(), found, strict=True) if record is None]
    span = last - min(lost) if lost else 0.0
    with capsys.disabled():
        print(f"\nkill -9, everysec: {len(lost)} of {len(acknowledged)} lost, the last {span:.2f} s")
    assert span <= 2.0


async def enqueue_until_killed(server, seconds):
    """The ids that were acknowledged before the server was killed, and when."""
    acknowledged = {}

    async def enqueue(driver):
        while True:
            job = new_job()
            try:
                await driver.enqueue([job])
            except DriverUnavailable:
                return
            acknowledged[job.id] = time.monotonic()

    async with connect(server.url) as driver:
        work = [asyncio.create_task(enqueue(driver)) for _ in range(5)]
        await asyncio.sleep(seconds)
        server.kill()
        await asyncio.gather(*work)
    return acknowledged


def parts(ids, size=1000):
    ids = list(ids)
    return [ids[at : at + size] for at in range(0, len(ids), size)]


# ------------------------------------------------------------------ failover


def has_all(primary, replica):
    there, here = primary.info("replication"), replica.info("replication")
    is_linked = here.get("master_link_status") == "up"
    return is_linked and here["slave_repl_offset"] == there["master_repl_offset"]


async def test_after_a_failover_what_was_replicated_is_there_and_no_stale_lease_writes(own_server, admin):
    with ValkeyServer() as replica, redis.Redis.from_url(replica.url) as second:
        admin.config_set("repl-diskless-sync-delay", 0)
        second.replicaof("127.0.0.1", own_server.port)
        async with connect(own_server.url) as driver:
            kept, lost = await running(driver), new_job()
            await until(lambda: asyncio.to_thread(has_all, admin, second))
            second.replicaof("NO", "ONE")  # the replica is promoted; the rest never reaches it
            await driver.enqueue([lost], now=START)
            gone = (await driver.reserve(CLAIM, now=START)).jobs
            own_server.kill()

        async with connect(f"{replica.url}?unsafe=true") as driver:
            info = await driver.info()
            assert (info.durability, "took_over" in info.details) == ("D0", True)
            assert await driver.get([lost.id], now=START) == [None]
            [refused] = await driver.settle([Ack(gone[0].lease)], now=START)
            assert isinstance(refused, JobNotInflight)
            then = START + LEASE
            [again] = (await driver.reserve(CLAIM, now=then)).jobs
            assert (again.id, again.fence > kept.fence) == (kept.id, True)
            [stale] = await driver.settle([Ack(kept.lease)], now=then)
            assert isinstance(stale, LeaseLost)
            await settle_one(driver, Ack(again.lease), now=then)


async def test_settlements_that_are_written_are_answered_also_when_the_claim_after_them_fails(
    own_server, monkeypatch
):
    """Found by chaos: the call reported nothing as done, when its settlement was and its claim was not."""
    async with Lossy(own_server.port) as lossy, connect(f"redis://127.0.0.1:{lossy.port}/0") as driver:
        job = await running(driver)
        claim = Attempts._at_once_claimed

        async def cut_off(self, *arguments):
            lossy.swallows = True
            return await claim(self, *arguments)

        monkeypatch.setattr(Attempts, "_at_once_claimed", cut_off)
        done = await driver.exchange([Stalled(job.lease, "died")], CLAIM, now=START)

        assert [type(answer) for answer in done.settled] == [Settled]
        assert done.claimed == []
        assert isinstance(done.error, DriverUnavailable)
        lossy.swallows = False
        assert (await get_one(driver, job.id)).stalls == 1
