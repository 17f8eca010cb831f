"""taskharbor worker, scheduler and dev as processes."""

import signal
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest

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


def test_a_burst_runs_everything_and_ends(taskharbor: Command) -> None:
    job_id = taskharbor("enqueue", "send_welcome", "user_id=7", "--queue", "mail").out.strip()

    worked = taskharbor("worker", "app:harbor", "--burst")

    waited = taskharbor("jobs", "wait", job_id, "--json")
    assert worked.code == 0
    assert worked.out == ""
    assert (waited.code, waited.json["items"][0]["result"]) == (0, "welcome, user 7")


def test_a_failing_job_is_a_dead_letter_that_can_be_replayed(taskharbor: Command) -> None:
    job_id = taskharbor("enqueue", "boom").out.strip()
    taskharbor("worker", "app", "--burst")

    [letter] = taskharbor("dlq", "list", "--json").json["items"]
    why = taskharbor("jobs", "why", job_id)
    replayed = taskharbor("dlq", "replay", "--all", "--yes", "--json")

    assert (letter["id"], letter["last_error"]) == (job_id, "RuntimeError: no luck")
    assert "no luck" in why.out
    assert replayed.json["changed"] == 1


@pytest.mark.timeout(60)
def test_sigterm_lets_running_jobs_end_and_exits_0(taskharbor: Command) -> None:
    worker = taskharbor.start("worker", "app:harbor", "--log-format", "logfmt")
    wait_for_line(worker, "serves")
    job_id = taskharbor("enqueue", "nap").out.strip()
    while taskharbor("jobs", "show", job_id, "--json").json["state"] == "ready":
        pass

    worker.send_signal(signal.SIGTERM)

    assert worker.wait(30) == 0
    assert taskharbor("jobs", "show", job_id, "--json").json["state"] == "completed"


@pytest.mark.timeout(60)
def test_a_second_sigterm_gives_running_jobs_back_untouched(taskharbor: Command) -> None:
    job_id = taskharbor("enqueue", "sleep_long").out.strip()
    worker = taskharbor.start("worker", "app:harbor")
    while taskharbor("jobs", "show", job_id, "--json").json["state"] == "ready":
        pass

    worker.send_signal(signal.SIGTERM)
    wait_for_line(worker, "told to stop")
    worker.send_signal(signal.SIGTERM)

    assert worker.wait(30) == 0
    job = taskharbor("jobs", "show", job_id, "--json").json
    assert (job["state"], job["attempts"], job["stalls"]) == ("ready", 0, 0)


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
    good = taskharbor("enqueue", "mail.send", "to=a", "--max-attempts", "1").out.strip()
    bad = taskharbor("enqueue", "sms.send", "message=no", "--max-attempts", "1").out.strip()

    taskharbor("worker", "--handle", "mail.send=echo", "--handle", "sms.send=fail", "--burst")

    assert taskharbor("jobs", "show", good, "--json").json["result"] == {"to": "a"}
    assert taskharbor("jobs", "show", bad, "--json").json["last_error"] == "RuntimeError: no"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "which app?"),
        (["nosuch:harbor"], "there is no module 'nosuch'"),
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
    import json

    taskharbor("enqueue", "boom")
    taskharbor("enqueue", "boom")
    as_json = taskharbor("worker", "app:harbor", "--burst", "--max-jobs", "1", "--log-format", "json").err
    as_logfmt = taskharbor("worker", "app:harbor", "--burst", "--log-format", "logfmt").err

    records = [json.loads(line) for line in as_json.splitlines()]
    assert any(record.get("job_type") == "boom" and record["level"] == "warning" for record in records)
    assert any("job_type=boom" in line and "outcome=failed" in line for line in as_logfmt.splitlines())


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
    job_id = taskharbor("enqueue", "send_welcome", "user_id=1", "--queue", "mail").out.strip()
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
