"""The tutorials: what they quote is in the examples, and what they kill is finished by another worker."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

import pytest

from tests.examples.pages import ROOT, blocks

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("TASKHARBOR_")}


@pytest.mark.parametrize(
    ("page", "folder"),
    [("docs/start/fastapi-postgres.md", "fastapi_service"), ("docs/start/django-shop.md", "django_shop")],
)
def test_a_tutorial_quotes_its_example(page: str, folder: str) -> None:
    quotes = [text.split("\n", 1) for language, text in blocks(page) if language == "python"]

    wrong = [
        name
        for name, text in quotes
        if text not in (ROOT / "examples" / folder / name.removeprefix("# ")).read_text("utf-8")
    ]
    assert quotes
    assert wrong == []


@contextmanager
def worker(folder: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "taskharbor", "worker", "slow:harbor", "--lease", "2s"]
    process = subprocess.Popen(
        [*command, "--sweep-every", "200ms"], cwd=folder, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def started(process: subprocess.Popen[str]) -> tuple[int, int]:
    """The process and the stalls of the job, as the worker logs them when it starts it."""
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(r"process (\d+) starts, stalls so far: (\d+)", line):
            return int(found[1]), int(found[2])
    raise AssertionError("the worker ended without starting the job")


def command(folder: Path, *words: str) -> str:
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.more("kills a worker and waits for a lease to expire")
def test_a_killed_job_is_finished_by_another_worker(tmp_path: Path) -> None:
    [program] = [text for language, text in blocks("docs/start/kill-it.md") if language == "python"]
    (tmp_path / "slow.py").write_text(program.replace("time.sleep(1)", "time.sleep(0.2)"))
    job_id = command(tmp_path, "slow.py").strip()

    with worker(tmp_path) as first:
        pid, stalls = started(first)
        os.kill(pid, signal.SIGKILL)
        first.wait()
        assert stalls == 0
    with worker(tmp_path) as second:
        assert started(second)[1] == 1
        deadline = monotonic() + 60
        shown = ""
        while "completed" not in shown and monotonic() < deadline:
            sleep(0.2)
            shown = command(tmp_path, "-m", "taskharbor", "jobs", "show", "-A", "slow:harbor", job_id)

    assert "tries            1 (0 failed, 1 stalled, 2 starts)" in shown
    assert '"8 pages"' in shown
    assert "the worker fell silent" in shown
