"""taskharbor migrate: the schema of the store."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable

import typer

from taskharbor.cli.exits import DONE, ERROR
from taskharbor.cli.output import Output
from taskharbor.cli.session import (
    AppFlag,
    Session,
    UrlFlag,
    chosen_store,
    with_output,
    with_store,
    with_store_made,
)
from taskharbor.drivers import connect
from taskharbor.drivers.contract import Driver

app = typer.Typer(no_args_is_help=True)


@app.command()
@with_store_made
async def up(session: Session) -> None:
    """Apply what is pending. Several may do it at once: each migration is applied once."""
    applied = await session.driver.migrate()
    info = await session.driver.info()
    view = {"applied": applied, "schema": info.schema}
    lines = [f"applied {name}" for name in applied] or [f"nothing to do: the schema is at {info.schema}"]
    session.out.document(view, lines)


@app.command()
@with_store
async def status(session: Session) -> int:
    """Say what is pending; exit code 1 when something is."""
    pending = await session.driver.pending_migrations()
    info = await session.driver.info()
    view = {"schema": info.schema, "pending": pending}
    lines = [f"pending {name}" for name in pending] or [f"up to date: the schema is at {info.schema}"]
    session.out.document(view, lines)
    return ERROR if pending else DONE


@app.command()
@with_output
def sql(out: Output, url: UrlFlag = None, app: AppFlag = None) -> None:
    """Print the migrations for your own tool, without connecting."""
    address, harbor = chosen_store(out, url, app)
    scripts = list(_scripts(connect(address) if harbor is None else harbor.driver))
    if not scripts:
        out.say("this store has no SQL migrations")
    view = {"items": [{"name": name, "sql": text} for name, text in scripts], "cursor": None}
    lines = [line for name, text in scripts for line in (f"-- {name}", text.rstrip(), "")]
    out.document(view, lines)


def _scripts(driver: Driver) -> Iterator[tuple[str, str]]:
    """The migration files that stand beside the driver's code, in order."""
    package = type(driver).__module__.rpartition(".")[0]
    folder = files(package).joinpath("sql", "migrations")
    if folder.is_dir():
        for item in sorted(folder.iterdir(), key=_name):
            if item.name.endswith(".sql"):
                yield item.name.removesuffix(".sql"), item.read_text(encoding="utf-8")


def _name(item: Traversable) -> str:
    return item.name
