"""QueueControl: settings, counts, pause and resume of one queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

import msgspec

from taskharbor.client.client import Client
from taskharbor.drivers.messages import Counts
from taskharbor.errors import InvalidArgument
from taskharbor.model.checks import check_name
from taskharbor.model.queue import EVERY_QUEUE, QueueRules, QueueSettings

if TYPE_CHECKING:
    from taskharbor.harbor.keywords import QueueKeywords

_SETTINGS = tuple(name for name in QueueSettings.__struct_fields__ if name != "queue")


class QueueControl:
    """The controls of one queue, or of the whole harbor under the name `*`."""

    def __init__(self, client: Client, name: str) -> None:
        if name != EVERY_QUEUE:
            check_name(name, "queue")
        self._client = client
        self.name = name

    def configure(
        self, settings: QueueSettings | None = None, **changes: Unpack[QueueKeywords]
    ) -> QueueRules:
        """Store settings: `configure(max_running=4)` or a whole QueueSettings; returns those now in force.

        Settings left out stay, None removes one. Workers obey from their next claim on.
        """
        return self._client._block(self.aconfigure, settings, **changes)

    async def aconfigure(
        self, settings: QueueSettings | None = None, **changes: Unpack[QueueKeywords]
    ) -> QueueRules:
        wanted = self._settings(settings, dict(changes))
        driver = await self._client.adriver()
        return await driver.configure_queue(wanted, now=self._client._now())

    def pause(self) -> QueueRules:
        """Start no more jobs of this queue; running ones continue."""
        return self._client._block(self.apause)

    async def apause(self) -> QueueRules:
        return await self.aconfigure(paused=True)

    def resume(self) -> QueueRules:
        """Start jobs of this queue again."""
        return self._client._block(self.aresume)

    async def aresume(self) -> QueueRules:
        return await self.aconfigure(paused=False)

    def rules(self) -> QueueRules:
        """The settings of this queue itself; those of the harbor are under `*`."""
        return self._client._block(self.arules)

    async def arules(self) -> QueueRules:
        driver = await self._client.adriver()
        found = await driver.queues(now=self._client._now())
        return next((info.rules for info in found if info.queue == self.name), QueueRules())

    def counts(self) -> Counts:
        """Number of jobs per state; under `*` those of all queues."""
        return self._client._block(self.acounts)

    async def acounts(self) -> Counts:
        driver = await self._client.adriver()
        if self.name == EVERY_QUEUE:
            return _sum(list((await driver.count(now=self._client._now())).values()))
        found = await driver.count([self.name], now=self._client._now())
        return found.get(self.name, Counts())

    def cancel_waiting(self, key: str | bytes) -> bool:
        """Cancel the waiting or blocked job of a key, never a running one. True if there was one."""
        return self._client.cancel_waiting(self.name, key)

    async def acancel_waiting(self, key: str | bytes) -> bool:
        return await self._client.acancel_waiting(self.name, key)

    def _settings(self, settings: QueueSettings | None, changes: dict[str, Any]) -> QueueSettings:
        if settings is not None and settings.queue != self.name:
            raise InvalidArgument(f"these settings are for the queue {settings.queue!r}, not {self.name!r}")
        unknown = sorted(changes.keys() - set(_SETTINGS))
        if unknown:
            raise InvalidArgument(
                f"there is no queue setting {', '.join(unknown)}; settings are {', '.join(_SETTINGS)}"
            )
        base = settings or QueueSettings(queue=self.name)
        return msgspec.structs.replace(base, **changes) if changes else base

    def __repr__(self) -> str:
        return f"<queue {self.name}>"


def _sum(counts: list[Counts]) -> Counts:
    totals = {name: sum(getattr(one, name) for one in counts) for name in Counts.__struct_fields__}
    return Counts(**totals)
