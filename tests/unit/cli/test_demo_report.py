"""The demo's account: it balances only when every request leads to a job that ended as it should."""

from datetime import UTC, datetime
from typing import Any

from msgspec.structs import replace

from taskharbor.cli.commands.demo import _summary
from taskharbor.cli.demo_jobs import DemoReport, ExpectedOutcomes, account
from taskharbor.cli.demo_view import happening
from taskharbor.model.job import JobRecord
from taskharbor.model.state import JobState

NOW = datetime(2026, 5, 1, tzinfo=UTC)


def job(job_id: str, state: JobState, **fields: Any) -> JobRecord:
    return JobRecord(
        id=job_id,
        seq=1,
        type="t",
        queue="q",
        state=state,
        payload=b"",
        created_at=NOW,
        updated_at=NOW,
        **fields,
    )


def added_up(records: dict[str, JobRecord | None], stored: int = 2, is_drained: bool = True) -> DemoReport:
    ledger = ExpectedOutcomes(expected={"a": JobState.COMPLETED, "b": JobState.FAILED})
    ledger.results.update({"created": 2})
    return account(ledger, records, stored, is_drained=is_drained)


GOOD: dict[str, JobRecord | None] = {
    "a": job("a", JobState.COMPLETED, starts=3, attempts=2),
    "b": job("b", JobState.FAILED, starts=2, attempts=2, stalls=1),
}


def test_it_balances_when_every_job_ended_as_it_should() -> None:
    result = added_up(GOOD)

    assert result.is_balanced
    assert (result.starts, result.retries, result.stalls) == (5, 3, 1)
    assert result.states == {"completed": 1, "failed": 1}


def test_a_missing_job_is_noticed() -> None:
    result = added_up({**GOOD, "b": None}, stored=1)

    assert result.missing == ("b",)
    assert not result.is_balanced


def test_an_unexpected_end_is_noticed() -> None:
    result = added_up({**GOOD, "a": job("a", JobState.CANCELLED)})

    assert len(result.surprises) == 1
    assert not result.is_balanced


def test_a_job_that_nobody_asked_for_is_noticed() -> None:
    assert not added_up(GOOD, stored=3).is_balanced


def test_two_requests_may_share_a_job() -> None:
    merged = job("a", JobState.COMPLETED)
    ledger = ExpectedOutcomes(expected={"a": JobState.COMPLETED, "b": JobState.COMPLETED})
    ledger.results.update({"created": 1, "updated": 1})

    result = account(ledger, {"a": merged, "b": merged}, 1, is_drained=True)

    assert (result.requests, result.jobs) == (2, 1)
    assert result.is_balanced


def test_a_stopped_demo_may_leave_waiting_jobs_but_no_running_one() -> None:
    waiting = {**GOOD, "a": job("a", JobState.READY)}
    running = {**GOOD, "a": job("a", JobState.RUNNING)}

    stopped = added_up(waiting, is_drained=False)
    assert stopped.is_balanced
    assert list(_summary(stopped))[-1] == "every job ended as expected, except 1 that had not ended yet"
    assert list(_summary(added_up(GOOD)))[-1] == "every job ended as expected"
    assert not added_up(running, is_drained=False).is_balanced


def test_what_happened_is_logged_once_and_in_its_own_words() -> None:
    before = job("a", JobState.RUNNING)
    steps = {
        "failed attempt 1": replace(before, state=JobState.SCHEDULED, attempts=1, last_error="x"),
        "lost its process": replace(before, state=JobState.READY, stalls=1),
        "completed after all": replace(before, state=JobState.COMPLETED, attempts=1),
        "failed for good: x": replace(before, state=JobState.FAILED, last_error="x"),
        "was cancelled": replace(before, state=JobState.CANCELLED),
    }

    assert [
        words for words, after in steps.items() if not (happening(before, after) or "").startswith(words)
    ] == []
    assert happening(before, before) is None
    assert happening(before, replace(before, state=JobState.COMPLETED)) is None  # no news
