"""Which store a command looks into, and that looking makes none."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Shell

APP = """
from taskharbor import Harbor

harbor = Harbor("sqlite:///of-the-app.db")

@harbor.task
def greet(name: str) -> str:
    return name
"""
LOOKS = [
    ("jobs", "list"),
    ("dlq", "list"),
    ("queues", "list"),
    ("workers", "list"),
    ("schedules", "list"),
    ("migrate", "status"),
    ("doctor",),
    ("bench", "--jobs", "1"),
]


@pytest.fixture
def app(shell: Shell, tmp_path: Path) -> Iterator[str]:
    """An app whose code names its store, in the folder that commands run in."""
    (tmp_path / "which_app.py").write_text(APP)
    yield "which_app:harbor"
    sys.modules.pop("which_app", None)
    sys.path[:] = [entry for entry in sys.path if entry != str(tmp_path)]


def test_every_store_command_looks_into_the_store_of_the_app(shell: Shell, app: str) -> None:
    put = shell.bare("enqueue", "greet", "name=Ada", "-A", app)
    ends = [shell.bare(*words, "-A", app).code for words in LOOKS]

    assert put.code == 0
    assert ends == [0] * len(LOOKS)
    assert shell.bare("jobs", "list", "-A", app, "-o", "ids").out.split() == put.out.split()
    assert not os.path.exists("taskharbor.db")


@pytest.mark.parametrize("words", LOOKS, ids=" ".join)
def test_looking_makes_no_store(shell: Shell, words: tuple[str, ...]) -> None:
    ran = shell.bare(*words)

    assert ran.code == 6
    assert f"there is no store at {os.path.abspath('taskharbor.db')}, the default; choose yours" in ran.err
    assert os.listdir() == []


def test_a_store_that_was_named_is_not_asked_for_again(
    shell: Shell, app: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_app = shell.bare("jobs", "list", "-A", app)
    by_url = shell.bare("jobs", "list", "--url", "sqlite:///nope.db")
    monkeypatch.setenv("TASKHARBOR_URL", "sqlite:///nope.db")
    by_variable = shell.bare("doctor")

    assert "of-the-app.db (named by the app). Check the address" in by_app.err
    assert "nope.db (named by --url). Check the address" in by_url.err
    assert "nope.db (named by the environment or settings file). Check the address" in by_variable.err
    assert "give --url" not in by_app.err + by_url.err + by_variable.err


def test_enqueue_and_migrate_up_make_the_store(shell: Shell) -> None:
    assert shell.bare("enqueue", "x", "--url", "sqlite:///one.db").code == 0
    assert shell.bare("migrate", "up", "--url", "sqlite:///two.db").code == 0
    assert shell.bare("jobs", "list", "--url", "sqlite:///two.db").code == 0


def test_the_flag_goes_before_the_app_of_the_environment(
    shell: Shell, app: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = shell.enqueue()
    monkeypatch.setenv("TASKHARBOR_APP", app)

    assert shell.bare("jobs", "list", "-o", "ids", "--url", shell.url).out.split() == [job_id]
    assert "of-the-app.db" in shell.bare("jobs", "list").err


def test_the_app_of_the_settings_file_names_the_store(shell: Shell, app: str, tmp_path: Path) -> None:
    (tmp_path / "taskharbor.toml").write_text(f'app = "{app}"\n')

    assert "of-the-app.db" in shell.bare("jobs", "list").err


@pytest.mark.parametrize("command", [("worker", "--burst"), ("worker", "--burst", "--processes", "2")])
def test_a_flag_and_an_app_that_name_two_stores_are_refused(
    shell: Shell, app: str, command: tuple[str, ...]
) -> None:
    ran = shell.bare(*command, app, "--url", "sqlite:///other.db")

    assert ran.code == 2
    assert "sqlite:///other.db" in ran.err
    assert "sqlite:///of-the-app.db" in ran.err
    assert not os.path.exists("other.db")


def test_the_same_store_written_in_two_ways_is_one_store(shell: Shell, app: str, tmp_path: Path) -> None:
    assert shell.bare("worker", app, "--burst", "--url", f"sqlite:///{tmp_path}/of-the-app.db").code == 0


def test_a_store_of_the_environment_is_for_apps_that_name_none(
    shell: Shell, app: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKHARBOR_URL", "sqlite:///of-the-environment.db")

    ran = shell.bare("worker", app, "--burst")

    assert ran.code == 0
    assert not os.path.exists("of-the-environment.db")
    assert "warning: TASKHARBOR_URL is sqlite:///of-the-environment.db, but which_app:harbor names" in ran.err
    assert "sqlite:///of-the-app.db. That one is used" in ran.err


def test_a_variable_and_an_app_that_name_one_store_need_no_warning(
    shell: Shell, app: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKHARBOR_URL", "sqlite:///of-the-app.db")

    assert "warning" not in shell.bare("worker", app, "--burst").err


def test_a_program_and_the_command_line_read_the_same_settings_file(shell: Shell, tmp_path: Path) -> None:
    from taskharbor import Harbor

    (tmp_path / "taskharbor.toml").write_text('url = "sqlite:///of-the-file.db"\n')

    assert Harbor().url == "sqlite:///of-the-file.db"
    assert "of-the-file.db" in shell.bare("jobs", "list").err


def test_an_app_with_a_driver_of_its_own_is_looked_into_by_that_driver(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "own_driver.py").write_text(
        "from taskharbor import Harbor\n"
        "from taskharbor.drivers.memory import MemoryDriver\n"
        "harbor = Harbor(driver=MemoryDriver())\n"
    )

    looked = shell.bare("jobs", "list", "-A", "own_driver:harbor")
    refused = shell.bare("jobs", "list", "-A", "own_driver:harbor", "--url", shell.url)

    sys.modules.pop("own_driver")
    assert looked.code == 0
    assert refused.code == 2
    assert "has a driver of its own" in refused.err


def test_an_app_that_reads_the_variable_keeps_its_own_default(
    shell: Shell, app: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "which_app.py").write_text(
        "import os\nfrom taskharbor import Harbor\n"
        "harbor = Harbor(os.environ.get('TASKHARBOR_URL', 'sqlite:///its-own.db'))\n"
    )
    monkeypatch.delenv("TASKHARBOR_URL", raising=False)

    assert "its-own.db" in shell.bare("jobs", "list", "-A", app).err


@pytest.mark.parametrize(
    ("code", "line", "what"),
    [
        ("import json\n\njson.loads('nope')\n", 3, "JSONDecodeError: Expecting value"),
        ("import nosuchmodule\n", 1, "ModuleNotFoundError: No module named 'nosuchmodule'"),
        ("x = 1\ndef f(:\n    pass\n", 2, "SyntaxError: invalid syntax"),
        ("import sys\nsys.exit('usage: app')\n", 2, "SystemExit: usage: app"),
        ("def f():\n    raise KeyError\n\nf()\n", 2, "KeyError"),
    ],
)
def test_an_app_that_raises_is_reported_with_file_and_line(
    shell: Shell, app: str, tmp_path: Path, code: str, line: int, what: str
) -> None:
    (tmp_path / "which_app.py").write_text(code)

    ran = shell.bare("jobs", "list", "-A", app)

    assert ran.code == 2
    assert f"failed at {tmp_path / 'which_app.py'}, line {line}: {what}" in ran.err


@pytest.mark.parametrize(
    ("bad", "what"),
    [
        ('{"payload": {}}', "missing a required argument: 'name'"),
        ('{"payload": 5}', "the payload must be an object of arguments"),
        ('{"payload": {"name": "x"}, "queue": "no spaces"}', "queue 'no spaces' is not a name"),
        ('{"payload": {"name": "x"}, "type": "nosuch"}', "no task is registered under 'nosuch'"),
        ('{"payload": {"name": "x"}, "max_attempts": -1}', "max_attempts"),
        ('{"payload": {"name": "x"}, "delay_s": -1}', "delay"),
        ("nonsense", "JSON"),
    ],
)
def test_a_bad_line_of_a_file_is_named_by_its_number(
    shell: Shell, app: str, tmp_path: Path, bad: str, what: str
) -> None:
    (tmp_path / "jobs.jsonl").write_text(f'{{"payload": {{"name": "Ada"}}}}\n\n{bad}\n')

    ran = shell.bare("enqueue", "greet", "-f", "jobs.jsonl", "-A", app)

    assert ran.code == 2
    assert "line 3: " in ran.err
    assert what in ran.err


def test_a_url_names_the_store_of_an_app_that_has_none_yet(shell: Shell, app: str, tmp_path: Path) -> None:
    (tmp_path / "which_app.py").write_text(APP.replace('"sqlite:///of-the-app.db"', "lazy=True"))
    without = shell.bare("enqueue", "greet", "name=Ada", "-A", app)
    put = shell.bare("enqueue", "greet", "name=Ada", "-A", app, "--url", "sqlite:///named.db")

    assert (without.code, put.code) == (2, 0)
    assert "no store yet: call harbor.attach(URL) first" in without.err
    assert os.path.exists("named.db")
