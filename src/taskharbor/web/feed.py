"""Feed: changes in the store as events. One poll per second serves all subscribers.

    poll ──► compare with the last poll ──► numbered events ──► every subscription that may see them
                                                └──► kept for five minutes, for clients that reconnect

It uses only the reading verbs of a driver, so it works on every store, and polls only while there are
subscribers.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from taskharbor.drivers.contract import Driver
from taskharbor.errors import TaskHarborError
from taskharbor.model.clock import Clock
from taskharbor.model.queue import EVERY_QUEUE
from taskharbor.views import QueueView, instant_text, job_view, plain, queue_view
from taskharbor.web.auth import Principal

_log = logging.getLogger("taskharbor.server")

POLL_SECONDS = 1.0
KEPT_SECONDS = 300.0
MAX_KEPT = 10_000
MAX_UNREAD = 1000
_MOST_DIGITS = 18


class FeedEvent(NamedTuple):
    """One change. `number` rises by one with each; `queue` decides who may see it."""

    number: int
    kind: str
    data: bytes
    queue: str | None = None
    job_id: str | None = None


class FeedSubscription:
    """One subscriber: what it may see and asked for, and its unread events."""

    def __init__(self, principal: Principal, queues: frozenset[str], jobs: frozenset[str]) -> None:
        self.principal = principal
        self.queues = queues
        self.jobs = jobs
        self.unread: asyncio.Queue[FeedEvent] = asyncio.Queue(MAX_UNREAD)
        self.has_overflowed = False

    def wants(self, event: FeedEvent) -> bool:
        if event.queue is not None and not self.principal.may_use(event.queue):
            return False
        if event.job_id is not None:
            return event.job_id in self.jobs
        return event.queue is None or not self.queues or event.queue in self.queues

    def send(self, event: FeedEvent) -> None:
        try:
            self.unread.put_nowait(event)
        except asyncio.QueueFull:
            self.has_overflowed = True


class Feed:
    """The changes of one store."""

    def __init__(
        self,
        driver: Callable[[], Awaitable[Driver]],
        clock: Clock,
        now: Callable[[], datetime | None],
        epoch: str,
    ) -> None:
        self._driver = driver
        self._clock = clock
        self._now = now
        self.epoch = epoch
        """Identifies this run of the server: event numbers of another run mean nothing here."""

        self._number = 0
        self._past: deque[tuple[float, FeedEvent]] = deque(maxlen=MAX_KEPT)
        self._queues: dict[str, QueueView] = {}
        self._jobs: dict[str, tuple[int, dict[str, Any]]] = {}
        self._subscriptions: set[FeedSubscription] = set()
        self._polling = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    @property
    def listeners(self) -> int:
        return len(self._subscriptions)

    async def subscribe(self, subscription: FeedSubscription, last_id: str | None) -> None:
        """Subscribe. First come the events missed since `last_id`, or a snapshot of the current state.

        Raises:
            DriverUnavailable: the store cannot be reached; there is no subscription.
        """
        await self._poll(subscription.jobs)
        missed = self._missed(last_id)
        if missed is None:
            subscription.send(self._snapshot(subscription))
        else:
            for event in missed:
                if subscription.wants(event):
                    subscription.send(event)
        self._subscriptions.add(subscription)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._keep_polling())

    def unsubscribe(self, subscription: FeedSubscription) -> None:
        self._subscriptions.discard(subscription)

    def id_of(self, event: FeedEvent) -> str:
        return f"{self.epoch}-{event.number}"

    # ------------------------------------------------------------------ polling

    async def _keep_polling(self) -> None:
        while self._subscriptions:
            await self._clock.sleep(POLL_SECONDS)
            if not self._subscriptions:
                return
            try:
                await self._poll(frozenset())
            except TaskHarborError as error:
                _log.debug("the event feed could not read the store: %s", error)
                self._happened("notice", {"text": "the store does not answer; the figures are out of date"})

    async def _poll(self, more_jobs: Iterable[str]) -> None:
        """Compare the store with the last poll, and send what is different."""
        async with self._polling:
            driver = await self._driver()
            followed = sorted({*more_jobs, *(one for sub in self._subscriptions for one in sub.jobs)})
            await self._poll_queues(driver)
            await self._poll_jobs(driver, followed)

    async def _poll_queues(self, driver: Driver) -> None:
        now = self._clock.now()
        found = {info.queue: info for info in await driver.queues(now=self._now())}
        found.pop(EVERY_QUEUE, None)
        views = {name: queue_view(info, now) for name, info in found.items()}
        for name, view in views.items():
            before = self._queues.get(name)
            # The age of the oldest job always grows: that alone is not a change.
            if before is None or replace(before, oldest_s=None) != replace(view, oldest_s=None):
                self._happened("queue", view, queue=name)
        for name in self._queues.keys() - views.keys():
            self._happened("queue_gone", {"name": name}, queue=name)
        self._queues = views

    async def _poll_jobs(self, driver: Driver, ids: list[str]) -> None:
        for job_id, job in zip(
            ids, await driver.get(ids, payloads=False, now=self._now()) if ids else [], strict=True
        ):
            version, _ = self._jobs.get(job_id, (None, {}))
            if job is None:
                if (known := self._jobs.pop(job_id, None)) is not None:
                    self._happened("job_gone", {"id": job_id}, queue=known[1]["queue"], job_id=job_id)
            elif version != job.version or self._jobs[job_id][1]["state"] != job.state.value:
                view = {**plain(job_view(job)), "asked_id": job_id}
                self._jobs[job_id] = (job.version, view)
                self._happened("job", view, queue=job.queue, job_id=job_id)
        if len(self._jobs) > MAX_KEPT:  # drop those that no one follows any more
            self._jobs = {job_id: self._jobs[job_id] for job_id in ids if job_id in self._jobs}

    # ------------------------------------------------------------------ sending

    def _happened(self, kind: str, data: Any, *, queue: str | None = None, job_id: str | None = None) -> None:
        self._number += 1
        event = FeedEvent(self._number, kind, msgspec.json.encode(data), queue, job_id)
        now = self._clock.monotonic()
        self._past.append((now, event))
        while self._past and self._past[0][0] < now - KEPT_SECONDS:
            self._past.popleft()
        for subscription in self._subscriptions:
            if subscription.wants(event):
                subscription.send(event)

    def _missed(self, last_id: str | None) -> list[FeedEvent] | None:
        """The events after that one; None if it is too old or from another run of the server."""
        epoch, _, text = (last_id or "").rpartition("-")
        if epoch != self.epoch or len(text) > _MOST_DIGITS or not (text.isascii() and text.isdigit()):
            return None
        number = int(text)
        oldest = self._past[0][1].number if self._past else self._number + 1
        if not oldest - 1 <= number <= self._number:
            return None
        return [event for _, event in self._past if event.number > number]

    def _snapshot(self, subscription: FeedSubscription) -> FeedEvent:
        queues = [
            view
            for name, view in sorted(self._queues.items())
            if subscription.wants(FeedEvent(0, "queue", b"", queue=name))
        ]
        jobs = [
            view
            for job_id in sorted(subscription.jobs)
            if (view := self._jobs.get(job_id, (0, {}))[1])
            and subscription.principal.may_use(str(view["queue"]))
        ]
        at = instant_text(self._clock.now())
        return FeedEvent(
            self._number, "snapshot", msgspec.json.encode({"at": at, "queues": queues, "jobs": jobs})
        )
