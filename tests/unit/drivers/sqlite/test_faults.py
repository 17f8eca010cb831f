"""What SQLite says, in our words."""

import sqlite3

import pytest

from taskharbor.drivers.sqlite.faults import translated, translation
from taskharbor.errors import (
    DriverClosed,
    DriverMisbehaved,
    DriverUnavailable,
    StoreFull,
    StoreRefused,
)


def failure(code, kind=sqlite3.OperationalError, text="it failed"):
    error = kind(text)
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (sqlite3.SQLITE_BUSY, DriverUnavailable),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, DriverUnavailable),
        (sqlite3.SQLITE_LOCKED, DriverUnavailable),
        (sqlite3.SQLITE_FULL, StoreFull),
        (sqlite3.SQLITE_READONLY, StoreRefused),
        (sqlite3.SQLITE_READONLY_DIRECTORY, StoreRefused),
        (sqlite3.SQLITE_CANTOPEN, StoreRefused),
        (sqlite3.SQLITE_NOTADB, StoreRefused),
        (sqlite3.SQLITE_CORRUPT, StoreRefused),
        (sqlite3.SQLITE_IOERR_WRITE, DriverUnavailable),
        (sqlite3.SQLITE_CONSTRAINT, DriverMisbehaved),
    ],
)
def test_each_code_has_one_word_of_ours(code, expected):
    assert type(translation(failure(code), "jobs.db")) is expected


def test_only_a_failing_flush_leaves_it_open_whether_a_step_was_written():
    def done(code, committing):
        error = translation(failure(code), "jobs.db", committing=committing)
        assert isinstance(error, DriverUnavailable)
        return error.done

    assert done(sqlite3.SQLITE_BUSY, committing=True) is False
    assert done(sqlite3.SQLITE_IOERR_FSYNC, committing=False) is False
    assert done(sqlite3.SQLITE_IOERR_FSYNC, committing=True) is None


def test_a_closed_connection_is_a_closed_driver():
    error = sqlite3.ProgrammingError("Cannot operate on a closed database.")

    assert isinstance(translation(error, "jobs.db"), DriverClosed)


def test_the_cause_is_chained_and_the_file_is_named():
    with pytest.raises(StoreFull, match=r"jobs\.db") as caught, translated("jobs.db"):
        raise failure(sqlite3.SQLITE_FULL)

    assert isinstance(caught.value.__cause__, sqlite3.OperationalError)
