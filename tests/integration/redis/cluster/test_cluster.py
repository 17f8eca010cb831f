"""What only a cluster can show: where queues are, and what happens when a primary dies."""

import asyncio

import msgspec
import pytest
import redis

from taskharbor.client.client import Client
from taskharbor.drivers import connect
from taskharbor.drivers.messages import Settled
from taskharbor.drivers.redis.primary import slot_of
from taskharbor.errors import DriverUnavailable, LeaseLost
from taskharbor.model.presence import Sample, WorkerReport
from taskharbor.model.queue import QueueSettings
from taskharbor.model.schedule import Schedule
from taskharbor.model.settlement import Ack, Fail
from taskharbor.model.state import JobState
from taskharbor.tasks import JobRequest
from taskharbor.testing.conformance.kit import (
    HOUR,
    MINUTE,
    SECOND,
    START,
    claim,
    get_one,
    new_job,
    reserve,
    running,
    settle_one,
    state_of,
)
from taskharbor.testing.servers import ValkeyCluster, cluster_url
from tests.integration.redis.claim_work import work_of_a_claim

PATIENCE = 60.0


def test_queues_spread_over_the_slots_and_each_stays_in_one():
    slots = {queue: slot_of(f"{{harbor:{queue}}}:data") for queue in ("mail", "pdf", "media", "default")}

    assert len(set(slots.values())) == 4
    assert slots["mail"] == slot_of("{harbor:mail}:q:mail:ready")
    assert slot_of("{harbor}:data") == slot_of("{harbor}:queues")
    assert slot_of("123456789") == 12739  # the example of the cluster specification


async def test_no_key_of_a_queue_lies_outside_its_slot(driver):
    for number in range(6):
        await settle_one(driver, Ack((await running(driver, queue=f"queue-{number}", key=b"key")).lease))
    namespace = driver.address.namespace
    keys = set()
    for place in cluster_url().removeprefix("redis+cluster://").split(","):
        with redis.Redis(port=int(place.rpartition(":")[2])) as node:
            keys |= {key.decode() for key in node.keys(f"{{{namespace}*")}

    tags = {key.partition("}")[0] for key in keys}
    assert tags == {f"{{{namespace}", *(f"{{{namespace}:queue-{number}" for number in range(6))}


async def test_a_claim_for_a_type_looks_past_any_number_of_others_at_no_cost(driver):
    """The same commands and the same keys, on all primaries together."""
    places = cluster_url().removeprefix("redis+cluster://").split(",")
    nodes = [redis.Redis(port=int(place.rpartition(":")[2])) for place in places]
    few = await work_of_a_claim(driver, nodes, others=2_000)
    many = await work_of_a_claim(driver, nodes, others=18_000)
    for node in nodes:
        node.close()

    assert sum(few.values()) > 0
    assert many == few


async def test_what_a_dead_process_left_in_an_outbox_is_delivered_by_the_next_sweep(driver):
    await driver.configure_queue(QueueSettings(queue="kit", fail_queue="dead"), now=START)
    job = await running(driver)
    store = await driver._stores.of("kit")
    await store.attempts.exchange([Fail(job.lease, "broken")], None, START)  # and then the process dies
    assert await reserve(driver, queues=("dead",)) == []

    async with driver.another() as other:
        await other.reclaim(now=START)
        await other.reclaim(now=START)

    [failure] = await reserve(driver, queues=("dead",))
    assert failure.type == "taskharbor.failed"
    assert await reserve(driver, queues=("dead",)) == []


async def test_a_failure_job_waits_in_the_outbox_while_the_server_of_its_queue_is_away(driver, monkeypatch):
    await driver.configure_queue(QueueSettings(queue="kit", fail_queue="dead"), now=START)
    job = await running(driver)
    dead = await driver._stores.of("dead")

    async def away(*_, **__):
        raise DriverUnavailable("the server is away", done=False)

    with monkeypatch.context() as patch:
        patch.setattr(dead.primary, "_tried", away)
        assert (await settle_one(driver, Fail(job.lease, "broken"))).state is JobState.FAILED

    await settle_one(driver, Ack((await running(driver)).lease))
    [failure] = await reserve(driver, queues=("dead",))
    assert failure.type == "taskharbor.failed"


async def test_acks_that_meet_a_limit_of_the_harbor_on_their_way_are_answered_once_and_truly(driver):
    """The claim of an exchange may be refused by a limit that this handle has not heard of; what was settled
    in the same call is settled, and what was not is not taken for it."""
    mine, lost = await running(driver), await running(driver)
    async with driver.another() as other:
        await other.settle([Ack(lost.lease)], now=START)
        await other.configure_queue(QueueSettings(queue="*", max_running=5), now=START)
    await driver.enqueue([new_job()], now=START)
    stranger = msgspec.structs.replace(lost.lease, token="0" * 32)

    answer = await driver.exchange([Ack(mine.lease), Ack(stranger)], claim(), now=START)

    settled, refused = answer.settled
    assert isinstance(settled, Settled)
    assert (settled.id, settled.state) == (mine.id, JobState.COMPLETED)
    assert isinstance(refused, LeaseLost)
    assert len(answer.claimed) == 1


async def test_blocking_callers_enqueue_by_the_portal_of_a_client(driver):
    client = Client(driver.another(), opens=True)
    requests = [JobRequest(type="t", queue=f"queue-{number}") for number in range(3)]

    handles = await asyncio.gather(*(asyncio.to_thread(client.enqueue, request) for request in requests))
    await asyncio.to_thread(client.close)

    found = await driver.get([handle.id for handle in handles])
    assert [job.queue for job in found] == ["queue-0", "queue-1", "queue-2"]
    assert sum(counts.ready for counts in (await driver.count()).values()) == 3


async def test_what_belongs_to_no_queue_is_kept_once_for_the_whole_cluster(driver):
    report = WorkerReport(worker_id="w-1", name="w", kind="any", queues=("kit",), lanes=("any",))
    schedule = Schedule(name="nightly", template=new_job(id=""), cron="@daily")
    async with driver.another() as other:
        await driver.report_worker(report, [Sample("kit.job", SECOND)], MINUTE, now=START)
        assert [info.report.worker_id for info in await other.workers(now=START)] == ["w-1"]
        assert [info.type for info in await other.types(now=START)] == ["kit.job"]
        assert await other.forget_worker("w-1", now=START)
        assert await driver.workers(now=START) == []

        assert (await driver.hold_role("leader", "a", MINUTE, now=START)).is_mine
        assert not (await other.hold_role("leader", "b", MINUTE, now=START)).is_mine
        assert await driver.release_role("leader", "a", now=START)
        assert (await other.hold_role("leader", "b", MINUTE, now=START)).is_mine

        await driver.put_schedule(schedule, now=START)
        assert await other.advance_schedule("nightly", START + MINUTE, now=START)
        [stored] = await driver.schedules(now=START)
        assert stored.last_tick_at == START + MINUTE
        assert await other.delete_schedule("nightly", now=START)
        assert await driver.schedules(now=START) == []


async def test_sweeps_go_over_the_queues_of_every_slot(driver):
    queues = [f"queue-{number}" for number in range(4)]
    await driver.enqueue([new_job(queue=queue, run_at=START + MINUTE) for queue in queues], now=START)

    assert (await driver.promote(2, now=START + MINUTE)).count <= 2
    jobs = await reserve(driver, queues=queues, limit=10, now=START + MINUTE)
    assert sorted(job.queue for job in jobs) == queues
    await driver.settle([Ack(job.lease) for job in jobs], now=START + MINUTE)

    assert await driver.prune(3, now=START + MINUTE) == 0
    assert await driver.prune(3, now=START + 25 * HOUR) == 3
    assert await driver.prune(3, now=START + 25 * HOUR) == 1
    assert await driver.get([job.id for job in jobs], now=START) == [None] * 4


async def test_the_queue_that_a_lease_names_proves_nothing(driver):
    """A job is settled where it runs, also beside a claim that looks into another slot only."""
    job = await running(driver, queue="queue-1")
    elsewhere = msgspec.structs.replace(job.lease, queue="queue-2")

    answer = await driver.exchange([Ack(elsewhere)], claim(queues=("queue-2",)), now=START)

    assert [settled.state for settled in answer.settled] == [JobState.COMPLETED]
    assert await state_of(driver, job.id) is JobState.COMPLETED


@pytest.mark.more("kills processes or servers and waits until others take over")
@pytest.mark.timeout(180)
async def test_a_dead_primary_is_replaced_by_its_replica():
    with ValkeyCluster(replicas=1) as cluster:
        async with connect(cluster.url) as driver:
            jobs = [await running(driver, queue=f"queue-{number}") for number in range(6)]
            await until(lambda: asyncio.to_thread(all_follow, cluster))
            dead = next(node for node in cluster.nodes if node.port == owner_of(driver, cluster, "queue-0"))
            dead.kill()

            for job in jobs:
                await until(lambda job=job: ended(driver, job))

            assert [(await get_one(driver, job.id)).state for job in jobs] == [JobState.COMPLETED] * 6
            await until(lambda: takes(driver, "queue-0"))


def owner_of(driver, cluster, queue):
    slot = slot_of(f"{{{driver.address.namespace}:{queue}}}:data")
    step = 16384 // len(cluster.nodes)
    return cluster.nodes[min(slot // step, len(cluster.nodes) - 1)].port


def all_follow(cluster):
    for node in cluster.nodes:
        with redis.Redis(port=node.port) as client:
            info = client.info("replication")
            if info["connected_slaves"] != 1 or info["slave0"]["offset"] != info["master_repl_offset"]:
                return False
    return True


async def ended(driver, job):
    """Settle until it is answered; a repeat of one that got through finds it completed."""
    try:
        await driver.settle([Ack(job.lease)], now=START)
        return (await get_one(driver, job.id)).state is JobState.COMPLETED
    except DriverUnavailable:
        return False


async def takes(driver, queue):
    try:
        await driver.enqueue([new_job(queue=queue)], now=START)
    except DriverUnavailable:
        return False
    return True


async def until(is_so):
    async with asyncio.timeout(PATIENCE):
        while not await is_so():
            await asyncio.sleep(0.05)


async def test_a_claimer_that_was_killed_stops_the_others_for_a_moment_only(driver):
    """Its lock on the limits of the harbor ends by itself, sooner than the others give up."""
    await driver.configure_queue(QueueSettings(queue="*", max_running=1))
    await driver.enqueue([new_job()])
    async with driver.another() as killed:
        lock = killed._gates.locked()
        await lock.__aenter__()

        taken = (await driver.reserve(claim(lease_for=HOUR))).jobs
        await lock.__aexit__(None, None, None)

    assert len(taken) == 1


@pytest.mark.more("waits in real time for leases, limits or grace times to pass")
async def test_a_slow_claimer_keeps_its_lock_or_learns_that_it_is_lost(driver):
    async with driver._gates.locked() as is_kept:
        assert await is_kept()
        await asyncio.sleep(1.5)
        assert await is_kept()
        await asyncio.sleep(2.0)  # longer than it was first asked for
        assert await is_kept()
        await driver._harbor.primary.command("DEL", driver._harbor.keys.lock, writes=True)
        await asyncio.sleep(1.1)
        assert not await is_kept()
