"""What a row can never say is refused by the table itself, for every writer."""

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
        "insert into th_job values (1, 'id', 'q', 't', 'any', 101, 0, null, null, null, null, null, x'')",
        "insert into th_job_state values (1, 1, null, null, 0, 1, 0, 0, null)",
        "insert into th_waiting values ('q', 'any', 't', -101, 0, 1, 0)",
        "insert into th_claim values (1, 'q', 't', 'w', 0, 0, 0, 0, 0, '[]')",
        "insert into th_claim values (1, 'q', 't', 'w', 0, 0, 0, -1, 1, '[]')",
        "insert into th_finished values (1, 'q', 3, 0, null, null, '[]')",
        "insert into th_rate_usage values ('execute/q', 0, -1)",
    ],
)
def test_nonsense_is_refused(tables, nonsense):
    with pytest.raises(sqlite3.IntegrityError, match="CHECK"):
        tables.execute(nonsense)
