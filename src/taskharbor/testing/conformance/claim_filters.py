"""B: which jobs a claim asks for: queues, lanes and types, and what makes no sense."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
import pytest

from taskharbor.drivers.contract import Driver
from taskharbor.errors import InvalidArgument
from taskharbor.model.checks import MAX_BATCH
from taskharbor.model.edit import Edit
from taskharbor.model.queue import QueueSettings
from taskharbor.model.settlement import Ack, Fail, Release, Retry
from taskharbor.model.state import JobState
from taskharbor.testing.conformance.kit import (
    LEASE,
    MINUTE,
    OTHER_QUEUE,
    QUEUE,
    SECOND,
    START,
    claim,
    either_clock,
    enqueue,
    enqueue_one,
    get_one,
    in_state,
    new_id,
    new_job,
    new_jobs,
    reserve,
    reserve_one,
    running,
    settle_one,
    unchanged,
)


@either_clock
async def test_a_claim_for_types_takes_only_those(driver: Driver, now: datetime | None) -> None:
    """B17 R11: (Claim.types) the others wait untouched, and the order among the wanted stays."""
    ids = {
        name: (await enqueue_one(driver, type=name, priority=priority, now=now)).id
        for name, priority in (("mail", 0), ("video", 9), ("audio", 5), ("chat", 100))
    }

    async with unchanged(driver, ids["mail"], ids["chat"]):
        nothing = await reserve(driver, types=("unknown",), limit=10, now=now)
    taken = await reserve(driver, types=("audio", "video"), limit=10, now=now)
    rest = await reserve(driver, limit=10, now=now)

    assert nothing == []
    assert [job.id for job in taken] == [ids["video"], ids["audio"]]
    assert [job.id for job in rest] == [ids["chat"], ids["mail"]]


@either_clock
async def test_a_claim_for_types_sees_past_any_number_of_others(driver: Driver, now: datetime | None) -> None:
    """R11: (Claim.types) five hundred jobs of an unknown type do not hide one of a known type."""
    await driver.enqueue(new_jobs(500, type="kit.unknown", priority=50), now=now)
    wanted = [
        (await enqueue_one(driver, type="kit.known", requires=lane, now=now)).id for lane in ("any", "gpu")
    ]

    taken = await reserve(driver, types=("kit.known",), limit=10, lanes=("gpu", "any"), now=now)

    assert [job.id for job in taken] == [wanted[1], wanted[0]]


@either_clock
async def test_a_claim_for_types_keeps_the_order_of_all_of_them(driver: Driver, now: datetime | None) -> None:
    """B17: (Claim.types) priority, then time, then place, across types, with others between them."""
    ids: list[tuple[int, str]] = []
    for place in range(60):
        wanted = new_job(type=("kit.a", "kit.b", "kit.c")[place * 7 % 3], priority=place * 5 % 4)
        others = [new_job(type=f"kit.other{number % 3}", priority=number % 4) for number in range(12)]
        await enqueue(driver, *others[:6], wanted, *others[6:], now=now)
        ids.append((-wanted.priority, wanted.id))
    ids.sort(key=lambda entry: entry[0])

    taken = []
    for limit in (1, 2, 7, 50):
        taken += await reserve(driver, types=("kit.a", "kit.b", "kit.c", "kit.d"), limit=limit, now=now)

    assert [job.id for job in taken] == [job_id for _, job_id in ids]


async def test_a_type_that_was_edited_is_the_one_that_counts(driver: Driver) -> None:
    """B17: (Claim.types) a requeue that changes the type moves the job to those who know the new one."""
    job = await in_state(driver, JobState.FAILED, type="kit.old")
    await driver.requeue([job.id], edit=Edit(type="kit.new"), now=START)

    assert await reserve(driver, types=("kit.old",), limit=10) == []
    assert [taken.id for taken in await reserve(driver, types=("kit.new",), limit=10)] == [job.id]


async def test_a_claim_for_types_reclaims_and_promotes_like_any_other(driver: Driver) -> None:
    """R11: (Claim.types) expired and due jobs of the type come back, expired ones of others too."""
    expired = await running(driver, type="kit.known")
    other = await running(driver, type="kit.other")
    due = await enqueue_one(driver, type="kit.known", run_at=START + LEASE)

    taken = await reserve(driver, types=("kit.known",), limit=10, now=START + LEASE)

    assert {job.id for job in taken} == {expired.id, due.id}
    assert (await get_one(driver, other.id, now=START + LEASE)).state is JobState.READY


@pytest.mark.parametrize(
    "fields",
    [
        {"types": ()},
        {"types": ("",)},
        {"types": ("a", "a")},
        {"limit": 0},
        {"limit": -1},
        {"limit": MAX_BATCH + 1},
        {"limit": True},
        {"queues": ()},
        {"queues": (QUEUE, QUEUE)},
        {"lanes": ()},
        {"worker_id": ""},
        {"worker_id": "line\nbreak"},
    ],
    ids=str,
)
async def test_a_claim_that_makes_no_sense_is_refused(driver: Driver, fields: dict[str, Any]) -> None:
    """B18 B21: and takes nothing."""
    answer = await enqueue_one(driver)

    async with unchanged(driver, answer.id):
        with pytest.raises(InvalidArgument):
            await reserve(driver, **fields)


async def test_a_claim_never_sees_another_queue(driver: Driver) -> None:
    """B23 R001-7: not even when its own is empty, nor one whose name begins alike."""
    others = await enqueue(
        driver, *(new_job(queue=name) for name in (OTHER_QUEUE, f"{QUEUE}.", f"{QUEUE}-1", "k"))
    )

    async with unchanged(driver, *others):
        assert await reserve(driver, limit=10) == []


async def test_a_paused_queue_hands_out_nothing(driver: Driver) -> None:
    """B26: nothing changes while it is paused, a running job may end, and the queue goes on afterwards."""
    job = await running(driver)
    waiting = await enqueue_one(driver)
    elsewhere = await enqueue_one(driver, queue=OTHER_QUEUE)
    await driver.configure_queue(QueueSettings(queue=QUEUE, paused=True), now=START)

    async with unchanged(driver, job.id, waiting.id):
        taken = await reserve(driver, queues=(QUEUE,), limit=10)
    others = await reserve(driver, queues=(QUEUE, OTHER_QUEUE), limit=10)
    await settle_one(driver, Ack(job.lease))
    await driver.configure_queue(QueueSettings(queue=QUEUE, paused=False), now=START)

    assert taken == []
    assert [job.id for job in others] == [elsewhere.id]
    assert (await reserve_one(driver)).id == waiting.id


@either_clock
@pytest.mark.parametrize("idle", [0, 300])
async def test_queues_are_served_in_the_order_of_the_claim(
    driver: Driver, idle: int, now: datetime | None
) -> None:
    """B20: the first queue empties before the second is looked at, whatever is more urgent there."""
    for name, priority in (("kit-b", 9), ("kit-a", 0), ("kit-c", 100), ("kit-a", 1)):
        await enqueue_one(driver, queue=name, priority=priority, now=now)
    queues = ("kit-a", *(f"kit-idle{number}" for number in range(idle)), "kit-b")

    taken = (await driver.reserve(claim(queues=queues, limit=10), now=now)).jobs

    assert [(job.queue, job.priority) for job in taken] == [("kit-a", 1), ("kit-a", 0), ("kit-b", 9)]
    assert (await driver.reserve(claim(queues=queues, limit=10), now=now)).jobs == []


async def test_a_claim_for_many_queues_does_all_that_one_for_few_does(driver: Driver) -> None:
    """B20: it reclaims, promotes, honours pauses and limits among queues where nothing is."""
    names = [f"kit-{number}" for number in range(300)]
    expired = await running(driver, queue="kit-7")
    due = await enqueue_one(driver, queue="kit-9", run_at=START + LEASE)
    await enqueue(driver, new_job(queue="kit-11"), *(new_job(queue="kit-13") for _ in range(3)))
    await driver.configure_queue(QueueSettings(queue="kit-11", paused=True), now=START)
    await driver.configure_queue(QueueSettings(queue="kit-13", max_running=1), now=START)

    await enqueue(driver, new_job(queue="null"))  # a word that means something to some stores
    names += ["null", "NULL"]

    taken = (await driver.reserve(claim(queues=names, limit=10), now=START + LEASE)).jobs

    assert [job.queue for job in taken] == ["kit-7", "kit-9", "kit-13", "null"]
    assert [job.id for job in taken[:2]] == [expired.id, due.id]


@either_clock
@pytest.mark.parametrize(
    ("lanes", "wanted"),
    [
        (("cpu", "any"), ["cpu", "any"]),
        (("gpu", "any"), ["gpu", "any"]),
        (("any",), ["any"]),
        (("any", "cpu", "gpu"), ["any", "cpu", "gpu"]),
        (("fpga",), []),
    ],
    ids=str,
)
async def test_lanes_are_served_in_the_order_of_the_claim(
    driver: Driver, lanes: tuple[str, ...], wanted: list[str], now: datetime | None
) -> None:
    """B20 R003-6 R003-7: the lane named first wins over age and priority; unnamed ones are never touched."""
    for lane, priority in (("any", 100), ("cpu", 0), ("gpu", 50)):
        await enqueue_one(driver, requires=lane, priority=priority, now=now)

    taken = await reserve(driver, lanes=lanes, limit=10, now=now)

    assert [job.requires for job in taken] == wanted


@either_clock
@pytest.mark.parametrize("types", [None, ("kit.job",)], ids=["all-types", "some-types"])
async def test_one_claim_hands_out_all_kinds_of_jobs_in_order(
    driver: Driver, types: tuple[str, ...] | None, now: datetime | None
) -> None:
    """B14 B20: by queue, lane, priority, time and place, whatever else they have; each as it is stored."""
    ids = sorted((new_id() for _ in range(24)), reverse=True)
    await enqueue(
        driver, *(new_job(id=id_, **_some_kind(place, id_)) for place, id_ in enumerate(ids)), now=now
    )
    back = await reserve_one(driver, limit=1, now=now)
    await settle_one(driver, Release(back.lease), now=now)

    queues, lanes = (QUEUE, OTHER_QUEUE), ("any", "gpu")
    taken = await reserve(driver, queues=queues, lanes=lanes, types=types, limit=100, now=now)

    assert {job.id for job in taken} == set(ids)
    places = [(queues.index(job.queue), lanes.index(job.requires), -job.priority, job.seq) for job in taken]
    assert places == sorted(places)
    stored = await driver.get([job.id for job in taken], now=now)
    assert [msgspec.structs.replace(job, token=None) for job in taken] == stored


def _some_kind(place: int, job_id: str) -> dict[str, Any]:
    kinds: list[dict[str, Any]] = [
        {},
        {"priority": 5},
        {"requires": "gpu"},
        {"queue": OTHER_QUEUE},
        {"headers": {"a": "b"}},
        {"timeout": MINUTE, "min_backoff": SECOND},
        {"key": job_id.encode()},
        {"idempotency_key": job_id.encode()},
    ]
    return kinds[place % len(kinds)]


@pytest.mark.parametrize("way", ["retry", "release", "reclaim", "requeue"])
async def test_a_job_comes_back_with_its_lane_and_priority(driver: Driver, way: str) -> None:
    """B14 R003-19: whatever brought it back, a gpu job of priority 42 is one again."""
    job = await running(driver, requires="gpu", priority=42)
    plain = await enqueue_one(driver, requires="gpu", priority=41)
    now = START + LEASE if way == "reclaim" else START
    match way:
        case "retry":
            await settle_one(driver, Retry(job.lease))
        case "release":
            await settle_one(driver, Release(job.lease))
        case "reclaim":
            await driver.reclaim(now=now)
        case "requeue":
            await settle_one(driver, Fail(job.lease))
            await driver.requeue([job.id], now=now)

    nobody = await reserve(driver, lanes=("cpu", "any"), limit=10, now=now)
    taken = await reserve(driver, lanes=("gpu",), limit=10, now=now)

    assert nobody == []
    assert [entry.id for entry in taken] == [job.id, plain.id]
    assert (taken[0].requires, taken[0].priority) == ("gpu", 42)
