"""What a server knows about a job beside its record: its release, its trace, and until when it is kept."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

from taskharbor.errors import TaskHarborError
from taskharbor.model.job import JobRecord
from taskharbor.model.queue import NO_RULES, retention_of
from taskharbor.views import instant_text
from taskharbor.web.board import BoardLook
from taskharbor.web.request import Request

_TRACE_ID = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-")


async def surroundings(request: Request, job: JobRecord) -> dict[str, Any]:
    """The fields that `JobOut` has more than the job itself."""
    look = await request.service.board.glance()
    release = None if look is None else _release_of(job, look)
    since = None if look is None or release is None else await _since(request, look, release)
    return {
        "release": release,
        "release_since": instant_text(since),
        "kept_until": None if look is None else instant_text(_kept_until(job, look)),
        "trace_url": trace_url(request.service.config.trace_url, job),
    }


def _release_of(job: JobRecord, look: BoardLook) -> str | None:
    worker = job.worker_id or (job.history[-1].worker_id if job.history else None)
    known = {lost.id: lost.release for lost in look.lost}
    known |= {info.report.worker_id: info.report.release for info in look.workers}
    return known.get(worker or "") or None


async def _since(request: Request, look: BoardLook, release: str) -> datetime | None:
    marks = request.service.marks
    marks.note(look.workers)
    try:
        return await marks.release_since(release)
    except TaskHarborError:  # the job itself was found: it is shown without this
        return None


def _kept_until(job: JobRecord, look: BoardLook) -> datetime | None:
    if job.finished_at is None:
        return None
    queue = look.queues.get(job.queue)
    kept = retention_of(NO_RULES if queue is None else queue.rules, look.harbor).of(job.state)
    return None if kept is None else job.finished_at + kept


def trace_url(template: str, job: JobRecord) -> str | None:
    """The address of the trace that the job belongs to: hex digits in a template that is checked."""
    found = _TRACE_ID.match(job.headers.get("traceparent", ""))
    return template.replace("{trace_id}", found[1]) if found and template else None
