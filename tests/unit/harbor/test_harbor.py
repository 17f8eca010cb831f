"""The harbor: tasks, store, client and worker in one hand."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from taskharbor import AsyncTask, FailedJob, Task
from taskharbor.drivers import connect
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.drivers.messages import EnqueueResult
from taskharbor.errors import (
    ConfigurationError,
    InvalidArgument,
    JobNotFound,
    PayloadError,
    UnknownTask,
    WrongQueue,
)
from taskharbor.harbor import Harbor, store_url
from taskharbor.model.codec import CODEC_HEADER, MsgpackCodec
from taskharbor.model.job import Update
from taskharbor.model.retry import PRESETS, RetryPolicy
from taskharbor.model.speculation import Speculate
from taskharbor.model.state import JobState
from taskharbor.testing.clock import SimulatedClock
from taskharbor.worker.attempt import JobContext


@pytest.fixture
def harbor():
    with Harbor("memory://") as harbor:
        yield harbor


# ------------------------------------------------------------------ which store


def test_a_url_comes_from_the_caller_then_the_environment_then_the_default(monkeypatch):
    monkeypatch.delenv("TASKHARBOR_URL", raising=False)
    assert store_url(None) == "sqlite:///taskharbor.db"

    monkeypatch.setenv("TASKHARBOR_URL", "memory://from-the-environment")
    assert store_url(None) == "memory://from-the-environment"
    assert store_url("memory://given") == "memory://given"


def test_a_url_may_be_borrowed_from_another_variable(monkeypatch):
    monkeypatch.setenv("DATABASE_URL", "memory://borrowed")
    assert store_url("env:DATABASE_URL") == "memory://borrowed"

    monkeypatch.delenv("DATABASE_URL")
    with pytest.raises(ConfigurationError, match="'DATABASE_URL' is not set"):
        Harbor("env:DATABASE_URL")


def test_a_store_nobody_knows_is_refused_when_the_harbor_is_made():
    with pytest.raises(ConfigurationError, match="no driver for etcd://"):
        Harbor("etcd://here")


def test_a_driver_may_be_given_instead_of_a_url():
    driver = connect("memory://")

    with Harbor(driver=driver) as harbor:
        assert harbor.driver is driver


# ------------------------------------------------------------------ tasks


def test_a_task_is_named_like_its_function_and_can_be_called_like_it(harbor):
    @harbor.task
    def add(a: int, b: int = 2) -> int:
        return a + b

    assert isinstance(add, Task)
    assert add.name == "add"
    assert add(1) == 3
    assert harbor.tasks.get("add") is add


async def test_an_async_task_called_gives_its_coroutine():
    harbor = Harbor("memory://")

    @harbor.task(name="greet.politely")
    async def greet(name: str) -> str:
        return f"good evening, {name}"

    assert isinstance(greet, AsyncTask)
    assert greet.name == "greet.politely"
    assert await greet("Ada") == "good evening, Ada"


def test_every_option_of_a_task_reaches_its_jobs(harbor):
    @harbor.task(
        queue="mail",
        priority=3,
        requires="gpu",
        timeout="30s",
        max_attempts=5,
        max_stalls=2,
        min_backoff="1s",
        max_backoff="1m",
    )
    def task() -> None: ...

    record = task.enqueue().record

    assert (record.queue, record.priority, record.requires) == ("mail", 3, "gpu")
    assert record.timeout == timedelta(seconds=30)
    assert (record.max_attempts, record.max_stalls) == (5, 2)
    assert (record.min_backoff, record.max_backoff) == (timedelta(seconds=1), timedelta(minutes=1))


def test_what_a_worker_needs_to_know_is_in_the_handler():
    harbor = Harbor("memory://", retry=RetryPolicy(max_attempts=7))

    @harbor.task(run_in="thread", retry="linear", speculate="10s")
    def one() -> None: ...

    @harbor.task(speculate=Speculate(after=timedelta(seconds=1), factor=2.0))
    def two() -> None: ...

    assert one.handler.run_in == "thread"
    assert one.handler.retry is PRESETS["linear"]
    assert one.handler.speculate == Speculate(after=timedelta(seconds=10))
    assert two.handler.retry == RetryPolicy(max_attempts=7)
    assert two.handler.speculate == Speculate(after=timedelta(seconds=1), factor=2.0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"colour": "red"}, "colour.*known options: name, queue"),
        ({"retry": "sometimes"}, "not a preset; presets are exponential, linear, none"),
        ({"run_in": "fiber"}, "run_in='fiber'"),
        ({"run_in": "process", "recycle_on": 7}, "recycle_on takes exceptions"),
        ({"recycle_on": "AcceleratorError"}, 'run_in="process"'),
        ({"queue": "no spaces"}, "queue 'no spaces' is not a name"),
        ({"timeout": "soon"}, "timeout='soon' is not a duration"),
    ],
)
def test_wrong_options_are_refused_when_the_task_is_made(harbor, options, words):
    with pytest.raises((ConfigurationError, InvalidArgument), match=words):

        @harbor.task(**options)
        def task() -> None: ...

    assert len(harbor.tasks) == 0


def test_a_function_without_a_fit_name_asks_for_one(harbor):
    with pytest.raises(ConfigurationError, match=r"use task\(name=\.\.\.\)"):
        harbor.task(lambda: None)

    assert harbor.task(name="nameless")(lambda: None).name == "nameless"


def test_two_functions_of_one_name_are_refused(harbor):
    harbor.task(name="same")(len)

    with pytest.raises(ConfigurationError, match="two tasks are named 'same'"):
        harbor.task(name="same")(abs)


def test_a_default_queue_of_the_harbors_own():
    with Harbor("memory://", default_queue="slow") as harbor:

        @harbor.task
        def task() -> None: ...

        assert task.enqueue().record.queue == "slow"
        assert harbor.worker().options.queues == ("slow",)


# ------------------------------------------------------------------ jobs


def test_options_for_one_job_never_share_a_namespace_with_arguments(harbor):
    @harbor.task
    def task(queue: str, priority: int) -> None: ...

    record = task.using(queue="mail", priority=9).enqueue(queue="an argument", priority=-5).record

    assert (record.queue, record.priority) == ("mail", 9)
    assert record.payload == b'{"queue":"an argument","priority":-5}'


def test_every_option_of_using_reaches_the_job(harbor):
    @harbor.task
    def task(x: int) -> None: ...

    at = datetime(2030, 1, 1, tzinfo=UTC)
    record = (
        task.using(
            queue="mail",
            priority=1,
            requires="cpu",
            run_at=at,
            timeout=5,
            max_attempts=2,
            max_stalls=1,
            min_backoff=1,
            max_backoff=2,
            key="k",
            update=Update(run_at="if_earlier"),
            idempotency_key="i",
            headers={"a": "b"},
        )
        .enqueue(1)
        .record
    )

    assert (record.queue, record.priority, record.requires, record.run_at) == ("mail", 1, "cpu", at)
    assert (record.timeout, record.max_attempts, record.max_stalls) == (timedelta(seconds=5), 2, 1)
    assert (record.min_backoff, record.max_backoff) == (timedelta(seconds=1), timedelta(seconds=2))
    assert (record.key, record.idempotency_key, record.headers) == (b"k", b"i", {"a": "b"})


def test_an_option_can_be_taken_back(harbor):
    @harbor.task(timeout="30s")
    def task() -> None: ...

    assert task.using(timeout=None).enqueue().record.timeout == timedelta(0)
    assert task.using(delay="1h").using(delay=None).enqueue().state is JobState.READY


def test_a_key_absorbs_and_an_idempotency_key_answers_the_first(harbor):
    @harbor.task
    def task(x: int) -> None: ...

    first = task.using(key="user/7").enqueue(1)
    again = task.using(key="user/7").enqueue(2)
    once = task.using(idempotency_key="order/1").enqueue(3)
    twice = task.using(idempotency_key="order/1").enqueue(4)

    assert (again.id, again.enqueued.result) == (first.id, EnqueueResult.UPDATED)
    assert (twice.id, twice.enqueued.result) == (once.id, EnqueueResult.DUPLICATE)


def test_wrong_arguments_store_nothing(harbor):
    @harbor.task
    def task(user_id: int) -> None: ...

    with pytest.raises(PayloadError, match="task: argument 'user_id'"):
        task.enqueue("seven")
    with pytest.raises(TypeError, match="missing a required argument: 'user_id'"):
        task.enqueue()

    assert harbor.queue("default").counts().total == 0


def test_many_calls_are_stored_in_one_step(harbor):
    @harbor.task
    def task(n: int) -> None: ...

    jobs = harbor.enqueue_many([task.call(1), task.using(queue="mail").call(2)])

    assert [job.record.payload for job in jobs] == [b'{"n":1}', b'{"n":2}']
    assert [job.record.queue for job in jobs] == ["default", "mail"]


def test_a_job_is_found_and_cancelled_by_its_id(harbor):
    @harbor.task
    def task() -> None: ...

    job = task.enqueue()

    assert harbor.get(job.id).state is JobState.READY
    harbor.cancel(job.id)
    assert harbor.get(job.id).state is JobState.CANCELLED
    with pytest.raises(JobNotFound):
        harbor.get("01a1de65-ccf2-7a32-806d-1424c2bc77ad")


async def test_inside_an_event_loop_a_task_names_its_async_twin():
    harbor = Harbor("memory://")

    @harbor.task
    def task() -> None: ...

    with pytest.raises(InvalidArgument, match="await aenqueue"):
        task.enqueue()
    assert (await (await task.aenqueue()).arefresh()).state is JobState.READY


# ------------------------------------------------------------------ workers and results


async def test_a_worker_runs_what_the_tasks_say(harbor):
    @harbor.task(queue="mail")
    async def greet(name: str) -> str:
        return f"hello, {name}"

    @harbor.task
    def add(ctx: JobContext, a: int, b: int = 2) -> int:
        return a + b + ctx.attempt

    greeting, total = await greet.aenqueue("Ada"), await add.aenqueue(3)
    worker = harbor.worker()
    assert worker.options.queues == ("default", "mail")
    await worker.arun(until_idle=True)

    assert await greeting.aresult() == "hello, Ada"
    assert await total.aresult() == 6


def test_a_worker_in_blocking_code(harbor):
    @harbor.task
    def add(a: int, b: int) -> int:
        return a + b

    job = add.enqueue(1, 2)
    assert harbor.worker(lease="10s", grace=1).run(until_idle=True) == "idle"

    assert job.result(timeout=5) == 3


async def test_results_come_back_by_the_return_annotation_also_through_get(harbor):
    @harbor.task
    async def when() -> datetime:
        return datetime(2030, 1, 1, tzinfo=UTC)

    job = await when.aenqueue()
    await harbor.worker().arun(until_idle=True)

    assert await job.aresult() == datetime(2030, 1, 1, tzinfo=UTC)
    assert await (await harbor.aget(job.id)).aresult() == datetime(2030, 1, 1, tzinfo=UTC)


async def test_a_codec_of_the_harbors_own_is_used_both_ways():
    harbor = Harbor("memory://", codec=MsgpackCodec())

    @harbor.task
    async def double(data: bytes) -> bytes:
        return data * 2

    job = await double.aenqueue(b"\xff\x00")
    await harbor.worker().arun(until_idle=True)

    assert await job.aresult() == b"\xff\x00\xff\x00"
    assert job.record.headers == {CODEC_HEADER: "msgpack"}


def test_a_worker_may_serve_some_queues_only(harbor):
    assert harbor.worker(["mail"], concurrency=2, kind="gpu").options.claimed_lanes == ("gpu", "any")


async def test_a_harbor_serves_one_event_loop_after_the_other():
    harbor = Harbor("memory://")

    @harbor.task
    def task() -> None: ...

    def in_a_loop_of_its_own():
        return asyncio.run(task.aenqueue())

    first = await asyncio.to_thread(in_a_loop_of_its_own)
    second = await asyncio.to_thread(in_a_loop_of_its_own)

    assert {job.id for job in (await harbor.client.afind()).jobs} == {first.id, second.id}
    await harbor.aclose()


def test_event_loops_that_are_over_are_forgotten():
    harbor = Harbor("memory://")

    for _ in range(5):
        asyncio.run(harbor.client.adriver())

    assert len(harbor.client._connections.by_loop) == 1


async def test_async_with_opens_and_closes():
    driver = MemoryDriver()
    async with Harbor(driver=driver) as harbor:
        handle = await harbor.client.adriver()
        assert handle is not driver
        assert handle._is_open
    assert not handle._is_open


async def test_many_tasks_opening_at_once_open_one_handle():
    harbor = Harbor("memory://")

    handles = await asyncio.gather(*(harbor.client.adriver() for _ in range(20)))

    assert len(set(map(id, handles))) == 1


def test_an_unknown_task_is_named():
    with pytest.raises(UnknownTask, match="'nothing'"):
        Harbor("memory://").tasks.get("nothing")


def test_a_harbor_says_what_it_is(harbor):
    assert repr(harbor) == "<Harbor MemoryDriver, 0 tasks>"


# ------------------------------------------------------------------ queues


def test_a_queue_is_paused_configured_and_counted(harbor):
    @harbor.task(queue="mail")
    def task() -> None: ...

    queue = harbor.queue("mail")
    task.enqueue()
    assert queue.pause().paused
    assert queue.rules().paused
    harbor.worker().run(until_idle=True)
    assert queue.counts().ready == 1

    assert queue.configure(max_running=4).max_running == 4
    assert not queue.resume().paused
    harbor.worker().run(until_idle=True)
    assert queue.counts().completed == 1
    assert harbor.queue("*").counts().total == 1
    assert queue.configure(max_running=None).max_running is None


def test_settings_of_another_queue_or_unknown_ones_are_refused(harbor):
    from taskharbor.model.queue import QueueSettings

    assert harbor.queue("mail").configure(QueueSettings(queue="mail", max_running=1)).max_running == 1
    with pytest.raises(InvalidArgument, match="for the queue 'other'"):
        harbor.queue("mail").configure(QueueSettings(queue="other"))
    with pytest.raises(InvalidArgument, match="no queue setting colour"):
        harbor.queue("mail").configure(colour="red")
    with pytest.raises(InvalidArgument, match="not a name"):
        harbor.queue("no spaces")


# ------------------------------------------------------------------ a clock of one's own


async def test_under_a_simulated_clock_time_is_what_the_test_says():
    clock = SimulatedClock()
    harbor = Harbor("memory://", clock=clock)

    @harbor.task
    async def task() -> str:
        return "done"

    job = await task.using(delay="1h").aenqueue()
    await harbor.worker().arun(until_idle=True)
    assert (await job.arefresh()).state is JobState.SCHEDULED

    clock.advance("1h")
    await harbor.worker().arun(until_idle=True)
    assert (await job.arefresh()).record.finished_at == clock.now()


@pytest.mark.parametrize("run_in", ["loop", "thread"])
def test_parameters_may_have_any_name(run_in):
    with Harbor("memory://") as harbor:

        def of(self: int, args: str, kwargs: list[int], function: str = "f") -> list[Any]:
            return [self, args, kwargs, function]

        async def aof(self: int, args: str, kwargs: list[int], function: str = "f") -> list[Any]:
            return [self, args, kwargs, function]

        task = harbor.task(run_in=run_in, name="of")(aof if run_in == "loop" else of)
        by_name = task.enqueue(self=1, args="a", kwargs=[2], function="g")
        by_call = harbor.enqueue_many([task.call(self=3, args="b", kwargs=[])])[0]
        harbor.worker().run(until_idle=True)

        assert by_name.result() == [1, "a", [2], "g"]
        assert by_call.result() == [3, "b", [], "f"]
    if run_in == "thread":
        assert task(self=1, args="a", kwargs=[]) == [1, "a", [], "f"]


def test_what_is_no_url_and_no_function_is_refused():
    with pytest.raises(ConfigurationError, match="Harbor expects the URL of a store as a string, not 5"):
        Harbor(5)  # type: ignore[arg-type]
    harbor = Harbor("memory://")
    with pytest.raises(ConfigurationError, match="goes on a function, not on 5"):
        harbor.task(5)  # type: ignore[call-overload]
    with pytest.raises(ConfigurationError, match=r"'mail': use task\(name=...\)"):
        harbor.task("mail")  # type: ignore[call-overload]


def test_generator_functions_are_refused_as_tasks():
    harbor = Harbor("memory://")

    def rows():
        yield 1

    async def pages():
        yield 1

    for function in (rows, pages):
        with pytest.raises(ConfigurationError, match="generator function"):
            harbor.task(function)


def test_an_update_that_means_nothing_is_refused_before_any_enqueue():
    task = Harbor("memory://").task(nothing_much)

    with pytest.raises(InvalidArgument, match="whenever"):
        task.using(key="k", update=Update(run_at="whenever"))  # type: ignore[arg-type]


def nothing_much() -> None: ...


def test_a_function_of_main_that_wants_a_process_is_refused_with_the_reason():
    harbor = Harbor("memory://")

    def crunch() -> None: ...

    crunch.__module__ = "__main__"
    harbor.task(run_in="process")(crunch)

    with pytest.raises(ConfigurationError, match="defined in __main__"):
        harbor.worker().run(until_idle=True)


def test_failures_for_good_are_passed_to_a_function(harbor):
    failures = []

    @harbor.task(queue="mail", max_attempts=1)
    def boom(n: int) -> None:
        raise RuntimeError("no luck")

    @harbor.on_failure("mail-failed")
    def keep(failed: FailedJob) -> None:
        failures.append(failed)

    harbor.queue("mail").configure(fail_queue="mail-failed")
    job = boom.using(key="k").enqueue(7)
    harbor.worker().run(until_idle=True)

    [failed] = failures
    assert (failed.id, failed.type, failed.queue, failed.key) == (job.id, "boom", "mail", "k")
    assert (failed.payload, failed.error, failed.failure_kind) == (
        b'{"n":7}',
        "RuntimeError: no luck",
        "error",
    )
    assert (failed.attempts, failed.stalls) == (1, 0)
    assert keep.__name__ == "keep"


def test_an_async_function_hears_of_failures_too(harbor):
    failures = []

    @harbor.task(max_attempts=1)
    def boom() -> None:
        raise RuntimeError("no luck")

    @harbor.on_failure("failed")
    async def keep(failed: FailedJob) -> None:
        failures.append(failed.type)

    harbor.queue("*").configure(fail_queue="failed")
    boom.enqueue()
    harbor.worker().run(until_idle=True)

    assert failures == ["boom"]
    with pytest.raises(ConfigurationError, match="goes on a function"):
        harbor.on_failure("failed")("text")


def test_the_waiting_job_of_a_key_is_cancelled_and_a_running_one_is_not(harbor):
    @harbor.task(queue="mail")
    def send() -> None: ...

    job = send.using(key="k").enqueue()

    assert harbor.queue("mail").cancel_waiting("k")
    assert not harbor.queue("mail").cancel_waiting(b"k")
    assert not harbor.client.cancel_waiting("mail", "other")
    assert (job.state, job.record.last_error) == (JobState.CANCELLED, "cancelled while it waited")


def test_a_retry_can_insist_on_a_queue(harbor):
    @harbor.task(queue="mail")
    def send() -> None: ...

    job = send.enqueue()
    job.cancel()

    with pytest.raises(WrongQueue, match="of queue mail, not of other"):
        harbor.client.retry(job.id, queue="other")
    assert harbor.client.retry(job.id, queue="mail").state is JobState.READY


# ------------------------------------------------------------------ a store that is named later


def test_a_lazy_harbor_declares_tasks_and_gets_its_store_later(monkeypatch):
    monkeypatch.setenv("TASKHARBOR_URL", "memory://must-not-be-used")
    harbor = Harbor(None, lazy=True)

    @harbor.cron(every="1h")
    @harbor.task
    def add(a: int = 2, b: int = 3) -> int:
        return a + b

    assert (harbor.is_attached, harbor.url) == (False, None)
    harbor.attach("memory://")
    assert (harbor.is_attached, harbor.url) == (True, "memory://")
    with harbor:
        job = add.enqueue(2, 3)
        harbor.worker().run(until_idle=True)
        assert job.result() == 5
        assert [one.schedule.name for one in harbor.schedules.list()] == ["add"]


def test_a_lazy_harbor_without_a_store_names_the_missing_call():
    harbor = Harbor(lazy=True)

    @harbor.task
    def nothing() -> None: ...

    uses: list[Any] = [
        nothing.enqueue,
        nothing.using(tx=object()).enqueue,
        lambda: harbor.enqueue_many([nothing.call()]),
        lambda: harbor.get("00000000-0000-7000-8000-000000000000"),
        harbor.queue("default").pause,
        harbor.schedules.list,
        harbor.worker,
        harbor.open,
        lambda: asyncio.run(nothing.aenqueue()),
        harbor.driver.migration_scripts,
    ]
    for use in uses:
        with pytest.raises(ConfigurationError, match=r"no store yet: call harbor\.attach\(URL\) first"):
            use()


def test_a_lazy_harbor_takes_no_store_at_once():
    for store in ({"url": "memory://"}, {"driver": MemoryDriver()}):
        with pytest.raises(ConfigurationError, match="named later"):
            Harbor(lazy=True, **store)


def test_a_bad_url_leaves_a_harbor_as_it_was(harbor):
    with pytest.raises(ConfigurationError, match="no driver for"):
        harbor.attach("nothing://here")

    assert harbor.url == "memory://"
    harbor.open()


async def test_a_second_run_of_a_worker_leaves_the_first_one_alone() -> None:
    harbor = Harbor("memory://")

    @harbor.task
    async def greet() -> str:
        return "hello"

    worker = harbor.worker()
    running = asyncio.create_task(worker.arun())
    async with asyncio.timeout(30):
        await (await greet.aenqueue()).aresult()
        with pytest.raises(ConfigurationError, match="already running"):
            await worker.arun()

        assert await (await greet.aenqueue()).aresult() == "hello"
        worker.stop()
        await running
    assert not worker.driver.is_open
    await harbor.aclose()
