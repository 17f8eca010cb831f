"""Keys, max_running and rates: how many leases there are at once, and how many starts in a window."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator

from taskharbor.model.limits import RateLimit
from taskharbor.model.queue import EVERY_QUEUE, NO_RULES, QueueRules
from taskharbor.testing.history.events import HistoryEvent
from taskharbor.testing.history.findings import Findings, Interval

_Moment = tuple[int, int, int, Interval | HistoryEvent]  # at, rank, place in the history


def check_keys(findings: Findings) -> None:
    """I6: the leases of one key never overlap."""
    newest: dict[tuple[str, str], Interval] = {}
    for lease in sorted(findings.intervals, key=lambda lease: lease.start):
        if lease.key is None or lease.end <= lease.start:
            continue
        before = newest.get(lease.key)
        if before is not None and lease.start < before.end and before.grant.job != lease.grant.job:
            message = (
                f"key {lease.key[1]!r} was handed out at {lease.start}, and job {before.grant.job} held it"
            )
            findings.blame("I6", message, lease.grant.job, before.grant, lease.grant)
        if before is None or before.end < lease.end:
            newest[lease.key] = lease


def check_max_running(history: list[HistoryEvent], findings: Findings) -> None:
    """I7: at each grant, the unexpired leases of its queue and of the harbor, itself included."""
    if not any(event.rules is not None and event.op == "configure" for event in history):
        return
    rules: dict[str, QueueRules] = {}
    live: dict[str, int] = defaultdict(int)
    for at, rank, _, what in sorted(_moments(history, findings.intervals), key=lambda moment: moment[:3]):
        if isinstance(what, HistoryEvent):
            rules[what.queue] = what.rules or NO_RULES
            continue
        step = -1 if rank == 0 else 1
        for level in (what.grant.queue, EVERY_QUEUE):
            live[level] += step
            most = rules.get(level, NO_RULES).max_running
            if step > 0 and most is not None and live[level] > most:
                findings.blame(
                    "I7",
                    f"{live[level]} leases of {level} at {at}, {most} allowed",
                    what.grant.job,
                    what.grant,
                )


def _moments(history: list[HistoryEvent], leases: list[Interval]) -> Iterator[_Moment]:
    """Ends come before what happens at the same instant; all else keeps the order of the history."""
    places = {id(event): place for place, event in enumerate(history)}
    for lease in leases:
        if lease.end > lease.start:
            place = places.get(id(lease.grant), 0)
            yield lease.start, 1, place, lease
            yield lease.end, 0, place, lease
    for event in history:
        if event.op == "configure" and event.kind == "ok" and event.at is not None:
            yield event.at, 1, places[id(event)], event


def check_rates(history: Iterable[HistoryEvent], findings: Findings) -> None:
    """I8: starts per queue, harbor and worker, and arrivals per queue and harbor, in every window."""
    windows: dict[tuple[str, str], _Window] = {}
    for event in history:
        if event.kind == "invoke" and event.op == "reserve" and event.rules is not None:
            _set(windows, "worker", event.worker, event.rules.execute_rate)
        if event.kind != "ok" or event.at is None:
            continue
        if event.op == "configure" and event.rules is not None:
            _set(windows, "start", event.queue, event.rules.execute_rate)
            _set(windows, "arrival", event.queue, event.rules.enqueue_rate)
        elif event.op == "grant":
            for where in (("start", event.queue), ("start", EVERY_QUEUE), ("worker", event.worker)):
                _spend(windows, where, event, findings)
        elif event.op == "enqueue" and event.result != "duplicate" and event.facts is not None:
            for where in (("arrival", event.facts.queue), ("arrival", EVERY_QUEUE)):
                _spend(windows, where, event, findings)


class _Window:
    def __init__(self, rate: RateLimit) -> None:
        self.rate = rate
        self.seen: deque[int] = deque()


def _set(windows: dict[tuple[str, str], _Window], what: str, name: str, rate: RateLimit | None) -> None:
    there = windows.get((what, name))
    if rate is None:
        windows.pop((what, name), None)
    elif there is None or there.rate != rate:
        windows[what, name] = _Window(rate)


def _spend(
    windows: dict[tuple[str, str], _Window], where: tuple[str, str], event: HistoryEvent, findings: Findings
) -> None:
    window = windows.get(where)
    if window is None or event.at is None:
        return
    while window.seen and window.seen[0] <= event.at - window.rate.per_us:
        window.seen.popleft()
    window.seen.append(event.at)
    if len(window.seen) > window.rate.count:
        what, name = where
        message = (
            f"{len(window.seen)} {what}s of {name} within {window.rate.per}; {window.rate.count} allowed"
        )
        findings.blame("I8", message, event.job, event)
