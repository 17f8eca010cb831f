"""A history as readable text: one line per event, with short names for jobs and leases."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from taskharbor.testing.history.events import HistoryEvent
from taskharbor.testing.simulator.loop import SECOND


class Names:
    """j1, j2, … for jobs and t1, t2, … for tokens, in the order in which they come up."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._counts: dict[str, int] = {}

    def __call__(self, letter: str, long: str) -> str:
        if long and long not in self._names:
            self._counts[letter] = self._counts.get(letter, 0) + 1
            self._names[long] = f"{letter}{self._counts[letter]}"
        return self._names.get(long, "")


def trace_lines(events: Iterable[HistoryEvent], job: str = "") -> Iterator[str]:
    """The lines of a trace; with `job`, only those about that job."""
    names = Names()
    for event in events:
        line = _line(event, names)
        if _is_wanted(event, job):
            yield line


def _is_wanted(event: HistoryEvent, job: str) -> bool:
    if job:
        return event.op == "fault" or job in (event.job, event.token)
    return event.op not in ("snapshot", "look")


def _line(event: HistoryEvent, names: Names) -> str:
    parts = [
        f"{event.t / SECOND:11.6f}",
        f"{event.process or 'store':<13}",
        f"{event.kind:<7}",
        f"{event.op:<10}",
        f"{names('j', event.job):<5}",
        f"{names('t', event.token):<5}",
    ]
    return " ".join([*parts, *_details(event)]).rstrip()


def _details(event: HistoryEvent) -> Iterator[str]:
    if event.version:
        yield f"v{event.version}" if event.op not in ("reserve", "run") else f"n{event.version}"
    if event.state:
        yield event.state
    if event.result:
        yield event.result
    if event.until is not None and event.at is not None:
        yield f"until +{(event.until - event.at) / SECOND:.6f}"
    elif event.span is not None:
        yield f"for {event.span / SECOND:.6f}"
    if event.at is not None:
        yield f"@{event.at % (86_400 * SECOND) / SECOND:.6f}"
    if event.is_lost:
        yield "(reply lost)"
