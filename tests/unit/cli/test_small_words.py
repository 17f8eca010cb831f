"""What commands say and print at the edges."""

import csv
import io
from datetime import datetime
from pathlib import Path

import pytest

from taskharbor.errors import InvalidArgument
from tests.unit.cli.conftest import Shell


@pytest.mark.parametrize("words", [("jobs", "show"), ("jobs", "why"), ("dlq", "show")])
def test_a_text_that_is_no_id_is_a_job_that_is_not_there(shell: Shell, words: tuple[str, str]) -> None:
    assert shell(*words, "nope").code == 3


def test_csv_has_instants_and_empty_cells(shell: Shell) -> None:
    shell.enqueue(run_at=datetime.fromisoformat("2030-05-17T09:30:00+00:00"))
    shell.enqueue()

    waiting, scheduled = csv.DictReader(io.StringIO(shell("jobs", "list", "-o", "csv").out))

    assert datetime.fromisoformat(waiting["created"]).tzinfo is not None
    assert waiting["error"] == waiting["when"] == ""
    assert scheduled["when"].startswith("2030-05-17T09:30:00")


def test_a_missing_file_is_reported_alone(shell: Shell) -> None:
    ran = shell("enqueue", "x", "-f", "missing.jsonl")

    assert (ran.code, ran.out) == (2, "")
    assert "missing.jsonl" in ran.err


def test_a_bad_line_keeps_the_pages_before_it(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "many.jsonl").write_text("{}\n" * 500 + "{}\n" * 10 + "nonsense\n")

    ran = shell("enqueue", "x", "-f", "many.jsonl")

    assert ran.code == 2
    assert "500 enqueued" in ran.out
    assert "line 511" in ran.err


def test_a_schedule_that_cannot_be_read_is_a_row_that_says_so(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    from taskharbor.model.job import NewJob
    from taskharbor.model.schedule import Schedule

    job = NewJob(id="", type="x")
    shell.store(
        lambda driver: driver.put_schedule(
            Schedule(name="abroad", template=job, cron="0 3 * * *", timezone="Europe/Berlin")
        )
    )

    def no_zone(name: str) -> None:
        raise InvalidArgument(f"time zone {name!r} is not known")

    monkeypatch.setattr("taskharbor.model.cron.zone", no_zone)
    ran = shell("schedules", "list")

    assert ran.code == 0
    assert "broken: time zone 'Europe/Berlin' is not known" in ran.out


def test_a_section_that_is_no_table_is_refused(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "taskharbor.toml").write_text("worker = 5\n")

    ran = shell.bare("jobs", "list")

    assert ran.code == 2
    assert "worker is a table: write [worker]" in ran.err


def test_the_demo_leaves_the_store_of_the_environment_alone(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    from taskharbor.cli.commands import demo

    seen: list[str] = []

    class Looking(demo.Demo):
        async def once(self, timeout: object) -> int:
            seen.append(self._url)
            return 0

    monkeypatch.setattr(demo, "Demo", Looking)
    monkeypatch.setenv("TASKHARBOR_URL", "sqlite:///mine.db")
    shell.bare("demo", "--once")
    shell.bare("demo", "--once", "--url", "sqlite:///given.db")

    assert seen[0].endswith("/demo.db")
    assert seen[1] == "sqlite:///given.db"
