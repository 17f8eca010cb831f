"""Jobs that the store denied, and calls that failed although nothing was wrong."""

from __future__ import annotations

from collections import Counter, defaultdict

from taskharbor.testing.history.events import CHANGES, HistoryEvent
from taskharbor.testing.history.findings import Findings

_UNAVAILABLE = "DriverUnavailable"


def check_denials(history: list[HistoryEvent], findings: Findings) -> None:
    """I1: what was acknowledged before a call was sent, and is there after its answer, was there meanwhile.

    It holds in any order of the events, so real histories are judged by it, too.
    """
    denials = [event for event in history if _is_denial(event)]
    if not denials:
        return
    invoked: dict[tuple[str, int], int] = {}
    stored: dict[str, int] = {}
    created: Counter[str] = Counter()
    last_asked: dict[str, int] = defaultdict(int)  # per job, when the last call was sent that found it
    for event in history:
        if event.kind == "invoke":
            invoked.setdefault((event.process, event.call), event.t)
        elif event.kind == "ok" and event.op == "enqueue":
            stored.setdefault(event.job, event.t)
            created[event.job] += event.result != "duplicate"
        elif _is_sighting(event):
            asked = invoked.get((event.process, event.call), event.t)
            last_asked[event.job] = max(last_asked[event.job], asked)
    for event in denials:
        asked = invoked.get((event.process, event.call), event.t)
        is_known = event.job in stored and stored[event.job] <= asked and created[event.job] < 2
        if is_known and last_asked[event.job] > event.t:
            findings.blame("I1", f"was not found by a {event.op}, and is there afterwards", event.job, event)


def _is_denial(event: HistoryEvent) -> bool:
    if event.op == "cancel":
        return event.kind == "ok" and event.result == "not_found"
    return event.op in ("delete", "requeue") and event.kind == "fail" and event.result == "JobNotFound"


def _is_sighting(event: HistoryEvent) -> bool:
    if event.kind != "ok" or _is_denial(event):
        return False
    return bool(event.state) if event.op == "look" else event.op in CHANGES


def check_failures(history: list[HistoryEvent], findings: Findings) -> None:
    """L9: a store that nothing was done to carries every call out."""
    if not findings.terms.faults_are_marked:
        return
    for event in history:
        if event.op == "fault":
            return
        if event.kind in ("fail", "unknown") and event.result == _UNAVAILABLE:
            findings.blame("L9", f"{event.op} failed, and nothing was wrong", event.job, event)
