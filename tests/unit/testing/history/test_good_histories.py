"""What keeps every promise is not blamed, and what nobody knows is given the benefit of the doubt."""

from __future__ import annotations

import pytest

from taskharbor.testing.history import HistoryEvent, Terms, check
from tests.unit.testing.history.events_by_hand import (
    cancel,
    configure,
    delete,
    end,
    enqueue,
    extend,
    fault,
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
    sweep,
)

EXACT = Terms(is_exact=True)
DRAINED = Terms(is_exact=True, is_drained=True, faults_are_marked=True)
LOOSE = Terms()
DAY = 86_400_000_000
KEYED = {"key": "k"}
STORED = enqueue()
RUNNING = history_of(STORED, grant())
DONE = history_of(RUNNING, end("ack"))

GOOD: list[tuple[str, list[HistoryEvent], Terms]] = [
    ("nothing at all", [], DRAINED),
    (
        "enqueued, run, done",
        history_of(STORED, reserve(10, grant()), run(12, 10), end("ack"), look(30, "completed")),
        DRAINED,
    ),
    (
        "a parent that failed, and waited for its child",
        history_of(
            STORED,
            enqueue("b", 5, parent="a"),
            grant(),
            end("fail", state="blocked"),
            look(40, "failed", version=4, attempts=1),
        ),
        EXACT,
    ),
    (
        "a parent that is opened again by the requeue of its child",
        history_of(
            DONE,
            enqueue("b", 0, parent="a"),
            look(30, "completed"),
            cancel(31, "cancelled", job="b", version=2),
            requeue(32, job="b", version=3),
            look(40, "completed", version=5),
        ),
        EXACT,
    ),
    (
        "failed, retried, done",
        history_of(
            RUNNING,
            run(12, 10, "fail"),
            end("retry", span=5, result="error", state="scheduled"),
            grant(at=25, version=4, token="t2", starts=2, attempts=1, run_at=25),
            end("ack", 30, version=5, token="t2"),
            look(40, "completed", version=5, starts=2, attempts=1),
        ),
        DRAINED,
    ),
    (
        "expired for a reason, then done",
        history_of(
            RUNNING,
            fault(12),
            reclaim(40),
            grant(at=45, version=4, token="t2", starts=2, stalls=1),
            end("ack", 50, version=5, token="t2"),
            refuse("ack", 55, "JobNotInflight"),
            look(60, "completed", version=5, starts=2, stalls=1),
        ),
        DRAINED,
    ),
    (
        "reclaimed by the claim itself, at the very end",
        history_of(RUNNING, reserve(40, grant(at=40, version=4, token="t2", starts=2, stalls=1))),
        EXACT,
    ),
    ("refused at the very end", history_of(RUNNING, refuse("ack", 40, "LeaseExpired")), EXACT),
    ("accepted just before the end", history_of(RUNNING, end("ack", 39)), EXACT),
    (
        "extended and done",
        history_of(RUNNING, extend(20), extend(45, version=4), end("ack", 70, version=5)),
        EXACT,
    ),
    (
        "released and handed out again",
        history_of(RUNNING, end("release"), grant(at=25, version=4, token="t2", starts=2)),
        EXACT,
    ),
    (
        "denied while it was being stored",
        history_of(cancel(-1, "not_found", version=0), STORED, grant(), end("ack"), look(30, "completed")),
        LOOSE,
    ),
    ("denied after it was pruned", history_of(DONE, cancel(50, "not_found", version=0)), LOOSE),
    (
        "a call that failed in a fault",
        history_of(STORED, fault(1), refuse("reserve", 5, "DriverUnavailable")),
        Terms(is_exact=True, faults_are_marked=True),
    ),
    (
        "cancelled while it waits",
        history_of(STORED, cancel(5), look(9, "cancelled", version=2, starts=0)),
        DRAINED,
    ),
    (
        "cancelled while it runs",
        history_of(
            RUNNING,
            cancel(12, "requested", version=3, state="running"),
            end("ack", version=4, state="cancelled"),
        ),
        EXACT,
    ),
    (
        "cancelled twice",
        history_of(STORED, cancel(5), cancel(6, "already_over"), look(9, "cancelled", version=2, starts=0)),
        DRAINED,
    ),
    (
        "requeued after its end",
        history_of(
            DONE,
            requeue(30),
            grant(at=31, version=5, token="t2", starts=2),
            end("ack", 35, version=6, token="t2"),
        ),
        EXACT,
    ),
    ("deleted after its end", history_of(DONE, delete(30), look(40, "")), DRAINED),
    (
        "one key, one after the other",
        history_of(
            enqueue(**KEYED),
            grant(**KEYED),
            enqueue("b", 12, result="blocked", **KEYED),
            snapshot(
                13,
                look(13, "running", version=2, until=40, **KEYED),
                look(13, "blocked", job="b", version=1, starts=0, **KEYED),
            ),
            end("ack"),
            grant("b", 20, version=3, token="t2", **KEYED),
        ),
        EXACT,
    ),
    (
        "as many as allowed",
        history_of(
            configure(max_running=1), STORED, enqueue("b"), grant(), end("ack"), grant("b", 20, token="t2")
        ),
        EXACT,
    ),
    (
        "an expired lease stops counting at that instant",
        history_of(configure(max_running=1), STORED, enqueue("b"), grant(), grant("b", 40, token="t2")),
        LOOSE,
    ),
    (
        "a rate with its window over",
        history_of(
            configure(execute_rate=per(1, 100)), STORED, enqueue("b"), grant(), grant("b", 110, token="t2")
        ),
        LOOSE,
    ),
    ("in order", history_of(STORED, enqueue("b", 1), reserve(10, grant(), grant("b", 10), limit=2)), EXACT),
    (
        "a duplicate answers the first job",
        history_of(
            enqueue(idempotency_key="i"),
            enqueue("a", 5, result="duplicate", sent="x", idempotency_key="i"),
        ),
        LOOSE,
    ),
    ("an empty claim while the job is not due", history_of(enqueue(delay=50), reserve(10)), EXACT),
    ("a sweep that finds nothing in time", history_of(RUNNING, sweep(39)), EXACT),
    (
        "an ack that nobody heard of may have been stored",
        history_of(
            RUNNING,
            end("ack", kind="unknown", version=0),
            look(30, "completed"),
        ),
        LOOSE,
    ),
    (
        "a retry that nobody heard of may have been counted",
        history_of(
            RUNNING,
            end("retry", kind="unknown", version=0),
            grant(at=25, version=4, token="t2", starts=2, attempts=1),
        ),
        LOOSE,
    ),
    (
        "an extension that nobody heard of may have been stored",
        history_of(
            RUNNING,
            HistoryEvent(kind="unknown", op="extend", job="a", token="t1", t=30),
            end("ack", 50, version=4),
        ),
        LOOSE,
    ),
    (
        "a claim that nobody heard of may have been granted",
        history_of(
            STORED,
            HistoryEvent(kind="unknown", op="reserve", t=5, queues=("q",)),
            grant(at=50, version=4, token="t2", starts=2, stalls=1),
        ),
        LOOSE,
    ),
    (
        "a key is free a day after its job ended without a word",
        history_of(
            enqueue(idempotency_key="k", max_stalls=1),
            grant(at=10, idempotency_key="k", max_stalls=1, starts=1),
            look(DAY - 100, "failed", stalls=1, starts=1, max_stalls=1, idempotency_key="k"),
            enqueue("b", DAY + 50, idempotency_key="k"),
        ),
        LOOSE,
    ),
    (
        "who hears of every job and is never the fastest claims in vain",
        history_of(
            *(part for at in range(60) for part in (enqueue(f"job-{at}", at), reserve(at + 1, types=("x",))))
        ),
        LOOSE,
    ),
    (
        "a key is free a day after an end that nobody saw",
        history_of(
            enqueue(idempotency_key="k", max_stalls=1),
            grant(at=10, idempotency_key="k", max_stalls=1, starts=1),
            enqueue("b", DAY + 50, idempotency_key="k"),
            look(DAY + 100, "failed", stalls=1, starts=1, max_stalls=1, idempotency_key="k"),
        ),
        LOOSE,
    ),
    (
        "a lease that nobody heard of is reclaimed like any other",
        history_of(STORED, HistoryEvent(kind="unknown", op="reserve", t=5, queues=("q",)), reclaim(40)),
        LOOSE,
    ),
]


@pytest.mark.parametrize(("name", "history", "terms"), GOOD, ids=[good[0] for good in GOOD])
def test_a_kept_promise_is_not_blamed(name: str, history: list[HistoryEvent], terms: Terms) -> None:
    verdict = check(history, terms)

    assert verdict.is_sound, verdict


def test_a_duplicate_run_names_the_lease_that_explains_it() -> None:
    history = history_of(
        RUNNING, fault(12), reclaim(40), grant(at=45, version=4, token="t2", starts=2, stalls=1)
    )

    assert check(history, EXACT).duplicates == {"a": ["w until 40"]}
