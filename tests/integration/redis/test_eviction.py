"""Eviction switched on while a driver is open: it notices, and trusts the server with nothing more."""

import asyncio
import logging

import pytest

from taskharbor.drivers import connect
from taskharbor.drivers.messages import Claim, Settled
from taskharbor.drivers.redis import eviction, health
from taskharbor.errors import StoreRefused
from taskharbor.model.settlement import Ack
from taskharbor.testing.conformance.kit import new_job, new_jobs
from taskharbor.testing.servers import fresh_cluster_url

CLAIM = Claim(queues=("kit",), worker_id="worker-1")


@pytest.fixture
def looks_every_time(monkeypatch):
    monkeypatch.setattr(eviction, "_SECONDS", 0.0)


@pytest.mark.usefixtures("looks_every_time")
async def test_eviction_switched_on_ends_what_is_brought_and_taken(own_server, admin, caplog):
    async with connect(own_server.url) as driver:
        await driver.enqueue(new_jobs(2))
        [job] = (await driver.reserve(CLAIM)).jobs
        admin.config_set("maxmemory-policy", "allkeys-lru")

        with caplog.at_level(logging.ERROR), pytest.raises(StoreRefused, match="allkeys-lru"):
            await driver.enqueue([new_job()])
        with pytest.raises(StoreRefused, match="noeviction"):
            await asyncio.to_thread(driver.enqueue_blocking, [new_job()])
        with pytest.raises(StoreRefused):
            await driver.reserve(CLAIM)
        answer = await driver.exchange([Ack(job.lease)], CLAIM)

        assert "no jobs are enqueued or claimed" in caplog.text
        assert isinstance(answer.settled[0], Settled)
        assert (answer.claimed, type(answer.error)) == ([], StoreRefused)
        assert (await driver.count())["kit"].total == 2


@pytest.mark.usefixtures("looks_every_time")
async def test_work_goes_on_when_eviction_is_switched_off_again(own_server, admin):
    async with connect(own_server.url) as driver:
        admin.config_set("maxmemory-policy", "volatile-ttl")
        with pytest.raises(StoreRefused):
            await driver.enqueue([new_job()])
        admin.config_set("maxmemory-policy", "noeviction")

        await driver.enqueue([new_job()])
        await asyncio.to_thread(driver.enqueue_blocking, [new_job()])

        assert len((await driver.reserve(Claim(queues=("kit",), worker_id="worker-1", limit=5))).jobs) == 2


@pytest.mark.usefixtures("looks_every_time")
async def test_a_url_with_unsafe_is_let_in(own_server, admin):
    async with connect(f"{own_server.url}?unsafe=true") as driver:
        admin.config_set("maxmemory-policy", "allkeys-lru")

        await driver.enqueue([new_job()])

        assert len((await driver.reserve(CLAIM)).jobs) == 1


@pytest.mark.usefixtures("looks_every_time")
async def test_a_node_of_a_cluster_is_looked_at_like_any_server(monkeypatch):
    """Pretended, not set: the nodes are shared with other tests."""
    async with connect(fresh_cluster_url()) as driver:
        await driver.enqueue([new_job()])
        monkeypatch.setattr(health, "policy_in", lambda info: "allkeys-lru")

        with pytest.raises(StoreRefused):
            await driver.enqueue([new_job()])
        with pytest.raises(StoreRefused):
            await driver.reserve(CLAIM)
        assert type((await driver.exchange([], CLAIM)).error) is StoreRefused
