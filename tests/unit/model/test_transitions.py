"""The steps of a record: legal moves, one version each, and nothing forgotten or kept that should not be."""

from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from taskharbor.errors import JobNotInflight, LeaseExpired, LeaseMismatch
from taskharbor.model.edit import NO_EDIT, Edit
from taskharbor.model.job import Avoid, JobRecord, Lease, NewJob, Progress, Update
from taskharbor.model.settlement import Ack, Cancelled, Fail, Release, Retry, Settlement, Stalled
from taskharbor.model.state import JobState, is_legal
from taskharbor.model.transitions import (
    absorb,
    cancelled,
    claimed,
    dropped,
    extended,
    failure_job,
    held,
    merged,
    new_record,
    requeued,
    settled,
    speculative_copy,
    stalled,
    unblocked,
    won,
)

NOW = datetime(2031, 4, 5, 6, 7, 8, 9, tzinfo=UTC)
LATER = NOW + timedelta(minutes=1)
SECOND = timedelta(seconds=1)
US = timedelta(microseconds=1)
TOKEN = "a" * 32


def new(**fields):
    return NewJob(**{"id": "018f0000-0000-7000-8000-000000000001", "type": "t"} | fields)


def ready(**fields) -> JobRecord:
    return new_record(new(**fields), 7, NOW)


def running(**fields) -> JobRecord:
    return claimed(ready(**fields), TOKEN, "worker", NOW + SECOND, NOW)


SETTLEMENTS: dict[str, Settlement] = {
    "ack": Ack(running().lease, b"7"),
    "retry": Retry(running().lease, reason="broken"),
    "retry later": Retry(running().lease, delay=SECOND, reason="broken"),
    "fail": Fail(running().lease, "broken"),
    "stalled": Stalled(running().lease, "died"),
    "cancelled": Cancelled(running().lease, "no"),
    "release": Release(running().lease),
    "snooze": Release(running().lease, SECOND),
}
STATES = {
    "ack": JobState.COMPLETED,
    "retry": JobState.READY,
    "retry later": JobState.SCHEDULED,
    "fail": JobState.FAILED,
    "stalled": JobState.READY,
    "cancelled": JobState.CANCELLED,
    "release": JobState.READY,
    "snooze": JobState.SCHEDULED,
}


@pytest.mark.parametrize("name", SETTLEMENTS)
def test_a_settlement_is_one_legal_step_that_ends_the_lease(name):
    before = running()
    after = settled(before, SETTLEMENTS[name], LATER)

    assert after.state is STATES[name]
    assert is_legal(before.state, after.state)
    assert (after.version, after.updated_at) == (before.version + 1, LATER)
    assert (after.token, after.lease_expires_at, after.worker_id) == (None, None, None)
    assert (after.settled_token, after.fence, after.starts) == (TOKEN, before.fence, before.starts)
    assert (after.finished_at is not None) == after.state.is_terminal


@pytest.mark.parametrize("name", SETTLEMENTS)
def test_a_cancel_request_beats_every_settlement_and_counts_nothing(name):
    after = settled(cancelled(running(), NOW), SETTLEMENTS[name], LATER)

    assert (after.state, after.attempts, after.stalls, after.result) == (JobState.CANCELLED, 0, 0, None)
    assert (after.failed_at, after.failure_kind) == (None, None)


@pytest.mark.parametrize(
    ("name", "attempts", "stalls"),
    [("ack", 0, 0), ("retry", 1, 0), ("fail", 1, 0), ("stalled", 0, 1), ("release", 0, 0), ("snooze", 0, 0)],
)
def test_failures_and_stalls_are_counted_apart(name, attempts, stalls):
    after = settled(running(), SETTLEMENTS[name], LATER)

    assert (after.attempts, after.stalls) == (attempts, stalls)


@pytest.mark.parametrize(("max_stalls", "failing"), [(0, None), (1, 1), (2, 2), (3, 3)])
def test_the_stall_that_reaches_the_maximum_fails(max_stalls, failing):
    job = running(max_stalls=max_stalls)
    for number in range(1, 6):
        after = stalled(job, "", LATER)
        assert (after.state is JobState.FAILED) == (number == failing)
        if after.state is JobState.FAILED:
            assert after.failure_kind == "stalled"
            break
        assert (after.state, after.run_at, after.stalls) == (JobState.READY, None, number)
        job = claimed(after, TOKEN, "worker", LATER + SECOND, LATER)


def test_the_fence_only_rises_even_when_the_clock_does_not():
    job = ready()
    fences = []
    for at in (NOW, NOW, NOW - timedelta(days=1), LATER, LATER):
        job = claimed(job, TOKEN, "worker", at + SECOND, at)
        fences.append(job.fence)
        job = settled(job, Release(Lease(job.id, TOKEN)), at)

    assert fences == sorted(set(fences))


def test_a_claim_clears_what_belongs_to_the_last_attempt():
    shown = extended(running(), SECOND, NOW, Progress(0.5, "half"))
    again = claimed(settled(shown, Release(shown.lease), NOW), "b" * 32, "other", LATER, NOW)

    assert (again.progress, again.settled_token, again.starts) == (None, None, 2)


def test_the_history_keeps_the_last_ten_and_no_first_try_success():
    assert settled(running(), SETTLEMENTS["ack"], LATER).history == ()
    job = running()
    for number in range(15):
        job = claimed(
            settled(job, Retry(job.lease, reason=f"e{number}"), LATER), TOKEN, "worker", LATER + SECOND, LATER
        )
    job = settled(job, SETTLEMENTS["ack"], LATER)

    assert len(job.history) == 10
    assert [entry.outcome for entry in job.history] == ["retried"] * 9 + ["completed"]
    assert [entry.error for entry in job.history] == [f"e{number}" for number in range(6, 15)] + [None]


@pytest.mark.parametrize(
    ("change", "lease", "at", "error"),
    [
        ({"state": JobState.READY}, Lease("", "wrong"), LATER, JobNotInflight),
        ({}, Lease("", "wrong"), LATER, LeaseMismatch),
        ({}, Lease("", TOKEN, worker_id="stranger"), NOW, LeaseMismatch),
        ({}, Lease("", TOKEN), NOW + SECOND, LeaseExpired),
        ({}, Lease("", TOKEN), NOW + SECOND - US, None),
        ({}, Lease("", TOKEN, worker_id="worker"), NOW, None),
    ],
)
def test_lease_errors_come_in_one_order(change, lease, at, error):
    answer = held(replace(running(), **change), lease, at)

    assert type(answer) is (error or JobRecord)


def test_an_unknown_job_is_not_in_flight():
    assert isinstance(held(None, Lease("x", TOKEN), NOW), JobNotInflight)


def test_an_unblocked_job_has_its_own_time_and_no_flags():
    blocked = new_record(new(key=b"k", run_at=LATER, update=Update(run_at=False)), 8, NOW, blocked=True)
    free = unblocked(blocked, NOW)

    assert (free.state, free.run_at, free.update, free.version) == (JobState.SCHEDULED, LATER, None, 2)
    assert unblocked(blocked, LATER).state is JobState.READY


def test_a_merge_keeps_the_identity_of_the_job_that_waits_again():
    again = settled(running(key=b"k"), SETTLEMENTS["retry"], LATER)
    blocked = new_record(
        new(id="018f0000-0000-7000-8000-000000000002", key=b"k", payload=b"new"), 9, NOW, blocked=True
    )
    one = merged(again, blocked, LATER)

    assert (one.id, one.seq, one.created_at, one.payload) == (again.id, again.seq, again.created_at, b"new")
    assert (one.version, one.update) == (again.version, None)


def test_absorbing_keeps_identity_and_place():
    there = ready(key=b"k")
    after = absorb(there, new(key=b"k", payload=b"new", run_at=LATER), NOW)

    assert (after.id, after.seq, after.created_at) == (there.id, there.seq, there.created_at)
    assert (after.payload, after.state, after.version) == (b"new", JobState.SCHEDULED, there.version + 1)


@pytest.mark.parametrize("name", ["ack", "fail", "cancelled"])
def test_a_requeued_job_starts_a_new_life_with_the_old_fence(name):
    over = settled(running(), SETTLEMENTS[name], LATER)
    again = requeued(over, NO_EDIT, None, LATER, reset_counts=True)

    assert is_legal(over.state, again.state)
    assert (again.state, again.run_at, again.fence) == (JobState.READY, LATER, over.fence)
    assert (again.attempts, again.stalls, again.last_error, again.failed_at) == (0, 0, None, None)
    assert (again.result, again.finished_at, again.settled_token, again.cancel_requested) == (
        None,
        None,
        None,
        False,
    )


def test_a_requeue_may_edit_and_keep_the_counts():
    over = settled(running(), SETTLEMENTS["fail"], LATER)
    again = requeued(over, Edit(payload=b"mended", priority=3), LATER + SECOND, LATER, reset_counts=False)

    assert (again.payload, again.priority, again.type) == (b"mended", 3, "t")
    assert (again.attempts, again.last_error, again.state) == (1, "broken", JobState.SCHEDULED)


def test_the_same_failure_makes_the_same_failure_job():
    over = settled(running(), SETTLEMENTS["fail"], LATER)
    next_life = claimed(
        requeued(over, NO_EDIT, None, LATER, reset_counts=True), TOKEN, "w", LATER + SECOND, LATER
    )
    again = settled(next_life, Fail(next_life.lease, "broken"), LATER)

    assert failure_job(over, "dead", LATER) == failure_job(over, "dead", LATER)
    assert failure_job(again, "dead", LATER).id != failure_job(over, "dead", LATER).id


def test_a_copy_is_above_its_original_and_away_from_its_worker():
    original = running()
    copy = speculative_copy(original, 9, LATER)
    first = claimed(copy, TOKEN, "other", LATER + SECOND, NOW)

    assert (copy.speculates_on, copy.avoid, copy.key) == (original.id, Avoid("worker"), None)
    assert first.fence > original.fence


@pytest.mark.parametrize("state", ["running", "waiting"])
def test_a_won_original_is_completed_without_the_losers_token(state):
    original = running() if state == "running" else stalled(running(), "", NOW)
    after = won(original, b"copy", LATER)

    assert is_legal(original.state, after.state)
    assert (after.state, after.result, after.settled_token) == (JobState.COMPLETED, b"copy", None)
    assert (after.version, after.finished_at) == (original.version + 1, LATER)


def test_a_dropped_copy_is_cancelled_whatever_it_did():
    for copy in (ready(), running()):
        after = dropped(copy, LATER)
        assert (after.state, after.token, after.lease_expires_at) == (JobState.CANCELLED, None, None)
        assert is_legal(copy.state, after.state)
