"""What a row can never say is refused by the table itself, for every writer."""

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
        "update job_state set state = 7",
        "update job_state set state = 1",
        "update job_state set attempts = -1",
        "update job_state set stalls = -1",
        "update job_state set starts = -1",
        "update job_state set version = 0",
        "update job_state set rank = 101",
        "update job_state set link_flags = 128",
        "update job_state set state = 3, token = null",
        "update job_state set state = 5, ends_at = null",
        "update job_state set state = 0, ends_at = now()",
        "update job set timeout_us = -1",
        "update job set max_attempts = -1",
        "update job set max_stalls = -1",
        "update waiting set rank = 101",
        "update lease set ids = '{}'",
        "insert into finished (at, queue, state, ids) values (now(), 'q', 3, '{}')",
        "insert into rate_usage values ('execute', 'q', now(), -1, now())",
        "insert into queue_settings (queue, settings, max_running) values ('q', '{}', -1)",
    ],
)
async def test_nonsense_is_refused(driver: PostgresDriver, sql: Any, nonsense: str) -> None:
    await driver.enqueue(new_jobs(2))
    await driver.enqueue([new_job(key=b"k"), new_job(key=b"l")])
    await driver.reserve(claim())

    with pytest.raises(psycopg.errors.CheckViolation):
        sql.execute(nonsense.encode())
