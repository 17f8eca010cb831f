"""Leases as they are kept: rows of jobs that run alike, each pointing to the grant of its claim."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from taskharbor.drivers.sqlite.records import json_text
from taskharbor.drivers.sqlite.runs import Run, rest_of, runs_of, within
from taskharbor.drivers.sqlite.step import Step
from taskharbor.model.job import Lease


class Held(NamedTuple):
    """A row of leases and its grant."""

    seq: int
    last: int
    flags: int
    bumps: int
    fence: int | None
    past_version: int | None
    no: int
    queue: str
    token: str
    worker: str
    started_at: int
    expires_at: int
    extensions: int
    held: int

    def fits(self, lease: Lease) -> bool:
        """Whether this is what that lease proves."""
        return lease.token == self.token and (lease.worker_id is None or lease.worker_id == self.worker)


_rows_decoder = msgspec.json.Decoder(list[Held])


def rows_of(step: Step, runs: Sequence[Run]) -> list[Held]:
    """The rows that these jobs stand in, as far as they run."""
    if len(runs) == 1 and (row := _row_around(step, runs[0])) is not None:
        return [row]
    (text,) = step.one("lease_rows", runs=json_text(runs))
    return list({row.seq: row for row in _rows_decoder.decode(text)}.values())


def _row_around(step: Step, run: Run) -> Held | None:
    """The one row that holds all of a run, if there is one."""
    found = step.one("lease_row", seq=run[0])
    return Held._make(found) if found is not None and found[1] >= run[1] else None


def end(step: Step, rows: Sequence[Held], ended: list[int]) -> None:
    """End these leases, ascending seqs of these rows; the others of the rows stay."""
    if len(rows) == 1:
        step.run("leave_lease", seq=rows[0].seq)
    else:
        step.run("lease_forget", seqs=json_text([row.seq for row in rows]))
    rest = [(*run, row.no) for row in rows for run in _rest(row, ended)]
    if rest:
        step.run("lease_keep", runs=json_text(rest))


def move(step: Step, rows: Sequence[Held], moved: list[int], no: int | None) -> None:
    """Point these leases, ascending seqs of these rows, to another grant; the others of the rows stay."""
    whole: list[int] = []
    parts: list[tuple[int, int, int | None]] = []
    cut: list[Held] = []
    for row in rows:
        rest = _rest(row, moved)
        if not rest:
            whole.append(row.seq)
            continue
        cut.append(row)
        parts += [(*run, row.no) for run in rest]
        parts += [(*run, no) for run in runs_of(within(moved, (row.seq, row.last)))]
    if whole:
        step.run("extend_move", no=no, seqs=json_text(whole))
    if cut:
        step.run("lease_forget", seqs=json_text([row.seq for row in cut]))
        step.run("lease_keep", runs=json_text(parts))


def _rest(row: Held, taken: list[int]) -> list[Run]:
    run = row.seq, row.last
    mine = within(taken, run)
    return rest_of(run, runs_of(mine)) if len(mine) <= row.last - row.seq else []
