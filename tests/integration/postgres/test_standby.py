"""A standby takes no writes: a driver says so at its start, and finds the primary when its URL names both."""

import subprocess
from collections.abc import Iterator

import psycopg
import pytest

from taskharbor.drivers.loading import connect
from taskharbor.drivers.messages import EnqueueResult
from taskharbor.errors import StoreRefused
from taskharbor.testing.conformance.kit import new_job
from taskharbor.testing.servers import PostgresServer
from taskharbor.testing.servers.postgres import migrate_blocking


@pytest.fixture(scope="module")
def primary() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        migrate_blocking(server.url)
        yield server


@pytest.fixture(scope="module")
def standby(primary: PostgresServer) -> Iterator[PostgresServer]:
    """A second server that follows the first one."""
    server = PostgresServer(settings={"hot_standby": "on"})
    copy = [server._binaries / "pg_basebackup", "-D", server._data, "-d", primary.url, "-R", "-c", "fast"]
    subprocess.run(list(map(str, copy)), check=True, cwd=server.folder, **server._as_account())
    with server:
        yield server


@pytest.mark.more("two servers of its own")
async def test_a_standby_is_refused_at_the_start(standby: PostgresServer) -> None:
    with psycopg.connect(standby.url) as connection:
        assert connection.execute("select pg_is_in_recovery()").fetchone() == (True,)

    with pytest.raises(StoreRefused, match="standby"):
        async with connect(standby.url):
            pass


async def test_of_two_servers_the_one_that_takes_writes_is_used(
    primary: PostgresServer, standby: PostgresServer
) -> None:
    hosts = f"127.0.0.1:{standby.port},127.0.0.1:{primary.port}"
    url = f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write"

    async with connect(url) as driver:
        [answer] = await driver.enqueue([new_job()])

    assert answer.result is EnqueueResult.CREATED
