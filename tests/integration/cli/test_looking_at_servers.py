"""Commands that only look leave every key of a Redis and every row of a Postgres as they were."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
import redis

from taskharbor.cli.exit_codes import DONE, TIMED_OUT
from taskharbor.cli.main import run
from taskharbor.drivers.loading import connect
from taskharbor.drivers.redis.address import address_of
from taskharbor.errors import DriverError, StoreRefused
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import NewJob
from taskharbor.testing.servers import ValkeyServer, fresh_cluster_url, fresh_postgres_url, postgres_url
from tests.contract.losses import LOSSES, from_cluster
from tests.integration.cli.test_looking import JOB, LOOKS, filled

LOST = "018bcfe5-6800-7000-8000-000000000003"
SERVERS = ("postgres", "redis", "cluster")
_ROWS = {
    b"r": "select xmin::text, ctid::text, t::text from {} t order by ctid",
    b"S": "select last_value from {}",
}


async def keys_of(nodes: list[Any]) -> dict[Any, object]:
    return {key: node.dump(key) for node in nodes for key in node.keys("*")}


async def rows_of(url: str) -> dict[Any, object]:
    """Every row of every table with who wrote it and where it lies, and every sequence."""
    schema = url.partition("schema=")[2].partition("&")[0]
    connection = await asyncpg.connect(postgres_url())
    try:
        kinds = (
            "select relname, relkind from pg_class where relkind = any($1) "
            "and relnamespace = $2::regnamespace"
        )
        return {
            name: [tuple(row) for row in await connection.fetch(_ROWS[kind].format(f'{schema}."{name}"'))]
            for name, kind in await connection.fetch(kinds, list(_ROWS), schema)
        }
    finally:
        await connection.close()


Snapshot = Callable[[], Coroutine[Any, Any, dict[Any, object]]]


@pytest.fixture(scope="module", params=SERVERS)
def filled_store(request: pytest.FixtureRequest) -> Iterator[tuple[str, Snapshot]]:
    """Its address, with what a look must not put right: a lease that ran out, a due job, a lost record."""
    if request.param == "postgres":
        url = fresh_postgres_url()
        asyncio.run(untidy(url, LOSSES["postgres"]))
        yield url, lambda: rows_of(url)
    elif request.param == "redis":
        with ValkeyServer(durable=True) as server, redis.Redis.from_url(server.url) as client:
            asyncio.run(untidy(server.url, LOSSES["redis"]))
            yield server.url, lambda: keys_of([client])
    else:
        url = fresh_cluster_url()
        asyncio.run(untidy(url, from_cluster))
        host, port = address_of(url).hosts[0]
        with redis.RedisCluster(host=host, port=port) as cluster:
            nodes = [cluster.get_redis_connection(node) for node in cluster.get_primaries()]
            yield url, lambda: keys_of(nodes)


async def untidy(url: str, lose: Callable[[str, str], Awaitable[None]]) -> None:
    await filled(url)
    async with connect(url, entropy=Entropy(8)) as driver:
        soon = driver.clock.now() + timedelta(milliseconds=20)
        jobs = [NewJob(id=Entropy(9).job_id(soon), type="mail.send", queue="mail", run_at=soon)]
        await driver.enqueue([*jobs, NewJob(id=LOST, type="mail.send", queue="mail")])
        await driver.enqueue([NewJob(id=Entropy(10).job_id(soon), type="mail.send", queue="late")])
        assert await driver.reserve_one("late", None, timedelta(milliseconds=1)) is not None
    await lose(url, LOST)


@pytest.mark.parametrize("line", sorted(LOOKS.keys() - {"config show", "migrate sql"}))
def test_a_command_that_looks_leaves_all_as_it_was(
    line: str, filled_store: tuple[str, Snapshot], capsys: pytest.CaptureFixture[str]
) -> None:
    url, snapshot = filled_store
    before = asyncio.run(snapshot())

    code = run([*line.split(), *LOOKS[line], "--url", url])

    captured = capsys.readouterr()
    assert code == (TIMED_OUT if line.endswith(" wait") else DONE), captured.out + captured.err
    assert "Traceback" not in captured.out + captured.err
    assert before
    assert asyncio.run(snapshot()) == before


@pytest.mark.parametrize("line", ["jobs list", "doctor", "migrate status"])
def test_an_empty_redis_stays_empty(line: str) -> None:
    with ValkeyServer() as server, redis.Redis(port=server.port) as client:
        assert run([*line.split(), "--url", server.url]) == DONE
        assert client.dbsize() == 0


async def test_the_sessions_of_a_look_at_postgres_are_read_only_in_the_server_itself() -> None:
    """Whatever a statement of ours would do: one that writes is refused there, too."""
    url = fresh_postgres_url()
    await filled(url)

    async with await connect(url).open_to_look() as driver:
        with pytest.raises(StoreRefused, match="opened to look only"):
            await driver.cancel([JOB])
        with pytest.raises(DriverError, match="read-only"):
            await driver.do_cancel([JOB], None)
        assert (await driver.count())["mail"].ready == 1
