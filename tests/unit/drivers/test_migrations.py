"""Migrations: found, ordered, and compared with what a store has."""

import sys

import pytest

from taskharbor.drivers.migrations import Migration, find_migrations, pending, printed
from taskharbor.drivers.sqlfiles import SqlFiles
from taskharbor.errors import SchemaOutOfDate

FIRST = Migration(1, "0001_jobs", "create table job (id text);\n")
SECOND = Migration(2, "0002_more.pre", "alter table job add column more text;\n")


def test_migrations_are_found_in_the_order_of_their_numbers():
    found = find_migrations("taskharbor.drivers.sqlite")

    assert [migration.number for migration in found] == list(range(1, len(found) + 1))
    assert found[0].name == "0001_schema"


def test_what_a_store_has_is_not_pending():
    assert pending([FIRST, SECOND], []) == (FIRST, SECOND)
    assert pending([FIRST, SECOND], ["0001_jobs"]) == (SECOND,)
    assert pending([FIRST, SECOND], ["0002_more.pre", "0001_jobs"]) == ()


def test_a_store_that_is_ahead_of_this_code_is_refused_with_what_to_do():
    with pytest.raises(SchemaOutOfDate, match=r"0003_future.*nothing was changed.*Upgrade taskharbor"):
        pending([FIRST, SECOND], ["0001_jobs", "0002_more.pre", "0003_future"])


def test_statements_end_at_a_semicolon_at_the_end_of_a_line():
    text = "-- first\ncreate table a (x text default ';' ); -- done\n\ncreate index b\n  on a (x);\n"

    assert Migration(1, "0001_a", text).statements() == [
        "create table a (x text default ';' )",
        "create index b\n  on a (x)",
    ]


def test_migrations_are_printed_as_one_script():
    script = printed([FIRST, SECOND])

    assert script.index("-- migration 0001_jobs") < script.index("create table job")
    assert script.index("create table job") < script.index("-- migration 0002_more.pre")
    assert script.endswith("alter table job add column more text;\n")


@pytest.mark.parametrize(
    ("files", "why"), [(["0001_jobs", "0003_more"], "numbered"), (["0001_Jobs"], "no name"), ([], "numbered")]
)
def test_a_gap_an_odd_name_or_nothing_at_all_fails_at_once(files, why, tmp_path, monkeypatch):
    package = tmp_path / "odd_store"
    (package / "sql" / "migrations").mkdir(parents=True)
    (package / "__init__.py").touch()
    for name in files:
        (package / "sql" / "migrations" / f"{name}.sql").write_text("select 1;")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "odd_store", raising=False)

    with pytest.raises(RuntimeError, match=why):
        find_migrations("odd_store")
    with pytest.raises(RuntimeError, match="incomplete"):
        SqlFiles("odd_store")
