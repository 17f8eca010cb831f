"""Steps over several jobs: read a picture, decide in a ledger, write if nothing has changed meanwhile.

When something has changed, somebody else got on, and the step is decided anew: so there is always one
who gets on, and nobody holds a lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Protocol, TypeVar

from taskharbor.drivers.redis.keys import Keys
from taskharbor.drivers.redis.primary import Primary
from taskharbor.drivers.redis.settings_codec import rules_in
from taskharbor.drivers.redis.snapshot import Snapshot
from taskharbor.drivers.redis.unit_of_work import UnitOfWork
from taskharbor.errors import DriverUnavailable, RateLimited
from taskharbor.model.clock import micros
from taskharbor.model.queue import EVERY_QUEUE, QueueRules

_T = TypeVar("_T")


MOST_TRIES = 1000


def too_busy() -> DriverUnavailable:
    """Others were always faster: so many of them that something must be wrong."""
    return DriverUnavailable("the jobs of this call change all the time; nothing was written", done=False)


def now_arg(now: datetime | None) -> int | str:
    """The clock of a call, for a script: its microseconds, or nothing when the server's decides."""
    return "" if now is None else micros(now)


class OtherSlots(Protocol):
    """What a queue in a slot of its own needs from elsewhere."""

    queue: str

    async def take_seqs(self, count: int) -> int:
        """The first of so many new numbers, which are unique in the harbor."""
        ...

    async def send(self, told: Sequence[tuple[str, str]], posted: bool, now: datetime | None) -> None:
        """Hint workers that a job of theirs was cancelled; and something was put into the outbox."""
        ...


class OptimisticStep:
    """The way from a verb to a ledger and back."""

    def __init__(self, primary: Primary, keys: Keys, other_slots: OtherSlots | None = None) -> None:
        """`abroad`: where to turn with what is not in this slot of a cluster."""
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
        """Let `decide` change the records of these jobs; its answer, once it is written.

        It may be called more than once. `seqs`: how many records it may add.
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
                if self._other_slots and (unit.told or unit.posted):
                    await self._other_slots.send(unit.told, unit.posted, now)
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
        """The settings of every queue in the picture; one that is out of date is noticed at the commit."""
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
        """Every queue that ever had a job, by name."""
        found = await self._primary.command("SMEMBERS", self._keys.queues)
        return sorted(name.decode() for name in found)
