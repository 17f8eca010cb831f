"""taskharbor workers: the live workers and what they run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import typer

from taskharbor.cli.columns import worker_columns
from taskharbor.cli.session import Session, with_store_to_look
from taskharbor.drivers.contract import Driver
from taskharbor.errors import InvalidArgument
from taskharbor.model.checks import check_id
from taskharbor.model.job import JobRecord
from taskharbor.model.presence import WorkerInfo
from taskharbor.views import instant_text, plain, worker_view

app = typer.Typer(no_args_is_help=True)

_PER_CALL = 1000


@app.callback()
def workers() -> None:
    """List live workers."""


@app.command("list")
@with_store_to_look
async def list_workers(session: Session) -> None:
    """List live workers and what each runs, fastest first."""
    found = await session.driver.workers()
    jobs = await _jobs_of(session.driver, found)
    session.out.items([_view(worker, jobs) for worker in found], worker_columns(session.now()))


def _view(worker: WorkerInfo, jobs: Mapping[str, JobRecord]) -> dict[str, Any]:
    runs = [jobs[job_id] for job_id in worker.report.running if job_id in jobs]
    runs.sort(key=lambda job: (job.started_at is None, job.started_at))
    shown = [{"id": job.id, "type": job.type, "started_at": instant_text(job.started_at)} for job in runs]
    return {**plain(worker_view(worker)), "runs": shown}


async def _jobs_of(driver: Driver, workers: Sequence[WorkerInfo]) -> dict[str, JobRecord]:
    """The jobs named in the last reports that still run there."""
    holders = {job_id: worker.report.worker_id for worker in workers for job_id in worker.report.running}
    ids = [job_id for job_id in holders if _is_id(job_id)]
    jobs: dict[str, JobRecord] = {}
    for start in range(0, len(ids), _PER_CALL):
        part = ids[start : start + _PER_CALL]
        found = zip(part, await driver.get(part, payloads=False), strict=True)
        jobs |= {one: job for one, job in found if job is not None and job.worker_id == holders[one]}
    return jobs


def _is_id(text: str) -> bool:
    try:
        check_id(text)
    except InvalidArgument:
        return False
    return True
