"""The order of claims, and claims that came back short: a picture of what waits, for exact histories.

The picture leaves out whatever it cannot be sure of (keyed jobs, families, copies, queues with gates): it may
miss a fault there, and never invents one.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import defaultdict

import msgspec

from taskharbor.model.queue import EVERY_QUEUE, NO_RULES
from taskharbor.testing.history.events import SETTLEMENTS, HistoryEvent
from taskharbor.testing.history.findings import Findings

_Rank = tuple[int, int, int, str]  # −priority, eligible at, place, job
_LOOKED_AT = 50  # entries in front of a job: enough to find a wrong order, few enough to stay linear
_RECLAIMED_PER_CLAIM = 100


class _Job(msgspec.Struct):
    id: str
    place: int
    queue: str
    lane: str
    type: str
    priority: int
    created_at: int
    max_stalls: int
    stalls: int = 0
    rank: _Rank | None = None  # while it is due
    until: int | None = None  # while it runs
    due: int | None = None
    is_cancelled: bool = False
    expired_at: int | None = None
    avoids: str = ""


class Order:
    """I9, and what I2b and L7 say about a claim that comes back short."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._jobs: dict[str, _Job] = {}
        self._due: dict[tuple[str, str], list[_Rank]] = defaultdict(list)  # by queue and lane
        self._later: dict[str, list[tuple[int, str]]] = defaultdict(list)
        self._leases: dict[str, list[tuple[int, str]]] = defaultdict(list)
        self._gated: set[str] = set()
        self._claims: dict[tuple[str, int], HistoryEvent] = {}
        self._begun: tuple[str, int] | None = None

    def walk(self, history: list[HistoryEvent]) -> None:
        for place, event in enumerate(history):
            if event.kind == "invoke":
                if event.op == "reserve":
                    self._claims[event.process, event.call] = event
            elif event.kind == "ok":
                self._step(event, place)

    def _step(self, event: HistoryEvent, place: int) -> None:
        if event.op == "grant":
            self._begin(event)
            self._granted(event)
        elif event.op == "reserve":
            self._begin(event)
            self._claim_over(event)
        elif event.op == "enqueue":
            self._arrived(event, place)
        elif event.op == "extend":
            self._extended(event)
        elif event.op in SETTLEMENTS:
            self._settled(event)
        elif event.op == "reclaim":
            self._reclaimed(event)
        elif event.op == "sweep":
            self._swept(event)
        elif event.op == "configure":
            self._configured(event)
        elif event.op == "speculate":
            self._forget(event.token)
        elif event.op in ("cancel", "requeue", "delete", "cancel_waiting"):
            self._controlled(event)

    # ------------------------------------------------------------------ what waits

    def _arrived(self, event: HistoryEvent, place: int) -> None:
        facts = event.facts
        if event.result != "created" or facts is None or facts.key or facts.has_bonds or event.at is None:
            return
        job = _Job(
            event.job,
            place,
            facts.queue,
            facts.lane,
            facts.type,
            facts.priority,
            event.at,
            facts.max_stalls,
        )
        self._jobs[job.id] = job
        self._wait(job, facts.run_at if facts.delay is None else event.at + facts.delay or None)

    def _wait(self, job: _Job, due: int | None) -> None:
        """`due` None: since it was created. A job that already waits gets a new position."""
        self._leave(job)
        job.due = due
        if due is None:
            self._line_up(job, job.created_at)
        else:
            heapq.heappush(self._later[job.queue], (due, job.id))

    def _line_up(self, job: _Job, eligible: int) -> None:
        job.rank = (-job.priority, eligible, job.place, job.id)
        insort(self._due[job.queue, job.lane], job.rank)

    def _leave(self, job: _Job) -> None:
        if job.rank is not None:
            line = self._due[job.queue, job.lane]
            where = bisect_left(line, job.rank)
            if where < len(line) and line[where] == job.rank:
                del line[where]
        job.rank = job.due = job.until = job.expired_at = None

    def _forget(self, job_id: str) -> None:
        job = self._jobs.pop(job_id, None)
        if job is not None:
            self._leave(job)

    # ------------------------------------------------------------------ claims

    def _begin(self, event: HistoryEvent) -> None:
        """The first event of a claim: reclaim and promote, as the store does."""
        claim = self._claims.get((event.process, event.call))
        if self._begun == (event.process, event.call) or claim is None or event.at is None:
            return
        self._begun = (event.process, event.call)
        self._reclaim_expired(claim.queues, event.at)
        for queue in claim.queues:
            later = self._later[queue]
            while later and later[0][0] <= event.at:
                due, job_id = heapq.heappop(later)
                job = self._jobs.get(job_id)
                if job is not None and job.due == due and job.rank is None:
                    self._line_up(job, due)

    def _reclaim_expired(self, queues: tuple[str, ...], at: int) -> None:
        expired = []
        for queue in queues:
            leases = self._leases[queue]
            while leases and leases[0][0] <= at:
                until, job_id = heapq.heappop(leases)
                job = self._jobs.get(job_id)
                if job is not None and job.until == until:
                    expired.append((until, job))
        expired.sort(key=lambda entry: entry[0])
        for until, job in expired[:_RECLAIMED_PER_CLAIM]:
            self._stall(job)
            job.expired_at = until
        for until, job in expired[_RECLAIMED_PER_CLAIM:]:
            heapq.heappush(self._leases[job.queue], (until, job.id))

    def _stall(self, job: _Job) -> None:
        job.stalls += 1
        if job.is_cancelled or 0 < job.max_stalls <= job.stalls:
            self._forget(job.id)
        else:
            self._wait(job, None)

    def _granted(self, event: HistoryEvent) -> None:
        claim = self._claims.get((event.process, event.call))
        job = self._jobs.get(event.job)
        if job is None or event.facts is None:
            return
        if job.rank is not None and claim is not None and event.queue not in self._gated:
            self._check_order(job, job.rank, claim, event)
        self._leave(job)
        job.stalls, job.until = event.facts.stalls, event.until
        if event.until is not None:
            heapq.heappush(self._leases[job.queue], (event.until, job.id))

    def _check_order(self, job: _Job, rank: _Rank, claim: HistoryEvent, event: HistoryEvent) -> None:
        lanes = claim.lanes[: claim.lanes.index(job.lane) + 1] if job.lane in claim.lanes else ()
        for lane in lanes:
            for better in self._due[job.queue, lane][:_LOOKED_AT]:
                if lane == job.lane and better >= rank:
                    break
                self._passed_over(better[3], claim, event, f"before {job.id}")

    def _claim_over(self, event: HistoryEvent) -> None:
        """A claim that had room for more must have left nothing that it could have had."""
        claim = self._claims.pop((event.process, event.call), None)
        if claim is None or event.version >= claim.limit or EVERY_QUEUE in self._gated:
            return
        if claim.rules is not None:
            return
        for queue in claim.queues:
            if queue not in self._gated:
                for lane in claim.lanes:
                    for rank in self._due[queue, lane][:_LOOKED_AT]:
                        self._passed_over(rank[3], claim, event, "in a claim that had room")

    def _passed_over(self, job_id: str, claim: HistoryEvent, event: HistoryEvent, where: str) -> None:
        job = self._jobs[job_id]
        if claim.types is not None and job.type not in claim.types:
            return
        promise = "I2b" if job.expired_at is not None else "L7" if event.op == "reserve" else "I9"
        reason = f"its lease ended at {job.expired_at}" if promise == "I2b" else "it was due"
        self._findings.blame(promise, f"should have been handed out {where}: {reason}", job_id, event)
        self._forget(job_id)

    # ------------------------------------------------------------------ ends and control

    def _extended(self, event: HistoryEvent) -> None:
        job = self._jobs.get(event.job)
        if job is not None and event.until is not None and job.until is not None:
            job.until = event.until
            heapq.heappush(self._leases[job.queue], (event.until, job.id))

    def _settled(self, event: HistoryEvent) -> None:
        job = self._jobs.get(event.job)
        if job is None:
            return
        if event.state not in ("ready", "scheduled"):
            self._forget(event.job)
        elif event.op == "retry":
            due = event.until if event.until is not None else (event.at or 0) + (event.span or 0)
            self._wait(job, due if event.until is not None or event.span else None)
        elif event.op == "stalled":
            self._stall(job)
        else:  # its old run_at may stay, and is not known here any more
            self._forget(event.job)

    def _reclaimed(self, event: HistoryEvent) -> None:
        job = self._jobs.get(event.job)
        if job is not None and job.until is not None:
            self._stall(job)

    def _swept(self, event: HistoryEvent) -> None:
        """A sweep that came back short must have left no expired lease."""
        at = event.at
        if at is None or event.version >= event.limit:
            return
        for leases in self._leases.values():
            while leases and leases[0][0] <= at:
                until, job_id = heapq.heappop(leases)
                job = self._jobs.get(job_id)
                if job is not None and job.until == until:
                    self._findings.blame(
                        "L3", f"its lease ended at {until}, and a sweep at {at} left it", job_id, event
                    )
                    self._forget(job_id)

    def _controlled(self, event: HistoryEvent) -> None:
        job = self._jobs.get(event.job)
        if event.op == "cancel" and event.result == "requested" and job is not None:
            job.is_cancelled = True
        elif event.op == "speculate":
            self._forget(event.token)
        elif event.op in ("cancel", "requeue", "delete"):
            self._forget(event.job)

    def _configured(self, event: HistoryEvent) -> None:
        rules = event.rules or NO_RULES
        is_gate = rules.paused or rules.max_running is not None or rules.execute_rate is not None
        (self._gated.add if is_gate else self._gated.discard)(event.queue)
