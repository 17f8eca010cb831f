"""What went in and what came out: contents, ids, idempotency keys, batches, and what a claim asked for."""

from __future__ import annotations

from collections import defaultdict

from taskharbor.model.clock import span_micros
from taskharbor.model.job import FAILURE_TYPE
from taskharbor.model.queue import IDEMPOTENCY_WINDOW
from taskharbor.testing.history.events import Facts, HistoryEvent
from taskharbor.testing.history.findings import Findings

_Content = tuple[str, str, str, str]  # type, queue, payload, headers
_WINDOW = span_micros(IDEMPOTENCY_WINDOW)


class Arrivals:
    """One walk over the history: I1b, I12, I13, I17, I18 and I19."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._sent: dict[str, set[_Content]] = defaultdict(set)  # by job id
        self._sent_to_key: dict[tuple[str, str], set[_Content]] = defaultdict(set)
        self._edited: set[str] = set()
        self._copied: dict[str, str] = {}
        self._first_of: dict[tuple[str, str], HistoryEvent] = {}  # by idempotency key
        self._ended: dict[str, int] = {}
        self._alive: dict[str, int] = {}  # when it was last certainly not over
        self._doubted: dict[str, HistoryEvent] = {}  # the job that came after it, though its end was not seen
        self._requeued: set[str] = set()
        self._began: int | None = None
        self._stored: dict[str, HistoryEvent] = {}
        self._refused: dict[str, HistoryEvent] = {}
        self._claims: dict[tuple[str, int], HistoryEvent] = {}

    def walk(self, history: list[HistoryEvent]) -> None:
        for event in history:
            if event.kind == "invoke":
                self._invoked(event)
            elif event.kind == "ok":
                self._answered(event)
            elif event.op == "enqueue" and event.kind == "fail":
                self._refused.setdefault(event.job, event)

    def _invoked(self, event: HistoryEvent) -> None:
        if event.op == "reserve":
            self._claims[event.process, event.call] = event
        elif event.op in ("enqueue", "resolve") and event.facts is not None:
            content = _content(event.facts)
            self._sent[event.job].add(content)
            if event.facts.key:
                self._sent_to_key[event.facts.queue, event.facts.key].add(content)
        elif event.op == "requeue":
            self._requeued.add(event.job)
            if event.result == "edited":
                self._edited.add(event.job)

    def _answered(self, event: HistoryEvent) -> None:
        if event.op == "enqueue":
            self._refused.pop(event.token or event.job, None)
            self._stored_once(event)
            self._same_for_one_key(event)
        elif event.op == "resolve":
            self._refused.pop(event.job, None)
            self._stored.setdefault(event.job, event)  # an event that nobody waited for is stored by it
        elif event.op == "delete":
            self._stored.pop(event.job, None)
        elif event.op == "speculate":
            self._copied[event.job] = event.token
        elif event.op == "requeue":
            self._ended.pop(event.job, None)
        elif event.op in ("grant", "look") and event.facts is not None:
            self._came_out(event, event.facts)
        if event.at is not None:
            self._began = event.at if self._began is None else min(self._began, event.at)
            self._note_end(event, event.at)

    def _note_end(self, event: HistoryEvent, at: int) -> None:
        """A job whose last lease ran out ends without a word: a look finds it, some time afterwards."""
        if event.state in ("completed", "failed", "cancelled"):
            ended = self._alive.get(event.job, at) if event.op == "look" else at
            self._ended.setdefault(event.job, ended)
        elif (
            event.op in ("grant", "extend", "retry", "release", "requeue", "look")
            or event.result == "created"
        ):
            self._alive[event.job] = at
            self._was_not_over(event)

    # ------------------------------------------------------------------ in

    def _stored_once(self, event: HistoryEvent) -> None:
        if event.result not in ("created", "blocked"):
            return
        if event.job in self._stored:
            self._findings.blame(
                "I12", "was created twice under one id", event.job, self._stored[event.job], event
            )
        if event.token:
            self._findings.blame("I12", f"was stored although {event.token} was sent", event.job, event)
        self._stored[event.job] = event

    def _same_for_one_key(self, event: HistoryEvent) -> None:
        facts = event.facts
        if facts is None or not facts.idempotency_key:
            return
        where = facts.queue, facts.idempotency_key
        first = self._first_of.get(where)
        if first is None or self._is_over(first, event):
            self._first_of[where] = event
            return
        name = _name_of(event)
        if event.result in ("created", "blocked"):
            message = f"a second job for the key {facts.idempotency_key!r}, beside {first.job}"
            self._findings.blame(name, message, event.job, first, event)
        elif event.result == "duplicate" and event.job != first.job and not _may_be_merged(first):
            message = f"the key {facts.idempotency_key!r} gave {first.job} before"
            self._findings.blame(name, message, event.job, first, event)

    def _is_over(self, first: HistoryEvent, event: HistoryEvent) -> bool:
        """Whether the key is free again, or may be when the end of the job was not seen."""
        ended = self._ended.get(first.job)
        earliest = ended if ended is not None else self._alive.get(first.job, self._began)
        if event.at is None or earliest is None or event.at < earliest + _WINDOW:
            return False
        if ended is None:
            self._doubted[first.job] = event
        return True

    def _was_not_over(self, event: HistoryEvent) -> None:
        doubted = self._doubted.pop(event.job, None)
        if doubted is not None and event.job not in self._requeued:
            message = f"a second job for a key that {event.job} still had"
            self._findings.blame(_name_of(doubted), message, doubted.job, doubted, event)

    # ------------------------------------------------------------------ out

    def _came_out(self, event: HistoryEvent, facts: Facts) -> None:
        if event.op == "grant":
            self._asked_for(event, facts)
        if facts.type == FAILURE_TYPE:
            return
        refused = self._refused.get(event.job)
        if refused is not None and event.job not in self._stored and self._findings.terms.is_exact:
            self._findings.blame("I17", "is in the store; its enqueue was refused", event.job, refused, event)
        original = facts.speculates_on or self._copied.get(event.job, "") or event.job
        wanted = self._sent[original] if not facts.key else self._sent_to_key[facts.queue, facts.key]
        if not wanted:
            self._findings.blame("I1b", "was never enqueued", event.job, event)
        elif _content(facts) not in wanted and original not in self._edited:
            differs = [
                content for content in wanted if content[0] == facts.type and content[1] == facts.queue
            ]
            self._findings.blame(
                "I13" if differs else "I1b", "came out other than it went in", event.job, event
            )

    def _asked_for(self, event: HistoryEvent, facts: Facts) -> None:
        claim = self._claims.get((event.process, event.call))
        if claim is None:
            return
        if (
            facts.queue not in claim.queues
            or facts.lane not in claim.lanes
            or (claim.types is not None and facts.type not in claim.types)
        ):
            message = f"{facts.type} of {facts.queue}, lane {facts.lane}, was not asked for"
            self._findings.blame("I19", message, event.job, claim, event)


def _name_of(event: HistoryEvent) -> str:
    is_tick = event.facts is not None and event.facts.idempotency_key.startswith("schedule/")
    return "I18" if is_tick else "I12"


def _content(facts: Facts) -> _Content:
    return facts.type, facts.queue, facts.digest, facts.headers


def _may_be_merged(first: HistoryEvent) -> bool:
    """A keyed job may have been merged into another one; its id is then an alias."""
    return first.facts is not None and bool(first.facts.key)
