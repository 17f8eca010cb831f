"""taskharbor queues: counts and settings of queues."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

import typer
from msgspec import UNSET

from taskharbor.cli.columns import queue_columns, settings_of
from taskharbor.cli.exit_codes import NotFoundError, UsageError
from taskharbor.cli.parameters import NONE, parse_count, parse_rate, parse_retention
from taskharbor.cli.session import Session, with_store, with_store_to_look
from taskharbor.model.queue import EVERY_QUEUE, QueueSettings, Retention
from taskharbor.views import plain, queue_view, rules_view

app = typer.Typer(no_args_is_help=True)

Names = Annotated[list[str] | None, typer.Argument(metavar="[QUEUE]...", help="Queue names.")]
New = Annotated[bool, typer.Option("--new", help="Also queues that have never been used.")]
Harbor = Annotated[bool, typer.Option("--all", help="All queues: the setting of the whole harbor.")]


@app.command("list")
@with_store_to_look
async def list_queues(session: Session) -> None:
    """List queues with their jobs and settings; * is the whole harbor."""
    now = session.now()
    queues = await session.driver.queues()
    session.out.items([queue_view(queue, now) for queue in queues], queue_columns())


@app.command()
@with_store
async def pause(session: Session, queues: Names = None, everything: Harbor = False, new: New = False) -> None:
    """Pause queues: no more jobs start. Running jobs continue, new ones can be enqueued."""
    await _set_paused(session, queues, everything, paused=True, new=new)


@app.command()
@with_store
async def resume(
    session: Session, queues: Names = None, everything: Harbor = False, new: New = False
) -> None:
    """Resume paused queues."""
    await _set_paused(session, queues, everything, paused=False, new=new)


@app.command("set")
@with_store
async def set_rules(
    session: Session,
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="Queue, or * for the whole harbor.")],
    max_running: Annotated[
        Any,
        typer.Option(
            "--max-running", parser=parse_count, metavar="N", help="Most jobs to run at the same time."
        ),
    ] = None,
    enqueue_rate: Annotated[
        Any,
        typer.Option(
            "--enqueue-rate",
            parser=parse_rate,
            metavar="N/SPAN",
            help="Most jobs to enqueue, e.g. 100/1m.",
        ),
    ] = None,
    execute_rate: Annotated[
        Any,
        typer.Option(
            "--execute-rate", parser=parse_rate, metavar="N/SPAN", help="Most jobs to start, e.g. 10/s."
        ),
    ] = None,
    fail_queue: Annotated[
        str | None,
        typer.Option("--fail-queue", metavar="QUEUE", help="Queue that gets a job for every failed job."),
    ] = None,
    keep_completed: Annotated[
        Any,
        typer.Option(
            "--keep-completed",
            parser=parse_retention,
            metavar="SPAN",
            help="How long to keep completed jobs, e.g. 1h.",
        ),
    ] = None,
    keep_failed: Annotated[
        Any,
        typer.Option(
            "--keep-failed",
            parser=parse_retention,
            metavar="SPAN",
            help="How long to keep failed jobs, e.g. 14d.",
        ),
    ] = None,
    keep_cancelled: Annotated[
        Any,
        typer.Option(
            "--keep-cancelled",
            parser=parse_retention,
            metavar="SPAN",
            help="How long to keep cancelled jobs.",
        ),
    ] = None,
    default_retention: Annotated[
        bool, typer.Option("--default-retention", help="Reset all --keep-… settings to their defaults.")
    ] = False,
) -> None:
    """Change settings of a queue. They apply from the next claim.

    `none` removes a setting. For --keep-…, 0 means not at all and `none` means forever.
    """
    kept = {"completed": keep_completed, "failed": keep_failed, "cancelled": keep_cancelled}
    retention: Any = UNSET
    if any(value is not None for value in kept.values()):
        retention = await _retention(session, queue, kept)
    elif default_retention:
        retention = None
    settings = QueueSettings(
        queue=queue,
        max_running=_flag(max_running),
        enqueue_rate=_flag(enqueue_rate),
        execute_rate=_flag(execute_rate),
        fail_queue=_flag(fail_queue),
        retention=retention,
    )
    if settings == QueueSettings(queue=queue):
        raise UsageError("no setting given; `taskharbor queues set --help` lists them")
    await _configure(session, settings)


async def _set_paused(
    session: Session, queues: list[str] | None, everything: bool, *, paused: bool, new: bool
) -> None:
    names = [EVERY_QUEUE] if everything else queues
    if not names or (everything and queues):
        raise UsageError("no queue given: name queues, or use --all for the whole harbor")
    if not everything and not new:
        await _refuse_unknown(session, names)
    for name in names:
        await _configure(session, QueueSettings(queue=name, paused=paused))


async def _refuse_unknown(session: Session, names: list[str]) -> None:
    """An unknown name is most likely a typo: refuse it, or the intended queue would keep running."""
    known = {info.queue for info in await session.driver.queues()}
    known |= {queue for worker in await session.driver.workers() for queue in worker.report.queues}
    known |= set(session.harbor.tasks.queues()) if session.harbor is not None else set()
    unknown = [name for name in names if name not in known and name != EVERY_QUEUE]
    if unknown:
        there = ", ".join(sorted(known - {EVERY_QUEUE})) or "none"
        raise NotFoundError(
            f"there is no queue {', '.join(unknown)}; known queues: {there}. Nothing was changed. "
            "Add --new if the queue does not exist yet"
        )


async def _configure(session: Session, settings: QueueSettings) -> None:
    rules = plain(rules_view(await session.driver.configure_queue(settings)))
    words = ", ".join(settings_of(rules)) or "no settings"
    session.out.document({"name": settings.queue, **rules}, [f"{settings.queue}: {words}"])


async def _retention(session: Session, queue: str, kept: dict[str, timedelta | str | None]) -> Retention:
    """The retention with the given parts changed."""
    for info in await session.driver.queues():
        if info.queue == queue and info.rules.retention is not None:
            before = info.rules.retention
            break
    else:
        before = Retention()
    parts: dict[str, Any] = {name: getattr(before, name) for name in kept}
    parts |= {name: None if value == NONE else value for name, value in kept.items() if value is not None}
    return Retention(**parts)


def _flag(value: Any) -> Any:
    """UNSET for a flag that was not given, None for `none`."""
    if value is None:
        return UNSET
    return None if value == NONE else value
