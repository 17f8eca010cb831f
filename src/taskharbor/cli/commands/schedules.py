"""taskharbor schedules: recurring jobs."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import typer
from msgspec.structs import replace

from taskharbor.cli.columns import schedule_columns
from taskharbor.cli.exit_codes import NotFoundError
from taskharbor.cli.session import Session, with_store, with_store_to_look
from taskharbor.model.entropy import Entropy
from taskharbor.model.schedule import StoredSchedule, ticks
from taskharbor.views import plain, schedule_view

app = typer.Typer(no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the schedule.")]


@app.command("list")
@with_store_to_look
async def list_schedules(session: Session) -> None:
    """List schedules with their rule and next run."""
    now = session.now()
    entries = await session.driver.schedules()
    session.out.items([_view(entry, now) for entry in entries], schedule_columns(now))


@app.command()
@with_store
async def pause(session: Session, name: Name) -> None:
    """Pause a schedule."""
    await _set_paused(session, name, paused=True)


@app.command()
@with_store
async def resume(session: Session, name: Name) -> None:
    """Resume a schedule from its next tick; missed ticks are not made up."""
    await _set_paused(session, name, paused=False)


@app.command()
@with_store
async def run(session: Session, name: Name) -> None:
    """Enqueue the job of a schedule now, in addition to its ticks."""
    entry = await _schedule(session, name)
    job_id = Entropy().job_id(session.now())
    [stored] = await session.driver.enqueue([replace(entry.schedule.template, id=job_id)])
    session.out.document(
        {"id": stored.id, "result": stored.result.value, "schedule": name},
        [f"{stored.id} {stored.result.value}"],
    )


@app.command()
@with_store
async def delete(session: Session, name: Name) -> None:
    """Delete a schedule. Code that still declares it stores it again when it starts."""
    entry = await _schedule(session, name)
    await session.driver.delete_schedule(name)
    note = "; code that still declares it stores it again when it starts" if entry.declared_at else ""
    session.out.document({"name": name, "deleted": True}, [f"{name}: deleted{note}"])


def _view(entry: StoredSchedule, now: datetime) -> dict[str, Any]:
    """With its next tick, or with the reason there is none, e.g. an unknown time zone."""
    try:
        next_at = next(ticks(entry.schedule, now), None)
        return {**plain(schedule_view(entry, next_at, now=now)), "trouble": None}
    except Exception as error:  # noqa: BLE001 - one row that cannot be read must not hide the others
        return {**plain(schedule_view(entry, None, now=now)), "trouble": str(error) or type(error).__name__}


async def _set_paused(session: Session, name: str, *, paused: bool) -> None:
    entry = await _schedule(session, name)
    after = await session.driver.put_schedule(replace(entry.schedule, paused=paused))
    view = _view(after, session.now())
    session.out.document(view, [f"{name}: {'paused' if after.paused else 'runs'}"])


async def _schedule(session: Session, name: str) -> StoredSchedule:
    for entry in await session.driver.schedules():
        if entry.schedule.name == name:
            return entry
    raise NotFoundError(f"there is no schedule {name!r}; `taskharbor schedules list` lists them")
