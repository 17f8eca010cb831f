"""Workflows as they are put together: shapes, names, and what is refused before anything is stored."""

from __future__ import annotations

from typing import Any

import pytest

from taskharbor import Harbor, JobState
from taskharbor.errors import InvalidArgument, PayloadError, WorkflowError
from taskharbor.model.workflow import NODE_HEADER, REFS_HEADER

harbor = Harbor("memory://")


@harbor.task
def fetch(url: str) -> str:
    return url


@harbor.task
def parse(text: str, limit: int = 5) -> list[str]:
    return text.split()[:limit]


@harbor.task
def store(words: list[str]) -> int:
    return len(words)


@harbor.task
def ping() -> None: ...


@pytest.fixture(autouse=True)
def _empty_store() -> None:
    harbor.attach("memory://")


def by_name(handle: Any) -> dict[str, Any]:
    return {child.record.headers[NODE_HEADER]: child.record for child in handle.children()}


def stored() -> list[Any]:
    return harbor.client.find().jobs


def names_of(ids: tuple[str, ...], jobs: dict[str, Any]) -> list[str]:
    return [name for job_id in ids for name, job in jobs.items() if job.id == job_id]


# ------------------------------------------------------------------ shapes


def test_a_chain_is_stored_in_one_step_each_link_after_the_one_before():
    handle = harbor.chain(fetch.call("a b"), parse, store).enqueue()
    jobs = by_name(handle)
    assert list(jobs) == ["fetch", "parse", "store"]
    assert [job.state for job in jobs.values()] == [JobState.READY, JobState.BLOCKED, JobState.BLOCKED]
    assert names_of(jobs["store"].bonds.after, jobs) == ["parse"]
    assert jobs["parse"].headers[REFS_HEADER] == '{"text":"fetch"}'
    assert handle.state is JobState.BLOCKED
    assert handle.counts.total == 3


def test_a_graph_has_edges_by_data_and_by_name_whatever_the_order_of_its_nodes():
    flow = harbor.workflow("order")
    last = flow.add(store.call(["x"]), after=["parse", "fetch#2"])
    first = flow.add(fetch.call("a"))
    flow.add(parse.call(first.out, limit=2))
    flow.add(fetch.call("b"), optional=True)
    jobs = by_name(flow.enqueue())
    assert names_of(jobs["parse"].bonds.after, jobs) == ["fetch"]
    assert names_of(jobs[last.name].bonds.after, jobs) == ["parse", "fetch#2"]
    assert jobs["fetch#2"].bonds.optional


def test_on_failure_and_always_come_after_every_node():
    flow = harbor.workflow("order")
    flow.add(fetch.call("a"))
    flow.on_failure(ping.call(), name="refund")
    flow.add(fetch.call("b"))
    flow.always(ping.call(), name="unlock")
    jobs = by_name(flow.enqueue())
    assert names_of(jobs["refund"].bonds.after, jobs) == ["fetch", "fetch#2"]
    assert names_of(jobs["unlock"].bonds.after, jobs) == ["fetch", "fetch#2", "refund"]
    assert (jobs["refund"].bonds.when, jobs["unlock"].bonds.when) == ("failure", "over")


def test_a_group_with_callbacks_counts_its_members_in_a_node_of_their_own():
    group = harbor.group(
        [fetch.call(url) for url in "abc"], then=ping.call(), always=ping.call(), tolerate=1, fail_fast=True
    )
    jobs = by_name(group.enqueue())
    assert list(jobs) == ["members", "then", "always"]
    assert jobs["members"].family.total == 3
    assert (jobs["members"].bonds.tolerate, jobs["members"].bonds.fail_fast) == (1, True)
    assert names_of(jobs["then"].bonds.after, jobs) == ["members"]
    assert names_of(jobs["always"].bonds.after, jobs) == ["members", "then"]


def test_a_group_without_callbacks_is_the_parent_of_its_members():
    handle = harbor.group([fetch.call(url) for url in "abc"], name="pages").enqueue()
    assert handle.record.type == "pages"
    assert [child.record.type for child in handle.children()] == ["fetch"] * 3


def test_an_empty_group_is_over_at_once():
    assert harbor.group([]).enqueue().result(timeout="5s") == []


def test_a_map_is_filled_page_by_page_and_closed():
    handle = harbor.map(fetch, (str(number) for number in range(2500)))
    assert handle.refresh().counts.total == 2500
    assert handle.counts.is_done
    assert [child.record.payload for child in handle.children()][:2] == [b'{"url":"0"}', b'{"url":"1"}']


def test_a_map_with_an_idempotency_key_goes_on_where_it_stopped():
    def broken():
        yield from map(str, range(1500))
        raise LookupError

    with pytest.raises(LookupError) as caught:
        harbor.map(fetch, broken(), idempotency_key="m")
    assert "goes on from there" in caught.value.__notes__[0]
    [root] = [job for job in stored() if job.bonds.parent is None]
    assert root.family.total == 1000
    handle = harbor.map(fetch, map(str, range(1200)), idempotency_key="m")
    assert (handle.id, handle.refresh().counts.total) == (root.id, 1200)
    assert harbor.map(fetch, map(str, range(1200)), idempotency_key="m").refresh().counts.total == 1200


def test_a_map_with_a_first_page_that_cannot_be_stored_stores_nothing():
    with pytest.raises(PayloadError) as caught:
        harbor.map(fetch, ["a", 7])

    assert caught.value.__notes__ == ["This is item 1 of the map."]
    assert stored() == []


def test_a_map_that_cannot_be_filled_is_cancelled():
    def items():
        yield from map(str, range(1500))
        yield 7

    with pytest.raises(PayloadError) as caught:
        harbor.map(fetch, items())

    [root] = [job for job in stored() if job.bonds.parent is None]
    assert caught.value.__notes__ == [
        "This is item 1,500 of the map.",
        f"1,000 jobs of map {root.id} were stored before this; it is cancelled.",
    ]
    assert root.family.stopping == "cancel"


def test_the_same_idempotency_key_stores_a_workflow_once():
    first = harbor.chain(fetch.call("a"), parse, idempotency_key="one").enqueue()
    again = harbor.chain(fetch.call("a"), parse, idempotency_key="one").enqueue()
    assert again.id == first.id
    assert len(stored()) == 3


def test_options_of_a_workflow_hold_for_nodes_that_do_not_say_them():
    flow = harbor.workflow("order", queue="slow", priority=3, headers={"tenant": "7"})
    flow.add(fetch.call("a"))
    flow.add(fetch.using(queue="fast", priority=1).call("b"), name="own")
    handle = flow.enqueue()
    jobs = by_name(handle)
    assert (jobs["fetch"].queue, jobs["fetch"].priority, jobs["fetch"].headers["tenant"]) == ("slow", 3, "7")
    assert (jobs["own"].queue, jobs["own"].priority) == ("fast", 1)
    assert handle.record.queue == "slow"


async def test_the_async_twins_store_the_same():
    async with Harbor("memory://") as other:
        task = other.task(name="fetch")(fetch.function)
        handle = await other.chain(task.call("a"), task).aenqueue()
        assert len([child async for child in handle.achildren()]) == 2
        mapped = await other.amap(task, ["a", "b"])
        assert (await mapped.arefresh()).counts.total == 2


# ------------------------------------------------------------------ refused


def refused(flow, text: str) -> None:
    with pytest.raises(WorkflowError, match=text):
        flow.enqueue()
    assert stored() == []


def test_a_circle_is_named():
    flow = harbor.workflow("order")
    flow.add(ping.call(), name="pack", after=["label"])
    flow.add(ping.call(), name="label", after=["pack"])
    refused(flow, '"pack" → "label" → "pack" is a circle; remove one of these edges. Nothing was stored')


def test_a_node_after_itself_is_a_circle():
    flow = harbor.workflow("order")
    flow.add(ping.call(), name="pack", after=["pack"])
    refused(flow, '"pack" → "pack" is a circle')


def test_an_unknown_name_suggests_the_nearest():
    flow = harbor.workflow("order")
    flow.add(ping.call(), name="label")
    flow.add(ping.call(), name="ship", after=["lable"])
    refused(flow, 'after names "lable", which this workflow does not have; did you mean "label"')


def test_a_node_of_another_workflow_is_refused():
    other = harbor.workflow("other")
    foreign = other.add(fetch.call("a"))
    flow = harbor.workflow("order")
    flow.add(parse.call(foreign.out))
    refused(flow, "'fetch' is a node of another workflow, 'other'")


def test_two_nodes_of_one_given_name_are_refused():
    flow = harbor.workflow("order")
    flow.add(ping.call(), name="a")
    with pytest.raises(WorkflowError, match="two nodes are named 'a'"):
        flow.add(ping.call(), name="a")


@pytest.mark.parametrize("options", [{"key": "k"}, {"idempotency_key": "k"}])
def test_keys_are_refused(options):
    call = ping.using(**options).call()
    with pytest.raises(InvalidArgument, match="key"):
        harbor.workflow("order").add(call)
    with pytest.raises(InvalidArgument, match="key"):
        harbor.group([call])


def test_more_levels_than_allowed_are_refused():
    inner = flow = harbor.chain(ping.call())
    for _ in range(16):
        outer = harbor.workflow("outer")
        outer.add(flow)
        inner, flow = flow, outer
    assert inner.enqueue().state is JobState.BLOCKED
    harbor.attach("memory://")
    refused(flow, "would be 17 levels deep; 16 are allowed")


def test_too_many_nodes_and_edges_are_refused():
    flow = harbor.workflow("wide")
    nodes = [flow.add(ping.call()) for _ in range(1001)]
    flow.add(ping.call(), name="last", after=nodes)
    refused(flow, "'last' comes after 1,001 nodes; 1,000 are allowed")
    with pytest.raises(WorkflowError, match=r"Use harbor\.map for more"):
        harbor.group(ping.call() for _ in range(10_000))


def test_an_argument_of_the_wrong_type_is_refused_beside_a_result():
    first = harbor.workflow("order").add(fetch.call("a"))
    with pytest.raises(PayloadError, match="limit"):
        parse.call(first.out, limit="many")  # type: ignore[arg-type]


def test_a_result_inside_an_argument_is_refused():
    first = harbor.workflow("order").add(fetch.call("a"))
    with pytest.raises(PayloadError, match="words"):
        store.call([first.out])


def test_a_call_with_a_result_of_a_node_cannot_be_enqueued_alone():
    first = harbor.workflow("order").add(fetch.call("a"))
    with pytest.raises(PayloadError):
        harbor.enqueue_many([parse.call(first.out)])
    assert stored() == []


def test_a_chain_begins_with_a_call():
    with pytest.raises(WorkflowError, match="begins with a call"):
        harbor.chain(fetch, parse)  # type: ignore[call-overload]
