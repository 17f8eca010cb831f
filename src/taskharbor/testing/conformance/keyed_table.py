"""Keyed jobs, the whole truth table: 32 combinations of flags × what is already there under the key."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import product
from typing import Any

import pytest

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import EnqueueResult
from taskharbor.model.job import JobRecord, RunAtRule, Update
from taskharbor.model.settlement import Retry, Stalled
from taskharbor.model.state import JobState
from taskharbor.testing.conformance.kit import (
    HOUR,
    MINUTE,
    SECOND,
    START,
    enqueue_one,
    find_all,
    get_one,
    reserve_one,
    row,
    settle_one,
)

RUN_AT_RULES: tuple[RunAtRule, ...] = (True, False, "if_later", "if_earlier")
ALL_FLAGS = [
    Update(data=data, run_at=run_at, retry=retry, reset_counts=reset)
    for data, run_at, retry, reset in product((True, False), RUN_AT_RULES, (True, False), (True, False))
]
ALL_LANES = ("cpu", "gpu", "any")

OLD_DATA: dict[str, Any] = {
    "type": "kit.old",
    "payload": b"old",
    "headers": {"word": "old"},
    "timeout": 5 * SECOND,
    "priority": -3,
    "requires": "cpu",
}
NEW_DATA: dict[str, Any] = {
    "type": "kit.new",
    "payload": b"new",
    "headers": {"word": "new"},
    "timeout": 9 * SECOND,
    "priority": 42,
    "requires": "gpu",
}
OLD_RETRY: dict[str, Any] = {
    "max_attempts": 13,
    "max_stalls": 14,
    "min_backoff": SECOND,
    "max_backoff": MINUTE,
}
NEW_RETRY: dict[str, Any] = {
    "max_attempts": 27,
    "max_stalls": 28,
    "min_backoff": 2 * SECOND,
    "max_backoff": 2 * MINUTE,
}
KEPT_RUN_AT = START + 10 * MINUTE
SIDES = {"earlier": START + 5 * MINUTE, "later": START + 15 * MINUTE}
"""Each row runs with a new run_at before and after the kept one."""


def flags_id(flags: Update) -> str:
    """How a combination of flags is called when its row fails."""
    return f"data={flags.data},run_at={flags.run_at},retry={flags.retry},reset={flags.reset_counts}"


def rows() -> Iterator[tuple[bytes, Update, datetime]]:
    """Every combination of flags on both sides: (a key of its own, the flags, the new run_at)."""
    for flags in ALL_FLAGS:
        for side, run_at in SIDES.items():
            yield f"{flags_id(flags)},{side}".encode(), flags, run_at


def fields_of(job: JobRecord, names: dict[str, Any]) -> dict[str, Any]:
    return {name: getattr(job, name) for name in names}


def chosen(rule: RunAtRule, kept: datetime, new: datetime) -> datetime:
    """The run_at column of the table."""
    return {True: new, False: kept, "if_later": max(kept, new), "if_earlier": min(kept, new)}[rule]


# ------------------------------------------------------------------ what is there before


async def once_failed_and_stalled(driver: Driver, key: bytes) -> JobRecord:
    """A running job of the key with the old fields, one attempt and one stall behind it."""
    await enqueue_one(driver, key=key, **OLD_DATA, **OLD_RETRY)
    job = await reserve_one(driver, lanes=ALL_LANES, lease_for=HOUR)
    await settle_one(driver, Stalled(job.lease, "died"))
    job = await reserve_one(driver, lanes=ALL_LANES, lease_for=HOUR)
    await settle_one(driver, Retry(job.lease, reason="broken"))
    return await reserve_one(driver, lanes=ALL_LANES, lease_for=HOUR)


async def waiting_job(driver: Driver, key: bytes) -> JobRecord:
    """It waits until KEPT_RUN_AT, with two attempts and one stall counted."""
    job = await once_failed_and_stalled(driver, key)
    await settle_one(driver, Retry(job.lease, run_at=KEPT_RUN_AT, reason="broken"))
    return await get_one(driver, job.id)


async def blocked_job(driver: Driver, key: bytes) -> JobRecord:
    """Blocked behind a running job until KEPT_RUN_AT; its own flags are all off."""
    await once_failed_and_stalled(driver, key)
    flags = Update(data=False, run_at=False, retry=False, reset_counts=False)
    answer = await enqueue_one(driver, key=key, run_at=KEPT_RUN_AT, update=flags, **OLD_DATA, **OLD_RETRY)
    return await get_one(driver, answer.id)


async def holder_of(driver: Driver, key: bytes) -> JobRecord | None:
    """The running job of a key."""
    return next(
        (job for job in await find_all(driver) if job.key == key and job.state is JobState.RUNNING), None
    )


# ------------------------------------------------------------------ the table


async def test_an_enqueue_of_a_free_key_is_stored_as_given(driver: Driver) -> None:
    """K16 R004-7: nothing there."""
    for key, flags, run_at in rows():
        with row(key):
            answer = await enqueue_one(driver, key=key, update=flags, run_at=run_at, **NEW_DATA, **NEW_RETRY)

            job = await get_one(driver, answer.id)
            assert (answer.result, job.state) == (EnqueueResult.CREATED, JobState.SCHEDULED)
            assert fields_of(job, NEW_DATA) == NEW_DATA
            assert job.run_at == run_at
            assert fields_of(job, NEW_RETRY) == NEW_RETRY
            assert (job.attempts, job.stalls) == (0, 0)
            assert job.update is None, "flags are kept with blocked jobs only"


async def test_an_enqueue_of_a_waiting_key_updates_by_its_flags(driver: Driver) -> None:
    """K16 R004-7: one waits."""
    for key, flags, run_at in rows():
        with row(key):
            before = await waiting_job(driver, key)
            assert (before.attempts, before.stalls) == (2, 1)

            answer = await enqueue_one(driver, key=key, update=flags, run_at=run_at, **NEW_DATA, **NEW_RETRY)

            job = await get_one(driver, before.id)
            assert (answer.result, answer.id) == (EnqueueResult.UPDATED, before.id)
            assert answer.version == job.version == before.version + 1
            assert fields_of(job, NEW_DATA) == (NEW_DATA if flags.data else OLD_DATA)
            assert job.run_at == chosen(flags.run_at, KEPT_RUN_AT, run_at)
            assert fields_of(job, NEW_RETRY) == (NEW_RETRY if flags.retry else OLD_RETRY)
            assert (job.attempts, job.stalls) == ((0, 0) if flags.reset_counts else (2, 1))
            assert job.state is JobState.SCHEDULED
            assert job.update is None, "flags are kept with blocked jobs only"
            assert (job.seq, job.created_at) == (before.seq, before.created_at)


async def test_an_enqueue_of_a_running_key_is_blocked_with_its_own_fields(driver: Driver) -> None:
    """K16 R004-7: one runs."""
    for key, flags, run_at in rows():
        with row(key):
            holder = await once_failed_and_stalled(driver, key)
            before = await get_one(driver, holder.id)

            answer = await enqueue_one(driver, key=key, update=flags, run_at=run_at, **NEW_DATA, **NEW_RETRY)

            job = await get_one(driver, answer.id)
            assert (answer.result, job.state) == (EnqueueResult.BLOCKED, JobState.BLOCKED)
            assert fields_of(job, NEW_DATA) == NEW_DATA
            assert job.run_at == run_at
            assert fields_of(job, NEW_RETRY) == NEW_RETRY
            assert (job.attempts, job.stalls) == (0, 0)
            assert job.update == flags
            assert await get_one(driver, holder.id) == before, "the running job is not touched"


async def test_an_enqueue_of_a_running_and_blocked_key_updates_the_blocked_one(driver: Driver) -> None:
    """K16 R004-7: one runs and one is blocked behind it."""
    for key, flags, run_at in rows():
        with row(key):
            before = await blocked_job(driver, key)
            holder = await holder_of(driver, key)

            answer = await enqueue_one(driver, key=key, update=flags, run_at=run_at, **NEW_DATA, **NEW_RETRY)

            job = await get_one(driver, before.id)
            assert (answer.result, answer.id) == (EnqueueResult.UPDATED, before.id)
            assert fields_of(job, NEW_DATA) == (NEW_DATA if flags.data else OLD_DATA)
            assert job.run_at == chosen(flags.run_at, KEPT_RUN_AT, run_at)
            assert fields_of(job, NEW_RETRY) == (NEW_RETRY if flags.retry else OLD_RETRY)
            assert (job.attempts, job.stalls) == (0, 0)
            assert job.state is JobState.BLOCKED
            assert job.update == flags, "booleans OR-ed with flags that were all off, run_at the last"
            assert (job.seq, job.created_at) == (before.seq, before.created_at)
            assert await holder_of(driver, key) == holder, "the running job is not touched"


# ------------------------------------------------------------------ an empty run_at in the table


# Minutes from now, or nothing at all: (what is kept, what is new, the rule, what is stored).
EMPTY_RUN_AT: list[tuple[int | None, int | None, RunAtRule, int | None]] = [
    (None, 5, "if_later", 5),
    (None, 5, "if_earlier", None),
    (None, -5, "if_later", None),
    (None, -5, "if_earlier", -5),
    (5, None, "if_later", 5),
    (5, None, "if_earlier", None),
    (-5, None, "if_later", None),
    (-5, None, "if_earlier", -5),
    (5, None, True, None),
    (5, None, False, 5),
    (None, 5, False, None),
    (None, None, "if_later", None),
]


@pytest.mark.parametrize("is_blocked", [False, True], ids=["waiting", "blocked"])
async def test_an_empty_run_at_compares_as_now_and_is_stored_empty_when_it_wins(
    driver: Driver, is_blocked: bool
) -> None:
    """K16 R004-5: whether it was kept or is new."""

    def at(minutes: int | None) -> datetime | None:
        return None if minutes is None else START + timedelta(minutes=minutes)

    for kept, new, rule, expected in EMPTY_RUN_AT:
        key = f"{kept} {new} {rule}".encode()
        with row(key):
            if is_blocked:
                await enqueue_one(driver, key=key)
                await reserve_one(driver)
            first = await enqueue_one(driver, key=key, run_at=at(kept))

            await enqueue_one(driver, key=key, run_at=at(new), update=Update(run_at=rule))

            assert (await get_one(driver, first.id)).run_at == at(expected)
