"""X: entries that have lost their job: something outside took the record away, what points to it stayed."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Counts, EnqueueResult
from taskharbor.model.settlement import Ack
from taskharbor.model.state import JobState
from taskharbor.testing.conformance.kit import (
    HOUR,
    LEASE,
    OTHER_WORKER,
    QUEUE,
    START,
    enqueue,
    enqueue_one,
    found_ids,
    new_job,
    new_jobs,
    reserve,
    running,
    settle_one,
)

END = START + LEASE


def _loser(request: pytest.FixtureRequest) -> Callable[[str], Awaitable[None]]:
    """The optional fixture `lose_record`; without it, or with None, the case is skipped."""
    try:
        lose = request.getfixturevalue("lose_record")
    except pytest.FixtureLookupError:
        lose = None
    if lose is None:
        pytest.skip("no fixture lose_record: the kit cannot take a record out of this store")
    return lose  # type: ignore[no-any-return]


def _logged(caplog: pytest.LogCaptureFixture) -> int:
    """How often lost jobs were logged."""
    return sum(record.name == "taskharbor.store" for record in caplog.records)


async def test_a_claim_goes_past_a_waiting_entry_without_its_job(
    driver: Driver, request: pytest.FixtureRequest
) -> None:
    """X01 R004-14: the first, the middle one and the last of a line; what is behind them is handed out."""
    lose, caplog = _loser(request), request.getfixturevalue("caplog")
    ids = [(await enqueue_one(driver)).id for _ in range(5)]
    for lost in ids[::2]:
        await lose(lost)

    with caplog.at_level(logging.ERROR, "taskharbor.store"):
        taken = await reserve(driver, limit=10)
        logged = _logged(caplog)
        again = [await reserve(driver, limit=10) for _ in range(3)]

    assert [job.id for job in taken] == ids[1::2]
    assert again == [[], [], []]
    assert 1 <= logged == _logged(caplog), "logged when it is dropped, and never again"
    assert driver.orphans.take() == 3
    assert await driver.count([QUEUE], now=START) == {QUEUE: Counts(running=2)}
    for job in taken:
        await settle_one(driver, Ack(job.lease))


async def test_a_claim_drops_a_line_that_has_only_lost_its_jobs(
    driver: Driver, request: pytest.FixtureRequest
) -> None:
    """X02: jobs of one enqueue, all of them lost; the next one comes through."""
    lose = _loser(request)
    for lost in await enqueue(driver, *new_jobs(3)):
        await lose(lost)

    before = await reserve(driver, limit=10)
    [job] = await enqueue(driver, new_job())
    after = await reserve(driver, limit=10)

    assert (before, [one.id for one in after]) == ([], [job])
    assert driver.orphans.take() == 3
    assert await driver.count([QUEUE], now=START) == {QUEUE: Counts(running=1)}


async def test_a_due_entry_without_its_job_is_dropped(driver: Driver, request: pytest.FixtureRequest) -> None:
    """X03: it waited for a time when its record was lost."""
    lose = _loser(request)
    late = START + HOUR
    [lost, kept] = await enqueue(driver, new_job(run_at=late), new_job(run_at=late))
    await lose(lost)

    await driver.promote(now=late)
    taken = await reserve(driver, limit=10, now=late)

    assert [job.id for job in taken] == [kept]
    assert driver.orphans.take() == 1
    assert await driver.count([QUEUE], now=late) == {QUEUE: Counts(running=1)}


@pytest.mark.parametrize("by_claim", [True, False])
async def test_a_sweep_goes_past_a_lease_without_its_job(
    driver: Driver, request: pytest.FixtureRequest, by_claim: bool
) -> None:
    """X04 R004-36: by a claim or by the sweeper; the job that ran out behind it is given back."""
    lose, caplog = _loser(request), request.getfixturevalue("caplog")
    lost, kept = await running(driver), await running(driver)
    await lose(lost.id)

    with caplog.at_level(logging.ERROR, "taskharbor.store"):
        if by_claim:
            taken = await reserve(driver, limit=10, now=END, worker_id=OTHER_WORKER)
            assert [job.id for job in taken] == [kept.id]
        else:
            assert [answer.id for answer in await driver.reclaim(now=END)] == [kept.id]
        assert await driver.reclaim(now=END) == []

    assert _logged(caplog) == 1
    assert driver.orphans.take() == 1
    [counts] = (await driver.count([QUEUE], now=END)).values()
    assert counts == (Counts(running=1) if by_claim else Counts(ready=1))


async def test_a_full_page_of_lost_leases_does_not_hide_the_others(
    driver: Driver, request: pytest.FixtureRequest
) -> None:
    """X05: more lost ones than a sweep takes at a time, all older than the lease of a job that is there."""
    lose = _loser(request)
    lost = [await running(driver) for _ in range(5)]
    kept = await running(driver, lease_for=LEASE * 2)
    for job in lost:
        await lose(job.id)

    found: list[str] = []
    for _ in range(6):
        found += [answer.id for answer in await driver.reclaim(2, now=START + 2 * LEASE)]

    assert found == [kept.id]
    assert driver.orphans.take() == 5


@pytest.mark.parametrize("state", [JobState.READY, JobState.SCHEDULED, JobState.RUNNING], ids=str)
async def test_looking_goes_past_an_entry_without_its_job(
    driver: Driver, request: pytest.FixtureRequest, state: JobState
) -> None:
    """X06: get knows nothing of it, and no listing stumbles over it."""
    lose = _loser(request)
    fields: dict[str, Any] = {"run_at": START + HOUR} if state is JobState.SCHEDULED else {}
    ids = await enqueue(driver, *new_jobs(3, **fields))
    if state is JobState.RUNNING:
        assert len(await reserve(driver, limit=3)) == 3
    await lose(ids[1])

    assert await driver.get([ids[1]], now=START) == [None]
    assert await found_ids(driver) == [ids[0], ids[2]]
    assert await found_ids(driver, states=(state,), newest_first=True) == [ids[2], ids[0]]
    # Seen to, so that the invariants hold: what looking may not drop goes with the next claim or sweep.
    late = START + HOUR + LEASE
    await driver.reclaim(now=late)
    assert {job.id for job in await reserve(driver, limit=10, now=late)} == {ids[0], ids[2]}


@pytest.mark.parametrize(
    "fields", [{"key": b"key"}, {"idempotency_key": b"once"}], ids=lambda f: next(iter(f))
)
@pytest.mark.parametrize("is_running", [False, True], ids=["waiting", "running"])
async def test_the_key_of_a_lost_job_is_free_again(
    driver: Driver, request: pytest.FixtureRequest, fields: dict[str, Any], is_running: bool
) -> None:
    """X07: a job of the same key is taken in, instead of being absorbed by one that will never run."""
    lose = _loser(request)
    lost = await running(driver, **fields) if is_running else await enqueue_one(driver, **fields)
    await lose(lost.id)

    answer = await enqueue_one(driver, **fields)
    taken = await reserve(driver, limit=10)

    assert answer.result is EnqueueResult.CREATED
    assert [job.id for job in taken] == [answer.id]
    await driver.reclaim(now=START + HOUR)
