"""Wake-ups: one connection per driver handle that blocks on the server until there is something to hear.

Every queue has a wake list that holds at most one marker. Whoever makes a job ready puts it there; one
of the handles that wait takes it, so one job wakes one of them. It wakes the next when there is more
than it could take (see exchange.lua), or something that only others can take (see passing.py). A worker's own
list brings the cancels of jobs that it runs. A claim that found nothing goes along (see standing.py).

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
from taskharbor.drivers.outage import Outage
from taskharbor.drivers.redis.faults import ours
from taskharbor.drivers.redis.keys import Keys
from taskharbor.drivers.redis.link import Link, ServerError
from taskharbor.drivers.redis.passing import Passing
from taskharbor.drivers.redis.server import Server
from taskharbor.drivers.redis.standing import Ahead, Standing
from taskharbor.errors import DriverError, TaskHarborError
from taskharbor.model.clock import Clock
from taskharbor.model.entropy import Entropy

log = logging.getLogger("taskharbor.drivers.redis")

_LONGEST_BLOCK = 5.0
_SHORTEST_BLOCK = 0.001
_ANSWER_SECONDS = 10.0
_LONGEST_PAUSE = 3.0
_CLAIM_SECONDS = 0.005


class Waking:
    """The listening side of one driver handle."""

    def __init__(
        self, server: Server, keys: Keys, clock: Clock, entropy: Entropy, standing: Standing | None = None
    ) -> None:
        self._server = server
        self._keys = keys
        self._clock = clock
        self._entropy = entropy
        name = entropy.token()
        self._poke = keys.told(f"handle-{name}")
        self._pokes = 0
        self._blocks_without_claim = False
        self._has_told = False
        self.passing = Passing(server, keys, name[:12])
        self._standing = standing
        if standing is not None:
            standing.on_wish, standing.call_in = self._hear_wish, self._interrupt
        self._readers: list[Reader] = []
        self._task: asyncio.Task[None] | None = None
        self._interrupting: set[asyncio.Task[None]] = set()
        self.outage = Outage(clock)

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

    async def withdraw(self) -> None:
        """Nothing is claimed for those who listened here, from now on."""
        if self._standing is not None and self._task is not None and not self._task.done():
            await self._standing.withdraw()

    async def close(self) -> None:
        await self.withdraw()
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
        self._has_told = True
        for reader in self._readers:
            reader.look()

    # ------------------------------------------------------------------ the connection

    def _interrupt(self) -> bytes:
        """The call that blocks, or is about to, must be made anew; it will return with what this gives."""
        self._pokes += 1
        word = str(self._pokes)
        task = asyncio.create_task(self._push(word))
        self._interrupting.add(task)  # kept until it is done
        task.add_done_callback(self._interrupting.discard)
        return word.encode()

    async def _push(self, word: str) -> None:
        with suppress(TaskHarborError):
            await self._server.together(
                [("RPUSH", self._poke, word), ("EXPIRE", self._poke, 60)], writes=True
            )

    def _hear_wish(self) -> None:
        if self._blocks_without_claim:
            self._blocks_without_claim = False
            self._interrupt()

    async def _keep_listening(self) -> None:
        pause = 0.05
        while True:
            try:
                link = await self._server.another()
            except DriverError as error:
                self.outage.failed("wake-ups; polling goes on", error)
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
            level = logging.DEBUG if self.outage.is_away else logging.INFO
            log.log(level, "the connection for wake-ups was lost (%s); polling goes on", why)
        finally:
            link.close()

    async def _listen_once(self, link: Link) -> None:
        await self._wait_for_claim()
        workers = {reader.worker_id for reader in self._readers}
        queues = sorted({queue for reader in self._readers for queue in reader.queues})
        seconds = await self._until_due(link, queues)
        if seconds <= 0:
            await self._move_due(queues)
            seconds = _SHORTEST_BLOCK
        keys = {self._keys.told(worker).encode(): worker for worker in workers}
        wakes = {self._keys.queue(queue).wake.encode(): queue for queue in queues}
        heard, ahead = await self._block(link, (self._poke, *keys, *wakes), seconds)
        queue = wakes.get(heard[0]) if heard is not None else None
        if heard is not None and queue is not None:
            self.passing.heard(queue, heard[1])
        elif heard is not None and heard[0] in keys:
            self._tell_of_cancel(heard[1].decode(), keys[heard[0]])
        if ahead is not None:
            await self._tell_of_claim(ahead, queue)
        elif queue is not None:
            self._tell_of_work(queue)
        elif heard is None:
            await self._move_due(queues)

    async def _tell_of_claim(self, ahead: Ahead, queue: str | None) -> None:
        """A claim was made for the one who listens: no need to tell it of what is not there."""
        jobs = ahead.result.result()
        if jobs != [] or (queue is not None and len(self._readers) != 1):
            self._tell_of_work(queue or ahead.claim.queues[0])
        if jobs is not None:
            await self.passing.after(ahead.claim, len(jobs))

    async def _wait_for_claim(self) -> None:
        """Whoever was told of work claims now. That comes first, and if it finds nothing it goes along."""
        has_told, self._has_told = self._has_told, False
        if has_told and self._standing is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_CLAIM_SECONDS):
                    await self._standing.has_wish.wait()

    async def _block(
        self, link: Link, keys: Sequence[Any], seconds: float
    ) -> tuple[list[bytes] | None, Ahead | None]:
        """What was heard, and the claim that went along, answered."""
        ahead = self._claim_to_send()
        if ahead is None or self._standing is None:
            self._blocks_without_claim = True
            try:
                async with asyncio.timeout(seconds + _ANSWER_SECONDS):
                    return await link.call(("BLPOP", *keys, f"{seconds:.6f}")), None
            finally:
                self._blocks_without_claim = False
        try:
            command = await self._standing.command_of(ahead)
            seconds = min(seconds, ahead.window)
            async with asyncio.timeout(seconds + _ANSWER_SECONDS):
                block, claim = link.call(("BLPOP", *keys, f"{seconds:.6f}")), link.call(command)
                heard = await block
                word = heard[1] if heard is not None and heard[0] == self._poke.encode() else None
                with suppress(ServerError):  # the claim is made anew then, by somebody who knows what to do
                    self._standing.came(ahead, await claim, word)
        finally:
            self._standing.lost(ahead)
        return heard, ahead

    def _claim_to_send(self) -> Ahead | None:
        if self._standing is None or len(self._readers) != 1:
            return None
        [reader] = self._readers
        return self._standing.prepared(reader.queues, reader.worker_id)

    async def _until_due(self, link: Link, queues: Sequence[str]) -> float:
        """Seconds until something may be due; by the server's clock."""
        commands: list[tuple[Any, ...]] = [("TIME",)]
        commands += [("ZRANGE", self._keys.queue(queue).later, 0, 0, "WITHSCORES") for queue in queues]
        async with asyncio.timeout(_ANSWER_SECONDS):
            time, *firsts = [await call for call in [link.call(one, writes=False) for one in commands]]
        now = int(time[0]) + int(time[1]) / 1e6
        dues = [float(first[1]) / 1e6 - now for first in firsts if first]
        return min([_LONGEST_BLOCK, *(max(due, 0.0) for due in dues)])

    async def _move_due(self, queues: Sequence[str]) -> None:
        await self._server.run("promote", self._keys.for_promote(queues), "", 1000, *queues)

    # ------------------------------------------------------------------ what was heard

    def _tell_of_work(self, queue: str) -> None:
        self._has_told = True
        for reader in self._readers:
            if queue in reader.queues:
                reader.tell(Wakeup(WakeupKind.WORK, queue=queue))

    def _tell_of_cancel(self, job_id: str, worker_id: str) -> None:
        for reader in self._readers:
            if reader.worker_id == worker_id:
                reader.tell(Wakeup(WakeupKind.CANCEL, job_id=job_id))


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
        await self._waking.withdraw()
        self._waking.leave(self)
