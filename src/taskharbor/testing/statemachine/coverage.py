"""What a run must meet, and how often it did: a generator with a blind spot proves nothing."""

from __future__ import annotations

from collections import Counter

from taskharbor.errors import (
    DuplicateJob,
    InvalidLeaseDuration,
    JobNotFound,
    JobNotInflight,
    LeaseExpired,
    LeaseMismatch,
    NotAllowedInState,
    RateLimited,
)
from taskharbor.model.state import MOVES, JobState

ERRORS = (
    RateLimited,
    DuplicateJob,
    NotAllowedInState,
    JobNotInflight,
    LeaseMismatch,
    LeaseExpired,
    InvalidLeaseDuration,
    JobNotFound,
)
# A copy outlives its original's lease only when that one is reclaimed, and then it is ready, not scheduled.
UNREACHABLE = {(JobState.SCHEDULED, JobState.COMPLETED)}
EDGES = {(before, after) for before, afters in MOVES.items() for after in afters} - UNREACHABLE


RULES: list[str] = []  # the names of all rules, filled where they are written


class Coverage:
    """How often a run met what it must meet."""

    def __init__(self) -> None:
        self.steps = 0
        self.rules: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.edges: Counter[tuple[JobState, JobState]] = Counter()

    def blind_spots(self, least: int) -> list[str]:
        """Everything that was met fewer than `least` times."""
        met = {f"rule {name}": self.rules[name] for name in RULES}
        met |= {f"error {error.__name__}": self.errors[error.__name__] for error in ERRORS}
        met |= {f"edge {before} → {after}": self.edges[before, after] for before, after in sorted(EDGES)}
        return [f"{what}: {count}" for what, count in met.items() if count < least]
