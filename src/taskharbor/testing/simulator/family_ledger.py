"""What the store says of families in a simulated world: who holds a lease, which note came first.

`FamilyLedger` hears each call at the instant at which the store has carried it out, also when the answer is
lost on the way. `family_watch.py` judges by it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any

from taskharbor.drivers.messages import (
    CancelResult,
    Deleted,
    Enqueued,
    Extended,
    Noted,
    Requeued,
    Resolution,
    Resolved,
    Settled,
)
from taskharbor.model.bonds import NO_BONDS
from taskharbor.model.job import JobRecord, Lease, NewJob, Note
from taskharbor.model.settlement import Park, Settlement
from taskharbor.model.state import JobState
from taskharbor.testing.simulator.relatives import Relative

_MOST_FOUND = 100

Look = Callable[[Sequence[str], datetime], list[JobRecord | None]]
Heard = tuple[Sequence[str], Sequence[JobRecord]]
"""The jobs that a call was about, and those of them that it handed out."""


class FamilyLedger:
    """The jobs of families, and which rules an answer breaks by itself."""

    def __init__(self, look: Look) -> None:
        self.violations: list[str] = []
        self._look = look
        self._members: dict[str, Relative] = {}
        self._families: defaultdict[str, list[str]] = defaultdict(list)
        """The ids of a root and of all that is below it, in the order in which they were stored."""
        self._calls = 0

    def blame(self, rule: str, text: str) -> None:
        if len(self.violations) < _MOST_FOUND:
            self.violations.append(f"{rule}: {text}")

    def hear(self, verb: str, args: tuple[Any, ...], answer: Any, at: datetime) -> Heard | None:
        """A call that was carried out; None where it cannot concern a family."""
        hears = _HEARS.get(verb)
        if hears is None:
            return None
        self._calls += 1
        return hears(self, args, answer, at)

    # ------------------------------------------------------------------ what the verbs say

    def _enqueue(
        self, jobs: Sequence[NewJob], by: Lease | None, answer: list[Enqueued], at: datetime
    ) -> Heard:
        if by is not None:
            self._check_lease(by, at, "stored children")
        for job, reply in zip(jobs, answer, strict=True):
            if reply.id == job.id and reply.result in ("created", "blocked"):
                self._store(job)
        return [job.id for job in jobs], ()

    def _store(self, job: NewJob) -> None:
        bonds = job.bonds or NO_BONDS
        above = self._members.get(bonds.parent or "")
        if bonds.parent is not None and above is None:
            return  # below a job that no call has stored: of a schedule
        root = job.id if above is None else above.root
        if job.id in self._members:  # it was deleted: its parent counts both
            ghost = f"{job.id} before call {self._calls}"
            self._members[ghost] = self._members[job.id]
            self._families[root].append(ghost)
        else:
            self._families[root].append(job.id)
        self._members[job.id] = member = Relative(job.id, bonds.parent, root, bonds, self._calls)
        if bonds.done_by == "children":
            member.own = {"completed"}

    def _reserve(self, jobs: Iterable[JobRecord], at: datetime) -> Heard:
        granted = [job for job in jobs if job.id in self._members]
        for job in granted:
            member = self._members[job.id]
            member.lease_is_over(at)
            if not member.may_start and self._is_kin(self._families[member.root]):
                self.blame("F3", f"{job.id} was handed out again, and nothing released it")
            member.may_start, member.lease, member.until = False, job.lease, job.lease_expires_at
            member.notes_of_run[job.fence] = frozenset(member.notes)
            self._check_notes(member, job)
        return [job.id for job in granted], granted

    def _settle(self, items: Sequence[Settlement], answers: Sequence[Any], at: datetime) -> Heard:
        for item, answer in zip(items, answers, strict=True):
            member = self._members.get(item.lease.job_id)
            if member is None or not isinstance(answer, Settled):
                continue
            if self._is_kin(
                self._families[member.root]
            ):  # of plain jobs the checker of histories judges that
                self._check_lease(item.lease, at, f"settled by {type(item).__name__}")
            member.settled(item, answer.state)
            if isinstance(item, Park) and answer.state is not JobState.CANCELLED:
                for note in item.notes:
                    member.keep(note.name, note.data)
        return [item.lease.job_id for item in items], ()

    def _extend(self, leases: Sequence[Lease], answers: Sequence[Any], at: datetime) -> Heard:
        for lease, answer in zip(leases, answers, strict=True):
            member = self._members.get(lease.job_id)
            if member is not None and isinstance(answer, Extended):
                if self._is_kin(self._families[member.root]):
                    self._check_lease(lease, at, "extended")
                member.lease, member.until = answer.lease, answer.lease.expires_at
        return (), ()

    def _note(self, notes: Sequence[Note], answers: Sequence[Any], at: datetime) -> Heard:
        for note, answer in zip(notes, answers, strict=True):
            if note.lease is None or not isinstance(answer, Noted):
                continue
            self._check_lease(note.lease, at, f"wrote note {note.name}")
            member = self._members.get(answer.id)
            if member is not None and member.keep(note.name, note.data) != answer.data:
                self.blame("F7", f"note {note.name} of {answer.id} answered another value than its first")
        return [answer.id for answer in answers if isinstance(answer, Noted)], ()

    def _reclaim(self, answers: Iterable[Any]) -> Heard:
        ids = [answer.id for answer in answers]
        for job_id in ids:
            if (member := self._members.get(job_id)) is not None:
                member.may_start, member.until = True, None
                member.own |= {"failed", "cancelled"}
        return ids, ()

    def _cancel(self, answers: Iterable[Any]) -> Heard:
        ids = []
        for answer in answers:
            ids.append(answer.id)
            member = self._members.get(answer.id)
            if member is not None and answer.result in (CancelResult.CANCELLED, CancelResult.REQUESTED):
                member.is_cancelled = True
        return ids, ()

    def _requeue(self, answers: Iterable[Any]) -> Heard:
        ids = [answer.id for answer in answers if isinstance(answer, Requeued)]
        for job_id in ids:
            member = self._members.get(job_id)
            if member is not None:
                member.open_again(self._calls)
                self._reopen_above(member)
        return ids, ()

    def _reopen_above(self, member: Relative) -> None:
        """Its parents wait for it again, up to the first that was not over."""
        above = self._members.get(member.parent or "")
        while above is not None and above.is_over:
            above.reopen(self._calls)
            above = self._members.get(above.parent or "")

    def _delete(self, answers: Iterable[Any]) -> Heard:
        ids = [answer.id for answer in answers if isinstance(answer, Deleted)]
        for job_id in ids:
            if (member := self._members.get(job_id)) is not None:
                member.is_gone = True
        return ids, ()

    def _resolve(self, items: Sequence[Resolution], answers: Sequence[Any], at: datetime) -> Heard:
        for item, answer in zip(items, answers, strict=True):
            if not isinstance(answer, Resolved):
                continue
            if item.new is not None and self._is_unknown(item.id):
                self._store(item.new)
            member = self._members.get(item.id)
            if member is not None:
                self._accept(member, item, at)
        return [item.id for item in items], ()

    def _is_unknown(self, job_id: str) -> bool:
        return job_id not in self._members or self._members[job_id].is_gone

    def _accept(self, member: Relative, item: Resolution, at: datetime) -> None:
        if member.event is not None:
            if (member.event.result, member.event.error) != (item.result, item.error):
                self.blame("F9", f"event {member.id} was accepted twice, with different values")
            return
        member.event = item
        member.own = {"completed" if item.error is None else "failed"}
        [record] = self._look([member.id], at)
        deadline = None if record is None or record.bonds is None else record.bonds.deadline
        if deadline is not None and deadline <= at:
            self.blame("F9", f"event {member.id} was accepted after its timeout")

    # ------------------------------------------------------------------ checks

    def _check_lease(self, lease: Lease, at: datetime, what: str) -> None:
        member = self._members.get(lease.job_id)
        if member is not None and not member.holds(lease, at):
            self.blame("F8", f"{lease.job_id} {what} by a lease that was over")

    def _check_notes(self, member: Relative, job: JobRecord) -> None:
        there = {note.name: note.data for note in job.notes}
        if there != member.notes:
            self.blame("F7", f"{job.id} has the notes {there}, not {member.notes}")

    def _everything(self) -> Heard:
        return [root for root, family in self._families.items() if self._is_kin(family)], ()

    def _is_kin(self, family: Sequence[str]) -> bool:
        return len(family) > 1 or self._members[family[0]].bonds is not NO_BONDS


_Hears = Callable[[FamilyLedger, tuple[Any, ...], Any, datetime], Heard]


def _exchange(ledger: FamilyLedger, args: tuple[Any, ...], answer: Any, at: datetime) -> Heard:
    settled, _ = ledger._settle(args[0], answer.settled, at)
    claimed, granted = ledger._reserve(answer.claimed, at)
    return [*settled, *claimed], granted


_HEARS: dict[str, _Hears] = {
    "enqueue": lambda ledger, args, answer, at: ledger._enqueue(args[0], None, answer, at),
    "enqueue_family": lambda ledger, args, answer, at: ledger._enqueue(args[0], args[1], answer, at),
    "reserve": lambda ledger, _, answer, at: ledger._reserve(answer.jobs, at),
    "settle": lambda ledger, args, answer, at: ledger._settle(args[0], answer, at),
    "exchange": _exchange,
    "extend_leases": lambda ledger, args, answer, at: ledger._extend(args[0], answer, at),
    "note": lambda ledger, args, answer, at: ledger._note(args[0], answer, at),
    "reclaim": lambda ledger, _, answer, __: ledger._reclaim(answer),
    "cancel": lambda ledger, _, answer, __: ledger._cancel(answer),
    "requeue": lambda ledger, _, answer, __: ledger._requeue(answer),
    "delete": lambda ledger, _, answer, __: ledger._delete(answer),
    "resolve": lambda ledger, args, answer, at: ledger._resolve(args[0], answer, at),
    "promote": lambda ledger, _, answer, __: ledger._everything() if answer.count else ((), ()),
    "prune": lambda ledger, _, answer, __: ledger._everything() if answer else ((), ()),
}
