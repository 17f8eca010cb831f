"""The schema of a Postgres store: what it has, what it needs, and how it gets there.

`.pre` migrations only add and run before new code is deployed, so the code of the release before
keeps working on them. `.post` migrations take away and run after it. So code starts when it finds
every `.pre` that it knows, and no `.post` that it does not know.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import psycopg

from taskharbor.drivers.migrations import Migration, find_migrations, pending, printed
from taskharbor.drivers.postgres.address import Address, address_of
from taskharbor.drivers.postgres.connections import OUR_PATH
from taskharbor.drivers.postgres.faults import MIGRATE, translated
from taskharbor.errors import SchemaOutOfDate

MIGRATIONS = find_migrations("taskharbor.drivers.postgres")
OLDEST_SERVER = 140000

_OUR_NAMES = f"set local search_path = {OUR_PATH}"

# `create schema if not exists` asks for the right to create one even where it is there.
_LEDGER = """
do $$
begin
    if not exists (select from pg_catalog.pg_namespace n where n.nspname = {schema_text}) then
        create schema {schema};
    end if;
end $$;
create table if not exists {schema}.migration (
    name        text primary key,
    applied_at  timestamptz not null default clock_timestamp()
)
"""


_FOR_HANDS = f"""\
-- Names mean what the server means by them, whatever others have created in schemas of your search_path.
set search_path = {OUR_PATH};

"""


def filled(text: str, address: Address) -> str:
    return text.replace("{schema}", address.identifier).replace("{schema_text}", f"'{address.schema}'")


def migrations_text(address: Address) -> str:
    """Everything as one script, for whoever applies it by hand."""
    marks = "\n".join(f"insert into {{schema}}.migration (name) values ('{m.name}');" for m in MIGRATIONS)  # noqa: S608
    return filled(f"{_FOR_HANDS}{_LEDGER.strip()};\n\n{printed(MIGRATIONS)}\n{marks}\n", address)


def scripts(address: Address) -> list[tuple[str, str]]:
    """The migrations as (name, SQL), each with the line that notes it in the ledger, for this schema."""
    ledger = ("0000_ledger", f"{_FOR_HANDS}{_LEDGER.strip()};\n")
    noted = [
        (m.name, f"{m.text.rstrip()}\ninsert into {{schema}}.migration (name) values ('{m.name}');\n")
        for m in MIGRATIONS
    ]
    return [(name, filled(text, address)) for name, text in (ledger, *noted)]


def needed(applied: Iterable[str]) -> tuple[Migration, ...]:
    """What this code would apply. A store that has lost what this code needs is refused."""
    known = {migration.name for migration in MIGRATIONS}
    return pending(MIGRATIONS, [name for name in applied if name in known or not name.endswith(".pre")])


def check(applied: Iterable[str], address: Address) -> None:
    """Refuse a store that this code cannot work with, and say what to do."""
    missing = [migration.name for migration in needed(applied) if not migration.name.endswith(".post")]
    if missing:
        raise SchemaOutOfDate(
            f"the schema {address.schema!r} at {address.shown} is not up to date: {', '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} missing; {MIGRATE}",
            tuple(missing),
        )


async def applied_names(connection: Any, address: Address) -> list[str]:
    """What the store's own ledger says; nothing when there is none."""
    if await connection.fetchval("select to_regclass($1)", f"{address.identifier}.migration") is None:
        return []
    rows = await connection.fetch(filled("select name from {schema}.migration order by name", address))
    return [row[0] for row in rows]


async def migrate(connection: Any, address: Address) -> list[str]:
    """Apply what is missing, in one transaction, one at a time however many try; what this call applied."""
    async with connection.transaction():
        await connection.execute(_OUR_NAMES)
        await connection.execute("select pg_advisory_xact_lock(hashtextextended($1, 21))", address.schema)
        await connection.execute(filled(_LEDGER, address))
        missing = needed(await applied_names(connection, address))
        for migration in missing:
            await connection.execute(filled(migration.text, address))
            await connection.execute(
                filled("insert into {schema}.migration (name) values ($1)", address), migration.name
            )
    return [migration.name for migration in missing]


def migrate_blocking(url: str) -> list[str]:
    """The same for blocking callers, before any driver is open."""
    address = address_of(url)
    with translated(), psycopg.connect(address.dsn) as connection:
        connection.execute(_OUR_NAMES.encode())
        connection.execute("select pg_advisory_xact_lock(hashtextextended(%s, 21))", [address.schema])
        connection.execute(filled(_LEDGER, address).encode())
        rows = connection.execute(filled("select name from {schema}.migration", address).encode()).fetchall()
        missing = needed([row[0] for row in rows])
        for migration in missing:
            connection.execute(filled(migration.text, address).encode())
            connection.execute(
                filled("insert into {schema}.migration (name) values (%s)", address).encode(),
                [migration.name],
            )
    return [migration.name for migration in missing]
