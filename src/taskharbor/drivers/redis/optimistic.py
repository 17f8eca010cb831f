"""Optimistic steps over several jobs: read a snapshot, decide in a unit of work, write if unchanged.

On a conflict the step is retried. Some writer always succeeds, so no lock is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Protocol, TypeVar

from taskharbor.drivers.redis.encoding import now_arg
from taskharbor.drivers.redis.keys import Keys
from taskharbor.drivers.redis.primary import Primary
from taskharbor.drivers.redis.settings_codec import rules_in
from taskharbor.drivers.redis.snapshot import Snapshot
from taskharbor.drivers.redis.unit_of_work import UnitOfWork
from taskharbor.errors import DriverUnavailable, RateLimited
from taskharbor.model.queue import EVERY_QUEUE, QueueRules

_T = TypeVar("_T")


MOST_TRIES = 1000


def too_busy() -> DriverUnavailable:
    """Every try met a conflict: with so many, something is wrong."""
    return DriverUnavailable("the jobs of this call change all the time; nothing was written", done=False)


class OtherSlots(Protocol):
    """What one queue of a cluster needs from other slots."""

    queue: str

    async def take_seqs(self, count: int) -> int:
        """Issue new seqs, unique in the harbor; returns the first of them."""
        ...

    async def send(
        self, cancel_wakeups: Sequence[tuple[str, str]], posted: bool, now: datetime | None
    ) -> None:
        """Send the wake-ups of cancels to workers; `posted`: the outbox has new jobs."""
        ...


class OptimisticStep:
    """Runs a verb's decision in a unit of work."""

    def __init__(self, primary: Primary, keys: Keys, other_slots: OtherSlots | None = None) -> None:
        """`other_slots`: on a cluster, how to reach what is not in this slot."""
        self._primary = primary
        self._keys = keys
        self._other_slots = other_slots
        self._rules: dict[str, tuple[bytes | None, QueueRules]] = {}

    async def run(
        self,
        asked: Sequence[bytes],
        decide: Callable[[UnitOfWork], _T],
        now: datetime | None,
        *,
        seqs: int = 0,
        queues: Iterable[str] = (),
    ) -> _T:
        """Let `decide` change the records of these jobs, write, and return its answer.

        `decide` may be called more than once. `seqs`: how many records it may add.
        """
        for _ in range(MOST_TRIES):
            first_seq = await self._other_slots.take_seqs(seqs) if self._other_slots and seqs else 0
            here = 0 if self._other_slots else seqs
            reply = await self._primary.run(
                "read", [self._keys.data], now_arg(now), here, *asked, writes=here > 0
            )
            snapshot = Snapshot(reply)
            snapshot.first_seq = first_seq or snapshot.first_seq
            rules = await self._rules_for(snapshot, queues)
            unit = UnitOfWork(
                self._keys, snapshot, rules, only=self._other_slots.queue if self._other_slots else None
            )
            answer = decide(unit)
            if unit.is_unchanged or await self._commit(unit, now):
                if self._other_slots and (unit.cancel_wakeups or unit.posted):
                    await self._other_slots.send(unit.cancel_wakeups, unit.posted, now)
                return answer
        raise too_busy()

    async def _commit(self, unit: UnitOfWork, now: datetime | None) -> bool:
        keys, arguments = unit.commands()
        reply = await self._primary.run_in_epoch("commit", keys, now_arg(now), *arguments)
        if reply == b"done":
            return True
        if reply == b"changed":
            self._rules.clear()
            return False
        _, place, wait = reply
        queue = unit.rates[int(place) - 1][0]
        raise RateLimited(queue, timedelta(microseconds=int(wait)))

    async def _rules_for(
        self, snapshot: Snapshot, queues: Iterable[str]
    ) -> dict[str, tuple[bytes | None, QueueRules]]:
        """The settings of every queue in the snapshot; commit.lua notices outdated ones."""
        names = {EVERY_QUEUE, *queues}
        names |= {job.queue for job_id in snapshot.jobs() if (job := snapshot.record(job_id)) is not None}
        missing = [name for name in names if name not in self._rules]
        if missing:
            fields = [f"R{name}" for name in missing]
            found = await self._primary.command("HMGET", self._keys.data, *fields)
            for name, packed in zip(missing, found, strict=True):
                self._rules[name] = packed, rules_in(packed)
        return {name: self._rules[name] for name in names}

    def forget_rules(self) -> None:
        self._rules.clear()

    async def queue_names(self) -> list[str]:
        """Every queue that ever had a job, sorted."""
        found = await self._primary.command("SMEMBERS", self._keys.queues)
        return sorted(name.decode() for name in found)
