"""The schema and the statements: the sum of the migrations, and nothing that nobody uses."""

import re
import sqlite3
from importlib.resources import files
from pathlib import Path

from taskharbor.drivers.sqlite.location import Location
from taskharbor.drivers.sqlite.schema import MIGRATIONS
from taskharbor.drivers.sqlite.statements import _FILES, in_namespace, statements_for

FOLDER = Path(str(files("taskharbor.drivers.sqlite"))) / "sql"
NAMES = set(re.findall(r":([a-z_]+)", "\n".join(_FILES[name] for name in _FILES.names())))


def made_by(statements):
    connection = sqlite3.connect(":memory:")
    for statement in statements:
        connection.execute(statement)
    rows = connection.execute("select type, name, sql from sqlite_master order by type, name").fetchall()
    connection.close()
    return [(kind, name, " ".join((sql or "").split())) for kind, name, sql in rows]


def test_the_schema_file_is_the_sum_of_the_migrations():
    by_steps = [statement for migration in MIGRATIONS for statement in migration.statements()]
    at_once = _FILES["schema"].split(";\n")

    assert made_by(by_steps) == made_by(at_once)


def test_every_statement_can_be_prepared_in_every_namespace():
    for namespace in ("", "Blue.Harbor-2"):
        prefix = Location(path="unused", namespace=namespace).table_prefix
        connection = sqlite3.connect(":memory:")
        for migration in MIGRATIONS:
            for statement in migration.statements():
                connection.execute(in_namespace(statement, prefix))
        statements = statements_for(prefix)
        for name in statements.keys() - {"schema"}:
            text = statements[name]
            values = [None] * text.count("?") if "?" in text else dict.fromkeys(NAMES)
            connection.execute(f"explain {text}", values)
        connection.close()


def test_every_statement_says_what_it_promises():
    for path in sorted(FOLDER.glob("*.sql")):
        first = path.read_text(encoding="utf-8").splitlines()[0]
        assert first.startswith(f"-- {path.stem}: "), path.name


def test_no_statement_is_without_a_caller():
    source = "\n".join(path.read_text(encoding="utf-8") for path in FOLDER.parent.glob("*.py"))

    unused = [name for name in _FILES.names() if name != "schema" and f'"{name}"' not in source]

    # The listing builds these names from their parts.
    assert [name for name in unused if not name.endswith("_anywhere")] == []
