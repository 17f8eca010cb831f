"""Wake-ups: how a Redis worker sleeps. One connection per driver handle blocks in BLPOP.

Every queue has a wake list with at most one marker. Whatever makes a job ready pushes the marker, and
one of the blocked handles pops it, so one job wakes one handle. That handle wakes the next one if more
is ready than it can take (exchange_claim.lua), or if only others can take it (`WakeupForwarder`). A worker's
inbox list brings cancel requests for the jobs it runs. A claim that found nothing is parked behind the
BLPOP (parked_claim.py).

BLPOP times out at the next due time of the queues. The first handle to wake up promotes the due jobs and
pushes a marker. The worker polls as well (worker/fetcher.py): a poll interrupts the BLPOP and collects the
parked claim.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from taskharbor.drivers.messages import Claim, Inbox, Wakeup, WakeupKind
from taskharbor.drivers.outage import Outage
from taskharbor.drivers.redis.connection import Connection, ServerError
from taskharbor.drivers.redis.faults import ours
from taskharbor.drivers.redis.keys import Keys
from taskharbor.drivers.redis.many_queues import FEW_QUEUES, ManyQueues
from taskharbor.drivers.redis.parked_claim import ParkedClaim, ParkedClaims
from taskharbor.drivers.redis.primary import Primary
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
    """Listens for one driver handle."""

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
        self._interrupt_key = keys.inbox(f"handle-{name}")
        self._interrupts = 0
        self._blocks_without_claim = False
        self._has_notified = False
        self.forwarder = WakeupForwarder(primary, keys, name[:12])
        self._many_queues = ManyQueues(primary, keys)
        self._parked_claims = parked_claims
        if parked_claims is not None:
            parked_claims.on_pending, parked_claims.interrupt = self._send_pending, self._interrupt
        self._subscriptions: list[Subscription] = []
        self._awaited: tuple[list[str], dict[bytes, str]] = ([], {})  # queues; their wake lists
        self._task: asyncio.Task[None] | None = None
        self._interrupting: set[asyncio.Task[None]] = set()
        self.outage = Outage(clock)

    def listen(self, queues: tuple[str, ...], worker_id: str) -> Subscription:
        inbox = self._keys.inbox(worker_id).encode()
        subscription = Subscription(self, queues, worker_id, inbox)
        self._subscriptions.append(subscription)
        self._note_awaited()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._keep_listening(), name="taskharbor-wakeups")
        else:
            self._interrupt()
        return subscription

    def leave(self, subscription: Subscription) -> None:
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)
            self._note_awaited()
        if not self._subscriptions and self._task is not None:
            self._task.cancel()

    def _note_awaited(self) -> None:
        queues = sorted({queue for subscription in self._subscriptions for queue in subscription.queues})
        self._awaited = queues, {self._keys.queue(queue).wake.encode(): queue for queue in queues}

    async def withdraw(self) -> None:
        """From now on, claim nothing in advance for the subscribers."""
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

    async def ring(self, queues: Sequence[str]) -> None:
        """Leave a marker in the wake lists of these queues."""
        await self._primary.run("ring", [self._keys.queue(queue).wake for queue in queues])

    def wake_all(self) -> None:
        self._has_notified = True
        for subscription in self._subscriptions:
            subscription.look()

    # ------------------------------------------------------------------ the connection

    def _interrupt(self) -> bytes:
        """Interrupt the blocking BLPOP so that it is sent again. Returns the marker that it will return."""
        self._interrupts += 1
        marker = str(self._interrupts)
        task = asyncio.create_task(self._push(marker))
        self._interrupting.add(task)  # asyncio keeps only weak references to tasks
        task.add_done_callback(self._interrupting.discard)
        return marker.encode()

    async def _push(self, marker: str) -> None:
        with suppress(TaskHarborError):
            await self._primary.together(
                [("RPUSH", self._interrupt_key, marker), ("EXPIRE", self._interrupt_key, 60)], writes=True
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
        self.wake_all()  # wake-ups sent in the meantime are lost: look once
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
        queues, wakes = self._awaited
        seconds = await self._until_due(connection, queues)
        if seconds <= 0:
            await self._move_due(queues)
            seconds = _SHORTEST_BLOCK
        inboxes = {subscription.inbox: subscription.worker_id for subscription in self._subscriptions}
        popped, parked = await self._block(connection, (self._interrupt_key, *inboxes, *wakes), seconds)
        queue = wakes.get(popped[0]) if popped is not None else None
        if popped is not None and queue is not None:
            self.forwarder.received(queue, popped[1])
        elif popped is not None and popped[0] in inboxes:
            self._notify_cancel(popped[1].decode(), inboxes[popped[0]])
        if parked is not None:
            await self._notify_claim(parked, queue)
        elif queue is not None:
            self._notify_work(queue)
        elif popped is None:
            await self._move_due(queues)

    async def _notify_claim(self, parked: ParkedClaim, queue: str | None) -> None:
        """Notify the subscriber of a parked claim's jobs; of nothing if it found none."""
        jobs = parked.result.result()
        if jobs != [] or (queue is not None and len(self._subscriptions) != 1):
            self._notify_work(queue or parked.claim.queues[0])
        if jobs is not None:
            await self.forwarder.after_claim(parked.claim, len(jobs))

    async def _wait_for_claim(self) -> None:
        """A notified worker claims now. Wait for that claim a moment: if it finds nothing, it is parked."""
        has_notified, self._has_notified = self._has_notified, False
        if has_notified and self._parked_claims is not None and len(self._awaited[0]) <= FEW_QUEUES:
            with suppress(TimeoutError):
                async with asyncio.timeout(_CLAIM_SECONDS):
                    await self._parked_claims.has_pending.wait()

    async def _block(
        self, connection: Connection, keys: Sequence[Any], seconds: float
    ) -> tuple[list[bytes] | None, ParkedClaim | None]:
        """Block until a marker arrives. Returns it, and the parked claim that was answered with it."""
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
                popped = await block
                marker = (
                    popped[1] if popped is not None and popped[0] == self._interrupt_key.encode() else None
                )
                with suppress(ServerError):  # the next ordinary claim meets the same error and handles it
                    self._parked_claims.arrived(parked, await claim, marker)
        finally:
            self._parked_claims.lost(parked)
        return popped, parked

    def _claim_to_send(self) -> ParkedClaim | None:
        if self._parked_claims is None or len(self._subscriptions) != 1:
            return None
        [subscription] = self._subscriptions
        return self._parked_claims.prepared(subscription.queues, subscription.worker_id)

    async def _until_due(self, connection: Connection, queues: Sequence[str]) -> float:
        """Seconds until the next job may be due, by the server's clock."""
        if len(queues) > FEW_QUEUES:
            more = await self._many_queues.seconds_until_more(queues)
            return _LONGEST_BLOCK if more is None else min(more, _LONGEST_BLOCK)
        commands: list[tuple[Any, ...]] = [("TIME",)]
        commands += [("ZRANGE", self._keys.queue(queue).later, 0, 0, "WITHSCORES") for queue in queues]
        async with asyncio.timeout(_ANSWER_SECONDS):
            time, *firsts = [await call for call in [connection.call(one, writes=False) for one in commands]]
        now = int(time[0]) + int(time[1]) / 1e6
        dues = [float(first[1]) / 1e6 - now for first in firsts if first]
        return min([_LONGEST_BLOCK, *(max(due, 0.0) for due in dues)])

    async def _move_due(self, queues: Sequence[str]) -> None:
        if len(queues) > FEW_QUEUES:
            queues = await self._many_queues.with_something(queues)
        await self._primary.run("promote", self._keys.for_promote(queues), "", 1000, *queues)

    # ------------------------------------------------------------------ notifying subscribers

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
    """The wake-ups of one worker for some queues. `inbox` is the key of its cancel requests."""

    def __init__(
        self, wakeups: WakeupListener, queues: tuple[str, ...], worker_id: str, inbox: bytes
    ) -> None:
        super().__init__()
        self.queues = queues
        self.worker_id = worker_id
        self.inbox = inbox
        self._wakeups = wakeups

    def look(self) -> None:
        for queue in self.queues:
            self.put(Wakeup(WakeupKind.WORK, queue=queue))

    async def aclose(self) -> None:
        self.end()
        await self._wakeups.withdraw()
        self._wakeups.leave(self)


class WakeupForwarder:
    """Forwards a wake-up to the next handle if this worker cannot run the jobs it was for.

    It holds the markers that one handle has received and not yet followed by a claim. A marker lists the
    handles that have forwarded it. A handle that finds its own name in it drops it, so a job that no worker
    can run goes round once. A handle that starts to listen later misses the marker: its parked claim finds
    the job within a second, or its next poll.
    """

    def __init__(self, primary: Primary, keys: Keys, name: str) -> None:
        self._primary = primary
        self._keys = keys
        self._name = name.encode()
        self._markers: dict[str, bytes] = {}

    @property
    def woken(self) -> Iterable[str]:
        """The queues of these markers."""
        return self._markers

    def received(self, queue: str, marker: bytes) -> None:
        self._markers[queue] = marker

    async def after_claim(self, claim: Claim, count: int) -> None:
        """Called after a claim that brought `count` jobs; if any, exchange_claim.lua has woken the next."""
        if not self._markers:
            return
        for queue in set(claim.queues).intersection(self._markers):
            marker = self._markers.pop(queue)
            if count == 0 and self._name not in marker.split(b","):
                await self._forward(queue, claim, marker + b"," + self._name)

    async def _forward(self, queue: str, claim: Claim, marker: bytes) -> None:
        own = self._keys.queue(queue)
        keys = [self._keys.data, own.ready, own.wake]
        lanes, types = claim.lanes, claim.types or ()
        with suppress(TaskHarborError):  # wake-ups are a bonus: polling finds the rest
            await self._primary.run("forward_wakeup", keys, queue, marker, len(lanes), *lanes, *types)
