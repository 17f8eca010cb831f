"""taskharbor workers: who is at work."""

from __future__ import annotations

import typer

from taskharbor.cli.columns import worker_columns
from taskharbor.cli.session import Session, with_store
from taskharbor.drivers.views import worker_view

app = typer.Typer(no_args_is_help=True)


@app.callback()
def workers() -> None:
    """Who is at work, fastest first."""


@app.command("list")
@with_store
async def list_workers(session: Session) -> None:
    """List the live workers by their usual duration, fastest first."""
    found = await session.driver.workers()
    session.out.items([worker_view(worker) for worker in found], worker_columns(session.now()))
