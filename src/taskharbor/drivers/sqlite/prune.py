"""Forgetting: finished jobs by the retention of their queue, idempotency keys, idle budgets."""

from __future__ import annotations

from collections.abc import Iterator

from taskharbor.drivers.sqlite import gates
from taskharbor.drivers.sqlite.records import json_text
from taskharbor.drivers.sqlite.runs import Run
from taskharbor.drivers.sqlite.step import Step, blocks_of
from taskharbor.model.clock import span_micros
from taskharbor.model.state import JobState


def prune(step: Step, limit: int) -> int:
    """Up to `limit` finished jobs whose retention is over, oldest first within a queue and state."""
    step.run("prune_idempotency", now=step.us, limit=limit)
    for (name,) in step.all("prune_budgets", now=step.us):
        gates.forget_budget(step, name)
    step.run("report_worker_lapsed", now=step.us)
    pruned = 0
    for queue, state in _kinds(step):
        keep = gates.retention(step, queue).of(state)
        if keep is not None and pruned < limit:
            pruned += _prune_kind(step, queue, state, step.us - span_micros(keep), limit - pruned)
    return pruned


def _kinds(step: Step) -> Iterator[tuple[str, JobState]]:
    """Every queue and state with ends; a jump each, however many ends there are."""
    queue, state = "", ""
    while (row := step.one("prune_next_kind", queue=queue, state=state)) is not None:
        queue, state = row
        yield queue, JobState(state)


def _prune_kind(step: Step, queue: str, state: JobState, until: int, limit: int) -> int:
    pruned = 0
    while pruned < limit:
        runs = step.all("prune_over", queue=queue, state=state, until=until, limit=min(limit - pruned, 100))
        if not runs:
            break
        pruned += _drop(step, queue, state, runs, limit - pruned)
    return pruned


def _drop(step: Step, queue: str, state: JobState, runs: list[Run], limit: int) -> int:
    """Forget up to `limit` jobs of these runs of ends."""
    seqs: list[int] = []
    gone: list[int] = []
    for first, last in runs:
        until = min(last, first + limit - len(seqs) - 1)
        if until < first:
            break
        if until < last:
            step.run("outcome_split", run=first, at=until + 1)
        seqs += range(first, until + 1)
        gone.append(first)
    _count_out(step, queue, state, seqs)
    step.run("prune_outcomes", seqs=json_text(gone))
    text = json_text(seqs)
    for statement in ("drop_results", "drop_past", "drop_aliases", "drop_body"):
        step.run(statement, seqs=text)
    return len(seqs)


def _count_out(step: Step, queue: str, state: JobState, seqs: list[int]) -> None:
    copies = {seq for (seq,) in step.all("prune_copies", seqs=json_text(seqs))}
    listed = [seq for seq in seqs if seq not in copies]
    for block, count in blocks_of(listed).items() if listed else ():
        step.count_block(queue, block, state, -count)
