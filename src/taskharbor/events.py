"""Events: small records of what happens, and the bus that delivers them.

Logs, metrics and traces are listeners. An event without listeners is never built: code on a hot path
checks `JobStarted in bus.heard` first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import msgspec

from taskharbor.model.bonds import Family
from taskharbor.model.job import JobRecord

_log = logging.getLogger("taskharbor.events")


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """The base of every event; listen to it to receive all of them."""


# ------------------------------------------------------------------ jobs


class JobEnqueued(Event, frozen=True, kw_only=True):
    """A client enqueued a job; `result` is created, updated, blocked or duplicate."""

    job_id: str
    type: str
    queue: str
    result: str


class JobStarted(Event, frozen=True, kw_only=True):
    """A handler is about to run. `waited_seconds` counts from when the job could have run."""

    job_id: str
    type: str
    queue: str
    worker_id: str
    kind: str
    attempt: int
    fence: int
    waited_seconds: float


class AttemptFinished(Event, frozen=True, kw_only=True):
    """An attempt ended and the store has accepted it.

    `outcome` is completed, retried, failed, cancelled, released, snoozed, parked or stalled: what the worker
    asked for. `state` is what the job is now: a cancel request turns every outcome into cancelled.
    """

    job_id: str
    type: str
    queue: str
    worker_id: str
    kind: str
    attempt: int
    fence: int
    outcome: str
    state: str
    seconds: float
    error: str | None = None
    failure_kind: str | None = None
    is_copy: bool = False
    trace: str | None = None
    """The traceback of what a handler raised, without the frames of the worker."""


class AttemptWentWrong(AttemptFinished, frozen=True, kw_only=True):
    """An attempt that did not succeed: retried, failed, stalled or cancelled; `error` says why.

    A listener for this event alone costs nothing for jobs that succeed.
    """


class JobParked(AttemptFinished, frozen=True, kw_only=True):
    """A handler waits for children, an event or a time, without a slot; it will run again from the top."""


class StepRan(Event, frozen=True, kw_only=True):
    """A handler reached a step; `remembered`: its result was stored before, its function is not called."""

    job_id: str
    type: str
    queue: str
    name: str
    remembered: bool


class WorkflowEnded(Event, frozen=True, kw_only=True):
    """A job with children is over, and all of them are: a workflow, a group, a handler that made jobs.

    `parent` is None for a whole workflow. Emitted once, in the process whose call to the store ended it:
    mostly the worker of its last job. `seconds` counts from its enqueue.
    """

    job_id: str
    type: str
    queue: str
    state: str
    counts: Family
    seconds: float
    failure_kind: str | None = None
    parent: str | None = None


class JobSkipped(Event, frozen=True, kw_only=True):
    """A job will not run, because of how the jobs ended that it comes after. Emitted as WorkflowEnded is."""

    job_id: str
    type: str
    queue: str
    parent: str | None = None


class DeadlineMissed(Event, frozen=True, kw_only=True):
    """A job, or a workflow, failed because it was not over in time. Emitted as WorkflowEnded is."""

    job_id: str
    type: str
    queue: str
    seconds: float
    parent: str | None = None


class EventSent(Event, frozen=True, kw_only=True):
    """This process sent an event to a job, and it was the first of this name."""

    job_id: str
    type: str
    queue: str
    name: str


class LeaseWasLost(Event, frozen=True, kw_only=True):
    """A worker lost the lease of a job it was running; what the handler did was discarded.

    `cause` is refused (by the store), deadline (no extension was answered in time) or settle
    (the result was refused).
    """

    job_id: str
    type: str
    queue: str
    worker_id: str
    fence: int
    cause: str
    error: str
    kind: str = ""


class JobGivenUp(Event, frozen=True, kw_only=True):
    """A job is a dead letter because its lease expired once more than allowed.

    Emitted once, by the one that found it: a worker during its claim, with its kind, or the leading
    scheduler, which has none.
    """

    job_id: str
    type: str
    queue: str
    stalls: int
    found_by: str
    kind: str = ""


class RanTwice(Event, frozen=True, kw_only=True):
    """A handler finished although its lease was lost: another run of the job counts.

    Not emitted for types that ask for second runs themselves.
    """

    job_id: str
    type: str
    queue: str
    worker_id: str
    fence: int


class HandlerAbandoned(Event, frozen=True, kw_only=True):
    """A handler did not stop when asked; it continues, and its slot was given to another job."""

    job_id: str
    type: str
    queue: str
    worker_id: str
    where: str  # loop or thread
    reason: str


class ChildDied(Event, frozen=True, kw_only=True):
    """A process that runs handlers, or a worker process, ended by itself."""

    worker_id: str
    pid: int
    cause: str
    job_id: str | None = None


# ------------------------------------------------------------------ workers and duties


class WorkerStarted(Event, frozen=True, kw_only=True):
    """A worker begins to claim jobs."""

    worker_id: str
    kind: str
    queues: tuple[str, ...]
    concurrency: int
    types: tuple[str, ...] = ()


class WorkerStopped(Event, frozen=True, kw_only=True):
    """A worker has ended. `why` is stop, idle, recycle or cancelled; `released` jobs went back unfinished."""

    worker_id: str
    kind: str
    why: str
    released: int


class LeasesExtended(Event, frozen=True, kw_only=True):
    """One heartbeat was answered."""

    worker_id: str
    count: int
    refused: int
    seconds: float


class DriverTrouble(Event, frozen=True, kw_only=True):
    """A call to the store failed; the caller waits and tries again."""

    worker_id: str
    verb: str
    error: str
    failures: int  # in a row


class LoopBlocked(Event, frozen=True, kw_only=True):
    """A handler blocks the event loop; other jobs of this process wait for it."""

    worker_id: str
    seconds: float
    where: str


class DutyRan(Event, frozen=True, kw_only=True):
    """One of the scheduler's duties ran once; `count` is how many jobs it touched."""

    duty: str
    count: int
    seconds: float
    error: str | None = None


class SpeculationStarted(Event, frozen=True, kw_only=True):
    """A slow run got a second run."""

    job_id: str
    copy_id: str
    type: str
    queue: str
    ran_seconds: float


class SpeculationWatched(Event, frozen=True, kw_only=True):
    """The leading scheduler saw a running job that may get a second run; emitted once per kind."""

    type: str
    queue: str


class ScheduleFired(Event, frozen=True, kw_only=True):
    """A tick of a schedule became a job."""

    schedule: str
    tick: datetime
    job_id: str


class ScheduleFailed(Event, frozen=True, kw_only=True):
    """A tick could not become a job; it is tried again."""

    schedule: str
    error: str


# ------------------------------------------------------------------ whole batches


class EventBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch for listeners that count every job and must cost next to nothing.

    It is no Event, so listening to everything does not include it: it holds the worker's own objects,
    payloads and tokens too. Read it during the call, and keep nothing of it.
    """

    worker_id: str
    kind: str


class JobsClaimed(EventBatch, frozen=True, kw_only=True):
    """A claim returned these jobs."""

    jobs: Sequence[JobRecord]


class AttemptsAnswered(EventBatch, frozen=True, kw_only=True):
    """The store has answered these settlements, one answer each: Settled, or the lease error.

    A job has its `record`. Its `attempt` has `started` (None if its handler never ran) and `ended`, by the
    monotonic clock. Its `end` has the `outcome` of the handler and the settlement, `value`.
    """

    jobs: Sequence[Any]
    answers: Sequence[Any]


# ------------------------------------------------------------------ the bus

Listener = Callable[[Any], None]
Kind = type[Event] | type[EventBatch]


class EventBus:
    """Delivers events to listeners, in the thread that emits them.

    A listener must be quick and thread-safe. One that raises is logged and does not affect the others.
    """

    def __init__(self) -> None:
        self._listeners: dict[Kind, tuple[Listener, ...]] = {}
        self.heard: frozenset[Kind] = frozenset()
        """The kinds of events that have listeners."""

    def listen(self, listener: Listener, *kinds: Kind) -> Callable[[], None]:
        """Call `listener` with events of these kinds, or with all; returns a function that removes it."""
        wanted = {kind for one in kinds or (Event,) for kind in (one, *_below(one))}
        for kind in wanted:
            self._listeners[kind] = (*self._listeners.get(kind, ()), listener)
        self._note()

        def stop() -> None:
            for kind in wanted:
                kept = tuple(one for one in self._listeners.get(kind, ()) if one is not listener)
                self._listeners[kind] = kept
            self._note()

        return stop

    def emit(self, event: Event | EventBatch) -> None:
        """Call every listener to this kind of event. One that raises is logged, and the others are called."""
        for listener in self._listeners.get(type(event), ()):
            try:
                listener(event)
            except Exception:  # noqa: BLE001 - a listener may raise anything
                _log.exception("a listener to %s failed; the event is lost to it", type(event).__name__)

    def _note(self) -> None:
        self.heard = frozenset(kind for kind, listeners in self._listeners.items() if listeners)


def _below(kind: Kind) -> list[Kind]:
    return [deeper for one in kind.__subclasses__() for deeper in (one, *_below(one))]
