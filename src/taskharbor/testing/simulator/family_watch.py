"""The rules of families in a simulated world, judged behind every call that the store has answered.

The watch is beside the store: it hears each answer at the instant at which the call was carried out, also
one that is lost on its way, and looks at the families that the call was about. So it knows who held a lease,
which note and which event came first, and what was over when a job was handed out. `FAMILY_RULES` names what
it judges: all ten rules.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any

from taskharbor.drivers.messages import FamilyEnd
from taskharbor.model.job import JobRecord
from taskharbor.model.state import TERMINAL, JobState
from taskharbor.testing.simulator.family_ledger import FamilyLedger, Look
from taskharbor.testing.simulator.family_verdicts import broken_counts, broken_verdict, may_run
from taskharbor.testing.simulator.relatives import Relative

FAMILY_RULES = {
    "F1": "no job starts before those it comes after are over as it needs",
    "F2": "no child starts after it or its parent was stopped, unless it is spared",
    "F3": "no parent is over while a child is open; each end and each release happens once",
    "F4": "the counts of a family are the ends of its children",
    "F5": "at rest nobody waits",
    "F6": "a job ends as its own work, its children and its stops say",
    "F7": "a note keeps its first value, and a noted step does not run again",
    "F8": "a lease that is over stores no child, no note and no end",
    "F9": "an accepted event reaches its waiter; it and its timeout never both happen",
    "F10": "nothing of a family goes before its root does, and then all of it goes",
}
_MOST_PRUNED = 7


class FamilyWatch(FamilyLedger):
    """Judges behind every call, at rest, and once everything is pruned.

    With `keeps_roots` no root may go before that; else only families that are not over must be whole.
    Families that a schedule stores are not judged: no call names their first job.
    """

    def __init__(self, look: Look, *, keeps_roots: bool) -> None:
        super().__init__(look)
        self._keeps_roots = keeps_roots

    @property
    def size(self) -> int:
        """How many jobs of families it knows."""
        return sum(len(family) for family in self._families.values() if self._is_kin(family))

    def asked(self, verb: str, args: tuple[Any, ...], at: datetime) -> None:
        """A call that the store is about to carry out. How did those end that it opens again, or deletes?"""
        if verb in ("requeue", "delete"):
            self._calls += 1
            self._judge(self._roots_of(args[0]), at)

    def saw(self, verb: str, args: tuple[Any, ...], answer: Any, at: datetime) -> None:
        """A call that the store has carried out, and its answer."""
        heard = self.hear(verb, args, answer, at)
        if heard is None:
            return
        about, granted = heard
        self._count_reports(_ends_in(answer))
        self._judge(self._roots_of(about), at)
        for job in granted:
            if self._is_kin(self._families[self._members[job.id].root]):
                self._judge_start(job)

    def _roots_of(self, ids: Iterable[str]) -> list[str]:
        return sorted({self._members[job_id].root for job_id in ids if job_id in self._members})

    # ------------------------------------------------------------------ what a handler says

    def ran_step(self, job_id: str, fence: int, name: str) -> None:
        """The function of a step was called."""
        member = self._members.get(job_id)
        if member is not None and name in member.notes_of_run.get(fence, ()):
            self.blame("F7", f"step {name} of {job_id} ran again")

    def got_event(self, event_id: str, value: bytes | None) -> None:
        """What a handler that waited for an event got; None is a timeout."""
        member = self._members.get(event_id)
        accepted = None if member is None or member.event is None else member.event.result
        if accepted != value:
            self.blame("F9", f"the waiter of event {event_id} got {value!r}, accepted was {accepted!r}")

    # ------------------------------------------------------------------ rules at one instant

    def _count_reports(self, ends: Iterable[FamilyEnd]) -> None:
        for end in ends:
            if (member := self._members.get(end.id)) is not None:
                member.reported += 1
                if member.reported > member.openings:
                    self.blame("F3", f"the end of {end.id} was reported {member.reported} times")

    def _judge_start(self, job: JobRecord) -> None:
        """A job was handed out: what does it come after, and is it or its parent being stopped?"""
        member = self._members[job.id]
        others = self._before(member)
        if not may_run(member, others):
            states = [sorted(other.ended_since(member.opened)) for other in others]
            self.blame("F1", f"{job.id} started when {member.bonds.when}, what it comes after was {states}")
        if member.is_cancelled:
            self.blame("F2", f"{job.id} started although it was cancelled")
        above = self._members.get(member.parent or "")
        family = None if above is None or above.seen is None else above.seen.family
        is_spared = family is not None and family.spares and member.bonds.when != "success"
        if family is not None and family.stopping is not None and not is_spared:
            self.blame("F2", f"{job.id} started although its parent is being stopped: {family.stopping}")

    def _before(self, member: Relative) -> list[Relative]:
        """What a job comes after. One that was deleted holds nobody back."""
        known = [self._members[name] for name in member.bonds.after if name in self._members]
        return [other for other in known if not other.is_gone]

    def _judge(self, roots: Iterable[str], at: datetime) -> None:
        for root in roots:
            family = self._families[root]
            if self._is_kin(family):
                self._judge_family([self._members[job_id] for job_id in family], at)

    def _judge_family(self, members: Sequence[Relative], at: datetime) -> None:
        there = [member for member in members if not member.is_gone]
        records = self._look([one.id for one in there], at)
        is_kept = self._is_kept(there[0], records[0]) if there else True
        for member, record in zip(there, records, strict=True):
            if record is None:
                member.is_gone = True
                if is_kept:
                    self.blame("F10", f"{member.id} is gone, and its root {member.root} is kept")
            else:
                member.lease_is_over(at)
                member.sees(record, self._calls)
        kids: defaultdict[str | None, list[Relative]] = defaultdict(list)
        for member in members:
            kids[member.parent].append(member)
        for member in there:
            if not member.is_gone:
                self._judge_member(member, kids[member.id])

    def _is_kept(self, root: Relative, record: JobRecord | None) -> bool:
        """Whether the retention of a root cannot be over."""
        is_open = root.parent is None and record is not None and record.state not in TERMINAL
        return self._keeps_roots or is_open

    def _judge_member(self, member: Relative, kids: Sequence[Relative]) -> None:
        job = member.seen
        assert job is not None
        self._check_notes(member, job)
        for text in broken_counts(job, kids):
            self.blame("F4", text)
        if job.state not in TERMINAL:
            return
        if member.end is not None and member.end != (job.finished_at, job.state):
            self.blame("F3", f"{job.id} ended twice: {member.end}, then {job.state} at {job.finished_at}")
        is_new, member.end = member.end is None, (job.finished_at, job.state)
        if any(not kid.is_over and not kid.is_gone for kid in kids):
            self.blame("F3", f"{job.id} is over, and a child of it is open")
        if is_new:
            self._judge_end(member, job, kids)

    def _judge_end(self, member: Relative, job: JobRecord, kids: Sequence[Relative]) -> None:
        above = self._members.get(member.parent or "")
        others = self._before(member)
        if (error := broken_verdict(member, job, kids, above, others)) is not None:
            self.blame("F6", f"{job.id} ({job.type}) is {job.state} {job.failure_kind or ''}: {error}")
        event = member.event
        if event is None or event.error is not None or kids:
            return
        if (job.state, job.result) != (JobState.COMPLETED, event.result):
            self.blame("F9", f"event {job.id} was accepted, and is {job.state} ({job.failure_kind})")

    # ------------------------------------------------------------------ rules at rest

    def judge_rest(self, at: datetime) -> None:
        """Nothing is left to do: everybody is over, and every end of a parent was reported."""
        self._calls += 1
        roots, _ = self._everything()
        self._judge(roots, at)
        for root in roots:
            for job_id in self._families[root]:
                member = self._members[job_id]
                if member.is_gone or member.seen is None:
                    continue
                if not member.is_over:
                    self.blame("F5", f"{job_id} ({member.seen.type}) is {member.seen.state} at rest")
                elif member.seen.family is not None and member.seen.family.total and not member.reported:
                    self.blame("F3", f"the end of {job_id} was never reported")

    def judge_pruning(self, prune: Callable[[int], int], at: datetime) -> None:
        """Long after: families go, a few records a call, children first, and nothing of them is left."""
        while prune(_MOST_PRUNED):
            there = self._still_there(at)
            for job_id in there:
                above = self._members[job_id].parent
                if above in self._members and not self._members[above].is_gone and above not in there:
                    self.blame("F10", f"{job_id} is there, and its parent {above} is gone")
        for job_id in self._still_there(at):
            self.blame("F10", f"{job_id} is never pruned")

    def _still_there(self, at: datetime) -> set[str]:
        ids = [
            job_id
            for root in self._everything()[0]
            for job_id in self._families[root]
            if not self._members[job_id].is_gone
        ]
        return {job_id for job_id, job in zip(ids, self._look(ids, at), strict=True) if job is not None}


def _ends_in(answer: Any) -> list[FamilyEnd]:
    parts = answer if isinstance(answer, list) else [answer, *getattr(answer, "settled", ())]
    parts += getattr(answer, "given_up", ())
    return [end for part in parts for end in getattr(part, "ended", ())]
