"""QueueRates: how fast queues move, from one look to the next.

`done` and `failed` come from the logbook where there is one: counts of ended jobs shrink when old ones are
pruned, so differences of them fall short. `arrived` is the change of waiting and running jobs, plus those
that ended. What is not known is None, never 0.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import pairwise

import msgspec

from taskharbor.client.needs import Rates
from taskharbor.drivers.messages import Counts, QueueInfo
from taskharbor.model.log_cells import Numbers
from taskharbor.model.log_series import MINUTE, floor, percentile

WINDOW_SECONDS = 60.0
_WRITTEN_EVERY = 5.0
"""Seconds from one write of a worker's cell to the next."""
WAITS_FOR = 5 * MINUTE
"""Waits are looked at over so long: there may be few in a minute."""
_LEAST_SECONDS = 5.0
"""Two looks must be at least so far apart to say something about the time between them."""


class EndedRates(msgspec.Struct, frozen=True, kw_only=True):
    """What the logbook says about a queue: jobs that ended, per second."""

    done_per_s: float
    failed_per_s: float
    cancelled_per_s: float = 0.0
    wait_p95_s: float | None = None


class _Sample(msgspec.Struct, frozen=True):
    taken: float
    counts: Mapping[str, Counts]


class QueueRates:
    """The looks of the last minute."""

    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque()
        self.ended: Mapping[str, EndedRates] | None = None
        """By queue, from the logbook; None without one. A queue that is not in it ended nothing."""

    def note(self, taken: float, queues: Mapping[str, QueueInfo]) -> None:
        """Add a look."""
        self._samples.append(_Sample(taken, {name: info.counts for name, info in queues.items()}))
        while self._samples[0].taken < taken - WINDOW_SECONDS:
            self._samples.popleft()

    def of(self, queue: str) -> Rates:
        first, last = self._samples[0], self._samples[-1]
        seconds = last.taken - first.taken
        ended = self._ended(queue, seconds)
        if ended is None:
            return Rates()
        arrived = None
        if seconds >= _LEAST_SECONDS:
            grown = _held(last.counts.get(queue)) - _held(first.counts.get(queue))
            total = ended.done_per_s + ended.failed_per_s + ended.cancelled_per_s
            arrived = _rounded(max(grown / seconds + total, 0.0))
        return Rates(
            arrived_per_s=arrived,
            done_per_s=_rounded(ended.done_per_s),
            failed_per_s=_rounded(ended.failed_per_s),
            wait_p95_s=ended.wait_p95_s,
        )

    def _ended(self, queue: str, seconds: float) -> EndedRates | None:
        if self.ended is not None:
            return self.ended.get(queue, _NOTHING)
        if seconds < _LEAST_SECONDS:
            return None
        return EndedRates(
            done_per_s=self._risen(queue, "completed") / seconds,
            failed_per_s=self._risen(queue, "failed") / seconds,
            cancelled_per_s=self._risen(queue, "cancelled") / seconds,
        )

    def _risen(self, queue: str, state: str) -> int:
        """The sum of all rises of a count; when jobs are pruned it falls."""
        counts = [getattr(sample.counts.get(queue, _NONE), state) for sample in self._samples]
        return sum(max(after - before, 0) for before, after in pairwise(counts))


def ended_rates(
    cells: Iterable[tuple[datetime, Sequence[Numbers]]], now: datetime
) -> dict[str, EndedRates] | None:
    """By queue, from the cells of the last minutes; None if there are none: perhaps nobody writes them.

    Rates are of this minute and the one before it, if anything was at work before. What happened in the last
    seconds is not written yet.
    """
    minute = floor(now, MINUTE)
    lately: dict[str, Numbers] = {}
    waits: dict[str, Numbers] = {}
    since = minute
    for at, rows in cells:
        if rows and at < minute:
            since = minute - MINUTE
        for row in rows:
            waits.setdefault(row.queue, Numbers(row.queue, "")).add(row)
            if at >= minute - MINUTE:
                lately.setdefault(row.queue, Numbers(row.queue, "")).add(row)
    if not waits:
        return None
    seconds = max((now - since).total_seconds() - _WRITTEN_EVERY / 2, _LEAST_SECONDS)
    found = {}
    for queue, long in waits.items():
        row = lately.get(queue, Numbers(queue, ""))
        found[queue] = EndedRates(
            done_per_s=row.completed / seconds,
            failed_per_s=row.failed / seconds,
            cancelled_per_s=row.cancelled / seconds,
            wait_p95_s=_rounded_or_none(percentile(long.wait, 0.95)),
        )
    return found


_NOTHING = EndedRates(done_per_s=0.0, failed_per_s=0.0)
_NONE = Counts()


def _held(counts: Counts | None) -> int:
    return 0 if counts is None else counts.waiting + counts.running


def _rounded_or_none(value: float | None) -> float | None:
    return None if value is None else _rounded(value)


def _rounded(rate: float) -> float:
    """To three digits: nobody reads more, and a row that did not change is not sent again."""
    return float(f"{rate:.3g}")
