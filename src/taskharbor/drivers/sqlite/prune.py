"""Forgetting: finished jobs by the retention of their queue, idempotency keys, idle budgets."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from taskharbor.drivers.sqlite import gates
from taskharbor.drivers.sqlite.records import json_text
from taskharbor.drivers.sqlite.step import Step
from taskharbor.model.clock import span_micros
from taskharbor.model.state import JobState

_seqs_decoder = msgspec.json.Decoder(list[int])


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
        ends = step.all("prune_ended", queue=queue, state=state, until=until, limit=min(limit - pruned, 100))
        if not ends:
            break
        for no, ended_at, text in ends:
            seqs = _seqs_decoder.decode(text)
            now, later = seqs[: limit - pruned], seqs[limit - pruned :]
            if now:
                pruned += _drop(step, queue, state, ended_at, now)
            if later:
                step.run("prune_rest", no=no, seqs=json_text(later))
            else:
                step.run("prune_done", no=no)
    return pruned


def _drop(step: Step, queue: str, state: JobState, ended_at: int, seqs: list[int]) -> int:
    """Forget those of an end that did not live again since."""
    found = step.all("prune_listed", state=state, ended_at=ended_at, seqs=json_text(seqs))
    for seq, is_listed in found:
        if is_listed:
            step.count(queue, seq, state, -1)
    text = json_text([seq for seq, _ in found])
    for statement in ("drop_outcomes", "drop_past", "drop_aliases", "drop_body"):
        step.run(statement, seqs=text)
    return len(found)
