"""The checker's own test: what is broken by hand is found, under the right name."""

from __future__ import annotations

import pytest

from taskharbor.testing.history import PROMISES, HistoryEvent, Terms, check
from tests.unit.testing.history.events_by_hand import (
    cancel,
    configure,
    delete,
    end,
    enqueue,
    extend,
    grant,
    history_of,
    look,
    per,
    reclaim,
    refuse,
    requeue,
    reserve,
    run,
    snapshot,
    speculate,
    sweep,
)

EXACT = Terms(is_exact=True)
DRAINED = Terms(is_exact=True, is_drained=True)
MARKED = Terms(is_exact=True, faults_are_marked=True)
LOOSE = Terms()
DAY = 86_400_000_000

KEYED = {"key": "k"}
STORED = enqueue()
RUNNING = history_of(STORED, grant())
DONE = history_of(RUNNING, end("ack"))
FAILURE_JOB = {"type": "taskharbor.failed", "queue": "dead", "about": "a"}
WITH_FAIL_QUEUE = configure(fail_queue="dead")

BAD: list[tuple[str, str, list[HistoryEvent], Terms]] = [
    ("I1", "acknowledged and never seen again", history_of(STORED), DRAINED),
    ("I1", "gone after it ran", history_of(DONE, look(30, "")), EXACT),
    ("I1", "unknown to a cancel", history_of(RUNNING, cancel(15, "not_found", version=0)), EXACT),
    (
        "I1",
        "denied by a cancel, then handed out",
        history_of(STORED, cancel(5, "not_found", version=0), grant()),
        LOOSE,
    ),
    (
        "I1",
        "denied by a delete, then seen",
        history_of(STORED, refuse("delete", 5, "JobNotFound"), look(9, "ready", version=1)),
        LOOSE,
    ),
    (
        "I1",
        "denied by a requeue, then seen",
        history_of(DONE, refuse("requeue", 25, "JobNotFound"), look(30, "completed", version=3)),
        LOOSE,
    ),
    (
        "I1",
        "a duplicate of nothing",
        history_of(enqueue(result="duplicate", version=0), look(9, "")),
        DRAINED,
    ),
    ("I1b", "handed out without an enqueue", history_of(grant()), EXACT),
    ("I1b", "another type came out", history_of(STORED, grant(type="other")), EXACT),
    ("I1b", "ran without a lease", history_of(RUNNING, run(12, 99)), EXACT),
    ("I2", "handed out twice", history_of(RUNNING, grant(at=15, version=3, token="t2", starts=2)), EXACT),
    (
        "I2",
        "handed out one microsecond too early",
        history_of(RUNNING, grant(at=39, version=4, token="t2", starts=2, stalls=1)),
        EXACT,
    ),
    (
        "I2",
        "handed out inside an extended lease",
        history_of(RUNNING, extend(20), grant(at=45, version=5, token="t2", starts=2, stalls=1)),
        LOOSE,
    ),
    (
        "I2b",
        "a valid extension was refused",
        history_of(RUNNING, refuse("extend", 39, "LeaseExpired")),
        EXACT,
    ),
    ("I2b", "a valid ack was refused", history_of(RUNNING, refuse("ack", 12, "LeaseMismatch")), EXACT),
    ("I2b", "reclaimed before its end", history_of(RUNNING, reclaim(39)), EXACT),
    ("I2b", "accepted at the very end", history_of(RUNNING, end("ack", 40)), EXACT),
    ("I2b", "not taken at the very end", history_of(RUNNING, reserve(40)), EXACT),
    ("I3", "ack with an old token", history_of(RUNNING, end("ack", token="t0")), EXACT),
    ("I3", "ack after the end", history_of(RUNNING, end("ack", 41)), EXACT),
    ("I3", "extension after the end", history_of(RUNNING, extend(50)), EXACT),
    ("I3", "extension with an old token", history_of(RUNNING, extend(20, token="t0")), LOOSE),
    (
        "I3",
        "a fence that falls",
        history_of(DONE, requeue(30), grant(at=31, version=5, token="t2", fence=3, starts=2)),
        EXACT,
    ),
    (
        "I3",
        "settled after it was reclaimed, and gone later",
        history_of(RUNNING, reclaim(), end("retry", 45, version=4), delete(60), reserve(70, limit=5)),
        EXACT,
    ),
    ("I3", "settled twice", history_of(DONE, end("ack", 25, version=4)), EXACT),
    ("I3n", "a change without a call", history_of(RUNNING, end("ack", version=5)), EXACT),
    ("I3n", "a version that was there before", history_of(RUNNING, extend(20, version=2)), EXACT),
    ("I4", "a start too many", history_of(STORED, grant(starts=2)), EXACT),
    (
        "I4",
        "a failure that was not counted",
        history_of(RUNNING, end("retry"), grant(at=25, version=4, token="t2", starts=2)),
        EXACT,
    ),
    (
        "I4",
        "a stall that was not counted",
        history_of(RUNNING, reclaim(), grant(at=45, version=4, token="t2", starts=2)),
        EXACT,
    ),
    (
        "I4",
        "a stall that was counted twice",
        history_of(RUNNING, reclaim(), grant(at=45, version=4, token="t2", starts=2, stalls=2)),
        LOOSE,
    ),
    (
        "I4",
        "a release that was counted",
        history_of(RUNNING, end("release"), look(25, "ready", attempts=1)),
        EXACT,
    ),
    ("I4", "reclaimed twice", history_of(RUNNING, reclaim(), reclaim(41, version=4)), EXACT),
    ("I4", "reclaimed without a claim", history_of(STORED, reclaim()), LOOSE),
    (
        "I4",
        "reclaimed twice after one claim that nobody heard of",
        history_of(
            STORED,
            HistoryEvent(kind="unknown", op="reserve", t=5, queues=("q",)),
            reclaim(),
            reclaim(80, version=5),
        ),
        LOOSE,
    ),
    (
        "I4",
        "a failure of a handler that returned",
        history_of(RUNNING, run(12, 10), end("retry", result="error")),
        EXACT,
    ),
    (
        "I4",
        "a failure of a handler that was stopped",
        history_of(RUNNING, run(12, 10, "unknown"), end("fail", result="error")),
        EXACT,
    ),
    ("I5", "runs after its last attempt", history_of(STORED, grant(attempts=3)), LOOSE),
    ("I5", "runs after its last stall", history_of(STORED, grant(stalls=3)), LOOSE),
    (
        "I5",
        "lives on after its last stall",
        history_of(enqueue(max_stalls=1), grant(max_stalls=1), end("stalled")),
        EXACT,
    ),
    (
        "I6",
        "two jobs of a key at once",
        history_of(enqueue(**KEYED), enqueue("b", 5, **KEYED), grant(**KEYED), grant("b", 20, **KEYED)),
        LOOSE,
    ),
    (
        "I6",
        "a key handed out one microsecond too early",
        history_of(
            enqueue(**KEYED), enqueue("b", 5, **KEYED), grant(**KEYED), grant("b", 39, token="t2", **KEYED)
        ),
        EXACT,
    ),
    (
        "I6b",
        "blocked behind nobody",
        history_of(
            enqueue(result="blocked", **KEYED),
            snapshot(9, look(9, "blocked", version=1, starts=0, **KEYED)),
        ),
        EXACT,
    ),
    (
        "I6b",
        "two jobs of a key wait",
        history_of(
            enqueue(**KEYED),
            enqueue("b", **KEYED),
            snapshot(
                9,
                look(9, "ready", version=1, starts=0, **KEYED),
                look(9, "scheduled", job="b", version=1, starts=0, **KEYED),
            ),
        ),
        EXACT,
    ),
    (
        "I7",
        "one more than allowed",
        history_of(configure(max_running=1), STORED, enqueue("b"), grant(), grant("b", 11, token="t2")),
        LOOSE,
    ),
    (
        "I7",
        "one more than the harbor allows",
        history_of(
            configure(queue="*", max_running=1),
            STORED,
            enqueue("b", queue="p"),
            grant(),
            grant("b", 39, token="t2", queue="p"),
        ),
        LOOSE,
    ),
    (
        "I7",
        "a limit that was lowered",
        history_of(
            configure(max_running=2),
            STORED,
            enqueue("b"),
            grant(),
            configure(12, max_running=1),
            grant("b", 13, token="t2"),
        ),
        EXACT,
    ),
    (
        "I8",
        "two starts in a window of one",
        history_of(
            configure(execute_rate=per(1, 100)), STORED, enqueue("b"), grant(), grant("b", 109, token="t2")
        ),
        LOOSE,
    ),
    (
        "I8",
        "two arrivals in a window of one",
        history_of(configure(enqueue_rate=per(1, 100)), STORED, enqueue("b", 99)),
        LOOSE,
    ),
    (
        "I9",
        "the second before the first",
        history_of(STORED, enqueue("b", 1), reserve(10, grant("b"))),
        EXACT,
    ),
    (
        "I9",
        "a low priority before a high one",
        history_of(STORED, enqueue("b", 1, priority=5), reserve(10, grant("a"))),
        EXACT,
    ),
    (
        "I9",
        "the wrong lane first",
        history_of(STORED, enqueue("b", 1, lane="cpu"), reserve(10, grant("a"), lanes=("cpu", "any"))),
        EXACT,
    ),
    ("I10", "handed out after its cancel", history_of(STORED, cancel(5), grant(version=3)), EXACT),
    (
        "I10",
        "completed after its cancel",
        history_of(RUNNING, cancel(12, "requested", version=3), end("ack", version=4)),
        EXACT,
    ),
    (
        "I10",
        "retried after its cancel",
        history_of(RUNNING, cancel(12, "requested", version=3), end("retry", version=4)),
        LOOSE,
    ),
    (
        "I10",
        "reclaimed after its cancel",
        history_of(RUNNING, cancel(12, "requested", version=3), reclaim(version=4)),
        EXACT,
    ),
    (
        "I11",
        "failed without a failure job",
        history_of(WITH_FAIL_QUEUE, RUNNING, end("fail"), look(30, "failed", attempts=1)),
        DRAINED,
    ),
    (
        "I11",
        "a failure job with other bytes",
        history_of(
            WITH_FAIL_QUEUE,
            RUNNING,
            end("fail"),
            look(30, "ready", job="f", version=1, about_digest="x", **FAILURE_JOB),
        ),
        EXACT,
    ),
    (
        "I11",
        "failed without a reason",
        history_of(RUNNING, end("fail"), look(30, "failed", attempts=1, failure_kind="")),
        EXACT,
    ),
    (
        "I11",
        "stalled to death without a failure job",
        history_of(WITH_FAIL_QUEUE, enqueue(max_stalls=1), grant(max_stalls=1), reclaim(result="failed")),
        DRAINED,
    ),
    (
        "I20",
        "failed and blocked, without children",
        history_of(RUNNING, end("fail", state="blocked")),
        EXACT,
    ),
    ("I12", "one id, two jobs", history_of(STORED, enqueue(at=5)), EXACT),
    (
        "I12",
        "one key, two jobs",
        history_of(enqueue(idempotency_key="i"), enqueue("b", 5, idempotency_key="i")),
        LOOSE,
    ),
    (
        "I12",
        "one key, two answers",
        history_of(
            enqueue(idempotency_key="i"),
            enqueue("b"),
            enqueue("b", 5, result="duplicate", sent="x", idempotency_key="i"),
        ),
        LOOSE,
    ),
    (
        "I12",
        "a key was given away after a day although its job still ran",
        history_of(
            enqueue(idempotency_key="i"),
            grant(at=10, idempotency_key="i", starts=1),
            enqueue("b", DAY + 50, idempotency_key="i"),
            look(DAY + 60, "running", starts=1, version=2, idempotency_key="i"),
        ),
        LOOSE,
    ),
    ("I12", "stored under an id that nobody sent", history_of(enqueue(sent="x")), LOOSE),
    ("I13", "other bytes came out", history_of(STORED, grant(digest="x")), LOOSE),
    ("I13", "other headers came out", history_of(STORED, grant(headers="x")), LOOSE),
    ("I14", "started before its time", history_of(enqueue(run_at=11), grant(run_at=11)), LOOSE),
    ("I14", "its delay was forgotten", history_of(enqueue(delay=50), grant()), EXACT),
    (
        "I14",
        "a retry that did not wait",
        history_of(RUNNING, end("retry", span=50), grant(at=69, version=4, token="t2", starts=2, attempts=1)),
        EXACT,
    ),
    ("I15", "extended too far", history_of(RUNNING, extend(20, until=99)), LOOSE),
    ("I15", "extended not at all", history_of(RUNNING, extend(20, until=40)), EXACT),
    (
        "I17",
        "half of a refused batch is there",
        history_of(enqueue(kind="fail"), look(5, "ready", version=1, starts=0)),
        EXACT,
    ),
    ("I17", "a refused job was handed out", history_of(enqueue(kind="fail"), grant()), EXACT),
    (
        "I18",
        "one tick, two jobs",
        history_of(enqueue(idempotency_key="schedule/s/1"), enqueue("b", 5, idempotency_key="schedule/s/1")),
        LOOSE,
    ),
    (
        "I18",
        "one tick, two answers",
        history_of(
            enqueue(idempotency_key="schedule/s/1"),
            enqueue("b"),
            enqueue("b", 5, result="duplicate", sent="x", idempotency_key="schedule/s/1"),
        ),
        LOOSE,
    ),
    ("I19", "another queue than claimed", history_of(STORED, reserve(10, grant(), queues=("p",))), LOOSE),
    ("I19", "another type than claimed", history_of(STORED, reserve(10, grant(), types=("other",))), LOOSE),
    ("I19", "another lane than claimed", history_of(STORED, reserve(10, grant(), lanes=("gpu",))), LOOSE),
    (
        "I20",
        "handed out after its end",
        history_of(DONE, grant(at=30, version=4, token="t2", starts=2)),
        EXACT,
    ),
    ("I20", "an ack that led to ready", history_of(RUNNING, end("ack", state="ready")), EXACT),
    ("I20", "alive again without a requeue", history_of(DONE, look(30, "ready", version=4)), EXACT),
    ("I20", "another state than its last change", history_of(DONE, look(30, "failed")), LOOSE),
    ("I20", "requeued while it waited", history_of(STORED, requeue(5, version=1)), EXACT),
    ("I20", "back after it was deleted", history_of(DONE, delete(30), look(31, "completed")), EXACT),
    (
        "I20",
        "an answer before its question",
        history_of(enqueue(at=50), grant(at=10, until=40)),
        LOOSE,
    ),
    ("L1", "still ready at the end", history_of(STORED, look(99, "ready", version=1, starts=0)), DRAINED),
    (
        "L1",
        "still running at the end",
        history_of(RUNNING, look(20, "running", version=2, until=40)),
        DRAINED,
    ),
    (
        "L3",
        "expired and still running at the end",
        history_of(RUNNING, look(99, "running", version=2, until=40)),
        DRAINED,
    ),
    ("L3", "left by a sweep that had room", history_of(RUNNING, sweep(40)), EXACT),
    ("L7", "an empty claim beside a ready job", history_of(STORED, reserve(10)), EXACT),
    ("L7", "a due job was not seen", history_of(enqueue(delay=5), reserve(10)), EXACT),
    (
        "L9",
        "a claim that failed on a sound store",
        history_of(STORED, refuse("reserve", 5, "DriverUnavailable")),
        MARKED,
    ),
    ("L9", "a heartbeat that failed", history_of(RUNNING, refuse("extend", 15, "DriverUnavailable")), MARKED),
    ("L8", "forty-one claims in vain", history_of(*(reserve(at) for at in range(41))), LOOSE),
    ("L8", "a claim every millisecond", history_of(*(reserve(at * 1000) for at in range(100))), LOOSE),
    ("Z6", "ran twice under one lease", history_of(RUNNING, run(12, 10), run(15, 10)), LOOSE),
    (
        "Z6",
        "a lease that ran out for no reason",
        history_of(RUNNING, reclaim(), look(45, "ready", stalls=1)),
        MARKED,
    ),
]


@pytest.mark.parametrize(
    ("promise", "name", "history", "terms"), BAD, ids=[f"{bad[0]} {bad[1]}" for bad in BAD]
)
def test_a_broken_promise_is_named(
    promise: str, name: str, history: list[HistoryEvent], terms: Terms
) -> None:
    assert promise in check(history, terms).broken


def test_every_promise_is_broken_at_least_twice() -> None:
    counted = {promise: sum(bad[0] == promise for bad in BAD) for promise in PROMISES}

    assert len(BAD) >= 60
    assert {promise: count for promise, count in counted.items() if count < 2} == {}


def test_a_copy_that_wins_breaks_nothing() -> None:
    history = history_of(
        RUNNING,
        speculate(15),
        grant("c", 20, token="t2", speculates_on="a", worker="v", until=50),
        end("ack", 25, job="c", token="t2"),
        refuse("extend", 30, "JobNotInflight"),
    )

    assert check(history, EXACT).is_sound
