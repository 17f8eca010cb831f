"""A worker with its heartbeat in a thread of its own leaves its numbers in the file."""

from __future__ import annotations

from pathlib import Path

from taskharbor import Harbor
from taskharbor.observe.logbook import LogReader


async def test_a_worker_that_ends_has_written_what_it_did(tmp_path: Path) -> None:
    harbor = Harbor(f"sqlite:///{tmp_path}/jobs.db")

    @harbor.task
    async def works() -> None:
        return None

    @harbor.task(max_attempts=1)
    async def fails(number: int) -> None:
        raise ValueError(f"no user {number}")

    async with harbor:
        await harbor.client.aenqueue_many(
            [*(works.call() for _ in range(200)), *(fails.call(n) for n in range(3))]
        )
        await harbor.worker(concurrency=20, scheduler=False).arun(until_idle=True)

        driver = await harbor.client.adriver()
        now = (await driver.info()).at
        since, until, _, lines = await LogReader(driver).series("15m", now, by="type")
        causes = [row for _, rows in await LogReader(driver).causes(since, until, now) for row in rows]

    done = {line.name: sum(filter(None, line.done)) for line in lines}
    failed = {line.name: sum(filter(None, line.failed)) for line in lines}
    assert (done, failed) == ({"works": 200, "fails": 0}, {"works": 0, "fails": 3})
    assert {(row.title, row.type) for row in causes} == {("ValueError: no user …", "fails")}
    assert sum(row.dead for row in causes) == 3
