"""Attempts end: first-try successes many at once, everything else one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from itertools import islice
from typing import Any, NamedTuple

from taskharbor.drivers.messages import Settled
from taskharbor.drivers.sqlite import gates
from taskharbor.drivers.sqlite.ends import Ends
from taskharbor.drivers.sqlite.records import Records, json_text, leave_grant
from taskharbor.drivers.sqlite.statements import SIZES
from taskharbor.drivers.sqlite.step import Step, blocks_of
from taskharbor.errors import LeaseLost
from taskharbor.model.job import NO_TIME
from taskharbor.model.settlement import Ack, Settlement
from taskharbor.model.state import JobState

Answers = list[Settled | LeaseLost]


class _Grant(NamedTuple):
    token: str
    no: int
    queue: str
    worker: str
    started_at: int
    expires_at: int
    extensions: int
    held: int


def settle(step: Step, settlements: Sequence[Settlement]) -> Answers:
    """Per settlement the stored state or why it was refused; one never affects another."""
    if not settlements:
        return []
    ids = [settlement.lease.job_id for settlement in settlements]
    answers = _all_complete(step, settlements, ids)
    if answers is None:
        answers = _some_complete(step, settlements)
    forget = step.kept.seq_of.pop
    for job_id in ids:
        forget(job_id, None)
    return answers


# ------------------------------------------------------------------ all at once


def _all_complete(step: Step, settlements: Sequence[Settlement], ids: list[str]) -> Answers | None:
    """The usual batch: successes of jobs that one claim handed out here. Otherwise None, and nothing done."""
    seq_of = step.kept.seq_of
    leases: set[tuple[str, str | None]] = set()
    results: dict[int, bytes | None] = {}
    for settlement in settlements:
        lease = settlement.lease
        if type(settlement) is not Ack or (seq := seq_of.get(lease.job_id)) is None:
            return None
        leases.add((lease.token, lease.claimed_by))
        results[seq] = settlement.result
    token, worker = leases.pop()
    if leases or len(results) < len(ids):
        return None
    grants = _valid_grants(step, token)
    if len(grants) != 1 or worker not in (None, grants[0].worker):
        return None
    text = json_text(results)
    if not _end_leases(step, grants[0].no, results, text):
        return None
    version = _complete(step, grants[0], results, text)
    completed, now = JobState.COMPLETED, step.now
    return [Settled(job_id, completed, now, version) for job_id in ids]


def _valid_grants(step: Step, token: str) -> list[_Grant]:
    """The grants of this token whose time is not over: one per queue of the claim, more after extensions."""
    grants = [_Grant(token, *row) for row in step.all("settle_grants", token=token)]
    return [grant for grant in grants if grant.expires_at > step.us]


def _complete(step: Step, grant: _Grant, results: dict[int, bytes | None], seqs: str) -> int:
    """Leases that have just ended were successes on the first try: answers the version of their records."""
    leave_grant(step, grant.no, len(results), grant.held)
    version = 3 + grant.extensions
    _keep(step, grant.queue, results, seqs, [step.us, version, grant.started_at, grant.token])
    return version


# ------------------------------------------------------------------ what can be, at once


def _some_complete(step: Step, settlements: Sequence[Settlement]) -> Answers:
    answers: dict[int, Settled | LeaseLost] = {}
    for token, acks in _acks_by_token(settlements).items():
        for grant in _valid_grants(step, token):
            left = {place: ack for place, ack in acks.items() if place not in answers}
            answers.update(_complete_some(step, grant, left))
    if len(answers) < len(settlements):
        ends = Ends(step, Records(step))
        for place, settlement in enumerate(settlements):
            if place not in answers:
                answers[place] = ends.settle(settlement)
    return [answers[place] for place in range(len(settlements))]


def _acks_by_token(settlements: Sequence[Settlement]) -> dict[str, dict[int, Ack]]:
    """Where the successes stand, less those of jobs that are settled twice here: there the order decides."""
    named = Counter(settlement.lease.job_id for settlement in settlements)
    is_once = len(named) == len(settlements)
    acks: dict[str, dict[int, Ack]] = {}
    for place, settlement in enumerate(settlements):
        if isinstance(settlement, Ack) and (is_once or named[settlement.lease.job_id] == 1):
            acks.setdefault(settlement.lease.token, {})[place] = settlement
    return acks


def _complete_some(step: Step, grant: _Grant, acks: dict[int, Ack]) -> dict[int, Settled | LeaseLost]:
    """Complete what this grant covers and needs no closer look; the others are not in the answer."""
    mine = {place: ack for place, ack in acks.items() if ack.lease.claimed_by in (None, grant.worker)}
    ended = _by_seq(step, grant.no, mine)
    if not ended:
        return {}
    results = {seq: ack.result for seq, (_, ack) in ended.items()}
    version = _complete(step, grant, results, json_text(results))
    return {
        place: Settled(ack.lease.job_id, JobState.COMPLETED, step.now, version)
        for place, ack in ended.values()
    }


def _by_seq(step: Step, grant_no: int, acks: dict[int, Ack]) -> dict[int, tuple[int, Ack]]:
    """End the leases of these if they are held and plain → seq: (place, ack) of those."""
    seq_of = step.kept.seq_of
    if any(ack.lease.job_id not in seq_of for ack in acks.values()):
        seq_of = dict(step.all("get_seq_of", ids=json_text([ack.lease.job_id for ack in acks.values()])))
    found: dict[int, tuple[int, Ack]] = {}
    for place, ack in acks.items():
        seq = seq_of.get(ack.lease.job_id)
        if seq is not None:
            found[seq] = place, ack
    if not found or _end_leases(step, grant_no, found, json_text(found)):
        return found
    plain = {seq for (seq,) in step.all("settle_plain", grant_no=grant_no, seqs=json_text(found))}
    found = {seq: item for seq, item in found.items() if seq in plain}
    if found:
        _end_leases(step, grant_no, found, json_text(found))
    return found


def _end_leases(step: Step, grant_no: int, seqs: Collection[int], text: str) -> bool:
    """End these leases if all of them are held and plain; otherwise leave them as they are."""
    execute = step.connection.execute
    execute("savepoint settle")
    first, last = min(seqs), max(seqs)
    if last - first + 1 == len(seqs):
        ended = step.run("settle_leases_run", grant_no=grant_no, first=first, last=last).rowcount
    else:
        ended = step.run("settle_leases", grant_no=grant_no, seqs=text).rowcount
    if ended != len(seqs):
        execute("rollback to settle")
    execute("release settle")
    return bool(ended == len(seqs))


def _keep(step: Step, queue: str, results: dict[int, bytes | None], seqs: str, shared: list[Any]) -> None:
    """The records of completed jobs stay for their retention; zero means not at all."""
    is_kept = gates.retention(step, queue).completed != NO_TIME
    for block, count in blocks_of(results).items():
        step.count_block(queue, block, JobState.RUNNING, -count)
        if is_kept:
            step.count_block(queue, block, JobState.COMPLETED, +count)
    if not is_kept:
        step.run("drop_body", seqs=seqs)
        return
    if any(result is not None for result in results.values()):
        _keep_with_results(step, results, shared)
    else:
        _keep_bare(step, seqs, shared)
    step.run("put_ended", queue=queue, state="completed", ended_at=step.us, seqs=seqs)


def _keep_with_results(step: Step, results: dict[int, bytes | None], shared: list[Any]) -> None:
    if bare := [seq for seq, result in results.items() if result is None]:
        _keep_bare(step, json_text(bare), shared)
    rows = [(seq, result) for seq, result in results.items() if result is not None]
    left, count = iter(rows), len(rows)
    for size in SIZES:
        while count >= size:
            values = [value for row in islice(left, size) for value in row]
            step.listed("settle_result", size, [*shared, *values])
            count -= size


def _keep_bare(step: Step, seqs: str, shared: list[Any]) -> None:
    at, version, started_at, token = shared
    values = {"finished_at": at, "version": version, "started_at": started_at, "token": token}
    step.run("settle_completed", seqs=seqs, **values)
