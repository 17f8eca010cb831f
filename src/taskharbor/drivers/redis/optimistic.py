"""Optimistic steps over several jobs: read a snapshot, decide in a unit of work, write if unchanged.

On a conflict the step is retried. Some writer always succeeds, so no lock is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Protocol, TypeVar

from taskharbor.drivers.redis.encoding import now_arg
from taskharbor.drivers.redis.family_unit import FamilyUnit
from taskharbor.drivers.redis.keys import Keys
from taskharbor.drivers.redis.primary import Primary
from taskharbor.drivers.redis.settings_codec import rules_in
from taskharbor.drivers.redis.snapshot import Snapshot
from taskharbor.errors import DriverUnavailable, RateLimited
from taskharbor.model.queue import EVERY_QUEUE, QueueRules

_T = TypeVar("_T")


MOST_TRIES = 1000


def too_busy() -> DriverUnavailable:
    """Every try met a conflict: with so many, something is wrong."""
    return DriverUnavailable("the jobs of this call change all the time; nothing was written", done=False)


class OtherSlots(Protocol):
    """What one slot of a cluster needs from others."""

    queue: str

    async def take_seqs(self, count: int) -> int:
        """Issue new seqs, unique in the harbor; returns the first of them."""
        ...

    async def send(self, unit: FamilyUnit) -> None:
        """A step is written: send its wake-ups, and take note of the jobs that it left in the outbox."""
        ...

    async def ring(self, queues: Iterable[str]) -> None:
        """Wake up a worker of each of these queues, which wait in slots of their own."""
        ...


class OptimisticStep:
    """Runs a verb's decision in a unit of work."""

    def __init__(self, primary: Primary, keys: Keys, other_slots: OtherSlots | None = None) -> None:
        """`other_slots`: on a cluster, how to reach what is not in this slot."""
        self.primary = primary
        self.keys = keys
        self._other_slots = other_slots
        self._rules: dict[str, tuple[bytes | None, QueueRules]] = {}

    async def run(
        self,
        asked: Sequence[bytes],
        decide: Callable[[FamilyUnit], _T],
        now: datetime | None,
        *,
        seqs: int = 0,
        queues: Iterable[str] = (),
    ) -> _T:
        """Let `decide` change the records of these jobs, write, and return its answer.

        `decide` may be called more than once: after a conflict, and with more to read once it is known what
        it needs. `seqs`: how many records it usually adds.
        """
        snapshot: Snapshot | None = None
        more: Sequence[bytes] = asked
        for _ in range(MOST_TRIES):
            snapshot = await self._read(snapshot, more, seqs, now)
            unit = FamilyUnit(
                self.keys,
                snapshot,
                await self._rules_for(snapshot, queues),
                only=self._other_slots.queue if self._other_slots else None,
            )
            try:
                answer = decide(unit)
            except Exception:
                if not unit.missing:
                    raise
                more = list(unit.missing)  # decided with jobs missing: the error means nothing
                continue
            if unit.missing or unit.seqs_taken > seqs:
                more, seqs = list(unit.missing), max(seqs, unit.seqs_taken)
            elif (unit.is_unchanged and snapshot.reads == 1) or await self._commit(unit, now):
                if self._other_slots and (unit.cancel_wakeups or unit.posted or unit.woken_elsewhere):
                    await self._other_slots.send(unit)
                return answer
            else:
                more, snapshot = list(snapshot.asked), None
        raise too_busy()

    async def first_seq(self, count: int) -> int | str:
        """The first of so many new seqs; '' where the scripts of this store issue them."""
        return await self._other_slots.take_seqs(count) if self._other_slots else ""

    async def ring(self, queues: Iterable[str]) -> None:
        """Jobs of these queues were made ready by a script: wake up who waits in another slot."""
        if self._other_slots and (elsewhere := set(queues) - {self._other_slots.queue}):
            await self._other_slots.ring(elsewhere)

    async def _read(
        self, snapshot: Snapshot | None, asked: Sequence[bytes], seqs: int, now: datetime | None
    ) -> Snapshot:
        """A snapshot of these jobs, or the one that was there with these in it."""
        if snapshot is not None and snapshot.seqs >= seqs:
            seqs_here = first_seq = 0
        else:
            first_seq = await self._other_slots.take_seqs(seqs) if self._other_slots and seqs else 0
            seqs_here = 0 if self._other_slots else seqs
        keys = [self.keys.data, self.keys.relatives, self.keys.deadlines, self.keys.owed]
        reply = await self.primary.run("read", keys, now_arg(now), seqs_here, *asked, writes=seqs_here > 0)
        if snapshot is None:
            snapshot = Snapshot(reply, asked)
        else:
            snapshot.add(reply, asked)
        if first_seq or seqs_here:
            snapshot.first_seq, snapshot.seqs = first_seq or int(reply[1]), seqs
        return snapshot

    async def _commit(self, unit: FamilyUnit, now: datetime | None) -> bool:
        keys, arguments = unit.commands()
        reply = await self.primary.run_in_epoch("commit", keys, now_arg(now), *arguments)
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
            found = await self.primary.command("HMGET", self.keys.data, *fields)
            for name, packed in zip(missing, found, strict=True):
                self._rules[name] = packed, rules_in(packed)
        return {name: self._rules[name] for name in names}

    def forget_rules(self) -> None:
        self._rules.clear()

    async def queue_names(self) -> list[str]:
        """Every queue that ever had a job, sorted."""
        found = await self.primary.command("SMEMBERS", self.keys.queues)
        return sorted(name.decode() for name in found)
