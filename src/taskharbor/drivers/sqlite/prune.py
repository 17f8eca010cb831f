"""Retention that is over: finished jobs are forgotten, plain ones by sets, families with their root.

A batch of `th_finished` is a hint. What prune finds in one it forgets, but for jobs that a family still
needs: a child waits in `th_kept` for its root, and a root that cannot go yet gets a batch of its own again.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from typing import NamedTuple

import msgspec

from taskharbor.drivers.family_verbs import is_named
from taskharbor.drivers.sqlite import gates
from taskharbor.drivers.sqlite.families import TIES, FamilyRecords
from taskharbor.drivers.sqlite.rows import CODES, STATES, Flags, json_array
from taskharbor.drivers.sqlite.step import Step
from taskharbor.model.clock import micros, span_micros
from taskharbor.model.job import JobRecord
from taskharbor.model.state import JobState

_seqs = msgspec.json.Decoder(list[int])

_KEPT_PER_JOB = 10
"""So many children may be set aside per job that may go: that costs little, but not nothing."""

_JOB_TABLES = ("drop_results", "drop_history", "drop_aliases", "drop_job", "drop_state")


class EndedTogether(NamedTuple):
    """Jobs that ended together."""

    no: int
    at: int
    seqs: list[int]


class Due(NamedTuple):
    """Finished jobs of one queue and state whose retention is over."""

    queue: str
    state: JobState
    until: int


def prune(step: Step, limit: int) -> int:
    """Up to `limit` finished jobs whose retention is over, oldest first within a queue and state."""
    step.execute("prune_idempotency", now=step.us, limit=limit)
    for (name,) in step.fetch_all("prune_rates", now=step.us):
        gates.forget_rate(step, name)
    step.execute("worker_forget_expired", now=step.us)
    step.execute("log_prune", now=step.us, limit=limit)
    pruned = 0
    for queue, state in kinds_of_finished(step):
        keep = step.retention_of(queue).of(state)
        if keep is not None and pruned < limit:
            due = Due(queue, state, step.us - span_micros(keep))
            pruned += _PruneKind(step, due).prune(limit - pruned)
    return pruned


def kinds_of_finished(step: Step, statement: str = "prune_next_kind") -> Iterator[tuple[str, JobState]]:
    """Every queue and state with finished jobs; one look-up each, however many jobs there are."""
    queue, state = "", 0
    while (row := step.fetch_one(statement, queue=queue, state=state)) is not None:
        queue, state = row
        yield queue, STATES[state]


class _PruneKind:
    """The due jobs of one queue and state."""

    def __init__(self, step: Step, due: Due) -> None:
        self._step = step
        self._due = due
        self._needed: list[JobRecord] = []  # roots that cannot go yet

    def prune(self, limit: int) -> int:
        pruned, room = 0, limit * _KEPT_PER_JOB
        while pruned < limit and room > 0:
            batches = self._batches(limit - pruned)
            if not batches:
                break
            ends, rest = _first_of(batches, limit - pruned)
            gone, tied = self._forget(ends)
            pruned += gone
            if tied:
                room -= len(tied)
                pruned += self._forget_families(tied, limit - pruned)
            self._use_up(batches, rest)
        for job in self._needed:
            self._finished_again(job)
        return pruned

    def _batches(self, most: int) -> list[EndedTogether]:
        due, most = self._due, min(most, 100)
        rows = self._step.fetch_all(
            "prune_batches", queue=due.queue, state=CODES[due.state], until=due.until, limit=most
        )
        return [EndedTogether(no, at, _seqs.decode(text)) for no, at, text in rows]

    def _use_up(self, batches: list[EndedTogether], rest: EndedTogether | None) -> None:
        """Forget batches up to the one that has jobs left."""
        done = list(takewhile(lambda no: rest is None or no != rest.no, (batch.no for batch in batches)))
        if rest is not None:
            self._step.execute("prune_batch_rest", no=rest.no, seqs=json_array(rest.seqs))
        self._step.execute("prune_batches_done", nos=json_array(done))

    def _forget(self, ends: list[tuple[int, int]]) -> tuple[int, list[tuple[int, int]]]:
        """Forget those of these jobs that are still as they ended; returns also those of families."""
        step, due = self._step, self._due
        once = list(dict.fromkeys(ends))  # a job that ran again may have ended twice at one instant
        rows = step.fetch_all("prune_over", ends=json_array(once), state=CODES[due.state])
        plain = [(seq, is_copy) for seq, is_copy, flags, _ in rows if not flags & TIES]
        step.count_seqs(due.queue, [seq for seq, is_copy in plain if not is_copy], due.state, -1)
        seqs = json_array([seq for seq, _ in plain])
        for statement in _JOB_TABLES:
            step.execute(statement, seqs=seqs)
        return len(plain), [(seq, at) for seq, _, flags, at in rows if flags & TIES]

    # ------------------------------------------------------------------ families

    def _forget_families(self, ends: list[tuple[int, int]], limit: int) -> int:
        """Roots go with their children; children whose time has come wait for their root."""
        step, due = self._step, self._due
        seqs = json_array([seq for seq, _ in ends])
        step.execute("kept_history", seqs=seqs)
        step.execute("kept_state", seqs=seqs)
        step.execute("kept_add", queue=due.queue, state=CODES[due.state], ends=json_array(ends))
        roots = [seq for (seq,) in step.fetch_all("kept_roots", seqs=seqs)]
        records = FamilyRecords(step)
        pruned = 0
        for root in records.by_seqs(roots) if roots else ():
            pruned += _prune_family(step, records, root, limit - pruned)
            if records.at(root.seq) is not None:
                self._needed.append(root)
        return pruned

    def _finished_again(self, job: JobRecord) -> None:
        self._step.execute(
            "settle_finished",
            queue=job.queue,
            state=CODES[job.state],
            at=micros(job.updated_at),
            started_at=None,
            token=None,
            seqs=json_array([job.seq]),
        )


def _first_of(batches: list[EndedTogether], most: int) -> tuple[list[tuple[int, int]], EndedTogether | None]:
    """The first so many jobs with their ends, and what is left of the batch of the last one."""
    ends: list[tuple[int, int]] = []
    for no, at, seqs in batches:
        room = most - len(ends)
        ends += [(seq, at) for seq in seqs[:room]]
        if len(seqs) > room:
            return ends, EndedTogether(no, at, seqs[room:])
    return ends, None


def _prune_family(step: Step, records: FamilyRecords, job: JobRecord, limit: int) -> int:
    """Forget a finished job, its children first. Returns how many went, at most `limit`."""
    rows = step.fetch_all("family_children", parent=job.seq, limit=limit)
    leaves = [row for row in rows if row[1] & Flags.CHILD]
    pruned = _drop_leaves(step, leaves)
    for child in records.by_seqs([row[0] for row in rows if not row[1] & Flags.CHILD]):
        pruned += _prune_family(step, records, child, limit - pruned)
    is_needed = pruned >= limit or records.has_children(job.id) or is_named(records, job)
    if not is_needed:
        records.drop(job)
    return pruned + (not is_needed)


def _drop_leaves(step: Step, rows: list[tuple[int, int, str, int, int]]) -> int:
    """Forget children that have only a parent."""
    for seq, _, queue, state, since in rows:
        step.count(queue, seq, STATES[state], -1)
        step.execute("kept_leave", queue=queue, state=state, at=since, seq=seq)
    seqs = json_array([row[0] for row in rows])
    for statement in (*_JOB_TABLES, "family_drop_bonds") if rows else ():
        step.execute(statement, seqs=seqs)
    return len(rows)
