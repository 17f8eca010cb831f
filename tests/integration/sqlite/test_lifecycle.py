"""Opening, closing, forking, giving up: nothing hangs, and nobody is left without an answer."""

import asyncio
import os
import threading

import pytest

from taskharbor.drivers.messages import Enqueued
from taskharbor.errors import DriverClosed
from tests.integration.sqlite.stores import claim, driver_on, is_sound, new_job, writing


async def test_operations_in_flight_are_finished_before_it_closes(tmp_path):
    path = tmp_path / "jobs.db"
    driver = await driver_on(path).open()
    posted = [asyncio.ensure_future(driver.enqueue([new_job()])) for _ in range(50)]
    await asyncio.sleep(0)

    await driver.close()
    answers = await asyncio.gather(*posted, return_exceptions=True)

    stored = [answer for answer in answers if isinstance(answer, list)]
    assert all(isinstance(answer, DriverClosed) for answer in answers if not isinstance(answer, list))
    assert all(isinstance(answer, Enqueued) for [answer] in stored)
    async with driver_on(path) as again:
        assert sum(counts.ready for counts in (await again.count()).values()) == len(stored)
    with pytest.raises(DriverClosed):
        await driver.enqueue([new_job()])


async def test_a_closed_driver_can_be_opened_again(tmp_path):
    driver = driver_on(tmp_path / "jobs.db")
    for _ in range(3):
        await driver.open()
        await driver.enqueue([new_job()])
        await driver.close()
        await driver.close()

    async with driver:
        assert (await driver.count())["default"].ready == 3


async def test_closing_ends_its_threads_and_listeners(tmp_path):
    before = threading.enumerate()
    driver = await driver_on(tmp_path / "jobs.db").open()
    mine = [thread for thread in threading.enumerate() if thread not in before and "sqlite" in thread.name]
    listener = driver.wakeups(["default"], "worker-1")
    assert os.listdir(tmp_path / "jobs.db.wake") != []

    await driver.close()

    assert [hint async for hint in listener] == []
    assert os.listdir(tmp_path / "jobs.db.wake") == []
    assert {thread.name for thread in mine} == {"taskharbor-sqlite-writer", "taskharbor-sqlite-reader"}
    for thread in mine:
        thread.join(30)  # it has printed its last word, and needs a moment to leave
    assert not any(thread.is_alive() for thread in mine)


async def test_another_handle_has_connections_of_its_own(tmp_path):
    first = await driver_on(tmp_path / "jobs.db").open()
    second = await first.another().open()
    await first.enqueue([new_job(), new_job()])
    await first.close()

    assert len((await second.reserve(claim(5))).jobs) == 2
    await second.close()


async def test_a_handle_serves_several_event_loops(tmp_path):
    driver = await driver_on(tmp_path / "jobs.db").open()
    answers = []

    def elsewhere():
        answers.append(asyncio.run(driver.enqueue([new_job()])))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    await driver.enqueue([new_job()])
    await asyncio.get_running_loop().run_in_executor(None, thread.join)

    assert len(answers) == 1
    assert (await driver.count())["default"].ready == 2
    await driver.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
async def test_a_forked_child_is_asked_to_open_its_own(tmp_path):
    """V03: refused clearly, never shared by accident."""
    path = tmp_path / "jobs.db"
    async with driver_on(path) as driver:
        await driver.enqueue([new_job()])
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            message = "nothing was raised"
            try:
                driver.enqueue_blocking([new_job()])
            except DriverClosed as error:
                message = str(error)
            finally:
                os.write(writing, message.encode())
                os._exit(0)
        os.close(writing)
        os.waitpid(child, 0)

        message = os.read(reading, 1000).decode()
        os.close(reading)
        assert "open another() in the child" in message
        await driver.enqueue([new_job()])
        assert (await driver.count())["default"].ready == 2
    assert is_sound(path)


async def test_many_single_enqueues_share_commits(tmp_path):
    """Group commit: what waits together is written together."""
    async with driver_on(tmp_path / "jobs.db") as driver:
        commits = []
        connection = writing(driver)
        connection.set_trace_callback(lambda sql: commits.append(sql) if sql == "commit" else None)

        await asyncio.gather(*(driver.enqueue([new_job()]) for _ in range(200)))
        connection.set_trace_callback(None)

        assert 1 <= len(commits) < 100
        assert (await driver.count())["default"].ready == 200


async def test_one_failing_operation_does_not_fail_its_neighbours(tmp_path):
    async with driver_on(tmp_path / "jobs.db") as driver:

        def broken(step):
            step.execute("key_hold", queue="q", key=b"k", seq=1)
            raise RuntimeError("a bug")

        answers = await asyncio.gather(
            driver.enqueue([new_job()]),
            driver._write(broken, None),
            driver.enqueue([new_job()]),
            return_exceptions=True,
        )

        assert isinstance(answers[1], RuntimeError)
        assert isinstance(answers[0], list)
        assert isinstance(answers[2], list)
        assert (await driver.count())["default"].ready == 2
        [waiting] = await driver.enqueue([new_job(queue="q", key=b"k")])
        assert waiting.result == "created"


async def test_a_new_file_is_its_owners_alone(tmp_path):
    path = tmp_path / "jobs.db"
    before = os.umask(0)
    try:
        async with driver_on(path) as driver:
            await driver.enqueue([new_job()])
            listener = driver.wakeups(["default"], "worker-1")
            modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
            await listener.aclose()
    finally:
        os.umask(before)

    assert modes == {"jobs.db": 0o600, "jobs.db-wal": 0o600, "jobs.db-shm": 0o600, "jobs.db.wake": 0o700}


async def test_a_file_that_is_there_keeps_its_rights(tmp_path):
    path = tmp_path / "jobs.db"
    path.touch()
    path.chmod(0o664)

    async with driver_on(path) as driver:
        await driver.enqueue([new_job()])
        modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}

    assert modes == {"jobs.db": 0o664, "jobs.db-wal": 0o664, "jobs.db-shm": 0o664}
