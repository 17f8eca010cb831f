"""Findings of the checker, shared by its passes: violations, and the leases that the first pass built."""

from __future__ import annotations

from dataclasses import dataclass, field

from taskharbor.testing.history.events import HistoryEvent
from taskharbor.testing.history.verdict import Terms, Violation


@dataclass(slots=True)
class Interval:
    """One lease from its grant to its end, half open: [start, end)."""

    grant: HistoryEvent
    start: int
    end: int  # of what is certain: a lease that may have ended earlier counts only up to there
    until: int  # when it would run out, after the last accepted extension
    how: str = "open"  # open, expired, or the settlement that ended it

    @property
    def key(self) -> tuple[str, str] | None:
        facts = self.grant.facts
        return (facts.queue, facts.key) if facts is not None and facts.key else None


@dataclass(slots=True)
class Findings:
    """The findings so far."""

    terms: Terms
    violations: list[Violation] = field(default_factory=list)
    intervals: list[Interval] = field(default_factory=list)
    duplicates: dict[str, list[str]] = field(default_factory=dict)
    jobs: int = 0
    runs: int = 0
    has_deletes: bool = False
    parents: set[str] = field(default_factory=set)
    """Jobs that were given children: what these do may end them, or open them again."""
    requeues: int = 0
    cancels: int = 0

    def blame(self, promise: str, message: str, job: str = "", *events: HistoryEvent) -> None:
        if len(self.violations) < self.terms.most_violations:
            self.violations.append(Violation(promise=promise, message=message, job=job, events=events))
