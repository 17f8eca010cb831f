"""Idempotency keys: which job a (queue, key) leads to, until 24 hours after that job's end."""

from __future__ import annotations

from datetime import datetime

from taskharbor.drivers.memory.ordered import Ordered
from taskharbor.model.job import NewJob
from taskharbor.model.queue import IDEMPOTENCY_WINDOW

Key = tuple[str, bytes]


class Idempotency:
    """The mapping outlives the job it points to."""

    def __init__(self) -> None:
        self._job_of: dict[Key, str] = {}
        self._keys_of: dict[str, list[Key]] = {}
        self._ends: dict[Key, datetime] = {}
        self._by_end: Ordered[tuple[datetime, Key]] = Ordered()

    def job_of(self, queue: str, key: bytes, now: datetime) -> str | None:
        """The first job of this key, while the key is remembered."""
        ends_at = self._ends.get((queue, key))
        if ends_at is not None and ends_at <= now:
            return None
        return self._job_of.get((queue, key))

    def remember(self, job: NewJob, job_id: str) -> None:
        if job.idempotency_key is not None:
            key = (job.queue, job.idempotency_key)
            self._forget(key)
            self._job_of[key] = job_id
            self._keys_of.setdefault(job_id, []).append(key)

    def move(self, job_id: str, target: str) -> None:
        """The keys of a job that was merged into another one live as long as that one."""
        for key in self._keys_of.pop(job_id, ()):
            self._job_of[key] = target
            self._keys_of.setdefault(target, []).append(key)

    def end(self, job_id: str, now: datetime) -> None:
        """The job is over: its keys are remembered for a while."""
        for key in self._keys_of.get(job_id, ()):
            self._stop(key)
            self._ends[key] = now + IDEMPOTENCY_WINDOW
            self._by_end.add((self._ends[key], key))

    def revive(self, job_id: str, now: datetime) -> None:
        """The job was requeued: keys still remembered hold until its next end; the others stay forgotten."""
        for key in list(self._keys_of.get(job_id, ())):
            if self._ends.get(key, now) > now:
                self._stop(key)
            else:
                self._forget(key)

    def prune(self, limit: int, now: datetime) -> int:
        pruned = 0
        while pruned < limit and (first := self._by_end.first()) is not None and first[0] <= now:
            self._forget(first[1])
            pruned += 1
        return pruned

    def _forget(self, key: Key) -> None:
        self._stop(key)
        job_id = self._job_of.pop(key, None)
        if job_id is not None:
            keys = self._keys_of.get(job_id, [])
            if key in keys:
                keys.remove(key)
            if not keys:
                self._keys_of.pop(job_id, None)

    def _stop(self, key: Key) -> None:
        if (ends_at := self._ends.pop(key, None)) is not None:
            self._by_end.remove((ends_at, key))
