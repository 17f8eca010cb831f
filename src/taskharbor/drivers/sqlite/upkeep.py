"""What time brings: leases that expire, jobs that are due, retention that is over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from taskharbor.drivers.lifecycle import reclaim_one
from taskharbor.drivers.messages import Reclaimed
from taskharbor.drivers.sqlite import gates
from taskharbor.drivers.sqlite.records import Records, drop_orphan, leave_claim
from taskharbor.drivers.sqlite.rows import CODES, STATES, json_array
from taskharbor.drivers.sqlite.step import Step
from taskharbor.model.clock import span_micros
from taskharbor.model.state import JobState

_seqs = msgspec.json.Decoder(list[int])

# ------------------------------------------------------------------ reclaim


def reclaim(step: Step, queues: Sequence[str] | None, limit: int) -> list[Reclaimed]:
    """Up to `limit` expired leases of these queues, or of all, oldest first."""
    if queues is None:
        queues = [queue for (queue,) in step.fetch_all("reclaim_queues")]
    claims = step.fetch_all("reclaim_claims", queues=json_array(queues), now=step.us, limit=limit)
    leases = sorted(
        (expires_at, seq, no, job_id, flags, queue)
        for no, expires_at, seqs in claims
        for seq, job_id, flags, queue in step.fetch_all("reclaim_jobs", no=no, seqs=seqs)
    )
    records = Records(step)
    answers: list[Reclaimed] = []
    for _, seq, no, job_id, flags, queue in leases[:limit]:
        if job_id is None:
            leave_claim(step, no, 1)
            drop_orphan(step, queue, seq, JobState.RUNNING, flags)
        elif (done := reclaim_one(records, job_id)) is not None:
            answers.append(done)
    return answers


# ------------------------------------------------------------------ promote


def promote_all(step: Step, limit: int) -> int:
    moved = 0
    for (queue,) in step.fetch_all("promote_queues"):
        if moved < limit:
            moved += promote(step, queue, limit - moved)
    return moved


def promote(step: Step, queue: str, limit: int) -> int:
    """Line up due jobs of one queue; answers how many of them are listed.

    Nothing that can be read changes: a due job already reads ready.
    """
    last = step.fetch_one("promote_last", queue=queue, now=step.us, limit=limit)
    if last is None:
        return 0
    bound = {"queue": queue, "at": last[0], "seq": last[1]}
    moved = 0
    for block, listed in step.fetch_all("promote_count", **bound):
        step.count_block(queue, block, JobState.SCHEDULED, -listed)
        step.count_block(queue, block, JobState.READY, +listed)
        moved += listed
    step.execute("promote_ready", **bound)
    step.execute("promote_leave", **bound)
    step.notices.queues.add(queue)
    step.has_timed = True
    return moved


# ------------------------------------------------------------------ prune


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
            pruned += _prune_kind(step, queue, state, step.us - span_micros(keep), limit - pruned)
    return pruned


def kinds_of_finished(step: Step) -> Iterator[tuple[str, JobState]]:
    """Every queue and state with finished jobs; one look-up each, however many jobs there are."""
    queue, state = "", 0
    while (row := step.fetch_one("prune_next_kind", queue=queue, state=state)) is not None:
        queue, state = row
        yield queue, STATES[state]


def _prune_kind(step: Step, queue: str, state: JobState, until: int, limit: int) -> int:
    pruned, code = 0, CODES[state]
    while pruned < limit:
        most = limit - pruned
        batches = step.fetch_all("prune_batches", queue=queue, state=code, until=until, limit=min(most, 100))
        if not batches:
            break
        ends: list[tuple[int, int]] = []
        done: list[int] = []
        for no, at, text in batches:
            seqs = _seqs.decode(text)
            room = most - len(ends)
            ends += [(seq, at) for seq in seqs[:room]]
            if len(seqs) > room:
                step.execute("prune_batch_rest", no=no, seqs=json_array(seqs[room:]))
                break
            done.append(no)
        step.execute("prune_batches_done", nos=json_array(done))
        pruned += _forget(step, queue, state, ends)
    return pruned


def _forget(step: Step, queue: str, state: JobState, ends: list[tuple[int, int]]) -> int:
    """Forget those of these jobs that are still as they ended."""
    rows = dict(step.fetch_all("prune_over", ends=json_array(ends), state=CODES[state]))
    step.count_seqs(queue, [seq for seq, is_copy in rows.items() if not is_copy], state, -1)
    seqs = json_array(list(rows))
    for statement in ("drop_results", "drop_history", "drop_aliases", "drop_job", "drop_state"):
        step.execute(statement, seqs=seqs)
    return len(rows)
