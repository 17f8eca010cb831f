"""One job of a family in a simulated world, as the answers of the store show it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from taskharbor.drivers.messages import Resolution
from taskharbor.model.bonds import Bonds
from taskharbor.model.job import JobRecord, Lease
from taskharbor.model.settlement import Ack, Cancelled, Fail, Settlement
from taskharbor.model.state import TERMINAL, JobState


@dataclass
class Relative:
    """What is known of one job. `calls` are numbered in the order in which the store carried them out."""

    id: str
    parent: str | None
    root: str
    bonds: Bonds
    opened: int
    """The call that stored it, or let it run again."""
    openings: int = 1
    reported: int = 0
    """How many answers named its end."""
    may_start: bool = True
    lease: Lease | None = None
    until: datetime | None = None
    own: set[str] = field(default_factory=set)
    """How its own work may have ended: completed, failed or cancelled."""
    is_cancelled: bool = False
    """A person cancelled it, and nothing has opened it since."""
    stopping_at: int = 0
    """The last call after which its children were being stopped."""
    notes: dict[str, bytes] = field(default_factory=dict)
    notes_of_run: dict[int, frozenset[str]] = field(default_factory=dict)
    """By fence: the notes that were there when the run began."""
    event: Resolution | None = None
    """The first one that was accepted."""
    ends: list[tuple[int, JobState | None]] = field(default_factory=list)
    """Each state that it was over in, and when it was opened again (None)."""
    end: tuple[datetime | None, JobState] | None = None
    is_gone: bool = False
    """Deleted or pruned."""
    seen: JobRecord | None = None

    @property
    def is_over(self) -> bool:
        return bool(self.ends) and self.ends[-1][1] is not None

    def holds(self, lease: Lease, at: datetime) -> bool:
        """Whether this lease is the newest, and not over."""
        newest = self.lease
        is_newest = newest is not None and newest.token == lease.token
        return is_newest and self.until is not None and at < self.until

    def keep(self, name: str, data: bytes) -> bytes:
        """What the store must keep under the name of a note: what came first."""
        return self.notes.setdefault(name, data)

    def open_again(self, call: int) -> None:
        """Its own work will be done again."""
        self.reopen(call)
        self.opened, self.may_start, self.lease, self.until = call, True, None, None
        self.own = {"completed"} if self.bonds.done_by == "children" else set()
        self.event = None

    def reopen(self, call: int) -> None:
        """It waits for a child again; how its own work ended stays."""
        family = None if self.seen is None else self.seen.family
        if self.is_cancelled or (family is not None and family.stopping is not None):
            self.own.add("cancelled")  # it may have been stopped before its work was done
        self.openings += 1
        self.ends.append((call, None))
        self.end, self.is_cancelled = None, False

    def settled(self, item: Settlement, state: JobState) -> None:
        """An accepted settlement: with it the run is over."""
        self.lease = self.until = None
        self.may_start = state not in TERMINAL and not isinstance(item, Ack | Fail | Cancelled)
        asked = {Ack: "completed", Cancelled: "cancelled"}.get(type(item), "failed")
        if state is JobState.CANCELLED:
            self.own = {"cancelled"}
        elif state in TERMINAL:
            self.own = {asked}
        elif not self.may_start:
            self.own = {asked, "cancelled"}  # it waits for its children; it may have been asked to stop

    def lease_is_over(self, at: datetime) -> None:
        """Nobody settled the run in time: it stalled, for the last time or not."""
        if self.until is not None and self.until <= at:
            self.may_start = True
            self.own |= {"failed", "cancelled"}

    def sees(self, record: JobRecord, call: int) -> None:
        """A look at it, behind the call of this number."""
        self.seen = record
        if record.family is not None and record.family.stopping is not None:
            self.stopping_at = call
        state = record.state if record.state in TERMINAL else None
        if (self.ends[-1][1] if self.ends else None) is not state:
            self.ends.append((call, state))

    def ended_since(self, call: int) -> set[JobState]:
        """The states that it was over in at this call or later."""
        before = [state for at, state in self.ends if at <= call]
        later = [state for at, state in self.ends if at > call]
        return {state for state in (*before[-1:], *later) if state is not None}
