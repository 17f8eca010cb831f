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
from taskharbor.drivers.redis.connection import Connection, ServerError
from taskharbor.drivers.redis.faults import ours
from taskharbor.drivers.redis.keys import Keys
from taskharbor.drivers.redis.parked_claim import ParkedClaim, ParkedClaims
from taskharbor.drivers.redis.primary import Primary
from taskharbor.drivers.redis.wakeup_forwarding import WakeupForwarder
from taskharbor.errors import DriverError, TaskHarborError
from taskharbor.model.clock import Clock
from taskharbor.model.entropy import Entropy

log = logging.getLogger("taskharbor.drivers.redis")

_LONGEST_BLOCK = 5.0
_SHORTEST_BLOCK = 0.001
_ANSWER_SECONDS = 10.0
_LONGEST_PAUSE = 3.0
_CLAIM_SECONDS = 0.005


class WakeupListener:
    """The listening side of one driver handle."""

    def __init__(
        self,
        primary: Primary,
        keys: Keys,
        clock: Clock,
        entropy: Entropy,
        parked_claims: ParkedClaims | None = None,
    ) -> None:
        self._primary = primary
        self._keys = keys
        self._clock = clock
        self._entropy = entropy
        name = entropy.token()
        self._interrupt_key = keys.told(f"handle-{name}")
        self._interrupts = 0
        self._blocks_without_claim = False
        self._has_notified = False
        self.forwarder = WakeupForwarder(primary, keys, name[:12])
        self._parked_claims = parked_claims
        if parked_claims is not None:
            parked_claims.on_pending, parked_claims.interrupt = self._send_pending, self._interrupt
        self._subscriptions: list[Subscription] = []
        self._task: asyncio.Task[None] | None = None
        self._interrupting: set[asyncio.Task[None]] = set()
        self.outage = Outage(clock)

    def listen(self, queues: tuple[str, ...], worker_id: str) -> Subscription:
        subscription = Subscription(self, queues, worker_id)
        self._subscriptions.append(subscription)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._keep_listening(), name="taskharbor-wakeups")
        else:
            self._interrupt()
        return subscription

    def leave(self, subscription: Subscription) -> None:
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)
        if not self._subscriptions and self._task is not None:
            self._task.cancel()

    async def withdraw(self) -> None:
        """Nothing is claimed for those who listened here, from now on."""
        if self._parked_claims is not None and self._task is not None and not self._task.done():
            await self._parked_claims.withdraw()

    async def close(self) -> None:
        await self.withdraw()
        task, self._task = self._task, None
        interrupting = [one for one in self._interrupting if not one.done()]
        for one in interrupting:
            one.cancel()
        if interrupting:
            await asyncio.wait(interrupting)
        for subscription in list(self._subscriptions):
            subscription.end()
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    def wake_all(self) -> None:
        self._has_notified = True
        for subscription in self._subscriptions:
            subscription.look()

    # ------------------------------------------------------------------ the connection

    def _interrupt(self) -> bytes:
        """The call that blocks, or is about to, must be made anew; it will return with what this gives."""
        self._interrupts += 1
        word = str(self._interrupts)
        task = asyncio.create_task(self._push(word))
        self._interrupting.add(task)  # kept until it is done
        task.add_done_callback(self._interrupting.discard)
        return word.encode()

    async def _push(self, word: str) -> None:
        with suppress(TaskHarborError):
            await self._primary.together(
                [("RPUSH", self._interrupt_key, word), ("EXPIRE", self._interrupt_key, 60)], writes=True
            )

    def _send_pending(self) -> None:
        if self._blocks_without_claim:
            self._blocks_without_claim = False
            self._interrupt()

    async def _keep_listening(self) -> None:
        pause = 0.05
        while True:
            try:
                connection = await self._primary.another()
            except DriverError as error:
                self.outage.failed("wake-ups; polling goes on", error)
            else:
                pause = 0.05
                await self._until_lost(connection)
            await self._clock.sleep(pause * self._entropy.between(0.5, 1.0))
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _until_lost(self, connection: Connection) -> None:
        self.wake_all()  # what was told while nobody listened is made good by one look
        try:
            while True:
                await self._listen_once(connection)
        except (ServerError, TaskHarborError, TimeoutError) as error:
            why = ours(error) if isinstance(error, ServerError) else error
            level = logging.DEBUG if self.outage.is_away else logging.INFO
            log.log(level, "the connection for wake-ups was lost (%s); polling goes on", why)
        finally:
            connection.close()

    async def _listen_once(self, connection: Connection) -> None:
        await self._wait_for_claim()
        workers = {subscription.worker_id for subscription in self._subscriptions}
        queues = sorted({queue for subscription in self._subscriptions for queue in subscription.queues})
        seconds = await self._until_due(connection, queues)
        if seconds <= 0:
            await self._move_due(queues)
            seconds = _SHORTEST_BLOCK
        keys = {self._keys.told(worker).encode(): worker for worker in workers}
        wakes = {self._keys.queue(queue).wake.encode(): queue for queue in queues}
        heard, parked = await self._block(connection, (self._interrupt_key, *keys, *wakes), seconds)
        queue = wakes.get(heard[0]) if heard is not None else None
        if heard is not None and queue is not None:
            self.forwarder.heard(queue, heard[1])
        elif heard is not None and heard[0] in keys:
            self._notify_cancel(heard[1].decode(), keys[heard[0]])
        if parked is not None:
            await self._notify_claim(parked, queue)
        elif queue is not None:
            self._notify_work(queue)
        elif heard is None:
            await self._move_due(queues)

    async def _notify_claim(self, parked: ParkedClaim, queue: str | None) -> None:
        """A claim was made for the one who listens: no need to tell it of what is not there."""
        jobs = parked.result.result()
        if jobs != [] or (queue is not None and len(self._subscriptions) != 1):
            self._notify_work(queue or parked.claim.queues[0])
        if jobs is not None:
            await self.forwarder.after(parked.claim, len(jobs))

    async def _wait_for_claim(self) -> None:
        """Whoever was told of work claims now. That comes first, and if it finds nothing it goes along."""
        has_notified, self._has_notified = self._has_notified, False
        if has_notified and self._parked_claims is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_CLAIM_SECONDS):
                    await self._parked_claims.has_pending.wait()

    async def _block(
        self, connection: Connection, keys: Sequence[Any], seconds: float
    ) -> tuple[list[bytes] | None, ParkedClaim | None]:
        """What was heard, and the claim that went along, answered."""
        parked = self._claim_to_send()
        if parked is None or self._parked_claims is None:
            self._blocks_without_claim = True
            try:
                async with asyncio.timeout(seconds + _ANSWER_SECONDS):
                    return await connection.call(("BLPOP", *keys, f"{seconds:.6f}")), None
            finally:
                self._blocks_without_claim = False
        try:
            command = await self._parked_claims.command_of(parked)
            seconds = min(seconds, parked.window)
            async with asyncio.timeout(seconds + _ANSWER_SECONDS):
                block, claim = connection.call(("BLPOP", *keys, f"{seconds:.6f}")), connection.call(command)
                heard = await block
                word = heard[1] if heard is not None and heard[0] == self._interrupt_key.encode() else None
                with suppress(ServerError):  # the claim is made anew then, by somebody who knows what to do
                    self._parked_claims.arrived(parked, await claim, word)
        finally:
            self._parked_claims.lost(parked)
        return heard, parked

    def _claim_to_send(self) -> ParkedClaim | None:
        if self._parked_claims is None or len(self._subscriptions) != 1:
            return None
        [subscription] = self._subscriptions
        return self._parked_claims.prepared(subscription.queues, subscription.worker_id)

    async def _until_due(self, connection: Connection, queues: Sequence[str]) -> float:
        """Seconds until something may be due; by the server's clock."""
        commands: list[tuple[Any, ...]] = [("TIME",)]
        commands += [("ZRANGE", self._keys.queue(queue).later, 0, 0, "WITHSCORES") for queue in queues]
        async with asyncio.timeout(_ANSWER_SECONDS):
            time, *firsts = [await call for call in [connection.call(one, writes=False) for one in commands]]
        now = int(time[0]) + int(time[1]) / 1e6
        dues = [float(first[1]) / 1e6 - now for first in firsts if first]
        return min([_LONGEST_BLOCK, *(max(due, 0.0) for due in dues)])

    async def _move_due(self, queues: Sequence[str]) -> None:
        await self._primary.run("promote", self._keys.for_promote(queues), "", 1000, *queues)

    # ------------------------------------------------------------------ what was heard

    def _notify_work(self, queue: str) -> None:
        self._has_notified = True
        for subscription in self._subscriptions:
            if queue in subscription.queues:
                subscription.put(Wakeup(WakeupKind.WORK, queue=queue))

    def _notify_cancel(self, job_id: str, worker_id: str) -> None:
        for subscription in self._subscriptions:
            if subscription.worker_id == worker_id:
                subscription.put(Wakeup(WakeupKind.CANCEL, job_id=job_id))


class Subscription(Inbox):
    """One reader of hints, of one worker about some queues."""

    def __init__(self, wakeups: WakeupListener, queues: tuple[str, ...], worker_id: str) -> None:
        super().__init__()
        self.queues = queues
        self.worker_id = worker_id
        self._wakeups = wakeups

    def look(self) -> None:
        for queue in self.queues:
            self.put(Wakeup(WakeupKind.WORK, queue=queue))

    async def aclose(self) -> None:
        self.end()
        await self._wakeups.withdraw()
        self._wakeups.leave(self)
