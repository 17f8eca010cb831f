"""Connections that go dead without a word: no call waits behind an answer that will never come."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from taskharbor.drivers.messages import EnqueueResult
from taskharbor.drivers.postgres import PostgresDriver, blocking_connection
from taskharbor.drivers.postgres.address import Address
from taskharbor.drivers.postgres.blocking_connection import BlockingConnection
from taskharbor.errors import DriverUnavailable
from taskharbor.model.entropy import Entropy
from taskharbor.model.presence import WorkerReport
from taskharbor.model.worker_options import WorkerOptions
from taskharbor.testing.conformance.kit import QUEUE, new_job, new_jobs
from taskharbor.worker.fetcher import follow_wakeups
from taskharbor.worker.timing import Timing
from tests.chaos.framing import PostgresFraming
from tests.chaos.proxy import Proxy

SLOW = 30.0


@pytest.fixture
async def proxy(database_url: str) -> AsyncIterator[Proxy]:
    port = int(database_url.rpartition("@")[2].partition("/")[0].rpartition(":")[2])
    async with Proxy(port, PostgresFraming) as proxy:
        yield proxy


@pytest.fixture
def proxied_url(store_url: str, proxy: Proxy) -> str:
    return store_url.replace(f":{proxy.target_port}/", f":{proxy.port}/")


async def test_a_call_that_nobody_waits_for_any_more_holds_up_no_other(
    proxy: Proxy, proxied_url: str
) -> None:
    """Neither one statement nor a transaction; and lines that lay idle are asked before they are used."""
    async with PostgresDriver.from_url(proxied_url) as driver:
        await asyncio.gather(*(driver.enqueue([new_job()]) for _ in range(3)))
        report = WorkerReport(worker_id="w-1", name="w", kind="any", queues=(QUEUE,), lanes=("any",))
        for call in (
            lambda: driver.enqueue([new_job()]),
            lambda: driver.report_worker(report, [], timedelta(seconds=30)),
        ):
            assert proxy.strand() > 0
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(call(), 0.3)
            async with asyncio.timeout(SLOW):
                [answer] = await driver.enqueue([new_job()])
            assert answer.result is EnqueueResult.CREATED


async def test_a_connection_that_comes_too_late_serves_the_next_call(proxy: Proxy, proxied_url: str) -> None:
    """On a slow line nobody would ever get one, if each were thrown away with the call that wanted it."""
    async with PostgresDriver.from_url(proxied_url) as driver:
        await driver.enqueue([new_job()])
        proxy.reset_all()
        while driver._connections._idle and not driver._connections._idle[-1].is_closed():
            await asyncio.sleep(0.01)
        before = proxy.requests["startup"]
        held = proxy.hold_after("startup")
        impatient = asyncio.create_task(driver.count())
        await asyncio.wait_for(held.has_sprung.wait(), SLOW)
        impatient.cancel()
        await asyncio.wait((impatient,))
        held.let_go.set()
        async with asyncio.timeout(SLOW):
            while not driver._connections._idle:
                await asyncio.sleep(0.01)
            await driver.count()

    assert impatient.cancelled()
    assert proxy.requests["startup"] == before + 1


@pytest.mark.parametrize("count", [1, 3])
async def test_a_blocking_caller_learns_when_no_answer_comes(
    proxy: Proxy, proxied_url: str, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """One job goes without a cursor and several with one; neither waits for ever."""
    async with PostgresDriver.from_url(proxied_url) as driver:
        await asyncio.to_thread(driver.enqueue_blocking, new_jobs(count))
        assert proxy.strand() > 0
        jobs = new_jobs(count)
        monkeypatch.setattr(BlockingConnection, "answer_seconds", 0.3)
        with pytest.raises(DriverUnavailable, match="in time") as caught:
            await asyncio.to_thread(driver.enqueue_blocking, jobs)
        monkeypatch.undo()
        answers = await asyncio.to_thread(driver.enqueue_blocking, jobs)

    assert caught.value.done is None
    assert [answer.id for answer in answers] == [job.id for job in jobs]


async def test_a_blocking_caller_learns_when_a_connection_is_not_accepted(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        async with PostgresDriver.from_url(store_url) as driver:
            dsn = f"postgresql://somebody@127.0.0.1:{deaf.getsockname()[1]}/nowhere"
            monkeypatch.setattr(driver._blocking, "_address", Address(dsn=dsn))
            monkeypatch.setattr(blocking_connection, "CONNECT_SECONDS", 2.0)
            with pytest.raises(DriverUnavailable, match="nothing was written") as caught:
                await asyncio.wait_for(asyncio.to_thread(driver.enqueue_blocking, [new_job()]), SLOW)

    assert caught.value.done is False


async def test_listening_goes_on_after_a_loss_in_the_middle_of_its_first_look(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with PostgresDriver.from_url(store_url) as driver:
        rows = driver._connections.rows
        losses = 0

        async def lose_the_first_look(statement: str, *arguments: Any, **options: Any) -> Any:
            nonlocal losses
            if "cancel" in statement and losses == 0:
                losses += 1
                raise DriverUnavailable("lost", done=False)
            return await rows(statement, *arguments, **options)

        monkeypatch.setattr(driver._connections, "rows", lose_the_first_look)
        hints = driver.wakeups([QUEUE], "worker-a")
        hint = await asyncio.wait_for(anext(hints), SLOW)
        await hints.aclose()

    assert (hint.queue, losses) == (QUEUE, 1)


async def test_hints_that_fail_while_they_are_closed_can_be_stopped() -> None:
    class Failing:
        def __aiter__(self) -> Any:
            return self

        async def __anext__(self) -> Any:
            await asyncio.Event().wait()

        async def aclose(self) -> None:
            raise DriverUnavailable("the server is gone", done=False)

    class Store:
        def wakeups(self, queues: Any, worker_id: str) -> Failing:
            return Failing()

    run: Any = SimpleNamespace(
        options=WorkerOptions(queues=(QUEUE,)),
        driver=Store(),
        worker_id="worker-a",
        timing=Timing(),
        entropy=Entropy(),
    )
    following = asyncio.create_task(follow_wakeups(run))
    await asyncio.sleep(0.05)
    following.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(following, 30)


async def test_while_a_call_takes_long_the_next_finds_a_connection(driver: PostgresDriver) -> None:
    """A new connection takes six round trips: on a line that has become slow, a heartbeat cannot wait."""
    connections = driver._connections
    slow = asyncio.create_task(connections.rows("select pg_sleep(60)"))

    async with asyncio.timeout(SLOW):
        while not connections._idle or connections._lent == {}:
            await asyncio.sleep(0.02)

    assert not slow.done()
    slow.cancel()
    await asyncio.gather(slow, return_exceptions=True)


async def test_on_a_slow_line_other_calls_leave_a_connection_to_the_heartbeat(driver: PostgresDriver) -> None:
    """A worker's report takes several round trips; no lease may end while a heartbeat waits for it."""
    connections = driver._connections
    await connections.rows("select pg_sleep(0.3)", urgent=True)
    async with asyncio.timeout(SLOW):
        while connections._is_opening_spare:
            await asyncio.sleep(0.02)
    *more, kept = connections._idle
    for one in more:
        one.terminate()
    connections._idle = [kept]

    others = [asyncio.create_task(connections.rows("select pg_sleep(60)")) for _ in range(2)]
    async with asyncio.timeout(SLOW):
        while len(connections._lent) < len(others):
            await asyncio.sleep(0.02)

    assert kept not in connections._lent
    for other in others:
        other.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def test_on_a_fast_line_no_connection_is_left_over(driver: PostgresDriver) -> None:
    connections = driver._connections
    await connections.rows("select 1", urgent=True)
    connections._reserved_until = 0.0  # it may have been slow, on a busy machine
    [only] = connections._idle

    other = asyncio.create_task(connections.rows("select pg_sleep(60)"))
    async with asyncio.timeout(SLOW):
        while not connections._lent:
            await asyncio.sleep(0.02)

    assert only in connections._lent
    other.cancel()
    await asyncio.gather(other, return_exceptions=True)


async def test_a_connection_that_comes_back_is_taken_before_a_new_one_is_there(
    proxy: Proxy, proxied_url: str
) -> None:
    """A new one takes six round trips; after a heartbeat that was given up there is no time for them."""
    async with PostgresDriver.from_url(proxied_url) as driver:
        connections = driver._connections
        held = proxy.hold_after("startup")  # no new connection will be there
        busy = asyncio.create_task(connections.rows("select pg_sleep(1)"))
        async with asyncio.timeout(SLOW):
            while not connections._lent:
                await asyncio.sleep(0.01)

            assert await driver.count() == {}

        await busy
        held.let_go.set()
