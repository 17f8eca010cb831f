"""Several harbors in one file, and what is not ours in it."""

import sqlite3

from taskharbor.drivers.messages import Query
from taskharbor.model.queue import QueueSettings
from tests.integration.sqlite.stores import claim, driver_on, is_sound, new_job


async def test_harbors_in_one_file_do_not_see_each_other(tmp_path):
    path = tmp_path / "jobs.db"
    async with (
        driver_on(path) as plain,
        driver_on(path, "namespace=blue&durability=normal") as blue,
        driver_on(path, "namespace=Blue&durability=normal") as capital,
    ):
        job = new_job(key=b"k", idempotency_key=b"i")
        for driver in (plain, blue, capital):
            [answer] = await driver.enqueue([job])
            assert answer.result == "created"
        await blue.configure_queue(QueueSettings(queue="default", paused=True))

        assert len((await plain.reserve(claim())).jobs) == 1
        assert (await blue.reserve(claim())).jobs == []
        assert len((await capital.reserve(claim())).jobs) == 1
        assert [found.id for found in (await blue.find(Query())).jobs] == [job.id]
        assert (await blue.info()).details["namespace"] == "blue"
    assert is_sound(path)


async def test_tables_of_others_in_the_file_are_left_alone(tmp_path):
    path = tmp_path / "app.db"
    with sqlite3.connect(path) as connection:
        connection.execute("create table users (name text)")
        connection.execute("insert into users values ('ada')")
    connection.close()

    async with driver_on(path) as driver:
        await driver.enqueue([new_job()])

    with sqlite3.connect(path) as connection:
        assert connection.execute("select * from users").fetchall() == [("ada",)]
    connection.close()
