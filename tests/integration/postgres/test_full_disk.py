"""A disk that is really full: reported as such, nothing acknowledged is lost, and over once there is room."""

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from taskharbor.drivers.messages import EnqueueResult
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.errors import StoreFull
from taskharbor.testing.conformance.kit import claim, new_job
from taskharbor.testing.servers import PostgresServer
from taskharbor.testing.servers.postgres import migrate_blocking

pytestmark = pytest.mark.long  # needs the right to mount
MEBIBYTE = 1 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with 40 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=40m,mode=777", "tmpfs", str(folder)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("may not mount a file system here")
    for parent in (folder, tmp_path, tmp_path.parent, tmp_path.parent.parent):
        parent.chmod(0o777)
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def url(own_server: PostgresServer, small_disk: Path) -> str:
    """A store whose tables are on that disk; the log is elsewhere, so that the server stays up."""
    tables = small_disk / "tables"
    tables.mkdir(mode=0o777)
    if own_server._account is not None:
        os.chown(tables, own_server._account.pw_uid, own_server._account.pw_gid)
    with psycopg.connect(own_server.url, autocommit=True) as connection:
        connection.execute(f"create tablespace small location '{tables}'".encode())
        connection.execute("create database jobs tablespace small")
    url = own_server.url.removesuffix("postgres") + "jobs"
    migrate_blocking(url)
    return url


async def _enqueue_for_ever(driver: PostgresDriver, accepted: list[str]) -> None:
    while True:
        job = new_job(payload=os.urandom(256 * 1024))
        await driver.enqueue([job])
        accepted.append(job.id)


async def test_a_full_disk_loses_nothing_and_is_over_when_there_is_room(url: str, small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"\0" * 16 * MEBIBYTE)
    accepted: list[str] = []
    async with PostgresDriver.from_url(url) as driver:
        with pytest.raises(StoreFull):
            await _enqueue_for_ever(driver, accepted)
        assert accepted

        ballast.unlink()
        async with asyncio.timeout(5):
            [answer] = await driver.enqueue([new_job(payload=os.urandom(256 * 1024))])

        assert answer.result is EnqueueResult.CREATED
        assert all(job is not None for job in await driver.get(accepted))
        assert len((await driver.reserve(claim(limit=1000))).jobs) == len(accepted) + 1
