"""The command tree: every command has help, finds its flags, and loads nothing it does not need."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from taskharbor.cli.main import COMMANDS, build, help_text, run
from tests.unit.cli.conftest import Shell

CALLS = [
    [name, *([sub] if sub else [])] for name, entry in COMMANDS.items() for sub in (entry.commands or ("",))
]


@pytest.mark.parametrize("call", CALLS, ids=" ".join)
def test_every_command_has_help_and_every_flag_a_variable(shell: Shell, call: list[str]) -> None:
    answer = shell.bare(*call, "--help")

    assert answer.code == 0
    assert answer.out.startswith(f"Usage: taskharbor {' '.join(call)}")
    variables = [option.envvar for option in options_of(call)]
    assert None not in variables
    own = [name for name in variables if name.startswith(f"TASKHARBOR_{'_'.join(call).upper()}_")]
    assert not own or own[0] in answer.out  # one example shows the rule


@pytest.mark.parametrize("call", CALLS, ids=" ".join)
def test_help_fits_eighty_columns_and_is_not_cut(
    shell: Shell, call: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")

    pages = [shell.bare(*call, "--help").out, shell.bare(call[0], "--help").out]

    assert [line for page in pages for line in page.splitlines() if len(line) > 80] == []
    assert [line for page in pages for line in page.splitlines() if re.search(r"\w\.\.\.$", line)] == []
    assert "0:00:" not in pages[0]  # a duration looks as it is typed


def options_of(call: list[str]):
    command = build(call[:1])
    for name in call:
        command = command.commands[name]
    return [
        parameter
        for parameter in command.params
        if parameter.opts[0].startswith("-") and parameter.name != "help"
    ]


@pytest.mark.parametrize("name", [name for name, entry in COMMANDS.items() if entry.commands])
def test_every_group_lists_exactly_its_commands(name: str) -> None:
    group = build([name]).commands[name]

    assert tuple(group.commands) == COMMANDS[name].commands


def test_the_help_of_the_whole_names_every_command(shell: Shell) -> None:
    for call in ([], ["--help"], ["-h"]):
        answer = shell.bare(*call)
        assert (answer.code, answer.out) == (0, help_text())
    assert all(f"  {name} " in help_text() for name in COMMANDS)


def test_common_flags_may_come_before_the_command(shell: Shell) -> None:
    shell.enqueue(queue="mail")

    before = shell.bare("--url", shell.url, "--json", "queues", "list")
    behind = shell.bare("queues", "list", "--url", shell.url, "--json")

    assert [queue["name"] for queue in before.json["items"]] == ["mail"]
    assert before.json["items"][0]["name"] == behind.json["items"][0]["name"]


def test_flags_come_from_the_environment_too(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        shell.enqueue()
    monkeypatch.setenv("TASKHARBOR_URL", shell.url)
    monkeypatch.setenv("TASKHARBOR_OUTPUT", "ids")
    monkeypatch.setenv("TASKHARBOR_JOBS_LIST_LIMIT", "2")

    assert len(shell.bare("jobs", "list").out.split()) == 2
    assert len(shell.bare("jobs", "list", "--limit", "1").out.split()) == 1


def test_the_url_may_be_borrowed_from_another_variable(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = shell.enqueue()
    monkeypatch.setenv("DATABASE_URL", shell.url)

    assert shell.bare("jobs", "list", "--url", "env:DATABASE_URL", "-o", "ids").out.split() == [job_id]
    missing = shell.bare("jobs", "list", "--url", "env:NO_SUCH_NAME")
    assert missing.code == 2
    assert "NO_SUCH_NAME" in missing.err


@pytest.mark.parametrize("args", [["jbos"], ["--colour"], ["jobs", "lst"], ["jobs", "list", "--limitt", "3"]])
def test_a_typing_error_is_a_usage_error(shell: Shell, args: list[str]) -> None:
    answer = shell.bare(*args)

    assert answer.code == 2
    assert answer.out == ""


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("taskharbor jo", "jobs"),
        ("taskharbor jobs ca", "cancel"),
        ("taskharbor jobs list --st", "--state"),
        ("taskharbor tokens create --role op", "operator"),
    ],
)
@pytest.mark.parametrize("kind", ["bash", "zsh"])
def test_a_shell_gets_its_completions(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, kind: str, words: str, offered: str
) -> None:
    monkeypatch.setenv("_TASKHARBOR_COMPLETE", f"complete_{kind}")
    monkeypatch.setenv("COMP_WORDS" if kind == "bash" else "_TYPER_COMPLETE_ARGS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))

    answer = shell.bare()

    assert offered in answer.out
    assert "Usage" not in answer.out


def test_an_unknown_command_gets_a_hint(shell: Shell) -> None:
    assert "Did you mean 'jobs'?" in shell.bare("jbos").err


@pytest.mark.parametrize(
    "url",
    [
        "nosuch://user:hunter2@host/db",
        "hunter2",
        "postgresql://user:hunter2@[::1",
        "nosuch://host?password=hunter2x",
    ],
)
def test_a_wrong_url_is_reported_without_its_password(shell: Shell, url: str) -> None:
    answer = shell.bare("queues", "list", "--url", url)

    assert answer.code == 2
    assert url == "hunter2" or "hunter2" not in answer.err
    assert "Traceback" not in answer.err


def test_csv_and_jsonl_carry_the_same_items(shell: Shell) -> None:
    job_id = shell.enqueue("send.mail", queue="mail")

    csv = shell("jobs", "list", "-o", "csv").out.splitlines()
    lines = shell("jobs", "list", "-o", "jsonl").out.splitlines()

    assert csv[0].startswith("id,type,queue,state")
    assert csv[1].startswith(f"{job_id},send.mail,mail,ready")
    assert len(lines) == 1


def test_help_and_version_import_nothing_slow() -> None:
    """Import time is what a command line costs; typer, msgspec and asyncio are most of it."""
    code = (
        "import sys; from taskharbor.cli.main import run; "
        "run(['--help']); run(['version']); "
        "print([m for m in ('typer', 'msgspec', 'asyncio', 'rich') if m in sys.modules], file=sys.stderr)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stderr.strip() == "[]"


def test_a_command_loads_neither_rich_nor_other_commands_nor_the_web() -> None:
    code = (
        "import sys; from taskharbor.cli.main import run; run(['queues', 'list', '--url', 'memory://']); "
        "slow = ('rich', 'starlette', 'httpx2', 'psycopg', 'redis'); "
        "ours = ('taskharbor.worker', 'taskharbor.harbor', 'taskharbor.cli.commands.'); "
        "print([m for m in sys.modules if m.split('.')[0] in slow or m.startswith(ours)], file=sys.stderr)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stderr.strip() == "['taskharbor.cli.commands.queues']"


def test_commands_on_sqlite_load_nothing_that_they_do_not_need(tmp_path: Path) -> None:
    """What keeps a command that loads no app within its time: no server, no worker, no other store."""
    commands = ["enqueue work", "workers list", "jobs list", "jobs why 0199", "queues list", "dlq list"]
    commands += ["schedules list", "migrate status", "doctor"]
    code = (
        "import sys; from taskharbor.cli.main import run; run(['config', 'show']); "
        f"[run([*one.split(), '--url', 'sqlite:///{tmp_path}/jobs.db']) for one in {commands!r}]; "
        "foreign = ('rich', 'asyncpg', 'psycopg', 'redis', 'starlette', 'uvicorn', 'httpx2', 'pydantic', "
        "'django', 'prometheus_client', 'opentelemetry', 'watchfiles', 'hypothesis', 'multiprocessing', "
        "'email', 'http'); "
        "ours = tuple('taskharbor.' + name for name in ('worker', 'harbor', 'testing', 'web', 'scheduler', "
        "'observe.metrics', 'observe.tracing', 'integrations', 'drivers.memory', 'drivers.postgres', "
        "'drivers.redis', 'drivers.http')); "
        "print([m for m in sys.modules if m.split('.')[0] in foreign or m.startswith(ours)], file=sys.stderr)"
    )

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
    )

    assert done.stderr.strip().splitlines()[-1] == "[]"


def test_run_answers_the_exit_code() -> None:
    assert run(["version"]) == 0
