"""Feed: changes in the store as events. One poll per second serves all subscribers.

    poll ──► compare with the last poll ──► numbered events ──► every subscription that may see them
                                                └──► kept for five minutes, for clients that reconnect

    topic     events                                  sent to
    queues    queue, queue_gone                       who may use the queue; the default
    board     board: the parts of it that changed     one version for each set of queues that a caller may see
    workers   workers: ask the route again            the same
    failures  failures: ask the route again           the same
    bulk      bulk: how far an action on many is      who sees the same queues as its owner

It looks at the store through the Board, and polls only while there are subscribers.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime
from typing import Any, Literal, NamedTuple, get_args

import msgspec
from msgspec.structs import replace

from taskharbor.drivers.contract import Driver
from taskharbor.errors import TaskHarborError
from taskharbor.model.clock import Clock
from taskharbor.model.entropy import Entropy
from taskharbor.views import QueueView, instant_text, listed_job, plain, queue_view
from taskharbor.web.auth import Principal
from taskharbor.web.board import Board, BoardLook
from taskharbor.web.board_view import BoardOut, board_delta, board_view
from taskharbor.web.queue_scope import visible_workers

_log = logging.getLogger("taskharbor.server")

POLL_SECONDS = 1.0
KEPT_SECONDS = 300.0
MAX_KEPT = 10_000
MAX_UNREAD = 1000
MAX_AUDIENCES = 100
MAX_SHARE = 5.0
"""After following jobs, wait at least so many times as long as that took."""
_MOST_DIGITS = 18

Topic = Literal["queues", "board", "workers", "failures", "bulk"]
TOPICS: tuple[Topic, ...] = get_args(Topic)
Audience = frozenset[str] | None
"""The queues that a caller may see; None for all of them."""
EVERYONE: Audience = frozenset({"*"})


class FeedEvent(NamedTuple):
    """One change. `number` rises by one with each; `queue` and `audience` decide who may see it."""

    number: int
    kind: str
    data: bytes
    queue: str | None = None
    job_id: str | None = None
    topic: str | None = None
    audience: Audience = EVERYONE


class FeedSubscription:
    """One subscriber: what it may see and asked for, and its unread events."""

    def __init__(
        self,
        principal: Principal,
        queues: frozenset[str],
        jobs: frozenset[str],
        topics: frozenset[Topic] = frozenset({"queues"}),
    ) -> None:
        self.id = Entropy().bytes(8).hex()
        self.principal = principal
        self.queues = queues
        self.jobs = jobs
        self.topics = topics
        self.unread: asyncio.Queue[FeedEvent] = asyncio.Queue(MAX_UNREAD)
        self.has_overflowed = False

    def wants(self, event: FeedEvent) -> bool:
        if event.topic is not None and event.topic not in self.topics:
            return False
        if event.audience not in (EVERYONE, self.principal.queues):
            return False
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
        board: Board,
        driver: Callable[[], Awaitable[Driver]],
        clock: Clock,
        now: Callable[[], datetime | None],
        epoch: str,
    ) -> None:
        self._board = board
        self._driver = driver
        self._clock = clock
        self._now = now
        self.epoch = epoch
        """Identifies this run of the server: event numbers of another run mean nothing here."""

        self._number = 0
        self._past: deque[tuple[float, FeedEvent]] = deque(maxlen=MAX_KEPT)
        self._queues: dict[str, QueueView] = {}
        self._seen: BoardLook | None = None
        self._boards: dict[Audience, BoardOut] = {}
        """What was sent last to each audience, also to those that may come back; the latest last."""
        self._workers: dict[Audience, object] = {}
        self._jobs_seconds = 0.0
        self.find_bulk: Callable[[], Iterable[tuple[Audience, str, Any]]] = tuple
        """Actions on many jobs: the queues that their owner may see, their ids, and how far they are."""
        self._bulk: dict[str, bytes] = {}
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
        await self._poll(subscription)
        missed = self._missed(last_id)
        if missed is None:
            subscription.send(self._snapshot(subscription))
        else:
            resumed = {"stream": subscription.id, "at": self._at()}
            subscription.send(FeedEvent(self._number, "resumed", msgspec.json.encode(resumed)))
            for event in missed:
                if subscription.wants(event):
                    subscription.send(event)
        self._subscriptions.add(subscription)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._keep_polling())

    def unsubscribe(self, subscription: FeedSubscription) -> None:
        self._subscriptions.discard(subscription)

    async def follow(self, stream: str, principal: Principal, jobs: frozenset[str]) -> list[Any] | None:
        """Follow these jobs from now on, instead of those before. Returns them, or None: no such stream."""
        found = [one for one in self._subscriptions if one.id == stream and one.principal == principal]
        if not found:
            return None
        async with self._polling:
            await self._poll_jobs(await self._driver(), sorted(jobs))
            found[0].jobs = jobs  # now, so that what is returned is not sent as an event, too
        return self._jobs_of(found[0])

    def publish(self, topic: Topic, data: Any, *, audience: Audience = EVERYONE) -> None:
        """Send an event of this topic."""
        self._happened(topic, data, topic=topic, audience=audience)

    def id_of(self, event: FeedEvent) -> str:
        return f"{self.epoch}-{event.number}"

    # ------------------------------------------------------------------ polling

    async def _keep_polling(self) -> None:
        while self._subscriptions:
            await self._clock.sleep(max(POLL_SECONDS, MAX_SHARE * self._jobs_seconds))
            if not self._subscriptions:
                return
            self._compare_bulk()
            try:
                await self._poll()
            except TaskHarborError as error:
                _log.debug("the event feed could not read the store: %s", error)
                self._happened("notice", {"text": "the store does not answer; the figures are out of date"})
                if self._board.last is not None:
                    self._compare_boards(self._board.last, None)

    async def _poll(self, newcomer: FeedSubscription | None = None) -> None:
        """Compare the store with the last poll, and send what is different."""
        async with self._polling:
            look = await self._board.look()
            if look is not self._seen:
                self._compare_queues(look)
            if look is not self._seen or newcomer is not None:
                self._compare_boards(look, newcomer)
            self._seen = look
            everyone = self._subscriptions if newcomer is None else {newcomer, *self._subscriptions}
            followed = sorted({job_id for one in everyone for job_id in one.jobs})
            begun = self._clock.monotonic()
            if followed:
                await self._poll_jobs(await self._driver(), followed)
            self._jobs_seconds = self._clock.monotonic() - begun

    def _compare_boards(self, look: BoardLook, newcomer: FeedSubscription | None) -> None:
        everyone = self._subscriptions if newcomer is None else {newcomer, *self._subscriptions}
        listening = {one.principal.queues: one.principal for one in everyone if one.topics - {"queues"}}
        for audience, principal in listening.items():
            before, there = self._boards.pop(audience, None), self._workers.get(audience)
            board = self._boards[audience] = board_view(self._board, look, principal)
            here = self._workers[audience] = _workers_shown(look, principal)
            if before is None:  # the first listener gets the whole in a snapshot
                continue
            delta = board_delta(before, board)
            self._happened("board", delta, topic="board", audience=audience)
            if there != here:
                self._happened("workers", {}, topic="workers", audience=audience)
            if before.counts.failed != board.counts.failed:
                failed = {"failed": board.counts.failed}
                self._happened("failures", failed, topic="failures", audience=audience)
        while len(self._boards) > max(MAX_AUDIENCES, len(listening)):
            gone = next(iter(self._boards))  # the longest without a listener
            del self._boards[gone], self._workers[gone]

    def _compare_bulk(self) -> None:
        before, self._bulk = self._bulk, {}
        for audience, action_id, data in self.find_bulk():
            self._bulk[action_id] = msgspec.json.encode(data)
            if before.get(action_id) != self._bulk[action_id]:
                for one in {None, audience}:  # its owner, and callers for every queue
                    self.publish("bulk", data, audience=one)

    def _compare_queues(self, look: BoardLook) -> None:
        now = self._board.time_of(look)
        views = {name: queue_view(info, now) for name, info in look.queues.items()}
        for name, view in views.items():
            before = self._queues.get(name)
            # The age of the oldest job always grows: that alone is not a change.
            if before is None or replace(before, oldest_s=None) != replace(view, oldest_s=None):
                self._happened("queue", view, queue=name, topic="queues")
        for name in self._queues.keys() - views.keys():
            self._happened("queue_gone", {"name": name}, queue=name, topic="queues")
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
                view = {**plain(listed_job(job)), "asked_id": job_id}
                self._jobs[job_id] = (job.version, view)
                self._happened("job", view, queue=job.queue, job_id=job_id)
        if len(self._jobs) > MAX_KEPT:  # drop those that no one follows any more
            self._jobs = {job_id: self._jobs[job_id] for job_id in ids if job_id in self._jobs}

    # ------------------------------------------------------------------ sending

    def _happened(
        self,
        kind: str,
        data: Any,
        *,
        queue: str | None = None,
        job_id: str | None = None,
        topic: Topic | None = None,
        audience: Audience = EVERYONE,
    ) -> None:
        self._number += 1
        event = FeedEvent(self._number, kind, msgspec.json.encode(data), queue, job_id, topic, audience)
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
        data: dict[str, Any] = {"stream": subscription.id, "at": self._at()}
        if "queues" in subscription.topics:
            data["queues"] = [
                view
                for name, view in sorted(self._queues.items())
                if subscription.wants(FeedEvent(0, "queue", b"", queue=name))
            ]
        if "board" in subscription.topics:
            data["board"] = self._boards[subscription.principal.queues]
        data["jobs"] = self._jobs_of(subscription)
        return FeedEvent(self._number, "snapshot", msgspec.json.encode(data))

    def _jobs_of(self, subscription: FeedSubscription) -> list[Any]:
        return [
            view
            for job_id in sorted(subscription.jobs)
            if (view := self._jobs.get(job_id, (0, {}))[1])
            and subscription.principal.may_use(str(view["queue"]))
        ]

    def _at(self) -> str | None:
        return instant_text(self._clock.now())


def _workers_shown(look: BoardLook, principal: Principal) -> object:
    """What would look different on a page about workers."""
    return [
        (one.report.worker_id, one.report.running, one.report.is_quiet, one.report.concurrency)
        for one in visible_workers(principal, look.workers)
    ]
