"""A fresh store behind a pooler in transaction mode: no statement may count on the one before it.

The whole kit once more, and workers, so it belongs to `make test-long`. Needs PgBouncer, found by
TASKHARBOR_TEST_PGBOUNCER or on the path; without it these cases are skipped.
"""

import getpass
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.loading import connect
from taskharbor.testing.servers import free_port, fresh_postgres_url, postgres_url

PGBOUNCER = os.environ.get("TASKHARBOR_TEST_PGBOUNCER") or shutil.which("pgbouncer")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.long)


@pytest.fixture(scope="session")
def folder() -> Iterator[Path]:
    """Not one of pytest's: nobody else may look into those, and a pooler does not run as root."""
    with tempfile.TemporaryDirectory(prefix="taskharbor-pgbouncer-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(scope="session")
def pooler_port(folder: Path) -> Iterator[int]:
    if PGBOUNCER is None:
        pytest.skip("no pgbouncer: apt-get install pgbouncer, or set TASKHARBOR_TEST_PGBOUNCER")
    port = free_port()
    _write_settings(folder, port)
    as_other = {"user": "nobody"} if getpass.getuser() == "root" else {}
    pooler = subprocess.Popen([PGBOUNCER, "-q", str(folder / "pgbouncer.ini")], **as_other)  # type: ignore[call-overload]
    try:
        _wait_for(port)
        yield port
    finally:
        pooler.terminate()
        pooler.wait()


def _write_settings(folder: Path, port: int) -> None:
    server = urlsplit(postgres_url())
    (folder / "users.txt").write_text(f'"{server.username}" "{server.password or ""}"\n')
    (folder / "pgbouncer.ini").write_text(
        f"""
        [databases]
        * = host={server.hostname} port={server.port or 5432}
        [pgbouncer]
        listen_addr = 127.0.0.1
        listen_port = {port}
        auth_type = trust
        auth_file = {folder}/users.txt
        pool_mode = transaction
        default_pool_size = 4
        unix_socket_dir =
        """.replace("        ", "")
    )


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + 10
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


@pytest.fixture
def fresh_url(pooler_port: int) -> Callable[[], str]:
    """Makes the URL of an empty store behind the pooler."""

    def made() -> str:
        direct = urlsplit(fresh_postgres_url())
        user = f"{direct.username}@" if direct.username else ""
        return (
            f"postgresql://{user}127.0.0.1:{pooler_port}{direct.path}?{direct.query}"
            f"&pooler=transaction&listen_url={postgres_url()}"
        )

    return made


@pytest.fixture
def driver_url(fresh_url: Callable[[], str]) -> str:
    return fresh_url()


@pytest.fixture
def other_namespace_url(driver_url: str) -> str:
    """A second harbor in the same database."""
    return f"{driver_url}&namespace=kit-other"


@pytest.fixture
async def driver(driver_url: str) -> AsyncIterator[Driver]:
    async with connect(driver_url) as driver:
        yield driver
