"""The end of a worker's process when its handlers leave threads behind."""

from __future__ import annotations

import pytest

from taskharbor.model.state import JobState

APP = "tests.integration.worker.pool_app:harbor"
SOON = 20.0  # the threads would go on for ever


@pytest.mark.parametrize("processes", ["1", "2"])
async def test_a_handlers_own_pool_does_not_keep_the_process_alive(harness, processes):
    """The job goes back after the grace time, and the process ends with code 0 soon afterwards."""
    worker = harness.run("taskharbor", "worker", APP, "--grace", "1s", "--processes", processes)
    job_id = await harness.put("pooled", payload="{}")
    await harness.until((harness.folder / "pooled").exists, "the pool to be at work")
    worker.terminate()

    await harness.until(lambda: worker.poll() is not None, "the process to end", seconds=SOON)
    assert worker.returncode == 0
    record = await harness.job(job_id)
    assert (record.state, record.attempts, record.stalls) == (JobState.READY, 0, 0)
    assert "1 threads that handlers left behind: ThreadPoolExecutor" in harness.log(worker)
    assert "SIGKILL" not in harness.log(worker)


async def test_threads_that_a_handler_left_behind_do_not_either(harness):
    job_id = await harness.put("detached", payload="{}")
    worker = harness.run("taskharbor", "worker", APP, "--burst")

    assert (await harness.ended(job_id)).state is JobState.COMPLETED
    await harness.until(lambda: worker.poll() is not None, "the process to end", seconds=SOON)
    assert worker.returncode == 0
    assert "left behind: detached" in harness.log(worker)


async def test_a_pool_that_is_idle_ends_as_python_ends_it(harness):
    job_id = await harness.put("idle_pool", payload="{}")
    worker = harness.run("taskharbor", "worker", APP, "--burst")

    assert await harness.exit_code(worker) == 0
    assert (await harness.job(job_id)).result == b"7"
    assert "left behind" not in harness.log(worker)
