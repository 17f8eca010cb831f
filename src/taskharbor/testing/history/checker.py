"""check: does this history keep every promise? One walk per group of promises, each linear in the events."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from taskharbor.testing.history.arrivals import Arrivals
from taskharbor.testing.history.denials import check_denials, check_failures
from taskharbor.testing.history.ends import (
    check_all_ended,
    check_dead_letters,
    check_expiries,
    check_flurries,
    check_runs,
    check_snapshots,
)
from taskharbor.testing.history.events import CHANGES, SETTLEMENTS, HistoryEvent
from taskharbor.testing.history.findings import Findings, Interval
from taskharbor.testing.history.limits import check_keys, check_max_running, check_rates
from taskharbor.testing.history.one_job import Doubts, OneJob, check_order_of_versions
from taskharbor.testing.history.order import Order
from taskharbor.testing.history.verdict import BY_THE_CLOCK, NO_TERMS, Terms, Verdict, Violation


def check(events: Iterable[HistoryEvent], terms: Terms = NO_TERMS) -> Verdict:
    """Judge a history.

    Events of several recorders may be thrown together, sorted by `t`. In an exact history
    (`Terms(is_exact=True)`) they must be in the order in which the store carried them out.
    """
    history = list(events)
    findings = Findings(terms)
    _check_each_job(history, findings)
    _end_with_copies(history, findings)
    Arrivals(findings).walk(history)
    check_keys(findings)
    check_max_running(history, findings)
    check_rates(history, findings)
    if terms.is_exact:
        Order(findings).walk(history)
        check_snapshots(history, findings)
    check_denials(history, findings)
    check_failures(history, findings)
    check_dead_letters(history, findings)
    check_runs(history, findings)
    check_expiries(history, findings)
    check_flurries(history, findings)
    check_all_ended(history, findings)
    return Verdict(
        violations=[one for one in findings.violations if _is_judged(one, terms)],
        events=len(history),
        jobs=findings.jobs,
        runs=findings.runs,
        duplicates=findings.duplicates,
    )


def _is_judged(violation: Violation, terms: Terms) -> bool:
    return not (terms.clock_goes_back and violation.promise in BY_THE_CLOCK)


def _check_each_job(history: list[HistoryEvent], findings: Findings) -> None:
    by_job: dict[str, list[HistoryEvent]] = defaultdict(list)
    invoked: dict[tuple[str, int], int] = {}
    unknown_claims = 0
    for event in history:
        if event.kind == "invoke":
            invoked[event.process, event.call] = event.t
            if event.facts is not None and event.facts.parent:
                findings.parents.add(event.facts.parent)
        elif event.op in CHANGES or event.op == "look":
            by_job[event.job].append(event)
            if event.op == "speculate":
                by_job[event.token].append(event)
        elif event.kind == "unknown" and event.op == "reserve":
            unknown_claims += 1
    findings.jobs = len(by_job)
    findings.has_deletes = any(event.op == "delete" for event in history)
    findings.requeues = sum(event.op == "requeue" and event.kind != "invoke" for event in history)
    findings.cancels = sum(event.op == "cancel" and event.kind != "invoke" for event in history)
    for job, events in by_job.items():
        if not findings.terms.is_exact:
            # A look comes after the change whose version it saw.
            events.sort(key=lambda event: (event.version, event.op in ("look", "cancel")))
            check_order_of_versions(events, invoked, findings)
        OneJob(job, findings, Doubts(events, unknown_claims)).walk(events)


def _end_with_copies(history: list[HistoryEvent], findings: Findings) -> None:
    """The Ack of a copy ends the lease of its original, and whatever ends the original ends its copy."""
    copies = [lease for lease in findings.intervals if lease.grant.facts and lease.grant.facts.speculates_on]
    if not copies:
        return
    ends: dict[str, list[int]] = defaultdict(list)
    for event in history:
        if event.kind == "ok" and event.at is not None and event.op in (*SETTLEMENTS, "cancel"):
            ends[event.job].append(event.at)
    leases: dict[str, list[Interval]] = defaultdict(list)
    for lease in findings.intervals:
        leases[lease.grant.job].append(lease)
    for copy in copies:
        assert copy.grant.facts is not None
        original = copy.grant.facts.speculates_on
        for lease, others in [
            (copy, ends[original]),
            *((one, ends[copy.grant.job]) for one in leases[original]),
        ]:
            after = [at for at in others if lease.start <= at < lease.end]
            if after:
                lease.end, lease.how = min(after), "with its copy"
