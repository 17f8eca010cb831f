"""Results and notes that are too large or too many: what happened, and what to do instead."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from taskharbor import Harbor, JobContext
from taskharbor.drivers.family_results import result_of
from taskharbor.errors import PayloadError, StepError
from taskharbor.model.bonds import Family
from taskharbor.model.outcome import Failed
from taskharbor.testing import SimulatedClock, drain
from taskharbor.worker.outcomes import success_of

MIB = 1024 * 1024


@pytest.fixture
def harbor() -> Any:
    with Harbor("memory://", clock=SimulatedClock()) as made:
        yield made


def test_a_result_that_is_too_large_says_how_large() -> None:
    outcome = success_of(None, lambda _: bytes(3 * MIB), MIB)

    assert isinstance(outcome, Failed)
    assert outcome.reason == (
        "the result of 3,145,728 bytes cannot be kept: 1,048,576 are allowed; "
        "store it elsewhere and return a reference"
    )


def test_more_results_than_a_list_takes_are_read_by_pages(harbor: Harbor) -> None:
    @harbor.task
    def size(name: str) -> int:
        return len(name)

    job = harbor.map(size, ["a", "b"])
    drain(harbor)
    assert job.result() == [1, 1]
    million = replace(job.refresh().record, family=Family(total=1_000_000))

    async def ask() -> Any:
        driver = await harbor.client.adriver()
        return await result_of(driver, million, lambda record: record.result, lambda: None)

    with pytest.raises(PayloadError) as refused:
        harbor.client._block(ask)
    assert str(refused.value) == (
        'the 1,000,000 results of "taskharbor.map" do not fit into an argument or a list; '
        "read them page by page: ctx.aresults(name), or handle.aresults()"
    )


def test_arguments_of_more_than_eight_mebibytes_fail_for_good(harbor: Harbor) -> None:
    @harbor.task
    async def page() -> str:
        return "x" * (MIB - 2)

    @harbor.task
    async def bind(pages: list[str]) -> int:
        return len(pages)

    def bound(count: int) -> Any:
        flow = harbor.workflow(f"book-of-{count}")
        pages = flow.add(harbor.group([page.call() for _ in range(count)]), name="pages")
        flow.add(bind.call(pages=pages.out))
        job = flow.enqueue()
        drain(harbor)
        [node] = [child.record for child in job.children() if child.record.type == bind.name]
        return node

    assert bound(8).last_error is None
    assert bound(9).last_error == (
        "Unrecoverable: argument 'pages' cannot be read: the results that are arguments of one job take over "
        "8,388,608 bytes; read them with ctx.aresults(name), or store them elsewhere and return references"
    )


def test_the_note_behind_the_thousandth_names_the_way_out(harbor: Harbor) -> None:
    @harbor.task
    async def count(ctx: JobContext) -> str:
        for number in range(1_000):
            await ctx.astep(f"step {number}", lambda: None)
        with pytest.raises(StepError) as refused:
            await ctx.astep("one more", lambda: None)
        return str(refused.value)

    job = count.enqueue()
    drain(harbor)
    assert job.result() == (
        "this job has 1,000 notes; give parts of the work to children (ctx.acall), which have their own"
    )
