"""WorkerOptions: what can be set on a worker. The one list.

`Worker(...)` and `harbor.worker(...)` take its fields as keywords; the flags of `taskharbor worker`, the keys
of `[worker]` in the settings file and the variables TASKHARBOR_WORKER_… are made from those with a help text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from functools import cache
from typing import Any, Literal, TypedDict

from taskharbor.errors import ConfigurationError, InvalidArgument
from taskharbor.model.checks import check_kinds, check_labels, check_name, check_text, check_ttl
from taskharbor.model.duration import Duration, check_timedelta, duration
from taskharbor.model.job import DEFAULT_QUEUE, NO_TIME
from taskharbor.model.limits import RateLimit, check_rate
from taskharbor.model.retry import RetryPolicy

UnknownTypes = Literal["skip", "fail"]
_SHORT = ("queues", "concurrency", "kind")  # None: not given
_OPTIONAL_DURATIONS = ("heartbeat", "poll", "max_poll")
STORE_WAIT = timedelta(seconds=30)
MAX_HELD = 10_000  # one claim can carry no more
LANES_WITHOUT_GPU = ("any", "cpu")
"""Lanes whose jobs get no device, even where there are some."""


def _option(default: Any, meaning: str, *, short: str = "", least: int | None = None, unit: str = "") -> Any:
    """A field that is also a flag: `unit` names the format of its text, if the type does not show it."""
    return field(default=default, metadata={"help": meaning, "short": short, "least": least, "unit": unit})


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """All options of a worker.

    `queues`: the default queue, or for a worker of a harbor those of its tasks. They take turns unless
    `strict`. `kind` picks the lanes: `cpu` claims cpu, then any; `gpu` claims gpu, then any; `any` only any;
    `lanes` replaces that. `heartbeat` is how often leases are extended: a third of the lease by default, and
    at most half of it. `gpus` (`"all"`, `"0,1"`) reserves a device for each job of the gpu lane, and limits
    the slots to the devices. `unknown_types="skip"` claims only jobs that have a handler here, as a rolling
    deployment needs; `"fail"` sends the others to the dead letters. `prefetch` jobs may wait in this process,
    leased, beyond those that run. By default there are none, but while jobs are short as many as start within
    moments. `grace` is how long running jobs may continue after a stop, `patience` how long a handler that
    was asked to stop may take. `max_jobs` and `max_memory` (bytes) end the worker, after its running jobs, so
    that a supervisor starts a new one; 0 is no limit.

    Raises:
        ConfigurationError: options that cannot work.
    """

    queues: tuple[str, ...] | None = _option(
        None, "Queues to serve, comma-separated. Default: those of the app's tasks.", short="-q"
    )
    concurrency: int = _option(10, "Jobs to run at the same time, per process.", short="-c", least=1)
    kind: str = _option("any", "Lane to prefer: cpu, gpu, any or a name of yours.")
    lanes: tuple[str, ...] | None = _option(
        None, "Lanes to claim from, best first, comma-separated. Overrides --kind."
    )
    strict: bool = _option(False, "Empty the first queue before the next, instead of taking turns.")
    unknown_types: UnknownTypes = _option(  # noqa: RUF009 - a field()
        "skip", "Jobs of unknown tasks: skip leaves them to other workers, fail fails them."
    )
    gpus: str | tuple[str | int, ...] | None = _option(
        None,
        "With --kind gpu: all, or device numbers, comma-separated; each job gets its own device.",
        unit="text",
    )
    lease: timedelta = _option(
        timedelta(seconds=30), "How long a claimed job stays ours without a heartbeat."
    )
    heartbeat: timedelta | None = _option(None, "How often leases are extended. Default: a third of --lease.")
    grace: timedelta = _option(
        timedelta(seconds=30), "How long running jobs may take to finish after a stop."
    )
    store_wait: timedelta = _option(
        STORE_WAIT, "How long to wait at the start for a store that does not answer."
    )
    poll: timedelta | None = _option(None, "How often an idle worker polls, in addition to wake-ups.")
    max_poll: timedelta | None = _option(None, "While idle, poll less and less often, up to this interval.")
    prefetch: int | None = _option(
        None,
        "Jobs to claim ahead of those that are running. Default: while jobs are short, what ends in 20 ms.",
        least=0,
    )
    rate: RateLimit | None = _option(  # noqa: RUF009 - a field()
        None, "How many jobs this worker may start, e.g. 10/s.", unit="rate"
    )
    name: str | None = _option(None, "Name in logs and in `workers list`. Default: host and pid.")
    max_jobs: int = _option(
        0, "Stop after this many jobs; with --processes a new process takes over.", least=0
    )
    max_memory: int = _option(0, "Restart after using this much memory, e.g. 2GiB.", least=0, unit="size")
    logbook: bool = _option(True, "Write numbers and failure causes to the store's logbook, for charts.")
    process_memory: int = 0
    patience: timedelta = timedelta(seconds=1)
    report_every: timedelta = timedelta(seconds=5)
    retry: RetryPolicy | None = None
    labels: dict[str, str] | None = None

    def __post_init__(self) -> None:
        for name in sorted(_durations()):
            if (value := getattr(self, name)) is not None or name not in _OPTIONAL_DURATIONS:
                check_timedelta(value, name)
        self._check_kinds()
        self._check_names()
        self._check_times()
        if self.concurrency < 1 or self.concurrency + (self.prefetch or 0) > MAX_HELD:
            raise ConfigurationError(
                f"concurrency={self.concurrency} must be at least 1, and with prefetch at most {MAX_HELD}"
            )
        if self.unknown_types not in ("fail", "skip"):
            raise ConfigurationError(f"unknown_types={self.unknown_types!r} must be 'fail' or 'skip'")
        if self.gpus is not None:
            self._check_gpus()

    def _check_kinds(self) -> None:
        check_kinds(self, {one.name: one.type for one in fields(self)})
        for what in ("prefetch", "max_jobs", "max_memory", "process_memory"):
            if (getattr(self, what) or 0) < 0:
                raise ConfigurationError(f"{what}={getattr(self, what)} must not be negative")
        for what in ("queues", "lanes"):
            _check_list(what, getattr(self, what))
        if not isinstance(self.retry, RetryPolicy | None):
            raise ConfigurationError(
                f"retry={self.retry!r:.80} must be a RetryPolicy, e.g. RetryPolicy(max_attempts=3)"
            )
        if not isinstance(self.gpus, str | Sequence | None):
            raise ConfigurationError(f"gpus={self.gpus!r:.80} must be 'all', or a list of devices")

    def _check_gpus(self) -> None:
        if not set(self.claimed_lanes) - set(LANES_WITHOUT_GPU):
            raise ConfigurationError("gpus are for jobs that require them: add kind='gpu' (--kind gpu)")
        if self.prefetch:
            raise ConfigurationError("a job needs a device to start: with gpus there is no prefetch")

    def _check_names(self) -> None:
        queues = self.claimed_queues
        if not queues or len(set(queues)) != len(queues):
            raise ConfigurationError(f"queues={queues} must name at least one queue, none of them twice")
        try:
            for queue in queues:
                check_name(queue, "queue")
            check_name(self.kind, "kind")
            for lane in self.lanes or ():
                check_name(lane, "lane")
            check_text(self.name or "", "name", most=200)  # the id of each start adds to it
            check_labels(self.labels or {})
            check_ttl(self.report_every * 4)
            if self.rate is not None:
                check_rate(self.rate, "rate")
        except InvalidArgument as error:
            raise ConfigurationError(str(error)) from None

    def _check_times(self) -> None:
        for what in ("lease", "grace", "store_wait", "patience", "report_every"):
            least = NO_TIME if what in ("grace", "store_wait") else timedelta(microseconds=1)
            if getattr(self, what) < least:
                raise ConfigurationError(f"{what}={getattr(self, what)} is too short")
        if self.poll is not None and self.poll <= NO_TIME:
            raise ConfigurationError(f"poll={self.poll} must be above zero")
        if self.max_poll is not None and self.max_poll <= (self.poll or NO_TIME):
            raise ConfigurationError(f"max_poll={self.max_poll} must be above poll, and above zero")
        if self.heartbeat is not None and not NO_TIME < self.heartbeat <= self.lease / 2:
            raise ConfigurationError(
                f"heartbeat={self.heartbeat} leaves no second chance within lease={self.lease}; "
                "keep it above zero and at most half of the lease"
            )

    def with_keywords(self, keywords: Mapping[str, Any]) -> WorkerOptions:
        """These options with the given ones in their place; durations may be `"30s"` or seconds.

        Raises:
            TypeError: no such option.
            InvalidArgument, ConfigurationError: options that cannot work.
        """
        given = {key: value for key, value in keywords.items() if value is not None or key not in _SHORT}
        return replace(self, **{key: _converted(key, value) for key, value in given.items()})

    # ------------------------------------------------------------------ what follows from them

    @property
    def claimed_queues(self) -> tuple[str, ...]:
        """The queues to claim from."""
        return (DEFAULT_QUEUE,) if self.queues is None else self.queues

    @property
    def claimed_lanes(self) -> tuple[str, ...]:
        """The lanes to claim, best first: the worker's own kind before `any`."""
        if self.lanes is not None:
            return self.lanes
        return ("any",) if self.kind == "any" else (self.kind, "any")

    @property
    def retry_policy(self) -> RetryPolicy:
        """For tasks without a policy of their own."""
        return self.retry or RetryPolicy()

    @property
    def renew_every(self) -> timedelta:
        """How often leases are extended."""
        # A third, not a half: one renewal may get lost and the next may be slow before the job is lost.
        return self.heartbeat or self.lease / 3

    @property
    def answer_seconds(self) -> float:
        """How long to wait for the store to answer a claim or a settlement.

        Only a connection that died silently takes so long. A store that is merely slow answers late, and what
        comes too late for its lease is refused or released as always.
        """
        return min(max(self.trust_seconds * 3, 6.0), 12.0)

    @property
    def trust_seconds(self) -> float:
        """How long a lease is trusted after the call that gave it was sent: early, never late."""
        lease = self.lease.total_seconds()
        return lease - min(max(lease * 0.1, 0.25), lease / 2)


class WorkerKeywords(TypedDict, total=False):
    """The other fields of WorkerOptions as keywords, for type checkers; a test keeps both alike.

    `queues`, `concurrency` and `kind` come before them: these may be given by position.
    """

    lanes: Sequence[str] | None
    strict: bool
    unknown_types: UnknownTypes
    gpus: str | Sequence[str | int] | None
    lease: Duration
    heartbeat: Duration | None
    grace: Duration
    store_wait: Duration
    poll: Duration | None
    max_poll: Duration | None
    prefetch: int | None
    rate: RateLimit | None
    name: str | None
    max_jobs: int
    max_memory: int
    logbook: bool
    process_memory: int
    patience: Duration
    report_every: Duration
    retry: RetryPolicy | None
    labels: dict[str, str] | None


@cache
def _durations() -> frozenset[str]:
    return frozenset(one.name for one in fields(WorkerOptions) if "timedelta" in str(one.type))


def _check_list(key: str, value: object) -> None:
    """A text is none: its letters would be taken for names."""
    if isinstance(value, str):
        raise ConfigurationError(f"{key} takes a list: {key}=[{value!r}]")
    if not isinstance(value, Sequence | None):
        raise ConfigurationError(f"{key}={value!r:.80} must be a list of names")


def _converted(key: str, value: Any) -> Any:
    if key in ("queues", "lanes"):
        _check_list(key, value)
    if key in _durations() and value is not None:
        return duration(value, key)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(value)
    return value
