"""What the type checker must accept, and the types it must see. Checked, never run."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, assert_type

from taskharbor import (
    AsyncTask,
    Client,
    Harbor,
    Job,
    JobContext,
    JobHandle,
    JobRecord,
    JobRequest,
    JobState,
    QueueSettings,
    Retention,
    RetryPolicy,
    Snooze,
    Speculate,
    Task,
    Update,
    Worker,
    WorkerOptions,
)
from taskharbor.drivers import connect
from taskharbor.integrations.asgi import lifespan, use
from taskharbor.integrations.flask import FlaskHarbor
from taskharbor.testing import InlineHarbor, SimulatedClock, assert_enqueued, drain
from taskharbor.types import Call, Counts, Driver, Node, Workflow

harbor = Harbor("memory://", retry=RetryPolicy(max_attempts=3))


@dataclass
class Address:
    street: str


@harbor.task
def add(a: int, b: int = 2) -> int:
    return a + b


@harbor.task(queue="mail", max_attempts=5, timeout="30s", run_in="thread", speculate="1m")
async def send_welcome(user_id: int, *, address: Address | None = None) -> str:
    return f"welcome, {user_id}"


@harbor.task(timeout=timedelta(seconds=5), retry="linear", speculate=Speculate(after=timedelta(seconds=1)))
def with_context(ctx: JobContext, user_id: int) -> bool:
    return not ctx.cancelled


@harbor.task(run_in="process", recycle_on=["AcceleratorError", OSError])
def on_a_device(size: int) -> int:
    return size


@harbor.task
async def async_with_context(ctx: JobContext, user_id: int) -> datetime:
    return ctx.clock.now()


@harbor.task
def nightly(a: int) -> str | Snooze:
    return Snooze(timedelta(hours=1))


harbor.cron("0 3 * * *", call=nightly.call(a=1), timezone="Europe/Berlin", misfire="skip")


def blocking() -> None:
    assert_type(add(1), int)
    assert_type(add.enqueue(1), JobHandle[int])
    assert_type(add.enqueue(a=1, b=3).result(timeout="5s"), int)
    assert_type(add.using(queue="mail", delay="5m", key="k", update=Update()).enqueue(1), JobHandle[int])
    assert_type(send_welcome.enqueue(7, address=Address("High Street")), JobHandle[str])
    assert_type(with_context.enqueue(user_id=7), JobHandle[bool])
    assert_type(async_with_context.enqueue(7).result(), datetime)
    assert_type(add.call(1), Call[int])
    assert_type(nightly.enqueue(1).state, JobState)
    handles = harbor.enqueue_many([add.call(1), send_welcome.call(user_id=7)])
    assert_type(handles, list[JobHandle[Any]])
    assert_type(harbor.get("id").record, JobRecord)
    assert_type(harbor.queue("mail").counts(), Counts)
    harbor.queue("mail").configure(QueueSettings(queue="mail", max_running=4))
    harbor.queue("mail").configure(max_running=4, enqueue_rate=None, retention=Retention(failed=None))
    harbor.schedules.put("spring", nightly.call(1), cron="0 4 1 4 *", paused=True)
    harbor.worker(
        lease="1m", heartbeat=timedelta(seconds=5), unknown_types="fail", sweep_every="2s", gpus="all"
    )


def workflows() -> None:
    assert_type(harbor.chain(add.call(1), with_context).enqueue(), JobHandle[bool])
    assert_type(harbor.chain(add.call(1), add, send_welcome), Workflow[str])
    assert_type(harbor.group([add.call(n) for n in (1, 2)]).enqueue().result(timeout=1), list[int])
    assert_type(harbor.group([add.call(1)], then=send_welcome.call(7), tolerate=1), Workflow[str])
    flow = harbor.workflow("order", deadline="2h", queue="mail")
    first = flow.add(add.call(1), name="first", optional=True)
    assert_type(first, Node[int])
    assert_type(first.out, int)
    flow.add(add.call(1, first.out), after=[first, "first"], when="over")
    assert_type(flow.add(harbor.chain(add.call(1))), Node[int])
    assert_type(harbor.map(add, range(10), tolerate=None), JobHandle[list[int]])
    for child in flow.enqueue().children(JobState.FAILED):
        child.send("approval", {"by": "me"})


async def in_async_code() -> None:
    assert_type(await send_welcome(7), str)
    coroutine: Coroutine[Any, Any, str] = send_welcome(7)
    assert_type(await coroutine, str)
    assert_type(await send_welcome.aenqueue(user_id=7), JobHandle[str])
    assert_type(await (await add.aenqueue(1, 2)).aresult(), int)
    async with harbor:
        await harbor.worker(["mail"], concurrency=4, kind="gpu").arun(until_idle=True)


def tasks_as_values(plain: Task[[int], str], coroutine: AsyncTask[[int], str]) -> None:
    assert_type(plain.enqueue(1), JobHandle[str])
    assert_type(coroutine.enqueue(1), JobHandle[str])
    takes_any_task(coroutine)


def takes_any_task(task: Task[[int], str]) -> JobHandle[str]:
    return task.enqueue(1)


async def the_plain_surface() -> None:
    driver: Driver = connect("memory://")
    client = Client(driver, default_queue="mail")
    await client.aenqueue(JobRequest(type="email.send", payload={"to": "a@b.c"}, delay=5, key=b"\xff"))

    async def handler(ctx: JobContext, job: Job) -> None: ...

    worker = Worker(driver, queues=["mail"], concurrency=4, lease=timedelta(seconds=30))
    worker.register("email.send", handler)
    await worker.arun()


def cron_in_both_orders(harbor: Harbor) -> None:
    @harbor.cron("@daily")
    @harbor.task
    def above(n: int = 1) -> str:
        return str(n)

    @harbor.task
    @harbor.cron("@daily")
    def below(n: int = 1) -> str:
        return str(n)

    @harbor.cron(every="15m", name="often")
    @harbor.task
    async def awaited(ctx: JobContext, n: int = 1) -> str:
        return str(n)

    @harbor.task
    @harbor.cron("@daily")
    def with_context_below(ctx: JobContext) -> None: ...

    assert_type(above.enqueue(1), JobHandle[str])
    assert_type(below.enqueue(1), JobHandle[str])
    assert_type(awaited.enqueue(2), JobHandle[str])


def stores_named_later() -> None:
    later = Harbor(None, lazy=True)
    later.attach("memory://")
    later.attach(connect("memory://"))
    assert_type(later.is_attached, bool)


async def in_frameworks(app: Any) -> None:
    flask = FlaskHarbor(default_queue="mail")

    @flask.task(queue="mail")
    def of_flask(n: int) -> str:
        return str(n)

    assert_type(of_flask.enqueue(1), JobHandle[str])
    assert_type(await use(flask)(), FlaskHarbor)
    async with lifespan(harbor, worker=WorkerOptions(concurrency=2))(app):
        assert_type((await add.aenqueue(1)).id, str)


def tests_of_users() -> None:
    inline = InlineHarbor(clock=SimulatedClock())
    assert_type(assert_enqueued(inline, add, args=(1,), times=1), list[JobRecord])
    drain(inline, within="1h")
