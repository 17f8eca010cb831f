"""What ties jobs together: the bonds of a job, the counts of its family, and the verdict on it.

A job has a parent, and siblings that it comes after. It is over when its own work and all its children are
over. Pure: `drivers/families.py` applies these rules inside one step of a store.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Literal

import msgspec

from taskharbor.model.state import JobState

MAX_DEPTH = 16
MAX_AFTER = 1000
MAX_EDGES = 100_000
MAX_NOTES = 1000
MAX_NOTE_BYTES = 4 * 1024 * 1024
MAX_NAMED = 3
"""How many failed children the error of their parent names."""

When = Literal["success", "over", "failure"]
Stop = Literal["cancel", "stopped", "skipped", "deadline", "failed", "fail_fast"]
"""cancel: a person asked; stopped: with its parent; skipped: what it comes after ended otherwise; deadline:
it was late; failed: its own work; fail_fast: too many children."""


class Bonds(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a job belongs to others; None in place of it for a plain job.

    `when` says when a job with `after` may run. `success`: all of them completed. `over`: all are over.
    `failure`: all are over and one did not complete. Otherwise it is skipped. `done_by` says who does its own
    work: a `worker`, or a `call` of `resolve`. With `children` there is none: it is over with them.
    """

    parent: str | None = None
    after: tuple[str, ...] = ()
    when: Literal["success", "over", "failure"] = "success"
    done_by: Literal["worker", "call", "children"] = "worker"
    tolerate: int | None = 0
    """How many failed children do not fail it; None: any number."""
    fail_fast: bool = False
    """Stop the other children as soon as more than `tolerate` have failed."""
    optional: bool = False
    """Its failure is not counted by its parent, and as good as success for the jobs that come after it."""
    deadline: datetime | None = None
    """Not over by then: stopped, and failed with kind `timeout`."""
    within: timedelta | None = None
    """The deadline as a span from the enqueue; it is stored as `deadline`."""


class Family(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Of a job that waits for others, has children, or is named by jobs that come after it."""

    waits_for: int = 0
    """How many of the jobs that it comes after, or is parked for, are not over."""
    total: int = 0
    open: int = 0
    failed: int = 0
    excused: int = 0
    """Failed children that are optional."""
    cancelled: int = 0
    is_done: bool = False
    """Its own work is over; what is missing are its children."""
    own: Literal["", "completed", "failed", "cancelled"] = ""
    """How its own work ended."""
    stopping: Literal["cancel", "stopped", "skipped", "deadline", "failed", "fail_fast"] | None = None
    """Why its children are being stopped."""
    spares: bool = True
    """Whether that stop leaves children with `when` `over` or `failure` alone."""
    followers: int = 0
    """How many jobs were stored that come after it, or were parked for it."""
    failures: tuple[str, ...] = ()
    """The first failed children that count."""


class FamilyEnd(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An end that no attempt reports: of a job with children, of one that was skipped or missed its deadline.

    The answer of the call that brought it about has it, and no other answer.
    """

    id: str
    type: str
    queue: str
    state: JobState
    seconds: float
    """From its enqueue to its end."""
    counts: Family
    kind: str | None = None
    """Its `failure_kind`."""
    parent: str | None = None

    @property
    def is_skipped(self) -> bool:
        return self.counts.stopping == "skipped"

    @property
    def is_late(self) -> bool:
        """It was not over by its deadline."""
        return self.counts.stopping == "deadline"

    @property
    def is_workflow(self) -> bool:
        """It had children, or was a group without any."""
        return bool(self.counts.total) or not (self.is_skipped or self.is_late)


NO_BONDS = Bonds()
NO_FAMILY = Family()


def is_spared(bonds: Bonds | None) -> bool:
    """Whether a stop of the parent leaves this child alone, as `finally` is not skipped."""
    return bonds is not None and bonds.when != "success"


def fails_parent(bonds: Bonds, family: Family) -> bool:
    """Whether more children have failed than the parent tolerates."""
    return bonds.tolerate is not None and family.failed > bonds.tolerate


def children_failed(family: Family) -> str:
    """The error of a parent whose children failed it."""
    more = ", …" if family.failed > len(family.failures) else ""
    named = ", ".join(family.failures)
    return f"{family.failed} of {family.total} children failed: {named}{more}"
