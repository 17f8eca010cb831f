"""How it all ended: dead letters, keys at rest, jobs that never ended, runs and their reasons."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Iterable

from taskharbor.model.job import FAILURE_TYPE
from taskharbor.model.queue import EVERY_QUEUE, NO_RULES, QueueRules
from taskharbor.testing.history.events import SETTLEMENTS, Facts, HistoryEvent
from taskharbor.testing.history.findings import Findings
from taskharbor.testing.history.one_job import REFUSED_LEASE, TERMINAL, WAITING

_NEWS = {"enqueue", "reclaim", "requeue", *SETTLEMENTS}
_MOST_IN_VAIN = {"reserve": 40, "extend": 8}  # within a second, besides one for each piece of news


def check_dead_letters(history: list[HistoryEvent], findings: Findings) -> None:
    """I11: one failure job for each failure in a queue with a fail_queue, with the same bytes."""
    rules: dict[str, QueueRules] = {}
    known: dict[str, Facts] = {}
    expected: Counter[str] = Counter()
    reported: dict[str, dict[str, HistoryEvent]] = defaultdict(dict)
    for event in history:
        if event.kind != "ok":
            continue
        if event.op == "configure":
            rules[event.queue] = event.rules or NO_RULES
        if event.facts is not None and event.result != "duplicate":
            known[event.job] = event.facts
            if event.facts.about:
                reported[event.facts.about][event.job] = event
        if _is_death(event) and _has_fail_queue(rules, known.get(event.job)):
            expected[event.job] += 1
    for job in sorted(expected.keys() | reported.keys()):
        _compare(job, expected[job], reported[job], known.get(job), findings)


def _is_death(event: HistoryEvent) -> bool:
    if event.op == "reclaim":
        return event.result == "failed"
    is_by_children = event.op == "ack" or event.result == "child_failed"  # then the child is a dead letter
    return event.op in SETTLEMENTS and event.state == "failed" and not is_by_children


def _has_fail_queue(rules: dict[str, QueueRules], facts: Facts | None) -> bool:
    if facts is None or facts.type == FAILURE_TYPE or facts.speculates_on:
        return False
    levels = (rules.get(facts.queue, NO_RULES), rules.get(EVERY_QUEUE, NO_RULES))
    return any(level.fail_queue is not None for level in levels)


def _compare(
    job: str, expected: int, reported: dict[str, HistoryEvent], facts: Facts | None, findings: Findings
) -> None:
    if len(reported) < expected and findings.terms.is_drained:
        findings.blame("I11", f"failed {expected} times; its fail queue got {len(reported)}", job)
    if facts is None or facts.key:  # the payload of a keyed job may have changed since
        return
    for event in reported.values():
        if event.facts is not None and event.facts.about_digest != facts.digest:
            findings.blame("I11", "its failure job carries other bytes", job, event)


def check_snapshots(history: list[HistoryEvent], findings: Findings) -> None:
    """I6b: in the whole store, one waiting and one running job per key, and none blocked for nothing."""
    looks: list[HistoryEvent] = []
    for event in history:
        if event.kind == "ok" and event.op == "look":
            looks.append(event)
        elif event.kind == "ok" and event.op == "snapshot":
            _check_keys_at_rest([look for look in looks if look.call == event.call], findings)
            looks = []


def _check_keys_at_rest(looks: list[HistoryEvent], findings: Findings) -> None:
    by_key: dict[tuple[str, str], list[HistoryEvent]] = defaultdict(list)
    for look in looks:
        if look.facts is not None and look.facts.key and look.state not in TERMINAL:
            by_key[look.facts.queue, look.facts.key].append(look)
    for (_, key), there in by_key.items():
        states = [look.state for look in there]
        waiting = sum(state in WAITING or state == "blocked" for state in states)
        running = states.count("running")
        if waiting > 1 or running > 1:
            findings.blame(
                "I6b", f"key {key!r} has {waiting} waiting and {running} running jobs", there[0].job, *there
            )
        elif "blocked" in states and not running:
            findings.blame(
                "I6b", f"key {key!r} is free, and a job is still blocked behind it", there[0].job, *there
            )


def check_all_ended(history: list[HistoryEvent], findings: Findings) -> None:
    """I1, L1 and L3 at the end: every job that was stored is there, and over."""
    if not findings.terms.is_drained:
        return
    last: dict[str, HistoryEvent] = {}
    stored: dict[str, HistoryEvent] = {}
    gone: set[str] = set()
    for event in history:
        if event.kind != "ok":
            continue
        if event.op == "look":
            last[event.result or event.job] = event
            last[event.job] = event
        elif event.op == "enqueue" and not event.is_lost:
            stored.setdefault(event.job, event)
            if (
                event.result == "updated" and event.token
            ):  # its id is now an alias of the job that absorbed it
                stored.setdefault(event.token, event)
        elif event.op == "delete":
            gone.add(event.job)
    for job, event in stored.items():
        _check_end(job, event, last.get(job), job in gone, findings)


def _check_end(
    job: str, stored: HistoryEvent, look: HistoryEvent | None, is_gone: bool, findings: Findings
) -> None:
    if is_gone or (look is not None and look.state in TERMINAL):
        return
    if look is None or not look.state:
        may_be_merged = findings.has_deletes and stored.facts is not None and bool(stored.facts.key)
        if findings.terms.completed_kept is None and not may_be_merged:
            findings.blame("I1", "was acknowledged and is nowhere at the end", job, stored)
    elif look.state == "running" and look.until is not None and look.at is not None and look.until <= look.at:
        findings.blame("L3", f"its lease ended at {look.until}, and it was not reclaimed", job, look)
    else:
        findings.blame("L1", f"is still {look.state} at the end", job, look)


# ------------------------------------------------------------------ runs


def check_runs(history: list[HistoryEvent], findings: Findings) -> None:
    """Runs fit their grants and their settlements; a handler that returned was not counted as a failure."""
    fences = {(lease.grant.job, lease.grant.facts.fence) for lease in findings.intervals if lease.grant.facts}
    started: dict[tuple[str, int], HistoryEvent] = {}
    ended: dict[tuple[str, int], HistoryEvent] = {}
    for event in history:
        if event.op != "run":
            continue
        run = event.job, event.version
        if event.kind != "invoke":
            ended[run] = event
        elif run in started:
            findings.blame("Z6", "ran twice under one lease", event.job, started[run], event)
        else:
            started[run] = event
            if fences and run not in fences and findings.terms.is_exact:
                findings.blame("I1b", "ran without having been handed out", event.job, event)
    findings.runs += len(started)
    if started:
        _check_settlements(history, findings, ended)


def _check_settlements(
    history: Iterable[HistoryEvent], findings: Findings, ended: dict[tuple[str, int], HistoryEvent]
) -> None:
    fence_of = {
        (lease.grant.job, lease.grant.token): lease.grant.facts.fence
        for lease in findings.intervals
        if lease.grant.facts
    }
    for event in history:
        if event.kind != "ok" or event.op not in ("retry", "fail") or event.result != "error":
            continue
        run = ended.get((event.job, fence_of.get((event.job, event.token), 0)))
        if run is None or run.kind != "fail":
            how = "did not end" if run is None else "returned" if run.kind == "ok" else "was stopped"
            findings.blame("I4", f"{event.op} counts a failure of a handler that {how}", event.job, event)


def check_expiries(history: list[HistoryEvent], findings: Findings) -> None:
    """Z6: a lease runs out only when something was done to its worker or to the store."""
    faults: dict[str, list[int]] = defaultdict(list)
    noticed: dict[str, list[int]] = defaultdict(list)
    for event in history:
        if event.op == "fault":
            faults[event.process].append(event.t)
        elif event.kind == "ok" and event.job:
            noticed[event.job].append(event.t)
    for times in (*faults.values(), *noticed.values()):
        times.sort()
    for lease in findings.intervals:
        if lease.how != "expired":
            continue
        grant = lease.grant
        findings.duplicates.setdefault(grant.job, []).append(
            f"{grant.worker or grant.process} until {lease.until}"
        )
        if findings.terms.faults_are_marked and not _has_reason(
            lease.until, grant, faults, noticed[grant.job]
        ):
            findings.blame(
                "Z6", f"the lease of {grant.worker} ran out, and nothing was wrong", grant.job, grant
            )


def _has_reason(until: int, grant: HistoryEvent, faults: dict[str, list[int]], noticed: list[int]) -> bool:
    """A fault of its process, or of everybody, from shortly before the grant to when the end was noticed."""
    after = bisect_right(noticed, grant.t)
    last = noticed[-1] if after >= len(noticed) else max(noticed[after:])
    first = grant.t - (grant.span or 0)
    return any(
        bisect_left(times, first) < bisect_right(times, last)
        for times in (faults.get(grant.process, []), faults.get("", []))
    )


def check_flurries(history: Iterable[HistoryEvent], findings: Findings) -> None:
    """L8: no busy polling: no repeated calls when there is nothing, or when the answer cannot change.

    Whatever came in or ended may have been a reason to claim, for everybody: others were faster then.
    """
    asked: dict[str, deque[int]] = defaultdict(deque)
    news: deque[int] = deque()
    for event in history:
        if event.kind == "ok" and event.op in _NEWS:
            news.append(event.t)
        what = _asked_in_vain(event)
        if not what:
            continue
        seen = asked[what]
        seen.append(event.t)
        for times in (seen, news):
            while times and times[0] <= event.t - 1_000_000:
                times.popleft()
        if len(seen) > _MOST_IN_VAIN[event.op] + (len(news) if event.op == "reserve" else 0):
            findings.blame("L8", f"{what} {len(seen)} times within a second", event.job, event)
            seen.clear()


def _asked_in_vain(event: HistoryEvent) -> str:
    if event.op == "reserve" and event.kind == "ok" and not event.version:
        return f"{event.process} claimed in vain"
    if event.op == "extend" and event.kind == "fail" and event.result in REFUSED_LEASE:
        return f"{event.process} asked for the lost lease {event.token} of {event.job}"
    return ""
