"""The life of one job, event by event: leases, tokens, counters, states, cancels, extensions.

Each accepted change carries the job's version, so its order is known and one walk is enough. In an
exact history the events are already in the order of the store, refusals included.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import ClassVar

from taskharbor.testing.history.events import Facts, HistoryEvent
from taskharbor.testing.history.findings import Findings, Interval

TERMINAL = frozenset({"completed", "failed", "cancelled"})
WAITING = frozenset({"ready", "scheduled"})
_LEADS_TO = {
    "ack": {"completed", "cancelled", "blocked", "failed"},  # the last two: by its children
    "retry": {"ready", "scheduled", "cancelled"},
    "fail": {"failed", "cancelled"},
    "stalled": {"ready", "scheduled", "failed", "cancelled"},
    "cancelled": {"cancelled"},
    "release": {"ready", "scheduled", "cancelled"},
    "park": {"ready", "scheduled", "blocked", "cancelled"},
}
REFUSED_LEASE = frozenset({"JobNotInflight", "LeaseMismatch", "LeaseExpired"})


class Doubts:
    """What is uncertain about one job: calls without an answer that may have been carried out."""

    def __init__(self, events: list[HistoryEvent], unknown_claims: int) -> None:
        unknown = [event for event in events if event.kind == "unknown"]
        self.ends = {event.token for event in unknown if event.op in _LEADS_TO}
        self.extensions = {event.token for event in unknown if event.op == "extend"}
        self.verbs = {event.op for event in unknown}
        self.count = len(unknown)
        self.claims = unknown_claims


class OneJob:
    """Walks through the events of one job and blames what does not fit."""

    def __init__(self, job: str, findings: Findings, doubts: Doubts) -> None:
        self.id = job
        self._findings = findings
        self._doubts = doubts
        self._is_exact = findings.terms.is_exact
        self.state = ""
        self.version = 0
        self.last: HistoryEvent | None = None
        self.lease: Interval | None = None  # the newest, over or not
        self.token = ""  # of the lease that is not settled yet
        self.fence = 0
        self.worker_of_copy = ""
        self.starts = self.attempts = self.stalls = 0
        self.starts_before = 0  # at the last reset of the counts
        self.releases = 0
        self.may_be_reset = False
        self.has_bonds = False
        self.may_be_cancelled = False  # by its family; whether its last run was counted is not known
        self.has_notes = False  # progress: its attempts and stalls start again at any time
        self.counts_were_kept = False
        self.reclaims_unheard = 0
        self.not_before: int | None = None
        self.is_cancelled = False  # a cancel was accepted: no other end is left
        self.is_gone = False
        self.is_keyed = False
        self.is_copy = False
        self.has_copy = False
        self.ended_at: int | None = None
        self.settings: Facts | None = None

    def walk(self, events: list[HistoryEvent]) -> None:
        for event in events:
            if event.kind == "ok":
                if event.op in self._STEPS:
                    self._STEPS[event.op](self, event)
                    self.last = event
            elif event.kind == "fail" and self._is_exact and event.result in REFUSED_LEASE:
                self._refusal(event)
        self._doubt_the_last_end()

    # ------------------------------------------------------------------ in

    def _enqueue(self, event: HistoryEvent) -> None:
        facts = event.facts
        if event.result == "duplicate":
            return
        if event.result == "updated":
            if self.token:
                self._expired()
            is_still_blocked = self.state == "blocked" and event.version == self.version + 1
            self._moves_to(event, "blocked" if is_still_blocked else "ready", hidden=1)
            self.may_be_reset = True
            self.not_before = None
            return
        if self.is_gone:  # a deleted id is forgotten: sending it again makes a new job
            self.version = self.starts = self.attempts = self.stalls = self.starts_before = self.releases = 0
            self.is_cancelled = self.is_gone = False
        if self.version:
            self._blame("I12", f"was {event.result} a second time", event)
        self.state = "blocked" if event.result == "blocked" else "ready"
        self.version = event.version
        self.settings = facts
        self.is_keyed = bool(facts and facts.key)
        self.has_bonds = bool(facts and facts.has_bonds)
        if facts is not None and not self.is_keyed and event.at is not None:
            self.not_before = facts.run_at if facts.delay is None else event.at + facts.delay

    def _speculate(self, event: HistoryEvent) -> None:
        if event.kind == "ok" and event.token == self.id:
            self.has_copy = True  # which may complete it, without a call of its own
            return
        self.is_copy = True
        self.state, self.version = "ready", event.version

    # ------------------------------------------------------------------ leases

    def _grant(self, event: HistoryEvent) -> None:
        facts, at = event.facts, event.at or 0
        if self.is_cancelled:
            self._blame("I10", "was handed out after it was cancelled", event)
        elif self.state in TERMINAL and "requeue" not in self._doubts.verbs:
            self._blame("I20", f"was {self.state} and was handed out", event)
        self._doubt_the_last_end()
        self._after_the_last_lease(event, at)
        if facts is not None:
            self._check_fence(event, facts)
            self.starts += 1
            self._check_counts(event, facts)
            self._check_bounds(event, facts)
            self._check_start(event, facts, at)
        until = event.until if event.until is not None else at
        if event.span is not None and not self._is_as_long(until - at, event.span):
            self._blame("I15", f"the lease ends at {until}, not at {at + event.span}", event)
        self._moves_to(event, "running", hidden=1)
        self.lease = Interval(grant=event, start=at, end=until, until=until)
        self.token = event.token
        self._findings.intervals.append(self.lease)

    def _after_the_last_lease(self, event: HistoryEvent, at: int) -> None:
        """What must be true of the lease before this one."""
        lease = self.lease
        if lease is None:
            return
        if at < lease.end and lease.how in ("open", "expired", "reclaimed"):
            self._blame("I2", f"was handed out at {at}; an earlier lease holds until {lease.end}", event)
        if self.token:  # never settled: it expired, and this claim or an earlier one noticed
            self._expired()

    def _expired(self) -> None:
        lease = self.lease
        assert lease is not None
        if lease.how == "open":
            lease.how = "expired"
        self.stalls += 1
        self.token = ""
        self.not_before = None
        self.may_be_reset |= self.is_keyed

    def _doubt_the_last_end(self) -> None:
        """A settlement that may have been stored unanswered shortens what is certain of its lease."""
        lease = self.lease
        if lease is not None and lease.how == "open" and lease.grant.token in self._doubts.ends:
            lease.end, lease.how = lease.start, "unknown"
            self.token = ""

    def _is_as_long(self, lasts: int, asked: int) -> bool:
        return asked <= lasts <= asked * (1 + self._findings.terms.longer_leases)

    def _extend(self, event: HistoryEvent) -> None:
        self._check_owner(event)
        at = event.at or 0
        if event.until is not None and event.span is not None and event.until != at + event.span:
            self._blame("I15", f"was extended to {event.until}, not to {at + event.span}", event)
        self._moves_to(event, "running")
        if self.lease is not None and event.until is not None:
            self.lease.end = self.lease.until = event.until

    def _settle(self, event: HistoryEvent) -> None:
        self._check_owner(event)
        waits_for_children = event.state == "blocked" and self._is_kin()
        if event.state not in _LEADS_TO[event.op] and not waits_for_children:
            self._blame("I20", f"{event.op} led to {event.state}", event)
        if self.is_cancelled and event.state != "cancelled" and not waits_for_children:
            self._blame("I10", f"{event.op} of a cancelled job led to {event.state}", event)
        if event.state != "cancelled":
            self.attempts += event.op in ("retry", "fail")
            self.stalls += event.op == "stalled"
            self.releases += event.op == "release"
        self.may_be_cancelled |= waits_for_children
        self._check_death(event)
        self._moves_to(event, event.state)
        if self.lease is not None and self.lease.grant.token == event.token:
            self.lease.end = min(self.lease.end, event.at or 0)
            self.lease.how = event.op
        self.token = ""
        self.may_be_reset |= self.is_keyed
        if event.op == "park" and event.state != "cancelled":
            self._has_progressed()
        self._waits(event)

    def _note(self, event: HistoryEvent) -> None:
        self.has_notes = True
        if event.version > self.version:  # else the note was there already
            self._moves_to(event, "running")
            self._has_progressed()

    def _resolve(self, event: HistoryEvent) -> None:
        """An event came, perhaps before anybody waited for it: then it was stored with it."""
        self.has_bonds = True
        if event.version > self.version:
            self._moves_to(event, event.state, hidden=1)

    def _has_progressed(self) -> None:
        """A Park or a new note: what counts is what fails from here on."""
        self.may_be_reset = True
        self.attempts = self.stalls = 0
        self.starts_before, self.releases = self.starts, 0

    def _waits(self, event: HistoryEvent) -> None:
        """The earliest next start that this settlement asked for."""
        if event.op == "retry" and event.state in WAITING and not self.is_keyed:
            if event.until is not None:
                self.not_before = event.until
            else:
                self.not_before = None if event.span is None else (event.at or 0) + event.span
        elif event.op in ("release", "park") and event.span is not None and event.state in WAITING:
            self.not_before = None if self.is_keyed else (event.at or 0) + event.span
        elif event.op == "stalled":
            self.not_before = None

    def _check_death(self, event: HistoryEvent) -> None:
        settings = self.settings
        if event.op != "stalled" or settings is None or self.is_keyed or self.may_be_reset:
            return
        is_last = 0 < settings.max_stalls <= self.stalls
        if event.state in WAITING and is_last:
            self._blame("I5", f"lives on after stall {self.stalls} of {settings.max_stalls}", event)

    def _reclaim(self, event: HistoryEvent) -> None:
        lease, at = self.lease, event.at or 0
        if lease is None or not self.token:
            if self.reclaims_unheard == self._doubts.claims:  # each claim whose answer was lost explains one
                self._blame("I4", "was reclaimed without a lease that could have expired", event)
            self.reclaims_unheard += 1
        elif at < lease.until and lease.grant.token not in self._doubts.extensions:
            self._blame("I2b", f"was reclaimed at {at}, before its lease ended at {lease.until}", event)
            lease.how = "reclaimed"
        if self.token:
            if event.result == "cancelled":
                self.token = ""
                if lease is not None and lease.how == "open":
                    lease.how = "expired"
            else:
                self._expired()
        state = {"failed": "failed", "cancelled": "cancelled"}.get(event.result, "ready")
        if self.is_cancelled and state != "cancelled":
            self._blame("I10", f"was cancelled, and its reclaim led to {event.result}", event)
        self._moves_to(event, state)
        if state in TERMINAL and self._is_kin():
            self.state = ""  # of the attempt alone: its children may be open

    # ------------------------------------------------------------------ control

    def _cancel(self, event: HistoryEvent) -> None:
        if event.result == "not_found":
            if self.version and not self.is_gone and self._is_exact and not self._may_be_pruned(event):
                self._blame("I1", "was not found by a cancel", event)
            return
        if event.result == "already_over":
            if self._is_exact and self.state not in TERMINAL and not self._can_have_ended(event):
                self._blame("I10", f"a cancel found it over while it was {self.state}", event)
            return
        if event.result == "cancelled":
            if self.token:
                self._expired()
            self._moves_to(event, "cancelled", hidden=1)
        elif event.version != self.version:
            self._moves_to(event, event.state or "running")
        self.is_cancelled = True

    def _requeue(self, event: HistoryEvent) -> None:
        if self.state not in TERMINAL and self._is_exact and not self._can_have_ended(event):
            self._blame("I20", f"was requeued while it was {self.state}", event)
        if self.token and self.has_copy and self.lease is not None:  # its copy completed it
            self.lease.end, self.lease.how = min(self.lease.end, event.at or 0), "with its copy"
            self.token = ""
        elif self.token:
            self._expired()
        self._moves_to(event, event.state or "ready", hidden=1)
        self.is_cancelled = self.is_gone = False
        self.counts_were_kept = not event.resets
        self.starts_before, self.releases = self.starts, 0
        if event.resets:
            self.attempts = self.stalls = 0
        if event.result == "edited":
            self.settings = None
        self.not_before = event.until if event.span is None else (event.at or 0) + event.span

    def _delete(self, event: HistoryEvent) -> None:
        if self._is_exact and self.state not in TERMINAL and not self._can_have_ended(event):
            self._blame("I20", f"was deleted while it was {self.state}", event)
        self.is_gone = True

    # ------------------------------------------------------------------ looking

    def _look(self, event: HistoryEvent) -> None:
        facts = event.facts
        if not event.state:
            if self.version and not (self.is_gone or self._may_be_pruned(event) or self._may_be_merged()):
                self._blame("I1", "is not in the store any more", event)
            return
        if self.is_gone:
            self._blame("I20", "was deleted, and is there again", event)
        if event.version < self.version and self._is_exact:
            self._blame("I20", f"went back from version {self.version} to {event.version}", event)
        if event.version == self.version and self.state not in ("", event.state) and not self._is_same(event):
            self._blame("I20", f"is {event.state}; its last change left it {self.state}", event)
        if event.version > self.version and self.version:
            self._hidden_change(event)
        if facts is not None:
            self._check_counts(event, facts)
            if event.state == "failed" and not facts.failure_kind:
                self._blame("I11", "failed without saying why", event)

    def _is_same(self, event: HistoryEvent) -> bool:
        return {self.state, event.state} <= WAITING or (self.state in WAITING and event.state in WAITING)

    def _hidden_change(self, event: HistoryEvent) -> None:
        """Its record moved on without a call of its own: an expiry, its key, its copy, or a lost answer."""
        before = self.state
        self._doubt_the_last_end()
        if event.state != "running" and self.token:
            lease = self.lease
            if lease is not None and event.at is not None and event.at < lease.end and not self.is_copy:
                if lease.how == "open" and event.state in WAITING:
                    self._blame("I2", f"waits again before its lease ended at {lease.end}", event)
                lease.end, lease.how = event.at, "unknown"
            elif event.state == "cancelled" and self._is_kin():
                self.may_be_cancelled = True  # before its lease ended, and that was no stall; or afterwards
            elif not (self.is_cancelled or self._was_won(event)):
                self._expired()
            self.token = ""
        self._moves_to(event, event.state, hidden=2)
        if before in TERMINAL and event.state not in TERMINAL and not self._may_be_open_again():
            self._blame("I20", f"was {before} and is {event.state} again", event)

    def _may_be_open_again(self) -> bool:
        """By a requeue without an answer, or by that of a child."""
        return "requeue" in self._doubts.verbs or (self._is_kin() and self._findings.requeues > 0)

    def _is_kin(self) -> bool:
        return self.has_bonds or self.id in self._findings.parents

    def _was_won(self, event: HistoryEvent) -> bool:
        """Completed by its speculative copy, while it still ran: one change; after its lease ended: two."""
        return event.state == "completed" and self.has_copy and event.version == self.version + 1

    # ------------------------------------------------------------------ the checks

    def _check_owner(self, event: HistoryEvent) -> None:
        """An accepted write needs the newest token and an unexpired lease."""
        lease = self.lease
        if lease is None or event.token != self.token or not self.token:
            if lease is None or event.token != lease.grant.token or self._is_exact:
                self._blame("I3", f"{event.op} was accepted from a token that is not the newest", event)
            return
        if (event.at or 0) >= lease.until and event.token not in self._doubts.extensions:
            promise = "I2b" if event.at == lease.until else "I3"
            message = f"{event.op} was accepted at {event.at}; the lease ended at {lease.until}"
            self._blame(promise, message, event)

    def _refusal(self, event: HistoryEvent) -> None:
        """A lease that was valid must not be refused."""
        lease = self.lease
        if lease is None or not self.token or event.token != self.token or event.at is None:
            return
        if (
            event.at < lease.until
            and event.op in ("extend", *_LEADS_TO)
            and not (self.is_copy or self.has_copy)
        ):
            self._blame(
                "I2b", f"{event.op} was refused at {event.at}; the lease ends at {lease.until}", event
            )

    def _check_fence(self, event: HistoryEvent, facts: Facts) -> None:
        if facts.fence <= self.fence and not self.is_copy:
            self._blame("I3", f"its fence fell from {self.fence} to {facts.fence}", event)
        self.fence = max(self.fence, facts.fence)

    def _check_counts(self, event: HistoryEvent, facts: Facts) -> None:
        slack = 0 if self._is_exact else self._doubts.count + self._doubts.claims
        for name in ("starts", "attempts", "stalls"):
            reported, counted = getattr(facts, name), getattr(self, name)
            is_reset = reported == 0 and (self.may_be_reset or self.has_notes) and name != "starts"
            is_reset |= self.may_be_cancelled and name != "starts" and abs(reported - counted) == 1
            if not (counted <= reported <= counted + slack or is_reset or self.is_copy or not self.version):
                self._blame("I4", f"{name} is {reported}; the history says {counted}", event)
        self.starts, self.attempts, self.stalls = facts.starts, facts.attempts, facts.stalls
        self.may_be_reset = self.may_be_cancelled = False
        self.settings = facts

    def _check_bounds(self, event: HistoryEvent, facts: Facts) -> None:
        if self.is_keyed or facts.key or self.counts_were_kept or self.is_copy or self.has_notes:
            return
        if 0 < facts.max_attempts <= facts.attempts:
            self._blame("I5", f"runs again after {facts.attempts} of {facts.max_attempts} attempts", event)
        if 0 < facts.max_stalls <= facts.stalls:
            self._blame("I5", f"runs again after {facts.stalls} of {facts.max_stalls} stalls", event)
        most = facts.max_attempts + facts.max_stalls - 1
        ran = facts.starts - self.starts_before - self.releases
        if facts.max_attempts and facts.max_stalls and ran > most and self._is_exact:
            self._blame("I5", f"is handed out for the {ran}th time; at most {most} are allowed", event)

    def _check_start(self, event: HistoryEvent, facts: Facts, at: int) -> None:
        due = max(facts.run_at or 0, self.not_before or 0)
        if at < due:
            self._blame("I14", f"was handed out at {at}, {due - at} µs before its time", event)

    # ------------------------------------------------------------------ versions and states

    def _moves_to(self, event: HistoryEvent, state: str, hidden: int = 0) -> None:
        """Every change is one version; an unreported one must have a cause."""
        if event.version <= self.version:
            self._blame("I3n", f"{event.op} answered version {event.version} after {self.version}", event)
        elif self._is_exact and self.version and not self.is_copy:
            unexplained = event.version - self.version - 1 - hidden
            if unexplained > self._silent_changes():
                self._blame("I3n", f"changed {unexplained} times between two calls without a reason", event)
        self.version = max(self.version, event.version)
        if state:
            self.state = state
        if state in TERMINAL:
            self.ended_at = event.at

    def _silent_changes(self) -> int:
        """Its key may have freed it, a copy may have completed it, its family may have stopped it.

        Each requeue of a relative may have opened it, and it ended again; each cancel may have stopped it.
        """
        if self._is_kin():
            return 1 + 2 * self._findings.requeues + self._findings.cancels
        return 1 if self.is_keyed or self.has_copy or self.state == "blocked" else 0

    def _can_have_ended(self, event: HistoryEvent) -> bool:
        """Without a call of its own: the third stall, a cancelled lease that ran out, a copy that won."""
        return event.version != self.version or self.state in ("", "running")

    def _may_be_merged(self) -> bool:
        """A blocked job that was merged into another one is deleted with it."""
        return self._findings.has_deletes and self.is_keyed and self.state not in TERMINAL

    def _may_be_pruned(self, event: HistoryEvent) -> bool:
        kept = self._findings.terms.completed_kept
        if kept is None or self.state not in TERMINAL:
            return False
        return (
            event.at is None
            or self.ended_at is None
            or event.at >= self.ended_at + kept.total_seconds() * 1e6
        )

    def _blame(self, promise: str, message: str, event: HistoryEvent) -> None:
        shown = (event,) if self.last is None else (self.last, event)
        self._findings.blame(promise, message, self.id, *shown)

    _STEPS: ClassVar[dict[str, Callable[[OneJob, HistoryEvent], None]]] = {
        "enqueue": _enqueue,
        "speculate": _speculate,
        "grant": _grant,
        "extend": _extend,
        **dict.fromkeys(_LEADS_TO, _settle),
        "reclaim": _reclaim,
        "cancel": _cancel,
        "requeue": _requeue,
        "delete": _delete,
        "note": _note,
        "resolve": _resolve,
        "look": _look,
    }


def check_order_of_versions(
    events: list[HistoryEvent], invoked: dict[tuple[str, int], int], findings: Findings
) -> None:
    """What returned before another call was sent has the lower version."""
    changes = [event for event in events if event.kind == "ok" and event.version and event.op != "look"]
    latest_sent = 0
    for before, after in pairwise(changes):
        latest_sent = max(latest_sent, invoked.get((before.process, before.call), 0))
        if before.version < after.version and after.t < latest_sent:
            findings.blame(
                "I20", "a later version was answered before an earlier one was asked for", after.job, after
            )
