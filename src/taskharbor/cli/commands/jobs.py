"""taskharbor jobs: list, show, explain, wait for, retry and cancel jobs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated

import typer

from taskharbor.cli.bulk import Answer, Step, check_choice, for_ids, for_matches, refused
from taskharbor.cli.columns import job_columns
from taskharbor.cli.details import job_lines, why_lines
from taskharbor.cli.exit_codes import CONFLICT, DONE, NOT_FOUND, UsageError
from taskharbor.cli.ids import job_of
from taskharbor.cli.parameters import parse_duration, parse_states
from taskharbor.cli.search import find_page, parse_search
from taskharbor.cli.session import Session, with_store, with_store_to_look
from taskharbor.cli.tables import Column
from taskharbor.cli.wait import wait_for
from taskharbor.client.why import look_into
from taskharbor.drivers.messages import CancelResult, Requeued
from taskharbor.errors import JobNotFound
from taskharbor.model.job import DEFAULT_QUEUE, JobRecord
from taskharbor.model.search import Search
from taskharbor.model.state import TERMINAL, WAITING, JobState
from taskharbor.views import job_details, job_view, plain, why_view

app = typer.Typer(no_args_is_help=True)

JobId = Annotated[str, typer.Argument(metavar="ID", help="Job id, or its first or last digits.")]
JobIds = Annotated[
    list[str] | None, typer.Argument(metavar="[ID]...", help="Job ids, or their first or last digits.")
]
WhereFlag = Annotated[
    str | None,
    typer.Option("--where", "-w", metavar="QUERY", help="Search, e.g. 'state:failed type:send_*'."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done and stop.")]
Reveal = Annotated[
    bool, typer.Option("--reveal", help="Also show values under names like password or token.")
]
QueueFlag = Annotated[str | None, typer.Option("--queue", "-q", help="Only this queue.")]
TypeFlag = Annotated[str | None, typer.Option("--type", "-t", help="Only this task; * and ? are wildcards.")]
LimitFlag = Annotated[int, typer.Option("--limit", "-n", min=1, max=100_000, help="Most rows to print.")]
CursorFlag = Annotated[
    str | None, typer.Option("--cursor", help="Continue a list; the previous page prints the cursor.")
]
DelayFlag = Annotated[
    timedelta | None,
    typer.Option(
        "--in", parser=parse_duration, metavar="DURATION", help="Do not run before this delay, e.g. 5m."
    ),
]
KeepCounts = Annotated[
    bool,
    typer.Option("--keep-counts", help="Keep the counts of attempts and stalls instead of resetting them."),
]


@app.command("list")
@with_store_to_look
async def list_jobs(
    session: Session,
    query: Annotated[
        str | None,
        typer.Argument(metavar="[QUERY]", help="Search, e.g. state:failed type:send_* queue:mail."),
    ] = None,
    queue: QueueFlag = None,
    state: Annotated[
        str | None, typer.Option("--state", "-s", help="Only these states, comma-separated.")
    ] = None,
    type: TypeFlag = None,
    limit: LimitFlag = 50,
    cursor: CursorFlag = None,
    oldest_first: Annotated[bool, typer.Option("--oldest-first", help="Oldest first.")] = False,
) -> None:
    """List jobs, newest first.

    A query is one or more words, which must all match, e.g. 'state:failed,cancelled type:send_* ended:<1h
    args.user.id:42 -queue:slow'. Commas mean or, - means not, * and ? are wildcards. The reference has all
    fields.
    """
    where = narrowed(parse_search(query), queue=queue, state=state, type=type)
    await show_page(
        session, where, job_columns(session.now()), limit=limit, cursor=cursor, newest_first=not oldest_first
    )


@app.command()
@with_store_to_look
async def show(session: Session, job_id: JobId, reveal: Reveal = False) -> None:
    """Show everything about a job: arguments, attempts, lease and errors."""
    show_job(session, await job_of(session.driver, job_id), reveal=reveal)


@app.command()
@with_store_to_look
async def why(session: Session, job_id: JobId) -> None:
    """Explain why a job is not running, and when it will."""
    job = await job_of(session.driver, job_id)
    found = await look_into(session.driver, job.id)
    view = plain(why_view(found))
    session.out.document(view, why_lines(view, session.out.width))


@app.command()
@with_store_to_look
async def wait(
    session: Session,
    job_ids: Annotated[
        list[str], typer.Argument(metavar="ID...", help="Job ids, or their first or last digits.")
    ],
    timeout: Annotated[
        timedelta | None,
        typer.Option(
            "--timeout",
            parser=parse_duration,
            metavar="DURATION",
            help="Give up after this time, with exit code 124.",
        ),
    ] = None,
) -> int:
    """Wait for jobs to end; exit code 7 if one failed or was cancelled."""
    return await wait_for(session, job_ids, timeout)


@app.command()
@with_store
async def retry(
    session: Session,
    job_ids: JobIds = None,
    where: WhereFlag = None,
    delay: DelayFlag = None,
    keep_counts: KeepCounts = False,
    queue: Annotated[str | None, typer.Option("--queue", "-q", help="Refuse jobs of other queues.")] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> int:
    """Run finished jobs again: failed, cancelled or completed. With --where, only failed ones by default."""
    search = parse_search(where)
    check_choice(job_ids or [], search)
    step = requeue_step(session, delay, keep_counts, queue)
    if job_ids and not dry_run:
        return await for_ids(session, job_ids, step)
    if job_ids:
        return await _dry_ids(session, job_ids, TERMINAL)
    return await for_matches(
        session,
        search.or_states(JobState.FAILED),
        step,
        verb="Retry",
        done="retried",
        yes=yes,
        dry_run=dry_run,
    )


@app.command()
@with_store
async def cancel(
    session: Session,
    job_ids: JobIds = None,
    where: WhereFlag = None,
    key: Annotated[
        str | None,
        typer.Option("--key", help="Cancel the waiting job with this key; a running one continues."),
    ] = None,
    queue: Annotated[
        str | None, typer.Option("--queue", "-q", help="Queue of --key. Default: `default`.")
    ] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> int:
    """Cancel jobs: waiting ones at once, running ones as soon as their worker notices."""
    if key is not None:
        if job_ids or where or dry_run:
            raise UsageError("--key selects one job: leave out ids, --where and --dry-run")
        return await _cancel_key(session, queue or DEFAULT_QUEUE, key)
    if queue is not None:
        raise UsageError("--queue goes with --key; to cancel a whole queue, use --where queue:NAME")
    search = parse_search(where)
    check_choice(job_ids or [], search)
    if job_ids and dry_run:
        return await _dry_ids(session, job_ids, WAITING | {JobState.RUNNING})
    if job_ids:
        return await for_ids(session, job_ids, _cancel_step(session))
    return await for_matches(
        session,
        search.or_states(*sorted(WAITING), JobState.RUNNING),
        _cancel_step(session),
        verb="Cancel",
        done="cancelled",
        yes=yes,
        dry_run=dry_run,
    )


async def _cancel_key(session: Session, queue: str, key: str) -> int:
    was_there = await session.driver.cancel_waiting(queue, key.encode())
    result = "cancelled" if was_there else "no job with this key is waiting"
    view = {"queue": queue, "key": key, "cancelled": was_there}
    session.out.document(view, [f"{key} in {queue}: {result}"])
    return DONE if was_there else NOT_FOUND


async def show_page(
    session: Session,
    where: Search,
    columns: Sequence[Column],
    *,
    limit: int,
    cursor: str | None,
    newest_first: bool = True,
) -> None:
    jobs, more = await find_page(session.driver, where, limit=limit, cursor=cursor, newest_first=newest_first)
    session.out.items([job_view(job) for job in jobs], columns, cursor=more)
    if more and not session.out.is_machine_readable:
        session.out.say(f"there may be more: add --cursor {more}, or raise --limit")


def show_job(session: Session, job: JobRecord, *, reveal: bool) -> None:
    view = plain(job_details(job, reveal=reveal))
    session.out.document(view, job_lines(view, session.now()))


def narrowed(where: Search, *, queue: str | None, state: str | None, type: str | None) -> Search:
    """The search combined with the flags."""
    if state:
        where = where.narrowed("state", *parse_states(state))
    for field, text in (("queue", queue), ("type", type)):
        where = where if text is None else where.narrowed(field, text)
    return where


def requeue_step(
    session: Session, delay: timedelta | None, keep_counts: bool, queue: str | None = None
) -> Step:
    async def step(ids: Sequence[str]) -> list[Answer]:
        answers = await session.driver.requeue(ids, queue=queue, delay=delay, reset_counts=not keep_counts)
        return [
            Answer(id=one.id, result="retried", state=one.state.value)
            if isinstance(one, Requeued)
            else refused(job_id, one)
            for job_id, one in zip(ids, answers, strict=True)
        ]

    return step


def _cancel_step(session: Session) -> Step:
    codes = {CancelResult.ALREADY_OVER: CONFLICT, CancelResult.NOT_FOUND: NOT_FOUND}

    async def step(ids: Sequence[str]) -> list[Answer]:
        return [
            Answer(
                id=one.id,
                result=one.result.value,
                state=one.state.value if one.state else None,
                note=_CANCEL_NOTES.get(one.result),
                code=codes.get(one.result, DONE),
            )
            for one in await session.driver.cancel(ids)
        ]

    return step


_CANCEL_NOTES = {
    CancelResult.REQUESTED: "it is running; its worker was asked to stop it",
    CancelResult.ALREADY_OVER: "nothing was changed",
}


async def _dry_ids(session: Session, ids: Sequence[str], fitting: frozenset[JobState]) -> int:
    def answer_for(job_id: str, job: JobRecord | None) -> Answer:
        if job is None:
            return refused(job_id, JobNotFound(job_id))
        result = "would_change" if job.state in fitting else "would_refuse"
        return Answer(id=job_id, result=result, state=job.state.value)

    async def step(part: Sequence[str]) -> list[Answer]:
        jobs = await session.driver.get(part, payloads=False)
        return [answer_for(job_id, job) for job_id, job in zip(part, jobs, strict=True)]

    return await for_ids(session, ids, step)
