"""E: keeping a lease, and the instant at which it is over."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Extended
from taskharbor.errors import JobNotInflight, LeaseExpired, LeaseLost, LeaseMismatch
from taskharbor.model.job import Lease, Progress
from taskharbor.model.settlement import Ack, Release, Retry, Stalled
from taskharbor.model.state import TERMINAL, JobState
from taskharbor.testing.conformance.kit import (
    HOUR,
    LEASE,
    MICROSECOND,
    OTHER_WORKER,
    SECOND,
    START,
    UNKNOWN_ID,
    WRONG_TOKEN,
    Moment,
    enqueue,
    enqueue_one,
    extend_one,
    get_one,
    in_state,
    new_job,
    new_jobs,
    refused,
    reserve,
    reserve_one,
    row,
    running,
    settle_one,
    state_of,
    unchanged,
)
from taskharbor.testing.conformance.verbs import LEASED_VERBS

END = START + LEASE


async def extension_error(driver: Driver, lease: Lease, *, now: Any = START) -> object:
    [answer] = await driver.extend_leases([lease], LEASE, now=now)
    return answer


async def test_an_extension_counts_the_lease_again(driver: Driver) -> None:
    """E01 R000-28: the end becomes now + lease_for, in the answer and in the record."""
    job = await running(driver)
    now = START + 10 * SECOND

    answer = await extend_one(driver, job.lease, now=now)
    record = await get_one(driver, job.id, now=now)

    assert answer.lease.expires_at == record.lease_expires_at == now + LEASE
    assert (answer.at, answer.version, answer.cancel_requested) == (now, record.version, False)
    assert (record.updated_at, record.version) == (now, job.version + 1)


async def test_an_extension_gives_the_lease_to_use_from_then_on(driver: Driver) -> None:
    """E02 R001-14: its token settles; an older one does not once it has been replaced."""
    job = await running(driver)

    answer = await extend_one(driver, job.lease, now=START + SECOND)
    if answer.lease.token != job.token:
        assert isinstance(await refused(driver, Ack(job.lease), now=END), LeaseMismatch)
    settled = await settle_one(driver, Ack(answer.lease), now=END)

    assert (answer.lease.job_id, answer.lease.fence) == (job.id, job.fence)
    assert settled.state is JobState.COMPLETED


ONE_JOB_FORMS = ("ack", "retry", "fail", "extend_lease")


async def test_a_refused_lease_says_who_holds_the_job_and_what_it_is(driver: Driver) -> None:
    """E03 R002-4: with the reason: another worker owns it, or it does not run at all."""
    mine = await running(driver)
    theirs = await reserve_one(driver, worker_id=OTHER_WORKER, now=END)

    held: dict[str, Any] = {name: await verb(driver, mine.lease, END) for name, verb in LEASED_VERBS.items()}
    await settle_one(driver, Ack(theirs.lease), now=END)
    over: dict[str, Any] = {name: await verb(driver, mine.lease, END) for name, verb in LEASED_VERBS.items()}

    for name in LEASED_VERBS:
        with row(name):
            assert_reason(held[name], LeaseMismatch, "not_owner")
            assert_reason(over[name], JobNotInflight, "invalid_transition")
    for name in ONE_JOB_FORMS:
        with row(name):
            assert (held[name].owner, held[name].state) == (OTHER_WORKER, "running")
            assert OTHER_WORKER in str(held[name])
            assert (over[name].owner, over[name].state) == (None, "completed")
            assert "completed" in str(over[name])


def assert_reason(answer: object, kind: type[LeaseLost], reason: str) -> None:
    assert isinstance(answer, kind)
    assert answer.reason == reason


async def test_a_lease_of_an_unknown_job_is_refused_without_a_state(driver: Driver) -> None:
    """E03 R002-4"""
    with pytest.raises(JobNotInflight) as refusal:
        await driver.ack(UNKNOWN_ID, WRONG_TOKEN, START)

    assert (refusal.value.owner, refusal.value.state) == (None, None)


async def test_another_token_extends_nothing(driver: Driver) -> None:
    """E03: LeaseMismatch, and the lease keeps its end."""
    job = await running(driver)

    async with unchanged(driver, job.id):
        answer = await extension_error(driver, Lease(job.id, WRONG_TOKEN))

    assert isinstance(answer, LeaseMismatch)


async def test_a_lease_can_be_extended_in_its_last_microsecond(driver: Driver) -> None:
    """E04: one microsecond before its end it is alive, and then lives on past it."""
    job = await running(driver)

    answer = await extend_one(driver, job.lease, now=END - MICROSECOND)

    assert answer.lease.expires_at == END - MICROSECOND + LEASE
    assert await reserve(driver, now=END) == []


@pytest.mark.parametrize("late", [timedelta(0), MICROSECOND, HOUR], ids=str)
async def test_an_expired_lease_is_never_revived(driver: Driver, late: timedelta) -> None:
    """E05 E06 R002-10: from its end on, also while the job was not claimed again."""
    job = await running(driver)

    async with unchanged(driver, job.id, now=END + late):
        answer = await extension_error(driver, job.lease, now=END + late)
    taken = await reserve_one(driver, now=END + late, worker_id=OTHER_WORKER)

    assert isinstance(answer, LeaseExpired)
    assert taken.id == job.id


async def test_a_reclaimed_job_is_not_running(driver: Driver) -> None:
    """E07 R000-43: after the sweep, before anybody else has it."""
    job = await running(driver)
    await driver.reclaim(now=END)

    async with unchanged(driver, job.id, now=END):
        answer = await extension_error(driver, job.lease, now=END)

    assert isinstance(answer, JobNotInflight)


async def test_a_job_of_somebody_else_is_out_of_reach(driver: Driver) -> None:
    """E08: after it was handed out again, the old token is another token."""
    job = await running(driver)
    taken = await reserve_one(driver, now=END, worker_id=OTHER_WORKER)

    async with unchanged(driver, job.id, now=END):
        answer = await extension_error(driver, job.lease, now=END)

    assert isinstance(answer, LeaseMismatch)
    await settle_one(driver, Ack(taken.lease), now=END)


@pytest.mark.parametrize("state", sorted(TERMINAL))
async def test_nothing_that_is_over_can_be_extended(driver: Driver, state: JobState) -> None:
    """E09: JobNotInflight for completed, failed and cancelled, with the very token that ended it."""
    over = await in_state(driver, state)
    assert over.settled_token is not None

    async with unchanged(driver, over.id):
        answer = await extension_error(driver, Lease(over.id, over.settled_token))

    assert isinstance(answer, JobNotInflight)


async def test_an_unknown_job_cannot_be_extended(driver: Driver) -> None:
    """E10: JobNotInflight, and it does not come into being."""
    async with unchanged(driver, UNKNOWN_ID):
        answer = await extension_error(driver, Lease(UNKNOWN_ID, WRONG_TOKEN))

    assert isinstance(answer, JobNotInflight)


@pytest.mark.parametrize("lease_for", [SECOND, MICROSECOND, 2 * LEASE], ids=str)
async def test_an_extension_may_also_shorten(driver: Driver, lease_for: timedelta) -> None:
    """E12: now + lease_for, even if that is sooner than before; the lease then ends there."""
    job = await running(driver)

    await extend_one(driver, job.lease, lease_for)
    still_held = await reserve(driver, now=START + lease_for - MICROSECOND)
    taken = await reserve_one(driver, now=START + lease_for)

    assert (still_held, taken.id) == ([], job.id)


async def test_a_stalled_process_is_counted_like_an_expired_lease(driver: Driver) -> None:
    """E13: (Stalled) one stall more, no attempt, ready at once with run_at emptied."""
    answer = await enqueue_one(driver, run_at=START, max_stalls=3, max_attempts=1)
    job = await reserve_one(driver)

    settled = await settle_one(driver, Stalled(job.lease, "killed by signal 9"), now=START + SECOND)
    record = await get_one(driver, answer.id, now=START + SECOND)

    assert (settled.state, record.state) == (JobState.READY, JobState.READY)
    assert (record.stalls, record.attempts, record.run_at) == (1, 0, None)
    assert (record.settled_token, record.lease_expires_at) == (job.token, None)
    assert record.history[-1].error == "killed by signal 9"


async def test_the_stall_that_is_one_too_many_fails_the_job(driver: Driver) -> None:
    """E13: (Stalled) the third of three, with the cause of death as its error; attempts stay."""
    job = await running(driver, max_stalls=3)
    for _ in range(2):
        await settle_one(driver, Stalled(job.lease, "segmentation fault"))
        job = await reserve_one(driver)

    settled = await settle_one(driver, Stalled(job.lease, "out of memory"))
    record = await get_one(driver, job.id)

    assert settled.state is JobState.FAILED
    assert (record.failure_kind, record.last_error) == ("stalled", "out of memory")
    assert (record.stalls, record.attempts, record.failed_at) == (3, 0, START)


async def test_an_extension_touches_neither_counters_nor_order_nor_fence(driver: Driver) -> None:
    """E14: the end of the lease, updated_at and version: nothing else."""
    job = await running(driver, priority=4, headers={"a": "b"}, payload=b"work")
    before = await get_one(driver, job.id)

    await extend_one(driver, job.lease, now=START + SECOND)
    after = await get_one(driver, job.id, now=START + SECOND)

    assert after == msgspec.structs.replace(
        before,
        lease_expires_at=START + SECOND + LEASE,
        updated_at=START + SECOND,
        version=before.version + 1,
    )


async def test_a_keyed_job_can_be_handed_back(driver: Driver) -> None:
    """E15: (Release of a keyed job) it waits again under its key, nothing counted; the next joins it."""
    job = await running(driver, key=b"k", payload=b"old")

    await settle_one(driver, Release(job.lease))
    update = await enqueue_one(driver, key=b"k", payload=b"new")
    again = await reserve_one(driver)

    assert (update.id, update.result) == (job.id, "updated")
    assert (again.id, again.payload, again.attempts, again.stalls) == (job.id, b"new", 0, 0)
    assert again.starts == 2


async def test_a_keyed_job_handed_back_takes_the_blocked_one_in(driver: Driver) -> None:
    """E15: (Release of a keyed job) one waiting job with the id of the released one, an alias beside it."""
    job = await running(driver, key=b"k", payload=b"old")
    blocked = await enqueue_one(driver, key=b"k", payload=b"new")

    await settle_one(driver, Release(job.lease))
    taken = await reserve(driver, limit=10)

    assert [(entry.id, entry.payload) for entry in taken] == [(job.id, b"new")]
    assert (await get_one(driver, blocked.id)).id == job.id


async def test_extensions_are_answered_one_by_one(driver: Driver) -> None:
    """E16: in the order asked, each for itself, refused ones changing nothing."""
    await driver.enqueue(new_jobs(3), now=START)
    first, second = await reserve(driver, limit=2)
    short = await reserve_one(driver, lease_for=SECOND)
    now = START + SECOND

    async with unchanged(driver, short.id, now=now):
        answers = await driver.extend_leases(
            [
                short.lease,
                first.lease,
                Lease(UNKNOWN_ID, WRONG_TOKEN),
                Lease(second.id, WRONG_TOKEN),
                second.lease,
            ],
            LEASE,
            now=now,
        )

    assert [type(answer) for answer in answers] == [
        LeaseExpired,
        Extended,
        JobNotInflight,
        LeaseMismatch,
        Extended,
    ]
    for job in (first, second):
        assert (await get_one(driver, job.id, now=now)).lease_expires_at == now + LEASE


async def test_leases_of_several_claims_are_extended_in_one_call(driver: Driver) -> None:
    """E16: each by the token of its own claim, whatever else the same worker runs."""
    await driver.enqueue(new_jobs(3), now=START)
    jobs = [*await reserve(driver, limit=2), await reserve_one(driver)]
    assert len({job.token for job in jobs}) == 2

    answers = await driver.extend_leases([job.lease for job in jobs], HOUR, now=START + SECOND)

    assert [type(answer) for answer in answers] == [Extended] * 3
    for job in jobs:
        assert (await get_one(driver, job.id)).lease_expires_at == START + SECOND + HOUR


async def test_an_extension_reports_a_cancel_request(driver: Driver) -> None:
    """E17: false before, true after; the lease is extended all the same."""
    job = await running(driver)

    before = await extend_one(driver, job.lease)
    await driver.cancel([job.id], now=START)
    after = await extend_one(driver, before.lease, now=START + SECOND)

    assert (before.cancel_requested, after.cancel_requested) == (False, True)
    assert after.lease.expires_at == START + SECOND + LEASE


async def test_extending_twice_at_one_instant_is_extending_once(driver: Driver) -> None:
    """E18: the same end, and the job can still be settled."""
    job = await running(driver)

    first = await extend_one(driver, job.lease, now=START + SECOND)
    second = await extend_one(driver, first.lease, now=START + SECOND)

    assert first.lease.expires_at == second.lease.expires_at == START + SECOND + LEASE
    await settle_one(driver, Ack(second.lease), now=START + SECOND)


async def test_no_leases_are_no_work(driver: Driver) -> None:
    """E16: an empty call answers an empty list."""
    assert await driver.extend_leases([], LEASE, now=START) == []


async def test_a_running_job_shows_its_progress_until_the_next_claim(driver: Driver) -> None:
    """E01: stored with the lease, kept by an extension without any, cleared by a claim."""
    job = await running(driver)
    half = Progress(0.5, "half way")

    [extended] = await driver.extend_leases([job.lease], LEASE, progress={job.id: half}, now=START)
    assert isinstance(extended, Extended)
    await extend_one(driver, extended.lease, now=START + SECOND)
    kept = (await get_one(driver, job.id)).progress
    await settle_one(driver, Retry(extended.lease), now=START + SECOND)
    again = await reserve_one(driver, now=START + SECOND)

    assert (kept, again.progress) == (half, None)


async def test_a_refused_extension_stores_no_progress(driver: Driver) -> None:
    """E03: neither for the job that was asked for nor for one that was not."""
    job = await running(driver)
    [other] = await enqueue(driver, new_job())

    async with unchanged(driver, job.id, other):
        await driver.extend_leases(
            [Lease(job.id, WRONG_TOKEN)],
            LEASE,
            progress={job.id: Progress(0.9), other: Progress(0.1)},
            now=START,
        )


# ------------------------------------------------------------------ the exact instant, verb by verb

# A store may keep jobs that nothing has happened to more cheaply than those with a key.
KEYS = pytest.mark.parametrize("key", [None, b"one of its kind"], ids=["plain", "keyed"])


@KEYS
async def test_every_verb_works_in_the_last_microsecond_of_a_lease(driver: Driver, key: bytes | None) -> None:
    """E04 D02: end − 1 µs."""
    for number, (name, verb) in enumerate(LEASED_VERBS.items()):
        with row(name):
            job = await running(driver, queue=f"kit-{number}", key=key)

            answer = await verb(driver, job.lease, END - MICROSECOND)

            assert not isinstance(answer, Exception)
            assert (await get_one(driver, job.id, now=END - MICROSECOND)).version == job.version + 1


@pytest.mark.parametrize("late", [timedelta(0), MICROSECOND], ids=["at its end", "one microsecond later"])
@KEYS
async def test_no_verb_works_from_the_end_of_a_lease_on(
    driver: Driver, key: bytes | None, late: timedelta
) -> None:
    """E05 D02 T09 F04 R000-39: LeaseExpired, nothing changed, though the job was not claimed again yet."""
    for number, (name, verb) in enumerate(LEASED_VERBS.items()):
        with row(name):
            job = await running(driver, queue=f"kit-{number}", max_stalls=1, key=key)

            async with unchanged(driver, job.id, now=END + late):
                answer = await verb(driver, job.lease, END + late)

            assert isinstance(answer, LeaseExpired)


async def test_an_extended_lease_moves_the_instant(driver: Driver) -> None:
    """E04 E05: the old end means nothing any more, the new one everything."""
    for number, (name, verb) in enumerate(LEASED_VERBS.items()):
        with row(name):
            job = await running(driver, queue=f"kit-{number}")
            lease = (await extend_one(driver, job.lease, now=END - MICROSECOND)).lease
            assert lease.expires_at is not None

            async with unchanged(driver, job.id, now=lease.expires_at):
                late = await verb(driver, lease, lease.expires_at)
            in_time = await verb(driver, lease, lease.expires_at - MICROSECOND)

            assert isinstance(late, LeaseExpired)
            assert not isinstance(in_time, Exception)


async def test_exactly_one_of_two_holds_at_every_instant(driver: Driver) -> None:
    """E05 G01: either the holder may write or the job may be taken, never both and never neither."""
    clock = Moment(END - 3 * MICROSECOND)
    for _ in range(6):
        clock.advance(MICROSECOND)
        job = await running(driver, queue=f"kit-{clock.now().microsecond}")
        taken = await reserve(driver, queues=(job.queue,), now=clock.now())
        [answer] = await driver.settle([Ack(job.lease)], now=clock.now())

        assert bool(taken) == (clock.now() >= END)
        assert isinstance(answer, LeaseMismatch) == bool(taken)


async def test_a_clock_that_steps_back_revives_nothing(driver: Driver) -> None:
    """E06: once handed on, the old token stays dead at every earlier instant."""
    job = await running(driver)
    await reserve_one(driver, now=END, worker_id=OTHER_WORKER)

    async with unchanged(driver, job.id, now=START):
        answers = [await verb(driver, job.lease, START) for verb in LEASED_VERBS.values()]

    assert {type(answer) for answer in answers} == {LeaseMismatch}
    assert await state_of(driver, job.id) is JobState.RUNNING
