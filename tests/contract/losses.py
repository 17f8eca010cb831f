"""Taking the record of a job out of a store behind the driver's back: what points to it stays."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing

import psycopg
import redis

from taskharbor.drivers.postgres.address import address_of as postgres_address
from taskharbor.drivers.redis.address import address_of
from taskharbor.drivers.redis.keys import Keys
from taskharbor.drivers.sqlite.location import location_of
from taskharbor.model.entropy import id_bytes

# A key, an idempotency key and an alias are entries of their own: they stay.
_FIELDS = b"hbsrpKIAcov"


def _fields(job_id: str) -> list[bytes]:
    return [bytes([prefix]) + id_bytes(job_id) for prefix in _FIELDS]


async def from_redis(url: str, job_id: str) -> None:
    """Every field of the job in the data hash."""
    data = Keys(address_of(url).namespace).data

    def lose() -> None:
        with redis.Redis.from_url(url.partition("?")[0]) as client:
            assert client.hdel(data, *_fields(job_id)), "there is no such job"

    await asyncio.to_thread(lose)


async def from_cluster(url: str, job_id: str) -> None:
    """The same in the slot of whatever queue has it."""
    address = address_of(url)
    host, port = address.hosts[0]

    def lose() -> None:
        with redis.RedisCluster(host=host, port=port) as client:
            names = client.smembers(Keys(address.namespace).queues)
            queues = [Keys(f"{address.namespace}:{name.decode()}").data for name in names]
            assert sum(client.hdel(data, *_fields(job_id)) for data in queues), "there is no such job"

    await asyncio.to_thread(lose)


async def from_sqlite(url: str, job_id: str) -> None:
    """The body of the job, which is the record that everything else only adds to."""

    def lose() -> None:
        with closing(sqlite3.connect(location_of(url).path, timeout=30)) as connection, connection:
            assert connection.execute("delete from th_job where id = ?", (job_id,)).rowcount == 1

    await asyncio.to_thread(lose)


async def from_postgres(url: str, job_id: str) -> None:
    """The row of the job in `job`."""

    def lose() -> None:
        schema = postgres_address(url).schema
        with psycopg.connect(url.partition("?")[0]) as connection:
            assert connection.execute(f'delete from "{schema}".job where id = %s', [job_id]).rowcount == 1

    await asyncio.to_thread(lose)


LOSSES: dict[str, Callable[[str, str], Awaitable[None]]] = {
    "sqlite": from_sqlite,
    "postgres": from_postgres,  # by the name of the driver, and by the scheme of its URL
    "postgresql": from_postgres,
    "redis": from_redis,
}
