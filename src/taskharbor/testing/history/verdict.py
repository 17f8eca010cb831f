"""What the checker says: which promise was broken, by which job, and the events that show it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from taskharbor.testing.history.events import HistoryEvent

PROMISES = {
    "I1": "no acknowledged job is lost",
    "I1b": "no job comes from nowhere or with other bytes",
    "I2": "no two leases of a job overlap on the deciding clock",
    "I2b": "at its end instant a lease is over, and not one microsecond before",
    "I3": "only the newest token of an unexpired lease writes, and fences rise",
    "I3n": "a refused call changes nothing",
    "I4": "starts, attempts and stalls are exact",
    "I5": "executions are bounded by max_attempts and max_stalls",
    "I6": "at most one lease per key",
    "I6b": "a blocked job goes on exactly when its key is free, once",
    "I7": "no more unexpired leases than max_running",
    "I8": "no window sees more than its rate",
    "I9": "jobs are handed out in order",
    "I10": "a cancel is final",
    "I11": "every failed job is in the dead letters, once, whole",
    "I12": "an enqueue that is repeated makes one job",
    "I13": "what comes out equals what went in",
    "I14": "no job starts before its time",
    "I15": "an extension counts from the moment it was stored, and changes nothing else",
    "I17": "a batch is stored whole or not at all",
    "I18": "a tick of a schedule makes one job",
    "I19": "a claim brings only what it asked for",
    "I20": "a job moves along the edges of the state graph only",
    "L1": "every job ends once the faults are over",
    "L3": "every expired lease is reclaimed",
    "L7": "no claim goes empty while a job could run",
    "L8": "no hot loop: waits between two tries are kept, idle workers poll slowly",
    "L9": "no call fails while nothing is wrong with the store",
    "Z6": "a job runs again only after a retry or a lease that expired for a reason",
}
"""The names of the promises; docs/operations/guarantees.md says them at length."""

BY_THE_CLOCK = frozenset({"I2", "I2b", "I4", "I6", "I7", "I8", "I9", "I14", "L7", "Z6"})
"""Judged by comparing instants, or by which leases must have run out: only on a clock that goes forward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One broken promise."""

    promise: str
    message: str
    job: str = ""
    events: tuple[HistoryEvent, ...] = ()

    def __str__(self) -> str:
        where = f" (job {self.job})" if self.job else ""
        return f"{self.promise} {PROMISES[self.promise]}: {self.message}{where}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The outcome of a check: sound when there are no violations."""

    violations: list[Violation] = field(default_factory=list)
    events: int = 0
    jobs: int = 0
    runs: int = 0
    duplicates: dict[str, list[str]] = field(default_factory=dict)
    """Jobs that ran again for no other reason than an expired lease → who let it expire, and when."""

    @property
    def is_sound(self) -> bool:
        return not self.violations

    @property
    def broken(self) -> set[str]:
        """The names of the broken promises."""
        return {violation.promise for violation in self.violations}

    def __str__(self) -> str:
        size = f"{self.events} events, {self.jobs} jobs, {self.runs} runs, {len(self.duplicates)} duplicates"
        if self.is_sound:
            return f"sound: {size}"
        shown = [str(violation) for violation in self.violations[:20]]
        return "\n".join([f"{len(self.violations)} violations in {size}", *shown])


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What the checker may take for granted about a history.

    `is_exact`: the events are in the order in which the store carried them out, nothing is unknown,
    and every change of the store is in it, as a simulation writes it. Without it, only what holds in
    any order is checked, and what is unknown may have happened or not.
    `is_drained`: the last looks were taken when nothing was left to do.
    """

    is_exact: bool = False
    is_drained: bool = False
    completed_kept: timedelta | None = None
    """How long finished jobs are kept at least; None: nothing is ever pruned in this history."""
    faults_are_marked: bool = False
    """Whatever was done to a process or to the store is in the history as a `fault` mark."""
    longer_leases: float = 0.0
    """By how much of what was asked for a lease may last longer: a store that takes claims ahead of time adds
    the time for which they may have waited. Never shorter."""
    clock_goes_back: bool = False
    """The deciding clock may step back: an order in time proves nothing, and `BY_THE_CLOCK` is not judged."""
    most_violations: int = 100


NO_TERMS = Terms()
