"""Service: what every route of one server shares."""

from __future__ import annotations

import asyncio
import hashlib
from datetime import datetime
from typing import TYPE_CHECKING, Any

from taskharbor.drivers.contract import Driver
from taskharbor.harbor import Harbor
from taskharbor.model.clock import Clock
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import NewJob
from taskharbor.web.audit import AuditLog
from taskharbor.web.auth import Authenticate, Authenticator
from taskharbor.web.config import ServerConfig
from taskharbor.web.connections import Connections
from taskharbor.web.feed import Feed
from taskharbor.web.portions import Portions
from taskharbor.web.quota import QueueQuota
from taskharbor.web.rates import Buckets
from taskharbor.web.room import Room
from taskharbor.web.seldom import Seldom
from taskharbor.web.streams import Places
from taskharbor.web.tokens import TokenFile

if TYPE_CHECKING:
    from taskharbor.web.api.metrics import ServerMetrics


class Service:
    """One harbor behind HTTP: its store, its limits, and whether it is about to stop."""

    def __init__(
        self,
        harbor: Harbor,
        config: ServerConfig,
        authenticate: Authenticate | None = None,
        *,
        local_callers_are_admin: bool = False,
    ) -> None:
        self.harbor = harbor
        self.config = config
        self.clock: Clock = harbor.client.clock
        self.entropy = Entropy()
        tokens = None if config.tokens is None else TokenFile(config.tokens, self.clock)
        self.authenticator = Authenticator(
            tokens, authenticate, local_callers_are_admin=local_callers_are_admin
        )
        self._tokens = tokens
        self._own_key = self.entropy.bytes(32)
        self.has_door = authenticate is not None or (tokens is not None and bool(tokens.tokens()))
        """Whether callers have to show something, and there is somebody who can."""
        self.audit = AuditLog()
        self.seldom = Seldom(self.clock)
        self.connections = Connections(
            config.max_connections,
            config.max_connections_per_address,
            config.write_seconds,
            config.max_bytes_under_way,
        )
        """Those of our own server; mounted in another one, that is that one's business."""
        self.portions = Portions(config.max_answer_bytes)
        self.room = Room(config.max_bytes_under_way)
        self.buckets = Buckets(config.rate_per_second, self.clock)
        self.driver_buckets = Buckets(config.driver_rate_per_second, self.clock)
        self.quota = QueueQuota(config.max_queues_per_token)
        self.templates: dict[Any, NewJob] = {}
        """What bodies of one kind have in common; see api/enqueue.py."""
        self.feed = Feed(self.driver, self.clock, self.now, self.entropy.bytes(4).hex())
        self.event_streams = Places("event streams", config.max_streams, config.max_streams_per_token)
        self.wakeup_streams = Places(
            "streams of hints", config.max_wakeup_streams, config.max_wakeup_streams_per_token
        )
        self.metrics: ServerMetrics | None = None
        """What GET /metrics shows, where it is on."""
        self.afterwards: set[asyncio.Task[None]] = set()
        """What goes on after its request was answered; it ends before the store is closed."""
        self.stopping = asyncio.Event()
        """Set when the server is told to stop: streams and long waits end themselves."""

    @property
    def cursor_key(self) -> bytes:
        """What cursors are signed with: shared by servers that are told the same, else our own."""
        shared = self.config.cursor_key or (self._tokens.cursor_key if self._tokens is not None else "")
        return hashlib.sha256(shared.encode()).digest() if shared else self._own_key

    async def driver(self) -> Driver:
        """The open driver of this event loop. Raises DriverUnavailable while the store is away."""
        return await self.harbor.client.adriver()

    def now(self) -> datetime | None:
        """The `now` for the store: None, its own clock, unless the harbor lives in a made-up time."""
        return self.harbor.client.now()

    async def pause(self, seconds: float) -> None:
        """Return after so many seconds, or as soon as the server is told to stop."""
        told = asyncio.ensure_future(self.stopping.wait())
        slept = asyncio.ensure_future(self.clock.sleep(seconds))
        try:
            await asyncio.wait({told, slept}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            told.cancel()
            slept.cancel()

    def stop(self) -> None:
        self.stopping.set()
