"""taskharbor dlq: dead letters, the jobs that failed for good."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from taskharbor.cli.bulk import Answer, Step, check_choice, for_ids, for_matches, refused
from taskharbor.cli.columns import counted, dead_columns
from taskharbor.cli.commands import jobs
from taskharbor.cli.exit_codes import DONE, UsageError
from taskharbor.cli.ids import job_of, whole_ids
from taskharbor.cli.search import parse_search
from taskharbor.cli.session import Session, with_store, with_store_to_look
from taskharbor.drivers.messages import Deleted
from taskharbor.errors import JobNotFound
from taskharbor.model.job import JobRecord
from taskharbor.model.search import Search
from taskharbor.model.state import JobState

app = typer.Typer(no_args_is_help=True)

Everything = Annotated[bool, typer.Option("--all", help="All dead letters.")]


@app.command("list")
@with_store_to_look
async def list_dead(
    session: Session,
    query: Annotated[
        str | None,
        typer.Argument(metavar="[QUERY]", help="Search, e.g. type:send_* failure:timeout queue:mail."),
    ] = None,
    queue: jobs.QueueFlag = None,
    type: jobs.TypeFlag = None,
    limit: jobs.LimitFlag = 50,
    cursor: jobs.CursorFlag = None,
) -> None:
    """List dead letters, newest first."""
    where = jobs.narrowed(dead(parse_search(query)), queue=queue, state=None, type=type)
    await jobs.show_page(session, where, dead_columns(session.now()), limit=limit, cursor=cursor)


@app.command()
@with_store_to_look
async def show(session: Session, job_id: jobs.JobId, reveal: jobs.Reveal = False) -> None:
    """Show everything about a dead letter."""
    job = await job_of(session.driver, job_id)
    if job.state is not JobState.FAILED:
        raise NotADeadLetter(job.id, job.state.value)
    jobs.show_job(session, job, reveal=reveal)


@app.command()
@with_store
async def retry(
    session: Session,
    job_ids: jobs.JobIds = None,
    where: jobs.WhereFlag = None,
    everything: Everything = False,
    delay: jobs.DelayFlag = None,
    keep_counts: jobs.KeepCounts = False,
    yes: jobs.Yes = False,
    dry_run: jobs.DryRun = False,
) -> int:
    """Enqueue failed jobs again, with their attempts reset to 0."""
    search = parse_search(where)
    check_choice(job_ids or [], search, is_all=everything)
    step = jobs.requeue_step(session, delay, keep_counts)
    if job_ids:
        job_ids = await whole_ids(session.driver, job_ids)
        letters = await _dead_letters(session, job_ids)
        if dry_run:
            session.out.say(f"{', '.join(f'{job.id} {job.type}' for job in letters)} would be retried.")
            return DONE
        return await for_ids(session, job_ids, step)
    return await for_matches(
        session, dead(search), step, verb="Retry", done="retried", yes=yes, dry_run=dry_run
    )


@app.command()
@with_store
async def purge(
    session: Session,
    job_ids: jobs.JobIds = None,
    where: jobs.WhereFlag = None,
    everything: Everything = False,
    yes: jobs.Yes = False,
    dry_run: jobs.DryRun = False,
) -> int:
    """Delete dead letters. Shows what would be deleted and asks first."""
    search = parse_search(where)
    check_choice(job_ids or [], search, is_all=everything)
    if not job_ids:
        step = _delete_step(session)
        return await for_matches(
            session, dead(search), step, verb="Purge", done="purged", yes=yes, dry_run=dry_run
        )
    job_ids = await whole_ids(session.driver, job_ids)
    letters = await _dead_letters(session, job_ids)
    session.out.say(f"{', '.join(f'{job.id} {job.type}' for job in letters)} would be purged.")
    if dry_run or not session.out.confirm(f"Purge {counted(len(letters), 'dead letter')}?", yes=yes):
        session.out.say("nothing was deleted")
        return DONE
    return await for_ids(session, job_ids, _delete_step(session))


async def _dead_letters(session: Session, ids: Sequence[str]) -> list[JobRecord]:
    """The dead letters among these jobs: the store could retry and delete any finished job."""
    letters = []
    for job_id, job in zip(ids, await session.driver.get(ids, payloads=False), strict=True):
        if job is None or job.state is not JobState.FAILED:
            raise NotADeadLetter(job_id, None if job is None else job.state.value)
        letters.append(job)
    return letters


def _delete_step(session: Session) -> Step:
    async def step(ids: Sequence[str]) -> list[Answer]:
        answers = await session.driver.delete(ids)
        return [
            Answer(id=one.id, result="purged", state=None)
            if isinstance(one, Deleted)
            else refused(job_id, one)
            for job_id, one in zip(ids, answers, strict=True)
        ]

    return step


def dead(where: Search) -> Search:
    """The search, limited to failed jobs; another state is refused."""
    if where.states not in (None, (JobState.FAILED,)):
        raise UsageError("dead letters are always failed jobs: leave out state:, or use `taskharbor jobs`")
    return where.or_states(JobState.FAILED)


class NotADeadLetter(JobNotFound):
    """There is no dead letter with this id, though there may be a job."""

    def __init__(self, job_id: str, state: str | None) -> None:
        super().__init__(job_id)
        if state is not None:
            self.args = (f"job {job_id} is {state}, not a dead letter; see `taskharbor jobs show {job_id}`",)
