"""What claims and sweeps tell besides their answers: the jobs that they gave up.

An expired lease that was the last one allowed makes its job a dead letter, inside whatever claim or sweep
comes by. No attempt of that job is left to be settled, so nobody would ever count it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable

from taskharbor.drivers.messages import GivenUp
from taskharbor.events import EventBus, JobGivenUp
from taskharbor.model.job import JobRecord
from taskharbor.model.state import JobState

_log = logging.getLogger("taskharbor.job")

MOST_KEPT = 1000
"""Where nobody takes them, the oldest go: a handle of a program that only claims must not grow."""


class GivenUps:
    """The jobs that this handle gave up and nobody has taken yet, oldest first. Safe from any thread.

    They are told at most once. A step that is not answered may have given up jobs that nobody hears of.
    """

    def __init__(self) -> None:
        self._jobs: deque[GivenUp] = deque(maxlen=MOST_KEPT)

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def note(self, reclaimed: Iterable[JobRecord]) -> None:
        """Remember those of these that have failed: records as they are after a step that is committed.

        Copies are left out: when one ends, its original goes on.
        """
        self._jobs.extend(
            GivenUp(job.id, job.queue, job.type, job.stalls)
            for job in reclaimed
            if job.state is JobState.FAILED and job.speculates_on is None
        )

    def hear(self, told: Iterable[GivenUp]) -> None:
        """Remember what another handle told that worked for this one."""
        self._jobs.extend(told)

    def take(self, may_have: Callable[[str], bool] | None = None, most: int = MOST_KEPT) -> list[GivenUp]:
        """Up to so many of the queues that the caller may have; from now on they are the caller's to tell."""
        taken: list[GivenUp] = []
        for _ in range(len(self._jobs)):
            try:
                job = self._jobs.popleft()
            except IndexError:  # taken in another thread
                break
            if len(taken) < most and (may_have is None or may_have(job.queue)):
                taken.append(job)
            else:
                self._jobs.append(job)
        return taken


def tell_given_up(jobs: Iterable[GivenUp], events: EventBus, *, found_by: str, kind: str = "") -> None:
    """Say it to people and to meters: a warning with the job's context, and an event, each once a job."""
    for job in jobs:
        _log.warning(
            "job %s (%s) was given up: the last lease it was allowed ran out (stalls: %d); found by %s",
            job.id,
            job.type,
            job.stalls,
            found_by,
            extra={
                "taskharbor_job_id": job.id,
                "taskharbor_task": job.type,
                "taskharbor_queue": job.queue,
            },
        )
        told = JobGivenUp(
            job_id=job.id, type=job.type, queue=job.queue, stalls=job.stalls, found_by=found_by, kind=kind
        )
        events.emit(told)
