"""The checker is linear: a history of a million events is judged in half a minute."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from taskharbor.testing.history import Facts, HistoryEvent, Terms, check

JOBS_PER_CLAIM = 10
EVENTS = 1_000_000


def long_history(events: int) -> Iterator[HistoryEvent]:
    """Jobs that are enqueued, handed out ten at a time, run, extended and completed."""
    written = at = 0
    while written < events:
        names = [f"job-{written + number}" for number in range(JOBS_PER_CLAIM)]
        for batch in (_arrive(names, at), _claim(names, at + 100), _finish(names, at + 200)):
            yield from batch
            written += len(batch)
        at += 1000


def _arrive(names: list[str], at: int) -> list[HistoryEvent]:
    facts = Facts(type="work", queue="q", digest="d", max_attempts=3, max_stalls=3)
    history = []
    for name in names:
        history.append(
            HistoryEvent(kind="invoke", op="enqueue", process="p", call=at, t=at, job=name, facts=facts)
        )
        history.append(
            HistoryEvent(
                kind="ok", op="enqueue", process="p", call=at, t=at, job=name, at=at, version=1,
                result="created", facts=facts,
            )
        )  # fmt: skip
    return history


def _claim(names: list[str], at: int) -> list[HistoryEvent]:
    claim = HistoryEvent(
        kind="invoke", op="reserve", process="w", call=at, t=at, worker="w", queues=("q",), lanes=("any",),
        limit=JOBS_PER_CLAIM, span=30_000,
    )  # fmt: skip
    facts = Facts(
        type="work", queue="q", digest="d", max_attempts=3, max_stalls=3, starts=1, fence=at,
    )  # fmt: skip
    history = [
        HistoryEvent(
            kind="ok", op="grant", process="w", call=at, t=at, job=name, at=at, version=2, token=f"t{at}",
            worker="w", queue="q", until=at + 30_000, span=30_000, facts=facts,
        )
        for name in names
    ]  # fmt: skip
    over = HistoryEvent(kind="ok", op="reserve", process="w", call=at, t=at, at=at, version=len(names))
    return [claim, *history, over]


def _finish(names: list[str], at: int) -> list[HistoryEvent]:
    history = []
    for name in names:
        history.append(HistoryEvent(kind="invoke", op="run", process="w", t=at, job=name, version=at - 100))
        history.append(HistoryEvent(kind="ok", op="run", process="w", t=at, job=name, version=at - 100))
        ack = HistoryEvent(
            kind="invoke", op="ack", process="w", call=at, t=at, job=name, token=f"t{at - 100}"
        )
        history += [ack, _acked(name, at)]
    return history


def _acked(name: str, at: int) -> HistoryEvent:
    return HistoryEvent(
        kind="ok", op="ack", process="w", call=at, t=at, job=name, token=f"t{at - 100}", at=at, version=3,
        state="completed",
    )  # fmt: skip


def seconds_to_check(events: int, terms: Terms) -> float:
    history = list(long_history(events))
    before = os.times()
    verdict = check(history, terms)
    after = os.times()
    assert verdict.is_sound, verdict
    return (after.user + after.system) - (before.user + before.system)


@pytest.mark.parametrize("terms", [Terms(), Terms(is_exact=True)], ids=["any order", "exact"])
def test_a_long_history_is_sound(terms: Terms) -> None:
    seconds_to_check(20_000, terms)


@pytest.mark.long
@pytest.mark.parametrize("terms", [Terms(), Terms(is_exact=True)], ids=["any order", "exact"])
def test_a_million_events_are_checked_in_half_a_minute(terms: Terms) -> None:
    """Measured as CPU time: a busy machine does not make the checker slower."""
    assert seconds_to_check(EVENTS, terms) < 30
