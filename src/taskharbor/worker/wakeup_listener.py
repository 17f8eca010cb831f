"""Listens to the wake-ups of the store: there may be work, or a job may have been cancelled."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from taskharbor.drivers.messages import WakeupKind

if TYPE_CHECKING:
    from taskharbor.worker.run import Run


class StoreListener:
    """Without wake-ups everything is still found, only later: by the poll and by the heartbeat."""

    def __init__(self, run: Run) -> None:
        self._run = run

    async def listen(self) -> None:
        """For ever; a connection that breaks is made again after a while."""
        run, failures = self._run, 0
        while True:
            try:
                await self._read()
                failures = 0
            except Exception as error:  # noqa: BLE001 - wake-ups are a bonus; without them it is only slower
                failures += 1
                run.announcer.trouble("wakeups", error, failures)
            longest = min(0.5 * 2 ** min(failures, 8), 5.0)
            await run.timing.clock.sleep(run.entropy.between(0.2, longest))

    async def _read(self) -> None:
        wakeups = self._run.driver.wakeups(self._run.options.claimed_queues, self._run.worker_id)
        try:
            async for wakeup in wakeups:
                if wakeup.kind is WakeupKind.WORK:
                    self._run.work_arrived()
                elif wakeup.job_id is not None:
                    self._run.cancel_reported(wakeup.job_id)
        finally:
            with suppress(Exception):  # or its error would replace our own cancellation
                await wakeups.aclose()
