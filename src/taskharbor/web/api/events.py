"""GET /api/events: server-sent events: a snapshot, then changes, about once a second."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from taskharbor.errors import InvalidArgument
from taskharbor.model.checks import check_id, check_name
from taskharbor.web.api.answers import FollowOut
from taskharbor.web.api.schemas import MAX_FOLLOWED, EventsQuery, FollowIn
from taskharbor.web.auth import AccessCheck
from taskharbor.web.endpoint import Operation
from taskharbor.web.feed import TOPICS, Feed, FeedEvent, FeedSubscription, Topic
from taskharbor.web.limits import StreamSlot
from taskharbor.web.parsing import read_json
from taskharbor.web.problems import Problem
from taskharbor.web.reply import json_answer
from taskharbor.web.request import Request

_MAX_BODY = 8 * 1024
_CHECK_SECONDS = 2.0
_COMMENT_SECONDS = 15.0


async def events(request: Request) -> Response:
    asked: EventsQuery = request.query
    service = request.service
    if service.stopping.is_set():
        raise Problem("draining", "the server is stopping", headers={"Retry-After": "1"})
    subscription = FeedSubscription(
        request.principal, _queues(request, asked.queues), _jobs(asked.jobs), _topics(asked.topics)
    )
    slot = service.event_streams.take(request.principal)
    try:
        await service.feed.subscribe(subscription, request.headers.get("last-event-id"))
    except BaseException:
        slot.release()
        raise
    return EventStream(request, subscription, slot)


class EventStream(Response):
    """The open stream, until the caller disconnects, reads too slowly or loses access, or we stop."""

    media_type = "text/event-stream"

    def __init__(self, request: Request, subscription: FeedSubscription, slot: StreamSlot) -> None:
        super().__init__()
        del self.headers["content-length"]
        self.headers["X-Accel-Buffering"] = "no"
        self._call = request
        self._subscription = subscription
        self._slot = slot
        self._access = AccessCheck(request)
        self._feed: Feed = request.service.feed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send(
                {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            )
            await send({"type": "http.response.body", "body": b"retry: 2000\n\n", "more_body": True})
            await self._send_news(send)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._slot.release()
            self._feed.unsubscribe(self._subscription)

    async def _send_news(self, send: Send) -> None:
        gone = asyncio.ensure_future(self._call.disconnected())
        stopping = asyncio.ensure_future(self._call.service.stopping.wait())
        clock, silent_since = self._call.service.clock, self._call.service.clock.monotonic()
        try:
            while not gone.done() and not stopping.done() and await self._access.holds():
                chunk = await self._next_chunk(gone, stopping)
                if not chunk and clock.monotonic() - silent_since >= _COMMENT_SECONDS:
                    chunk = b": still here\n\n"
                if chunk:
                    silent_since = clock.monotonic()
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
                if self._subscription.has_overflowed:
                    overflow = b"event: overflow\ndata: {}\n\n"
                    await send({"type": "http.response.body", "body": overflow, "more_body": True})
                    return
        finally:
            gone.cancel()
            stopping.cancel()

    async def _next_chunk(self, gone: asyncio.Future[Any], stopping: asyncio.Future[Any]) -> bytes:
        """All unread events; empty if none came for a while."""
        unread = self._subscription.unread
        if unread.empty():
            first: asyncio.Future[Any] = asyncio.ensure_future(unread.get())
            await asyncio.wait(
                {first, gone, stopping}, timeout=_CHECK_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            if not first.done():
                first.cancel()
                return b""
            found = [first.result()]
        else:
            found = []
        while not unread.empty():
            found.append(unread.get_nowait())
        return b"".join(map(self._written, found))

    def _written(self, event: FeedEvent) -> bytes:
        head = f"id: {self._feed.id_of(event)}\nevent: {event.kind}\ndata: "
        return head.encode() + event.data + b"\n\n"


def _queues(request: Request, text: str) -> frozenset[str]:
    queues = frozenset(filter(None, text.split(",")))
    for queue in queues:
        check_name(queue, "queue")
        request.require_queue(queue)
    return queues


async def follow(request: Request) -> Response:
    """Follow other jobs on an open stream: a page that scrolls need not connect again."""
    asked = read_json(await request.body(_MAX_BODY), FollowIn)
    jobs = await request.service.feed.follow(
        request.parameter("stream"), request.principal, _followed(frozenset(asked.jobs))
    )
    if jobs is None:
        raise Problem("not-found", "this server has no such stream of this caller; open a new one")
    return json_answer(FollowOut(jobs=jobs))


def _topics(text: str) -> frozenset[Topic]:
    names = frozenset(filter(None, text.split(",")))
    if unknown := sorted(names - set(TOPICS)):
        raise InvalidArgument(f"no topic {unknown[0][:40]!r}; there are {', '.join(TOPICS)}")
    return frozenset(topic for topic in TOPICS if topic in names) or frozenset({"queues"})


def _jobs(text: str) -> frozenset[str]:
    return _followed(frozenset(filter(None, text.split(","))))


def _followed(jobs: frozenset[str]) -> frozenset[str]:
    for job_id in jobs:
        check_id(job_id)
    if len(jobs) > MAX_FOLLOWED:
        raise InvalidArgument(f"{len(jobs)} jobs to follow; {MAX_FOLLOWED} are allowed in one stream")
    return jobs


OPERATIONS = [
    Operation(
        method="GET",
        path="/api/events",
        name="events",
        handler=events,
        summary="Changes as server-sent events: a snapshot first, then about once a second",
        query=EventsQuery,
        answer=str,
        media_type="text/event-stream",
        problems=("too-busy",),
    ),
    Operation(
        method="POST",
        path="/api/events/{stream}/follow",
        name="follow",
        handler=follow,
        summary="Follow other jobs on an open stream",
        body=FollowIn,
        answer=FollowOut,
        problems=("not-found", "timeout", "payload-too-large", "unsupported-media-type"),
    ),
]
