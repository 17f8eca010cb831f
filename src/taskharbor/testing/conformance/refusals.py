"""N: every error of every verb, and that nothing changes by any of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Claim, Query
from taskharbor.drivers.one_job import RetryUpdate
from taskharbor.errors import (
    InvalidArgument,
    InvalidLeaseDuration,
    JobNotInflight,
    LeaseExpired,
    LeaseLost,
    LeaseMismatch,
    TaskHarborError,
)
from taskharbor.model.job import JobRecord, Lease, NewJob
from taskharbor.model.queue import QueueSettings
from taskharbor.model.settlement import Ack, Fail, Retry
from taskharbor.model.state import JobState
from taskharbor.testing.conformance.kit import (
    LEASE,
    MICROSECOND,
    OTHER_WORKER,
    QUEUE,
    SECOND,
    START,
    UNKNOWN_ID,
    WORKER,
    WRONG_TOKEN,
    claim,
    enqueue_one,
    get_one,
    in_state,
    new_id,
    new_job,
    reserve,
    reserve_one,
    row,
    running,
    settle_one,
    unchanged,
)
from taskharbor.testing.conformance.verbs import LEASED_VERBS

END = START + LEASE
NOT_RUNNING = [state for state in JobState if state is not JobState.RUNNING]
# The one-job forms take id and token only; these also take a lease that names its holder.
NAMES_ITS_HOLDER = [
    verb for verb in LEASED_VERBS if verb.partition(" ")[0] in ("settle", "exchange", "extend_leases")
]


# ------------------------------------------------------------------ every lease error × every verb


async def test_no_verb_works_on_a_job_that_is_not_running(driver: Driver) -> None:
    """N05 R000-39 R001-19: ready, scheduled, blocked, completed, failed, cancelled and unknown."""
    for state in NOT_RUNNING:
        job = await in_state(driver, state, queue=f"kit-{state}")
        for name, verb in LEASED_VERBS.items():
            for token in {WRONG_TOKEN, job.settled_token or WRONG_TOKEN}:
                with row(f"{name} of a {state} job"):
                    async with unchanged(driver, job.id):
                        answer = await verb(driver, Lease(job.id, token), START)
                    assert isinstance(answer, JobNotInflight)
                    assert answer.job_id == job.id

    for name, verb in LEASED_VERBS.items():
        with row(f"{name} of an unknown job"):
            async with unchanged(driver, UNKNOWN_ID):
                answer = await verb(driver, Lease(UNKNOWN_ID, WRONG_TOKEN), START)
            assert isinstance(answer, JobNotInflight)


async def test_no_verb_works_with_another_token(driver: Driver) -> None:
    """N06: LeaseMismatch while the lease is valid; the holder ends the job as if nothing had been."""
    job = await running(driver, payload=b"work")
    neighbour = await running(driver)
    assert neighbour.token is not None

    for name, verb in LEASED_VERBS.items():
        with row(name):
            async with unchanged(driver, job.id, neighbour.id):
                answers = [
                    await verb(driver, Lease(job.id, token), START)
                    for token in (WRONG_TOKEN, neighbour.token, "", "x" * 300)
                    if token != job.token
                ]
            assert {type(answer) for answer in answers} == {LeaseMismatch}

    await settle_one(driver, Ack(job.lease))


async def test_no_verb_works_with_the_name_of_another_holder(driver: Driver) -> None:
    """N06: the token implies who claimed it; a lease that says otherwise is another lease."""
    job = await running(driver)
    foreign = msgspec.structs.replace(job.lease, worker_id=OTHER_WORKER)

    for name in NAMES_ITS_HOLDER:
        with row(name):
            async with unchanged(driver, job.id):
                answer = await LEASED_VERBS[name](driver, foreign, START)
            assert isinstance(answer, LeaseMismatch)


async def test_another_token_comes_before_an_expired_lease(driver: Driver) -> None:
    """N06 R001-21: LeaseMismatch also when the lease is over."""
    job = await running(driver)

    for name, verb in LEASED_VERBS.items():
        with row(name):
            async with unchanged(driver, job.id, now=END):
                answer = await verb(driver, Lease(job.id, WRONG_TOKEN), END)
            assert isinstance(answer, LeaseMismatch)


async def test_a_stale_worker_changes_nothing_in_any_of_three_situations(driver: Driver) -> None:
    """N05 N06 R000-43: expired; reclaimed and waiting; reclaimed and handed to its own next attempt."""
    for number, (name, verb) in enumerate(LEASED_VERBS.items()):
        with row(name):
            job = await running(driver, queue=f"kit-{number}")

            async with unchanged(driver, job.id, now=END):
                expired = await verb(driver, job.lease, END)
            await driver.reclaim(now=END)
            async with unchanged(driver, job.id, now=END):
                waiting = await verb(driver, job.lease, END)
            again = await reserve_one(driver, now=END, worker_id=WORKER, queues=(job.queue,))
            async with unchanged(driver, job.id, now=END):
                taken = await verb(driver, job.lease, END)

            assert (type(expired), type(waiting), type(taken)) == (
                LeaseExpired,
                JobNotInflight,
                LeaseMismatch,
            )
            await settle_one(driver, Ack(again.lease), now=END)


async def test_a_lease_error_names_the_job_and_nothing_secret(driver: Driver) -> None:
    """N07 N08: every one is a LeaseLost with the job's id; neither payload nor token are in its text."""
    job = await running(driver, payload=b"top secret payload")
    assert job.token is not None

    for name, verb in LEASED_VERBS.items():
        with row(name):
            errors = [
                await verb(driver, Lease(job.id, WRONG_TOKEN), START),
                await verb(driver, job.lease, END),
                await verb(driver, Lease(UNKNOWN_ID, job.token), START),
            ]

            assert [type(error) for error in errors] == [LeaseMismatch, LeaseExpired, JobNotInflight]
            for error in errors:
                assert isinstance(error, LeaseLost)
                assert error.job_id in str(error)
                assert not any(secret in repr(error) for secret in ("secret", job.token, WRONG_TOKEN))


async def test_the_one_job_forms_raise_what_the_batch_verbs_answer(driver: Driver) -> None:
    """N07: raised, not returned."""
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: driver.ack(UNKNOWN_ID, WRONG_TOKEN, START),
        lambda: driver.retry(UNKNOWN_ID, WRONG_TOKEN, START, RetryUpdate(attempts=1)),
        lambda: driver.fail(UNKNOWN_ID, WRONG_TOKEN, START, "broken"),
        lambda: driver.extend_lease(UNKNOWN_ID, WRONG_TOKEN, START, LEASE),
    ]

    for call in calls:
        with pytest.raises(JobNotInflight):
            await call()


# ------------------------------------------------------------------ invalid arguments


@pytest.mark.parametrize("lease_for", [timedelta(0), -MICROSECOND, -LEASE], ids=str)
async def test_a_lease_must_be_longer_than_nothing(driver: Driver, lease_for: timedelta) -> None:
    """N01 N02 E11 R001-10: reserve, extend and exchange, each InvalidLeaseDuration, nothing changed."""
    job, waiting = await running(driver), await enqueue_one(driver)
    assert job.token is not None

    async with unchanged(driver, job.id, waiting.id):
        with pytest.raises(InvalidLeaseDuration):
            await reserve(driver, lease_for=lease_for)
        with pytest.raises(InvalidLeaseDuration):
            await driver.reserve_one(QUEUE, START, lease_for)
        with pytest.raises(InvalidLeaseDuration):
            await driver.extend_leases([job.lease], lease_for, now=START)
        with pytest.raises(InvalidLeaseDuration):
            await driver.extend_lease(job.id, job.token, START, lease_for)
        with pytest.raises(InvalidLeaseDuration):
            await driver.exchange([Ack(job.lease)], claim(lease_for=lease_for), now=START)


async def test_an_invalid_argument_comes_before_a_lost_lease(driver: Driver) -> None:
    """N04: also before a name that is wrong as well."""
    with pytest.raises(InvalidLeaseDuration):
        await driver.extend_leases([Lease(UNKNOWN_ID, WRONG_TOKEN)], timedelta(0), now=START)
    with pytest.raises(InvalidLeaseDuration):
        await driver.exchange([Ack(Lease(UNKNOWN_ID, WRONG_TOKEN))], claim(lease_for=-SECOND), now=START)
    with pytest.raises(InvalidLeaseDuration):
        await reserve(driver, queues=("no name",), lease_for=timedelta(0))
    with pytest.raises(InvalidArgument):
        await driver.settle([Retry(Lease(UNKNOWN_ID, WRONG_TOKEN), delay=-SECOND)], now=START)


BAD_NAMES = [
    "",
    " ",
    "no name",
    "-first",
    ".first",
    "ümlaut",
    "x" * 129,
    "line\n",
    "a/b",
    "a:b",
    "a\0",
    None,
    7,
    b"q",
]
BAD_IDS = ["", "1", "x" * 36, UNKNOWN_ID.upper(), f" {UNKNOWN_ID}", f"{UNKNOWN_ID}\n", None, 7]
BAD_CLOCKS = [
    START.replace(tzinfo=None),
    datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC),
    datetime(2200, 1, 2, tzinfo=UTC),
    "2093-05-17",
    3892695000,
]


@pytest.mark.parametrize("name", BAD_NAMES, ids=repr)
async def test_a_name_that_is_none_never_reaches_the_store(driver: Driver, name: Any) -> None:
    """N15: as queue, type, lane or role, in every verb that takes one."""
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: driver.enqueue([new_job(queue=name)], now=START),
        lambda: driver.enqueue([new_job(type=name)], now=START),
        lambda: driver.enqueue([new_job(requires=name)], now=START),
        lambda: reserve(driver, queues=(name,)),
        lambda: reserve(driver, lanes=(name,)),
        lambda: reserve(driver, types=(name,)),
        lambda: driver.cancel_waiting(name, b"k", now=START),
        lambda: driver.configure_queue(QueueSettings(queue=name, paused=True), now=START),
        lambda: driver.find(Query(queue=name or " "), now=START),
        lambda: driver.count([name], now=START),
        lambda: driver.hold_role(name, WORKER, LEASE, now=START),
        lambda: driver.delete_schedule(name, now=START),
    ]

    await each_is_refused(driver, calls)


@pytest.mark.parametrize("job_id", BAD_IDS, ids=repr)
async def test_an_id_that_is_none_never_reaches_the_store(driver: Driver, job_id: Any) -> None:
    """N15: in every verb that takes ids from outside."""
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: driver.enqueue([new_job(id=job_id)], now=START),
        lambda: driver.get([job_id], now=START),
        lambda: driver.cancel([job_id], now=START),
        lambda: driver.requeue([job_id], now=START),
        lambda: driver.delete([job_id], now=START),
        lambda: driver.speculate(job_id, now=START),
    ]

    await each_is_refused(driver, calls)


@pytest.mark.parametrize("now", BAD_CLOCKS, ids=repr)
async def test_a_clock_that_cannot_be_right_never_reaches_the_store(driver: Driver, now: Any) -> None:
    """N15: `now` without a zone, out of range, or no instant at all, in every verb that takes one."""
    job = await running(driver)
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: driver.enqueue([new_job()], now=now),
        lambda: driver.reserve(claim(), now=now),
        lambda: driver.extend_leases([job.lease], LEASE, now=now),
        lambda: driver.settle([Ack(job.lease)], now=now),
        lambda: driver.exchange([Ack(job.lease)], claim(), now=now),
        lambda: driver.reclaim(now=now),
        lambda: driver.promote(now=now),
        lambda: driver.prune(now=now),
        lambda: driver.cancel([job.id], now=now),
        lambda: driver.cancel_waiting(QUEUE, b"k", now=now),
        lambda: driver.requeue([job.id], now=now),
        lambda: driver.delete([job.id], now=now),
        lambda: driver.get([job.id], now=now),
        lambda: driver.find(Query(), now=now),
        lambda: driver.count(now=now),
        lambda: driver.queues(now=now),
        lambda: driver.workers(now=now),
    ]

    await each_is_refused(driver, calls, job.id)


BAD_JOBS: list[dict[str, Any]] = [
    {"payload": "text"},
    {"payload": None},
    {"priority": 101},
    {"priority": -101},
    {"priority": 1.0},
    {"priority": True},
    {"max_attempts": -1},
    {"max_attempts": 1_000_001},
    {"max_stalls": -1},
    {"timeout": timedelta(microseconds=-1)},
    {"timeout": 30},
    {"run_at": "2093-05-17"},
    {"headers": {"number": 1}},
    {"headers": {1: "number"}},
    {"headers": {"lone": "\ud800"}},
    {"headers": {f"h{number}": "x" for number in range(65)}},
    {"headers": {"large": "x" * 20_000}},
    {"key": b""},
    {"key": b"x" * 256},
    {"key": "text"},
    {"idempotency_key": b""},
    {"idempotency_key": b"x" * 256},
    {"min_backoff": -SECOND},
    {"min_backoff": 2 * SECOND, "max_backoff": SECOND},
]


@pytest.mark.parametrize("fields", BAD_JOBS, ids=lambda fields: repr(fields)[:60])
async def test_a_malformed_job_never_reaches_the_store(driver: Driver, fields: dict[str, Any]) -> None:
    """N15 R001-3: refused, also between good ones."""
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: driver.enqueue([new_job(**fields)], now=START),
        lambda: driver.enqueue([new_job(), new_job(**fields), new_job()], now=START),
    ]

    await each_is_refused(driver, calls)


async def each_is_refused(driver: Driver, calls: list[Callable[[], Awaitable[object]]], *ids: str) -> None:
    """Every call raises InvalidArgument, and none of them changes anything."""
    async with unchanged(driver, *ids):
        for place, call in enumerate(calls):
            with pytest.raises(InvalidArgument):
                pytest.fail(f"call {place} was not refused: {await call()!r}")


@pytest.mark.parametrize("shape", [NewJob, Claim, Query, QueueSettings, Lease, JobRecord, Fail])
async def test_a_field_that_nobody_knows_is_refused(driver: Driver, shape: Any) -> None:
    """N16: a typing error does not pass in silence."""
    with pytest.raises(TypeError):
        shape(max_atempts=3)


# ------------------------------------------------------------------ callers that give up


@pytest.mark.parametrize("steps", range(6))
async def test_a_caller_that_gives_up_leaves_a_whole_job_or_none(driver: Driver, steps: int) -> None:
    """N12: an enqueue cancelled after some steps of the loop; asked again, the store knows which it was."""
    job = new_job(payload=b"whole")

    await given_up(driver.enqueue([job], now=START), steps)
    [stored] = await driver.get([job.id], now=START)
    [answer] = await driver.enqueue([job], now=START)

    assert stored is None or stored.payload == b"whole"
    assert answer.result == ("created" if stored is None else "duplicate")
    assert [entry.id for entry in await reserve(driver, limit=5)] == [job.id]


@pytest.mark.parametrize("steps", range(6))
async def test_a_claim_that_was_given_up_costs_a_lease_at_most(driver: Driver, steps: int) -> None:
    """N12: the job waits, or was handed back, or runs under a lease without a holder until that ends."""
    answer = await enqueue_one(driver)

    await given_up(driver.reserve(claim(), now=START), steps)
    record = await get_one(driver, answer.id)
    again = await reserve_one(driver, now=END)

    ways = [(JobState.READY, 0), (JobState.READY, 1), (JobState.RUNNING, 1)]
    assert (record.state, record.starts) in ways
    assert (again.id, again.starts) == (answer.id, record.starts + 1)
    await settle_one(driver, Ack(again.lease), now=END)


@pytest.mark.parametrize("steps", range(6))
async def test_a_settlement_that_was_given_up_can_be_looked_up(driver: Driver, steps: int) -> None:
    """N12: settled_token says whether it was stored; repeated, it is either accepted or not in flight."""
    job = await running(driver)

    await given_up(driver.settle([Ack(job.lease, b"42")], now=START), steps)
    record = await get_one(driver, job.id)
    [answer] = await driver.settle([Ack(job.lease, b"42")], now=START)

    was_stored = record.settled_token == job.token
    assert isinstance(answer, JobNotInflight) == was_stored
    assert (await get_one(driver, job.id)).result == b"42"


async def given_up(call: Awaitable[object], steps: int) -> None:
    """Start a call, let the loop take some steps, cancel it, and wait until it is over."""
    task = asyncio.ensure_future(call)
    for _ in range(steps):
        await asyncio.wait({task}, timeout=0)
    task.cancel()
    await asyncio.wait({task})
    error = None if task.cancelled() else task.exception()
    assert error is None or isinstance(error, TaskHarborError), error


async def test_one_bad_item_never_spoils_another(driver: Driver) -> None:
    """N05: of a hundred settlements the odd ones are refused, and every even one is stored."""
    await driver.enqueue([new_job() for _ in range(100)], now=START)
    jobs = await reserve(driver, limit=100)

    answers = await driver.settle(
        [
            Ack(Lease(new_id(), WRONG_TOKEN) if place % 2 else job.lease, b"%d" % place)
            for place, job in enumerate(jobs)
        ],
        now=START,
    )

    assert [isinstance(answer, LeaseLost) for answer in answers] == [False, True] * 50
    records = await driver.get([job.id for job in jobs], now=START)
    assert [job and job.state for job in records] == [JobState.COMPLETED, JobState.RUNNING] * 50
