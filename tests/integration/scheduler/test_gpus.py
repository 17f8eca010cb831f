"""Devices in process handlers, without a device: what they would see, and that no two see the same."""

from __future__ import annotations

import json

from taskharbor.model.state import JobState


async def results(harness, ids):
    records = await harness.all_ended(ids)
    assert [record.state for record in records] == [JobState.COMPLETED] * len(ids), records
    return [json.loads(record.result) for record in records]


async def test_a_process_handler_sees_its_own_device_from_its_first_import_on(sqlite_harness):
    harness = sqlite_harness
    harness.start_worker(kind="gpu", gpus="0,1", concurrency=8)
    ids = await harness.add_many(6, "grind", payload=b"0.2", requires="gpu")

    seen = await results(harness, ids)

    assert all(visible == gpu and ordinal == 0 for visible, gpu, ordinal in seen)
    assert {visible for visible, _, _ in seen} == {"0", "1"}
    spans = [
        (harness.notes("started", job_id)[0]["at"], harness.notes("ended", job_id)[0]["at"], gpu)
        for job_id, (_, gpu, _) in zip(ids, seen, strict=True)
    ]
    for began, ended, gpu in spans:
        beside = [other for other in spans if other[0] < ended and other[1] > began and other[2] == gpu]
        assert len(beside) == 1, "a device had two jobs at once"


async def test_a_job_that_needs_no_device_sees_none(sqlite_harness):
    harness = sqlite_harness
    harness.start_worker(kind="gpu", gpus="0")
    needs, needs_not = [await harness.add("grind", requires=lane) for lane in ("gpu", "any")]

    assert await results(harness, [needs, needs_not]) == [["0", "0", 0], ["", None, None]]


async def test_a_device_is_free_again_after_its_handler_was_killed(sqlite_harness):
    harness = sqlite_harness
    harness.start_worker(kind="gpu", gpus="0", patience=0.2)
    stuck = await harness.add("grind", payload=b"600", requires="gpu")
    await harness.note("started", stuck)

    await harness.driver.cancel([stuck])

    assert (await harness.ended(stuck)).state is JobState.CANCELLED
    assert await results(harness, [await harness.add("grind", requires="gpu")]) == [["0", "0", 0]]
