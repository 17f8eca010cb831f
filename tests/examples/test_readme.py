"""The first screen of the README: its program and its commands, as they are written there."""

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    [program] = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    name = re.match(r"# (\S+)\n", program)
    assert name is not None, "the program does not say which file it is"
    (tmp_path / name[1]).write_text(program)
    return tmp_path


def session() -> list[tuple[list[str], list[str]]]:
    """The commands that the README shows, each with the lines that it prints."""
    [block] = re.findall(r"^```console\n(.*?)^```", README.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    parts = [part.splitlines() for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]
    return [(shlex.split(lines[0]), lines[1:]) for lines in parts]


def started(words: list[str], folder: Path) -> subprocess.Popen[str]:
    module = ["-m", "taskharbor"] if words[0] == "taskharbor" else []
    return subprocess.Popen(
        [sys.executable, *module, *words[1:]],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if not name.startswith("TASKHARBOR_")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def shape(line: str) -> str:
    """The line without what differs from run to run: ids, names of machines, times."""
    line = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "ID", line)
    line = re.sub(r"worker \S+-\d+-[0-9a-f]{8}", "worker NAME", line)
    return " ".join(re.sub(r"\d+(:\d+)*\.?\d*(ms|s|m)?(?= ago| INFO| s )", "TIME", line).split())


def test_the_commands_of_the_readme_print_what_it_shows(folder: Path) -> None:
    shown = session()
    printed = [started(words, folder).communicate(timeout=110)[0].splitlines() for words, _ in shown]

    assert len(shown) == 3
    assert [[shape(line) for line in lines] for lines in printed] == [
        [shape(line) for line in lines] for _, lines in shown
    ]
    assert {path.name.partition(".db")[0] for path in folder.glob("*.db*")} == {"jobs"}


def test_the_server_of_the_readme_serves(folder: Path) -> None:
    [words] = re.findall(r"`(taskharbor server [^`]+)`", README.read_text("utf-8"))

    with started([*words.split(), "--port", "0"], folder) as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        server.send_signal(signal.SIGINT)
        server.communicate(timeout=110)

    assert "serving on http://127.0.0.1:" in line
    assert server.returncode == 0


def test_every_rate_of_the_readme_has_its_settings_and_is_in_the_results() -> None:
    text = README.read_text("utf-8")
    results = (README.parent / "bench" / "RESULTS.md").read_text("utf-8")

    rows = [line.split("|")[1:-1] for line in text.splitlines() if re.match(r"\| .*\d,\d{3} and", line)]

    assert rows
    assert [row for row in rows if "-c " not in row[1] and row[1].strip() != "the same"] == []
    figures = [figure for row in rows for figure in re.findall(r"\d+,\d{3}", "".join(row[2:]))]
    assert [figure for figure in figures if figure not in results] == []
