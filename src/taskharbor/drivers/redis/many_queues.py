"""A claim of very many queues: which of them it looks at.

A claim reads some keys of each of its queues, and with 2,000 of them that takes 25 ms. So the set
`look_from` has for each queue from when on a claim may find something in it: 0 if it has a line of ready
jobs, else when its first scheduled job is due or its first lease ends. It may be too early, never too late:

- what adds a line or a scheduled job, or shortens a lease, makes it earlier in the same script;
- only a claim of many queues makes it later (`note_when_to_look` in exchange_claim.lua), from what it sees;
- a claim writes no instant for its leases: while it finds jobs, there is one that lies before them.

Version 0.1.0 keeps no such instants. So a handle's first claim, and one of a thousand, looks at all of its
queues, and every claim at those that have sent a wake-up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from msgspec.structs import asdict

from taskharbor.drivers.messages import Claim
from taskharbor.drivers.redis.encoding import now_arg
from taskharbor.drivers.redis.keys import Keys
from taskharbor.drivers.redis.primary import Primary

FEW_QUEUES = 32
"""Up to so many are claimed in one round trip, and by claims that are parked."""
_LOOKS_AT_ALL_EVERY = 1000  # claims


class OfMany(Claim, frozen=True, kw_only=True):
    """A claim of some of many queues, or of all of them: it notes when to look at each again."""


class ManyQueues:
    """For one driver handle: which queues of a claim to look at, and how long to sleep."""

    def __init__(self, primary: Primary, keys: Keys) -> None:
        self._primary = primary
        self._keys = keys
        self._claims = 0
        self._slept_until: int | str = 0

    async def narrowed(self, claim: Claim, woken: Iterable[str], now: datetime | None) -> Claim:
        """The claim with the queues in which there may be something, and those in `woken`.

        With one at least: a claim also carries out what families owe.
        """
        self._claims += 1
        queues = claim.queues
        if self._claims % _LOOKS_AT_ALL_EVERY != 1:
            found = {*(await self._look(queues, "", now))[2], *woken}
            queues = tuple(queue for queue in queues if queue in found) or queues[:1]
        return OfMany(**asdict(claim) | {"queues": queues})

    async def with_something(self, queues: Sequence[str]) -> list[str]:
        """Those in which there may be something now."""
        return (await self._look(queues, "", None))[2]

    async def seconds_until_more(self, queues: Sequence[str]) -> float | None:
        """Until there may be more, 0 if that was since the last call; None if nothing is known of more."""
        now, following, _ = await self._look(queues, self._slept_until, None)
        self._slept_until = now
        return None if following is None else max(following - now, 0) / 1e6

    async def _look(
        self, queues: Sequence[str], since: int | str, now: datetime | None
    ) -> tuple[int, int | None, list[str]]:
        names = "\n".join(("", *queues, ""))
        reply = await self._primary.run(
            "look", [self._keys.look_from], now_arg(now), since, names, writes=False
        )
        at, following, *found = reply
        return int(at), int(float(following)) if following else None, [name.decode() for name in found]
