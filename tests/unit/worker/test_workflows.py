"""Workflows run by a real worker: results as arguments, callbacks, durable steps, children, events, sleep."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from taskharbor import Harbor, JobContext, JobState, RetryPolicy
from taskharbor.errors import (
    BrokenBond,
    ConfigurationError,
    EventTimeout,
    JobFailed,
    NotAllowedInState,
    WorkflowError,
)
from taskharbor.events import AttemptFinished, StepRan
from taskharbor.testing import SimulatedClock, drain

ran: list[Any] = []


class Approval(msgspec.Struct):
    sites: list[str]


@pytest.fixture
def harbor() -> Any:
    ran.clear()
    with Harbor("memory://", clock=SimulatedClock(), retry=RetryPolicy(max_attempts=3)) as made:
        yield made


def tasks(harbor: Harbor) -> Any:
    """The tasks that most tests need, by name."""

    @harbor.task
    async def double(number: int) -> int:
        ran.append(number)
        return 2 * number

    @harbor.task
    def add(numbers: list[int], more: int = 0) -> int:  # in a thread
        return sum(numbers) + more

    @harbor.task
    async def fails(text: str = "no") -> int:
        ran.append("fails")
        raise ValueError(text)

    @harbor.task
    async def note(text: str) -> str:
        ran.append(text)
        return text

    class Tasks: ...

    made: Any = Tasks()
    made.double, made.add, made.fails, made.note = double, add, fails, note
    return made


# ------------------------------------------------------------------ graphs


def test_a_chain_hands_results_on(harbor):
    of = tasks(harbor)
    job = harbor.chain(of.double.call(4), of.double, of.double).enqueue()
    drain(harbor)
    assert job.result(timeout=1) == 32
    assert ran == [4, 8, 16]


def test_results_of_several_nodes_and_of_a_thread_handler(harbor):
    of = tasks(harbor)
    flow = harbor.workflow("sums")
    two, three = flow.add(of.double.call(1)), flow.add(of.double.call(3), name="three")
    group = flow.add(harbor.group([of.double.call(n) for n in (5, 6)]), name="many")
    total = flow.add(of.add.call(group.out, more=three.out))
    flow.add(of.note.call("end"), after=[two, total])
    flow.returns(total)
    job = flow.enqueue()
    drain(harbor)
    assert job.result(timeout=1) == 28
    assert job.refresh().counts.failed == 0


def test_a_group_calls_back_once_with_results_by_reference(harbor):
    of = tasks(harbor)

    @harbor.task
    async def total(ctx: JobContext) -> int:
        return sum([result async for result in ctx.aresults()])

    group = harbor.group(
        [of.double.call(n) for n in range(5)], then=total.call(), on_failure=of.note.call("bad")
    )
    job = group.enqueue()
    drain(harbor)
    assert job.result(timeout=1) == 20
    assert "bad" not in ran


def test_a_group_that_fails_runs_its_failure_callback_and_fails(harbor):
    of = tasks(harbor)
    job = harbor.group(
        [of.double.call(1), of.fails.using(max_attempts=1).call()],
        then=of.note.call("then"),
        on_failure=of.note.call("bad"),
        always=of.note.call("always"),
    ).enqueue()
    drain(harbor)
    with pytest.raises(JobFailed, match="1 of"):
        job.result(timeout=1)
    assert sorted(map(str, ran)) == ["1", "always", "bad", "fails"]


def test_an_optional_node_may_fail_and_its_result_is_refused_with_its_end(harbor):
    of = tasks(harbor)
    flow = harbor.workflow("order")
    bad = flow.add(of.fails.using(max_attempts=1).call(), optional=True)
    flow.add(of.note.call("after it"), after=[bad])
    flow.add(of.double.call(bad.out), name="needs")
    job = flow.enqueue()
    drain(harbor)
    children = {child.record.headers["taskharbor.node"]: child.record for child in job.children()}
    assert "after it" in ran
    assert children["needs"].failure_kind == "unrecoverable"
    assert "argument 'number' is the result of 'fails', which is failed" in children["needs"].last_error


def test_on_failure_runs_and_retry_goes_on_from_what_failed(harbor):
    of = tasks(harbor)
    works: list[bool] = []

    @harbor.task(max_attempts=1)
    async def charge(order: int) -> int:
        ran.append("charge")
        if not works:
            raise ValueError("card declined")
        return order

    flow = harbor.workflow("order")
    first = flow.add(of.note.call("reserve"))
    paid = flow.add(charge.call(7), after=[first])
    flow.add(of.double.call(paid.out))
    flow.on_failure(of.note.call("refund"), name="refund")
    job = flow.enqueue()
    drain(harbor)
    assert ran == ["reserve", "charge", "refund"]
    assert job.refresh().state is JobState.FAILED
    works.append(True)
    job.retry()
    drain(harbor)
    assert job.refresh().state is JobState.COMPLETED
    assert ran == ["reserve", "charge", "refund", "charge", 7]


def test_a_map_in_a_workflow_makes_one_child_per_item_at_run_time(harbor):
    of = tasks(harbor)

    @harbor.task
    async def listing(count: int) -> list[int]:
        return list(range(count))

    flow = harbor.workflow("resize")
    names = flow.add(listing.call(1200))
    sizes = flow.map(of.double, over=names.out)
    flow.add(of.add.call(sizes.out))
    job = flow.enqueue()
    drain(harbor, max_attempts=2000)
    assert job.result(timeout=1) == 2 * sum(range(1200))


def test_a_map_from_outside_returns_its_results_in_order(harbor):
    of = tasks(harbor)
    job = harbor.map(of.double, range(30))
    drain(harbor)
    assert job.result(timeout=1) == [2 * n for n in range(30)]
    assert list(job.results())[-1] == 58


def test_an_event_node_waits_for_a_person(harbor):
    of = tasks(harbor)
    flow = harbor.workflow("order")
    packed = flow.add(of.note.call("packed"))
    approval = flow.event("approval", after=[packed], timeout="3d")
    flow.add(of.note.call(approval.out), name="ship")
    job = flow.enqueue()
    drain(harbor, within="1h")
    with pytest.raises(WorkflowError, match="has no event 'aproval'"):
        job.send("aproval", "yes")
    job.send("approval", "yes")
    drain(harbor)
    assert ran == ["packed", "yes"]
    assert job.refresh().state is JobState.COMPLETED
    with pytest.raises(BrokenBond, match="is over"):
        job.send("approval", "again")


def test_an_event_may_come_before_its_node_runs_and_the_first_wins(harbor):
    of = tasks(harbor)
    flow = harbor.workflow("order")
    approval = flow.event("approval", after=[flow.add(of.note.call("packed"))])
    flow.add(of.note.call(approval.out), name="ship")
    job = flow.enqueue()
    job.send("approval", "first")
    with pytest.raises(NotAllowedInState):
        job.send("approval", "second")
    drain(harbor)
    assert ran == ["packed", "first"]


def test_a_workflow_past_its_deadline_fails_and_runs_what_is_due_always(harbor):
    of = tasks(harbor)
    flow = harbor.workflow("order", deadline="1h")
    flow.event("approval")
    flow.always(of.note.call("unlock"))
    job = flow.enqueue()
    drain(harbor)
    assert ran == ["unlock"]
    assert (job.refresh().state, job.record.failure_kind) == (JobState.FAILED, "timeout")


def test_a_workflow_by_the_clock_makes_its_nodes_when_it_runs(harbor):
    of = tasks(harbor)
    harbor.cron("0 3 * * *", call=harbor.chain(of.double.call(2), of.double, name="nightly"))
    drain(harbor, within="1d")
    assert ran == [2, 4]


# ------------------------------------------------------------------ durable handlers


def test_steps_run_once_and_a_handler_goes_on_where_it_stopped(harbor):
    of = tasks(harbor)
    tries: list[int] = []
    steps: list[tuple[str, bool]] = []
    harbor.events.listen(lambda event: steps.append((event.name, event.remembered)), StepRan)

    @harbor.task
    async def publish(ctx: JobContext, draft: int) -> str:
        text = await ctx.astep("render", render, draft)
        tries.append(ctx.attempt)
        if len(tries) < 3:
            raise OSError("try again")
        await ctx.astep("pay", pay, ctx.idempotency_key("pay"))
        answer = await ctx.aevent("approval", Approval, timeout="3d")
        await ctx.asleep("embargo", "1h")
        links = await ctx.agather([of.double.call(len(site)) for site in answer.sites])
        await ctx.aspawn(of.note.call("audit"))
        return f"{text} {links}"

    def render(draft: int) -> str:
        ran.append("render")
        return f"draft {draft}"

    async def pay(key: str) -> None:
        ran.append(key)

    job = publish.enqueue(7)
    drain(harbor, within="2h")
    assert ran == ["render", f"{job.id}/pay"]
    started = harbor.clock.now()
    job.send("approval", {"sites": ["a", "bcd"]})
    drain(harbor)
    assert job.result(timeout=1) == "draft 7 [2, 6]"
    assert job.refresh().steps == ["render", "pay", "embargo"]
    assert (harbor.clock.now() - started).total_seconds() >= 3600
    assert sorted(map(str, ran[2:])) == ["1", "3", "audit"]
    assert steps.count(("render", False)) == 1
    assert ("render", True) in steps


def test_a_new_step_is_progress_so_attempts_count_failures_in_a_row(harbor):
    @harbor.task(max_attempts=2)
    async def careful(ctx: JobContext) -> str:
        for number in range(4):
            await ctx.astep(f"step {number}", flaky, number)
        return "done"

    seen: list[int] = []

    def flaky(number: int) -> int:
        seen.append(number)
        if seen.count(number) < 2:
            raise OSError
        return number

    job = careful.enqueue()
    drain(harbor)
    assert job.result(timeout=1) == "done"
    assert seen == [0, 0, 1, 1, 2, 2, 3, 3]


def test_blocking_twins_in_a_thread(harbor):
    of = tasks(harbor)

    @harbor.task
    def report(ctx: JobContext) -> int:
        first = ctx.step("first", len, "abc")
        ctx.sleep("pause", "10m")
        mapped = ctx.map(of.double, [1, 2, 3], tolerate=1)
        [four, six] = ctx.gather([of.double.call(2), of.double.call(3)])
        ctx.spawn(of.note.call("audit"))
        more = ctx.call(of.double.call(10)) + int(ctx.event("more"))
        return int(first + four + six + sum(mapped.results()) + more)

    job = report.enqueue()
    drain(harbor)
    job.send("more", 100)
    drain(harbor)
    assert job.result(timeout=1) == 3 + 10 + 12 + 20 + 100
    assert "audit" in ran


def test_a_blocking_twin_in_the_loop_is_refused(harbor):
    @harbor.task
    async def wrong(ctx: JobContext) -> None:
        ctx.step("a", len, "a")

    job = wrong.using(max_attempts=1).enqueue()
    drain(harbor)
    with pytest.raises(JobFailed, match=r"use `await ctx\.astep"):
        job.result(timeout=1)


def test_a_map_of_many_items_is_summed_up_by_pages(harbor):
    of = tasks(harbor)

    @harbor.task
    async def measure(ctx: JobContext, count: int) -> int:
        sizes = await ctx.amap(of.double, iter(range(count)))
        assert sizes.counts.total == count
        return sum([size async for size in sizes.aresults()])

    job = measure.enqueue(2300)
    drain(harbor, max_attempts=3000, concurrency=100)
    assert job.result(timeout=1) == 2 * sum(range(2300))


def test_a_map_that_stopped_half_way_goes_on_behind_its_last_child(harbor):
    of = tasks(harbor)
    tries: list[int] = []

    @harbor.task
    async def measure(ctx: JobContext) -> int:
        def items():
            for number in range(2500):
                if number == 1700 and not tries:
                    tries.append(1)
                    raise OSError
                yield [number]

        sums = await ctx.amap(of.add, items(), name="sums")
        return sum([size async for size in sums.aresults()])

    job = measure.enqueue()
    drain(harbor, max_attempts=3000, concurrency=100)
    assert job.result(timeout=1) == sum(range(2500))


def test_chunks_of_items(harbor):
    of = tasks(harbor)

    @harbor.task
    async def measure(ctx: JobContext) -> list[int]:
        sums = await ctx.amap(of.add, range(10), chunk=4)
        return [size async for size in sums.aresults()]

    job = measure.enqueue()
    drain(harbor)
    assert job.result(timeout=1) == [6, 22, 17]


def test_an_unhandled_failure_of_a_child_fails_its_parent_at_once(harbor):
    of = tasks(harbor)

    @harbor.task
    async def parent(ctx: JobContext) -> int:
        ran.append("parent")
        return await ctx.acall(of.fails.using(max_attempts=1).call("broken"))

    job = parent.enqueue()
    drain(harbor)
    assert job.refresh().record.failure_kind == "child_failed"
    assert "broken" in job.record.last_error
    assert ran == ["parent", "fails", "parent"]


def test_the_failure_of_a_child_can_be_handled(harbor):
    of = tasks(harbor)

    @harbor.task
    async def parent(ctx: JobContext) -> str:
        try:
            await ctx.acall(of.fails.using(max_attempts=1).call("broken"))
        except JobFailed as error:
            return f"handled {error.state}"
        return "?"

    job = parent.enqueue()
    drain(harbor)
    assert job.result(timeout=1) == "handled failed"


def test_retry_of_a_parent_runs_its_failed_child_and_then_goes_on(harbor):
    works: list[bool] = []

    @harbor.task(max_attempts=1)
    async def child() -> int:
        ran.append("child")
        if not works:
            raise ValueError("not yet")
        return 5

    @harbor.task
    async def parent(ctx: JobContext) -> int:
        base = await ctx.astep("base", lambda: 10)
        return int(base + await ctx.acall(child.call()))

    job = parent.enqueue()
    drain(harbor)
    assert job.refresh().state is JobState.FAILED
    works.append(True)
    job.retry()
    drain(harbor)
    assert job.result(timeout=1) == 15
    assert ran == ["child", "child"]


def test_an_event_that_does_not_come_in_time(harbor):
    @harbor.task
    async def waits(ctx: JobContext) -> str:
        try:
            await ctx.aevent("approval", timeout="2d")
        except EventTimeout as error:
            return error.name
        return "?"

    job = waits.enqueue()
    drain(harbor)
    assert job.result(timeout=1) == "approval"
    with pytest.raises(BrokenBond):
        job.send("approval")


def test_a_child_of_another_type_under_the_same_name_is_an_error(harbor):
    of = tasks(harbor)
    calls = [of.double.call(1), of.note.call("x")]

    @harbor.task(max_attempts=1)
    async def parent(ctx: JobContext) -> Any:
        return await ctx.acall(calls.pop(0), name="one")

    job = parent.enqueue()
    drain(harbor)
    assert "a child named 'one' is stored, of double and not of note" in job.refresh().record.last_error


def test_a_keyed_job_cannot_wait(harbor):
    @harbor.task
    async def keyed(ctx: JobContext) -> None:
        await ctx.asleep("a while", "1h")

    job = keyed.using(key="k").enqueue()
    drain(harbor)
    assert (job.refresh().state, job.record.failure_kind) == (JobState.FAILED, "unrecoverable")
    assert "has a key" in job.record.last_error


def test_cancelling_a_parked_handler_cancels_its_children(harbor):
    of = tasks(harbor)

    @harbor.task
    async def parent(ctx: JobContext) -> int:
        return await ctx.acall(of.double.using(delay="1h").call(1))

    job = parent.enqueue()
    drain(harbor, within="1m")
    job.cancel()
    drain(harbor)
    assert job.refresh().state is JobState.CANCELLED
    assert [child.state for child in job.children()] == [JobState.CANCELLED]
    assert ran == []


def test_waiting_for_a_result_inside_a_handler_needs_a_timeout(harbor):
    of = tasks(harbor)

    @harbor.task(max_attempts=1)
    async def parent() -> int:
        return int(await (await of.double.aenqueue(1)).aresult())

    job = parent.enqueue()
    drain(harbor)
    assert "use `await ctx.acall" in job.refresh().record.last_error


def test_a_workflow_as_a_child_of_a_handler(harbor):
    of = tasks(harbor)

    @harbor.task
    async def parent(ctx: JobContext) -> int:
        return int(1 + await ctx.acall(harbor.chain(of.double.call(3), of.double)))

    job = parent.enqueue()
    drain(harbor)
    assert job.result(timeout=1) == 13


def test_parks_are_reported_as_such_and_make_no_history(harbor):
    outcomes: list[str] = []
    harbor.events.listen(lambda event: outcomes.append(event.outcome), AttemptFinished)

    @harbor.task
    async def sleeper(ctx: JobContext) -> None:
        await ctx.asleep("a while", "1h")

    job = sleeper.enqueue()
    drain(harbor)
    assert outcomes == ["parked", "completed"]
    assert [one.outcome for one in job.refresh().record.history] == ["completed"]


def test_steps_outside_of_the_workers_process_are_refused():
    ctx = JobContext.__new__(JobContext)
    with pytest.raises(ConfigurationError, match="the worker's own process"):
        ctx.sleep("a", "1s")


def test_a_handler_that_waits_will_run_again_for_layers_around_it(harbor):
    seen: list[tuple[str, bool]] = []

    @harbor.task
    async def sleeper(ctx: JobContext) -> None:
        try:
            await ctx.asleep("a while", "1h")
        except Exception:  # noqa: BLE001 - what users write; Parked passes
            seen.append(("Exception", True))
        except BaseException as error:
            seen.append((type(error).__name__, ctx.will_retry(error)))
            raise

    sleeper.enqueue()
    drain(harbor)
    assert seen == [("Parked", True)]
