"""Enqueueing inside the caller's own transaction, and from plain blocking code."""

import sqlite3
import threading
from datetime import timedelta

import pytest

from taskharbor.errors import DriverUnavailable, InvalidArgument, RateLimited
from taskharbor.model.bonds import Bonds
from taskharbor.model.limits import RateLimit
from taskharbor.model.queue import QueueSettings
from tests.integration.sqlite.stores import claim, driver_on, is_sound, new_job

_MINUTE = timedelta(minutes=1)


@pytest.fixture
async def driver(tmp_path):
    async with driver_on(tmp_path / "jobs.db", "timeout=1&durability=normal") as driver:
        yield driver
    assert is_sound(tmp_path / "jobs.db")


@pytest.fixture
def own(tmp_path, driver):
    """The caller's connection, with a table of its own in the same file."""
    connection = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)
    connection.execute("create table orders (id text)")
    yield connection
    connection.close()


async def test_the_job_is_there_if_the_transaction_commits(driver, own):
    job = new_job()
    own.execute("begin immediate")
    own.execute("insert into orders values ('order-1')")

    [answer] = driver.enqueue_blocking([job], tx=own)
    assert answer.result == "created"
    assert await driver.get([job.id]) == [None]  # not before the commit
    own.execute("commit")

    assert [taken.id for taken in (await driver.reserve(claim(5))).jobs] == [job.id]
    assert own.execute("select count(*) from orders").fetchone() == (1,)


async def test_the_job_is_not_there_if_the_transaction_rolls_back(driver, own):
    job = new_job()
    own.execute("begin immediate")
    driver.enqueue_blocking([job], tx=own)
    own.execute("rollback")

    assert await driver.get([job.id]) == [None]
    assert await driver.count() == {}
    assert (await driver.reserve(claim(5))).jobs == []
    [answer] = await driver.enqueue([job])
    assert answer.result == "created"


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_a_family_is_there_if_and_only_if_the_transaction_commits(driver, own, end):
    root = new_job(bonds=Bonds(done_by="children"))
    child = new_job(bonds=Bonds(parent=root.id))
    then = new_job(bonds=Bonds(after=(root.id,)))
    own.execute("begin immediate")
    answers = driver.enqueue_blocking([root, child, then], tx=own)
    assert [answer.result for answer in answers] == ["blocked", "created", "blocked"]
    assert await driver.get([root.id, child.id, then.id]) == [None, None, None]
    own.execute(end)

    taken = (await driver.reserve(claim(5))).jobs
    assert [job.id for job in taken] == ([child.id] if end == "commit" else [])


async def test_a_child_that_is_acked_with_a_transaction_ends_its_family(driver, own):
    root = new_job(bonds=Bonds(done_by="children"))
    child = new_job(bonds=Bonds(parent=root.id))
    then = new_job(bonds=Bonds(after=(root.id,)))
    await driver.enqueue([root, child, then])
    [taken] = (await driver.reserve(claim(5))).jobs
    async with driver.transaction(taken.lease) as connection:
        connection.execute("insert into orders values ('order-1')")
        [before] = await driver.get([root.id])
    [after, released] = await driver.get([root.id, then.id])

    assert [job.state.value for job in (before, after, released)] == ["blocked", "completed", "ready"]


async def test_keyed_and_idempotent_jobs_go_in_the_same_way(driver, own):
    own.execute("begin immediate")
    first, second = driver.enqueue_blocking(
        [new_job(key=b"k", idempotency_key=b"i"), new_job(idempotency_key=b"i")], tx=own
    )
    own.execute("commit")

    assert (first.result, second.result) == ("created", "duplicate")
    assert second.id == first.id


async def test_an_implicit_transaction_of_the_caller_can_be_joined(driver, own, tmp_path):
    with sqlite3.connect(tmp_path / "jobs.db") as connection:
        connection.execute("insert into orders values ('order-2')")
        driver.enqueue_blocking([new_job()], tx=connection)
    connection.close()

    assert (await driver.count())["default"].ready == 1


async def test_the_ways_the_caller_reads_rows_and_text_stay_as_they_are(driver, own):
    own.row_factory = sqlite3.Row
    own.text_factory = bytes
    own.execute("begin immediate")

    driver.enqueue_blocking([new_job(key=b"k")], tx=own)

    assert own.row_factory is sqlite3.Row
    assert own.text_factory is bytes
    own.execute("commit")
    assert (await driver.count())["default"].ready == 1


async def test_a_refused_enqueue_leaves_the_transaction_to_the_caller(driver, own):
    await driver.configure_queue(QueueSettings(queue="default", enqueue_rate=RateLimit(1, _MINUTE)))
    own.execute("begin immediate")
    own.execute("insert into orders values ('order-3')")
    driver.enqueue_blocking([new_job()], tx=own)

    with pytest.raises(RateLimited):
        driver.enqueue_blocking([new_job()], tx=own)
    own.execute("commit")

    assert own.execute("select count(*) from orders").fetchone() == (1,)
    assert (await driver.count())["default"].ready == 1


async def test_a_connection_without_a_transaction_is_refused(driver, own):
    with pytest.raises(InvalidArgument, match="no open transaction"):
        driver.enqueue_blocking([new_job()], tx=own)

    assert await driver.count() == {}


async def test_a_connection_to_another_file_is_refused(driver, tmp_path):
    other = sqlite3.connect(tmp_path / "other.db", isolation_level=None)
    other.execute("begin immediate")

    with pytest.raises(InvalidArgument, match="another file"):
        driver.enqueue_blocking([new_job()], tx=other)
    other.close()
    in_memory = sqlite3.connect(":memory:", isolation_level=None)
    in_memory.execute("begin")
    with pytest.raises(InvalidArgument, match="another file"):
        driver.enqueue_blocking([new_job()], tx=in_memory)
    in_memory.close()


async def test_anything_else_is_no_transaction(driver):
    with pytest.raises(InvalidArgument, match=r"sqlite3\.Connection"):
        driver.enqueue_blocking([new_job()], tx=object())
    with pytest.raises(InvalidArgument, match="'BEGIN' is no connection"):
        driver.enqueue_blocking([new_job()], tx="BEGIN")


async def test_a_transaction_that_read_before_others_wrote_is_unavailable_and_stays_open(driver, own):
    own.execute("begin")
    own.execute("select * from orders").fetchall()
    await driver.enqueue([new_job()])

    with pytest.raises(DriverUnavailable):
        driver.enqueue_blocking([new_job()], tx=own)

    own.execute("rollback")
    assert (await driver.count())["default"].ready == 1


async def test_blocking_callers_of_many_threads_all_get_their_answer(driver):
    answers = []

    def enqueue_some():
        for _ in range(25):
            answers.extend(driver.enqueue_blocking([new_job()]))

    threads = [threading.Thread(target=enqueue_some) for _ in range(8)]
    for thread in threads:
        thread.start()
    await driver.enqueue([new_job() for _ in range(10)])
    for thread in threads:
        thread.join()

    assert {answer.result for answer in answers} == {"created"}
    assert (await driver.count())["default"].ready == 8 * 25 + 10
