"""Follows the hints of the store: work may be there, a job may have been cancelled."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import WakeupKind
from taskharbor.model.entropy import Entropy
from taskharbor.worker.timing import Timing


class WakeupListener:
    """Listens for as long as it runs. Without hints everything is still found, only later."""

    def __init__(
        self,
        driver: Driver,
        queues: tuple[str, ...],
        worker_id: str,
        timing: Timing,
        entropy: Entropy,
        on_work: Callable[[], None],
        on_cancel: Callable[[str], None],
        on_trouble: Callable[[str, BaseException, int], None],
    ) -> None:
        self._driver = driver
        self._queues = queues
        self._worker_id = worker_id
        self._timing = timing
        self._entropy = entropy
        self._on_work = on_work
        self._on_cancel = on_cancel
        self._on_trouble = on_trouble

    async def follow(self) -> None:
        """For ever; a connection that breaks is made again after a while."""
        failures = 0
        while True:
            try:
                await self._read()
                failures = 0
            except Exception as error:  # noqa: BLE001 - hints are a bonus; their loss is only slower
                failures += 1
                self._on_trouble("wakeups", error, failures)
            await self._timing.clock.sleep(self._entropy.between(0.2, min(0.5 * 2 ** min(failures, 8), 5.0)))

    async def _read(self) -> None:
        hints = self._driver.wakeups(self._queues, self._worker_id)
        try:
            async for hint in hints:
                if hint.kind is WakeupKind.WORK:
                    self._on_work()
                elif hint.job_id is not None:
                    self._on_cancel(hint.job_id)
        finally:
            with suppress(Exception):  # or what it says would take the place of our own cancellation
                await hints.aclose()
