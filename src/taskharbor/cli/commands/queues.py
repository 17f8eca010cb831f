"""taskharbor queues: numbers and settings."""

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

Names = Annotated[list[str] | None, typer.Argument(metavar="[QUEUE]...", help="Names of queues.")]
New = Annotated[bool, typer.Option("--new", help="Also queues that have never been used.")]
Harbor = Annotated[bool, typer.Option("--all", help="The whole harbor, whatever queue.")]


@app.command("list")
@with_store_to_look
async def list_queues(session: Session) -> None:
    """List every queue that has jobs or settings; * stands for the whole harbor."""
    now = session.now()
    queues = await session.driver.queues()
    session.out.items([queue_view(queue, now) for queue in queues], queue_columns())


@app.command()
@with_store
async def pause(session: Session, queues: Names = None, everything: Harbor = False, new: New = False) -> None:
    """Stop handing out jobs of these queues; running ones go on, new ones may come in."""
    await _set_paused(session, queues, everything, paused=True, new=new)


@app.command()
@with_store
async def resume(
    session: Session, queues: Names = None, everything: Harbor = False, new: New = False
) -> None:
    """Hand out jobs of these queues again."""
    await _set_paused(session, queues, everything, paused=False, new=new)


@app.command("set")
@with_store
async def set_rules(
    session: Session,
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="A queue, or * for the whole harbor.")],
    max_running: Annotated[
        Any, typer.Option("--max-running", parser=parse_count, metavar="N", help="How many may run at once.")
    ] = None,
    enqueue_rate: Annotated[
        Any,
        typer.Option(
            "--enqueue-rate",
            parser=parse_rate,
            metavar="N/SPAN",
            help="How many may be enqueued, like 100/1m.",
        ),
    ] = None,
    execute_rate: Annotated[
        Any,
        typer.Option(
            "--execute-rate", parser=parse_rate, metavar="N/SPAN", help="How many may start, like 10/s."
        ),
    ] = None,
    fail_queue: Annotated[
        str | None,
        typer.Option(
            "--fail-queue", metavar="QUEUE", help="The queue that gets a job for every dead letter."
        ),
    ] = None,
    keep_completed: Annotated[
        Any,
        typer.Option(
            "--keep-completed",
            parser=parse_retention,
            metavar="SPAN",
            help="How long completed jobs are kept, like 1h.",
        ),
    ] = None,
    keep_failed: Annotated[
        Any,
        typer.Option(
            "--keep-failed",
            parser=parse_retention,
            metavar="SPAN",
            help="How long dead letters are kept, like 14d.",
        ),
    ] = None,
    keep_cancelled: Annotated[
        Any,
        typer.Option(
            "--keep-cancelled",
            parser=parse_retention,
            metavar="SPAN",
            help="How long cancelled jobs are kept.",
        ),
    ] = None,
    default_retention: Annotated[
        bool, typer.Option("--default-retention", help="Undo --keep-…: the defaults hold again.")
    ] = False,
) -> None:
    """Change settings of a queue; obeyed from the next claim on. `none` takes a setting away.

    For --keep-…, 0 means not at all and none means for ever.
    """
    kept = {"completed": keep_completed, "failed": keep_failed, "cancelled": keep_cancelled}
    retention: Any = UNSET
    if any(value is not None for value in kept.values()):
        retention = await _retention(session, queue, kept)
    elif default_retention:
        retention = None
    settings = QueueSettings(
        queue=queue,
        max_running=_said(max_running),
        enqueue_rate=_said(enqueue_rate),
        execute_rate=_said(execute_rate),
        fail_queue=_said(fail_queue),
        retention=retention,
    )
    if settings == QueueSettings(queue=queue):
        raise UsageError("nothing to set; `taskharbor queues set --help` lists the settings")
    await _configure(session, settings)


async def _set_paused(
    session: Session, queues: list[str] | None, everything: bool, *, paused: bool, new: bool
) -> None:
    names = [EVERY_QUEUE] if everything else queues
    if not names or (everything and queues):
        raise UsageError("give queues, or --all for the whole harbor")
    if not everything and not new:
        await _refuse_unknown(session, names)
    for name in names:
        await _configure(session, QueueSettings(queue=name, paused=paused))


async def _refuse_unknown(session: Session, names: list[str]) -> None:
    """A name that nobody knows is most likely a typing error, and the queue that was meant goes on."""
    known = {info.queue for info in await session.driver.queues()}
    known |= {queue for worker in await session.driver.workers() for queue in worker.report.queues}
    known |= set(session.harbor.tasks.queues()) if session.harbor is not None else set()
    unknown = [name for name in names if name not in known and name != EVERY_QUEUE]
    if unknown:
        there = ", ".join(sorted(known - {EVERY_QUEUE})) or "none"
        raise NotFoundError(
            f"no queue is named {', '.join(unknown)}: nothing has jobs, settings or workers there; "
            f"there are: {there}. Nothing was changed; --new means a queue that is yet to come"
        )


async def _configure(session: Session, settings: QueueSettings) -> None:
    rules = plain(rules_view(await session.driver.configure_queue(settings)))
    words = ", ".join(settings_of(rules)) or "no settings"
    session.out.document({"name": settings.queue, **rules}, [f"{settings.queue}: {words}"])


async def _retention(session: Session, queue: str, kept: dict[str, timedelta | str | None]) -> Retention:
    """The retention with the said parts changed and the others as they are."""
    for info in await session.driver.queues():
        if info.queue == queue and info.rules.retention is not None:
            before = info.rules.retention
            break
    else:
        before = Retention()
    parts: dict[str, Any] = {name: getattr(before, name) for name in kept}
    parts |= {name: None if value == NONE else value for name, value in kept.items() if value is not None}
    return Retention(**parts)


def _said(value: Any) -> Any:
    """A flag that was not given changes nothing; `none` takes the setting away."""
    if value is None:
        return UNSET
    return None if value == NONE else value
