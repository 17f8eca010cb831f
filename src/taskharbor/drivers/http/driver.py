"""HttpDriver: the contract spoken to a TaskHarbor server. Every verb is one request, and the server's
store does the work; see drivers/wire.py for what travels."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Sequence
from datetime import datetime
from inspect import signature
from typing import Any

import msgspec

from taskharbor.drivers import wire
from taskharbor.drivers.capabilities import Capabilities
from taskharbor.drivers.http.address import Address, address_of
from taskharbor.drivers.http.blocking import Blocking
from taskharbor.drivers.http.calls import Calls
from taskharbor.drivers.http.connections import ConnectionPool
from taskharbor.drivers.http.decoding import ResponseTooLarge
from taskharbor.drivers.http.requests import Requests
from taskharbor.drivers.http.wakeups import RemoteWakeups
from taskharbor.drivers.log_pages import each_entry
from taskharbor.drivers.messages import (
    DriverInfo,
    Enqueued,
    Wakeups,
)
from taskharbor.drivers.relay import Carried
from taskharbor.drivers.steps import DriverSteps
from taskharbor.errors import DriverClosed, InvalidArgument
from taskharbor.model.clock import Clock
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import JobRecord, Lease, NewJob
from taskharbor.model.logbook import LogEntry
from taskharbor.model.settlement import Release

_log = logging.getLogger("taskharbor.drivers.http")

# What every server can do. `do_open` adds what the store behind it can.
_CAPABILITIES = Capabilities(multiprocess=True, blocking_enqueue=True, remote=True)


# The names of what a `do_` method takes: those of the message.
_ARGUMENTS = {
    verb: [name for name in signature(step).parameters if name not in ("self", "now")]
    for verb in wire.VERBS
    if (step := getattr(DriverSteps, f"do_{verb}", None)) is not None
}


class HttpDriver(Carried):
    """A harbor behind a TaskHarbor server."""

    def __init__(
        self,
        address: Address,
        *,
        tls: ssl.SSLContext | None = None,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
    ) -> None:
        super().__init__(_CAPABILITIES, clock=clock, entropy=entropy)
        self._address = address
        self._tls = tls or address.tls()
        self._requests = Requests(address, self.entropy.token())
        self._hello: wire.Hello | None = None
        self._pool: ConnectionPool | None = None
        self._calls: Calls | None = None
        self._blocking: Blocking | None = None
        self._listening: set[RemoteWakeups] = set()

    @classmethod
    def from_url(cls, url: str, *, clock: Clock | None = None, entropy: Entropy | None = None) -> HttpDriver:
        """https://token@host:port/path?timeout=30&connections=16&ca=FILE; or the token in TASKHARBOR_TOKEN"""
        return cls(address_of(url), clock=clock, entropy=entropy)

    def another(self) -> HttpDriver:
        entropy = self.entropy.split("another")
        one = HttpDriver(self._address, tls=self._tls, clock=self.clock, entropy=entropy)
        return one.of_the_same_store(self)

    # ------------------------------------------------------------------ open and close

    async def do_open(self) -> None:
        pool = ConnectionPool(self._address, self._tls)
        self._calls = Calls(self._address, pool, self._requests, self._hand_back)
        try:
            hello: wire.Hello = await self._calls.call("hello", b"{}")
        except BaseException:
            pool.close()
            raise
        if self._address.exposes_token:  # reported once, however often a worker tries to open it
            _log.warning("the token for %s crosses the network in the clear: use https", self._address.shown)
        self._pool, self._hello = pool, hello
        self.max_payload = hello.max_payload
        self.capabilities = msgspec.structs.replace(
            hello.capabilities,
            multiprocess=True,
            blocking_enqueue=True,
            remote=True,
            tx=False,
        )
        self._blocking = Blocking(self._address, self._tls, self._requests)

    async def do_close(self) -> None:
        for wakeups in list(self._listening):
            await wakeups.aclose()
        self._listening.clear()
        if self._calls is not None:
            await self._calls.close()
        if self._pool is not None:
            self._pool.close()
        if self._blocking is not None:
            self._blocking.close()

    # ------------------------------------------------------------------ calls

    async def carry(self, verb: str, args: tuple[Any, ...], now: datetime | None) -> Any:
        return await self._ask(verb, **dict(zip(_ARGUMENTS[verb], args, strict=True)), now=now)

    async def _ask(self, verb: str, **arguments: Any) -> Any:
        if self._calls is None:
            raise DriverClosed
        return await self._calls.call(verb, self._body(verb, arguments))

    def _body(self, verb: str, arguments: dict[str, Any]) -> bytes:
        body = wire.encode(arguments)
        if self._hello is not None and len(body) > self._hello.max_body:
            raise InvalidArgument(
                f"{verb} makes a message of {len(body)} bytes, and {self._address.shown} takes "
                f"{self._hello.max_body}; nothing was done, send it in parts"
            )
        return body

    async def _hand_back(self, verb: str, response: Any) -> None:
        """Jobs that were handed out to a caller who has given up wait again, at their place."""
        claimed: list[JobRecord] = getattr(response, "jobs" if verb == "reserve" else "claimed", [])
        if verb in ("reserve", "exchange") and claimed and self._calls is not None:
            settlements = [Release(job.lease) for job in claimed]
            # Where the time is made up, the claim's own: this step belongs to it.
            now = claimed[0].started_at if self._hello is not None and self._hello.takes_now else None
            await self._calls.send("settle", wire.encode({"settlements": settlements, "now": now}))

    async def do_enqueue_family(
        self, jobs: Sequence[NewJob], by: Lease | None, now: datetime | None
    ) -> list[Enqueued]:
        answers: list[Enqueued] = await self._ask("enqueue", jobs=jobs, by=by, now=now)
        return answers

    def do_enqueue_blocking(self, jobs: Sequence[NewJob], now: datetime | None, tx: Any) -> list[Enqueued]:
        if self._blocking is None:
            raise DriverClosed
        body = self._body("enqueue", {"jobs": jobs, "now": now})
        answers: list[Enqueued] = self._blocking.call("enqueue", body)
        return answers

    # ------------------------------------------------------------------ looking

    async def do_get(self, ids: Sequence[str], now: datetime | None) -> list[JobRecord | None]:
        names = list(dict.fromkeys(ids))
        found = dict(zip(names, await self._get_some(names, now), strict=True))
        return [found[job_id] for job_id in ids]

    async def _get_some(self, ids: Sequence[str], now: datetime | None) -> list[JobRecord | None]:
        """A server has a limit of bytes for an answer: then half of them are asked for at a time."""
        try:
            records: list[JobRecord | None] = await self._ask("get", ids=ids, now=now)
        except ResponseTooLarge:
            if len(ids) == 1:
                raise
            half = len(ids) // 2
            return [*await self._get_some(ids[:half], now), *await self._get_some(ids[half:], now)]
        return records

    async def do_look(self, ids: Sequence[str], now: datetime | None) -> list[JobRecord | None]:
        records: list[JobRecord | None] = await self._ask("get", ids=ids, payloads=False, now=now)
        return records

    async def do_read_log(
        self,
        book: str,
        since: datetime,
        until: datetime,
        limit: int,
        newest_first: bool,
        now: datetime | None,
    ) -> list[LogEntry]:
        """In smaller pages where one would be too large an answer."""
        asked = {"book": book, "since": since, "until": until, "newest_first": newest_first, "now": now}
        try:
            entries: list[LogEntry] = await self._ask("read_log", **asked, limit=limit)
        except ResponseTooLarge:
            if limit == 1:
                raise
            entries = []
            async for entry in each_entry(
                self, book, since, until, page=limit // 2, newest_first=newest_first, now=now
            ):
                entries.append(entry)
                if len(entries) == limit:
                    break
        return entries

    async def do_info(self) -> DriverInfo:
        """What the server says of its store, and where the server is."""
        info: DriverInfo = await self._ask("info")
        version = self._hello.version if self._hello is not None else ""
        details = {**info.details, "server": version, "behind": info.location or info.driver}
        return msgspec.structs.replace(info, driver="http", location=self._address.shown, details=details)

    async def do_ring(self, queues: tuple[str, ...]) -> None:
        await self._ask("ring", queues=queues)

    def do_wakeups(self, queues: tuple[str, ...], worker_id: str) -> Wakeups:
        if not self.capabilities.wakeups:
            return super().do_wakeups(queues, worker_id)
        body = wire.encode({"queues": queues, "worker_id": worker_id})
        wakeups = RemoteWakeups(
            self._address,
            self._tls,
            lambda: self._requests.request("wakeups", body, self._requests.next_call()),
            self.entropy.split("wakeups"),
            self._listening.discard,
        )
        self._listening.add(wakeups)
        return wakeups

    async def do_pending_migrations(self) -> list[str]:
        names: list[str] = await self._ask("pending_migrations")
        return names

    async def do_migrate(self) -> list[str]:
        names: list[str] = await self._ask("migrate")
        return names
