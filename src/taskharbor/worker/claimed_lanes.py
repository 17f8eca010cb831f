"""A worker with something rare leaves the jobs that anybody can do to anybody, for a moment.

A job of the lane `any` reaches all idle workers at once. If one with a GPU took it, the next gpu job would
wait behind it, while a worker without a GPU stands idle. So such a worker asks for its own lanes first, and
for `any` only after a short wait, in which the others take what they can. Once `any` brings something, the
others are busy: it goes on with it until it finds nothing there.

    own lanes ──nothing, or work was told──► wait ──► all lanes ──found something in any──► all lanes …
        ▲                                                 └──found nothing there──┐
        └─────────────────────────────────────────────────────────────────────────┘
"""

from __future__ import annotations

from collections.abc import Sequence

from taskharbor.model.job import JobRecord

HOLD_BACK_SECONDS = 0.25
"""How long idle workers without the rare thing have for a job of `any`; twice that while news comes."""

ANY = "any"
COMMON_LANES = (ANY, "cpu")


class ClaimedLanes:
    """Which lanes to ask for now. It knows the time only from its callers."""

    def __init__(self, lanes: tuple[str, ...]) -> None:
        self._all = lanes
        self._own = lanes[:-1] if _holds_back(lanes) else lanes
        self.holds_back = self._own != self._all
        self._is_helping = False
        self._is_seeing_off = False
        self._began: float | None = None
        self.asks_all_at: float | None = None
        """When to look at all lanes, if that is planned."""

    def now(self, now: float) -> tuple[str, ...]:
        is_due = self.asks_all_at is not None and self.asks_all_at <= now + 1e-6
        return self._all if self._is_helping or is_due else self._own

    def told_of_work(self, now: float) -> None:
        """There may be a job: others may have it first. News without end does not put that off for ever."""
        if self.holds_back and not self._is_helping:
            self._is_seeing_off = False
            if self._began is None or now - self._began > 4 * HOLD_BACK_SECONDS:  # it had no slot since then
                self._began = now
            self.asks_all_at = min(now + HOLD_BACK_SECONDS, self._began + 2 * HOLD_BACK_SECONDS)

    def polled(self, now: float) -> None:
        """Nothing was told for a while: whatever is there, nobody else took it."""
        if self.holds_back and self.asks_all_at is None:
            self.asks_all_at = now

    def answered(self, lanes: tuple[str, ...], jobs: Sequence[JobRecord], limit: int, now: float) -> bool:
        """A claim for these lanes brought these jobs. Whether to ask once more, at once.

        A store may park a claim that brought nothing until there is a job (drivers/redis/parked_claim.py):
        it must not be one for all lanes.
        """
        if not self.holds_back:
            return False
        if lanes == self._own:
            if len(jobs) < limit and self.asks_all_at is None and not self._is_seeing_off:
                self._began, self.asks_all_at = now, now + HOLD_BACK_SECONDS
            self._is_seeing_off = False
            return False
        self._is_helping = any(job.requires == ANY for job in jobs)
        self._began = self.asks_all_at = None
        self._is_seeing_off = not jobs
        return self._is_seeing_off

    def saw_all(self, lanes: tuple[str, ...]) -> bool:
        """Whether a claim for these lanes has seen everything that this worker could do."""
        return lanes == self._all


def _holds_back(lanes: tuple[str, ...]) -> bool:
    """Whoever names `any` last and something rare before it; who names it first wants it first."""
    return lanes[-1] == ANY and any(lane not in COMMON_LANES for lane in lanes)
