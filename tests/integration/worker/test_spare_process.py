"""A handler that kills its process as the last job of a run: nobody is warned about the spare one."""

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from taskharbor.events import EventBus
from taskharbor.model.worker_options import WorkerOptions
from taskharbor.worker.deadlines import Deadlines
from taskharbor.worker.executors.in_process import ProcessExecutor
from taskharbor.worker.timing import Timing


@pytest.mark.parametrize(("is_over", "level"), [(True, logging.DEBUG), (False, logging.WARNING)])
async def test_a_spare_process_that_never_came_is_reported_by_what_it_means(
    is_over: bool, level: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "taskharbor.worker")
    run: Any = SimpleNamespace(
        worker_id="w", events=EventBus(), timing=Timing(), options=WorkerOptions(), gpus=()
    )
    processes = ProcessExecutor(run, Deadlines(run))
    if is_over:
        await processes.close()

    async def never() -> None:
        raise OSError("no process for you")

    hiring = asyncio.ensure_future(never())
    hiring.add_done_callback(processes._log_failure)
    await asyncio.wait((hiring,))
    await asyncio.sleep(0)

    [record] = [one for one in caplog.records if "no spare handler process" in one.getMessage()]
    assert record.levelno == level
