"""taskharbor worker, scheduler and dev as processes."""

import json
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from taskharbor.model.state import JobState
from taskharbor.worker.signals import SAME_REQUEST_SECONDS
from tests.integration.cli.conftest import Command
from tests.integration.worker.processes import is_alive


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


def test_a_broken_app_is_reported_once_whatever_the_number_of_processes(taskharbor: Command) -> None:
    (taskharbor.folder / "broken.py").write_text("raise KeyError('no such setting')")

    worked = taskharbor("worker", "broken:harbor", "--processes", "2")

    assert (worked.code, worked.out) == (2, "")
    assert worked.err.startswith("error: importing 'broken' failed at ")
    assert "broken.py, line 1: KeyError: 'no such setting'" in worked.err
    assert "Traceback" not in worked.err


@pytest.mark.timeout(60)
def test_several_processes_drain_on_sigterm_and_exit_0(taskharbor: Command) -> None:
    job_id = taskharbor.put("nap")
    worker = taskharbor.start("worker", "app", "--processes", "2")
    wait_until_running(taskharbor, job_id)

    worker.terminate()

    assert worker.wait(30) == 0
    assert taskharbor.job(job_id).state is JobState.COMPLETED


def test_a_failing_job_is_a_dead_letter_that_can_be_retried(taskharbor: Command) -> None:
    job_id = taskharbor.put("boom", max_attempts=1)
    taskharbor("worker", "app", "--burst")

    [letter] = taskharbor("dlq", "list", "--json").json["items"]
    retried = taskharbor("dlq", "retry", "--all", "--yes", "--json")

    assert (letter["id"], letter["last_error"]) == (job_id, "RuntimeError: no luck")
    assert retried.json["changed"] == 1


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
    wait_for_line(worker, "stopping")
    time.sleep(SAME_REQUEST_SECONDS + 0.1)
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
        ([], "no app given"),
        (["nosuch:harbor"], "no module named 'nosuch'"),
        (["nosuch:harbor", "--processes", "2"], "no module named 'nosuch'"),
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
def test_what_cannot_work_is_refused_before_any_work(
    taskharbor: Command, args: list[str], words: str
) -> None:
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
    [logged] = [record for record in records if record.get("task") == "boom"]
    assert logged["level"] == "error"
    assert 'raise RuntimeError("no luck")' in logged["message"]
    assert "taskharbor/worker" not in logged["message"]
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
    wait_for_line(dev, "restarting")
    wait_for_line(dev, "serves")
    job_id = taskharbor.put("send_welcome", "mail", b'{"user_id": 1}')
    waited = taskharbor("jobs", "wait", job_id, "--timeout", "30s", "--json")
    dev.send_signal(signal.SIGINT)

    assert waited.json["items"][0]["result"] == "hello, user 1"
    assert dev.wait(30) == 0


@pytest.mark.timeout(90)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP, signal.SIGTERM])
def test_the_worker_of_dev_goes_with_it_however_it_ends(taskharbor: Command, number: signal.Signals) -> None:
    dev = taskharbor.start("dev", "app:harbor", "--no-scheduler")
    wait_for_line(dev, "serves")
    [worker] = children_of(dev.pid)

    dev.send_signal(number)

    dev.wait(30)
    until(lambda: not is_alive(worker))


@pytest.mark.timeout(90)
def test_dev_interrupted_twice_at_once_stops_its_worker_in_order(taskharbor: Command) -> None:
    """As `timeout` reports it."""
    dev = taskharbor.start("dev", "app:harbor", "--no-scheduler")
    wait_for_line(dev, "serves")

    dev.send_signal(signal.SIGTERM)
    wait_for_line(dev, "stopping")
    dev.send_signal(signal.SIGTERM)

    wait_for_line(dev, "has stopped (stop)")
    assert dev.wait(30) == 0


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def until(is_so: Callable[[], bool], seconds: float = 40.0) -> None:
    ends = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < ends, "waited in vain"
        time.sleep(0.05)


def test_changes_are_seen_without_watchfiles_too(tmp_path: Path) -> None:
    from taskharbor.cli.file_watch import changes_by_time

    file = tmp_path / "app.py"
    file.write_text("1")
    (tmp_path / "notes.txt").write_text("1")
    looks = changes_by_time([tmp_path])
    assert next(looks) == set()

    file.write_text("22")
    (tmp_path / "notes.txt").write_text("22")
    (tmp_path / "new.py").write_text("")

    assert next(looks) == {file, tmp_path / "new.py"}


_SHOP = """
from taskharbor import Harbor
harbor = Harbor()
"""
_MAIL = """
from shop.harbor import harbor

@harbor.task
def send(): ...
"""


def _shop(folder: Path) -> None:
    """An app whose tasks are in another module than its harbor."""
    (folder / "shop" / "tasks").mkdir(parents=True)
    (folder / "shop" / "__init__.py").write_text("")
    (folder / "shop" / "harbor.py").write_text(_SHOP)
    (folder / "shop" / "tasks" / "__init__.py").write_text("")
    (folder / "shop" / "tasks" / "mail.py").write_text(_MAIL)


def test_tasks_of_other_modules_are_included_and_those_of_nobody_wait(taskharbor: Command) -> None:
    _shop(taskharbor.folder)
    known, unknown = taskharbor.put("send"), taskharbor.put("forgotten")

    bare = taskharbor("worker", "shop.harbor:harbor", "--burst")
    worked = taskharbor(
        "worker", "shop.harbor:harbor", "--include", "shop.tasks", "--processes", "2", "--burst"
    )

    assert bare.code == 2
    assert "knows no task" in bare.err
    assert (worked.code, taskharbor.job(known).state) == (0, JobState.COMPLETED)
    assert "runs 1 task: send" in worked.err
    assert (taskharbor.job(unknown).state, taskharbor.job(unknown).starts) == (JobState.READY, 0)


def test_a_variable_and_the_settings_file_include_modules_too(taskharbor: Command) -> None:
    _shop(taskharbor.folder)
    job_id = taskharbor.put("send")
    (taskharbor.folder / "taskharbor.toml").write_text('include = ["shop.tasks"]\n')

    worked = taskharbor("worker", "shop.harbor:harbor", "--burst")

    assert (worked.code, taskharbor.job(job_id).state) == (0, JobState.COMPLETED)
    assert "'shop.nosuch'" in taskharbor("worker", "shop.harbor", "--include", "shop.nosuch").err


def test_a_worker_that_is_set_to_it_buries_tasks_that_it_does_not_know(taskharbor: Command) -> None:
    job_id = taskharbor.put("forgotten")

    worked = taskharbor("worker", "app:harbor", "--burst", "--unknown-types", "fail")

    assert worked.code == 0
    assert str(taskharbor.job(job_id).failure_kind) == "no_handler"


def test_a_worker_that_was_built_in_code_runs_with_its_own_settings(taskharbor: Command) -> None:
    (taskharbor.folder / "built.py").write_text(
        "import os\n"
        "from taskharbor import Worker\n"
        "from taskharbor.drivers import connect\n"
        "async def nothing(ctx, job): ...\n"
        "worker = Worker(connect(os.environ['TASKHARBOR_URL']), concurrency=3)\n"
        "worker.register('by_hand', nothing)\n"
    )
    job_id = taskharbor.put("by_hand")

    refused = taskharbor("worker", "built:worker", "--burst", "--concurrency", "5")
    worked = taskharbor("worker", "built:worker", "--burst")

    assert (refused.code, worked.code) == (2, 0)
    assert "leave out --concurrency" in refused.err
    assert taskharbor.job(job_id).state is JobState.COMPLETED
    assert ", 3 at once" in worked.err


def test_lanes_rate_poll_prefetch_and_strict_reach_the_worker(taskharbor: Command) -> None:
    gpu, cpu = taskharbor.put("nap", requires="gpu"), taskharbor.put("nap", requires="cpu")

    worked = taskharbor(
        *("worker", "app:harbor", "--burst", "--lanes", "gpu", "--rate", "5/1m"),
        *("--poll", "1s", "--prefetch", "2", "--strict"),
    )

    assert worked.code == 0, worked.err
    assert (taskharbor.job(gpu).state, taskharbor.job(cpu).state) == (JobState.COMPLETED, JobState.READY)
    assert taskharbor("worker", "app:harbor", "--burst", "--rate", "often").code == 2


def test_a_job_that_fails_for_good_is_an_error_with_the_users_own_line(taskharbor: Command) -> None:
    taskharbor.put("boom", max_attempts=1)

    ran = taskharbor("worker", "app:harbor", "--until-idle")

    [first] = [line for line in ran.err.splitlines() if "ERROR" in line]
    assert "boom" in first
    assert 'app.py", line 14, in boom' in ran.err
    assert "RuntimeError: no luck" in ran.err
