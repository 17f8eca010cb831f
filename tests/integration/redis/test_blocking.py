"""Blocking callers of a server that forgets, hangs up, moves away or does not answer."""

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from taskharbor.drivers import connect
from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import EnqueueResult
from taskharbor.drivers.redis import RedisDriver
from taskharbor.drivers.redis.address import address_of
from taskharbor.drivers.redis.blocking import BlockingConnection
from taskharbor.drivers.redis.keys import Keys
from taskharbor.drivers.redis.primary import Primary
from taskharbor.errors import DriverUnavailable, RateLimited, StoreFull, StoreRefused
from taskharbor.model.limits import RateLimit
from taskharbor.model.queue import QueueSettings
from taskharbor.testing.conformance.kit import HOUR, QUEUE, START, new_job, new_jobs
from taskharbor.testing.servers import free_port


async def put(driver: Driver, *jobs: Any) -> list[EnqueueResult]:
    """What a blocking enqueue of these answers."""
    answers = await asyncio.to_thread(driver.enqueue_blocking, jobs, now=START)
    return [answer.result for answer in answers]


async def total(driver: Driver) -> int:
    return sum(counts.total for counts in (await driver.count(now=START)).values())


def connection_to(url: str) -> BlockingConnection:
    address = address_of(url)
    return BlockingConnection(Primary(address, Keys(address.namespace), lambda: b"epoch"), address.hosts[0])


@contextmanager
def server_that_says(reply: bytes) -> Iterator[int]:
    """The port of something that takes one connection, gives this reply to what comes, and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with suppress(OSError):
                connection, _ = listening.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(reply)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        thread.join(30)


# ------------------------------------------------------------------ what the server forgot


async def test_scripts_that_the_server_forgot_are_loaded_again_for_one_job_and_for_many(own_server, admin):
    async with connect(own_server.url) as driver:
        admin.script_flush()
        assert await put(driver, new_job()) == ["created"]
        admin.script_flush()
        assert await put(driver, *new_jobs(2)) == ["created", "created"]
        assert await total(driver) == 3


async def test_a_store_that_was_emptied_takes_jobs_again(own_server, admin):
    async with connect(own_server.url) as driver:
        await put(driver, new_job())
        admin.flushall()
        assert await put(driver, new_job()) == ["created"]
        admin.flushall()
        assert await put(driver, *new_jobs(2)) == ["created", "created"]
        assert await total(driver) == 2


# ------------------------------------------------------------------ what the server refuses


async def test_a_full_server_takes_no_jobs_of_blocking_callers_either(own_server, admin):
    async with connect(own_server.url) as driver:
        admin.config_set("maxmemory", 1)
        with pytest.raises(StoreFull):
            await put(driver, *new_jobs(2))
        with pytest.raises(StoreFull):
            await put(driver, new_job())
        admin.config_set("maxmemory", 0)
        assert await put(driver, new_job()) == ["created"]


async def test_a_primary_that_became_a_replica_is_left(own_server, admin):
    async with connect(own_server.url) as driver:
        await put(driver, new_job())
        admin.replicaof("127.0.0.1", free_port())
        with pytest.raises(DriverUnavailable) as error:
            await put(driver, *new_jobs(2))
        assert error.value.done is False
        admin.replicaof("NO", "ONE")
        assert await put(driver, new_job()) == ["created"]


async def test_a_keyed_job_over_its_budget_is_refused_where_it_was_asked_for(store_url):
    async with connect(store_url) as driver:
        await driver.configure_queue(
            QueueSettings(queue=QUEUE, enqueue_rate=RateLimit(count=2, per=HOUR)), now=START
        )
        await put(driver, new_job(key=b"a"), new_job(key=b"a"))
        with pytest.raises(RateLimited):
            await put(driver, new_job(key=b"b"), new_job(key=b"b"))


async def test_a_greeting_that_is_refused_says_why(store_url):
    with pytest.raises(StoreRefused, match="no such database"):
        await asyncio.to_thread(connection_to, store_url.replace("/0", "/99"))


# ------------------------------------------------------------------ connections that end


async def test_a_connection_that_the_server_closed_is_noticed_and_made_again(own_server, admin):
    async with connect(own_server.url) as driver:
        await put(driver, new_job())
        admin.client_kill_filter(_type="normal", skipme=True)
        job = new_job()
        with pytest.raises(DriverUnavailable, match="the call may have been carried out") as error:
            await put(driver, job)

        assert error.value.done is None
        assert await put(driver, job) == ["created"], "it was not, and the id makes asking again safe"


async def test_a_server_that_does_not_answer_is_left_after_the_timeout(own_server):
    async with RedisDriver(address_of(own_server.url)) as driver:
        driver.primary.address = address_of(
            f"{own_server.url}?timeout=0.2"
        )  # of connections made from now on
        os.kill(own_server.pid, signal.SIGSTOP)
        try:
            with pytest.raises(DriverUnavailable, match="TimeoutError") as error:
                await put(driver, new_job())
        finally:
            os.kill(own_server.pid, signal.SIGCONT)

        assert error.value.done is None


async def test_a_blocking_caller_learns_that_nobody_is_there(store_url):
    async with RedisDriver(address_of(store_url)) as driver:
        driver.primary.found = ("127.0.0.1", free_port())
        with pytest.raises(DriverUnavailable, match="does not accept connections") as error:
            await put(driver, new_job())

        assert error.value.done is False


@pytest.mark.parametrize("reply", [b"?what\r\n", b""], ids=["nonsense", "nothing"])
async def test_what_is_no_answer_ends_the_connection(reply):
    with server_that_says(reply) as port:
        line = await asyncio.to_thread(connection_to, f"redis://127.0.0.1:{port}")
        with pytest.raises(DriverUnavailable):
            await asyncio.to_thread(line.call, ("PING",))

        assert not line.is_open
