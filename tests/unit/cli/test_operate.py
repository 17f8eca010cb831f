"""taskharbor queues, workers, schedules, migrate, doctor, bench and version, on a memory store."""

from datetime import timedelta
from typing import Any

import pytest

from taskharbor import __version__
from taskharbor.drivers import Driver
from taskharbor.drivers.messages import Claim
from taskharbor.model.clock import SystemClock
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import NewJob
from taskharbor.model.presence import Sample, WorkerReport
from taskharbor.model.schedule import Schedule
from taskharbor.model.settlement import Fail
from tests.unit.cli.conftest import Shell

GONE = "01a1de6c-6ff6-738c-9f3a-6aa1afc95af6"  # a job that a worker reports and that is not there


def test_queues_list_has_numbers_settings_and_the_age_of_the_oldest(shell: Shell) -> None:
    shell.enqueue(queue="mail")
    shell.enqueue(queue="mail", delay=timedelta(hours=1))
    shell("queues", "set", "mail", "--max-running", "3")

    [mail] = shell("queues", "list", "--json").json["items"]

    assert (mail["name"], mail["ready"], mail["scheduled"], mail["max_running"]) == ("mail", 1, 1, 3)
    assert mail["oldest_s"] >= 0
    assert "max 3" in shell("queues", "list").out


def test_a_queue_is_paused_and_resumed(shell: Shell) -> None:
    shell.enqueue(queue="mail")

    assert shell("queues", "pause", "mail", "--json").json["paused"] is True
    assert shell("queues", "resume", "mail", "--json").json["paused"] is False


def test_the_whole_harbor_is_paused_by_its_own_flag(shell: Shell) -> None:
    shell("queues", "pause", "--all")

    [harbor] = shell("queues", "list", "--json").json["items"]

    assert (harbor["name"], harbor["paused"]) == ("*", True)
    assert shell("queues", "pause").code == 2
    assert shell("queues", "pause", "mail", "--all").code == 2


def test_settings_are_set_kept_and_taken_away(shell: Shell) -> None:
    shell("queues", "set", "mail", "--max-running", "3", "--execute-rate", "10/m", "--enqueue-rate", "5/2s")
    shell("queues", "set", "mail", "--fail-queue", "dead", "--keep-failed", "none", "--keep-completed", "0")
    rules = shell("queues", "set", "mail", "--max-running", "none", "--json").json

    assert rules == {
        "name": "mail",
        "paused": False,
        "max_running": None,
        "enqueue_rate": {"count": 5, "per_s": 2.0},
        "execute_rate": {"count": 10, "per_s": 60.0},
        "fail_queue": "dead",
        "retention": {"completed_s": 0.0, "failed_s": None, "cancelled_s": 1209600.0},
    }
    assert shell("queues", "set", "mail", "--default-retention", "--json").json["retention"] is None


@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--max-running", "many"],
        ["--execute-rate", "10"],
        ["--execute-rate", "x/1m"],
        ["--keep-failed", "x"],
    ],
)
def test_wrong_settings_are_usage_errors(shell: Shell, flags: list[str]) -> None:
    assert shell("queues", "set", "mail", *flags).code == 2


def test_workers_are_listed_with_what_they_do(shell: Shell) -> None:
    async def report(driver: Driver) -> None:
        await driver.report_worker(
            WorkerReport(
                worker_id="w-1", kind="gpu", queues=("mail",), concurrency=4, running=(GONE,), host="h", pid=3
            )
        )

    shell.store(report)

    [worker] = shell("workers", "list", "--json").json["items"]
    assert (worker["id"], worker["kind"], worker["queues"], worker["concurrency"]) == (
        "w-1",
        "gpu",
        ["mail"],
        4,
    )
    assert "1/4" in shell("workers", "list").out


def test_workers_are_ranked_by_latency_with_what_each_runs(shell: Shell) -> None:
    async def at_work(driver: Driver) -> None:
        for name, seconds in (("slow", 9), ("quick", 1), ("idle", None)):
            claim = Claim(queues=("default",), worker_id=name, limit=4, lease_for=timedelta(hours=1))
            new = NewJob(id=Entropy().job_id(SystemClock().now()), type=f"{name}.job")
            await driver.enqueue([new] if seconds else [])
            running = tuple(job.id for job in (await driver.reserve(claim)).jobs)
            report = WorkerReport(worker_id=name, concurrency=4, running=(*running, GONE))
            samples = [Sample("t", timedelta(seconds=seconds))] if seconds else []
            await driver.report_worker(report, samples)

    shell.store(at_work)

    workers = shell("workers", "list", "--json").json["items"]
    assert [worker["id"] for worker in workers] == ["quick", "slow", "idle"]
    assert [[run["type"] for run in worker["runs"]] for worker in workers] == [
        ["quick.job"],
        ["slow.job"],
        [],
    ]
    out = shell("workers", "list").out
    assert "slow.job 0" in out
    assert "+1" in out


def test_schedules_are_listed_paused_resumed_and_run(shell: Shell) -> None:
    async def put(driver: Driver) -> None:
        template = NewJob(id="", type="report", queue="mail")
        await driver.put_schedule(Schedule(name="nightly", template=template, cron="0 3 * * *"))

    shell.store(put)

    [entry] = shell("schedules", "list", "--json").json["items"]
    assert (entry["name"], entry["cron"], entry["paused"], entry["type"]) == (
        "nightly",
        "0 3 * * *",
        False,
        "report",
    )
    assert shell("schedules", "pause", "nightly", "--json").json["paused"] is True
    assert shell("schedules", "resume", "nightly", "--json").json["paused"] is False
    job_id = shell("schedules", "run", "nightly", "--json").json["id"]
    assert shell.get(job_id).type == "report"
    assert shell("schedules", "run", "weekly").code == 3


def test_a_schedule_is_deleted_and_one_that_never_fired_says_so(shell: Shell) -> None:
    async def put(driver: Driver) -> None:
        template = NewJob(id="", type="report", queue="mail")
        await driver.put_schedule(Schedule(name="nightly", template=template, every=timedelta(days=1)))
        declared = Schedule(name="old", template=template, every=timedelta(minutes=1), declared=True)
        await driver.put_schedule(declared, now=SystemClock().now() - timedelta(days=1))
        await driver.report_worker(WorkerReport(worker_id="w", queues=("mail",), types=("other",)))

    shell.store(put)

    listed = {entry["name"]: entry for entry in shell("schedules", "list", "--json").json["items"]}
    assert (listed["nightly"]["fired_at"], listed["nightly"]["is_undeclared"]) == (None, False)
    assert listed["old"]["is_undeclared"]
    assert "never" in shell("schedules", "list").out
    assert "undeclared" in shell("schedules", "list").out

    texts = [item["text"] for item in shell("doctor", "--json").json["items"] if item["check"] == "schedules"]
    assert len(texts) == 2
    assert "schedule nightly makes jobs of report in mail, which no live worker can run" in texts[0]
    assert "schedule old no longer makes jobs" in texts[1]

    assert shell("schedules", "delete", "old").out.startswith("old: deleted; code that still declares it")
    assert shell("schedules", "delete", "nightly", "--json").json == {"name": "nightly", "deleted": True}
    assert shell("schedules", "list", "--json").json["items"] == []
    assert shell("schedules", "delete", "nightly").code == 3


def test_migrate_says_when_there_is_nothing_to_do(shell: Shell) -> None:
    assert shell("migrate", "status", "--json").json["pending"] == []
    assert shell("migrate", "up", "--json").json["applied"] == []


def test_doctor_finds_what_is_wrong_and_says_what_to_do(shell: Shell) -> None:
    shell.enqueue(queue="mail")
    shell.end(lambda job: Fail(job.lease, "boom"), "mail")
    shell.enqueue(queue="mail")
    shell("queues", "pause", "mail")

    answer = shell("doctor", "--json")

    fixes = {finding["fix"] for finding in answer.json["items"] if finding["level"] == "warn"}
    assert answer.code == 0
    assert {
        "taskharbor queues resume mail",
        "taskharbor worker APP -q mail",
        "taskharbor dlq list --queue mail",
    } <= fixes


def test_doctor_names_tasks_that_no_worker_of_their_queue_knows(shell: Shell) -> None:
    known, unknown = shell.enqueue("known"), shell.enqueue("unknown")

    async def at_work(driver: Driver) -> None:
        await driver.report_worker(WorkerReport(worker_id="w", queues=("default",), types=("known",)))

    shell.store(at_work)

    warnings = [item for item in shell("doctor", "--json").json["items"] if item["check"] == "tasks"]

    assert [item["fix"] for item in warnings] == ["taskharbor worker APP --include MODULE"]
    assert "jobs of unknown wait in default" in warnings[0]["text"]
    assert unknown in warnings[0]["text"]
    assert known not in warnings[0]["text"]
    assert "knows the task unknown" in shell("jobs", "why", unknown).out


@pytest.mark.parametrize(
    ("report", "word"),
    [
        ({"types": ("job",), "is_quiet": True}, "has stopped claiming"),
        ({"types": ("job",), "kind": "cpu"}, "need gpu"),
    ],
)
def test_doctor_shows_why_the_workers_of_a_queue_leave_its_jobs(
    shell: Shell, report: dict[str, Any], word: str
) -> None:
    shell.enqueue("job", requires="any" if "is_quiet" in report else "gpu")

    async def at_work(driver: Driver) -> None:
        await driver.report_worker(WorkerReport(worker_id="w", queues=("default",), **report))

    shell.store(at_work)

    [warning] = [item for item in shell("doctor", "--json").json["items"] if item["check"] == "tasks"]
    assert word in warning["text"]


def test_doctor_fails_on_a_store_that_cannot_be_opened(shell: Shell) -> None:
    answer = shell.bare("doctor", "--url", "nosuch://user:hunter2@host/db", "--json")

    assert answer.code == 1
    assert [finding["level"] for finding in answer.json["items"]] == ["ok", "fail"]
    assert "hunter2" not in answer.out + answer.err


def test_bench_measures_and_leaves_nothing_behind(shell: Shell) -> None:
    rows = shell("bench", "--jobs", "30", "--batch", "7", "--json").json["items"]

    assert [row["jobs"] for row in rows] == [30, 30, 30, 30, 30]
    assert all(row["jobs_per_s"] > 0 for row in rows)
    assert shell("queues", "list", "--json").json["items"] == []


def test_version_has_a_json_form(shell: Shell) -> None:
    assert shell.bare("version").out == f"taskharbor {__version__}\n"
    assert shell.bare("--version").out == f"taskharbor {__version__}\n"
    assert shell.bare("version", "--json").json["taskharbor"] == __version__
    assert shell.bare("version", "-o", "json").json["taskharbor"] == __version__


def test_a_queue_that_nobody_knows_is_not_paused_by_a_typing_error(shell: Shell) -> None:
    shell.enqueue(queue="mail")

    refused = shell("queues", "pause", "mial")
    paused = shell("queues", "pause", "mail")
    new = shell("queues", "pause", "later", "--new")

    assert (refused.code, paused.code, new.code) == (3, 0, 0)
    assert "there is no queue mial" in refused.err
    assert "known queues: mail" in refused.err
    names = {row["name"]: row["paused"] for row in shell("queues", "list", "--json").json["items"]}
    assert names == {"later": True, "mail": True}
    assert shell("queues", "resume", "mial").code == 3
    assert shell("queues", "pause", "--all").code == 0
