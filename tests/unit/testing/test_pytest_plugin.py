"""The fixtures that come with TaskHarbor, used as a program's tests use them."""

import os
import subprocess
import sys
from pathlib import Path

APP = """
from taskharbor import Harbor

harbor = Harbor("sqlite:///must-not-be-touched.db")

@harbor.task
def send_welcome(user_id: int) -> str:
    return f"welcome, {user_id}"
"""

TESTS = """
from datetime import timedelta

import pytest

from app import send_welcome
from taskharbor.testing import SimulatedClock, assert_enqueued, assert_not_enqueued, drain

@pytest.mark.parametrize("turn", [1, 2])
def test_every_test_has_an_empty_store(harbor, turn):
    assert_not_enqueued(harbor, send_welcome)
    send_welcome.enqueue(turn)
    assert_enqueued(harbor, send_welcome, args=(turn,), times=1)

def test_the_clock_moves_by_itself_while_drained(harbor, clock):
    job = send_welcome.using(delay="1d").enqueue(7)
    assert isinstance(clock, SimulatedClock)
    assert len(drain(harbor)) == 1
    assert job.result() == "welcome, 7"
    assert clock.monotonic() == timedelta(days=1).total_seconds()
"""


def run_pytest(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "taskharbor.testing.pytest_plugin", *args],
        cwd=folder,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_the_fixtures_put_the_programs_harbor_into_memory(tmp_path):
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "test_app.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\ntaskharbor_app = app:harbor\n")

    done = run_pytest(tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
    assert not list(tmp_path.glob("*.db"))


def test_without_a_program_the_harbor_is_a_new_one(tmp_path):
    (tmp_path / "test_it.py").write_text(
        "def test_it(harbor):\n    assert harbor.queue('default').counts().total == 0\n"
    )

    assert "1 passed" in run_pytest(tmp_path).stdout


def test_something_that_is_no_harbor_is_refused(tmp_path):
    (tmp_path / "test_it.py").write_text("def test_it(harbor): ...\n")

    done = run_pytest(tmp_path, "-o", "taskharbor_app=json:dumps")

    assert "does not name a Harbor" in done.stdout

    done = run_pytest(tmp_path, "-o", "taskharbor_app=nosuch:harbor")

    assert (
        "there is no module 'nosuch'; if it is in the folder of pyproject.toml, add pythonpath" in done.stdout
    )
