"""Is there an order, call after call, in which the model gives the same answers and the same records?

That is all that callers at the same time are promised: in whatever order, everything looks as if each call
had been made alone. A call that was answered before another was sent comes before it.

Where a store may pass over a job that another call has locked this moment (claims, sweeps, prunes), an answer
without that job is right in any order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from taskharbor.drivers.messages import Claimed, Counts
from taskharbor.model.job import JobRecord
from taskharbor.testing.reference import ReferenceModel
from tests.contract.pairs.calls import Answer, at_of, copied, parts_of, plain, plain_record, play

_MICROSECOND = timedelta(microseconds=1)


class Ending:
    """What the store holds after the calls."""

    def __init__(
        self, records: Mapping[str, JobRecord | None], counts: Counts, queue: str, at: datetime
    ) -> None:
        self._records = {job_id: plain_record(job) for job_id, job in records.items()}
        self._counts = counts
        self._queue = queue
        self._at = at

    def fits(self, model: ReferenceModel) -> bool:
        counts = model.count(self._at).get(self._queue, Counts())
        return counts == self._counts and all(
            plain_record(model.get(job_id, self._at)) == record for job_id, record in self._records.items()
        )


class SerialOrder:
    """The search for an order."""

    def __init__(self, queue: str, ending: Ending, moment: datetime | None) -> None:
        self._queue = queue
        self._ending = ending
        self._moment = moment

    def exists(self, model: ReferenceModel, answers: Sequence[Answer], at: datetime) -> bool:
        return self._search(model, [list(parts_of(answer)) for answer in answers], at)

    def _search(self, model: ReferenceModel, lines: list[list[Answer]], at: datetime) -> bool:
        """`lines`: the calls that are left, per racer, in its order."""
        left = [number for number, line in enumerate(lines) if line]
        if not left:
            return self._ending.fits(model)
        first_answer = min(lines[number][0].got for number in left)
        for number in left:
            answer, *rest = lines[number]
            if answer.sent > first_answer:
                continue
            after = [rest if place == number else line for place, line in enumerate(lines)]
            for changed, now in self._outcomes(model, answer, at):
                if self._search(changed, after, now):
                    return True
        return self._after_a_sweep(model, lines, at)

    def _after_a_sweep(self, model: ReferenceModel, lines: list[list[Answer]], at: datetime) -> bool:
        """A claim sweeps its queue first, which may be a step of its own."""
        if not any(line and line[0].call.verb == "reserve" for line in lines):
            return False
        for now in self._instants(None, at):
            swept = copied(model)
            if swept._reclaim([self._queue], 100, now) and self._search(swept, lines, now):
                return True
        return False

    def _outcomes(
        self, model: ReferenceModel, answer: Answer, at: datetime
    ) -> Iterator[tuple[ReferenceModel, datetime]]:
        """The states in which this call may have left the store, if it is the next one."""
        if answer.call.verb == "prune":
            yield from self._pruned(model, at)
            return
        for now in self._instants(at_of(answer.answer), at):
            changed = copied(model)
            expected = play(changed, answer.call, answer.answer, now)
            if plain(answer.answer, self._queue) != plain(expected, self._queue):
                continue
            if _versions(changed) == _versions(model):
                yield changed, at  # who only looks may be stamped sooner or later than it looked
            elif now >= at:
                yield changed, now
        if self._may_have_passed_over(answer):
            yield model, at

    def _instants(self, known: datetime | None, at: datetime) -> list[datetime]:
        """When it may have been decided."""
        if known is not None:
            return [known]
        is_ahead = self._moment is not None and at < self._moment
        return [at, self._moment + _MICROSECOND] if is_ahead and self._moment is not None else [at]

    def _pruned(self, model: ReferenceModel, at: datetime) -> Iterator[tuple[ReferenceModel, datetime]]:
        changed = copied(model)
        changed.prune(
            [job_id for job_id in changed.prunable(at) if changed.jobs[job_id].queue == self._queue]
        )
        yield changed, at
        yield model, at

    def _may_have_passed_over(self, answer: Answer) -> bool:
        if isinstance(answer.answer, Claimed):
            return not answer.answer.jobs and not answer.answer.given_up
        return answer.call.verb == "reclaim" and plain(answer.answer, self._queue) == []


def _versions(model: ReferenceModel) -> dict[str, int]:
    return {job_id: job.version for job_id, job in model.jobs.items()}
