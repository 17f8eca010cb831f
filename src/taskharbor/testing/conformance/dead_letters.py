"""F: the bad end, what is kept of it, and the way back."""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Settled
from taskharbor.errors import (
    JobNotInflight,
    LeaseExpired,
    LeaseMismatch,
)
from taskharbor.model.job import FAILURE_TYPE, FailureKind, Lease
from taskharbor.model.queue import QueueSettings
from taskharbor.model.settlement import Fail, Retry
from taskharbor.model.state import TERMINAL, JobState
from taskharbor.testing.conformance.kit import (
    HOUR,
    LEASE,
    MINUTE,
    QUEUE,
    SECOND,
    START,
    UNKNOWN_ID,
    WRONG_TOKEN,
    enqueue_one,
    found_ids,
    get_one,
    in_state,
    new_id,
    refused,
    reserve,
    reserve_one,
    running,
    settle_one,
    unchanged,
)

END = START + LEASE
FAIL_QUEUE = "kit-failures"
FULL: dict[str, Any] = {
    "payload": b"\x00\xff work",
    "headers": {"codec": "raw"},
    "priority": 9,
    "requires": "gpu",
    "max_attempts": 5,
    "max_stalls": 2,
    "key": b"user:7",
}


async def test_a_failed_job_says_why(driver: Driver) -> None:
    """F01 F02 F10: the whole record: the last attempt counted, everything of the job kept."""
    job = await running(driver, **FULL)
    before = await get_one(driver, job.id)
    now = START + SECOND

    answer = await settle_one(driver, Fail(job.lease, "no such user", FailureKind.UNRECOVERABLE), now=now)
    after = await get_one(driver, job.id, now=now)

    assert answer == Settled(job.id, JobState.FAILED, now, job.version + 1)
    assert after == msgspec.structs.replace(
        before,
        state=JobState.FAILED,
        attempts=1,
        last_error="no such user",
        failure_kind="unrecoverable",
        failed_at=now,
        finished_at=now,
        updated_at=now,
        version=before.version + 1,
        lease_expires_at=None,
        worker_id=None,
        settled_token=job.token,
        history=after.history,
    )
    assert [entry.outcome for entry in after.history] == ["failed"]


async def test_a_fail_needs_the_token_in_time_and_a_running_job(driver: Driver) -> None:
    """F03 F04 F05: each refused with its error, and nothing is dead."""
    job = await running(driver)
    waiting = await enqueue_one(driver)

    async with unchanged(driver, job.id, waiting.id):
        mismatch = await refused(driver, Fail(Lease(job.id, WRONG_TOKEN), "no"))
        not_running = await refused(driver, Fail(Lease(waiting.id, WRONG_TOKEN), "no"))
    async with unchanged(driver, job.id, waiting.id, now=END):
        expired = await refused(driver, Fail(job.lease, "no"), now=END)

    assert (type(mismatch), type(not_running), type(expired)) == (LeaseMismatch, JobNotInflight, LeaseExpired)
    assert await found_ids(driver, states=(JobState.FAILED,)) == []


async def test_a_repeated_fail_leaves_one_dead_letter(driver: Driver) -> None:
    """F06: the second is answered JobNotInflight, and there is one failure job."""
    await driver.configure_queue(QueueSettings(queue=QUEUE, fail_queue=FAIL_QUEUE), now=START)
    job = await running(driver)

    await settle_one(driver, Fail(job.lease, "broken"))
    answer = await refused(driver, Fail(job.lease, "broken"))

    assert isinstance(answer, JobNotInflight)
    assert await found_ids(driver, states=(JobState.FAILED,)) == [job.id]
    assert len(await found_ids(driver, queue=FAIL_QUEUE)) == 1


async def test_the_first_failure_of_an_idle_fail_queue_is_reported(driver: Driver) -> None:
    """F07: a fail queue that never held a job gets its first; it describes the failed one completely."""
    await driver.configure_queue(QueueSettings(queue=QUEUE, fail_queue=FAIL_QUEUE), now=START)
    job = await running(driver, **FULL)
    await settle_one(driver, Fail(job.lease, "no such user", FailureKind.UNRECOVERABLE), now=START + SECOND)

    failure = await reserve_one(driver, queues=(FAIL_QUEUE,), now=START + SECOND)

    assert (failure.type, failure.queue, failure.attempts, failure.run_at) == (
        FAILURE_TYPE,
        FAIL_QUEUE,
        0,
        None,
    )
    assert (failure.max_attempts, failure.max_stalls) == (100, 3)
    assert (failure.min_backoff, failure.max_backoff) == (10 * SECOND, 15 * MINUTE)
    assert msgspec.json.decode(failure.payload) == {
        "id": job.id,
        "type": job.type,
        "queue": QUEUE,
        "key": "user:7",
        "payload": base64.b64encode(FULL["payload"]).decode(),
        "error": "no such user",
        "failure_kind": "unrecoverable",
        "attempts": 1,
        "stalls": 0,
    }


async def test_without_a_fail_queue_the_dead_letter_is_all(driver: Driver) -> None:
    """F07: nothing else appears, and the record stays."""
    job = await running(driver)

    await settle_one(driver, Fail(job.lease, "broken"))

    assert await found_ids(driver) == [job.id]


async def test_a_failure_job_that_fails_makes_no_other(driver: Driver) -> None:
    """F07: it goes to the dead letters only, also where its own queue has a fail queue."""
    for queue in (QUEUE, FAIL_QUEUE):
        await driver.configure_queue(QueueSettings(queue=queue, fail_queue=FAIL_QUEUE), now=START)
    job = await running(driver)
    await settle_one(driver, Fail(job.lease, "broken"))
    failure = await reserve_one(driver, queues=(FAIL_QUEUE,))

    await settle_one(driver, Fail(failure.lease, "nobody listens"))

    assert await found_ids(driver) == [job.id, failure.id]
    assert await found_ids(driver, states=(JobState.FAILED,)) == [job.id, failure.id]


async def test_the_fail_queue_of_the_harbor_serves_queues_without_their_own(driver: Driver) -> None:
    """F07: the queue's own setting wins over the one under `*`."""
    await driver.configure_queue(QueueSettings(queue="*", fail_queue="kit-every-failure"), now=START)
    await driver.configure_queue(QueueSettings(queue="kit-own", fail_queue=FAIL_QUEUE), now=START)
    for queue in (QUEUE, "kit-own"):
        job = await running(driver, queue=queue)
        await settle_one(driver, Fail(job.lease, "broken"))

    assert len(await found_ids(driver, queue="kit-every-failure")) == 1
    assert len(await found_ids(driver, queue=FAIL_QUEUE)) == 1


async def test_dead_letters_are_listed_once_and_nowhere_else(driver: Driver) -> None:
    """F08 F09 R001-5: one list, never handed out, never counted among the others."""
    job = await in_state(driver, JobState.FAILED)

    lists = {state: await found_ids(driver, states=(state,)) for state in JobState}
    counts = (await driver.count(now=START))[QUEUE]

    assert lists == {state: [job.id] if state is JobState.FAILED else [] for state in JobState}
    assert (counts.failed, counts.total) == (1, 1)
    assert await reserve(driver, limit=10, now=START + HOUR) == []


async def test_finished_jobs_are_never_listed_as_ready(driver: Driver) -> None:
    """F09 R001-27: each state lists its own jobs and no others."""
    made = {state: (await in_state(driver, state, queue=f"kit-{state}")).id for state in JobState}

    for state, job_id in made.items():
        assert await found_ids(driver, queue=f"kit-{state}", states=(state,)) == [job_id]
    ready = await found_ids(driver, states=(JobState.READY,))

    assert ready == [made[JobState.READY]]


async def test_death_by_attempts_and_by_stalls_can_be_distinguished(driver: Driver) -> None:
    """F16: by kind, by counters, and by a listing for one kind."""
    failed = await running(driver, max_attempts=1)
    await settle_one(driver, Fail(failed.lease, "broken"))
    stalled = await running(driver, max_stalls=1)
    await driver.reclaim(now=END)

    records = await driver.get([failed.id, stalled.id], now=END)

    assert [(job and (job.failure_kind, job.attempts, job.stalls)) for job in records] == [
        ("error", 1, 0),
        ("stalled", 0, 1),
    ]
    assert await found_ids(driver, failure_kind="stalled") == [stalled.id]


async def test_the_end_of_a_failed_job_frees_its_key_and_its_place(driver: Driver) -> None:
    """F17: in the same step the job blocked behind it is released, and max_running has room."""
    await driver.configure_queue(QueueSettings(queue=QUEUE, max_running=1), now=START)
    job = await running(driver, key=b"k")
    blocked = await enqueue_one(driver, key=b"k")
    full = await reserve(driver)

    await settle_one(driver, Fail(job.lease))
    taken = await reserve(driver, limit=5)

    assert full == []
    assert [entry.id for entry in taken] == [blocked.id]


# ------------------------------------------------------------------ forgetting


async def test_a_finished_job_can_be_deleted(driver: Driver) -> None:
    """F09: each for itself; what lives is refused, what is unknown not found, and the id is free again."""
    over = [(await in_state(driver, state)).id for state in sorted(TERMINAL)]
    alive = await running(driver)

    answers = await driver.delete([*over, alive.id, UNKNOWN_ID, over[0]], now=START)

    assert [type(answer).__name__ for answer in answers] == [
        *["Deleted"] * 3,
        "NotAllowedInState",
        "JobNotFound",
        "JobNotFound",
    ]
    assert await driver.get(over, now=START) == [None, None, None]
    assert await found_ids(driver) == [alive.id]


async def test_a_deleted_job_leaves_nothing_behind(driver: Driver) -> None:
    """F09: no lease to reclaim, no key held, no count."""
    over = await in_state(driver, JobState.FAILED, key=b"k", id=new_id())

    await driver.delete([over.id], now=START)
    fresh = await enqueue_one(driver, key=b"k", id=over.id)

    assert (fresh.id, fresh.result) == (over.id, "created")
    assert await driver.reclaim(now=START + HOUR) == []
    job = await reserve_one(driver)
    await settle_one(driver, Retry(job.lease))
