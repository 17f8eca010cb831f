"""What only a cluster can show: where queues are, and what happens when a primary dies."""

import asyncio

import pytest
import redis

from taskharbor.drivers import connect
from taskharbor.drivers.redis.server import slot_of
from taskharbor.errors import DriverUnavailable
from taskharbor.model.queue import QueueSettings
from taskharbor.model.settlement import Ack, Fail
from taskharbor.model.state import JobState
from taskharbor.testing.conformance.kit import (
    START,
    get_one,
    new_job,
    reserve,
    running,
    settle_one,
)
from taskharbor.testing.servers import ValkeyCluster, cluster_url, fresh_cluster_url
from taskharbor.testing.statemachine import hold_to_the_model

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


async def test_what_a_dead_process_left_in_an_outbox_is_delivered_by_the_next_sweep(driver):
    await driver.configure_queue(QueueSettings(queue="kit", fail_queue="dead"), now=START)
    job = await running(driver)
    part = await driver._parts.part("kit")
    await part.attempts.exchange([Fail(job.lease, "broken")], None, START)  # and then the process dies
    assert await reserve(driver, queues=("dead",)) == []

    async with driver.another() as other:
        await other.reclaim(now=START)
        await other.reclaim(now=START)

    [failure] = await reserve(driver, queues=("dead",))
    assert failure.type == "taskharbor.failed"
    assert await reserve(driver, queues=("dead",)) == []


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
            told = client.info("replication")
            if told["connected_slaves"] != 1 or told["slave0"]["offset"] != told["master_repl_offset"]:
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


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_it_answers_and_stores_what_the_model_does():
    coverage = hold_to_the_model(
        lambda: connect(fresh_cluster_url()), steps=6_000, seed_number=1, least=2, shrink=False
    )

    assert coverage.steps >= 6_000
