"""Presence: who is at work, how fast, and how long a type usually takes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from taskharbor.drivers.contract import Driver
from taskharbor.errors import InvalidArgument
from taskharbor.model.presence import GpuUse, Machine, Sample, WorkerReport
from taskharbor.testing.conformance.kit import LEASE, MICROSECOND, START, new_id, row


def ms(number: float) -> timedelta:
    return timedelta(milliseconds=number)


async def report(
    driver: Driver, worker_id: str, *samples: Sample, now: datetime = START, ttl: timedelta = LEASE
) -> None:
    await driver.report_worker(WorkerReport(worker_id=worker_id), samples, ttl, now=now)


async def latencies(driver: Driver, now: datetime = START) -> dict[str, timedelta | None]:
    """Worker → its average, in the order of the ranking."""
    return {info.report.worker_id: info.latency for info in await driver.workers(now=now)}


async def test_a_report_comes_back_as_it_was(driver: Driver) -> None:
    """R003-28: every field of it."""
    report = WorkerReport(
        worker_id="worker-é 🐍:1",
        name="worker",
        kind="gpu",
        queues=("kit", "mail"),
        lanes=("gpu", "any"),
        types=("kit.a", "kit.b"),
        concurrency=7,
        running=(new_id(), new_id()),
        host="höst",
        pid=4711,
        started_at=START - LEASE,
        unresolved=("app.gone",),
        labels={"zone": "a", "ü": "🐍 é"},
        is_quiet=True,
        release="4f2a9c1 é",
        machine=Machine(cores=16, load=11.25, memory=2**36, memory_used=2**35 + 1, store_s=0.0009),
        gpus=(
            GpuUse(id="0", name="H100", memory=2**36, memory_used=5, use=0.97, celsius=68.0, job=new_id()),
            GpuUse(id="GPU-1"),
        ),
    )

    await driver.report_worker(report, ttl=LEASE, now=START)

    [info] = await driver.workers(now=START)
    assert info.report == report
    assert (info.seen_at, info.expires_at, info.latency, info.samples) == (START, START + LEASE, None, 0)


ENDLESS: dict[str, Any] = {
    "worker_id": "w" * 256,
    "name": "n" * 256,
    "kind": "no name",
    "queues": ("q",) * 10_001,
    "lanes": ("a b",),
    "types": tuple(f"{number:0128d}" for number in range(2049)),
    "unresolved": tuple(f"{number:0128d}" for number in range(2049)),
    "concurrency": 10**7,
    "running": ("no id",),
    "host": "\x1b[2J",
    "pid": 2**31,
    "started_at": datetime(1, 1, 1, tzinfo=UTC),
    "labels": {"a": "x" * 1001},
    "release": "x" * 256,
    "machine": Machine(memory=2**62),
    "gpus": tuple(GpuUse(id=str(number)) for number in range(65)),
}


async def test_what_a_worker_says_about_itself_has_limits(driver: Driver) -> None:
    """A report is kept in the store, listed, and printed on terminals."""
    assert set(ENDLESS) == set(WorkerReport.__struct_fields__) - {"is_quiet"}
    for field, value in ENDLESS.items():
        with row(field), pytest.raises(InvalidArgument):
            await driver.report_worker(WorkerReport(**{"worker_id": "a", field: value}), now=START)
    for labels in ({"a\n": ""}, {"a": "\x00"}, {"": "", **{f"l{number}": "" for number in range(64)}}):
        with row(labels), pytest.raises(InvalidArgument):
            await driver.report_worker(WorkerReport(worker_id="a", labels=labels), now=START)
    report = WorkerReport(worker_id="a")
    with pytest.raises(InvalidArgument):
        await driver.report_worker(report, [Sample("kit.a", ms(1))] * 10_001, now=START)
    for ttl in (timedelta(days=1, microseconds=1), timedelta(days=3660), -ms(1)):
        with row(ttl), pytest.raises(InvalidArgument):
            await driver.report_worker(report, ttl=ttl, now=START)
    with pytest.raises(InvalidArgument):
        await driver.hold_role("leader", "a", timedelta(days=2), now=START)
    assert await driver.workers(now=START) == []

    await driver.report_worker(report, ttl=timedelta(days=1), now=START)
    assert [info.report for info in await driver.workers(now=START)] == [report]


async def test_a_report_lapses_exactly_at_its_end(driver: Driver) -> None:
    """G15: one microsecond earlier it still counts."""
    await report(driver, "a")

    assert list(await latencies(driver, START + LEASE - MICROSECOND)) == ["a"]
    assert await driver.workers(now=START + LEASE) == []


async def test_a_new_report_replaces_the_old_one(driver: Driver) -> None:
    """R003-28: and its time is counted again from there."""
    await report(driver, "a")
    later = START + LEASE - MICROSECOND

    await driver.report_worker(WorkerReport(worker_id="a", concurrency=3), ttl=LEASE, now=later)

    [info] = await driver.workers(now=START + LEASE)
    assert (info.report.concurrency, info.seen_at, info.expires_at) == (3, later, later + LEASE)


async def test_the_average_weighs_a_new_sample_with_a_fifth(driver: Driver) -> None:
    """R003-28: 100 then 200 make 120, in one report or in two; the first is taken as it is."""
    await report(driver, "a", Sample("kit.a", ms(100)))
    assert await latencies(driver) == {"a": ms(100)}
    await report(driver, "a", Sample("kit.a", ms(200)))
    await report(driver, "b", Sample("kit.a", ms(100)), Sample("kit.b", ms(200)))

    assert await latencies(driver) == {"a": ms(120), "b": ms(120)}
    await report(driver, "a", Sample("kit.a", ms(20)))
    assert (await latencies(driver))["a"] == ms(100)
    assert {info.report.worker_id: info.samples for info in await driver.workers(now=START)} == {
        "a": 3,
        "b": 2,
    }


async def test_a_report_without_samples_keeps_the_average(driver: Driver) -> None:
    """R003-29: being alive is no measurement."""
    await report(driver, "a", Sample("kit.a", ms(100)))

    await report(driver, "a")

    assert await latencies(driver) == {"a": ms(100)}


async def test_workers_are_ranked_fastest_first(driver: Driver) -> None:
    """R003-28: those without a sample last."""
    await report(driver, "unknown-b")
    await report(driver, "slow", Sample("kit.a", ms(900)))
    await report(driver, "unknown-a")
    await report(driver, "instant", Sample("kit.a", ms(0)))
    await report(driver, "fast", Sample("kit.a", ms(10)))

    assert list(await latencies(driver)) == ["instant", "fast", "slow", "unknown-a", "unknown-b"]


async def test_the_average_is_dropped_with_the_lapsed_report(driver: Driver) -> None:
    """R003-28: a worker of that name starts from the beginning."""
    await report(driver, "a", Sample("kit.a", ms(100)))

    await report(driver, "a", now=START + LEASE)

    assert await latencies(driver, START + LEASE) == {"a": None}


async def test_a_worker_that_leaves_is_forgotten(driver: Driver) -> None:
    """R003-28: and says whether it was there."""
    await report(driver, "a", Sample("kit.a", ms(100)))
    await report(driver, "b")

    assert await driver.forget_worker("a", now=START)
    assert not await driver.forget_worker("a", now=START)
    assert not await driver.forget_worker("never-seen", now=START)

    assert list(await latencies(driver)) == ["b"]
    await report(driver, "a")
    assert (await latencies(driver))["a"] is None


async def test_a_worker_whose_report_has_lapsed_was_not_there(driver: Driver) -> None:
    """G15: leaving at that very instant is too late, one microsecond earlier it is not."""
    await report(driver, "a")
    await report(driver, "b")

    assert await driver.forget_worker("a", now=START + LEASE - MICROSECOND)
    assert not await driver.forget_worker("b", now=START + LEASE)


async def test_types_have_a_usual_duration_over_all_workers(driver: Driver) -> None:
    """R003-28: by name, and kept when the workers are gone."""
    await report(driver, "a", Sample("kit.b", ms(100)), Sample("kit.a", ms(7)))
    await report(driver, "b", Sample("kit.b", ms(200)))
    await driver.forget_worker("a", now=START)

    types = await driver.types(now=START + 10 * LEASE)

    assert [(info.type, info.usual, info.samples) for info in types] == [
        ("kit.a", ms(7), 1),
        ("kit.b", ms(120), 2),
    ]


async def test_several_samples_of_a_type_in_one_report_are_folded_in_their_order(driver: Driver) -> None:
    """R003-28: as if each had come by itself."""
    await report(driver, "a", *(Sample("kit.a", ms(number)) for number in (100, 200, 20)))

    [info] = await driver.types(now=START)

    assert (info.usual, info.samples) == (ms(100), 3)


async def test_every_handle_sees_the_same_workers(driver: Driver) -> None:
    """R003-29: the averages are folded in the store."""
    await report(driver, "a", Sample("kit.a", ms(100)))

    async with driver.another() as second:
        await report(second, "a", Sample("kit.a", ms(200)))

    assert await latencies(driver) == {"a": ms(120)}


async def test_a_report_that_makes_no_sense_is_refused(driver: Driver) -> None:
    """N15: and nothing of it is kept."""
    with pytest.raises(InvalidArgument):
        await report(driver, "")
    with pytest.raises(InvalidArgument):
        await report(driver, "a", Sample("a b", ms(1)))
    with pytest.raises(InvalidArgument):
        await report(driver, "a", Sample("kit.a", ms(-1)))

    assert await driver.workers(now=START) == []
    assert await driver.types(now=START) == []
