"""Head starts: a copy is offered to the faster workers first."""

from __future__ import annotations

import pytest

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Speculated
from taskharbor.errors import InvalidArgument
from taskharbor.model.job import Avoid, JobRecord
from taskharbor.model.speculation import HeadStart
from taskharbor.testing.conformance.kit import (
    HOUR,
    MICROSECOND,
    MINUTE,
    OTHER_WORKER,
    SECOND,
    START,
    WORKER,
    enqueue_one,
    reserve,
    running,
)


async def copy_with_head_start(driver: Driver, *slower: str) -> tuple[JobRecord, str]:
    """(the running original, the id of its copy, which these workers may not have for a second)"""
    original = await running(driver, lease_for=HOUR)
    start = HeadStart(slower=slower, span=SECOND)
    answer = await driver.speculate(original.id, head_start=start, now=START)
    assert isinstance(answer, Speculated), answer
    return original, answer.copy_id


async def test_a_slower_worker_leaves_a_copy_to_the_others_for_a_while(driver: Driver) -> None:
    """R003-38: to the microsecond, and then it may have it too."""
    _, copy_id = await copy_with_head_start(driver, "slow-a", "slow-b", "slow-c")

    for name in ("slow-a", "slow-b", "slow-c"):
        before = START + SECOND - MICROSECOND
        assert await reserve(driver, now=before, worker_id=name, limit=10) == [], name

    taken = await reserve(driver, now=START + SECOND, worker_id="slow-b", limit=10)
    assert [job.id for job in taken] == [copy_id]


@pytest.mark.parametrize("name", ["fast", "slow", "slow-ab", "low-a", "slow-a b", "1", "sloẃ-a"])
async def test_who_is_not_called_slower_has_a_copy_at_once(driver: Driver, name: str) -> None:
    """R003-38: names count as a whole; an unknown worker is not held back."""
    _, copy_id = await copy_with_head_start(driver, "slow-a", "slow-b", "slow-é 🐍:1")

    assert await reserve(driver, worker_id="slow-é 🐍:1", limit=10) == []
    assert [job.id for job in await reserve(driver, worker_id=name, limit=10)] == [copy_id]


@pytest.mark.parametrize("slower", [(), ("slow-a", "slow-é 🐍:1")], ids=["nobody", "two"])
async def test_the_record_of_a_copy_names_who_may_not_run_it(driver: Driver, slower: tuple[str, ...]) -> None:
    """R003-38: waiting, and after it was claimed; no other job names anybody."""
    original, copy_id = await copy_with_head_start(driver, *slower)
    avoid = Avoid(WORKER, START + SECOND if slower else None, slower)

    waiting, its_original = await driver.get([copy_id, original.id], now=START)
    [taken] = await reserve(driver, worker_id="fast", limit=10)
    [running_copy] = await driver.get([copy_id], now=START)

    assert waiting is not None
    assert its_original is not None
    assert running_copy is not None
    assert (waiting.avoid, taken.avoid, running_copy.avoid) == (avoid, avoid, avoid)
    assert its_original.avoid is None


async def test_the_worker_of_the_original_has_no_copy_after_the_head_start_either(driver: Driver) -> None:
    """R003-38: not now is one thing, never another."""
    _, copy_id = await copy_with_head_start(driver, WORKER, OTHER_WORKER)
    later = START + MINUTE

    assert await reserve(driver, now=later, worker_id=WORKER, limit=10) == []
    assert [job.id for job in await reserve(driver, now=later, worker_id=OTHER_WORKER, limit=10)] == [copy_id]


async def test_a_copy_that_waits_for_a_faster_worker_hides_no_other_job(driver: Driver) -> None:
    """B16: the slower one finds what is behind it, and the copy keeps its place."""
    _, copy_id = await copy_with_head_start(driver, OTHER_WORKER)
    first, second = [await enqueue_one(driver, now=START) for _ in range(2)]

    assert [job.id for job in await reserve(driver, worker_id=OTHER_WORKER)] == [first.id]
    assert [job.id for job in await reserve(driver, worker_id="fast", limit=10)] == [copy_id, second.id]


async def test_a_head_start_that_makes_no_sense_is_refused(driver: Driver) -> None:
    """N15: and starts no copy."""
    original = await running(driver, lease_for=HOUR)
    for start in (
        HeadStart(slower=("",), span=SECOND),
        HeadStart(slower=("two\nlines",), span=SECOND),
        HeadStart(slower=(OTHER_WORKER,), span=-SECOND),
        HeadStart(slower=tuple(f"worker-{number}" for number in range(1001)), span=SECOND),
    ):
        with pytest.raises(InvalidArgument):
            await driver.speculate(original.id, head_start=start, now=START)

    assert await reserve(driver, worker_id="worker-c", limit=10) == []
    everybody = HeadStart(slower=tuple(f"worker-{number}" for number in range(1000)), span=SECOND)
    answer = await driver.speculate(original.id, head_start=everybody, now=START)
    assert isinstance(answer, Speculated)
    assert await reserve(driver, worker_id="worker-999", limit=10) == []
    assert len(await reserve(driver, worker_id="worker-1000", limit=10)) == 1
