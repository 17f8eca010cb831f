"""What a row can never say is refused by the table itself, whoever writes it."""

import sqlite3

import pytest

from taskharbor.drivers.migrations import find_migrations


@pytest.fixture
def tables():
    connection = sqlite3.connect(":memory:")
    for migration in find_migrations("taskharbor.drivers.sqlite"):
        connection.executescript(migration.text)
    yield connection
    connection.close()


@pytest.mark.parametrize(
    "nonsense",
    [
        "insert into th_body values (1, 'id', 'q', 't', 'any', 101, 0, null, null, null, x'')",
        "insert into th_ready values ('q', 'any', -101, 0, 1, 1, 0, 0, 't', null)",
        "insert into th_ready values ('q', 'any', 0, 0, 1, 1, 2, 0, 't', null)",
        "insert into th_grant values (1, 'q', 't', 'w', 0, 0, 0, 0, -1, '[]')",
        "insert into th_grant values (1, 'q', 't', 'w', 0, 0, 0, -1, 1, '[]')",
        "insert into th_outcome values (1, 1, 'q', 'nonsense', 0, null, null, null)",
        "insert into th_key values ('q', x'00', 3, 1)",
        "insert into th_spent values ('execute/q', 0, -1)",
    ],
)
def test_nonsense_is_refused(tables, nonsense):
    with pytest.raises(sqlite3.IntegrityError, match="CHECK"):
        tables.execute(nonsense)
