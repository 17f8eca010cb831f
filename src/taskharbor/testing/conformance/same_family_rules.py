"""One rule, every language, for families: each record is what `model/family_steps.py` makes of it.

As `same_rules`. Families in which nothing has failed, and large ones, go the fast ways of a store, the others
the careful ones.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Noted
from taskharbor.model.family_steps import (
    family_of,
    finished,
    may_be_seen_over,
    released,
    stopped,
    with_child,
    with_end,
    with_notes,
)
from taskharbor.model.job import JobRecord, Lease, NewJob, Note
from taskharbor.model.settlement import Ack, Cancelled, Fail, Retry, Settlement
from taskharbor.model.transitions import settled, shown
from taskharbor.testing.conformance.kit import (
    HOUR,
    MINUTE,
    OTHER_QUEUE,
    SECOND,
    START,
    claim,
    get_one,
    new_id,
    new_job,
    requires,
    reserve,
    reserve_one,
    row,
    running,
    settle_one,
)
from taskharbor.testing.conformance.relatives import after, bound, children, follow, group, record, store

LATER = START + SECOND
FULL: dict[str, Any] = {
    "priority": 7,
    "headers": {"ü": "2"},
    "timeout": MINUTE,
    "max_attempts": 4,
    "max_stalls": 3,
}


async def _reads(driver: Driver, expected: JobRecord, now: datetime = LATER) -> None:
    """The stored job is this record, as callers read it."""
    assert await get_one(driver, expected.id, now=now) == shown(expected, now)


async def _take_all(driver: Driver, queue: str, now: datetime = START) -> dict[str, JobRecord]:
    taken = await reserve(driver, queues=(queue,), limit=1000, lease_for=2 * HOUR, now=now)
    return {job.id: job for job in taken}


# ------------------------------------------------------------------ counting


async def test_a_parent_that_gets_children_is_what_with_child_makes(driver: Driver) -> None:
    """Y99: with its first ones and with more, one and three at a time, before it runs and under its lease."""
    requires(driver, "workflows")
    for runs in (False, True):
        with row(f"runs: {runs}"):
            new = new_job(queue=new_id(), **FULL)
            await store(driver, new)
            job = (await _take_all(driver, new.queue))[new.id] if runs else await record(driver, new)
            for count in (1, 3, 1):
                kids = children(new, count, queue=OTHER_QUEUE)
                await store(driver, *kids, by=job.lease if runs else None, now=LATER)
                job = with_child(job, count)
                await _reads(driver, job)


async def test_a_parent_whose_children_end_is_what_with_end_and_finished_make(driver: Driver) -> None:
    """Y99: one by one, in pairs and together, however they end; over at the last if nothing keeps it."""
    requires(driver, "workflows")
    for (name, parent), (how, ends), size in (
        (parent, ends, size) for parent in _PARENTS.items() for ends in _ENDS.items() for size in (1, 2, 5)
    ):
        with row((name, how, size)):
            queue = new_id()
            root = parent(queue)
            kids = [bound(parent=root.id, queue=queue, optional=is_optional) for _, is_optional in ends]
            await _stored(driver, name, root, kids)
            taken = await _take_all(driver, queue)
            if name == "its own work is over":
                await settle_one(driver, Ack(taken[root.id].lease, b"mine"), now=START)
            before = await record(driver, root)
            settlements = [end(taken[kid.id].lease) for kid, (end, _) in zip(kids, ends, strict=True)]
            for part in (settlements[at : at + size] for at in range(0, len(settlements), size)):
                await driver.exchange(part, claim(queues=(new_id(),)), now=LATER)
                await follow(driver, now=LATER)
                for one in part:
                    child = settled(taken[one.lease.job_id], one, LATER)
                    await _reads(driver, child)
                    before = with_end(before, child)
                expected = finished(before, LATER) if may_be_seen_over(before) else before
                await _reads(driver, expected)


async def _stored(driver: Driver, name: str, root: NewJob, kids: list[NewJob]) -> None:
    if name == "it waits for another":
        first = new_job(id=root.bonds.after[0], queue=OTHER_QUEUE) if root.bonds else root
        await store(driver, first)
    await store(driver, root, *kids)


_PARENTS: dict[str, Callable[[str], NewJob]] = {
    "a group": lambda queue: group(queue=queue, tolerate=None),
    "its own work is over": lambda queue: bound(queue=queue, tolerate=None, **FULL),
    "its own work goes on": lambda queue: bound(queue=queue, tolerate=None),
    "it waits for another": lambda queue: group(queue=queue, tolerate=None, after=(new_id(),)),
}

_End = tuple[Callable[[Lease], Settlement], bool]
_BROKEN: Callable[[Lease], Settlement] = lambda lease: Fail(lease, "broken")  # noqa: E731
_ENDS: dict[str, list[_End]] = {
    "all complete": [(Ack, False)] * 4,
    "some are excused": [(Ack, False), (_BROKEN, True), (lambda lease: Ack(lease, b"x"), True)],
    "some are cancelled": [(Ack, False), (lambda lease: Cancelled(lease, "no"), False), (Ack, False)],
    "some fail": [(_BROKEN, False), (Ack, False), (_BROKEN, False), (_BROKEN, False), (_BROKEN, False)],
}


# ------------------------------------------------------------------ after


async def test_a_job_that_waited_for_others_is_what_released_makes(driver: Driver) -> None:
    """Y99: by an ack alone, by one of many, by an exchange; at once, for later, and done by others."""
    requires(driver, "workflows")
    for name, options in _FOLLOWERS.items():
        for how in ("settle", "exchange", "with others", "the last of three"):
            with row((name, how)):
                queue = new_id()
                firsts = [new_job(queue=queue) for _ in range(3)]
                named = firsts if how == "the last of three" else firsts[:1]
                last = after(*named, queue=OTHER_QUEUE, **options)
                await store(driver, *firsts, last)
                before = await record(driver, last)
                taken = await _take_all(driver, queue)
                acks = [Ack(taken[job.id].lease) for job in firsts]
                if how == "with others":
                    await driver.settle(acks, now=LATER)
                elif how == "exchange":
                    await driver.exchange(acks[:1], claim(queues=(new_id(),)), now=LATER)
                else:
                    for ack in acks[: len(named)]:
                        await driver.settle([ack], now=LATER)
                await follow(driver, now=LATER)

                await _reads(driver, released(before, LATER))
                await reserve(driver, queues=(OTHER_QUEUE,), limit=1000, now=LATER)


_FOLLOWERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "full": FULL,
    "for later": {"run_at": START + HOUR},
    "due meanwhile": {"run_at": START + SECOND},
    "whatever happens": {"when": "over"},
    "done by a call": {"done_by": "call"},
}


# ------------------------------------------------------------------ stopping


async def test_stopped_children_are_what_stopped_and_finished_make(driver: Driver) -> None:
    """Y99: few and many, ready, scheduled, released before, and running; the parent is over with the last."""
    requires(driver, "workflows")
    for count in (3, 120):
        for more in ("nothing", "run before", "runs"):
            with row((count, more)):
                root = group(queue=OTHER_QUEUE)
                queue = new_id()
                kids = [
                    *children(root, count, queue=queue, run_at=START + HOUR, **FULL),
                    *children(root, 0 if more == "nothing" else 2, queue=queue),
                ]
                await store(driver, root, *kids)
                taken = await _take_all(driver, queue)
                if more == "run before":
                    await driver.settle([Retry(job.lease, delay=HOUR) for job in taken.values()], now=START)
                await store(driver, *(plain := children(root, count, queue=queue)))
                before = [await record(driver, job) for job in (*kids, *plain)]
                await driver.cancel([root.id], now=LATER)
                await follow(driver, now=LATER)

                above = await record(driver, root, now=LATER)
                for child in before:
                    why = f"stopped with {root.type}"
                    gone = stopped(child, "stopped", why, LATER, spares=family_of(above).spares)
                    is_over = child.id not in taken or more == "run before"
                    await _reads(driver, finished(gone, LATER, is_part=True) if is_over else gone)
                assert above.state == ("blocked" if more == "runs" else "cancelled")
                assert family_of(above).cancelled == len(before) - (2 if more == "runs" else 0)


# ------------------------------------------------------------------ notes


async def test_a_job_that_keeps_notes_is_what_with_notes_makes(driver: Driver) -> None:
    """Y99: of a first and of a later run, of a plain job and of a child; a known name changes nothing."""
    requires(driver, "workflows")
    root = group(queue=OTHER_QUEUE)
    await store(driver, root, *children(root, 1, queue=OTHER_QUEUE))
    for name, options in {
        "plain": {},
        "full": FULL,
        "a child": {"bonds": children(root, 1)[0].bonds},
    }.items():
        for has_past in (False, True):
            with row((name, has_past)):
                job = await running(driver, queue=new_id(), **options)
                if has_past:
                    await settle_one(driver, Retry(job.lease, reason="again"), now=START)
                    job = await reserve_one(driver, queues=(job.queue,))
                for number, (key, data) in enumerate(
                    [("a", b"1"), ("ü b", b"\x00"), ("a", b"2"), ("c", b"")]
                ):
                    now = START + (number + 1) * SECOND
                    [answer] = await driver.note([Note(key, data, lease=job.lease)], now=now)
                    noted = with_notes(job, [Note(key, data)], now)
                    job = job if noted is job else replace(noted, updated_at=now, version=job.version + 1)
                    kept = next(note for note in job.notes if note.name == key)
                    assert answer == Noted(job.id, key, kept.data, kept.at or now, job.version)
                    await _reads(driver, job, now)
