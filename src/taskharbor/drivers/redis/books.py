"""Steps over several jobs: read a picture, decide in a ledger, write if nothing has changed meanwhile.

When something has changed, somebody else got on, and the step is decided anew: so there is always one
who gets on, and nobody holds a lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Protocol, TypeVar

from taskharbor.drivers.redis.keys import Keys
from taskharbor.drivers.redis.ledger import Ledger
from taskharbor.drivers.redis.picture import Picture
from taskharbor.drivers.redis.rules import rules_in
from taskharbor.drivers.redis.server import Server
from taskharbor.errors import DriverUnavailable, RateLimited
from taskharbor.model.clock import micros
from taskharbor.model.queue import EVERY_QUEUE, QueueRules

_T = TypeVar("_T")


MOST_TRIES = 1000


def too_busy() -> DriverUnavailable:
    """Others were always faster: so many of them that something must be wrong."""
    return DriverUnavailable("the jobs of this call change all the time; nothing was written", done=False)


def stated(now: datetime | None) -> int | str:
    """The clock of a call, for a script: its microseconds, or nothing when the server's decides."""
    return "" if now is None else micros(now)


class Abroad(Protocol):
    """What a queue in a slot of its own needs from elsewhere."""

    queue: str

    async def take_seqs(self, count: int) -> int:
        """The first of so many new numbers, which are unique in the harbor."""
        ...

    async def send(self, told: Sequence[tuple[str, str]], posted: bool, now: datetime | None) -> None:
        """Hint workers that a job of theirs was cancelled; and something was put into the outbox."""
        ...


class Books:
    """The way from a verb to a ledger and back."""

    def __init__(self, server: Server, keys: Keys, abroad: Abroad | None = None) -> None:
        """`abroad`: where to turn with what is not in this slot of a cluster."""
        self._server = server
        self._keys = keys
        self._abroad = abroad
        self._rules: dict[str, tuple[bytes | None, QueueRules]] = {}

    async def step(
        self,
        asked: Sequence[bytes],
        decide: Callable[[Ledger], _T],
        now: datetime | None,
        *,
        seqs: int = 0,
        queues: Iterable[str] = (),
    ) -> _T:
        """Let `decide` change the records of these jobs; its answer, once it is written.

        It may be called more than once. `seqs`: how many records it may add.
        """
        for _ in range(MOST_TRIES):
            first_seq = await self._abroad.take_seqs(seqs) if self._abroad and seqs else 0
            here = 0 if self._abroad else seqs
            reply = await self._server.run(
                "read", [self._keys.data], stated(now), here, *asked, writes=here > 0
            )
            picture = Picture(reply)
            picture.first_seq = first_seq or picture.first_seq
            rules = await self._rules_for(picture, queues)
            ledger = Ledger(self._keys, picture, rules, only=self._abroad.queue if self._abroad else None)
            answer = decide(ledger)
            if ledger.is_unchanged or await self._commit(ledger, now):
                if self._abroad and (ledger.told or ledger.posted):
                    await self._abroad.send(ledger.told, ledger.posted, now)
                return answer
        raise too_busy()

    async def _commit(self, ledger: Ledger, now: datetime | None) -> bool:
        keys, arguments = ledger.commands()
        reply = await self._server.run_in_epoch("commit", keys, stated(now), *arguments)
        if reply == b"done":
            return True
        if reply == b"changed":
            self._rules.clear()
            return False
        _, place, wait = reply
        queue = ledger.rates[int(place) - 1][0]
        raise RateLimited(queue, timedelta(microseconds=int(wait)))

    async def _rules_for(
        self, picture: Picture, queues: Iterable[str]
    ) -> dict[str, tuple[bytes | None, QueueRules]]:
        """The settings of every queue in the picture; one that is out of date is noticed at the commit."""
        names = {EVERY_QUEUE, *queues}
        names |= {job.queue for job_id in picture.jobs() if (job := picture.record(job_id)) is not None}
        missing = [name for name in names if name not in self._rules]
        if missing:
            fields = [f"R{name}" for name in missing]
            found = await self._server.command("HMGET", self._keys.data, *fields)
            for name, packed in zip(missing, found, strict=True):
                self._rules[name] = packed, rules_in(packed)
        return {name: self._rules[name] for name in names}

    def forget_rules(self) -> None:
        self._rules.clear()

    async def queue_names(self) -> list[str]:
        """Every queue that ever had a job, by name."""
        found = await self._server.command("SMEMBERS", self._keys.queues)
        return sorted(name.decode() for name in found)
