"""The client: requests become stored jobs, and nothing is stored when something is wrong.

The numbers R000-… are those of the product's first requirements.
"""

from datetime import UTC, datetime, timedelta

import pytest

from taskharbor import Client, Harbor, Worker
from taskharbor.drivers import connect
from taskharbor.drivers.messages import CancelResult, EnqueueResult, Query
from taskharbor.errors import (
    DriverClosed,
    EncodeError,
    InvalidArgument,
    JobNotFound,
    NotAllowedInState,
    RateLimited,
)
from taskharbor.events import JobEnqueued
from taskharbor.model.codec import CODEC_HEADER
from taskharbor.model.edit import Edit
from taskharbor.model.job import Update
from taskharbor.model.limits import RateLimit
from taskharbor.model.queue import QueueSettings
from taskharbor.model.state import JobState
from taskharbor.tasks import JobRequest
from taskharbor.testing.clock import SimulatedClock

UNKNOWN = "01a1de65-ccf2-7a32-806d-1424c2bc77ad"


@pytest.fixture
def clock():
    return SimulatedClock()


@pytest.fixture
async def driver(clock):
    async with connect("memory://", clock=clock) as driver:
        yield driver


@pytest.fixture
def client(driver, clock):
    return Client(driver, clock=clock)


async def stored(driver, job_id):
    [record] = await driver.get([job_id])
    return record


# ------------------------------------------------------------------ R000-1 … R000-11


async def test_client_and_worker_side_can_share_one_driver(client, driver, clock):  # R000-1
    job = await client.aenqueue(JobRequest(type="email.send"))

    taken = await driver.reserve_one("default", clock.now(), timedelta(seconds=30))

    assert taken.id == job.id


async def test_every_field_of_a_request_reaches_the_store(client, driver, clock):  # R000-4, R000-9
    job = await client.aenqueue(
        JobRequest(
            type="email.send",
            payload={"to": "a@b.c"},
            queue="mail",
            run_at=clock.now() + timedelta(hours=1),
            timeout="30s",
            max_attempts=5,
            max_stalls=7,
            min_backoff=1,
            max_backoff=timedelta(minutes=1),
            priority=9,
            requires="gpu",
            key="user/7",
            update=Update(),
            idempotency_key=b"\xffonce",
            headers={"trace": "abc"},
        )
    )

    record = await stored(driver, job.id)
    assert record.type == "email.send"
    assert record.payload == b'{"to":"a@b.c"}'
    assert record.queue == "mail"
    assert record.run_at == clock.now() + timedelta(hours=1)
    assert record.timeout == timedelta(seconds=30)
    assert (record.max_attempts, record.max_stalls) == (5, 7)
    assert (record.min_backoff, record.max_backoff) == (timedelta(seconds=1), timedelta(minutes=1))
    assert (record.priority, record.requires) == (9, "gpu")
    assert (record.key, record.idempotency_key) == (b"user/7", b"\xffonce")
    assert record.headers == {"trace": "abc"}
    assert (record.attempts, record.last_error, record.failed_at) == (0, None, None)


@pytest.mark.parametrize(
    "wrong",
    [
        {"type": ""},
        {"type": "   "},
        {"timeout": -1},
        {"max_attempts": -1},
        {"max_stalls": -1},
        {"queue": "no spaces"},
        {"queue": ""},
        {"priority": 1000},
        {"run_at": datetime(2030, 1, 1)},  # noqa: DTZ001
        {"run_at": datetime(2030, 1, 1, tzinfo=UTC), "delay": 5},
        {"delay": -1},
        {"delay": "soon"},
        {"key": ""},
        {"key": "x" * 256},
        {"key": "\ud800"},
        {"key": 7},
        {"update": Update()},
        {"key": "k", "update": Update(run_at="whenever")},  # type: ignore[arg-type]
        {"headers": {"a": 1}},
        {"payload": "x" * (1024 * 1024 + 1)},
        {"id": "not-an-id"},
    ],
    ids=str,
)
async def test_a_request_that_can_never_be_stored_leaves_nothing_behind(client, driver, wrong):  # R000-5
    with pytest.raises((InvalidArgument, EncodeError)):
        await client.aenqueue(JobRequest(**{"type": "email.send", **wrong}))

    assert await driver.count() == {}


async def test_a_request_without_a_queue_goes_to_the_clients_default(driver):  # R000-6
    plain = await Client(driver).aenqueue(JobRequest(type="t"))
    mail = await Client(driver, default_queue="mail").aenqueue(JobRequest(type="t"))
    other = await Client(driver, default_queue="mail").aenqueue(JobRequest(type="t", queue="default"))

    assert [(await stored(driver, job.id)).queue for job in (plain, mail, other)] == [
        "default",
        "mail",
        "default",
    ]


async def test_what_is_left_out_gets_its_default(client, driver):  # R000-6
    job = await client.aenqueue(JobRequest(type="t"))

    record = await stored(driver, job.id)
    assert record.payload == b"null"
    assert record.timeout == timedelta(0)
    assert (record.max_attempts, record.max_stalls) == (0, 3)
    assert (record.priority, record.requires, record.headers) == (0, "any", {})


class Reversing:
    """A codec nobody else has."""

    name = "reversing"

    def encode(self, value):
        return str(value)[::-1].encode()

    def decode(self, data, type=None):
        return data.decode()[::-1]


async def test_a_codec_of_the_callers_is_used_and_named_in_the_headers(driver):  # R000-7
    job = await Client(driver, codec=Reversing()).aenqueue(JobRequest(type="t", payload="abc"))

    record = await stored(driver, job.id)
    assert record.payload == b"cba"
    assert record.headers == {CODEC_HEADER: "reversing"}


async def test_a_payload_that_cannot_be_encoded_leaves_nothing_behind(client, driver):  # R000-7
    with pytest.raises(EncodeError, match=r"\$\.x"):
        await client.aenqueue(JobRequest(type="t", payload={"x": object()}))

    assert await driver.count() == {}


async def test_id_time_and_attempts_are_set_by_the_client(client, driver, clock):  # R000-8
    clock.advance("1h")
    one = await client.aenqueue(JobRequest(type="t"))
    clock.advance("1h")
    two = await client.aenqueue(JobRequest(type="t"))

    record = await stored(driver, two.id)
    assert one.id < two.id  # time-ordered
    assert record.created_at == clock.now()
    assert record.attempts == 0


async def test_without_a_clock_of_its_own_the_stores_clock_decides(driver, clock):
    client = Client(driver)  # the system's clock, years away from the store's
    job = await client.aenqueue(JobRequest(type="t", delay="1h"))

    record = await stored(driver, job.id)
    assert record.created_at == clock.now()
    assert record.run_at == clock.now() + timedelta(hours=1)


async def test_jobs_wait_for_their_time_and_come_out_in_order(client, driver, clock):  # R000-10, R000-11
    late = await client.aenqueue(JobRequest(type="t", run_at=clock.now() + timedelta(seconds=20)))
    soon = await client.aenqueue(JobRequest(type="t", delay=10))
    first = await client.aenqueue(JobRequest(type="t"))
    second = await client.aenqueue(JobRequest(type="t"))

    async def taken():
        job = await driver.reserve_one("default", clock.now(), timedelta(hours=1))
        return job and job.id

    assert [await taken(), await taken(), await taken()] == [first.id, second.id, None]
    clock.advance(10)
    assert [await taken(), await taken()] == [soon.id, None]
    clock.advance(10)
    assert [await taken(), await taken()] == [late.id, None]


async def test_due_jobs_come_out_by_their_time_not_by_their_arrival(client, driver, clock):  # R000-11
    later = await client.aenqueue(JobRequest(type="t", delay=20))
    sooner = await client.aenqueue(JobRequest(type="t", delay=10))
    clock.advance(60)

    jobs = [await driver.reserve_one("default", clock.now(), timedelta(hours=1)) for _ in range(2)]

    assert [job.id for job in jobs] == [sooner.id, later.id]


# ------------------------------------------------------------------ keys, ids, batches


async def test_the_same_id_makes_no_second_job(client, driver):
    first = await client.aenqueue(JobRequest(type="t", id=UNKNOWN))
    again = await client.aenqueue(JobRequest(type="t", id=UNKNOWN))

    assert (first.id, again.id) == (UNKNOWN, UNKNOWN)
    assert first.enqueued.result is EnqueueResult.CREATED
    assert again.enqueued.result is EnqueueResult.DUPLICATE
    assert (await driver.count())["default"].total == 1


async def test_a_repeat_under_an_idempotency_key_is_the_first_job(client):
    first = await client.aenqueue(JobRequest(type="t", idempotency_key="order/1"))
    again = await client.aenqueue(JobRequest(type="t", idempotency_key="order/1"))

    assert again == first
    assert again.enqueued.result is EnqueueResult.DUPLICATE


async def test_a_key_that_waits_absorbs_the_next_enqueue(client, driver):
    first = await client.aenqueue(JobRequest(type="t", payload=1, key="k"))
    second = await client.aenqueue(JobRequest(type="t", payload=2, key="k"))

    assert second.id == first.id
    assert second.enqueued.result is EnqueueResult.UPDATED
    assert (await stored(driver, first.id)).payload == b"2"


async def test_many_jobs_are_stored_in_list_order_and_all_or_none(client, driver):
    jobs = await client.aenqueue_many(JobRequest(type="t", payload=n) for n in range(5))

    page = await driver.find(Query())
    assert [job.id for job in jobs] == [record.id for record in page.jobs]
    assert [record.payload for record in page.jobs] == [b"0", b"1", b"2", b"3", b"4"]

    with pytest.raises(InvalidArgument):
        await client.aenqueue_many([JobRequest(type="t"), JobRequest(type="t", priority=1000)])
    assert (await driver.count())["default"].total == 5


async def test_each_of_many_keeps_its_own_options(client, driver):
    asked = [
        JobRequest(type="t", payload=1, priority=1),
        JobRequest(type="t", payload=2, priority=1),
        JobRequest(type="t", payload=3, queue="mail"),
        JobRequest(type="u", payload=4, headers={"a": "b"}, id=UNKNOWN),
        JobRequest(type="u", payload=5, headers={"a": "c"}),
        JobRequest(type="u", payload=6, delay="5s"),
        JobRequest(type="u", payload=7, key="k", max_attempts=2),
        JobRequest(type="u", payload=8, idempotency_key="i", max_attempts=2),
        JobRequest(type="u", payload=9, max_attempts=2),
        JobRequest(type="t", payload=10, priority=1),
    ]
    together = await driver.get([job.id for job in await client.aenqueue_many(asked)])

    def fields_of(job):
        return (
            job.type,
            job.queue,
            job.priority,
            job.headers,
            job.payload,
            job.key,
            job.idempotency_key,
            job.max_attempts,
            job.state,
        )

    assert [fields_of(job) for job in together] == [
        ("t", "default", 1, {}, b"1", None, None, 0, JobState.READY),
        ("t", "default", 1, {}, b"2", None, None, 0, JobState.READY),
        ("t", "mail", 0, {}, b"3", None, None, 0, JobState.READY),
        ("u", "default", 0, {"a": "b"}, b"4", None, None, 0, JobState.READY),
        ("u", "default", 0, {"a": "c"}, b"5", None, None, 0, JobState.READY),
        ("u", "default", 0, {}, b"6", None, None, 0, JobState.SCHEDULED),
        ("u", "default", 0, {}, b"7", b"k", None, 2, JobState.READY),
        ("u", "default", 0, {}, b"8", None, b"i", 2, JobState.READY),
        ("u", "default", 0, {}, b"9", None, None, 2, JobState.READY),
        ("t", "default", 1, {}, b"10", None, None, 0, JobState.READY),
    ]
    assert together[3].id == UNKNOWN


async def test_many_of_nothing_is_nothing(client):
    assert await client.aenqueue_many([]) == []


async def test_something_else_than_a_request_is_refused(client):
    with pytest.raises(InvalidArgument, match="JobRequest is needed, not dict"):
        await client.aenqueue({"type": "t"})
    with pytest.raises(InvalidArgument, match="JobRequest is needed, not dict"):
        await client.aenqueue_many([JobRequest(type="t"), {"type": "t"}])


async def test_over_the_budget_nothing_is_stored(client, driver, clock):
    rate = RateLimit(1, timedelta(minutes=1))
    await driver.configure_queue(QueueSettings(queue="default", enqueue_rate=rate))
    await client.aenqueue(JobRequest(type="t"))

    with pytest.raises(RateLimited) as caught:
        await client.aenqueue(JobRequest(type="t"))

    assert caught.value.retry_after == timedelta(minutes=1)
    assert (await driver.count())["default"].total == 1


# ------------------------------------------------------------------ looking and control


async def test_a_job_is_found_by_its_id(client):
    job = await client.aenqueue(JobRequest(type="t"))

    found = await client.aget(job.id)

    assert found == job
    assert found.state is JobState.READY
    assert repr(found) == f"<job {job.id} ready>"


async def test_an_unknown_id_is_not_found_by_any_verb(client):
    for verb in (client.aget, client.acancel, client.aretry):
        with pytest.raises(JobNotFound):
            await verb(UNKNOWN)


async def test_jobs_are_listed_page_by_page(client):
    jobs = await client.aenqueue_many([JobRequest(type="t") for _ in range(3)])

    first = await client.afind(Query(limit=2))
    rest = await client.afind(Query(limit=2, cursor=first.next_cursor))

    assert [job.id for job in first.jobs + rest.jobs] == [job.id for job in jobs]


async def test_cancel_says_what_it_did(client, driver, clock):
    waiting = await client.aenqueue(JobRequest(type="t"))
    assert (await client.acancel(waiting.id)).result is CancelResult.CANCELLED
    assert (await client.acancel(waiting.id)).result is CancelResult.ALREADY_OVER

    running = await client.aenqueue(JobRequest(type="t"))
    await driver.reserve_one("default", clock.now(), timedelta(hours=1))
    assert (await client.acancel(running.id)).result is CancelResult.REQUESTED


async def test_a_finished_job_can_run_again_with_changes(client, driver):
    job = await client.aenqueue(JobRequest(type="t"))
    await client.acancel(job.id)

    again = await client.aretry(job.id, edit=Edit(priority=5), delay="1m")

    record = await stored(driver, job.id)
    assert again == job
    assert (record.state, record.priority) == (JobState.SCHEDULED, 5)


async def test_a_job_that_is_not_over_cannot_be_retried(client):
    job = await client.aenqueue(JobRequest(type="t"))

    with pytest.raises(NotAllowedInState):
        await client.aretry(job.id)


async def test_a_closed_driver_says_so(client, driver):
    await driver.close()

    with pytest.raises(DriverClosed):
        await client.aenqueue(JobRequest(type="t"))


# ------------------------------------------------------------------ layers and events


async def test_layers_surround_every_enqueue_the_first_outermost(client, driver):
    seen = []

    def layer(name):
        async def around(jobs, call_next):
            seen.append(f"{name} in")
            answers = await call_next(jobs)
            seen.append(f"{name} out")
            return answers

        return around

    client.use(layer("outer"))
    client.use(layer("inner"))
    await client.aenqueue(JobRequest(type="t"))
    await client.aenqueue_many([JobRequest(type="t"), JobRequest(type="t")])

    assert seen == ["outer in", "inner in", "inner out", "outer out"] * 2
    assert (await driver.count())["default"].total == 3


async def test_a_layer_may_change_jobs_or_refuse_them(client, driver):
    async def refuse(jobs, call_next):
        if any(job.type == "forbidden" for job in jobs):
            raise PermissionError("not here")
        return await call_next(jobs)

    client.use(refuse)

    with pytest.raises(PermissionError):
        await client.aenqueue(JobRequest(type="forbidden"))
    assert await driver.count() == {}


async def test_an_enqueue_reaches_every_listener(client):
    heard: list[JobEnqueued] = []
    client.events.listen(heard.append, JobEnqueued)

    job = await client.aenqueue(JobRequest(type="t", queue="mail"))

    assert heard == [JobEnqueued(job_id=job.id, type="t", queue="mail", result="created")]


# ------------------------------------------------------------------ other event loops


def first_step(call):
    """What a coroutine does where no event loop of asyncio runs, as under trio."""
    try:
        call.send(None)
    finally:
        call.close()


def test_async_calls_without_asyncio_name_what_works():
    harbor = Harbor("memory://")

    @harbor.task
    def send() -> None: ...

    for call in (send.aenqueue(), harbor.aopen(), harbor.aget("x"), harbor.aclose()):
        with pytest.raises(InvalidArgument, match=r"trio.to_thread.run_sync\(task.enqueue"):
            first_step(call)
    with pytest.raises(InvalidArgument, match="under trio"):
        first_step(Worker(harbor.driver).arun())
