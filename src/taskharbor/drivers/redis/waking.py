"""Wake-ups: one connection per driver handle that blocks on the server until there is something to hear.

Every queue has a wake list that holds at most one marker. Whoever makes a job ready puts it there; one
of the handles that wait takes it, so one job wakes one of them. It wakes the next when there is more
than it could take (see exchange.lua). A worker's own list brings the cancels of jobs that it runs.

Due times need no poller: a handle blocks no longer than until the next due time of its queues, moves
what is due then, and whoever does so first puts the marker for one of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from taskharbor.drivers.inbox import Inbox
from taskharbor.drivers.messages import Wakeup, WakeupKind
from taskharbor.drivers.redis.faults import ours
from taskharbor.drivers.redis.keys import Keys
from taskharbor.drivers.redis.link import Link, ServerError
from taskharbor.drivers.redis.server import Server
from taskharbor.errors import DriverError, TaskHarborError
from taskharbor.model.clock import Clock
from taskharbor.model.entropy import Entropy

log = logging.getLogger("taskharbor.drivers.redis")

_LONGEST_BLOCK = 5.0
_SHORTEST_BLOCK = 0.001
_ANSWER_SECONDS = 10.0
_LONGEST_PAUSE = 3.0


class Waking:
    """The listening side of one driver handle."""

    def __init__(self, server: Server, keys: Keys, clock: Clock, entropy: Entropy) -> None:
        self._server = server
        self._keys = keys
        self._clock = clock
        self._entropy = entropy
        self._poke = keys.told(f"handle-{entropy.token()}")
        self._readers: list[Reader] = []
        self._task: asyncio.Task[None] | None = None
        self._interrupting: set[asyncio.Task[None]] = set()

    def listen(self, queues: tuple[str, ...], worker_id: str) -> Reader:
        reader = Reader(self, queues, worker_id)
        self._readers.append(reader)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._keep_listening(), name="taskharbor-wakeups")
        else:
            self._interrupt()
        return reader

    def leave(self, reader: Reader) -> None:
        if reader in self._readers:
            self._readers.remove(reader)
        if not self._readers and self._task is not None:
            self._task.cancel()

    async def close(self) -> None:
        task, self._task = self._task, None
        interrupting = [one for one in self._interrupting if not one.done()]
        for one in interrupting:
            one.cancel()
        if interrupting:
            await asyncio.wait(interrupting)
        for reader in list(self._readers):
            reader.end()
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    def everybody_looks(self) -> None:
        for reader in self._readers:
            reader.look()

    # ------------------------------------------------------------------ the connection

    def _interrupt(self) -> None:
        """Others are to be heard from now on: the call that blocks, or is about to, must be made anew."""
        call = self._server.together([("RPUSH", self._poke, "1"), ("EXPIRE", self._poke, 60)], writes=True)
        task = asyncio.create_task(_quietly(call))
        self._interrupting.add(task)  # kept until it is done
        task.add_done_callback(self._interrupting.discard)

    async def _keep_listening(self) -> None:
        pause = 0.05
        while True:
            try:
                link = await self._server.another()
            except DriverError as error:
                log.warning("no connection to wait for wake-ups (%s); polling goes on", error)
            else:
                pause = 0.05
                await self._until_lost(link)
            await self._clock.sleep(pause * self._entropy.between(0.5, 1.0))
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _until_lost(self, link: Link) -> None:
        self.everybody_looks()  # what was told while nobody listened is made good by one look
        try:
            while True:
                await self._listen_once(link)
        except (ServerError, TaskHarborError, TimeoutError) as error:
            why = ours(error) if isinstance(error, ServerError) else error
            log.warning("the waiting connection was lost (%s); polling goes on", why)
        finally:
            link.close()

    async def _listen_once(self, link: Link) -> None:
        workers = {reader.worker_id for reader in self._readers}
        queues = sorted({queue for reader in self._readers for queue in reader.queues})
        seconds = await self._until_due(link, queues)
        if seconds <= 0:
            await self._move_due(queues)
            seconds = _SHORTEST_BLOCK
        keys = {self._keys.told(worker).encode(): worker for worker in workers}
        wakes = {self._keys.queue(queue).wake.encode(): queue for queue in queues}
        async with asyncio.timeout(seconds + _ANSWER_SECONDS):
            heard = await link.call(("BLPOP", self._poke, *keys, *wakes, f"{seconds:.6f}"))
        if heard is None:
            await self._move_due(queues)
        elif heard[0] in wakes:
            self._tell_of_work(wakes[heard[0]])
        elif heard[0] in keys:
            self._tell_of_cancel(heard[1].decode(), keys[heard[0]])

    async def _until_due(self, link: Link, queues: Sequence[str]) -> float:
        """Seconds until something may be due; by the server's clock."""
        commands: list[tuple[Any, ...]] = [("TIME",)]
        commands += [("ZRANGE", self._keys.queue(queue).later, 0, 0, "WITHSCORES") for queue in queues]
        async with asyncio.timeout(_ANSWER_SECONDS):
            time, *firsts = await asyncio.gather(*(link.call(command, writes=False) for command in commands))
        now = int(time[0]) + int(time[1]) / 1e6
        dues = [float(first[1]) / 1e6 - now for first in firsts if first]
        return min([_LONGEST_BLOCK, *(max(due, 0.0) for due in dues)])

    async def _move_due(self, queues: Sequence[str]) -> None:
        await self._server.run("promote", self._keys.for_promote(queues), "", 1000, *queues)

    # ------------------------------------------------------------------ what was heard

    def _tell_of_work(self, queue: str) -> None:
        for reader in self._readers:
            if queue in reader.queues:
                reader.tell(Wakeup(WakeupKind.WORK, queue=queue))

    def _tell_of_cancel(self, job_id: str, worker_id: str) -> None:
        for reader in self._readers:
            if reader.worker_id == worker_id:
                reader.tell(Wakeup(WakeupKind.CANCEL, job_id=job_id))


async def _quietly(call: Any) -> None:
    with suppress(TaskHarborError):
        await call


class Reader(Inbox):
    """One reader of hints, of one worker about some queues."""

    def __init__(self, waking: Waking, queues: tuple[str, ...], worker_id: str) -> None:
        super().__init__()
        self.queues = queues
        self.worker_id = worker_id
        self._waking = waking

    def look(self) -> None:
        for queue in self.queues:
            self.tell(Wakeup(WakeupKind.WORK, queue=queue))

    async def aclose(self) -> None:
        self.end()
        self._waking.leave(self)
