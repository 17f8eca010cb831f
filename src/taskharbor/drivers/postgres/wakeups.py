"""Wake-ups by LISTEN/NOTIFY: one listening connection per driver handle, opened when a worker listens.

A notification is one line: `work QUEUE`, or `cancel JOB WORKER`. A sender notifies a queue only if it is
marked as idle, and removes the mark; so notifications never come faster than they are asked for. Marks are
made when listening begins, and by every claim that found less than it asked for. If a worker does not claim
soon after a wake-up, its queues are marked for it a moment later, so a claim need not wait for that commit.
A worker that has been idle for a moment after a wake-up looks once more, for jobs that were enqueued while
there was no mark. A lost connection is opened again; every subscription gets a wake-up then.

The server wakes every session that listens, whatever it listens for. So of the handles that wait for the
same work (queues, lanes, types) only two listen for it: those that hold one of two advisory locks, the watch.
A handle that has all the jobs it can take gives up its lock, one that dies loses it, and another handle
takes it. Jobs that the two do not take are found when other workers poll: the more idle workers there are,
the sooner. A handle without the watch listens only while it holds jobs, for their
cancels.

The connection is one of the handle's pool, and does its statements too when no other is idle. Behind a pooler
it is one of its own.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any, TypeVar

from taskharbor.drivers.messages import Inbox, Wakeup, WakeupKind
from taskharbor.drivers.outage import Outage
from taskharbor.drivers.postgres.address import Address
from taskharbor.drivers.postgres.attempts import ClaimSignals
from taskharbor.drivers.postgres.connections import Connections, Step, connect
from taskharbor.drivers.postgres.faults import FOREIGN
from taskharbor.drivers.postgres.statements import Statements
from taskharbor.errors import DriverUnavailable, TaskHarborError
from taskharbor.model.clock import Clock
from taskharbor.model.entropy import Entropy

_T = TypeVar("_T")
log = logging.getLogger("taskharbor.drivers.postgres")

_PROBE_SECONDS = 15.0
_WATCH_SECONDS = 2.0  # between two looks whether the watch is free
_LONGEST_PAUSE = 3.0
_CLAIM_SECONDS = 0.05  # within that, a worker with a wake-up has claimed, if it will at all
_LOOK_AGAIN_SECONDS = 0.02


class WakeupListener:
    """The listening side of one driver handle."""

    def __init__(
        self,
        address: Address,
        connections: Connections,
        statements: Statements,
        signals: ClaimSignals,
        clock: Clock,
        entropy: Entropy,
    ) -> None:
        self._address = address
        self._connections = connections
        self._sql = statements
        self._signals = signals
        self._clock = clock
        self._entropy = entropy
        self.outage = Outage(clock)
        self._subscriptions: list[Subscription] = []
        self._task: asyncio.Task[None] | None = None
        self._wants_work = False  # whether notifications of work are followed
        self._listens = False
        self._watch: tuple[str, int] | None = None  # what is watched, and which of the places
        self._claims_at_first = 0  # before the first subscription
        self._claims_before = 0
        self._was_full = False
        self._lost = False
        self._news = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._has_looked_again = False  # since the last wake-up for work
        self._look: asyncio.TimerHandle | None = None
        self._slowest_claim = 0.0
        self._marking: set[asyncio.Task[None]] = set()
        self._to_mark: dict[Subscription, int] = {}  # woken a moment ago, after so many claims

    def listen(self, queues: tuple[str, ...], worker_id: str) -> Subscription:
        subscription = Subscription(self, queues, worker_id)
        self._subscriptions.append(subscription)
        self._signals.listens = True
        self._signals.on_not_enough = self._has_marked
        self._signals.on_claimed = self._has_claimed
        if self._task is None or self._task.done():
            self._claims_at_first = self._signals.claims
            self._task = asyncio.create_task(self._keep_listening(), name="taskharbor-listen")
        elif self._wants_work:
            self._signals.unmarked.update(queues)
            subscription.look()
        self._news.set()
        return subscription

    async def leave(self, subscription: Subscription) -> None:
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)
        if not self._subscriptions:
            self._signals.listens = False
            self._signals.unmarked.clear()
            self._signals.held.clear()
            await self.close()

    async def close(self) -> None:
        self._forget_look()
        task, self._task = self._task, None
        ending = [*self._marking] if task is None else [task, *self._marking]
        for one in ending:
            one.cancel()
        if ending:
            await asyncio.wait(ending)

    # ------------------------------------------------------------------ marks

    def was_woken(self, subscription: Subscription) -> None:
        """A worker has read a wake-up. Its claim will mark the queues; without one that is done here."""
        if subscription not in self._to_mark:  # one look for many wake-ups
            self._loop.call_later(_CLAIM_SECONDS, self._mark_for, subscription)
        self._to_mark[subscription] = self._signals.claims

    def _mark_for(self, subscription: Subscription) -> None:
        claims = self._to_mark.pop(subscription)
        is_idle = claims == self._signals.claims and not self._signals.found_enough
        if self._wants_work and subscription in self._subscriptions and is_idle:
            task = self._loop.create_task(
                self._mark_idle(self._signals.unmarked.intersection(subscription.queues))
            )
            self._marking.add(task)
            task.add_done_callback(self._marking.discard)

    async def _mark_idle(self, queues: set[str]) -> None:
        """Best effort: without the mark, polling finds the work."""
        if not queues:
            return
        with suppress(TaskHarborError):
            # Before the answer: a notification for one of them that comes meanwhile means its mark is gone.
            self._signals.unmarked -= queues
            await self._connections.rows(self._sql["mark_idle"], list(queues))
            self._has_looked_again = True

    def _has_marked(self) -> None:
        """A claim found too little, so its queues are marked by now. An enqueue that looked for the mark just
        before it was there sends nothing, and the next claim may still come before its commit. So some time
        after the last of the claims that a wake-up has set off, every worker looks once more. A commit takes
        as long as the disk, and on a slow one so do claims.
        """
        if self._wants_work and not self._has_looked_again:
            self._slowest_claim = max(self._slowest_claim, self._signals.claim_seconds)
            self._forget_look()
            self._look = self._loop.call_later(
                _LOOK_AGAIN_SECONDS + 2 * self._slowest_claim, self._look_again
            )

    def _look_again(self) -> None:
        self._look = None
        self._has_looked_again = True
        for (
            subscription
        ) in self._subscriptions:  # a worker claims from all its queues, so one wake-up is enough
            subscription.put(Wakeup(WakeupKind.WORK, queue=subscription.queues[0]))

    def _forget_look(self) -> None:
        if self._look is not None:
            self._look.cancel()
            self._look = None

    def _has_claimed(self) -> None:
        """A claim was answered: look now whether to listen for more or less, if that has changed."""
        signals = self._signals
        is_free_again = self._was_full and not signals.found_enough
        self._was_full = signals.found_enough
        if (signals.held and not self._listens) or (is_free_again and self._watch is None):
            self._news.set()

    # ------------------------------------------------------------------ the connection

    async def _keep_listening(self) -> None:
        pause = 0.05
        while True:
            try:
                connection = await self._connected()
            except (*FOREIGN, TaskHarborError) as error:
                why = DriverUnavailable(type(error).__name__)  # its text may hold the password
                self.outage.failed("wake-ups; polling goes on", why)
            else:
                pause = 0.05
                await self._until_lost(connection)
            await self._clock.sleep(pause * self._entropy.between(0.5, 1.0))
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _connected(self) -> Any:
        if self._address.listens_apart:
            return await connect(self._address, to_listen=True)
        return await self._connections.keep()

    async def _on(self, connection: Any, step: Step[_T]) -> _T:
        if self._address.listens_apart:
            return await step(connection)
        return await self._connections.on(connection, step)

    async def _until_lost(self, connection: Any) -> None:
        self._lost = self._wants_work = self._listens = False
        self._watch = None
        connection.add_termination_listener(self._was_lost)
        try:
            probed = self._clock.monotonic()
            while not self._lost:
                self._news.clear()
                await self._attend(connection)
                await self._until_news(_WATCH_SECONDS * self._entropy.between(0.8, 1.2))
                if self._clock.monotonic() >= probed + _PROBE_SECONDS:
                    await self._on(connection, lambda own: own.execute("select 1", timeout=_PROBE_SECONDS))
                    probed = self._clock.monotonic()
        except (*FOREIGN, TaskHarborError) as error:  # ours: the look goes over other connections
            level = logging.DEBUG if self.outage.is_away else logging.INFO
            log.log(level, "the connection for wake-ups was lost (%s); polling goes on", type(error).__name__)
        finally:
            self._wants_work = self._listens = False
            connection.remove_termination_listener(self._was_lost)
            if self._address.listens_apart:
                connection.terminate()
            else:
                await self._connections.let_go(connection)

    def _was_lost(self, _connection: Any) -> None:
        self._lost = True
        self._news.set()

    async def _until_news(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._news.wait()

    async def _attend(self, connection: Any) -> None:
        """Listen as much as is of use now, and no more."""
        has_claimed = self._signals.claims > self._claims_at_first
        is_shared = has_claimed and len(self._subscriptions) == 1 and self._address.is_listening_direct
        if is_shared:
            await self._take_turns(connection)
        wants_work = not is_shared or self._watch is not None
        listens = wants_work or bool(self._signals.held)
        if listens and not self._listens:
            await self._on(connection, lambda own: own.add_listener(self._address.channel, self._notified))
            self._listens = True
            await self._learn_of_cancels()
        if wants_work and not self._wants_work:
            self._wants_work = True
            await self._all_look()
        if not wants_work and self._wants_work:
            self._wants_work = False
            self._forget_look()
            self._signals.unmarked.clear()
        if not listens and self._listens:
            await self._on(connection, lambda own: own.remove_listener(self._address.channel, self._notified))
            self._listens = False

    async def _take_turns(self, connection: Any) -> None:
        """Take the watch if it is free, and keep it while there is room for jobs."""
        signals = self._signals
        is_stuck = signals.found_enough and signals.claims == self._claims_before  # since the last time
        self._claims_before = signals.claims
        line = f"{','.join(sorted(self._subscriptions[0].queues))} {signals.shape}"
        if self._watch is not None and (is_stuck or self._watch[0] != line):
            (before, place), self._watch = self._watch, None
            await self._on(connection, lambda own: own.execute(self._sql["unwatch"], before, place))
        if self._watch is None and not signals.found_enough:
            place = await self._on(connection, lambda own: own.fetchval(self._sql["watch"], line))
            self._watch = None if place is None else (line, place)

    async def _all_look(self) -> None:
        """One look makes up for the wake-ups that were missed."""
        queues = {queue for subscription in self._subscriptions for queue in subscription.queues}
        self._signals.unmarked -= queues  # before the answer, as above
        await self._connections.rows(self._sql["mark_idle"], sorted(queues))
        self._has_looked_again = True
        for subscription in self._subscriptions:
            subscription.look()

    async def _learn_of_cancels(self) -> None:
        cancelled = await self._connections.rows(
            self._sql["cancelled_of"],
            [subscription.worker_id for subscription in self._subscriptions],
            writes=False,
        )
        for job_id, worker_id in cancelled:
            self._notify_cancel(job_id, worker_id)

    def _notified(self, _connection: Any, _pid: int, _channel: str, payload: object) -> None:
        kind, _, rest = str(payload).partition(" ")
        if kind == "work" and self._wants_work:
            self._has_looked_again = False
            self._slowest_claim = 0.0
            for subscription in self._subscriptions:
                if rest in subscription.queues:
                    self._signals.unmarked.add(rest)
                    subscription.put(Wakeup(WakeupKind.WORK, queue=rest))
        elif kind == "cancel":
            job_id, _, worker_id = rest.partition(" ")
            self._notify_cancel(job_id, worker_id)

    def _notify_cancel(self, job_id: str, worker_id: str) -> None:
        for subscription in self._subscriptions:
            if subscription.worker_id == worker_id:
                subscription.put(Wakeup(WakeupKind.CANCEL, job_id=job_id))


class Subscription(Inbox):
    """The wake-ups of one worker for some queues."""

    def __init__(self, listener: WakeupListener, queues: tuple[str, ...], worker_id: str) -> None:
        super().__init__()
        self.queues = queues
        self.worker_id = worker_id
        self._listener = listener

    def look(self) -> None:
        for queue in self.queues:
            self.put(Wakeup(WakeupKind.WORK, queue=queue))

    async def __anext__(self) -> Wakeup:
        wakeup = await super().__anext__()
        if wakeup.kind is WakeupKind.WORK:
            self._listener.was_woken(self)
        return wakeup

    async def aclose(self) -> None:
        self.end()
        await self._listener.leave(self)
