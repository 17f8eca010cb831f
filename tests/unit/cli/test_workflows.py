"""taskharbor workflows, on a memory store in this process."""

from __future__ import annotations

from typing import Any

import pytest

from taskharbor import Harbor, JobContext
from taskharbor.testing import drain
from tests.unit.cli.conftest import Shell

broken: list[bool] = []


@pytest.fixture
def harbor(shell: Shell) -> Any:
    broken[:] = [True]
    with Harbor(shell.url) as made:
        yield made


def order(harbor: Harbor) -> Any:
    @harbor.task(max_attempts=1)
    async def pay(cents: int) -> int:
        if broken:
            raise ValueError("card declined")
        return cents

    @harbor.task
    async def ship(cents: int, approval: dict[str, str]) -> str:
        return f"{cents} {approval['by']}"

    flow = harbor.workflow("order")
    paid = flow.add(pay.call(5))
    flow.add(ship.call(paid.out, flow.event("approval", after=[paid]).out))
    return flow.enqueue()


def test_a_list_shows_roots_with_their_progress(shell: Shell, harbor: Harbor) -> None:
    shell.enqueue()
    job = order(harbor)
    listed = shell("workflows", "list", "--json").json["items"]
    assert listed == [{"id": job.id, "type": "order", "state": "blocked", "done": "0/3", "failed": 0}]


def test_a_tree_and_a_graph_show_every_node(shell: Shell, harbor: Harbor) -> None:
    job = order(harbor)
    tree = shell("workflows", "show", job.id).out.splitlines()
    assert [line.split()[0] for line in tree] == ["order", "pay", "approval", "ship"]
    text = shell("workflows", "graph", job.id).out.splitlines()
    assert text[2] == "ship  blocked  after pay, approval"
    assert '" -> "' in shell("workflows", "graph", job.id, "--format", "dot").out
    found = shell("workflows", "graph", job.id, "--format", "json").json
    assert [node["name"] for node in found["nodes"]] == ["pay", "approval", "ship"]
    assert len(found["edges"]) == 3


def test_retry_goes_on_from_what_failed_and_send_brings_the_event(shell: Shell, harbor: Harbor) -> None:
    job = order(harbor)
    drain(harbor)
    assert shell("workflows", "wait", job.id).code == 7
    assert "go on from what failed" in shell("jobs", "why", job.id).out
    dry = shell("workflows", "retry", job.id, "--dry-run", "--json").json["would_retry"]
    assert [line.split()[0] for line in dry] == ["pay", "approval", "ship"]
    broken.clear()
    assert "3 jobs run again" in shell("workflows", "retry", job.id).out
    drain(harbor)
    assert shell("workflows", "send", job.id, "approval", "by=Ada").code == 0
    drain(harbor)
    assert job.result(timeout=5) == "5 Ada"
    assert shell("workflows", "wait", job.id).code == 0


def test_cancel_takes_the_whole_family(shell: Shell, harbor: Harbor) -> None:
    job = order(harbor)
    assert shell("workflows", "cancel", job.id).out.strip() == f"{job.id}: cancelled"
    assert {child.state.value for child in job.children()} == {"cancelled"}


def test_why_names_the_event_that_a_handler_waits_for(shell: Shell, harbor: Harbor) -> None:
    @harbor.task
    async def publish(ctx: JobContext) -> str:
        return str(await ctx.aevent("approval", timeout="1h"))

    job = publish.enqueue()
    drain(harbor)
    why = shell("jobs", "why", job.id).out
    assert "waits for the event approval" in why
    assert why.count("until") == 1
    assert shell("workflows", "send", job.id, "approval", "no-field").code == 2
    assert "does not wait for it yet" in shell("workflows", "send", job.id, "aproval").out
    sent = shell("workflows", "send", job.id, "approval", "boxes=2")
    assert sent.out.strip() == f"approval was sent to {job.id}"
    again = shell("workflows", "send", job.id, "approval", "boxes=3")
    assert f"event 'approval' of job {job.id} is completed: the first event of a name counts" in again.err
    drain(harbor)
    assert job.result(timeout=5) == "{'boxes': 2}"
