"""taskharbor worker, scheduler and dev as processes."""

import json
import signal
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from taskharbor.model.state import JobState
from tests.integration.cli.conftest import Command


def wait_for_line(process: subprocess.Popen[str], word: str) -> str:
    """Read the log until a line holds the word; the test's own time limit ends it otherwise."""
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        if word in line:
            return line
    raise AssertionError(f"{word!r} never came; the log was:\n{''.join(seen)}")


def wait_until_running(taskharbor: Command, job_id: str) -> None:
    while taskharbor.job(job_id).state is JobState.READY:
        time.sleep(0.05)


def test_a_burst_runs_everything_and_ends(taskharbor: Command) -> None:
    job_id = taskharbor.put("send_welcome", "mail", b'{"user_id": 7}')

    worked = taskharbor("worker", "app:harbor", "--burst")

    waited = taskharbor("jobs", "wait", job_id, "--json")
    assert (worked.code, worked.out) == (0, "")
    assert (waited.code, waited.json["items"][0]["result"]) == (0, "welcome, user 7")


def test_several_processes_run_a_burst_too(taskharbor: Command) -> None:
    ids = [taskharbor.put("send_welcome", "mail", b'{"user_id": 7}') for _ in range(20)]

    worked = taskharbor("worker", "app", "--processes", "2", "--burst", "--log-format", "json")

    assert worked.code == 0, worked.err
    assert {taskharbor.job(job_id).state for job_id in ids} == {JobState.COMPLETED}
    assert all(line.startswith("{") for line in worked.err.splitlines())


def test_a_broken_app_is_told_once_whatever_the_number_of_processes(taskharbor: Command) -> None:
    (taskharbor.folder / "broken.py").write_text("raise KeyError('no such setting')")

    worked = taskharbor("worker", "broken:harbor", "--processes", "2")

    assert (worked.code, worked.out) == (2, "")
    assert worked.err == "error: importing 'broken' failed: KeyError: 'no such setting'\n"


@pytest.mark.timeout(60)
def test_several_processes_drain_on_sigterm_and_exit_0(taskharbor: Command) -> None:
    job_id = taskharbor.put("nap")
    worker = taskharbor.start("worker", "app", "--processes", "2")
    wait_until_running(taskharbor, job_id)

    worker.terminate()

    assert worker.wait(30) == 0
    assert taskharbor.job(job_id).state is JobState.COMPLETED


def test_a_failing_job_is_a_dead_letter_that_can_be_replayed(taskharbor: Command) -> None:
    job_id = taskharbor.put("boom", max_attempts=1)
    taskharbor("worker", "app", "--burst")

    [letter] = taskharbor("dlq", "list", "--json").json["items"]
    replayed = taskharbor("dlq", "replay", "--all", "--yes", "--json")

    assert (letter["id"], letter["last_error"]) == (job_id, "RuntimeError: no luck")
    assert replayed.json["changed"] == 1


@pytest.mark.timeout(60)
def test_sigterm_lets_running_jobs_end_and_exits_0(taskharbor: Command) -> None:
    job_id = taskharbor.put("nap")
    worker = taskharbor.start("worker", "app:harbor", "--log-format", "logfmt")
    wait_until_running(taskharbor, job_id)

    worker.send_signal(signal.SIGTERM)

    assert worker.wait(30) == 0
    assert taskharbor.job(job_id).state is JobState.COMPLETED


@pytest.mark.timeout(60)
def test_a_second_sigterm_gives_running_jobs_back_untouched(taskharbor: Command) -> None:
    job_id = taskharbor.put("sleep_long")
    worker = taskharbor.start("worker", "app:harbor")
    wait_until_running(taskharbor, job_id)

    worker.send_signal(signal.SIGTERM)
    wait_for_line(worker, "told to stop")
    worker.send_signal(signal.SIGTERM)

    assert worker.wait(30) == 0
    job = taskharbor.job(job_id)
    assert (job.state, job.attempts, job.stalls) == (JobState.READY, 0, 0)


@pytest.mark.timeout(60)
def test_the_health_port_answers_probes(taskharbor: Command, free_port: int) -> None:
    worker = taskharbor.start("worker", "app:harbor", "--health-port", str(free_port))
    wait_for_line(worker, "serves")
    address = f"http://127.0.0.1:{free_port}"

    statuses = [urllib.request.urlopen(f"{address}{path}").status for path in ("/livez", "/readyz")]
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"{address}/secrets")
    worker.terminate()

    assert statuses == [200, 200]
    assert worker.wait(30) == 0


def test_built_in_handlers_need_no_app(taskharbor: Command) -> None:
    good = taskharbor.put("mail.send", payload=b'{"to": "a"}', max_attempts=1)
    bad = taskharbor.put("sms.send", payload=b'{"message": "no"}', max_attempts=1)

    taskharbor("worker", "--handle", "mail.send=echo", "--handle", "sms.send=fail", "--burst")

    assert taskharbor.job(good).result == b'{"to":"a"}'
    assert taskharbor.job(bad).last_error == "RuntimeError: no"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "which app?"),
        (["nosuch:harbor"], "there is no module 'nosuch'"),
        (["nosuch:harbor", "--processes", "2"], "there is no module 'nosuch'"),
        (["app:nosuch"], "Harbor objects in it: app:harbor"),
        (["app:send_welcome"], "not a Harbor"),
        (["app.py"], "is a file name"),
        (["broken:harbor"], "ZeroDivisionError"),
        (["needs_more:harbor"], "no_such_library"),
        (["app:harbor", "--lease", "10s", "--heartbeat", "9s"], "heartbeat"),
        (["app:harbor", "--queues", "no/such"], "is not a name"),
        (["app:harbor", "--handle", "x=nothing"], "must look like"),
        (["app:harbor", "--max-memory", "lots"], "is not a size"),
    ],
)
def test_what_cannot_work_is_told_before_any_work(taskharbor: Command, args: list[str], words: str) -> None:
    (taskharbor.folder / "broken.py").write_text("1 / 0\n")
    (taskharbor.folder / "needs_more.py").write_text("import no_such_library\n")

    answer = taskharbor("worker", *args, "--burst")

    assert answer.code == 2
    assert words in answer.err
    assert "Traceback" not in answer.err


def test_logs_have_three_forms_and_one_line_per_event(taskharbor: Command) -> None:
    taskharbor.put("boom", max_attempts=1)
    as_json = taskharbor("worker", "app:harbor", "--burst", "--log-format", "json").err
    taskharbor.put("boom", max_attempts=1)
    as_logfmt = taskharbor("worker", "app:harbor", "--burst", "--log-format", "logfmt").err

    records = [json.loads(line) for line in as_json.splitlines()]
    assert any(record.get("task") == "boom" and record["level"] == "warning" for record in records)
    assert any("task=boom" in line and "outcome=failed" in line for line in as_logfmt.splitlines())


@pytest.mark.timeout(60)
def test_a_scheduler_leads_until_it_is_stopped(taskharbor: Command) -> None:
    scheduler = taskharbor.start("scheduler", "app:harbor")
    wait_for_line(scheduler, "leads")

    scheduler.terminate()

    assert scheduler.wait(30) == 0


@pytest.mark.timeout(90)
def test_dev_starts_the_worker_again_when_a_file_changes(taskharbor: Command) -> None:
    app = taskharbor.folder / "app.py"
    dev = taskharbor.start("dev", "app:harbor", "--no-scheduler")
    wait_for_line(dev, "serves")

    app.write_text(app.read_text().replace("welcome, user", "hello, user"))
    wait_for_line(dev, "starting again")
    wait_for_line(dev, "serves")
    job_id = taskharbor.put("send_welcome", "mail", b'{"user_id": 1}')
    waited = taskharbor("jobs", "wait", job_id, "--timeout", "30s", "--json")
    dev.send_signal(signal.SIGINT)

    assert waited.json["items"][0]["result"] == "hello, user 1"
    assert dev.wait(30) == 0


def test_changes_are_seen_without_watchfiles_too(tmp_path: Path) -> None:
    from taskharbor.cli.watching import changes_by_time

    file = tmp_path / "app.py"
    file.write_text("1")
    (tmp_path / "notes.txt").write_text("1")
    looks = changes_by_time([tmp_path])
    assert next(looks) == set()

    file.write_text("22")
    (tmp_path / "notes.txt").write_text("22")
    (tmp_path / "new.py").write_text("")

    assert next(looks) == {file, tmp_path / "new.py"}
