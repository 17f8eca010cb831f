"""What a row can never say is refused by the table itself, whoever writes it."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.testing.conformance.kit import claim, new_job, new_jobs


@pytest.fixture
def sql(store_url: str, database_url: str) -> Iterator[Any]:
    schema = store_url.rpartition("schema=")[2]
    with psycopg.connect(database_url) as connection:
        connection.execute(f"set search_path = {schema}".encode())
        yield connection
        connection.rollback()


@pytest.mark.parametrize(
    "nonsense",
    [
        "update place set state = 7",
        "update place set state = -1",
        "update place set attempts = -1",
        "update place set stalls = -1",
        "update place set starts = -1",
        "update place set version = 0",
        "update place set rank = 101",
        "update place set ties = 32",
        "update place set state = 3, token = null",
        "update place set state = 5, finished_at = null",
        "update job set rank = -101",
        "update job set timeout_us = -1",
        "update job set max_attempts = -1",
        "update job set max_stalls = -1",
        "update ready set rank = 101",
        "update held set ids = '{}', seqs = '{}'",
        "update held set seqs = seqs || 1::bigint",
        "insert into spent values ('execute', 'q', now(), -1, now())",
        "insert into rule (queue, settings, max_running) values ('q', '{}', -1)",
    ],
)
async def test_nonsense_is_refused(driver: PostgresDriver, sql: Any, nonsense: str) -> None:
    await driver.enqueue(new_jobs(2))
    await driver.enqueue([new_job(key=b"k"), new_job(key=b"l")])
    await driver.reserve(claim())

    with pytest.raises(psycopg.errors.CheckViolation):
        sql.execute(nonsense.encode())
