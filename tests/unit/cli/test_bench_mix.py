"""taskharbor bench --mix: percentiles, the account, and that a fault of the store does not go unnoticed."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from taskharbor.cli import bench_jobs, bench_mix
from taskharbor.cli.bench_jobs import KINDS, MixJobs, kinds_of
from taskharbor.cli.bench_report import JobFate, MixReport, percentile
from taskharbor.drivers import Driver
from taskharbor.model.job import Job, JobRecord
from taskharbor.model.queue import EVERY_QUEUE, QueueSettings, Retention
from taskharbor.model.state import JobState
from taskharbor.worker.attempt import JobContext
from tests.unit.cli.conftest import Shell

NOW = datetime(2026, 5, 1, tzinfo=UTC)
DEAD = JobFate("failing", JobState.FAILED, failures=2)
FATES = {"p": JobFate("plain"), "f": JobFate("flaky", failures=1), "d": DEAD}


def job(job_id: str, state: JobState, seconds: float | None = 1.0, **fields: Any) -> JobRecord:
    return JobRecord(
        id=job_id,
        seq=1,
        type="t",
        queue="q",
        state=state,
        payload=b"",
        created_at=NOW,
        updated_at=NOW,
        finished_at=None if seconds is None else NOW + timedelta(seconds=seconds),
        **fields,
    )


GOOD: dict[str, JobRecord | None] = {
    "p": job("p", JobState.COMPLETED),
    "f": job("f", JobState.COMPLETED, 2.0, attempts=1),
    "d": job("d", JobState.FAILED, 4.0, attempts=2),
}


def added_up(records: dict[str, JobRecord | None], *, stored: int = 3, **ends: int) -> MixReport:
    account = MixReport(FATES, {"p": 1, "f": 1, "d": 1, **ends}, KINDS)
    for asked, record in records.items():
        account.add(asked, record)
    account.close(stored)
    return account


# ------------------------------------------------------------------ percentiles


def test_a_percentile_is_the_smallest_value_that_so_many_do_not_exceed() -> None:
    hundred = [float(number) for number in range(1, 101)]

    assert [percentile(hundred, share) for share in (0.5, 0.95, 0.99, 1.0)] == [50, 95, 99, 100]


def test_percentiles_of_few_values_are_among_them() -> None:
    assert [percentile([7.0], share) for share in (0.0, 0.5, 0.99, 1.0)] == [7, 7, 7, 7]
    assert [percentile([1.0, 2.0, 3.0], share) for share in (0.5, 0.95, 1.0)] == [2, 3, 3]


def test_there_is_no_percentile_of_nothing() -> None:
    assert percentile([], 0.5) is None


# ------------------------------------------------------------------ the account


def test_it_balances_when_every_job_ended_once_and_as_it_must() -> None:
    account = added_up(GOOD)

    assert account.problems == []
    rows = {row["name"]: row for row in account.rows()}
    assert list(rows) == ["plain", "flaky", "failing", "all"]
    everything = rows["all"]
    assert [everything[name] for name in ("jobs", "completed", "failed", "retries")] == [3, 2, 1, 2]
    assert [everything[name] for name in ("p50_s", "p95_s", "max_s")] == [2.0, 4.0, 4.0]
    assert everything["jobs_per_s"] == 0.8  # three in the four seconds from the first enqueue to the last end


@pytest.mark.parametrize(
    ("asked", "record", "message"),
    [
        ("p", None, "lost: plain p is not in the store"),
        ("p", job("p", JobState.RUNNING, None), "plain p never ended: it is running"),
        ("d", job("d", JobState.COMPLETED, attempts=2), "failing d ended completed, not failed"),
        ("p", job("p", JobState.CANCELLED), "plain p ended cancelled, not completed"),
        ("f", job("f", JobState.COMPLETED, attempts=2), "flaky f failed 2 times, not 1"),
        ("d", job("d", JobState.FAILED, attempts=1), "failing d failed 1 time, not 2"),
    ],
)
def test_a_job_that_is_not_as_it_must_be_is_reported(
    asked: str, record: JobRecord | None, message: str
) -> None:
    stored = 2 if record is None else 3

    assert added_up({**GOOD, asked: record}, stored=stored).problems == [message]


def test_a_job_that_ended_twice_is_reported() -> None:
    assert added_up(GOOD, f=2).problems == ["flaky f ended 2 times"]


@pytest.mark.parametrize("stored", [2, 4])
def test_a_store_that_counts_otherwise_is_reported(stored: int) -> None:
    assert added_up(GOOD, stored=stored).problems == [f"the store counts {stored} jobs, but 3 were enqueued"]


def test_an_id_that_leads_to_another_job_of_its_key_counts_as_merged() -> None:
    account = MixReport({"a": JobFate("keyed"), "b": JobFate("keyed")}, {"a": 1}, KINDS)
    for asked in ("a", "b"):
        account.add(asked, job("a", JobState.COMPLETED))
    account.close(1)

    assert account.problems == []
    assert [(row["name"], row["jobs"], row["merged"]) for row in account.rows()] == [
        ("keyed", 1, 1),
        ("all", 1, 1),
    ]


# ------------------------------------------------------------------ the work


@pytest.mark.parametrize("count", [1, 18, 19, 20, 39, 40])
def test_every_parent_has_its_child_among_the_requests(count: int) -> None:
    kinds = Counter(kinds_of(count))

    assert kinds.total() == count
    assert kinds["parent"] == kinds["child"]


def test_a_round_has_every_kind() -> None:
    assert set(kinds_of(20)) == set(KINDS)


# ------------------------------------------------------------------ the command, on a store in memory


def test_the_mix_accounts_for_every_job_and_leaves_nothing_behind(shell: Shell) -> None:
    answer = shell("bench", "--mix", "--jobs", "45", "--batch", "7", "--workers", "3", "--json")

    assert answer.code == 0, answer.err
    assert "every job ended as expected" in answer.err
    rows = {row["name"]: row for row in answer.json["items"]}
    assert list(rows) == [*KINDS, "all"]
    assert rows["all"]["jobs"] + rows["all"]["merged"] == 45
    assert [rows[kind]["failed"] == rows[kind]["jobs"] for kind in ("failing", "flaky")] == [True, False]
    assert rows["failing"]["retries"] == rows["failing"]["jobs"]
    assert rows["delayed"]["p50_s"] >= 1
    assert shell("queues", "list", "--json").json["items"] == []
    assert shell("workers", "list", "--json").json["items"] == []


def test_a_child_that_was_never_put_in_is_lost(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    async def forget_the_child(_self: MixJobs, _ctx: JobContext, _job: Job) -> None:
        return None

    monkeypatch.setattr(MixJobs, "handle", forget_the_child)

    answer = shell("bench", "--mix", "--jobs", "20", "--json")

    assert answer.code == 1
    assert "lost: child " in answer.err
    assert "ended completed, not failed" in answer.err  # this handler never fails
    assert "error: not every job ended as expected: 4 problems" in answer.err
    assert shell("queues", "list", "--json").json["items"] == []


def test_it_gives_up_when_jobs_never_end_and_cleans_up(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_jobs, "_DELAY", timedelta(hours=1))
    monkeypatch.setattr(bench_mix, "_STUCK_SECONDS", 0.5)

    answer = shell("bench", "--mix", "--jobs", "20")

    assert answer.code == 124
    assert "error: no job has ended for 0.5 s: " in answer.err
    assert " scheduled" in answer.err
    assert shell("queues", "list", "--json").json["items"] == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fail_queue": "alarms"}, "makes a job in alarms"),
        ({"retention": Retention(completed=timedelta(0))}, "deletes jobs"),
        ({"paused": True}, "whole harbor is paused"),
    ],
)
def test_a_store_whose_settings_would_spoil_the_account_is_refused(
    shell: Shell, settings: dict[str, Any], message: str
) -> None:
    async def configure(driver: Driver) -> None:
        await driver.configure_queue(QueueSettings(queue=EVERY_QUEUE, **settings))

    shell.store(configure)

    answer = shell("bench", "--mix", "--jobs", "20")

    assert answer.code == 2
    assert message in answer.err
