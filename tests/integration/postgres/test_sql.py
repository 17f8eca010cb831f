"""The SQL face of a store: what psql, triggers and other languages call."""

import json
from typing import Any

import psycopg
import pytest

from taskharbor.drivers.messages import Query
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.model.limits import RateLimit
from taskharbor.model.queue import QueueSettings
from taskharbor.model.settlement import Ack, Fail
from taskharbor.model.state import JobState
from taskharbor.testing.conformance.kit import HOUR, claim, new_job


@pytest.fixture
def sql(store_url: str, database_url: str) -> Any:
    schema = store_url.rpartition("schema=")[2]
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(f"set search_path = {schema}".encode())
        yield connection


async def test_a_job_can_be_enqueued_from_sql(driver: PostgresDriver, sql: Any) -> None:
    [job_id] = sql.execute(
        "select enqueue_job('mail.send', '{\"to\": \"ä\"}', p_queue => 'mail', p_priority => 5)::text"
    ).fetchone()

    [job] = await driver.get([job_id])
    assert job is not None
    assert (job.type, job.queue, job.priority, job.state) == ("mail.send", "mail", 5, JobState.READY)
    assert json.loads(job.payload) == {"to": "ä"}
    assert job.max_stalls == 3


async def test_ids_made_in_sql_sort_by_time(sql: Any) -> None:
    ids = [sql.execute("select new_id()::text, pg_sleep(0.002)").fetchone()[0] for _ in range(5)]

    assert ids == sorted(ids)
    assert all(job_id[14] == "7" and job_id[19] in "89ab" for job_id in ids)


async def test_a_trigger_can_enqueue_and_its_rollback_takes_the_job_back(
    driver: PostgresDriver, sql: Any
) -> None:
    sql.execute(
        """
        create table orders (id int);
        create function order_made() returns trigger language plpgsql as $$
        begin
            perform enqueue_job('order.ship', json_build_object('id', new.id));
            return new;
        end $$;
        create trigger order_made after insert on orders for each row execute function order_made();
        """
    )
    try:
        sql.execute("insert into orders values (7)")
        sql.execute("begin; insert into orders values (8); rollback")
    finally:
        sql.execute("drop table orders; drop function order_made")

    page = await driver.find(Query())
    assert [json.loads(job.payload) for job in page.jobs] == [{"id": 7}]


async def test_keys_and_idempotency_keys_mean_the_same_from_sql(driver: PostgresDriver, sql: Any) -> None:
    first, again = (
        sql.execute("select enqueue_job('t', p_idempotency_key => 'once')").fetchone()[0] for _ in range(2)
    )
    keyed, absorbed = (
        sql.execute("select enqueue_job('t', json_build_object('n', %s), p_key => 'k')", [n]).fetchone()[0]
        for n in (1, 2)
    )

    assert (first, keyed) == (again, absorbed)
    [job] = await driver.get([str(keyed)])
    assert job is not None
    assert json.loads(job.payload) == {"n": 2}


async def test_a_rate_limit_and_a_bad_name_raise_in_sql(driver: PostgresDriver, sql: Any) -> None:
    await driver.configure_queue(QueueSettings(queue="slow", enqueue_rate=RateLimit(1, HOUR)))
    sql.execute("select enqueue_job('t', p_queue => 'slow')")

    with pytest.raises(psycopg.errors.ConfigurationLimitExceeded):
        sql.execute("select enqueue_job('t', p_queue => 'slow')")
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        sql.execute("select enqueue_job('not a name')")
    assert (await driver.count())["slow"].total == 1


async def test_a_job_is_a_row_of_the_view(driver: PostgresDriver, sql: Any) -> None:
    question = "select state, version, attempts, claimed_by, last_error from jobs where id = %s"
    job = new_job(delay=HOUR)

    def seen() -> Any:
        return sql.execute(question, [job.id]).fetchone()

    await driver.enqueue([job])
    assert seen() == ("scheduled", 1, 0, None, None)
    await driver.enqueue([job := new_job(max_attempts=2)])
    assert seen() == ("ready", 1, 0, None, None)
    [taken] = (await driver.reserve(claim())).jobs
    assert seen() == ("running", 2, 0, taken.worker_id, None)
    await driver.extend_leases([taken.lease], HOUR)
    assert seen() == ("running", 3, 0, taken.worker_id, None)
    await driver.settle([Fail(taken.lease, "no")])
    assert seen() == ("failed", 4, 1, None, "no")
    await driver.enqueue([job := new_job(key=b"k")])
    [taken] = (await driver.reserve(claim())).jobs
    await driver.enqueue([job := new_job(key=b"k")])
    assert seen() == ("blocked", 1, 0, None, None)
    await driver.cancel([job.id])
    assert seen()[0] == "cancelled"
    await driver.settle([Ack(taken.lease, b"result")])
    ended = "select state, result, finished_at is not null, run_at from jobs where id = %s"
    assert sql.execute(ended, [taken.id]).fetchone() == ("completed", b"result", True, None)
