"""ServerConfig: the settings and limits of a server."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from pathlib import Path
from typing import Literal

from taskharbor.errors import ConfigurationError
from taskharbor.model.checks import check_kinds
from taskharbor.model.duration import check_timedelta

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
_TRACE_URL = re.compile(r"https?://[^\s{}]+\{trace_id\}[^\s{}]*")
_ORIGIN = re.compile(r"https?://[A-Za-z0-9.*:\[\]-]+|'self'")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Settings and limits of one server. The defaults suit a small installation."""

    tokens: Path | None = None
    """The token file. Without one, only callers on this machine are served, as admin."""

    allowed_hosts: tuple[str, ...] | None = None
    """Host names that requests may use. Default: any with tokens, only loopback names without."""

    scheduler: bool = False
    """Also run a scheduler, as the command `taskharbor server` does."""

    metrics: bool = False
    """Serve GET /metrics; needs prometheus-client."""

    ui: Literal["on", "read-only", "off"] = "on"
    """Whether the dashboard is served, at /ui/. With `read-only`, pages change nothing, whatever the role."""

    frame_ancestors: tuple[str, ...] = ()
    """Origins whose pages may show the dashboard in a frame, like https://intranet.example."""

    name: str = ""
    """What the dashboard calls this server, like `prod`."""

    targets: Mapping[str, timedelta] = field(default_factory=dict)
    """How long jobs of a queue may wait before the dashboard says that it falls behind; 60 s for others."""

    trace_url: str = ""
    """Where a trace is shown, like https://traces.example/{trace_id}: the page of a job links to it."""

    any_type: bool = False
    """Accept jobs of types for which the harbor has no task."""

    accepts_now: bool = False
    """Let callers of the driver routes set the time: only for servers under test."""

    max_batch_bytes: int = 16 * 1024 * 1024
    """The largest body of a batch or a driver verb; other bodies are limited by the payload limit."""

    max_answer_bytes: int = 16 * 1024 * 1024
    """Roughly the most bytes of jobs in one answer; longer lists need more pages, more ids more calls."""

    max_bytes_under_way: int = 64 * 1024 * 1024
    """Memory for bodies over 64 KiB, all callers together; one caller may use half. A request that does not
    fit waits briefly, then gets 503. Unread answers may use as much again."""

    max_header_bytes: int = 16 * 1024
    request_seconds: float = 10.0
    """How long a request may take to arrive, headers and body together."""

    max_wait_seconds: float = 60.0
    """The longest that a caller may wait for a result."""

    max_connections: int = 1000
    """Open connections. For one more, the longest idle one is closed; if all are busy, the new one gets
    503 with Retry-After."""

    max_connections_per_address: int | None = None
    """The same for one address; 0 for no limit. Default: half of max_connections, and no limit for this
    machine, where a proxy may run."""

    write_seconds: float = 30.0
    """A caller must read its answer, or at least 16 KiB of it, within this time."""

    max_streams: int = 200
    """Open event streams; one more gets 503 with Retry-After."""

    max_streams_per_token: int = 50
    """The same for one token."""

    max_wakeup_streams: int = 800
    """Open wake-up streams, one per worker process; a worker without one polls."""

    max_wakeup_streams_per_token: int = 400
    """The same for one token."""

    rate_per_second: float = 100.0
    """Requests per second and token; 0 for no limit. A burst may have twice as many."""

    driver_rate_per_second: float = 1000.0
    """The same for driver verbs, counted separately. Verbs that run jobs (claim, extend, settle) are not
    limited."""

    cursor_key: str = ""
    """The key that signs cursors. Default: that of the token file, else a new one per process."""

    max_queues_per_token: int = 1000
    """Different queues that one token may enqueue to."""

    max_schedules: int = 1000
    """Schedules that may exist; one more is refused."""

    def __post_init__(self) -> None:
        check_kinds(self, {one.name: one.type for one in fields(self)})
        for what in ("allowed_hosts", "frame_ancestors"):
            if isinstance(names := getattr(self, what), str):  # its letters would be taken for names
                raise ConfigurationError(f"{what} takes a tuple: {what}=({names!r:.80},)")
        for target in self.targets.values():
            check_timedelta(target, "a wait target")
        if self.ui not in ("on", "read-only", "off"):
            raise ConfigurationError(f"ui is on, read-only or off, not {self.ui!r}")
        if any(target <= timedelta(0) for target in self.targets.values()):
            raise ConfigurationError("a wait target must be above zero")
        if self.trace_url and not _TRACE_URL.fullmatch(self.trace_url):
            raise ConfigurationError(
                f"trace_url: {self.trace_url!r:.80} is no address like https://traces.example/{{trace_id}}"
            )
        for origin in self.frame_ancestors:
            if not _ORIGIN.fullmatch(origin):
                raise ConfigurationError(f"frame_ancestors: {origin!r} is no origin like https://host")
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
