"""Attempts end: first-try successes by sets, retries and later successes in settle_alone.py,
all else one by one (family_verbs.settle_one).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from taskharbor.drivers.families import concluded
from taskharbor.drivers.family_verbs import settle_one
from taskharbor.drivers.messages import Settled
from taskharbor.drivers.sqlite.families import TIES, FamilyRecords
from taskharbor.drivers.sqlite.members import Member, members_of, release_followers
from taskharbor.drivers.sqlite.records import Records, free_keys
from taskharbor.drivers.sqlite.rows import COMPLETED, ClaimRow, Flags, json_array
from taskharbor.drivers.sqlite.settle_alone import settle_alone
from taskharbor.drivers.sqlite.step import Step
from taskharbor.errors import LeaseLost
from taskharbor.model.clock import micros
from taskharbor.model.job import NO_TIME
from taskharbor.model.queue import IDEMPOTENCY_WINDOW
from taskharbor.model.settlement import Ack, Retry, Settlement
from taskharbor.model.state import JobState

Answers = list[Settled | LeaseLost]

_BY_SETS = Flags.KEYED | Flags.IDEMPOTENT | Flags.CHILD
"""The flags of jobs that `settle_completed` completes."""
_OF_MEMBERS = _BY_SETS | Flags.BOUND
"""The same in its calls for members (members.py)."""


class Acks(NamedTuple):
    """The successes of one call, and what may be settled together without them."""

    by_seq: dict[int, Ack]
    """The successes that may be a first try."""
    flags_of: dict[int, int]
    """Of those that have a key, an idempotency key or bonds."""
    children: dict[int, bool]
    """Those with only a parent that were completed by sets, and whether a record of them stays."""
    bound: dict[int, Ack]
    """Those that may be members."""
    members: dict[int, Member]
    """Those of them that were completed by sets."""
    others: dict[int, Settlement]
    """Retries, and successes of jobs with a past or with more to them."""

    def of_members(self, members: Mapping[int, Member]) -> Acks:
        return self._replace(by_seq={seq: self.bound[seq] for seq in members})


def settle(step: Step, settlements: Sequence[Settlement]) -> Answers:
    """Per settlement the stored state or why it was refused; one never affects another."""
    if not settlements:
        return []
    acks = _acks(step, settlements)
    versions = _complete(step, acks, _BY_SETS) if acks.by_seq else {}
    completed, now = JobState.COMPLETED, step.now
    done: Answers = [
        Settled(ack.lease.job_id, completed, now, versions[seq])
        for seq, ack in acks.by_seq.items()
        if seq in versions
    ]
    if acks.bound:
        done += _complete_members(step, acks)
    if len(done) == len(settlements) and not (acks.children or acks.members):
        return done
    return _rest(step, settlements, done, acks)


def _complete_members(step: Step, acks: Acks) -> Answers:
    members = members_of(step, list(acks.bound))
    if not members:
        return []
    mine = acks.of_members(members)
    done: Answers = []
    for seq, version in _complete(step, mine, _OF_MEMBERS).items():
        acks.members[seq] = members[seq]
        more = members[seq].version - 2  # `_complete` takes them for jobs that were stored ready
        done.append(Settled(mine.by_seq[seq].lease.job_id, JobState.COMPLETED, step.now, version + more))
    return done


def _rest(step: Step, settlements: Sequence[Settlement], done: Answers, acks: Acks) -> Answers:
    """The answers to all, after those that were settled by sets; then what follows for other jobs."""
    records = FamilyRecords(step, is_tied=any(flags & TIES for flags in acks.flags_of.values()))
    if len(done) < len(settlements) or acks.members:
        done += settle_alone(step, acks.others)
        known = {answer.id: answer for answer in done if isinstance(answer, Settled)}
        if left := [job_id for item in settlements if (job_id := item.lease.job_id) not in known]:
            records.by_ids(left)
        done = [known.get(item.lease.job_id) or settle_one(records, item) for item in settlements]
    if acks.children or acks.members:
        records.count_completed(acks.children, [member.parent for member in acks.members.values()])
    for seq in release_followers(step, acks.members):
        records.owe("release", acks.bound[seq].lease.job_id)
    return concluded(records, done) if records.has_families else done


def _acks(step: Step, settlements: Sequence[Settlement]) -> Acks:
    """The settlements that can be carried out together; not those of a job that is settled twice here: there
    the order decides. Successes of jobs with bonds are apart.

    A handle knows the seqs and flags of jobs that were claimed through it.
    """
    forget = step.cache.seq_of.pop  # whatever the outcome, the job no longer runs here
    acks: dict[int, Ack] = {}
    others: dict[int, Settlement] = {}
    for settlement in settlements:
        seq = forget(settlement.lease.job_id, None)
        if seq is None:
            return _acks_unknown(step, settlements)
        if type(settlement) is Ack:
            acks[seq] = settlement
        elif type(settlement) is Retry:
            others[seq] = settlement
    flags_of = step.cache.flags_of
    known = {seq: flags_of.pop(seq) for seq in acks if seq in flags_of} if flags_of else {}
    return _sorted_out(acks, others, known)


def _acks_unknown(step: Step, settlements: Sequence[Settlement]) -> Acks:
    """The same for jobs that were claimed elsewhere, or are settled twice."""
    named = Counter(settlement.lease.job_id for settlement in settlements)
    seq_of: dict[str, int] = dict(step.fetch_all("get_seqs", ids=json_array(named)))
    acks: dict[int, Ack] = {}
    others: dict[int, Settlement] = {}
    for settlement in settlements:
        job_id = settlement.lease.job_id
        if job_id in seq_of and named[job_id] == 1:
            if type(settlement) is Ack:
                acks[seq_of[job_id]] = settlement
            elif type(settlement) is Retry:
                others[seq_of[job_id]] = settlement
    flags_of = dict(step.fetch_all("settle_flags", seqs=json_array(acks))) if acks else {}
    return _sorted_out(acks, others, flags_of)


def _sorted_out(acks: dict[int, Ack], others: dict[int, Settlement], flags_of: dict[int, int]) -> Acks:
    """Successes of jobs with bonds are apart, and others that were not a first try are settled alone."""
    bound: dict[int, Ack] = {}
    for seq, flags in flags_of.items():
        if flags & ~_BY_SETS:
            ack = acks.pop(seq)
            if flags & ~_OF_MEMBERS:
                others[seq] = ack
            else:
                bound[seq] = ack
    return Acks(acks, flags_of, {}, bound, {}, others)


# ------------------------------------------------------------------ by sets


def _complete(step: Step, acks: Acks, mask: int) -> dict[int, int]:
    """Complete what valid leases cover and has no flags but these → the versions of those records, by seq."""
    seqs = list(acks.by_seq)
    versions: dict[int, int] = {}
    first = step.fetch_one("settle_claim", seq=seqs[0])
    if first is not None:  # mostly it is the claim of all
        versions.update(_end(step, ClaimRow._make(first), seqs, acks, mask))
    if len(versions) == len(seqs):
        return versions
    others: dict[int, list[int]] = {}
    left = [seq for seq in seqs if seq not in versions]
    for seq, no in step.fetch_all("settle_claims_of", seqs=json_array(left)):
        if first is None or no != first[0]:
            others.setdefault(no, []).append(seq)
    for mine in others.values():
        claim = ClaimRow._make(step.fetch_one("settle_claim", seq=mine[0]))
        versions.update(_end(step, claim, mine, acks, mask))
    return versions


def _end(step: Step, claim: ClaimRow, seqs: list[int], acks: Acks, mask: int) -> dict[int, int]:
    """End leases of one claim, all of them first-try successes; those of other claims are left alone."""
    token, workers, by_seq = claim.token, (None, claim.worker), acks.by_seq
    mine = [seq for seq in seqs if (lease := by_seq[seq].lease).token == token and lease.worker_id in workers]
    if not mine or claim.expires_at <= step.us:
        return {}
    is_kept = step.retention_of(claim.queue).completed != NO_TIME
    if not is_kept and mask & Flags.BOUND:
        return {}  # what is forgotten of a member is more: one by one
    done = _keep(step, claim, mine, mask) if is_kept else _forget(step, claim, mine)
    if not done:
        return {}
    results: list[Any] = [
        value for seq in done if (result := by_seq[seq].result) is not None for value in (seq, result)
    ]
    if results and is_kept:
        step.execute_rows("settle_results", 2, results)
    if len(done) == claim.held:
        step.execute("claim_empty", no=claim.no)
    else:
        step.leave_claim(claim.no, len(done))
    step.count_seqs(claim.queue, done, JobState.RUNNING, -1)
    if is_kept:
        step.count_seqs(claim.queue, done, JobState.COMPLETED)
    if acks.flags_of:
        flagged = [(seq, flags) for seq in done if (flags := acks.flags_of.get(seq))]
        _end_keys(step, flagged)
        acks.children.update((seq, is_kept) for seq, flags in flagged if flags & Flags.CHILD)
    if not is_kept:
        step.execute("drop_job", seqs=json_array(done))
    return dict.fromkeys(done, 3 + claim.extensions)


def _keep(step: Step, claim: ClaimRow, seqs: list[int], mask: int) -> list[int]:
    """Complete these jobs, as far as they have no flags but these; which were completed."""
    finished = step.execute(
        "settle_finished",
        queue=claim.queue,
        state=COMPLETED,
        at=step.us,
        started_at=claim.started_at,
        token=claim.token,
        seqs=json_array(seqs),
    ).lastrowid
    ends = {"finished": finished, "now": step.us, "no": claim.no}
    ends |= {"extensions": claim.extensions, "mask": mask}
    first, last = min(seqs), max(seqs)
    if last - first + 1 == len(seqs):
        count = step.execute("settle_completed_range", first=first, last=last, **ends).rowcount
    else:
        count = step.execute("settle_completed", seqs=json_array(seqs), **ends).rowcount
    if count == len(seqs):
        return seqs
    done = [seq for (seq,) in step.fetch_all("settle_done", seqs=json_array(seqs), finished=finished)]
    if not done:
        step.execute("prune_batches_done", nos=json_array([finished]))
    return done


def _forget(step: Step, claim: ClaimRow, seqs: list[int]) -> list[int]:
    """A retention of zero: no record stays."""
    return [seq for (seq,) in step.fetch_all("settle_forgotten", seqs=json_array(seqs), no=claim.no)]


def _end_keys(step: Step, ended: list[tuple[int, int]]) -> None:
    keyed = [seq for seq, flags in ended if flags & Flags.KEYED]
    if keyed:
        free_keys(step, Records(step), keyed)
    remembered = [seq for seq, flags in ended if flags & Flags.IDEMPOTENT]
    if remembered:
        expires_at = micros(step.now + IDEMPOTENCY_WINDOW)
        step.execute("settle_idempotency", seqs=json_array(remembered), expires_at=expires_at)
