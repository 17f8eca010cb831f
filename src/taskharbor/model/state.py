"""The seven states of a job and the moves between them.

enqueue ──► scheduled ──due──► ready ──reserve──► running ──ack──► completed
              ▲                 ▲  ▲               │ │ │ │
              └──retry, later───┼──┼───────────────┘ │ │ └─fail──► failed
                                │  └─retry, reclaim──┘ └──cancel─► cancelled
enqueue of a running key ──► blocked ──the running one ends──► ready / scheduled
  a job after others, or parked, is blocked until those are over; a parent until its children are
                                             requeue: completed, failed, cancelled ──► ready
"""

from __future__ import annotations

from enum import StrEnum


class JobState(StrEnum):
    """The state of a job. A scheduled job that is due always reads `ready`."""

    SCHEDULED = "scheduled"
    READY = "ready"
    BLOCKED = "blocked"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        return self in TERMINAL

    @property
    def is_waiting(self) -> bool:
        """Waiting for its turn: neither running nor over. A blocked job waits for other jobs."""
        return self in WAITING


_S = JobState

WAITING = frozenset({_S.SCHEDULED, _S.READY, _S.BLOCKED})
TERMINAL = frozenset({_S.COMPLETED, _S.FAILED, _S.CANCELLED})

# A job may also stay where it is (an upsert, an extension, a cancel request): that is no move.
MOVES: dict[JobState, frozenset[JobState]] = {
    _S.SCHEDULED: frozenset({_S.READY, _S.RUNNING, _S.CANCELLED, _S.COMPLETED}),
    _S.READY: frozenset({_S.SCHEDULED, _S.RUNNING, _S.CANCELLED, _S.COMPLETED}),
    _S.BLOCKED: frozenset({_S.READY, _S.SCHEDULED, _S.CANCELLED}),
    _S.RUNNING: frozenset({_S.READY, _S.SCHEDULED, _S.COMPLETED, _S.FAILED, _S.CANCELLED}),
    _S.COMPLETED: frozenset({_S.READY, _S.SCHEDULED, _S.BLOCKED}),
    _S.FAILED: frozenset({_S.READY, _S.SCHEDULED, _S.BLOCKED}),
    _S.CANCELLED: frozenset({_S.READY, _S.SCHEDULED, _S.BLOCKED}),
}

# What only jobs with bonds or children do besides: they park, wait for their children, miss a deadline.
FAMILY_MOVES: dict[JobState, frozenset[JobState]] = {
    _S.SCHEDULED: frozenset({_S.BLOCKED, _S.FAILED}),
    _S.READY: frozenset({_S.BLOCKED, _S.FAILED}),
    _S.BLOCKED: frozenset({_S.COMPLETED, _S.FAILED}),
    _S.RUNNING: frozenset({_S.BLOCKED}),
}


def is_legal(before: JobState, after: JobState, *, in_family: bool = False) -> bool:
    """Whether a job may go from one state to the other in a single step.

    Waiting → completed is the win of a speculative copy whose original was reclaimed meanwhile.
    """
    return (
        before is after
        or after in MOVES[before]
        or (in_family and after in FAMILY_MOVES.get(before, frozenset()))
    )
