"""taskharbor config: the settings in effect and their sources."""

from __future__ import annotations

import typer

from taskharbor.cli.output import Output
from taskharbor.cli.session import with_output
from taskharbor.cli.tables import Column

app = typer.Typer(no_args_is_help=True)


@app.callback()
def config() -> None:
    """Show the settings and their sources."""


@app.command()
@with_output
def show(out: Output) -> None:
    """Show every setting, its value and its source; secrets are hidden."""
    from taskharbor.settings import load_settings

    settings = load_settings()
    rows = [
        {"name": one.name, "value": out.safe(one.value), "source": one.source} for one in settings.shown()
    ]
    out.items(rows, _COLUMNS)
    if not out.is_machine_readable:
        out.say(f"file: {settings.file or 'none'}; profile: {settings.profile or 'none'}")


_COLUMNS = (
    Column("SETTING", lambda row: row["name"]),
    Column("VALUE", lambda row: row["value"]),
    Column("SOURCE", lambda row: row["source"]),
)
