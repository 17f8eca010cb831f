"""Service: what all routes of one server share."""

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
from taskharbor.web.answer_limit import AnswerLimit
from taskharbor.web.audit import AuditLog
from taskharbor.web.audit_book import AuditBook
from taskharbor.web.auth import Authenticate, Authenticator
from taskharbor.web.board import Board
from taskharbor.web.body_limits import BodyMemory
from taskharbor.web.bulk import BulkActions
from taskharbor.web.config import ServerConfig
from taskharbor.web.connection_limits import ConnectionLimits
from taskharbor.web.dead_letters import DeadLetters
from taskharbor.web.failures import Failures
from taskharbor.web.feed import Feed
from taskharbor.web.limits import FailureLimit, QueueQuota, RateLimiter, StreamSlots
from taskharbor.web.marks import ChartMarks, ReleaseBook
from taskharbor.web.series import SeriesReader
from taskharbor.web.sessions import Sessions
from taskharbor.web.shared_answers import SharedAnswers
from taskharbor.web.tokens import TokenFile
from taskharbor.web.worker_speeds import WorkerSpeeds

if TYPE_CHECKING:
    from taskharbor.web.api.metrics import ServerMetrics

CAUSES_KEPT_SECONDS, CAUSES_SHARE = 2.0, 20.0
"""What an opened cause shows is kept at least so long, and so many times as long as it took."""


class Service:
    """One harbor behind HTTP: its store, its limits, and whether it is shutting down."""

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
        self.tokens = tokens
        self.authenticator = Authenticator(
            tokens,
            authenticate,
            local_callers_are_admin=local_callers_are_admin,
            sessions=None if tokens is None else Sessions(tokens, lambda: self.cursor_key, self.clock),
        )
        self.login_failures = FailureLimit(self.clock)
        self._own_key = self.entropy.bytes(32)
        self.has_callers = authenticate is not None or (tokens is not None and bool(tokens.tokens()))
        """Whether callers must authenticate, and at least one can."""
        self.audit = AuditLog()
        self.audit_book = AuditBook(self)
        self.shared_answers = SharedAnswers(self.clock)
        self.opened_causes = SharedAnswers(self.clock, CAUSES_KEPT_SECONDS, share=CAUSES_SHARE)
        self.dead_letters = DeadLetters(self)
        self.failures = Failures(self)
        self.connections = ConnectionLimits(
            config.max_connections,
            config.max_connections_per_address,
            config.write_seconds,
            config.max_bytes_under_way,
        )
        """Used by our own server only. Mounted in another server, that one limits connections."""
        self.answer_limit = AnswerLimit(config.max_answer_bytes)
        self.body_memory = BodyMemory(config.max_bytes_under_way)
        self.rate_limit = RateLimiter(config.rate_per_second, self.clock)
        self.driver_rate_limit = RateLimiter(config.driver_rate_per_second, self.clock)
        self.quota = QueueQuota(config.max_queues_per_token)
        self.templates: dict[Any, NewJob] = {}
        """Jobs without id and payload, shared by similar bodies; see api/enqueue.py."""
        self.worker_speeds = WorkerSpeeds(self.clock)
        self.board = Board(self.driver, self.clock, self.now, config.targets)
        self.marks = ChartMarks(self.audit_book, ReleaseBook(self.driver, self.clock, self.now), self.clock)
        self._series: SeriesReader | None = None
        self.feed = Feed(self.board, self.driver, self.clock, self.now, self.entropy.bytes(4).hex())
        self.event_streams = StreamSlots("event streams", config.max_streams, config.max_streams_per_token)
        self.wakeup_streams = StreamSlots(
            "wake-up streams", config.max_wakeup_streams, config.max_wakeup_streams_per_token
        )
        self.metrics: ServerMetrics | None = None
        """What GET /metrics shows, if it is enabled."""
        self.bulk = BulkActions(self)
        self.background: set[asyncio.Task[None]] = set()
        """Tasks that outlive their request; they end before the store is closed."""
        self.stopping = asyncio.Event()
        """Set when the server shuts down: streams and long polls then end."""

    @property
    def cursor_key(self) -> bytes:
        """The key that signs cursors: from the settings or the token file, else one of this process."""
        shared = self.config.cursor_key or (self.tokens.cursor_key if self.tokens is not None else "")
        return hashlib.sha256(shared.encode()).digest() if shared else self._own_key

    @property
    def driver_name(self) -> str:
        """What to call the kind of store on a page; the store is not asked."""
        return type(self.harbor.driver).__name__.removesuffix("Driver").lower()

    async def driver(self) -> Driver:
        """The open driver of this event loop. Raises DriverUnavailable while the store cannot be reached."""
        return await self.harbor.client.adriver()

    async def series(self) -> SeriesReader | None:
        """The reader of the logbook's numbers; None if the store keeps no logbook."""
        driver = await self.driver()
        if self._series is None and driver.capabilities.logbook:
            self._series = SeriesReader(driver, self.clock)
        return self._series

    def now(self) -> datetime | None:
        """The `now` for the store: None for the store's own clock, except under a simulated clock."""
        return self.harbor.client._now()

    async def pause(self, seconds: float) -> None:
        """Return after so many seconds, or as soon as the server shuts down."""
        stopped = asyncio.ensure_future(self.stopping.wait())
        slept = asyncio.ensure_future(self.clock.sleep(seconds))
        try:
            await asyncio.wait({stopped, slept}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
            slept.cancel()

    def start(self) -> None:
        """Serve again after a stop, in whichever event loop runs now: tests start an application often."""
        if self.stopping.is_set():
            self.stopping = asyncio.Event()
            self.shared_answers.clear()
            self.opened_causes.clear()

    def stop(self) -> None:
        self.stopping.set()
