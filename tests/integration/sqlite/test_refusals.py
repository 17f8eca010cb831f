"""A store that cannot be used says so in our words, and nothing is half done."""

import os
import sqlite3
import subprocess
import tempfile
import threading
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from taskharbor.drivers.messages import Query
from taskharbor.drivers.sqlite import writer
from taskharbor.drivers.sqlite.schema import MIGRATIONS
from taskharbor.errors import DriverUnavailable, SchemaOutOfDate, StoreFull, StoreRefused
from taskharbor.model.job import Lease
from taskharbor.model.settlement import Ack
from tests.integration.sqlite.stores import claim, content, driver_on, is_sound, new_job, writing


async def fill(driver):
    """Twenty jobs a call until no more go in."""
    for _ in range(400):
        await driver.enqueue([new_job(payload=b"x" * 1000) for _ in range(20)])


async def test_a_file_that_is_not_a_database_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("milk, bread, " * 200)

    with pytest.raises(StoreRefused, match="not a SQLite database"):
        await driver_on(path).open()

    assert path.read_text().startswith("milk")


async def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(StoreRefused, match="there is no folder"):
        await driver_on(tmp_path / "nowhere" / "jobs.db").open()


async def test_a_store_of_a_newer_version_is_refused_with_what_to_do(tmp_path):
    path = tmp_path / "jobs.db"
    async with driver_on(path):
        pass
    with sqlite3.connect(path) as connection:
        connection.execute("insert into th_migration values ('0999_from_the_future', 0)")
    before = content(path)

    with pytest.raises(SchemaOutOfDate, match=r"0999_from_the_future.*Upgrade taskharbor"):
        await driver_on(path).open()

    assert content(path) == before


async def test_what_a_newer_version_only_added_is_left_alone(tmp_path):
    path = tmp_path / "jobs.db"
    async with driver_on(path) as driver:
        await driver.enqueue([new_job()])
    with sqlite3.connect(path) as connection:
        connection.execute("insert into th_addition values ('0999_from_the_future.pre', 0)")

    async with driver_on(path) as driver:
        assert len((await driver.reserve(claim())).jobs) == 1


async def test_the_ledger_that_release_0_1_0_reads_names_nothing_newer(tmp_path):
    """That release refuses a file whose ledger names a migration it does not know."""
    async with driver_on(tmp_path / "jobs.db"):
        pass

    with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection:
        named = connection.execute("select name from th_migration").fetchall()

    assert named == [("0001_schema",), ("0002_log",), ("0003_families",)]


@pytest.mark.parametrize("opening", ["open", "open_to_look"])
async def test_a_store_from_before_the_first_release_is_refused_in_one_sentence(tmp_path, opening):
    path = tmp_path / "jobs.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("create table th_migration (name text primary key, applied_at integer) strict")
        connection.execute("insert into th_migration values ('0001_jobs', 0)")
    before = content(path)

    with pytest.raises(SchemaOutOfDate) as refusal:
        await getattr(driver_on(path), opening)()

    assert str(refusal.value) == (
        f"{path} was made by an unreleased version of TaskHarbor, which no release can migrate: "
        "use a new file"
    )
    assert content(path) == before


async def test_a_handle_that_was_opened_to_migrate_enqueues_neither_way(tmp_path):
    async with driver_on(tmp_path / "jobs.db"):
        pass
    async with await driver_on(tmp_path / "jobs.db").open_unmigrated() as driver:
        with pytest.raises(StoreRefused, match="opened to migrate only"):
            await driver.enqueue([new_job()])
        with pytest.raises(StoreRefused, match="opened to migrate only"):
            driver.enqueue_blocking([new_job()])


async def test_a_read_only_folder_is_refused():
    with tempfile.TemporaryDirectory() as home:
        os.chmod(home, 0o555)

        with ordinary_user(), pytest.raises(StoreRefused, match="rights of file and folder"):
            await driver_on(Path(home) / "jobs.db").open()


@contextmanager
def ordinary_user():
    """Root may write everywhere, so for a while it is somebody else."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


async def test_a_file_that_turns_read_only_refuses_writes_and_goes_on_showing(tmp_path):
    path = tmp_path / "jobs.db"
    async with driver_on(path) as driver:
        job = new_job()
        await driver.enqueue([job])
        writing(driver).execute("pragma query_only = on")  # what a read-only remount does to it

        with pytest.raises(StoreRefused):
            await driver.enqueue([new_job()])

        assert [found.id for found in (await driver.find(Query())).jobs] == [job.id]
        writing(driver).execute("pragma query_only = off")
        await driver.enqueue([new_job()])


async def test_a_full_store_refuses_whole_calls_and_works_again_when_there_is_room(tmp_path):
    path = tmp_path / "jobs.db"
    async with driver_on(path) as driver:
        (pages,) = writing(driver).execute("pragma page_count").fetchone()
        writing(driver).execute(f"pragma max_page_count = {pages + 20}")

        with pytest.raises(StoreFull, match="no room"):
            await fill(driver)

        assert (await driver.count())["default"].ready % 20 == 0
        writing(driver).execute("pragma max_page_count = 100000")
        await driver.enqueue([new_job()])
    assert is_sound(path)


@pytest.mark.parametrize("freed", [256, 3072], ids=lambda kibibytes: f"{kibibytes} KiB")
async def test_what_a_small_disk_took_is_done_once_there_is_a_little_room(tmp_path, monkeypatch, freed):
    """As below, without a mount: the disk has so much room, less what the files of the store take."""
    room = [4 << 20]

    def small_disk(folder):
        taken = sum(file.stat().st_size for file in Path(folder).iterdir())
        return os.statvfs_result((4096, 1, 0, 0, max(room[0] - taken, 0), 0, 0, 0, 0, 255))

    monkeypatch.setattr(os, "statvfs", small_disk)
    async with driver_on(tmp_path / "jobs.db") as driver:
        with pytest.raises(StoreFull):
            await fill(driver)
        taken = (await driver.count())["default"].ready
        assert taken > 0
        assert taken % 20 == 0
        room[0] += freed * 1024

        while jobs := (await driver.reserve(claim(limit=20))).jobs:
            await driver.settle([Ack(job.lease) for job in jobs])

        assert (await driver.count())["default"].completed == taken
        assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= room[0]
        await driver.enqueue([new_job()])
    assert is_sound(tmp_path / "jobs.db")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
async def test_a_full_disk_is_a_full_store(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)], check=False)
    if mounted.returncode != 0:
        pytest.skip("mounting is not allowed here")
    try:
        path = disk / "jobs.db"
        async with driver_on(path) as driver:
            with pytest.raises(StoreFull):
                await fill(driver)
            assert (await driver.count())["default"].ready % 20 == 0
            await driver.prune()  # nothing to forget, but it still answers
        assert is_sound(path)
    finally:
        subprocess.run(["umount", str(disk)], check=False)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
@pytest.mark.parametrize("freed", [512, 3072], ids=lambda kibibytes: f"{kibibytes} KiB")
async def test_what_a_full_disk_took_is_done_once_there_is_a_little_room(tmp_path, freed):
    """The write-ahead log must not eat what was freed: a claim and its end hardly let the file grow."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=7m", "tmpfs", str(disk)], check=False).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        (disk / "ballast").write_bytes(b"\0" * freed * 1024)
        async with driver_on(disk / "jobs.db") as driver:
            with pytest.raises(StoreFull):
                await fill(driver)
            taken = (await driver.count())["default"].ready
            assert taken > 0
            (disk / "ballast").unlink()

            while jobs := (await driver.reserve(claim(limit=20))).jobs:
                await driver.settle([Ack(job.lease) for job in jobs])

            assert (await driver.count())["default"].completed == taken
            await driver.enqueue([new_job()])
        assert is_sound(disk / "jobs.db")
    finally:
        subprocess.run(["umount", str(disk)], check=False)


async def test_a_writer_that_had_little_room_goes_back_to_its_long_log(tmp_path, monkeypatch):
    async with driver_on(tmp_path / "jobs.db") as driver:

        async def settings():
            await driver.enqueue([new_job()])
            names = ("wal_autocheckpoint", "journal_size_limit")
            return [writing(driver).execute(f"pragma {name}").fetchone()[0] for name in names]

        before = await settings()
        monkeypatch.setattr(writer, "LITTLE", 1 << 62)
        little = await settings()
        monkeypatch.undo()

        assert little < before == await settings()
        assert writing(driver).execute("pragma max_page_count").fetchone()[0] > 1 << 31


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a disk")
async def test_a_disk_that_is_mounted_read_only_is_refused(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(disk)], check=False).returncode != 0:
        pytest.skip("mounting is not allowed here")
    try:
        async with driver_on(disk / "jobs.db") as driver:
            await driver.enqueue([new_job()])
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)

        with pytest.raises(StoreRefused):
            await driver_on(disk / "jobs.db").open()
        with pytest.raises(StoreRefused):
            await driver_on(disk / "new.db").open()
    finally:
        subprocess.run(["umount", str(disk)], check=False)


async def test_a_store_that_stays_locked_is_unavailable_and_then_works_again(tmp_path):
    path = tmp_path / "jobs.db"
    async with driver_on(path, "timeout=0.2&durability=normal") as driver:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("begin immediate")

        with pytest.raises(DriverUnavailable, match="locked by another writer") as caught:
            await driver.enqueue([new_job()])
        assert caught.value.done is False
        assert await driver.count() == {}  # looking does not wait for a writer

        other.execute("rollback")
        other.close()
        await driver.enqueue([new_job()])
        assert (await driver.count())["default"].ready == 1


async def test_a_lock_that_is_released_in_time_is_waited_for(tmp_path):
    path = tmp_path / "jobs.db"
    async with driver_on(path, "timeout=30&durability=normal") as driver:
        other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        other.execute("begin immediate")
        threading.Timer(0.2, other.close).start()

        [answer] = await driver.enqueue([new_job()])

        assert answer.result == "created"


async def test_opening_waits_for_the_process_that_has_locked_the_file(tmp_path):
    path = tmp_path / "jobs.db"
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("create table users (name text)")
    other.execute("begin exclusive")
    threading.Timer(0.2, other.close).start()

    async with driver_on(path, "timeout=30&durability=normal") as driver:
        await driver.enqueue([new_job()])


async def test_a_long_reader_holds_up_no_writer(tmp_path):
    path = tmp_path / "jobs.db"
    async with driver_on(path, "timeout=1&durability=normal") as driver:
        await driver.enqueue([new_job()])
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("begin")
        other.execute("select * from th_job").fetchone()

        for _ in range(20):
            await driver.enqueue([new_job() for _ in range(20)])
        [job] = (await driver.reserve(claim(1))).jobs
        await driver.settle([Ack(job.lease)])

        assert other.execute("select count(*) from th_job").fetchone() == (1,)
        other.close()


async def test_a_thousand_errors_leave_no_connection_behind(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("milk, bread, " * 200)
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0

    for _ in range(500):
        with pytest.raises(StoreRefused):
            await driver_on(path).open()
    async with driver_on(tmp_path / "jobs.db") as driver:
        job = new_job()
        await driver.enqueue([job])
        [taken] = (await driver.reserve(claim(1))).jobs
        for _ in range(500):
            await driver.settle([Ack(Lease(job.id, "not the token"))])
        [record] = await driver.get([job.id])
        assert record is not None
        assert record.version == taken.version

    after = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    assert after <= before + 2  # the loop's own


async def test_opening_again_migrates_nothing(tmp_path):
    path = tmp_path / "jobs.db"
    async with driver_on(path) as driver:
        assert await driver.pending_migrations() == []
        assert await driver.migrate() == []
        assert (await driver.info()).schema == MIGRATIONS[-1].name

    async with driver_on(path) as driver:
        await driver.enqueue([new_job(delay=timedelta(seconds=5))])


@pytest.mark.parametrize(("word", "level"), [("full", "D3"), ("normal", "D2")])
async def test_info_names_the_durability(tmp_path, word, level):
    async with driver_on(tmp_path / "jobs.db", f"durability={word}") as driver:
        info = await driver.info()

        assert info.durability == level
        expected = {"full": 2, "normal": 1}[word]
        assert writing(driver).execute("pragma synchronous").fetchone() == (expected,)
