"""Commands that only look leave every SQLite file as it was: each of them, on whatever the file holds."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import ClassVar

import pytest

from taskharbor.cli.exit_codes import DONE, ERROR, NOT_ALLOWED, TIMED_OUT
from taskharbor.cli.main import COMMANDS, run
from taskharbor.drivers.loading import connect
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.drivers.migrations import Migration
from taskharbor.drivers.relay import Relay
from taskharbor.drivers.sqlite import schema
from taskharbor.drivers.sqlite.schema import MIGRATIONS
from taskharbor.errors import SchemaOutOfDate, StoreRefused
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import NewJob
from taskharbor.model.schedule import Schedule

JOB = "018bcfe5-6800-7000-8000-000000000001"
DEAD = "018bcfe5-6800-7000-8000-000000000002"

# Every command is here or there, so that a new one must be put into one of the two.
LOOKS: dict[str, list[str]] = {
    "jobs list": [],
    "jobs show": [JOB],
    "jobs why": [JOB],
    "jobs wait": [JOB, "--timeout", "100ms"],
    "dlq list": [],
    "dlq show": [DEAD],
    "workflows list": [],
    "workflows show": [JOB],
    "workflows graph": [JOB],
    "workflows wait": [JOB, "--timeout", "100ms"],
    "queues list": [],
    "workers list": [],
    "schedules list": [],
    "top": ["--once"],
    "doctor": [],
    "migrate status": [],
    "migrate sql": [],
    "config show": [],
}
CHANGES = {
    "jobs retry": [JOB],
    "jobs cancel": [JOB],
    "dlq retry": [DEAD],
    "dlq purge": [DEAD, "--yes"],
    "workflows cancel": [JOB],
    "workflows retry": [DEAD],
    "workflows send": [JOB, "approval"],
    "queues pause": ["mail"],
    "queues resume": ["mail"],
    "queues set": ["mail", "--max-running", "3"],
    "schedules pause": ["nightly"],
    "schedules resume": ["nightly"],
    "schedules run": ["nightly"],
    "schedules delete": ["nightly"],
}
OTHERS = {  # they make a store, serve one for long, or need none
    "demo", "dev", "worker", "server", "scheduler", "enqueue", "bench", "health", "version", "migrate up",
    "tokens create", "tokens list", "tokens revoke",
}  # fmt: skip


def names() -> set[str]:
    return {
        f"{name} {part}".strip() for name, entry in COMMANDS.items() for part in (entry.commands or ("",))
    }


def test_every_command_is_known_to_look_or_to_change_something() -> None:
    assert names() - LOOKS.keys() - CHANGES.keys() - OTHERS == set(), "say of a new command what it does"


# ------------------------------------------------------------------ files


def empty(path: Path) -> None:
    path.touch()


def of_another_program(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("create table invoice (id integer primary key, total integer)")
        connection.execute("insert into invoice values (1, 100)")


def of_ours(path: Path) -> None:
    asyncio.run(filled(f"sqlite:///{path}"))


async def filled(url: str) -> None:
    """One job that waits, one that failed, and a schedule."""
    async with connect(url, entropy=Entropy(7)) as driver:
        template = NewJob(id=JOB, type="mail.send", queue="mail")
        await driver.enqueue([template, NewJob(id=DEAD, type="mail.send", queue="other")])
        dead = await driver.reserve_one("other", None, timedelta(minutes=1))
        assert dead is not None
        assert dead.token is not None
        await driver.fail(dead.id, dead.token, None, "broken")
        await driver.put_schedule(Schedule(name="nightly", cron="0 3 * * *", template=template))


def of_ours_after_a_crash(path: Path) -> None:
    """The last commits are in the log alone, and nobody has the file open."""
    live = path.with_name("live.db")
    of_ours(live)
    with closing(sqlite3.connect(live)) as connection, connection:
        connection.execute("update th_meta set rules = rules + 1")
        connection.commit()
        for ending in ("", "-wal"):
            shutil.copy2(f"{live}{ending}", f"{path}{ending}")
    for file in path.parent.glob("live.db*"):
        file.unlink()


FILES = {file.__name__: file for file in (empty, of_another_program, of_ours, of_ours_after_a_crash)}


def pictured(folder: Path) -> dict[str, tuple[bytes, int]]:
    """What lies there, but for the index of a log, which holds no data."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file() and not path.name.endswith("-shm")
    }


@pytest.fixture(params=FILES)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    file = tmp_path / "some.db"
    FILES[request.param](file)
    os.utime(file, ns=(10**18, 10**18))
    return file


def outcome_of(
    capsys: pytest.CaptureFixture[str], line: str, arguments: list[str], path: Path
) -> tuple[int, str]:
    code = run(
        [*line.split(), *arguments, *([] if line == "config show" else ["--url", f"sqlite:///{path}"])]
    )
    captured = capsys.readouterr()
    return code, captured.out + captured.err


@pytest.mark.parametrize("line", sorted(LOOKS))
def test_a_command_that_looks_leaves_the_file_byte_for_byte(
    line: str, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = pictured(path.parent)

    code, output = outcome_of(capsys, line, LOOKS[line], path)

    assert pictured(path.parent) == before
    assert "Traceback" not in output
    is_ours = b"th_meta" in path.read_bytes() or (path.parent / "some.db-wal").exists()
    if line in ("migrate sql", "config show"):
        assert code == DONE
    elif line == "migrate status":
        assert code == (DONE if is_ours else ERROR)
    elif is_ours:
        assert code == (TIMED_OUT if line.endswith(" wait") else DONE), output
    else:
        assert code == (ERROR if line == "doctor" else NOT_ALLOWED)
        assert "is no store of TaskHarbor" in output


@pytest.mark.parametrize("file", [empty, of_another_program], ids=lambda file: file.__name__)
@pytest.mark.parametrize("line", sorted(CHANGES.keys() & names()))
def test_a_command_on_what_is_there_makes_no_store_of_a_foreign_file(
    line: str, file: Callable[[Path], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file(tmp_path / "some.db")
    before = pictured(tmp_path)

    code, output = outcome_of(capsys, line, CHANGES[line], tmp_path / "some.db")

    assert (code, pictured(tmp_path)) == (NOT_ALLOWED, before)
    assert "is no store of TaskHarbor" in output


def test_an_older_schema_is_named_and_not_touched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    of_ours(tmp_path / "some.db")
    before = pictured(tmp_path)
    newer = Migration(len(MIGRATIONS) + 1, "0099_newer", "create table th_newer (id integer);")
    monkeypatch.setattr(schema, "MIGRATIONS", (*MIGRATIONS, newer))

    code, output = outcome_of(capsys, "jobs list", [], tmp_path / "some.db")

    assert (code, pictured(tmp_path)) == (ERROR, before)
    assert "0099_newer is missing" in output
    assert "taskharbor migrate up" in output


def test_migrate_up_makes_the_store_that_status_misses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "some.db"
    path.touch()

    assert outcome_of(capsys, "migrate status", [], path)[0] == ERROR
    code, output = outcome_of(capsys, "migrate up", [], path)

    assert (code, f"applied {MIGRATIONS[0].name}" in output) == (DONE, True)
    assert outcome_of(capsys, "migrate status", [], path)[0] == DONE
    assert outcome_of(capsys, "jobs list", [], path)[0] == DONE


async def test_a_handle_that_only_looks_changes_nothing(tmp_path: Path) -> None:
    await filled(f"sqlite:///{tmp_path / 'some.db'}")

    async with await connect(f"sqlite:///{tmp_path / 'some.db'}").open_to_look() as driver:
        assert (await driver.count())["mail"].ready == 1
        with pytest.raises(StoreRefused, match="opened to look only"):
            await driver.cancel([JOB])


async def test_looking_through_a_driver_in_front_of_another_makes_no_store(tmp_path: Path) -> None:
    relay = Relay(connect(f"sqlite:///{tmp_path / 'some.db'}"))

    with pytest.raises(StoreRefused):
        await relay.open_to_look()

    assert pictured(tmp_path) == {}


class Loft(MemoryDriver):
    """A driver of another project: its store has an old schema, and no tables that say so."""

    applied: ClassVar[list[str]] = []

    @classmethod
    def from_url(cls, url: str, **options: object) -> Loft:
        return cls()

    async def do_open(self) -> None:
        if not self.applied:
            raise SchemaOutOfDate("the loft is old", pending=("0001_nests",))
        await super().do_open()

    async def open_unmigrated(self) -> Loft:
        await super().do_open()
        self._is_open = True
        return self

    async def do_pending_migrations(self) -> list[str]:
        return [] if self.applied else ["0001_nests"]

    async def do_migrate(self) -> list[str]:
        pending = await self.do_pending_migrations()
        self.applied.extend(pending)
        return pending


def test_a_driver_of_another_project_is_migrated_from_an_old_schema(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Loft, "applied", [])
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: [EntryPoint])

    outcomes = [
        run([*line.split(), "--url", "loft://"])
        for line in ("jobs list", "migrate status", "migrate up", "migrate status")
    ]

    assert outcomes == [ERROR, ERROR, DONE, DONE]
    assert "applied 0001_nests" in capsys.readouterr().out


class EntryPoint:
    name = "loft"

    @staticmethod
    def load() -> type[Loft]:
        return Loft
