"""Wait for jobs to end, by polling."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from taskharbor.cli.columns import Item, counted
from taskharbor.cli.exit_codes import DONE, JOB_FAILED, TIMED_OUT
from taskharbor.cli.ids import whole_ids
from taskharbor.cli.session import Session
from taskharbor.cli.tables import Column
from taskharbor.errors import JobNotFound
from taskharbor.model.job import JobRecord
from taskharbor.model.state import JobState
from taskharbor.views import job_details, plain

_FIRST_PAUSE, _LONGEST_PAUSE, _GROWTH = 0.05, 1.0, 1.5
_AT_ONCE = 1000


async def wait_for(session: Session, ids: Sequence[str], timeout: timedelta | None) -> int:
    """Print how each ended; exit code 0 if all completed.

    Raises:
        JobNotFound: one of them does not exist, or is gone.
    """
    ids = await whole_ids(session.driver, ids)
    session.out.detail(f"waiting for {counted(len(ids), 'job')}")
    jobs, in_time = await _until_over(session, list(dict.fromkeys(ids)), timeout)
    session.out.items([_waited_view(job) for job in jobs], _COLUMNS)
    if not in_time:
        open_ones = sum(not job.state.is_terminal for job in jobs)
        session.out.say(f"error: timed out; {open_ones} of {counted(len(jobs), 'job')} not finished")
        return TIMED_OUT
    return DONE if all(job.state is JobState.COMPLETED for job in jobs) else JOB_FAILED


async def _until_over(
    session: Session, ids: list[str], timeout: timedelta | None
) -> tuple[list[JobRecord], bool]:
    deadline = None if timeout is None else session.clock.monotonic() + timeout.total_seconds()
    pause = _FIRST_PAUSE
    over: dict[str, JobRecord] = {}
    while True:
        jobs = await _get(session, [job_id for job_id in ids if job_id not in over])
        over |= {asked: job for asked, job in jobs.items() if job.state.is_terminal}
        if len(over) == len(ids):
            return [over[job_id] for job_id in ids], True
        left = pause if deadline is None else deadline - session.clock.monotonic()
        if left <= 0:
            return [over.get(job_id) or jobs[job_id] for job_id in ids], False
        await session.clock.sleep(min(pause, left))
        pause = min(pause * _GROWTH, _LONGEST_PAUSE)


async def _get(session: Session, ids: list[str]) -> dict[str, JobRecord]:
    found: dict[str, JobRecord] = {}
    for start in range(0, len(ids), _AT_ONCE):
        part = ids[start : start + _AT_ONCE]
        for job_id, job in zip(part, await session.driver.get(part), strict=True):
            if job is None:
                raise JobNotFound(job_id)
            found[job_id] = job
    return found


def _waited_view(job: JobRecord) -> dict[str, Any]:
    full = plain(job_details(job))
    names = (
        "id",
        "type",
        "queue",
        "state",
        "result",
        "result_base64",
        "last_error",
        "failure_kind",
        "finished_at",
    )
    return {name: full[name] for name in names if name in full}


def _end(item: Item) -> object:
    return item.get("last_error") if item["state"] == "failed" else item.get("result")


_COLUMNS = (
    Column("ID", lambda job: job["id"], is_id=True),
    Column("TYPE", lambda job: job["type"]),
    Column("STATE", lambda job: job["state"]),
    Column("RESULT", _end, is_below=True),
)
