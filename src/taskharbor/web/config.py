"""ServerConfig: what a server allows, and how much of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from taskharbor.errors import ConfigurationError

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """The limits of one server. The defaults suit a small production."""

    tokens: Path | None = None
    """The token file. Without one, only callers on this machine are served, as admin."""

    allowed_hosts: tuple[str, ...] | None = None
    """Host names that requests may name. Left out: any with tokens, only loopback names without."""

    scheduler: bool = False
    """Run a scheduler beside the server, as the command does."""

    metrics: bool = False
    """Count what the server does, and answer GET /metrics; needs prometheus-client."""

    any_type: bool = False
    """Take jobs of types that the harbor has no task for, though it has tasks."""

    accepts_now: bool = False
    """Let callers of the driver routes say what time it is: for servers under test only."""

    max_batch_bytes: int = 16 * 1024 * 1024
    """The largest body of a batch or a driver verb; other bodies go by the payload limit."""

    max_answer_bytes: int = 16 * 1024 * 1024
    """About the most bytes of jobs in one answer: longer lists come in more pages, more ids in more calls."""

    max_bytes_under_way: int = 64 * 1024 * 1024
    """Bodies over 64 KiB that are held at the same time, all callers together; one caller has half of it. One
    more waits for a moment, and is then told to come back. As much may wait unread in answers."""

    max_header_bytes: int = 16 * 1024
    request_seconds: float = 10.0
    """How long a request may take to arrive, headers and body together."""

    max_wait_seconds: float = 60.0
    """The longest that a caller may wait for a result."""

    max_connections: int = 1000
    """Connections at the same time. For one more, the one goes that keeps us waiting longest; where all are
    busy, it gets an answer that says to come back later."""

    max_connections_per_address: int | None = None
    """The same for one address; 0 for no such limit. Left out: half of all, and none for this machine's own,
    where a proxy may stand."""

    write_seconds: float = 30.0
    """How long a caller may leave an answer unread: within this time it reads all of it, or 16 KiB."""

    max_streams: int = 200
    """Event streams at the same time; one more is told to come back later."""

    max_streams_per_token: int = 50
    """The most of them that one token may have."""

    max_wakeup_streams: int = 800
    """Streams of hints, one per worker process, at the same time; a worker without one looks by itself."""

    max_wakeup_streams_per_token: int = 400
    """The most of them that one token may have."""

    rate_per_second: float = 100.0
    """Requests per second and token; 0 for no limit. Twice as many may come at once."""

    driver_rate_per_second: float = 1000.0
    """The same for the driver's verbs, which programs call and not people: counted apart.
    Those that attempts consist of are not counted at all."""

    cursor_key: str = ""
    """What cursors are signed with. Left out: the token file's, else one that ends with this process."""

    max_queues_per_token: int = 1000
    """Different queues that one token may enqueue to before it is told to stop inventing names."""

    max_schedules: int = 1000
    """Schedules that may be made through this server."""

    def __post_init__(self) -> None:
        if self.max_connections < 1:
            raise ConfigurationError("max_connections must be at least 1")
        if self.max_answer_bytes < 1 or self.max_bytes_under_way < 1:
            raise ConfigurationError("max_answer_bytes and max_bytes_under_way must be at least 1")
        if self.max_connections_per_address is not None and self.max_connections_per_address < 0:
            raise ConfigurationError("max_connections_per_address must not be negative; 0 means no limit")
        if self.request_seconds <= 0 or self.max_wait_seconds <= 0 or self.write_seconds <= 0:
            raise ConfigurationError("request_seconds, max_wait_seconds and write_seconds must be above zero")
        if self.rate_per_second < 0 or self.driver_rate_per_second < 0:
            raise ConfigurationError("a rate per second must not be negative; 0 means no limit")
