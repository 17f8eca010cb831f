"""Hints between processes, through sockets beside the file."""

import asyncio
import os
import shutil
import subprocess
import sys
from datetime import timedelta
from typing import Any

from taskharbor.drivers.messages import Wakeup, WakeupKind
from taskharbor.drivers.sqlite.wakeups import Bell, Notices
from taskharbor.model.settlement import Release
from tests.integration.sqlite.stores import claim, driver_on, new_job

ENQUEUE = """
import asyncio, sys
from taskharbor.drivers import connect
from taskharbor.model.clock import SystemClock
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import NewJob

async def main():
    async with connect(sys.argv[1]) as driver:
        job_id = Entropy().job_id(SystemClock().now())
        await driver.enqueue([NewJob(id=job_id, type="test.job", queue=sys.argv[2])])

asyncio.run(main())
"""


def work_in(queue: str) -> Wakeup:
    return Wakeup(WakeupKind.WORK, queue=queue)


def unread(listener: Any) -> list[Wakeup]:
    return list(listener._unread)


async def next_hint(listener) -> Wakeup:
    return await asyncio.wait_for(anext(listener), 60)


async def test_work_that_arrives_from_another_process_wakes(tmp_path):
    path = tmp_path / "jobs.db"
    async with driver_on(path) as driver:
        listener = driver.wakeups(["mail"], "worker-1")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", ENQUEUE, f"sqlite:///{path}?durability=normal", "mail"
        )

        assert await next_hint(listener) == work_in("mail")
        assert (
            len((await driver.reserve(claim(queue="mail"))).jobs) == 1
        )  # sent after the commit, never before
        assert await process.wait() == 0


async def test_only_the_queues_that_are_listened_to_wake(tmp_path):
    async with driver_on(tmp_path / "jobs.db") as driver:
        listener = driver.wakeups(["mail", "reports"], "worker-1")

        await driver.enqueue([new_job(queue="other"), new_job(queue="reports")])

        assert await next_hint(listener) == work_in("reports")


async def test_a_cancel_reaches_the_worker_that_runs_the_job(tmp_path):
    async with driver_on(tmp_path / "jobs.db") as driver, driver.another() as other:
        mine = driver.wakeups(["default"], "worker-1")
        theirs = driver.wakeups(["elsewhere"], "worker-2")
        await driver.enqueue([new_job()])
        assert await next_hint(mine) == work_in("default")
        [job] = (await driver.reserve(claim(1))).jobs

        await other.cancel([job.id])
        await other.enqueue([new_job(queue="elsewhere")])

        assert await next_hint(mine) == Wakeup(WakeupKind.CANCEL, job_id=job.id)
        assert await next_hint(theirs) == work_in("elsewhere")


async def test_a_scheduled_job_wakes_when_it_is_promoted(tmp_path):
    async with driver_on(tmp_path / "jobs.db") as driver:
        listener = driver.wakeups(["default"], "worker-1")
        await driver.enqueue([new_job(delay=timedelta(seconds=5))])
        assert not unread(listener)

        await driver.promote(now=driver.clock.now() + timedelta(seconds=6))

        assert await next_hint(listener) == work_in("default")


async def test_a_claim_wakes_others_only_for_what_it_leaves(tmp_path):
    async with driver_on(tmp_path / "jobs.db") as driver:
        await driver.enqueue([new_job(), new_job()])
        [first, second] = (await driver.reserve(claim(2))).jobs
        listener = driver.wakeups(["default", "marker"], "worker-2")

        [again] = (await driver.exchange([Release(first.lease)], claim(1))).claimed
        await driver.enqueue([new_job(queue="marker")])
        assert await next_hint(listener) == work_in("marker")

        await driver.exchange([Release(again.lease), Release(second.lease)], claim(1))
        assert await next_hint(listener) == work_in("default")


async def test_a_folder_that_was_removed_comes_back_with_the_next_listener(tmp_path):
    async with driver_on(tmp_path / "jobs.db") as driver:
        lost = driver.wakeups(["default"], "worker-1")
        shutil.rmtree(tmp_path / "jobs.db.wake")
        await driver.enqueue([new_job()])  # nobody hears it, and nothing breaks

        listener = driver.wakeups(["default"], "worker-1")
        await driver.enqueue([new_job()])

        assert await next_hint(listener) == work_in("default")
        await lost.aclose()


async def test_listeners_that_come_late_are_heard_of(tmp_path, monkeypatch):
    """A list of listeners is kept until the folder changes, and no list that is too fresh to say so."""
    path, folder, seconds = tmp_path / "jobs.db", tmp_path / "jobs.db.wake", [100.0]
    listed: list[str] = []
    listdir = os.listdir

    def noted(name: str) -> list[str]:
        listed.append(name)
        return listdir(name)

    monkeypatch.setattr(os, "listdir", noted)
    bell = Bell(str(path), "", lambda: seconds[0])

    def ring(after):
        listed.clear()
        seconds[0] += after
        bell.ring(Notices({"default"}))
        return bool(listed)

    async with driver_on(path) as driver:
        assert [ring(0), ring(0)] == [True, False]  # there is no folder
        first = driver.wakeups(["default"], "worker-1")
        os.utime(folder, ns=(1, 1))
        assert [ring(5), ring(1)] == [True, True]
        second = driver.wakeups(["default"], "worker-2")
        os.utime(folder, ns=(1, 1))  # in the same tick of the clock
        assert [ring(0.5), ring(2), ring(1)] == [True, True, False]
        third = driver.wakeups(["default"], "worker-3")
        assert ring(0.1)
        for listener in (first, second, third):
            assert await next_hint(listener) == work_in("default")
    bell.close()


async def test_sockets_of_the_dead_are_cleared_away(tmp_path):
    path = tmp_path / "jobs.db"
    listen = (
        "import asyncio, os, sys\n"
        "from taskharbor.drivers import connect\n"
        "async def main():\n"
        "    driver = await connect(sys.argv[1]).open()\n"
        "    driver.wakeups(['default'], 'worker-dead')\n"
        "    os._exit(0)\n"
        "asyncio.run(main())\n"
    )
    async with driver_on(path) as driver:
        subprocess.run([sys.executable, "-c", listen, f"sqlite:///{path}"], check=True, timeout=60)
        assert len(os.listdir(f"{path}.wake")) == 2

        await driver.enqueue([new_job()])
        await driver.enqueue([new_job()])  # the first one's answer does not wait for its hints

        assert os.listdir(f"{path}.wake") == []


async def test_a_path_longer_than_a_socket_address_works_all_the_same(tmp_path):
    folder = tmp_path / ("deep" * 30) / ("deeper" * 20)
    folder.mkdir(parents=True)
    async with driver_on(folder / "jobs.db") as driver, driver.another() as other:
        listener = driver.wakeups(["default"], "worker-1")

        await other.enqueue([new_job()])

        assert await next_hint(listener) == work_in("default")


async def test_a_listener_that_never_reads_costs_the_writers_nothing(tmp_path):
    async with driver_on(tmp_path / "jobs.db") as driver:
        deaf = driver.wakeups(["default"], "worker-1")
        for _ in range(300):
            await driver.enqueue([new_job()])

        assert len(unread(deaf)) == 1  # a hint that was not read yet is not repeated


async def test_namespaces_do_not_hear_each_other(tmp_path):
    path = tmp_path / "jobs.db"
    async with driver_on(path) as plain, driver_on(path, "namespace=blue") as blue:
        listener = plain.wakeups(["default"], "worker-1")
        await blue.enqueue([new_job()])
        await plain.enqueue([new_job()])

        assert await next_hint(listener) == work_in("default")
        assert not unread(listener)
