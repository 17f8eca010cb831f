"""The statements: each can be prepared, says what it promises and is used."""

import sqlite3
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

from taskharbor.drivers.sqlite.location import Location
from taskharbor.drivers.sqlite.schema import MIGRATIONS
from taskharbor.drivers.sqlite.step import _FILES, in_namespace, statements_for

FOLDER = Path(str(files("taskharbor.drivers.sqlite"))) / "sql"


class Names(dict[str, None]):
    """A value for every parameter."""

    def __missing__(self, name):
        return None


def test_every_statement_can_be_prepared_in_every_namespace():
    for namespace in ("", "Blue.Harbor-2"):
        prefix = Location(path="unused", namespace=namespace).table_prefix
        connection = sqlite3.connect(":memory:")
        for migration in MIGRATIONS:
            for statement in migration.statements():
                connection.execute(in_namespace(statement, prefix))
        statements = statements_for(prefix)
        picks = [statements.pick(types) for types in (1, 2, 1000)]
        for text in [*statements.values(), *picks]:
            if "{" in text:  # it is part of a pick
                continue
            values = [None] * text.count("?") if "?" in text else Names()
            connection.execute(f"explain {text}", values)
        connection.close()


def test_every_statement_says_what_it_promises():
    for path in sorted(FOLDER.glob("*.sql")):
        lines = path.read_text(encoding="utf-8").splitlines()
        assert lines[0].startswith("-- "), path.name
        for before, after in pairwise(lines):
            if before.startswith("-- name: "):
                assert after.startswith("-- "), before


def test_no_statement_is_without_a_caller():
    source = "\n".join(path.read_text(encoding="utf-8") for path in FOLDER.parent.glob("*.py"))

    unused = [name for name in _FILES.names() if f'"{name}"' not in source]

    assert unused == []
