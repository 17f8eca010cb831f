"""The jobs of the reference model and how they read: one dict, scanned every time."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import msgspec

from taskharbor.drivers.messages import Counts, Query
from taskharbor.model.job import FAILURE_TYPE, JobRecord, NewJob, RunAtRule, Update
from taskharbor.model.state import JobState

UNSAID = "\ufffe the store's own words"
DATA = ("type", "payload", "headers", "timeout", "priority", "requires")
RETRY = ("max_attempts", "max_stalls", "min_backoff", "max_backoff")
WAITS = (JobState.READY, JobState.SCHEDULED)


class Record(SimpleNamespace):
    """One stored job: the fields of JobRecord, changed in place."""


class JobTable:
    """The jobs, the aliases, and what can be read of them."""

    def __init__(self) -> None:
        self.jobs: dict[str, Any] = {}
        self.aliases: dict[str, str] = {}
        self.settings: dict[str, dict[str, Any]] = {}  # queue or "*": what was set
        self.store_seqs: dict[str, int] = {}
        self.moves: Counter[tuple[JobState, JobState]] = Counter()
        self.touched: set[str] = set()
        self.copied_runs: set[tuple[str, int]] = set()  # (job, fence)
        self.made_beside: dict[str, str] = {}  # copy: who ran its original then
        self.head_starts: dict[str, tuple[tuple[str, ...], datetime]] = {}  # copy: not for these until then
        self._seq = 0
        self._shown: dict[str, JobRecord] = {}

    # ------------------------------------------------------------------ looking

    def get(self, job_id: str, now: datetime) -> JobRecord | None:
        job = self.jobs.get(self.resolve(job_id))
        return None if job is None else self._show(job, now)

    def whole(self, job_id: str) -> JobRecord:
        """The record as it is stored and as `reserve` hands it out, token included."""
        return JobRecord(**vars(self.jobs[job_id]) | {"seq": self.store_seqs.get(job_id, -1)})

    def find(self, query: Query, now: datetime) -> list[JobRecord]:
        """Every job that fits, in the order asked for; the pages are the store's business."""
        shown = [self._show(job, now) for job in self.listed()]
        fits = [
            job
            for job in shown
            if (query.queue is None or job.queue == query.queue)
            and (query.states is None or job.state in query.states)
            and (query.type is None or job.type == query.type)
            and (query.key is None or job.key == query.key)
            and (query.worker_id is None or job.worker_id == query.worker_id)
            and (query.failure_kind is None or job.failure_kind == query.failure_kind)
            and (query.ended_after is None or (job.finished_at or query.ended_after) > query.ended_after)
        ]
        if query.order_by == "ended":
            ended = [(job.finished_at, number, job) for number, job in enumerate(fits) if job.finished_at]
            fits = [job for *_, job in sorted(ended, key=lambda one: one[:2])]
        return fits[::-1] if query.newest_first else fits

    def count(self, now: datetime) -> dict[str, Counts]:
        names = {job.queue for job in self.listed()}
        return {queue: self._counts(queue, now) for queue in names}

    def copies_ready_since(self, queue: str, now: datetime) -> list[datetime]:
        """Waiting copies are not listed; whether they count as the oldest ready job is the store's choice."""
        copies = [job for job in self.jobs.values() if job.queue == queue and job.speculates_on is not None]
        return [order(job)[1] for job in copies if self.state_of(job, now) is JobState.READY]

    def due(self, now: datetime) -> int:
        """How many wait after a time that has come, copies among them: so many can be promoted at most."""
        timed = [job for job in self.jobs.values() if job.run_at is not None]
        return sum(self.state_of(job, now) is JobState.READY for job in timed)

    def adopt_order_of_failures(self) -> None:
        """Where one step cannot span queues, failure jobs of one instant take the order of the store."""
        failures: dict[datetime, list[Any]] = {}
        for job in self.jobs.values():
            if job.type == FAILURE_TYPE and job.id in self.store_seqs:
                failures.setdefault(job.created_at, []).append(job)
        for same_instant in failures.values():
            places = [job.seq for job in same_instant]
            for job, place in zip(sorted(same_instant, key=self._seq_in_store), places, strict=True):
                job.seq = place
        self.jobs = dict(sorted(self.jobs.items(), key=lambda item: item[1].seq))

    def _seq_in_store(self, job: Any) -> int:
        return self.store_seqs[job.id]

    def listed(self) -> list[Any]:
        """Every job but the copies, in enqueue order: new records are added at the end of the dict."""
        return [job for job in self.jobs.values() if job.speculates_on is None]

    def resolve(self, job_id: str) -> str:
        while job_id in self.aliases:
            job_id = self.aliases[job_id]
        return job_id

    def state_of(self, job: Any, now: datetime) -> JobState:
        """As it reads: due means ready, promoted or not."""
        state: JobState = job.state
        return waiting(job.run_at, now) if state in WAITS else state

    def adopt(self, seen: JobRecord) -> None:
        """Take over what the contract leaves to the store, where nothing was taken over yet."""
        job = self.jobs[seen.id]
        self.store_seqs.setdefault(seen.id, seen.seq)
        if job.last_error == UNSAID:
            job.last_error = seen.last_error or UNSAID
        if len(job.history) == len(seen.history):
            job.history = tuple(
                msgspec.structs.replace(ours, error=theirs.error or UNSAID) if ours.error == UNSAID else ours
                for ours, theirs in zip(job.history, seen.history, strict=True)
            )
        if job.type == FAILURE_TYPE and _is_same_story(job.payload, seen.payload):
            job.payload = seen.payload
        self._shown.pop(seen.id, None)

    # ------------------------------------------------------------------ writing

    def _create(self, job: NewJob, now: datetime) -> Any:
        self._seq += 1
        record = Record(**{name: default_of(name) for name in JobRecord.__struct_fields__})
        for name in NewJob.__struct_fields__:
            if name not in ("update", "delay"):
                setattr(record, name, getattr(job, name))
        record.seq = self._seq
        record.run_at = after_delay(job.run_at, job.delay, now)
        record.state = waiting(record.run_at, now)
        record.version, record.created_at, record.updated_at = 1, now, now
        self.jobs[job.id] = record
        self.touched.add(job.id)
        self._shown.pop(job.id, None)
        self.store_seqs.pop(job.id, None)
        return record

    def _move(self, job: Any, state: JobState) -> None:
        self.moves[job.state, state] += 1
        job.state = state

    def _touch(self, job: Any, now: datetime) -> None:
        job.version += 1
        job.updated_at = now
        self.touched.add(job.id)
        self._shown.pop(job.id, None)

    def _forget(self, job: Any) -> None:
        self.jobs.pop(job.id, None)
        self.store_seqs.pop(job.id, None)
        self.touched.add(job.id)
        for alias in [alias for alias in self.aliases if self.resolve(alias) == job.id]:
            del self.aliases[alias]
            self.touched.add(alias)

    # ------------------------------------------------------------------ small parts

    def _of_key(self, queue: str, key: bytes | None, *states: JobState) -> list[Any]:
        if key is None:
            return []
        same = [job for job in self.jobs.values() if job.queue == queue and job.key == key]
        return [job for job in same if job.state in states]

    def _rule(self, level: str, name: str) -> Any:
        return self.settings.get(level, {}).get(name)

    def _counts(self, queue: str, now: datetime) -> Counts:
        states = Counter(self.state_of(job, now).value for job in self.listed() if job.queue == queue)
        return Counts(**states)

    def _ready_since(self, queue: str, now: datetime) -> list[datetime]:
        ready = [job for job in self.listed() if job.queue == queue]
        return [order(job)[1] for job in ready if self.state_of(job, now) is JobState.READY]

    def _show(self, job: Any, now: datetime) -> JobRecord:
        state = self.state_of(job, now)
        shown = self._shown.get(job.id)
        if shown is None or shown.state is not state:
            shown = msgspec.structs.replace(self.whole(job.id), state=state, token=None)
            self._shown[job.id] = shown
        return shown


def plain(update: Update) -> Update:
    """The flags with `reset_counts` filled in."""
    return Update(update.data, update.run_at, update.retry, update.resets_counts)


def after_delay(run_at: datetime | None, delay: timedelta | None, now: datetime) -> datetime | None:
    """The stored run_at: a delay counts from the deciding clock, none or zero means now."""
    return now + delay if delay else run_at


def waiting(run_at: datetime | None, now: datetime) -> JobState:
    return JobState.READY if run_at is None or run_at <= now else JobState.SCHEDULED


def choose(rule: RunAtRule, kept: datetime | None, new: datetime | None, now: datetime) -> datetime | None:
    """Which run_at wins; an empty one compares as `now`, and of two equal ones the kept one stays."""
    if rule is True or rule is False:
        return new if rule else kept
    best = max if rule == "if_later" else min
    return best(kept, new, key=lambda run_at: run_at or now)


def order(job: Any) -> tuple[int, datetime, int]:
    """The order of claims within a lane."""
    return -job.priority, job.run_at or job.created_at, job.seq


def default_of(name: str) -> Any:
    default = _DEFAULTS.get(name, msgspec.NODEFAULT)
    return None if default is msgspec.NODEFAULT else default


def _is_same_story(ours: bytes, theirs: bytes) -> bool:
    """Whether two payloads of a failure job say the same, in whatever order and with whose words."""
    try:
        model, other = msgspec.json.decode(ours), msgspec.json.decode(theirs)
    except msgspec.DecodeError:
        return False
    if model["error"] == UNSAID and other.get("error"):
        model["error"] = other["error"]
    return bool(model == other)


_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(JobRecord)}
