"""What only happens on a terminal: questions, boxes and the live demo."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shutil
import signal
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from taskharbor.cli.main import COMMANDS
from taskharbor.model.presence import WorkerReport
from taskharbor.model.state import JobState
from tests.integration.cli.conftest import Command

_SEQUENCES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, taskharbor: Command, *args: str, columns: int = 160) -> None:
        self.text = ""
        self._pid, self._terminal = pty.fork()
        if self._pid == 0:
            os.chdir(taskharbor.folder)
            environment = {**taskharbor.environment, "TERM": "xterm", "COLUMNS": str(columns), "LINES": "40"}
            os.execve(sys.executable, [sys.executable, "-m", "taskharbor", *args], environment)

    def wait_for(self, words: str, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while words not in self.text:
            assert time.monotonic() < deadline, self.text[-2000:]
            if not self._read():
                assert words in self.text, self.text[-2000:]

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def end(self, seconds: float = 60) -> int:
        """Read to the end; answers the exit code."""
        deadline = time.monotonic() + seconds
        while self._read() and time.monotonic() < deadline:
            pass
        if time.monotonic() >= deadline:
            os.kill(self._pid, signal.SIGKILL)
        _, status = os.waitpid(self._pid, 0)
        os.close(self._terminal)
        return os.waitstatus_to_exitcode(status)

    def _read(self) -> bool:
        ready, _, _ = select.select([self._terminal], [], [], 0.5)
        if not ready:
            return True
        try:
            data = os.read(self._terminal, 65536)
        except OSError:  # what Linux answers when the other end is gone
            return False
        self.text += _SEQUENCES.sub("", data.decode("utf-8", "replace"))
        return bool(data)


# pty.fork is used in a process with threads only to exec at once.
pytestmark = pytest.mark.filterwarnings("ignore:.*use of forkpty.*:DeprecationWarning")


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("answer", "state"), [("y", JobState.CANCELLED), ("n", JobState.READY)])
def test_a_bulk_step_shows_what_it_would_do_and_asks(
    taskharbor: Command, answer: str, state: JobState
) -> None:
    job_id = taskharbor.put("send_welcome", "mail")

    terminal = Terminal(taskharbor, "jobs", "cancel", "--where", "queue:mail")
    terminal.wait_for("Cancel 1 job? [y/N]")
    terminal.type(f"{answer}\n")

    assert terminal.end() == 0
    assert "1 job would be cancelled (mail 1)" in terminal.text
    assert taskharbor.job(job_id).state is state


@pytest.mark.timeout(120)
def test_ctrl_c_while_waiting_is_exit_code_130(taskharbor: Command) -> None:
    job_id = taskharbor.put("send_welcome", "mail")

    terminal = Terminal(taskharbor, "jobs", "wait", job_id, "-v")
    terminal.wait_for("waiting for 1 job")
    terminal.type("\x03")

    assert terminal.end() == 130
    assert "Traceback" not in terminal.text


@pytest.mark.timeout(120)
def test_the_live_demo_drains_on_ctrl_c_and_accounts_for_every_job(taskharbor: Command) -> None:
    terminal = Terminal(taskharbor, "demo")
    terminal.wait_for("jobs/s")
    terminal.wait_for("for good")  # something has happened
    page = dashboard_of(terminal)
    terminal.type("\x03")

    assert terminal.end() == 0, terminal.text[-3000:]
    assert "every job ended as expected" in terminal.text
    assert "<title>TaskHarbor</title>" in page


@pytest.mark.timeout(90)
def test_dev_on_a_terminal_names_the_address_of_the_dashboard(taskharbor: Command) -> None:
    terminal = Terminal(taskharbor, "dev", "app:harbor", "--no-scheduler")
    page = dashboard_of(terminal)
    terminal.type("\x03")

    assert terminal.end() == 0, terminal.text[-3000:]
    assert "<title>TaskHarbor</title>" in page


def dashboard_of(terminal: Terminal) -> str:
    """The page at the address that a command prints, once it is served."""
    terminal.wait_for("/ui/")
    found = re.search(r"dashboard: (http://127\.0\.0\.1:\d+/ui/)", terminal.text)
    assert found, terminal.text[-1000:]
    deadline = time.monotonic() + 30
    while True:
        try:
            with urllib.request.urlopen(found[1], timeout=30) as answer:
                return str(answer.read().decode())
        except OSError:
            assert time.monotonic() < deadline, terminal.text[-1000:]
            terminal._read()


# What each prints on a terminal, and the words in it that must not be cut. {tree} and {failed} are ids.
TABLES = [
    ("doctor", ["LEVEL", "CHECK", "FOUND", "fix: taskharbor dlq list --queue billing-reminders", "warn"]),
    ("jobs list", ["TYPE", "STATE", "TRY", "billing.invoices.", "billing-reminders", "failed", "1/1"]),
    ("dlq list", ["TYPE", "KIND", "billing.invoices.", "billing-reminders", "error"]),
    ("queues list", ["QUEUE", "billing-reminders", "media", "paused"]),
    ("workers list", ["WORKER", "e258aec5", "media-transcoding", "0/16"]),
    ("workflows list", ["TASK", "orders.monthly.report", "blocked"]),
    ("workflows show {tree}", ["orders.monthly.report", "orders.summarise_by_customer", "ready"]),
    ("workflows graph {tree}", ["orders.collect", "orders.send_to_accounting"]),
    ("jobs show {failed}", ["billing.invoices.send_reminder", "failed", "billing-reminders"]),
    ("jobs why {tree}", ["orders.monthly.report", "orders.send_to_accounting"]),
    ("dlq show {failed}", ["billing.invoices.send_reminder", "failed"]),
    ("schedules list", ["SCHEDULE", "NEXT", "office-hours-report", "Argentina", "media-transcoding"]),
    ("tokens list", ["ROLE", "viewer", "for the people on call"]),
    ("migrate status", ["up to date"]),
    ("bench -n 10", ["JOBS/S", "one by one"]),
    ("bench --mix -n 40", ["P99", "JOBS/S", "child", "2 failed"]),  # the last is beside the bar
    ("config show", ["SETTING", "worker.concurrency", "SOURCE"]),
    ("top --once", ["QUEUES", "WORKERS", "FAILURES"]),
]
WITHOUT_TABLES = {
    "a line for each job or name": {
        "enqueue", "jobs retry", "jobs cancel", "jobs wait", "dlq retry", "dlq purge", "queues pause",
        "queues resume", "queues set", "schedules pause", "schedules resume", "schedules run",
        "schedules delete", "tokens create", "tokens revoke", "workflows cancel", "workflows retry",
        "workflows send", "workflows wait",
    },
    "a log": {"worker", "server", "scheduler", "dev"},
    "a board of its own, which has tests of its own": {"demo"},
    "text of others or a single line": {"migrate up", "migrate sql", "health", "version"},
}  # fmt: skip


def test_every_command_has_its_table_here_or_says_why_it_has_none() -> None:
    every = {f"{name} {part}".strip() for name, entry in COMMANDS.items() for part in entry.commands or ("",)}
    with_table = {name for name in every for words, _ in TABLES if f"{words} ".startswith(f"{name} ")}
    without = {name for names in WITHOUT_TABLES.values() for name in names}

    assert with_table & without == set()
    assert with_table | without == every


@pytest.fixture(scope="module")
def busy_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with something in every table, made once by commands."""
    command = Command(tmp_path_factory.mktemp("busy"))
    command.put("send_welcome", "mail")
    failed = command.put("billing.invoices.send_reminder", "billing-reminders", max_attempts=1)
    command.put("render_video", "media")
    command("worker", "--handle", "billing.invoices.send_reminder=fail", "--burst", "-q", "billing-reminders")
    command("queues", "pause", "media")
    command.schedule("office-hours-report-for-customers", "reports.customers", "media-transcoding")
    command("tokens", "create", "--role", "viewer", "--note", "for the people on call: " + "names " * 10)
    command.report(
        WorkerReport(
            worker_id="worker-with-a-long-name-4711-e258aec5",
            host="build-and-render-17.europe.example",
            pid=4711,
            queues=("billing-reminders", "mail", "media-transcoding"),
            concurrency=16,
            release="2026.11.18-rc1",
        )
    )
    tree = command.workflow("orders.collect", "orders.summarise_by_customer", "orders.send_to_accounting")
    (command.folder / "ids.json").write_text(json.dumps({"failed": failed, "tree": tree}), "utf-8")
    return command.folder


@pytest.fixture
def busy(busy_folder: Path, tmp_path: Path) -> Command:
    """A copy of that store."""
    shutil.copytree(busy_folder, tmp_path, dirs_exist_ok=True)
    return Command(tmp_path)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "columns", [80, pytest.param(200, marks=pytest.mark.more("the same tables on a wide terminal"))]
)
@pytest.mark.parametrize(
    ("words", "shown"),
    TABLES,
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_table_fits_the_terminal_and_loses_nothing(
    busy: Command, columns: int, words: str, shown: list[str]
) -> None:
    ids = json.loads((busy.folder / "ids.json").read_text("utf-8"))
    terminal = Terminal(busy, *words.format(**ids).split(), columns=columns)

    assert terminal.end() == 0, terminal.text
    lines = terminal.text.replace("\r", "").split("\n")
    assert [word for word in shown if word not in terminal.text] == []
    assert [line for line in lines if len(line) > columns and not may_be_wider(line)] == []
    assert "…" not in terminal.text


def may_be_wider(line: str) -> bool:
    """A bar is drawn again in place; the path of a traceback stays whole, so that it can be copied."""
    return "━" in line or re.match(r' *File "', line) is not None
