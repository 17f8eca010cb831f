"""Settings files on the command line: precedence, profiles, and files that others may write to."""

from pathlib import Path

import pytest

from tests.unit.cli.conftest import Shell


@pytest.fixture
def file(shell: Shell, tmp_path: Path) -> Path:
    """The settings file of the folder that commands run in."""
    return tmp_path / "taskharbor.toml"


def test_flag_beats_variable_beats_file(shell: Shell, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = shell.enqueue()
    file.write_text(f'url = "{shell.url}"\n')
    assert shell.bare("jobs", "list", "-o", "ids").out.split() == [job_id]

    monkeypatch.setenv("TASKHARBOR_URL", "memory://elsewhere")
    assert shell.bare("jobs", "list", "-o", "ids").out == ""
    assert shell.bare("jobs", "list", "-o", "ids", "--url", shell.url).out.split() == [job_id]


def test_a_section_of_the_file_gives_a_command_its_defaults(shell: Shell, file: Path) -> None:
    file.write_text('[worker]\nlease = "10s"\nheartbeat = "9s"\nqueues = ["a", "b"]\n')

    # The heartbeat of the file leaves no second chance within its lease: both were read.
    answer = shell.bare("worker", "--handle", "x=echo", "--until-idle", "--url", shell.url)
    mended = shell.bare("worker", "--handle", "x=echo", "--until-idle", "--url", shell.url, "--lease", "60s")

    assert answer.code == 2
    assert "heartbeat=0:00:09" in answer.err
    assert mended.code == 0


def test_config_show_prints_value_and_source_and_hides_passwords(shell: Shell, file: Path) -> None:
    file.write_text('url = "postgresql://me:hunter2@db/jobs"\n[worker]\nconcurrency = 4\n')

    shown = shell.bare("config", "show", "--json")

    rows = {row["name"]: (row["value"], row["source"]) for row in shown.json["items"]}
    assert rows["url"] == ("postgresql://me:***@db/jobs", "file taskharbor.toml")
    assert rows["worker.concurrency"] == ("4", "file taskharbor.toml")
    assert rows["worker.kind"] == ("any", "default")
    assert "hunter2" not in shown.out


def test_a_profile_goes_over_the_rest(shell: Shell, file: Path) -> None:
    job_id = shell.enqueue()
    file.write_text(f'url = "memory://elsewhere"\n[profile.prod]\nurl = "{shell.url}"\n')

    assert shell.bare("jobs", "list", "-o", "ids", "--profile", "prod").out.split() == [job_id]
    assert shell.bare("--profile=nosuch", "jobs", "list").code == 2


def test_another_file_may_be_named(shell: Shell, file: Path, tmp_path: Path) -> None:
    job_id = shell.enqueue()
    (tmp_path / "other.toml").write_text(f'url = "{shell.url}"\n')

    assert shell.bare("--config", "other.toml", "jobs", "list", "-o", "ids").out.split() == [job_id]


@pytest.mark.parametrize("text", ["ulr = 'memory://'", "url = 7", "[worker]\nlease = 'soon'", "not toml ="])
def test_a_wrong_file_is_reported_before_anything_is_done(shell: Shell, file: Path, text: str) -> None:
    file.write_text(text)

    answer = shell.bare("queues", "list")

    assert answer.code == 2
    assert answer.err.startswith("error: ")
    assert "Traceback" not in answer.err


def test_a_file_that_names_code_and_anybody_may_write_is_refused(shell: Shell, file: Path) -> None:
    file.write_text('app = "app:harbor"\n')
    file.chmod(0o666)

    refused = shell.bare("worker", "--until-idle")
    file.chmod(0o644)
    missing = shell.bare("worker", "--until-idle")

    assert (refused.code, missing.code) == (2, 2)
    assert "chmod o-w" in refused.err
    assert "no module named 'app'" in missing.err
