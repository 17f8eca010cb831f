"""A handler may log what it likes: a line of a megabyte must not cost its worker a lease."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from taskharbor.drivers import connect
from taskharbor.drivers.messages import Query
from taskharbor.model.state import JobState
from tests.integration.cli.conftest import Command

SIZE = 1_000_000
APP = f"""
import asyncio, logging
from taskharbor.harbor import Harbor

harbor = Harbor("sqlite:///jobs.db?durability=normal")
log = logging.getLogger("app")

@harbor.task
async def logs_much() -> None:
    log.warning("a" * {SIZE})
    log.warning("see a://b:" + "c" * {SIZE})
    log.warning("wrote %s", "word " * {SIZE // 5}, extra={{"more": "a" * {SIZE}}})

@harbor.task
async def beside() -> None:
    await asyncio.sleep(4)

harbor.open()
for task in (beside, logs_much):
    task.enqueue()
"""


@pytest.mark.more("waits in real time for leases, limits or grace times to pass")
@pytest.mark.parametrize("form", ["console", "json", "logfmt"])
def test_a_worker_that_logs_a_word_of_a_megabyte_loses_no_lease(taskharbor: Command, form: str) -> None:
    """With leases of 3 s: hiding passwords in such a word took hours once, and everything else waited."""
    (Path(taskharbor.folder) / "app.py").write_text(APP)

    done = taskharbor("worker", "app:harbor", "--burst", "--lease", "3s", "--log-format", form)

    assert done.code == 0, done.err[-2000:]
    assert len(done.err) > 3 * SIZE
    assert asyncio.run(how_they_ended(taskharbor)) == [("beside", 1, 0), ("logs_much", 1, 0)]


async def how_they_ended(taskharbor: Command) -> list[tuple[str, int, int]]:
    async with connect(f"sqlite:///{taskharbor.folder}/jobs.db") as driver:
        page = await driver.find(Query(states=(JobState.COMPLETED,)))
        return sorted((job.type, job.starts, job.stalls) for job in page.jobs)
