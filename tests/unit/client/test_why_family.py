"""Why a job of a workflow waits, for every way to wait."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from taskharbor import Harbor, JobContext
from taskharbor.client.why import Reason, look_into
from taskharbor.drivers.messages import Claim
from taskharbor.testing import SimulatedClock, drain


@pytest.fixture
def harbor() -> Any:
    with Harbor("memory://", clock=SimulatedClock()) as made:
        yield made


def asked(harbor: Harbor, job_id: str) -> Any:
    async def ask() -> Any:
        return await look_into(await harbor.client.adriver(), job_id, now=harbor.client.clock.now())

    return harbor.client._block(ask)


def by_name(job: Any) -> dict[str, Any]:
    return {child.record.headers["taskharbor.node"]: child for child in job.children()}


def test_a_node_names_what_it_comes_after_and_the_workflow_its_children(harbor: Harbor) -> None:
    @harbor.task
    async def pack() -> None: ...

    flow = harbor.workflow("order")
    first = flow.add(pack.call())
    later = flow.add(pack.using(delay="1h").call(), name="label")
    flow.add(pack.call(), name="ship", after=[first, later])
    job = flow.enqueue()

    ship = asked(harbor, by_name(job)["ship"].id)
    assert (ship.reason, ship.text) == (
        Reason.AFTER,
        "waits for 2 of 2: pack (ready), label (scheduled, due in 1h)",
    )
    whole = asked(harbor, job.id)
    assert whole.reason is Reason.CHILDREN
    assert whole.text.startswith("waits for 3 of 3 children: pack (ready)")


def test_a_job_that_is_waited_for_says_that_its_queue_is_paused(harbor: Harbor) -> None:
    @harbor.task(queue="print")
    async def label() -> None: ...

    @harbor.task
    async def pack() -> None: ...

    flow = harbor.workflow("order")
    flow.add(pack.call(), name="ship", after=[flow.add(pack.call()), flow.add(label.call())])
    job = flow.enqueue()
    ship = by_name(job)["ship"].id
    harbor.queue("print").pause()
    assert asked(harbor, ship).text == "waits for 2 of 2: pack (ready), label (ready; queue print is paused)"
    assert "label (ready; queue print is paused)" in asked(harbor, job.id).text

    harbor.queue("*").pause()
    assert asked(harbor, ship).text.startswith("waits for 2 of 2: pack (ready; the whole harbor is paused)")


def test_a_job_that_is_waited_for_says_who_runs_it_since_when(harbor: Harbor) -> None:
    @harbor.task
    async def pack() -> None: ...

    flow = harbor.workflow("order")
    flow.add(pack.call(), name="ship", after=[flow.add(pack.call())])
    job = flow.enqueue()

    async def claim() -> None:
        driver = await harbor.client.adriver()
        asking = Claim(queues=("default",), worker_id="w1", limit=1, lease_for=timedelta(minutes=1))
        assert (await driver.reserve(asking, now=harbor.client.clock.now())).jobs

    harbor.client._block(claim)
    harbor.client.clock.advance(3)  # type: ignore[attr-defined]
    assert asked(harbor, by_name(job)["ship"].id).text == "waits for 1 of 1: pack (running on w1 for 3s)"


def test_a_family_counts_the_children_that_failed(harbor: Harbor) -> None:
    @harbor.task(max_attempts=1)
    async def send(address: str) -> None:
        if not address:
            raise ValueError("no address")

    later = send.using(delay="1h")
    job = harbor.group([send.call(""), send.call(""), send.call("a"), later.call("b")], tolerate=2).enqueue()
    drain(harbor, within="1m")
    answer = asked(harbor, job.id)
    assert answer.text == "waits for 1 of 4 children, 2 failed: send (scheduled, due in 1h)"


def test_a_handler_that_waits_for_an_event_says_until_when(harbor: Harbor) -> None:
    @harbor.task
    async def publish(ctx: JobContext) -> None:
        await ctx.aevent("approval", timeout="3d")

    job = publish.enqueue()
    drain(harbor, within="1h")
    answer = asked(harbor, job.id)
    assert answer.reason is Reason.EVENT
    assert answer.text == "waits for the event approval until 2030-01-04 00:00:00 UTC"
    assert answer.hint == f"send it: taskharbor workflows send {job.id} approval"
    [event] = job.children()
    assert asked(harbor, event.id).reason is Reason.EVENT


def test_a_handler_that_waits_for_children_names_them(harbor: Harbor) -> None:
    @harbor.task
    async def child() -> None: ...

    @harbor.task
    async def parent(ctx: JobContext) -> None:
        await ctx.agather([child.using(delay="1h").call(), child.using(delay="2h").call()])

    job = parent.enqueue()
    drain(harbor, within="1m")
    answer = asked(harbor, job.id)
    assert (answer.reason, answer.text) == (
        Reason.CHILDREN,
        "its handler waits for children: child (scheduled, due in 1h), child#2 (scheduled, due in 2h)",
    )


def test_a_map_that_is_still_filled_says_so(harbor: Harbor) -> None:
    @harbor.task
    def size(name: str) -> None: ...

    def broken():
        yield from ["a"] * 1000
        raise LookupError

    with pytest.raises(LookupError):  # its key lets a later call go on, so the map stays open
        harbor.map(size, broken(), idempotency_key="sizes")
    [root] = [job for job in harbor.client.find().jobs if job.type == "taskharbor.map"]
    answer = asked(harbor, root.id)
    assert answer.reason is Reason.CHILDREN
    assert answer.text.startswith("is filled with children, 1,000 so far")


def test_a_workflow_that_is_being_stopped_says_so(harbor: Harbor) -> None:
    @harbor.task
    async def clean_up() -> None: ...

    flow = harbor.workflow("order")
    flow.add(clean_up.using(delay="1h").call())
    flow.always(clean_up.call(), name="always")
    job = flow.enqueue()
    job.cancel()
    answer = asked(harbor, job.id)
    assert (answer.reason, answer.text) == (
        Reason.STOPPING,
        "is being stopped and waits for 1 of its children",
    )


def test_skipped_and_child_failed_are_explained(harbor: Harbor) -> None:
    @harbor.task(max_attempts=1)
    async def fails() -> None:
        raise ValueError("no")

    flow = harbor.workflow("order")
    flow.add(fails.call(), name="last", after=[flow.add(fails.call(), name="first")])
    job = flow.enqueue()
    drain(harbor)
    assert "skipped: fails failed" in asked(harbor, by_name(job)["last"].id).text
    answer = asked(harbor, job.id)
    assert "children failed" in answer.text
    assert answer.hint == f"go on from what failed: taskharbor workflows retry {job.id}"
