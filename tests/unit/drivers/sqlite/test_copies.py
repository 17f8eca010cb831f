"""The worker with the slower of two runs of a job learns it at once."""

from __future__ import annotations

import pytest

from taskharbor.drivers.loading import connect
from taskharbor.drivers.messages import WakeupKind
from taskharbor.model.settlement import Ack
from taskharbor.testing.conformance.kit import HOUR, OTHER_WORKER, START, reserve_one, running, settle_one
from taskharbor.testing.conformance.wakeups import hint, listening


@pytest.mark.parametrize("winner", ["original", "copy"])
async def test_the_worker_of_the_slower_run_is_asked_to_stop(tmp_path, winner):
    async with connect(f"sqlite:///{tmp_path}/jobs.db?durability=normal") as driver:
        original = await running(driver, lease_for=HOUR)
        await driver.speculate(original.id, now=START)
        copy = await reserve_one(driver, worker_id=OTHER_WORKER, lease_for=HOUR)
        first, second = (original, copy) if winner == "original" else (copy, original)
        assert second.worker_id is not None

        async with listening(driver, worker_id=second.worker_id) as wakeups:
            await settle_one(driver, Ack(first.lease))

            hinted = await hint(wakeups, lambda wakeup: wakeup.kind is WakeupKind.CANCEL)
        assert hinted.job_id == second.id
