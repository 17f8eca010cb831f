"""One rule, every language, for what is no step of a job: roles, schedules, retention, copies and flags.

As `same_rules`: what a store answers is compared with the Python function that has the rule.
"""

from __future__ import annotations

from datetime import timedelta

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Speculated
from taskharbor.model.job import NO_TIME, NewJob, Update
from taskharbor.model.presence import RoleLease, role_after, role_released
from taskharbor.model.queue import EVERY_QUEUE, QueueSettings, Retention, retention_of, rules_of
from taskharbor.model.schedule import Schedule, advanced
from taskharbor.model.settlement import Retry
from taskharbor.model.speculation import HeadStart, may_take
from taskharbor.model.state import JobState
from taskharbor.testing.conformance.kit import (
    HOUR,
    LEASE,
    MICROSECOND,
    MINUTE,
    SECOND,
    START,
    TYPE,
    WORKER,
    get_one,
    in_state,
    new_id,
    new_job,
    reserve,
    reserve_one,
    row,
    running,
    settle_one,
)

DAY = timedelta(days=1)
ENDED = (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED)


async def test_a_role_is_held_as_role_after_says(driver: Driver) -> None:
    """C65 BM19: taken, kept, refused, given up and lapsed, to the microsecond."""
    kept: RoleLease | None = None
    for holder, after, ttl in (
        ("a", NO_TIME, LEASE),
        ("b", LEASE - MICROSECOND, LEASE),
        ("a", LEASE - MICROSECOND, LEASE),
        ("a", LEASE, 2 * LEASE),
        ("b", 3 * LEASE - MICROSECOND, LEASE),
        ("b", 3 * LEASE, SECOND),
        ("b", 3 * LEASE + SECOND, SECOND),
        ("a", 3 * LEASE + MINUTE, LEASE),
    ):
        with row((holder, after)):
            answer = await driver.hold_role("leader", holder, ttl, now=START + after)
            expected = role_after(kept, "leader", holder, ttl, START + after)
            assert answer == expected
            kept = expected if expected.is_mine else kept


async def test_a_role_is_given_up_as_role_released_says(driver: Driver) -> None:
    """BM19: by its holder while it lasts, and by nobody else; the term is not used again."""
    kept = await driver.hold_role("leader", "a", LEASE, now=START)
    for holder, after in (
        ("b", SECOND),
        ("a", LEASE),
        ("a", LEASE - MICROSECOND),
        ("a", LEASE - MICROSECOND),
    ):
        with row((holder, after)):
            freed = role_released(kept, holder, START + after)
            assert await driver.release_role("leader", holder, now=START + after) is (freed is not None)
            kept = freed or kept
    now = START + LEASE
    assert await driver.hold_role("leader", "b", LEASE, now=now) == role_after(
        kept, "leader", "b", LEASE, now
    )


async def test_a_schedule_goes_on_as_advanced_says(driver: Driver) -> None:
    """I18: with ticks that fired and others, ahead, again, and behind."""
    rule = Schedule(name="nightly", every=MINUTE, template=NewJob(id="", type=TYPE))
    entry = await driver.put_schedule(rule, now=START)
    for number, (tick, fired) in enumerate(
        [(1, True), (1, False), (3, False), (2, True), (4, True), (4, False), (-1, True), (9, False)]
    ):
        with row((number, tick, fired)):
            now = START + (number + 1) * SECOND
            await driver.advance_schedule("nightly", START + tick * MINUTE, fired=fired, now=now)
            entry = advanced(entry, START + tick * MINUTE, now, fired=fired)
            assert await driver.schedules(now=now) == [entry]


async def test_a_finished_job_is_kept_as_retention_of_says(driver: Driver) -> None:
    """R08: by the queue, else by the harbor, else by the defaults of `Retention`; to the microsecond."""
    own = Retention(completed=MINUTE, failed=None, cancelled=HOUR)
    shared = Retention(completed=None, failed=2 * MINUTE, cancelled=3 * MINUTE)
    start = START
    for harbor in (None, shared):
        everywhere = QueueSettings(queue=EVERY_QUEUE, retention=harbor)
        await driver.configure_queue(everywhere, now=start)
        for retention in (None, own):
            for state in ENDED:
                with row((harbor, retention, state)):
                    settings = QueueSettings(queue=new_id(), retention=retention)
                    await driver.configure_queue(settings, now=start)
                    job = await in_state(driver, state, queue=settings.queue, now=start)
                    keep = retention_of(rules_of(settings), rules_of(everywhere)).of(state)
                    end = start + (1000 * DAY if keep is None else keep)
                    assert await driver.prune(now=end - MICROSECOND) == 0
                    assert await driver.prune(now=end) == (keep is not None)
                    assert (await driver.get([job.id], now=end) == [None]) is (keep is not None)
                    start = end


async def test_a_copy_is_claimed_as_may_take_says(driver: Driver) -> None:
    """R003-38: by the worker of the original, by slower ones before and after the head start, by others."""
    for worker in (WORKER, "slow", "slow é", "another"):
        for after in (NO_TIME, SECOND - MICROSECOND, SECOND, MINUTE):
            for head_start in (None, HeadStart(slower=("slow", "slow é"), span=SECOND)):
                with row((worker, after, head_start)):
                    original = await running(driver, queue=new_id(), lease_for=HOUR)
                    answer = await driver.speculate(original.id, head_start=head_start, now=START)
                    assert isinstance(answer, Speculated)
                    copy = await get_one(driver, answer.copy_id)
                    taken = await reserve(
                        driver, queues=(original.queue,), worker_id=worker, limit=2, now=START + after
                    )

                    is_taken = may_take(copy, original, worker, START + after)
                    assert [job.id for job in taken] == [copy.id] * is_taken


async def test_counts_start_again_as_resets_counts_says(driver: Driver) -> None:
    """K07 K08: of a job that waits with a past, by every pair of flags; a blocked one brings them along."""
    for data in (True, False):
        for reset in (None, True, False):
            for is_blocked in (False, True):
                with row((data, reset, is_blocked)):
                    queue, update = new_id(), Update(data=data, reset_counts=reset)
                    again = new_job(key=b"k", queue=queue, update=update)
                    job = await running(driver, key=b"k", queue=queue)
                    await settle_one(driver, Retry(job.lease, reason="once"), now=START)
                    if is_blocked:
                        job = await reserve_one(driver, queues=(queue,))
                        await driver.enqueue([again], now=START)
                        await settle_one(driver, Retry(job.lease, reason="twice"), now=START)
                    else:
                        await driver.enqueue([again], now=START)
                    attempts = 0 if update.resets_counts else 1 + is_blocked

                    assert (await get_one(driver, job.id)).attempts == attempts
