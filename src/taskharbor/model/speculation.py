"""When a run counts as a straggler, and who gets a head start for its copy.

The rule of a type is in the headers of its jobs. A copy's record lists the workers that may not run it
(`Avoid`), and every store checks that inside its claim.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from taskharbor.errors import ConfigurationError, InvalidArgument
from taskharbor.model.checks import check_span, check_worker_id
from taskharbor.model.duration import check_timedelta
from taskharbor.model.job import NO_TIME, Avoid, JobRecord
from taskharbor.model.presence import WorkerInfo, takes
from taskharbor.model.state import JobState

SPECULATE_HEADER = "taskharbor-speculate"
LONGEST_HEAD_START = timedelta(seconds=5)
_MOST_NAMED = 1000
_MOST_HELD_BACK = 100  # the slowest; beyond that the record of a copy would only grow
_PART_OF_THRESHOLD = 0.25


class Speculate(msgspec.Struct, frozen=True, kw_only=True):
    """Start a second run of a straggler: after `after`, and `factor` times the usual duration."""

    after: timedelta
    factor: float = 3.0

    def __post_init__(self) -> None:
        check_timedelta(self.after, "after")
        if self.after <= timedelta(0) or self.factor < 1:
            raise ConfigurationError("speculate needs after > 0 and factor ≥ 1")

    def threshold(self, usual: timedelta | None) -> timedelta:
        """How long a run may take before it is a straggler; `usual` is None for a type never seen."""
        return self.after if usual is None else max(self.after, self.factor * usual)


class HeadStart(msgspec.Struct, frozen=True, kw_only=True):
    """For `span` a copy is not for the `slower` workers; afterwards they may have it too."""

    slower: tuple[str, ...]
    span: timedelta


def header_of(rule: Speculate) -> str:
    """The rule as a header's text."""
    return f"{rule.after.total_seconds()!r};{rule.factor!r}"


def rule_of(headers: dict[str, str]) -> Speculate | None:
    """The rule that a job carries; a text that is not ours counts as none."""
    text = headers.get(SPECULATE_HEADER)
    if text is None:
        return None
    after, _, factor = text.partition(";")
    try:
        return Speculate(after=timedelta(seconds=float(after)), factor=float(factor))
    except (ValueError, OverflowError):
        return None


# ------------------------------------------------------------------ who may have a copy


def head_start(job: JobRecord, ranking: Sequence[WorkerInfo], threshold: timedelta) -> HeadStart | None:
    """Who of the ranked workers, fastest first, waits for the others; None where it makes no difference.

    Only workers that would claim such a job count, and nothing speaks against one without a sample. The
    span is a part of what the run has already cost, so that a copy never waits long for a better place.
    """
    able = [
        info.report.worker_id
        for info in ranking
        if info.latency is not None
        and takes(info.report, queue=job.queue, lane=job.requires, type_name=job.type)
    ]
    half = (len(able) + 1) // 2
    faster, slower = able[:half], [name for name in able[half:] if name != job.worker_id]
    if not slower or not any(name != job.worker_id for name in faster):
        return None
    span = min(_PART_OF_THRESHOLD * threshold, LONGEST_HEAD_START)
    return HeadStart(slower=tuple(slower[-_MOST_HELD_BACK:]), span=span)


def check_head_start(start: HeadStart) -> None:
    check_span(start.span, "span")
    if len(start.slower) > _MOST_NAMED:
        raise InvalidArgument(f"a head start over {len(start.slower)} workers; at most {_MOST_NAMED}")
    for name in start.slower:
        check_worker_id(name)


def avoided(worker_id: str | None, start: HeadStart | None, now: datetime) -> Avoid:
    """Which workers may not run a copy of the job that this worker runs."""
    never = worker_id or ""
    if start is None or not start.slower or start.span == NO_TIME:
        return Avoid(never)
    return Avoid(never, now + start.span, start.slower)


def may_take(copy: JobRecord, original: JobRecord | None, worker_id: str, now: datetime) -> bool:
    """Whether this worker may have a waiting copy: beside its running original only, and not there."""
    if original is None or original.state is not JobState.RUNNING or original.worker_id == worker_id:
        return False
    avoid = copy.avoid
    if avoid is None:
        return True
    is_held_back = avoid.until is not None and now < avoid.until and worker_id in avoid.others
    return avoid.worker != worker_id and not is_held_back
