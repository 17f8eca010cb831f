"""What the recorder writes down, and that the checker can judge it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from taskharbor.drivers.memory import MemoryDriver
from taskharbor.drivers.messages import Claim
from taskharbor.drivers.relay import Relay
from taskharbor.errors import DriverUnavailable, InvalidArgument
from taskharbor.model.job import NewJob
from taskharbor.model.queue import QueueSettings
from taskharbor.model.settlement import Ack, Retry
from taskharbor.testing.history import (
    HistoryEvent,
    Recorded,
    Recorder,
    Terms,
    check,
    history_hash,
    into_file,
    read_history,
    recorded_runs,
    write_history,
)
from taskharbor.worker import Worker

ID = "01b8dac5-be00-7000-8000-00000000000{}"
CLAIM = Claim(queues=("default",), worker_id="w", limit=5)


def job(number: int = 1, **options) -> NewJob:
    return NewJob(id=ID.format(number), type="work", **options)


async def test_every_call_is_written_down_twice() -> None:
    events: list[HistoryEvent] = []

    async with Recorded(MemoryDriver(), Recorder("p", events.append)) as driver:
        await driver.enqueue([job()])
        [held] = (await driver.reserve(CLAIM)).jobs
        await driver.settle([Retry(held.lease), Ack(held.lease)])
        await driver.get([ID.format(1), ID.format(2)])

    assert [(event.kind, event.op) for event in events] == [
        ("invoke", "enqueue"),
        ("ok", "enqueue"),
        ("invoke", "reserve"),
        ("ok", "grant"),
        ("ok", "reserve"),
        ("invoke", "retry"),
        ("invoke", "ack"),
        ("ok", "retry"),
        ("fail", "ack"),
        ("invoke", "look"),
        ("invoke", "look"),
        ("ok", "look"),
        ("ok", "look"),
    ]
    assert [event.version for event in events if event.kind == "ok"] == [1, 2, 1, 3, 3, 0]
    assert check(events).is_sound


class Broken(Relay):
    error: BaseException = DriverUnavailable("nobody knows", done=None)

    async def carry(self, verb, args, now):
        raise self.error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (DriverUnavailable("not sent", done=False), "fail"),
        (DriverUnavailable("nobody knows", done=None), "unknown"),
        (InvalidArgument("never"), "fail"),
        (asyncio.CancelledError(), "unknown"),
        (RuntimeError("what?"), "unknown"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else value,
)
async def test_a_call_that_raises_is_certainly_not_done_or_unknown(error: BaseException, kind: str) -> None:
    events: list[HistoryEvent] = []
    inner = Broken(MemoryDriver())
    inner.error = error

    async with Recorded(inner, Recorder("p", events.append)) as driver:
        with pytest.raises(type(error)):
            await driver.enqueue([job()])

    assert [event.kind for event in events] == ["invoke", kind]


async def test_the_other_verbs_are_reported_too() -> None:
    events: list[HistoryEvent] = []

    async with Recorded(MemoryDriver(), Recorder("p", events.append)) as driver:
        await driver.configure_queue(QueueSettings(queue="default", max_running=3))
        driver.enqueue_blocking([job(), job(2, key=b"k")])
        [held, _] = (await driver.reserve(CLAIM)).jobs
        await driver.extend_leases([held.lease], CLAIM.lease_for)
        await driver.speculate(held.id)
        await driver.speculate(held.id)
        await driver.cancel([ID.format(2), ID.format(9)])
        await driver.cancel_waiting("default", b"k")
        await driver.exchange([Ack(held.lease)], CLAIM)
        await driver.requeue([held.id])
        await driver.delete([held.id])
        await driver.reclaim()

    ended = [(event.op, event.kind, event.result) for event in events if event.kind != "invoke"]
    assert ended == [
        ("configure", "ok", ""),
        ("enqueue", "ok", "created"),
        ("enqueue", "ok", "created"),
        ("grant", "ok", ""),
        ("grant", "ok", ""),
        ("reserve", "ok", ""),
        ("extend", "ok", ""),
        ("speculate", "ok", ""),
        ("speculate", "fail", "NotAllowedInState"),
        ("cancel", "ok", "requested"),
        ("cancel", "ok", "not_found"),
        ("cancel_waiting", "ok", "k"),
        ("ack", "ok", ""),
        ("reserve", "ok", ""),
        ("requeue", "ok", ""),
        ("delete", "fail", "NotAllowedInState"),
        ("sweep", "ok", ""),
    ]


async def test_a_real_worker_leaves_a_sound_history() -> None:
    events: list[HistoryEvent] = []
    recorder = Recorder("p", events.append)
    store = MemoryDriver()
    worker = Worker(Recorded(store, recorder))
    worker.use(recorded_runs(recorder))
    worker.register("work", _fails_once)

    async with store:
        await Recorded(store, recorder).open()
        driver = await Recorded(store.another(), recorder).open()
        await driver.enqueue([job(number, min_backoff=None, max_attempts=2) for number in range(1, 6)])
        await worker.arun(until_idle=True)
        await driver.get([ID.format(number) for number in range(1, 6)])

    verdict = check(events, Terms(is_drained=False))
    assert verdict.is_sound, verdict
    assert verdict.runs >= 5
    assert verdict.jobs == 5


def _fails_once(ctx, job):
    if job.id.endswith("1") and not job.attempts:
        raise ValueError("not yet")


async def test_what_a_killed_process_wrote_is_read_up_to_its_last_whole_line(tmp_path: Path) -> None:
    path, again = tmp_path / "history", tmp_path / "again"
    recorder = Recorder("p", into_file(path))
    async with Recorded(MemoryDriver(), recorder) as driver:
        await driver.enqueue([job()])
    recorder.mark("fault", "worker 1", "kill")
    path.write_bytes(path.read_bytes() + b'{"kind":"ok","op"')

    events = list(read_history(path))
    write_history(events, again)

    assert [event.op for event in events] == ["enqueue", "enqueue", "fault"]
    assert history_hash(read_history(again)) == history_hash(events)
