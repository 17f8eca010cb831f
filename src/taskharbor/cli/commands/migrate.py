"""taskharbor migrate: the schema of the store."""

from __future__ import annotations

from functools import partial

import typer

from taskharbor.cli.exit_codes import DONE, ERROR
from taskharbor.cli.output import Output
from taskharbor.cli.session import (
    AppFlag,
    Session,
    UrlFlag,
    chosen_store,
    with_any_schema,
    with_output,
)
from taskharbor.drivers import connect

app = typer.Typer(no_args_is_help=True)


@app.command()
@partial(with_any_schema, makes=True)
async def up(session: Session) -> None:
    """Apply pending migrations. Safe to run from several machines at once."""
    applied = await session.driver.migrate()
    info = await session.driver.info()
    view = {"applied": applied, "schema": info.schema}
    lines = [f"applied {name}" for name in applied] or [
        f"nothing to do: the schema is up to date ({info.schema})"
    ]
    session.out.document(view, lines)


@app.command()
@partial(with_any_schema, makes=False)
async def status(session: Session) -> int:
    """List pending migrations; exit code 1 if there are any."""
    pending = await session.driver.pending_migrations()
    if pending:  # a store that was never migrated cannot say what it is
        session.out.document({"schema": None, "pending": pending}, [f"pending {name}" for name in pending])
        return ERROR
    info = await session.driver.info()
    view: dict[str, object] = {"schema": info.schema, "pending": []}
    lines = [f"the schema is up to date ({info.schema})"]
    if functions := info.details.get("functions"):
        view["functions"] = functions
        lines.append(f"functions: {functions}")
    session.out.document(view, lines)
    return DONE


@app.command()
@with_output
def sql(out: Output, url: UrlFlag = None, app: AppFlag = None) -> None:
    """Print the migrations as SQL, without connecting."""
    address, harbor = chosen_store(out, url, app)
    scripts = (connect(address) if harbor is None else harbor.driver).migration_scripts()
    if not scripts:
        out.say("this store has no SQL migrations")
    view = {"items": [{"name": name, "sql": text} for name, text in scripts], "next_cursor": None}
    lines = [line for name, text in scripts for line in (f"-- {name}", text.rstrip(), "")]
    out.document(view, lines)
