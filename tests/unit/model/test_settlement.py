"""decide(): what one finished attempt does to its job."""

from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from taskharbor.model.entropy import Entropy
from taskharbor.model.job import FailureKind, JobRecord
from taskharbor.model.outcome import Died, Failed, Released, Snoozed, Succeeded, WasCancelled
from taskharbor.model.retry import RetryPolicy
from taskharbor.model.settlement import (
    Ack,
    Cancelled,
    Fail,
    Release,
    Retry,
    Stalled,
    decide,
    runs_again,
    settlement_for,
)
from taskharbor.model.state import JobState
from taskharbor.model.transitions import stalled

NOW = datetime(2031, 4, 5, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def running(attempts=0):
    return JobRecord(
        id="018f0000-0000-7000-8000-000000000001",
        seq=1,
        type="t",
        queue="q",
        state=JobState.RUNNING,
        payload=b"",
        created_at=NOW,
        updated_at=NOW,
        token="secret",
        fence=3,
        attempts=attempts,
    )


def decided(outcome, *, attempts=0, limit=3):
    return decide(running(attempts), outcome, limit=limit, backoff=lambda n: n * 10 * SECOND)


LEASE = running().lease


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (Succeeded(), Ack(LEASE)),
        (Succeeded(b"7"), Ack(LEASE, b"7")),
        (Snoozed(5 * SECOND), Release(LEASE, 5 * SECOND)),
        (Released(), Release(LEASE)),
        (WasCancelled("user"), Cancelled(LEASE, "user")),
        (Died("signal 9"), Stalled(LEASE, "signal 9")),
        (Failed("boom"), Retry(LEASE, 10 * SECOND, "boom")),
        (Failed("boom", trace="long"), Retry(LEASE, 10 * SECOND, "boom", trace="long")),
        (Failed("slow", FailureKind.TIMEOUT), Retry(LEASE, 10 * SECOND, "slow", "timeout")),
        (Failed("later", retry_after=60 * SECOND), Retry(LEASE, 60 * SECOND, "later")),
        (Failed("sooner", retry_after=SECOND), Retry(LEASE, 10 * SECOND, "sooner")),
        (Failed("no", FailureKind.UNRECOVERABLE), Fail(LEASE, "no", "unrecoverable")),
        (Failed("no", FailureKind.NO_HANDLER), Fail(LEASE, "no", "no_handler")),
        (Failed("no", FailureKind.INVALID_PAYLOAD), Fail(LEASE, "no", "invalid_payload")),
    ],
    ids=repr,
)
def test_each_outcome_has_its_settlement(outcome, expected):
    assert decided(outcome) == expected


@pytest.mark.parametrize(
    ("attempts", "limit", "kind"),
    [(0, 1, Fail), (0, 2, Retry), (1, 2, Fail), (1, 3, Retry), (2, 3, Fail), (9, 3, Fail)],
)
def test_with_a_limit_of_n_there_are_exactly_n_executions(attempts, limit, kind):
    assert type(decided(Failed("boom"), attempts=attempts, limit=limit)) is kind


def test_an_error_that_is_not_worth_another_try_fails_at_once():
    def only_value_errors(errors):
        return "ValueError" in errors

    def settled(outcome):
        return decide(
            running(), outcome, limit=3, backoff=lambda n: n * SECOND, tries_again=only_value_errors
        )

    assert settled(Failed("x", errors=("ValueError",))) == Retry(LEASE, SECOND, "x")
    assert settled(Failed("x", errors=("KeyError",))) == Fail(LEASE, "x", FailureKind.UNRECOVERABLE)
    assert settled(Failed("slow", FailureKind.TIMEOUT)) == Retry(LEASE, SECOND, "slow", "timeout")


def test_the_wait_grows_with_the_failures_recorded_so_far():
    assert decided(Failed("boom"), attempts=4, limit=9) == Retry(LEASE, 50 * SECOND, "boom")


def test_a_timeout_on_the_last_try_keeps_its_kind():
    assert decided(Failed("slow", FailureKind.TIMEOUT), attempts=2) == Fail(LEASE, "slow", "timeout")


@pytest.mark.parametrize(
    ("outcome", "attempts", "expected"),
    [
        (Failed("boom", errors=("ValueError",)), 0, True),
        (Failed("boom", errors=("ValueError",)), 1, True),
        (Failed("boom", errors=("ValueError",)), 2, False),
        (Failed("boom", errors=("KeyError",)), 0, False),
        (Failed("slow", FailureKind.TIMEOUT), 1, True),
        (Failed("slow", FailureKind.TIMEOUT), 2, False),
        (Failed("no", FailureKind.UNRECOVERABLE), 0, False),
        (Failed("no", FailureKind.INVALID_PAYLOAD), 0, False),
    ],
    ids=repr,
)
def test_a_failure_runs_again_if_and_only_if_its_settlement_is_a_retry(outcome, attempts, expected):
    policy = RetryPolicy(max_attempts=3, no_retry_on=("KeyError",))
    job = running(attempts)

    settlement = settlement_for(job, outcome, policy, Entropy())

    assert (runs_again(job, outcome, policy), isinstance(settlement, Retry)) == (expected, expected)


@pytest.mark.parametrize(
    ("stalls", "allowed", "expected"), [(0, 1, False), (1, 3, True), (2, 3, False), (9, 0, True)]
)
def test_a_death_runs_again_while_stalls_are_left(stalls, allowed, expected):
    job = replace(running(), stalls=stalls, max_stalls=allowed)

    assert runs_again(job, Died("oom"), RetryPolicy()) is expected
    assert (stalled(job, "oom", NOW).state is not JobState.FAILED) is expected


def test_a_death_is_never_counted_as_a_failure():
    assert decided(Died("oom"), attempts=2) == Stalled(LEASE, "oom")
