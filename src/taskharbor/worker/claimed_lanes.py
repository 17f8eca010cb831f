"""Which lanes to claim: a worker with a GPU leaves jobs that any worker can run to the others, for a moment.

A job of the lane `any` wakes all idle workers at once. If one with a GPU claimed it, the next gpu job would
wait behind it while a worker without a GPU is idle. So such a worker claims its own lanes first, and `any`
only after a short wait, in which the others claim what they can. Once a claim of `any` finds a job, the
others are busy: the worker claims all lanes until it finds nothing in `any`.

    own lanes ──nothing, or a wake-up──► wait ──► all lanes ──found something in any──► all lanes …
        ▲                                                 └──found nothing there──┐
        └─────────────────────────────────────────────────────────────────────────┘
"""

from __future__ import annotations

from collections.abc import Sequence

from taskharbor.model.job import JobRecord

HOLD_BACK_SECONDS = 0.25
"""The head start of other idle workers for a job of `any`; twice that while wake-ups keep coming."""

ANY = "any"
COMMON_LANES = (ANY, "cpu")


def holds_back(lanes: tuple[str, ...]) -> bool:
    """True if `any` is last, after a lane other than cpu. A worker that names `any` first wants it first."""
    return lanes[-1] == ANY and any(lane not in COMMON_LANES for lane in lanes)


class ClaimedLanes:
    """Which lanes a worker that holds back claims now. Callers pass the time in."""

    def __init__(self, lanes: tuple[str, ...]) -> None:
        self._all = lanes
        self._own = lanes[:-1]
        self._is_helping = False
        self._is_seeing_off = False
        self._began: float | None = None
        self.asks_all_at: float | None = None
        """When to claim all lanes, if that is planned."""

    def now(self, now: float) -> tuple[str, ...]:
        is_due = self.asks_all_at is not None and self.asks_all_at <= now + 1e-6
        return self._all if self._is_helping or is_due else self._own

    def woken(self, now: float) -> None:
        """A wake-up came: others go first. Wake-ups without end do not delay this worker for ever."""
        if not self._is_helping:
            self._is_seeing_off = False
            if self._began is None or now - self._began > 4 * HOLD_BACK_SECONDS:  # it had no slot since then
                self._began = now
            self.asks_all_at = min(now + HOLD_BACK_SECONDS, self._began + 2 * HOLD_BACK_SECONDS)

    def polled(self, now: float) -> None:
        """No wake-up for a while: no other worker has claimed what is there."""
        if self.asks_all_at is None:
            self.asks_all_at = now

    def answered(self, lanes: tuple[str, ...], jobs: Sequence[JobRecord], limit: int, now: float) -> bool:
        """A claim for these lanes found these jobs. Whether to claim once more, at once.

        A store may park a claim that found nothing until there is a job (drivers/redis/parked_claim.py): that
        must not be a claim for all lanes.
        """
        if lanes == self._own:
            if len(jobs) < limit and self.asks_all_at is None and not self._is_seeing_off:
                self._began, self.asks_all_at = now, now + HOLD_BACK_SECONDS
            self._is_seeing_off = False
            return False
        self._is_helping = any(job.requires == ANY for job in jobs)
        self._began = self.asks_all_at = None
        self._is_seeing_off = not jobs
        return self._is_seeing_off
