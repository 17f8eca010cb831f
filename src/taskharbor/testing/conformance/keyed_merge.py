"""Keyed jobs that wait again while another one is blocked behind them: one waiting job out of the two."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from itertools import product
from typing import Any

import pytest

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import CancelResult, EnqueueResult, ReclaimResult, Requeued
from taskharbor.errors import JobNotInflight, LeaseMismatch
from taskharbor.model.job import JobRecord, Lease, RunAtRule, Update
from taskharbor.model.settlement import Ack, Fail, Release, Retry, Settlement, Stalled
from taskharbor.model.state import JobState
from taskharbor.testing.conformance.keyed_table import (
    ALL_FLAGS,
    ALL_LANES,
    NEW_DATA,
    NEW_RETRY,
    OLD_DATA,
    OLD_RETRY,
    fields_of,
    flags_id,
    once_failed_and_stalled,
)
from taskharbor.testing.conformance.kit import (
    ENDS,
    HOUR,
    LEASE,
    MICROSECOND,
    MINUTE,
    OTHER_WORKER,
    QUEUE,
    START,
    enqueue_one,
    found_ids,
    get_one,
    new_job,
    refused,
    reserve,
    reserve_one,
    row,
    running,
    settle_one,
    state_of,
    unchanged,
)

THEN = START + LEASE
"""When the running job ends; its lease lasts longer, except where it is to run out."""


async def _retry(driver: Driver, job: JobRecord) -> None:
    await settle_one(driver, Retry(job.lease, delay=10 * MINUTE, reason="broken"), now=THEN)


async def _release(driver: Driver, job: JobRecord) -> None:
    await settle_one(driver, Release(job.lease, delay=10 * MINUTE), now=THEN)


async def _stall(driver: Driver, job: JobRecord) -> None:
    await settle_one(driver, Stalled(job.lease, "died"), now=THEN)


async def _reclaim(driver: Driver, job: JobRecord) -> None:
    await driver.extend_leases([job.lease], LEASE, now=START)
    [answer] = await driver.reclaim(now=THEN)
    assert (answer.id, answer.result) == (job.id, ReclaimResult.MERGED)


async def _reserve(driver: Driver, job: JobRecord) -> None:
    """Reclaimed by a reserve that wants another type, so that the merged job stays where it is."""
    await driver.extend_leases([job.lease], LEASE, now=START)
    assert await reserve(driver, now=THEN, types=("kit.nothing",), lanes=ALL_LANES) == []


# How the running job comes to wait again → its own next run_at (empty: at once), attempts and stalls added.
AGAIN: dict[str, tuple[Callable[[Driver, JobRecord], Awaitable[None]], datetime | None, int, int]] = {
    "retry": (_retry, THEN + 10 * MINUTE, 1, 0),
    "release": (_release, THEN + 10 * MINUTE, 0, 0),
    "stalled": (_stall, None, 0, 1),
    "reclaim": (_reclaim, None, 0, 1),
    "reserve": (_reserve, None, 0, 1),
}


def expected_run_at(flags: Update, own: datetime | None, blocked: datetime) -> datetime | None:
    """An empty one compares as THEN and stays empty when it wins."""
    if isinstance(flags.run_at, bool):
        return blocked if flags.run_at else own
    blocked_is_later = blocked > (own or THEN)
    return blocked if blocked_is_later == (flags.run_at == "if_later") else own


@pytest.mark.parametrize("how", AGAIN)
async def test_a_job_that_waits_again_takes_over_what_was_blocked_behind_it(driver: Driver, how: str) -> None:
    """K07 K08 R004-24 G19: data, run_at, retry fields and counts, each by its saved flag."""
    for flags, offset in product(ALL_FLAGS, (-5 * MINUTE, 5 * MINUTE)):
        with row(f"{flags_id(flags)}, {offset}"):
            await check_merge(driver, how, flags, offset)


async def check_merge(driver: Driver, how: str, flags: Update, offset: timedelta) -> None:
    """One merge, with a blocked run_at that lies `offset` from the running job's own next one."""
    ends, own_run_at, attempts, stalls = AGAIN[how]
    blocked_run_at = (own_run_at or THEN) + offset
    job = await once_failed_and_stalled(driver, b"key")
    blocked = await enqueue_one(
        driver, key=b"key", update=flags, run_at=blocked_run_at, **NEW_DATA, **NEW_RETRY
    )

    await ends(driver, job)

    merged = await get_one(driver, job.id, now=THEN)
    assert fields_of(merged, NEW_DATA) == (NEW_DATA if flags.data else OLD_DATA)
    assert merged.run_at == expected_run_at(flags, own_run_at, blocked_run_at)
    assert fields_of(merged, NEW_RETRY) == (NEW_RETRY if flags.retry else OLD_RETRY)
    counts = (0, 0) if flags.reset_counts else (1 + attempts, 1 + stalls)
    assert (merged.attempts, merged.stalls) == counts
    is_later = merged.run_at is not None and merged.run_at > THEN
    assert merged.state is (JobState.SCHEDULED if is_later else JobState.READY)
    assert (merged.update, merged.seq, merged.created_at) == (None, job.seq, job.created_at)
    assert await found_ids(driver, now=THEN, key=b"key") == [job.id], "one job is left"
    assert await get_one(driver, blocked.id, now=THEN) == merged, "the blocked id became an alias"
    await driver.cancel([job.id], now=THEN)
    await driver.delete([job.id], now=THEN)


async def test_the_merged_job_is_handed_out_once(driver: Driver) -> None:
    """K11: whatever was blocked, one job comes out."""
    job = await running(driver, key=b"key", lease_for=HOUR)
    await enqueue_one(driver, key=b"key", payload=b"new")
    await settle_one(driver, Retry(job.lease, reason="broken"))

    again = await reserve(driver, limit=10)

    assert [(taken.id, taken.payload) for taken in again] == [(job.id, b"new")]


async def test_release_without_a_delay_merges_by_the_run_at_it_kept(driver: Driver) -> None:
    """T15 R004-24: its own run_at takes part in the comparison, although it is long past."""
    due = START - HOUR
    await enqueue_one(driver, key=b"key", run_at=due)
    job = await reserve_one(driver)
    await enqueue_one(driver, key=b"key", run_at=START + HOUR, update=Update(run_at="if_earlier"))

    await settle_one(driver, Release(job.lease))

    assert (await get_one(driver, job.id)).run_at == due


async def test_a_merge_is_one_change_of_the_job_that_waits_again(driver: Driver) -> None:
    """I4: one version, as answered."""
    job = await running(driver, key=b"key")
    await enqueue_one(driver, key=b"key")

    answer = await settle_one(driver, Retry(job.lease, reason="broken"))

    merged = await get_one(driver, job.id)
    assert (answer.id, answer.version, answer.state) == (job.id, job.version + 1, JobState.READY)
    assert merged.version == job.version + 1


async def test_flags_of_several_blocked_enqueues_are_joined(driver: Driver) -> None:
    """R004-8: the three booleans OR-ed, the last rule for run_at; all 64 pairs."""
    booleans = list(product((True, False), repeat=3))
    pairs = [(first, second) for first in booleans for second in booleans]
    keys = [str(number).encode() for number in range(len(pairs))]
    await driver.enqueue([new_job(key=key) for key in keys], now=START)
    await reserve(driver, limit=len(keys))

    def flags(values: Sequence[bool], rule: RunAtRule) -> Update:
        return Update(data=values[0], retry=values[1], reset_counts=values[2], run_at=rule)

    async def send(part: int, rule: RunAtRule) -> list[str]:
        jobs = [
            new_job(key=key, update=flags(pair[part], rule)) for key, pair in zip(keys, pairs, strict=True)
        ]
        return [answer.id for answer in await driver.enqueue(jobs, now=START)]

    blocked = await send(0, "if_later")
    assert await send(1, "if_earlier") == blocked

    for job, (first, second) in zip(await driver.get(blocked, now=START), pairs, strict=True):
        joined = [one or other for one, other in zip(first, second, strict=True)]
        assert job is not None
        assert job.update == flags(joined, "if_earlier")


async def test_data_of_an_earlier_blocked_enqueue_survives_a_later_one_without_data(driver: Driver) -> None:
    """R004-8: the case that loses data when only the last flags are kept."""
    job = await running(driver, key=b"key", payload=b"running")
    await enqueue_one(driver, key=b"key", payload=b"wanted", update=Update(data=True))
    await enqueue_one(driver, key=b"key", payload=b"ignored", update=Update(data=False))

    await settle_one(driver, Retry(job.lease, reason="broken"))

    assert (await get_one(driver, job.id)).payload == b"wanted"


async def test_reset_counts_follows_data_unless_given(driver: Driver) -> None:
    """R004-9: the default of the fourth flag."""
    for key, update, expected in [
        (b"a", Update(data=True), (0, 0)),
        (b"b", Update(data=False), (1, 0)),
        (b"c", None, (0, 0)),
    ]:
        job = await running(driver, key=key, queue=f"kit-{key.decode()}")
        await enqueue_one(driver, key=key, update=update, queue=job.queue)
        await settle_one(driver, Retry(job.lease, reason="broken"))

        merged = await get_one(driver, job.id)
        assert (merged.attempts, merged.stalls) == expected


async def test_a_late_worker_of_a_key_harms_neither_the_next_run_nor_the_blocked_job(driver: Driver) -> None:
    """R004-20 AM34 D04: whatever it tries with its old lease."""
    late = await running(driver, key=b"key")
    again = await reserve_one(driver, now=THEN, worker_id=OTHER_WORKER, lease_for=HOUR)
    blocked = await enqueue_one(driver, now=THEN, key=b"key")

    async with unchanged(driver, again.id, blocked.id, now=THEN):
        for end in ENDS.values():
            assert isinstance(await refused(driver, end(late.lease), now=THEN), LeaseMismatch)

    await settle_one(driver, Ack(again.lease), now=THEN)
    assert await state_of(driver, blocked.id, now=THEN) is JobState.READY


async def test_one_sweep_deals_with_expiries_of_every_kind(driver: Driver) -> None:
    """R004-32 R004-36 G12: cancelled, failed, merged and plain ones side by side, oldest first, none left."""
    kinds: list[dict[str, Any]] = [{}, {"key": b"merged"}, {"max_stalls": 1}, {"key": b"cancelled"}] * 30
    jobs = []
    for number, fields in enumerate(kinds):
        key = {"key": fields["key"] + b"-%d" % number} if "key" in fields else {}
        jobs.append(new_job(queue=f"kit-{number}", **fields | key))
    await driver.enqueue(jobs, now=START)
    for number, job in enumerate(jobs):
        await reserve(driver, now=START + number * MICROSECOND, queues=(job.queue,))
    keyed = [job for job in jobs if job.key is not None]
    await driver.enqueue([new_job(queue=job.queue, key=job.key) for job in keyed], now=START)
    await driver.cancel([job.id for job in jobs[3::4]], now=START)

    sweeps = [await driver.reclaim(now=START + HOUR) for _ in range(3)]

    assert [len(answers) for answers in sweeps] == [100, 20, 0]
    assert [answer.id for answers in sweeps for answer in answers] == [job.id for job in jobs]
    results = [answer.result for answers in sweeps for answer in answers]
    assert results == ["requeued", "merged", "failed", "cancelled"] * 30


# ------------------------------------------------------------------ aliases


async def merged_pair(driver: Driver) -> tuple[str, str]:
    """(the id that lives on, the id that became its alias)"""
    job = await running(driver, key=b"key")
    blocked = await enqueue_one(driver, key=b"key")
    await settle_one(driver, Retry(job.lease, delay=HOUR, reason="broken"))
    return job.id, blocked.id


async def absorbed_pair(driver: Driver) -> tuple[str, str]:
    """The same by an enqueue that a waiting job absorbed."""
    first = await enqueue_one(driver, key=b"key", run_at=START + HOUR)
    second = new_job(key=b"key", run_at=START + HOUR)
    [answer] = await driver.enqueue([second], now=START)
    assert (answer.result, answer.id) == (EnqueueResult.UPDATED, first.id)
    return first.id, second.id


PAIRS = pytest.mark.parametrize("pair", [merged_pair, absorbed_pair], ids=["merged", "absorbed"])
Pair = Callable[[Driver], Awaitable[tuple[str, str]]]


@PAIRS
async def test_an_alias_reads_as_the_job_it_replaces_and_is_never_listed(driver: Driver, pair: Pair) -> None:
    """K03: get follows, find and count do not show."""
    job_id, alias = await pair(driver)

    assert await driver.get([alias], now=START) == await driver.get([job_id], now=START)
    assert (await get_one(driver, alias)).id == job_id
    assert await found_ids(driver) == [job_id]
    assert (await driver.count(now=START))[QUEUE].total == 1


@PAIRS
async def test_cancelling_an_alias_cancels_the_job(driver: Driver, pair: Pair) -> None:
    """K03 H02: cancel follows."""
    job_id, alias = await pair(driver)

    [answer] = await driver.cancel([alias], now=START)

    assert (answer.result, answer.state) == (CancelResult.CANCELLED, JobState.CANCELLED)
    assert await state_of(driver, job_id) is JobState.CANCELLED


@PAIRS
async def test_requeueing_an_alias_requeues_the_job(driver: Driver, pair: Pair) -> None:
    """K03 F11: requeue follows."""
    job_id, alias = await pair(driver)
    await driver.cancel([job_id], now=START)

    [answer] = await driver.requeue([alias], now=START)

    assert isinstance(answer, Requeued), answer
    assert (answer.id, await state_of(driver, job_id)) == (job_id, JobState.READY)


@PAIRS
async def test_enqueueing_the_id_of_an_alias_is_a_duplicate_of_the_job(driver: Driver, pair: Pair) -> None:
    """M07: an alias is a known id."""
    job_id, alias = await pair(driver)

    answer = await enqueue_one(driver, id=alias)

    assert (answer.result, answer.id) == (EnqueueResult.DUPLICATE, job_id)
    assert await found_ids(driver) == [job_id]


@PAIRS
async def test_a_lease_of_an_alias_is_refused(driver: Driver, pair: Pair) -> None:
    """T03: it was never handed out; the job that it replaces is not touched."""
    job_id, alias = await pair(driver)
    lease = Lease(alias, "0" * 32)
    ends: list[Settlement] = [
        Ack(lease),
        Retry(lease, reason="broken"),
        Release(lease),
        Fail(lease, "broken"),
        Stalled(lease),
    ]

    async with unchanged(driver, job_id):
        answers: list[object] = [(await driver.settle([end], now=START))[0] for end in ends]
        answers += await driver.extend_leases([lease], LEASE, now=START)

    assert [type(answer) for answer in answers] == [JobNotInflight] * 6


@PAIRS
@pytest.mark.parametrize("how", ["prune", "delete"])
async def test_an_alias_goes_with_its_job(driver: Driver, pair: Pair, how: str) -> None:
    """R07: nothing is left that points at nothing."""
    job_id, alias = await pair(driver)
    job = await reserve_one(driver, now=START + HOUR)
    await settle_one(driver, Ack(job.lease), now=START + HOUR)
    later = START + 1000 * HOUR

    if how == "prune":
        assert await driver.prune(now=later) == 1
    else:
        await driver.delete([alias], now=START + HOUR)

    assert await driver.get([job_id, alias], now=later) == [None, None]
