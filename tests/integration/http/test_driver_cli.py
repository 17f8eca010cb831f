"""The command line on a server instead of a store: the same commands, another URL."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from taskharbor.model.clock import SystemClock
from taskharbor.model.entropy import Entropy
from taskharbor.testing.http_server import HttpServer
from taskharbor.web.tokens import TokenFile, new_token

APP = """
from taskharbor import Harbor

harbor = Harbor()

@harbor.cron("0 3 * * *")
@harbor.task
def nightly() -> None: ...

@harbor.task(queue="mail")
async def greet(name: str) -> str:
    return f"hello, {name}"

if __name__ == "__main__":
    print(greet.enqueue("Ada").id)
"""

MAIL_APP = """
from taskharbor import Harbor

harbor = Harbor()

@harbor.task(queue="mail")
async def greet(name: str) -> str:
    return f"hello, {name}"
"""

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Runs Python with the URL of a server, and the token of the role that is named."""
    folder: Path = tmp_path_factory.mktemp("app")
    (folder / "app.py").write_text(APP)
    kept, texts = TokenFile(folder / "tokens.json", SystemClock()), {}
    (folder / "mail.py").write_text(MAIL_APP)
    for role in ("worker", "operator", "viewer"):
        texts[role], token = new_token(Entropy(), role, SystemClock().now())
        kept.add(token)
    texts["mail worker"], token = new_token(Entropy(), "worker", SystemClock().now(), queues=("mail",))
    kept.add(token)

    with HttpServer(f"sqlite:///{folder}/jobs.db", tokens=folder / "tokens.json") as server:

        def run(role: str, *arguments: str) -> subprocess.CompletedProcess[str]:
            variables = {"TASKHARBOR_URL": server.url, "TASKHARBOR_TOKEN": texts.get(role, "")}
            return subprocess.run(
                [sys.executable, *arguments],
                cwd=folder,
                env={**os.environ, **variables},
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )

        yield run


def test_a_program_puts_jobs_in_a_worker_does_them_and_an_operator_looks(run):
    put = run("operator", "app.py")
    worked = run("worker", "-m", "taskharbor", "worker", "app:harbor", "--burst")
    shown = run("operator", "-m", "taskharbor", "jobs", "show", put.stdout.strip(), "--json")
    schedules = run("viewer", "-m", "taskharbor", "schedules", "list", "--json")

    assert (put.returncode, worked.returncode) == (0, 0), put.stderr + worked.stderr
    assert json.loads(shown.stdout)["state"] == "completed"
    assert "hello, Ada" in shown.stdout
    assert "nightly" in schedules.stdout


@pytest.mark.parametrize(
    ("role", "command", "code", "words"),
    [
        ("nobody", ("jobs", "list"), 4, "set TASKHARBOR_TOKEN"),
        ("viewer", ("queues", "pause", "mail", "--new"), 4, "needs the role operator"),
        ("operator", ("jobs", "show", "00000000-0000-7000-8000-000000000000"), 3, "no job"),
    ],
)
def test_what_goes_wrong_has_its_words_and_its_exit_code(run, role, command, code, words):
    done = run(role, "-m", "taskharbor", *command)

    assert done.returncode == code, done.stderr
    assert words in done.stderr


@pytest.mark.parametrize(
    "arguments", [("mail:harbor",), ("app:harbor", "--queues", "mail")], ids=["its tasks", "lines"]
)
def test_a_token_for_the_queues_of_the_tasks_is_enough_for_a_worker(run, arguments):
    put = run("operator", "app.py")
    worked = run("mail worker", "-m", "taskharbor", "worker", *arguments, "--burst")
    shown = run("operator", "-m", "taskharbor", "jobs", "show", put.stdout.strip(), "--json")

    assert worked.returncode == 0, worked.stderr
    assert json.loads(shown.stdout)["state"] == "completed"
    assert "Traceback" not in worked.stderr


@pytest.mark.parametrize(
    ("role", "processes", "words"),
    [("mail worker", "1", "'default'"), ("mail worker", "2", "'default'"), ("viewer", "1", "role worker")],
)
def test_a_worker_that_is_not_allowed_ends_with_one_line_that_says_what_helps(run, role, processes, words):
    done = run(role, "-m", "taskharbor", "worker", "app:harbor", "--processes", processes)
    lines = [line for line in done.stderr.splitlines() if "does not allow this" in line and "queues" in line]

    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert words in done.stderr
    assert [line for line in lines if "--queues" in line]
    assert len([line for line in lines if "--queues" in line]) <= int(processes)
