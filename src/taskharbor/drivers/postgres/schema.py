"""The schema of a Postgres store: what it has, what it needs, and how it gets there.

**Tables** come from numbered migrations. `.pre` migrations only add and run before new code is deployed, so
the code of the release before keeps working on them. `.post` migrations take away and run after it. So code
starts when it finds every `.pre` that it knows, and no `.post` that it does not know.

**Functions** are in sql/functions, one file each. `migrate` applies those whose text has changed. The table
`function_text` has a digest of each, and the number of the function set they came from; a program whose own
number is lower changes nothing. Code starts when the store has every function that it calls, by name,
whatever the text is, so old and new programs work side by side. That is why the arguments of a function never
change: a function with other arguments needs a new name.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any

from taskharbor.drivers.migrations import Migration, find_migrations, pending
from taskharbor.drivers.postgres.address import Address
from taskharbor.drivers.postgres.connections import OUR_PATH
from taskharbor.drivers.postgres.faults import MIGRATE
from taskharbor.drivers.postgres.statements import FILES
from taskharbor.drivers.sqlfiles import folder_of
from taskharbor.errors import SchemaOutOfDate, StoreRefused

log = logging.getLogger("taskharbor.drivers.postgres")
MIGRATIONS = find_migrations("taskharbor.drivers.postgres")
FUNCTION_SET = 22
"""The number of the set in sql/functions. A change of one of them adds 1: a test holds the two together."""
OLDEST_SERVER = 140000

# Plans are made once per session, often while the tables are empty, and kept when they are full. To a
# planner that believes in one row, reading a whole index is as good as a look-up. So nothing but look-ups is
# allowed, and every look-up by id is in a lateral subquery of its own (`offset 0` keeps it there), where the
# key is the only way. The target of an UPDATE cannot be in one: `s.id >= i.id and s.id <= i.id` is a look-up
# that the planner cannot turn round, as it could with `=`. No id is looked up twice, so nothing is memoized.
_PLAN = (
    "set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off"
    " set enable_mergejoin = off set enable_memoize = off set jit = off"
    " set plan_cache_mode = force_generic_plan"
)
_OUR_NAMES = f"set local search_path = {OUR_PATH}"
_UNRELEASED = "0001_tables.pre"

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
);
create table if not exists {schema}.function_text (
    name         text primary key,
    digest       text not null,
    set_number   integer not null,
    applied_at   timestamptz not null default clock_timestamp()
)
"""

_FOR_HANDS = f"""\
-- Names mean what the server means by them, whatever others have created in schemas of your search_path.
set search_path = {OUR_PATH};

"""


class Functions:
    """The texts of the functions of sql/functions, for any schema."""

    def __init__(self, texts: Mapping[str, str], number: int) -> None:
        self.texts = {name: text.replace("{plan}", _PLAN) for name, text in sorted(texts.items())}
        self.digests = {
            name: hashlib.sha256(text.encode()).hexdigest()[:16] for name, text in self.texts.items()
        }
        self.number = number

    def different(self, stored: Mapping[str, str]) -> list[str]:
        """Those whose text is not the one that a store has."""
        return [name for name, digest in self.digests.items() if stored.get(name) != digest]

    def to_apply(self, stored: Mapping[str, str], number: int) -> list[str]:
        """Those that `migrate` applies to a store whose functions come from the set with this number."""
        return self.different(stored) if self.number >= number else []

    def script(self, names: Iterable[str]) -> str:
        """The statements that bring a store these functions. No function may be called by PUBLIC."""
        noted = "".join(
            f"insert into {{schema}}.function_text (name, digest, set_number)"  # noqa: S608 - names of our own
            f" values ('{name}', '{self.digests[name]}', {self.number}) on conflict (name) do update set"
            " digest = excluded.digest, set_number = excluded.set_number, applied_at = clock_timestamp();\n"
            for name in names
        )
        texts = "\n".join(self.texts[name].rstrip() for name in names)
        return f"{texts}\n\nrevoke execute on all functions in schema {{schema}} from public;\n{noted}"


def read_functions() -> Functions:
    root = folder_of("taskharbor.drivers.postgres") / "sql" / "functions"
    return Functions(
        {path.stem: path.read_text(encoding="utf-8") for path in root.glob("*.sql")}, FUNCTION_SET
    )


FUNCTIONS = read_functions()
CALLED = sorted(
    {name for statement in FILES.names() for name in re.findall(r"\{schema\}\.(\w+)\(", FILES[statement])}
)
"""The functions that this code calls by name."""


def filled(text: str, address: Address) -> str:
    return text.replace("{schema}", address.identifier).replace("{schema_text}", f"'{address.schema}'")


def scripts(address: Address) -> list[tuple[str, str]]:
    """Everything as (name, SQL), each with the lines that note it in the store, for this schema."""
    ledger = ("0000_ledger", f"{_FOR_HANDS}{_LEDGER.strip()};\n")
    noted = [
        (m.name, f"{m.text.rstrip()}\ninsert into {{schema}}.migration (name) values ('{m.name}');\n")
        for m in MIGRATIONS
    ]
    functions = ("functions", FUNCTIONS.script(FUNCTIONS.texts))
    return [(name, filled(text, address)) for name, text in (ledger, *noted, functions)]


def needed(applied: Iterable[str]) -> tuple[Migration, ...]:
    """What this code would apply. A store that has lost what this code needs is refused."""
    names = list(applied)
    if _UNRELEASED in names:
        raise StoreRefused(
            "this store was made by an unreleased version of TaskHarbor, which no release can migrate: "
            "use a new schema"
        )
    known = {migration.name for migration in MIGRATIONS}
    return pending(MIGRATIONS, [name for name in names if name in known or not name.endswith(".pre")])


def check(applied: Iterable[str], functions: Iterable[str], address: Address) -> None:
    """Refuse a store that this code cannot work with, and say what to do."""
    missing = [migration.name for migration in needed(applied) if not migration.name.endswith(".post")]
    missing += [f"function {name}" for name in CALLED if name not in set(functions)] if not missing else []
    if missing:
        raise SchemaOutOfDate(
            f"the schema {address.schema!r} at {address.shown} is not up to date: {', '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} missing; {MIGRATE}",
            tuple(missing),
        )


# ------------------------------------------------------------------ what a store has

_APPLIED = "select name from {schema}.migration order by name"
_FUNCTIONS = (
    "select proname::text from pg_catalog.pg_proc where pronamespace = pg_catalog.to_regnamespace($1)"
)
_TEXTS = "select name, digest, set_number from {schema}.function_text"


async def applied_names(connection: Any, address: Address) -> list[str]:
    """What the store's own ledger says; nothing when there is none."""
    if await connection.fetchval("select to_regclass($1)", f"{address.identifier}.migration") is None:
        return []
    return [row[0] for row in await connection.fetch(filled(_APPLIED, address))]


async def function_names(connection: Any, address: Address) -> list[str]:
    return [row[0] for row in await connection.fetch(_FUNCTIONS, address.identifier)]


async def function_texts(connection: Any, address: Address) -> tuple[dict[str, str], int]:
    """The digests of the functions of a store, and the highest number of a set that they came from."""
    if await connection.fetchval("select to_regclass($1)", f"{address.identifier}.function_text") is None:
        return {}, 0
    rows = await connection.fetch(filled(_TEXTS, address))
    return {row[0]: row[1] for row in rows}, max((row[2] for row in rows), default=0)


async def pending_names(connection: Any, address: Address) -> list[str]:
    """Migrations and functions that `migrate` would apply, by name."""
    missing = [migration.name for migration in needed(await applied_names(connection, address))]
    digests, number = await function_texts(connection, address)
    return missing + [f"function {name}" for name in FUNCTIONS.to_apply(digests, number)]


def function_state(digests: Mapping[str, str], number: int) -> str:
    """Whether the functions of a store are those of this release, in words."""
    different = FUNCTIONS.different(digests)
    if not different:
        return f"as in this release (set {number})"
    return f"set {number}, this release has set {FUNCTIONS.number}; different: {', '.join(different)}"


async def migrate(connection: Any, address: Address, functions: Functions | None = None) -> list[str]:
    """Apply what is missing, in one transaction, one at a time however many try; what this call applied."""
    functions = functions or FUNCTIONS
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
        digests, number = await function_texts(connection, address)
        names = functions.to_apply(digests, number)
        if functions.number < number:
            log.warning(
                "the functions of schema %r stay as they are: they are of a newer release (%d, here %d)",
                address.schema,
                number,
                functions.number,
            )
        if names:
            await _refuse_other_arguments(connection, address, functions, names)
            await connection.execute(filled(functions.script(names), address))
    return [*(migration.name for migration in missing), *(f"function {name}" for name in names)]


async def _refuse_other_arguments(
    connection: Any, address: Address, functions: Functions, names: Iterable[str]
) -> None:
    """The programs of the release before call these functions: with other arguments one needs a new name."""
    for name in names:
        before = await _oids(connection, address, name)
        if not before:
            continue
        await connection.execute("savepoint before_it")
        try:
            await connection.execute(filled(functions.texts[name], address))
            after = await _oids(connection, address, name)
        except Exception as error:
            if (
                getattr(error, "sqlstate", None) != "42P13"
            ):  # another result type, or other names of arguments
                raise
            after = []
        await connection.execute("rollback to before_it")
        if before != after:
            raise StoreRefused(
                f"the function {name} in the schema {address.schema!r} has other arguments or results than "
                "in this release; nothing was changed. A function that changes these needs a new name"
            )


async def _oids(connection: Any, address: Address, name: str) -> list[int]:
    rows = await connection.fetch(
        "select oid from pg_catalog.pg_proc"
        " where pronamespace = pg_catalog.to_regnamespace($1) and proname = $2 order by 1",
        address.identifier,
        name,
    )
    return [row[0] for row in rows]
