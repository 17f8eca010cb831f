"""Rows that wait to be written: nothing that is read can miss them, and what fails leaves none."""

import sqlite3
from contextlib import closing

import pytest

from taskharbor.drivers.sqlite.row_buffer import _TARGETS
from taskharbor.drivers.sqlite.schema import MIGRATIONS
from taskharbor.drivers.sqlite.step import HandleCache, Step, statements_for
from taskharbor.drivers.sqlite.wakeups import Notices
from taskharbor.errors import StoreRefused
from taskharbor.model.clock import EPOCH

STATEMENTS = statements_for("th_")


@pytest.fixture
def step():
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        for migration in MIGRATIONS:
            for statement in migration.statements():
                connection.execute(statement)
        connection.execute("begin")
        yield Step(connection, STATEMENTS, HandleCache(), EPOCH, Notices())


def notes(step):
    """What the table has, asked for behind the back of the step."""
    return step.connection.execute("select seq, no from th_note order by seq, no").fetchall()


@pytest.mark.parametrize(("name", "table"), _TARGETS.items())
def test_rows_are_known_by_the_table_that_their_statement_writes(name, table):
    assert STATEMENTS[name].startswith(
        (f"insert into th_{table} ", f"insert or replace into th_{table} ", f"update th_{table} ")
    )


def test_rows_are_written_before_a_statement_reads_their_table(step):
    for no in range(12):
        step.add_row("note_add", 7, no, "name", 0, b"")
    assert notes(step) == []

    step.fetch_all("owed_next")  # of another table
    assert notes(step) == []

    assert len(step.fetch_all("note_get", seqs="[7]")) == 12


def test_rows_are_written_at_the_end_of_the_step(step):
    step.add_row("note_add", 7, 0, "name", 0, b"")
    step.finish()

    assert notes(step) == [(7, 0)]


def test_a_part_that_fails_leaves_no_rows_and_keeps_those_before_it(step):
    step.add_row("note_add", 1, 0, "before", 0, b"")

    def part():
        step.add_row("note_add", 2, 0, "within", 0, b"")
        raise StoreRefused("no")

    _, error = step.attempt(part, "jobs.db")
    step.finish()

    assert isinstance(error, StoreRefused)
    assert notes(step) == [(1, 0)]
