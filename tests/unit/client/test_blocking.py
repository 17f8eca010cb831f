"""The blocking twins: for code without an event loop."""

import asyncio
import gc
import os
import subprocess
import sys
import threading
import weakref
from datetime import timedelta

import pytest

from taskharbor import Client
from taskharbor.client.portal import Portal
from taskharbor.drivers import connect
from taskharbor.drivers.capabilities import Capabilities
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.drivers.messages import CancelResult, Claim, Query
from taskharbor.errors import InvalidArgument, JobNotFound, PayloadError
from taskharbor.model.state import JobState
from taskharbor.tasks import JobRequest


@pytest.fixture
def client():
    with Client(connect("memory://")) as client:
        yield client


class WithoutBlockingEnqueue(MemoryDriver):
    """A store that only async code can reach."""

    def __init__(self, **options):
        super().__init__(**options)
        self.capabilities = Capabilities(wakeups=True, atomic_across_queues=True)

    def another(self):
        return WithoutBlockingEnqueue(store=self._store)


def test_every_verb_has_a_blocking_twin(client):
    job = client.enqueue(JobRequest(type="t", payload={"a": 1}))
    more = client.enqueue_many([JobRequest(type="t"), JobRequest(type="t")])

    assert client.get(job.id).state is JobState.READY
    assert [record.id for record in client.find(Query()).jobs] == [job.id, *(one.id for one in more)]
    assert client.cancel(job.id).result is CancelResult.CANCELLED
    assert job.refresh().state is JobState.CANCELLED
    assert client.retry(job.id).state is JobState.READY
    assert job.cancel().result is CancelResult.CANCELLED
    assert job.retry().state is JobState.READY


def test_the_state_is_read_when_it_is_first_asked_for_and_then_kept(client):
    job = client.enqueue(JobRequest(type="t"))

    assert repr(job) == f"<job {job.id}>"
    assert job.state is JobState.READY
    client.cancel(job.id)
    assert job.state is JobState.READY  # as last seen
    assert job.refresh().state is JobState.CANCELLED


def test_a_store_without_blocking_enqueue_is_served_by_the_background_loop():
    with Client(WithoutBlockingEnqueue()) as client:
        job = client.enqueue(JobRequest(type="t"))
        [other] = client.enqueue_many([JobRequest(type="t")])

        assert {record.id for record in client.find().jobs} == {job.id, other.id}


def test_layers_also_surround_blocking_enqueues(client):
    async def renamed(jobs, call_next):
        await asyncio.get_running_loop().run_in_executor(None, len, jobs)  # a layer may wait
        return await call_next(jobs)

    client.use(renamed)

    assert client.enqueue(JobRequest(type="t")).state is JobState.READY


def test_errors_come_through_as_they_are(client):
    with pytest.raises(JobNotFound):
        client.get("01a1de65-ccf2-7a32-806d-1424c2bc77ad")
    with pytest.raises(InvalidArgument):
        client.enqueue(JobRequest(type="t", priority=1000))
    with pytest.raises(PayloadError):
        client.enqueue(JobRequest(type="t", payload=object()))


async def test_inside_an_event_loop_the_async_twin_is_named(client):
    for verb, call in {
        "aenqueue": lambda: client.enqueue(JobRequest(type="t")),
        "aenqueue_many": lambda: client.enqueue_many([JobRequest(type="t")]),
        "aget": lambda: client.get("x"),
        "acancel": lambda: client.cancel("x"),
        "aretry": lambda: client.retry("x"),
        "afind": lambda: client.find(),
        "aclose": lambda: client.close(),
    }.items():
        with pytest.raises(InvalidArgument, match=f"await {verb}"):
            call()


async def test_a_fresh_handle_knows_the_state_it_was_given_inside_a_loop():
    async with connect("memory://") as driver:
        client = Client(driver)
        ready = await client.aenqueue(JobRequest(type="t", key="k"))
        later = await client.aenqueue(JobRequest(type="t", delay=60))
        past = await client.aenqueue(JobRequest(type="t", run_at=client.clock.now() - timedelta(hours=1)))
        future = await client.aenqueue(JobRequest(type="t", run_at=client.clock.now() + timedelta(hours=1)))
        await driver.reserve(Claim(queues=("default",), worker_id="w", limit=5))
        blocked = await client.aenqueue(JobRequest(type="t", key="k"))

        assert [job.state for job in (ready, later, past, future, blocked)] == [
            JobState.READY,
            JobState.SCHEDULED,
            JobState.READY,
            JobState.SCHEDULED,
            JobState.BLOCKED,
        ]
        assert (await ready.arefresh()).state is JobState.RUNNING
        await later.acancel()
        assert later.state is JobState.CANCELLED


async def test_a_handle_without_a_state_names_the_async_way_inside_a_loop():
    async with connect("memory://") as driver:
        client = Client(driver)
        await client.aenqueue(JobRequest(type="t", idempotency_key="k"))
        job = await client.aenqueue(JobRequest(type="t", idempotency_key="k"))

        with pytest.raises(InvalidArgument, match="await arefresh"):
            _ = job.state

        assert (await job.arefresh()).state is JobState.READY


def test_in_blocking_code_the_first_look_is_at_the_store(client):
    job = client.enqueue(JobRequest(type="t"))
    client.cancel(job.id)

    assert job.state is JobState.CANCELLED


def test_many_threads_can_share_one_client(client):
    def enqueue_some():
        for _ in range(25):
            client.enqueue(JobRequest(type="t"))
            client.find(Query(limit=1))

    threads = [threading.Thread(target=enqueue_some) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(client.find(Query(limit=1000)).jobs) == 200


def test_async_and_blocking_code_see_the_same_store():
    driver = connect("memory://")
    with Client(driver) as client:
        job = client.enqueue(JobRequest(type="t"))

        async def look():
            async with driver:
                return await Client(driver).aget(job.id)

        assert asyncio.run(look()) == job


def test_a_transaction_is_refused_by_a_store_that_cannot_join_one(client):
    with pytest.raises(InvalidArgument, match="cannot join a transaction"):
        client.enqueue(JobRequest(type="t"), tx="a connection")


class WithAsyncTransactions(MemoryDriver):
    """A store that can join async transactions."""

    def __init__(self, **options):
        super().__init__(**options)
        self.capabilities = Capabilities(tx=True, blocking_enqueue=True)

    def another(self):
        return WithAsyncTransactions(store=self._store)

    async def do_enqueue_in(self, jobs, tx, now):
        return super().do_enqueue_blocking(jobs, now, None)


async def test_an_async_transaction_is_joined_in_async_code():
    async with WithAsyncTransactions() as driver:
        client = Client(driver)
        job = await client.aenqueue(JobRequest(type="t"), tx="an async connection")
        [other] = await client.aenqueue_many([JobRequest(type="t")], tx="an async connection")

        assert [record.id for record in (await client.afind()).jobs] == [job.id, other.id]


def test_a_closed_client_opens_again_when_it_is_used(client):
    first = client.enqueue(JobRequest(type="t"))
    client.close()
    client.close()

    assert client.get(first.id) == first


def test_a_client_that_nobody_holds_lets_its_thread_go():
    client = Client(connect("memory://"))
    client.enqueue(JobRequest(type="t"))
    [thread] = [one for one in threading.enumerate() if one is client._connections.portal._thread]
    gone = weakref.ref(client)

    del client
    gc.collect()

    assert gone() is None
    thread.join(10)
    assert not thread.is_alive()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_opens_its_own_handle():
    script = """
import os, sys
from taskharbor import Client
from taskharbor.drivers import connect
from taskharbor.tasks import JobRequest
client = Client(connect("memory://"))
client.enqueue(JobRequest(type="t"))
child = os.fork()
if child == 0:
    client.enqueue(JobRequest(type="t"))
    os._exit(len(client.find().jobs))
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = subprocess.run([sys.executable, "-c", script], timeout=60, check=False)

    assert done.returncode == 2


def test_a_program_that_forgets_to_close_ends_all_the_same():
    script = """
from taskharbor import Client
from taskharbor.drivers import connect
from taskharbor.tasks import JobRequest
client = Client(connect("memory://"))
client.enqueue(JobRequest(type="t"))
client.find()
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], timeout=60, check=False, capture_output=True, text=True
    )

    assert (done.returncode, done.stderr) == (0, "")


def test_a_portal_stops_what_still_runs_in_it():
    portal = Portal()
    stopped = threading.Event()

    async def wait_for_ever():
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            stopped.set()

    async def start():
        tasks.append(asyncio.create_task(wait_for_ever()))
        await asyncio.get_running_loop().run_in_executor(None, lambda: None)

    tasks: list[asyncio.Task[None]] = []
    portal.call(start)
    portal.close()

    assert stopped.is_set()


def test_a_timeout_of_zero_does_not_wait(client):
    job = client.enqueue(JobRequest(type="t"))

    with pytest.raises(TimeoutError, match="is still ready after 0 s; the job continues"):
        job.result(timeout=timedelta(0))
