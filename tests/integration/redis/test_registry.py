"""Workers that lapsed are cleared away by the next look: only those that did not come back meanwhile."""

from taskharbor.drivers.redis.registry import Registry
from taskharbor.model.presence import WorkerReport
from taskharbor.testing.conformance.kit import LEASE, START

LATER = START + LEASE
REPORT = WorkerReport(worker_id="a")


async def test_a_worker_that_reports_again_while_somebody_clears_up_stays(driver, monkeypatch):
    await driver.report_worker(REPORT, (), LEASE, now=START)
    look = Registry._all

    async def look_and_be_late(self, *arguments):
        seen = await look(self, *arguments)
        monkeypatch.undo()
        await driver.report_worker(REPORT, (), LEASE, now=LATER)
        return seen

    monkeypatch.setattr(Registry, "_all", look_and_be_late)
    assert await driver.workers(now=LATER) == []  # as it was when it looked

    [info] = await driver.workers(now=LATER)
    assert info.report.worker_id == "a"
