"""Report jobs that a claim or a sweep gave up: their last allowed lease ran out."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from taskharbor.drivers.messages import Reclaimed
from taskharbor.events import EventBus, JobGivenUp

_log = logging.getLogger("taskharbor.job")


def report_given_up(jobs: Iterable[Reclaimed], events: EventBus, *, found_by: str, kind: str = "") -> None:
    """One warning and one JobGivenUp event for each job."""
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
        events.emit(
            JobGivenUp(
                job_id=job.id, type=job.type, queue=job.queue, stalls=job.stalls, found_by=found_by, kind=kind
            )
        )
