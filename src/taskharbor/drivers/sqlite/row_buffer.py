"""Rows that wait: what is stored job by job, written by few statements.

Every statement hands the interpreter over to another thread and back, and that costs more than its row. So a
job that is put alone (records.py) only adds rows here. They are written at the end of the step, or as soon as
a statement reads or writes one of their tables.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import TYPE_CHECKING, Any

from taskharbor.drivers.sqlite.rows import json_array

if TYPE_CHECKING:
    from taskharbor.drivers.sqlite.step import Step

Row = tuple[Any, ...]


class RowBuffer:
    """The rows of one step that are not written yet, by the statement that writes them."""

    __slots__ = ("_rows", "_step")

    def __init__(self, step: Step) -> None:
        self._step = step
        self._rows: dict[str, list[Row]] = {}

    def __bool__(self) -> bool:
        return bool(self._rows)

    def add(self, name: str, row: Row) -> None:
        rows = self._rows.get(name)
        if rows is None:
            self._rows[name] = [row]
        else:
            rows.append(row)

    def of(self, name: str) -> list[Row]:
        """The rows that wait for one statement, to be changed in place."""
        return self._rows.setdefault(name, [])

    def write_for(self, name: str) -> None:
        """Write what waits for a table that this statement reads or writes."""
        tables = self._step.sql.tables[name]
        for waiting in [waiting for waiting in self._rows if _TARGETS[waiting] in tables]:
            self._write(waiting)

    def write(self) -> None:
        """Write all of it."""
        for name in list(self._rows):
            self._write(name)

    def clear(self) -> None:
        """After a part of the step was rolled back."""
        self._rows.clear()

    def _write(self, name: str) -> None:
        rows = self._rows.pop(name)
        if not rows:
            return
        if name in _TOGETHER:
            _TOGETHER[name](self._step, rows)
        elif len(rows) == 1:
            self._step.execute_row(name, rows[0])
        else:
            self._step.execute_rows(name, len(rows[0]), list(chain.from_iterable(rows)))


# ------------------------------------------------------------------ rows that become one


def _leave_claims(step: Step, rows: list[Row]) -> None:
    """(claim, how many jobs fewer run under it)"""
    counts: dict[int, int] = {}
    for no, count in rows:
        counts[no] = counts.get(no, 0) + count
    for no, count in counts.items():
        step.leave_claim(no, count)


def _finish(step: Step, rows: list[Row]) -> None:
    """(queue, state, when it ended, seq)"""
    batches: dict[Row, list[int]] = {}
    for *end, seq in rows:
        batches.setdefault(tuple(end), []).append(seq)
    for (queue, state, at), seqs in batches.items():
        ends = {"queue": queue, "state": state, "at": at, "started_at": None, "token": None}
        step.execute("settle_finished", seqs=json_array(seqs), **ends)


def _end_keys(step: Step, rows: list[Row]) -> None:
    """(when its idempotency keys expire, id)"""
    ids: dict[int, list[str]] = {}
    for expires_at, job_id in rows:
        ids.setdefault(expires_at, []).append(job_id)
    for expires_at, mine in ids.items():
        step.execute("idempotency_end", expires_at=expires_at, ids=json_array(mine))


_TOGETHER: dict[str, Callable[[Step, list[Row]], None]] = {
    "claim_leave": _leave_claims,
    "settle_finished": _finish,
    "idempotency_end": _end_keys,
}
# The table that each statement writes.
_TARGETS = {
    "claim_leave": "claim",
    "settle_finished": "finished",
    "idempotency_end": "idempotency",
    "settle_results": "job_result",
    "put_job": "job",
    "put_state": "job_state",
    "put_history": "job_history",
    "put_waiting": "waiting",
    "family_put_bond": "bond",
    "family_put": "family",
    "edge_add": "edge",
    "note_add": "note",
    "owed_add": "owed",
}
SIZED = tuple(name for name in _TARGETS if name not in _TOGETHER)
"""Statements with a row of values for each job."""
