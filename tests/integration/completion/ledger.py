"""A table of the user's own beside the jobs, on the stores that share their transactions."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import asyncpg

from taskharbor.drivers.postgres.address import address_of


async def create(url: str) -> None:
    if url.startswith("sqlite"):
        with closing(_sqlite(url)) as connection:
            connection.execute("create table ledger (job text not null)")
    else:
        await _on_postgres(url, f"drop table if exists {_table(url)}")
        await _on_postgres(url, f"create table {_table(url)} (job text not null)")


async def write(connection: Any, job_id: str, url: str) -> None:
    """One row, through the connection that ctx.transaction() handed out."""
    if isinstance(connection, sqlite3.Connection):
        connection.execute("insert into ledger values (?)", (job_id,))
    else:
        await connection.execute(f"insert into {_table(url)} values ($1)", job_id)


async def rows(url: str) -> Counter[str]:
    """How often each job wrote."""
    if url.startswith("sqlite"):
        with closing(_sqlite(url)) as connection:
            return Counter(job for (job,) in connection.execute("select job from ledger"))
    return Counter(row["job"] for row in await _on_postgres(url, f"select job from {_table(url)}"))


def _table(url: str) -> str:
    """In the schema of the store: others may use the same server, and it goes with that."""
    return f'"{address_of(url).schema}".ledger'


def _sqlite(url: str) -> sqlite3.Connection:
    return sqlite3.connect(urlsplit(url).path.removeprefix("/"), isolation_level=None)


async def _on_postgres(url: str, sql: str) -> list[Any]:
    connection = await asyncpg.connect(urlsplit(url)._replace(query="").geturl())
    try:
        return list(await connection.fetch(sql))
    finally:
        await connection.close()
