"""taskharbor dlq: the dead letters, jobs that failed for good."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated

import typer

from taskharbor.cli.bulk import Answer, Step, check_choice, for_ids, for_matches, refused
from taskharbor.cli.columns import counted, dead_columns
from taskharbor.cli.commands.jobs import DryRun, JobId, JobIds, Reveal, WhereFlag, Yes, narrowed, requeue_step
from taskharbor.cli.details import job_lines
from taskharbor.cli.exit_codes import DONE, UsageError
from taskharbor.cli.ids import job_of, whole_ids
from taskharbor.cli.parameters import parse_duration
from taskharbor.cli.search import JobSearch, find_page, parse_search
from taskharbor.cli.session import Session, with_store, with_store_to_look
from taskharbor.drivers.messages import Deleted
from taskharbor.errors import JobNotFound
from taskharbor.model.job import JobRecord
from taskharbor.model.state import JobState
from taskharbor.views import job_details, job_view, plain

app = typer.Typer(no_args_is_help=True)

Everything = Annotated[bool, typer.Option("--all", help="Every dead letter.")]


@app.command("list")
@with_store_to_look
async def list_dead(
    session: Session,
    query: Annotated[
        str | None,
        typer.Argument(metavar="[QUERY]", help="Words like type:send_* failure:timeout queue:mail."),
    ] = None,
    queue: Annotated[str | None, typer.Option("--queue", "-q", help="Only this queue.")] = None,
    type: Annotated[str | None, typer.Option("--type", "-t", help="Only this type; * and ? match.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=100_000, help="At most so many.")] = 50,
    cursor: Annotated[
        str | None, typer.Option("--cursor", help="Go on where a list stopped; the list names it.")
    ] = None,
) -> None:
    """List dead letters, the newest job first."""
    where = narrowed(dead(parse_search(query)), queue=queue, state=None, type=type)
    jobs, more = await find_page(session.driver, where, limit=limit, cursor=cursor, newest_first=True)
    session.out.items([job_view(job) for job in jobs], dead_columns(session.now()), cursor=more)
    if more and not session.out.is_machine_readable:
        session.out.say(f"there may be more: add --cursor {more} or a larger --limit")


@app.command()
@with_store_to_look
async def show(session: Session, job_id: JobId, reveal: Reveal = False) -> None:
    """Show everything about a dead letter."""
    job = await job_of(session.driver, job_id)
    if job.state is not JobState.FAILED:
        raise NotADeadLetter(job.id, job.state.value)
    view = plain(job_details(job, reveal=reveal))
    session.out.document(view, job_lines(view, session.now()))


@app.command()
@with_store
async def retry(
    session: Session,
    job_ids: JobIds = None,
    where: WhereFlag = None,
    everything: Everything = False,
    delay: Annotated[
        timedelta | None,
        typer.Option(
            "--in", parser=parse_duration, metavar="DURATION", help="Not before this has passed, like 5m."
        ),
    ] = None,
    keep_counts: Annotated[
        bool,
        typer.Option("--keep-counts", help="Go on counting attempts and stalls instead of starting at 0."),
    ] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> int:
    """Let failed jobs wait again, with their counts reset."""
    search = parse_search(where)
    check_choice(job_ids or [], search, is_all=everything)
    step = requeue_step(session, delay, keep_counts)
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
    job_ids: JobIds = None,
    where: WhereFlag = None,
    everything: Everything = False,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> int:
    """Forget dead letters for good. Shows what would go and asks, also for single ids."""
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
        session.out.say("nothing was done")
        return DONE
    return await for_ids(session, job_ids, _delete_step(session))


async def _dead_letters(session: Session, ids: Sequence[str]) -> list[JobRecord]:
    """Only failed jobs are dead letters, even though the store can retry and forget any finished one."""
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


def dead(where: JobSearch) -> JobSearch:
    """The search among failed jobs; any other state has no place here."""
    if where.states not in (None, (JobState.FAILED,)):
        raise UsageError("dead letters are failed jobs: leave state: out, or use `taskharbor jobs`")
    return where.or_states(JobState.FAILED)


class NotADeadLetter(JobNotFound):
    """There is no dead letter with this id, though there may be a job."""

    def __init__(self, job_id: str, state: str | None) -> None:
        super().__init__(job_id)
        if state is not None:
            self.args = (
                f"job {job_id} is {state}, no dead letter; `taskharbor jobs show {job_id}` shows it",
            )
