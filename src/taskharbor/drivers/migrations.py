"""Numbered migrations: find them, order them, list what is pending, print them.

A migration is a file `0007_lease_token.sql` in the driver's `sql/migrations`. `.pre` before the ending
means that it runs before the new code is deployed, `.post` that it runs after. Forward only. Applying them
and recording that is up to each driver; what is here is the same for all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec

from taskharbor.drivers.sqlfiles import folder_of, without_comments
from taskharbor.errors import SchemaOutOfDate

_NAME = re.compile(r"(\d{4})_[a-z0-9_]+(\.pre|\.post)?")


class Migration(msgspec.Struct, frozen=True):
    """One migration."""

    number: int
    name: str
    text: str

    def statements(self) -> list[str]:
        """Its statements; each ends with a semicolon at the end of a line."""
        parts = re.split(r";[ \t]*(?:--[^\n]*)?$", without_comments(self.text), flags=re.MULTILINE)
        return [part.strip() for part in parts if part.strip()]


class MigrationLedger(msgspec.Struct, frozen=True, kw_only=True):
    """Where a store notes what it has, as tables, and the functions that this code brings."""

    migrations: str
    additions: str | None = None
    """Another table of migrations: those that a program of the release before need not know."""
    functions: str | None = None
    digests: dict[str, str] = {}
    """Of each function, by name."""
    number: int = 0
    """Of the set of functions; a store with a higher one is of a newer release, and keeps its own."""


def find_migrations(package: str, folder: str = "sql/migrations") -> tuple[Migration, ...]:
    """The migrations of one driver in order. A gap, a duplicate or a malformed name fails here."""
    root = folder_of(package) / folder
    found = [_migration(path.stem, path.read_text(encoding="utf-8")) for path in root.glob("*.sql")]
    found.sort(key=lambda migration: migration.number)
    numbers = [migration.number for migration in found]
    if not found or numbers != list(range(1, len(found) + 1)):
        raise RuntimeError(f"the migrations in {package}/{folder} are numbered {numbers}, not 1, 2, 3 …")
    return tuple(found)


def pending(migrations: Sequence[Migration], applied: Iterable[str]) -> tuple[Migration, ...]:
    """The migrations that a store still needs. A store that is newer than this code is refused."""
    done = set(applied)
    known = {migration.name for migration in migrations}
    if unknown := sorted(done - known):
        raise SchemaOutOfDate(
            f"the store was migrated by a newer TaskHarbor (it has {', '.join(unknown)}); nothing was "
            "changed. Upgrade taskharbor here to the version that runs elsewhere"
        )
    return tuple(migration for migration in migrations if migration.name not in done)


def printed(migrations: Sequence[Migration]) -> str:
    """The migrations as one script, to read or to run by hand."""
    return "\n".join(
        f"-- migration {migration.name}\n{migration.text.rstrip()}\n" for migration in migrations
    )


def _migration(name: str, text: str) -> Migration:
    fits = _NAME.fullmatch(name)
    if fits is None:
        raise RuntimeError(
            f"{name!r} is no name for a migration: 0007_what_it_does, perhaps with .pre or .post"
        )
    return Migration(int(fits.group(1)), name, text)
