"""The first screen of the README: its program and its commands, as they are written there."""

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic

import pytest

README = Path(__file__).parents[2] / "README.md"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    [program] = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    name = re.match(r"# (\S+)\n", program)
    assert name is not None, "the program does not say which file it is"
    (tmp_path / name[1]).write_text(program)
    return tmp_path


def commands() -> list[list[str]]:
    """The lines of the block that starts the program, without their comments."""
    blocks = re.findall(r"^```(?:\w*)\n(.*?)^```", README.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    [block] = [block for block in blocks if block.startswith("python ")]
    return [shlex.split(line, comments=True) for line in block.splitlines()]


def started(words: list[str], folder: Path) -> subprocess.Popen[str]:
    module = ["-m", "taskharbor"] if words[0] == "taskharbor" else []
    return subprocess.Popen(
        [sys.executable, *module, *words[1:]],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if not name.startswith("TASKHARBOR_")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def shown_when_done(look: list[str], folder: Path) -> list[str]:
    """What the last command prints below its heading, once it tells that the job is done."""
    deadline = monotonic() + 60
    while True:
        shown, trouble = started(look, folder).communicate(timeout=60)
        assert trouble == ""
        if "completed" in shown or monotonic() > deadline:
            return shown.splitlines()[1:]


def test_the_readme_puts_a_job_in_does_it_and_shows_it(folder: Path) -> None:
    put, work, look, serve = commands()

    job_id, trouble = started(put, folder).communicate(timeout=60)
    assert trouble == ""
    with started(work, folder) as worker:
        try:
            rows = shown_when_done(look, folder)
        finally:
            worker.send_signal(signal.SIGINT)
            worker.communicate(timeout=60)

    with started([*serve, "--port", "0"], folder) as server:
        assert server.stderr is not None
        said = server.stderr.readline()
        server.send_signal(signal.SIGINT)
        server.communicate(timeout=60)

    assert (worker.returncode, server.returncode) == (0, 0)
    assert "serving on http://127.0.0.1:" in said
    [row] = rows
    assert row.startswith(job_id.strip())
    assert "completed" in row
    assert {path.name.partition(".db")[0] for path in folder.glob("*.db*")} == {"jobs"}


def test_every_rate_of_the_readme_has_its_settings_and_is_in_the_results() -> None:
    text = README.read_text("utf-8")
    results = (README.parent / "bench" / "RESULTS.md").read_text("utf-8")

    rows = [line.split("|")[1:-1] for line in text.splitlines() if re.match(r"\| .*\d,\d{3} and", line)]

    assert rows
    assert [row for row in rows if "-c " not in row[1] and row[1].strip() != "the same"] == []
    figures = [figure for row in rows for figure in re.findall(r"\d+,\d{3}", "".join(row[2:]))]
    assert [figure for figure in figures if figure not in results] == []
