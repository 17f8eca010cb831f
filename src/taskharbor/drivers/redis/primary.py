"""Primary: the connection to the server that holds a harbor. Reconnects when the primary moves.

It may be one server, a primary that sentinels name, or the cluster node that owns the harbor's slot.
The rest of the driver does not see the difference.
"""

from __future__ import annotations

import asyncio
import binascii
import contextvars
import logging
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from taskharbor.drivers.redis import failover, faults
from taskharbor.drivers.redis.address import Address, Host
from taskharbor.drivers.redis.connection import (
    Command,
    Connection,
    Connections,
    Part,
    PendingReply,
    ServerError,
    connect,
)
from taskharbor.drivers.redis.failover import FailoverDetector
from taskharbor.drivers.redis.keys import Keys
from taskharbor.drivers.redis.scripts import SCRIPTS, Script
from taskharbor.errors import DriverClosed, DriverError, DriverUnavailable

log = logging.getLogger("taskharbor.drivers.redis")

_SLOTS = 16384
_REDIRECTIONS = 5


class Primary:
    """One connection for commands, opened on first use and again when it breaks."""

    def __init__(
        self,
        address: Address,
        keys: Keys,
        make_epoch: Callable[[], bytes],
        shared: Connections | None = None,
    ) -> None:
        """`shared`: a pool of connections that several primaries use; its owner closes it."""
        self.address = address
        self.keys = keys
        self.fresh_epoch = make_epoch
        self.epoch = b""
        self.only_looks = False  # then nothing is written, and an empty store stays empty
        self._shared = shared
        self._failover = FailoverDetector() if shared is None else shared.failover
        self._tls: ssl.SSLContext | None = None
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[Connection] | None = None
        self._is_closed = False
        self._moved_to: Host | None = None
        self.found: Host | None = None  # where the primary was last found
        self.on_reset: Callable[[], None] | None = None

    # ------------------------------------------------------------------ calls

    async def run(self, name: str, keys: Sequence[str], *arguments: Part, writes: bool = True) -> Any:
        """Call a script. `keys` are all the keys it touches."""
        return await self._answer(SCRIPTS[name], keys, arguments, writes)

    async def run_in_epoch(self, name: str, keys: Sequence[str], *arguments: Part) -> Any:
        """Call a script that takes the epoch as its first argument and does nothing in another epoch."""
        script = SCRIPTS[name]
        for _ in range(_REDIRECTIONS):
            reply = await self._answer(script, keys, (self.epoch, *arguments), True)
            if not is_of_another_epoch(reply):
                return reply
            await self.adopt_epoch()
        raise DriverUnavailable("the store was emptied again and again; nothing was written", done=False)

    def at_hand(self) -> Connection | None:
        """The connection if it is open, else None: for a fast path that has a slower way round it."""
        connection = self._connection
        return connection if connection is not None and connection.is_open else None

    async def command(self, *command: Part, writes: bool = False) -> Any:
        """Send one command."""
        return await self._tried(lambda connection: connection.call(command, writes=writes))

    async def together(self, commands: Sequence[Command], *, writes: bool = False) -> Any:
        """Send several commands in one round trip."""

        async def send(connection: Connection) -> Any:
            calls = [connection.call(command, writes=writes) for command in commands]
            return [await call for call in calls]  # replies come in the order of the commands

        return await self._tried(send)

    async def _answer(
        self, script: Script, keys: Sequence[str], arguments: Sequence[Part], writes: bool
    ) -> Any:
        command = ("EVALSHA", script.digest, len(keys), *keys, *arguments)

        async def call(connection: Connection) -> Any:
            try:
                return await connection.call(command, writes=writes)
            except ServerError as error:
                if faults.word_of(error) != "NOSCRIPT":
                    raise
                await connection.call(("SCRIPT", "LOAD", script.source), writes=False)
                return await connection.call(command, writes=writes)

        return await self._tried(call)

    async def _tried(self, call: Callable[[Connection], Awaitable[Any]]) -> Any:
        for _ in range(_REDIRECTIONS):
            connection = self._connection
            if connection is None or not connection.is_open:
                connection = await self._connected()
            try:
                return await call(connection)
            except ServerError as error:
                if not self._follows(connection, error):
                    raise faults.ours(error) from error
        raise DriverUnavailable("the cluster sends us round in circles; nothing was written", done=False)

    def _follows(self, connection: Connection, error: ServerError) -> bool:
        """True if the call may be repeated on another server: this one did nothing."""
        word = faults.word_of(error)
        if word == "MOVED":
            host, _, port = str(error).split(" ")[2].rpartition(":")
            self._moved_to = (host or connection.peer() or "localhost", int(port))
            self._connection = None
            if self._shared is None:
                connection.close()
            return True
        if word in faults.HANG_UP:
            connection.close()
        return False

    # ------------------------------------------------------------------ connections

    async def open(self) -> None:
        self._tls = self.address.tls_context()
        await self._connected()

    async def close(self) -> None:
        self._is_closed = True
        connecting, self._connecting = self._connecting, None
        if connecting is not None:
            if not connecting.done():
                connecting.cancel()
                await asyncio.wait([connecting])
            # The task may have opened a connection that no caller has received.
            if self._shared is None and not connecting.cancelled() and connecting.exception() is None:
                connecting.result().close()
        if self._connection is not None and self._shared is None:
            self._connection.close()
        self._connection = None

    async def another(self) -> Connection:
        """A new connection for blocking commands; it has no reply timeout."""
        return await self._find(timeout=None)

    async def _connected(self) -> Connection:
        """The connection. Callers that arrive while it is being opened wait for the same one."""
        if self._is_closed:
            raise DriverClosed
        if self._connection is not None and self._connection.is_open:
            return self._connection
        if self._connecting is None or self._connecting.done():
            self._connecting = asyncio.create_task(self._find(timeout=self.address.timeout))
        try:
            self._connection = await asyncio.shield(self._connecting)
        except asyncio.CancelledError:
            if self._is_closed:
                raise DriverClosed from None
            raise
        return self._connection

    async def _find(self, timeout: float | None) -> Connection:
        moved_to, self._moved_to = self._moved_to, None
        if moved_to is not None:
            return await self._connect(moved_to, timeout)
        if self.address.mode == "sentinel":
            return await self._primary_of_sentinels(timeout)
        if self.address.mode == "cluster":
            return await self._owner_in_cluster(timeout)
        return await self._first(lambda host: self._connect(host, timeout))

    async def _connect(self, host: Host, timeout: float | None) -> Connection:
        self.found = host
        if timeout is None:
            return await connect(self.address, host, tls=self._tls)
        if self._shared is None:
            return await self._open_connection(host, timeout)
        return await self._shared.get(host, lambda: self._open_connection(host, timeout))

    async def _open_connection(self, host: Host, timeout: float) -> Connection:
        """A new connection for commands. The replication info is fetched in the background."""
        connection = await connect(self.address, host, tls=self._tls, timeout=timeout)
        asked = connection.call(failover.ASK, writes=False)
        asked.add_done_callback(self._note_replication, context=contextvars.copy_context())
        return connection

    def _note_replication(self, reply: PendingReply) -> None:
        try:
            self._failover.check(reply.result(), self.address.shown)
        except (ServerError, DriverError) as error:  # the user may not run INFO, or the server is gone again
            log.debug("%s does not show its replication info: %s", self.address.shown, error)

    async def _first(self, attempt: Callable[[Host], Awaitable[Connection]]) -> Connection:
        """A connection to the first of these hosts that works."""
        failure: DriverError | None = None
        for host in self.address.hosts:
            try:
                return await attempt(host)
            except DriverUnavailable as error:
                failure = failure or error
        raise failure or DriverUnavailable("the store URL names no host")

    # ------------------------------------------------------------------ sentinels and clusters

    async def _primary_of_sentinels(self, timeout: float | None) -> Connection:
        async def ask(host: Host) -> Connection:
            credentials = (self.address.sentinel_username, self.address.sentinel_password)
            sentinel = await connect(
                self.address,
                host,
                tls=self._tls,
                timeout=self.address.timeout,
                credentials=credentials,
            )
            try:
                found = await sentinel.call(
                    ("SENTINEL", "get-master-addr-by-name", self.address.master or ""), writes=False
                )
            except ServerError as error:
                raise faults.ours(error) from error
            finally:
                sentinel.close()
            if not found:
                raise DriverUnavailable(
                    f"the sentinel {host[0]}:{host[1]} knows no primary {self.address.master!r}", done=False
                )
            return await self._checked_primary((found[0].decode(), int(found[1])), timeout)

        return await self._first(ask)

    async def _checked_primary(self, host: Host, timeout: float | None) -> Connection:
        """Connect and check that the server calls itself the primary: a sentinel's answer may be outdated."""
        connection = await self._connect(host, timeout)
        try:
            role = (await connection.call(("ROLE",), writes=False))[0]
        except ServerError as error:
            connection.close()
            raise faults.ours(error) from error
        if role != b"master":
            connection.close()
            raise DriverUnavailable(f"{host[0]}:{host[1]} is not the primary any more", done=False)
        return connection

    async def _owner_in_cluster(self, timeout: float | None) -> Connection:
        slot = slot_of(self.keys.data)

        async def ask(host: Host) -> Connection:
            owner = next((node for low, high, node in await self.slots(host) if low <= slot <= high), None)
            if owner is None:
                raise DriverUnavailable(f"no node of the cluster owns slot {slot} for now", done=False)
            return await self._connect(owner, timeout)

        return await self._first(ask)

    async def slots(self, host: Host) -> list[tuple[int, int, Host]]:
        """The slot ranges and the primary of each, as this cluster node knows them."""
        node = await connect(self.address, host, tls=self._tls, timeout=self.address.timeout)
        try:
            ranges = await node.call(("CLUSTER", "SLOTS"), writes=False)
        except ServerError as error:
            raise faults.ours(error) from error
        finally:
            node.close()
        return [
            (low, high, (primary[0].decode() or host[0], int(primary[1])))
            for low, high, primary, *_ in ranges
        ]

    # ------------------------------------------------------------------ the epoch

    async def adopt_epoch(self) -> None:
        """Read the epoch of the store; start one in an empty store.

        FLUSHALL, or a restart without data, deletes the epoch with everything else. All leases are gone
        then: they are answered as lost, and nothing is recreated from them.
        """
        data = self.keys.data
        if self.only_looks:
            self.found_epoch(await self.command("HGET", data, "e") or b"")
            return
        fresh = self.fresh_epoch()
        _, found = await self.together([("HSETNX", data, "e", fresh), ("HGET", data, "e")], writes=True)
        self.found_epoch(found)

    def found_epoch(self, epoch: bytes) -> None:
        before, self.epoch = self.epoch, epoch
        if before and before != self.epoch:
            log.error(
                "the store at %s was emptied or replaced: every job and every lease in it is gone",
                self.address.shown,
            )
            if self.on_reset is not None:
                self.on_reset()


def is_of_another_epoch(reply: Any) -> bool:
    return reply == b"epoch" or (isinstance(reply, list) and len(reply) == 2 and reply[1] == b"epoch")


def slot_of(key: str) -> int:
    """The cluster slot of a key: CRC-16 of its hash tag."""
    tag = key.partition("{")[2].partition("}")[0] or key
    return binascii.crc_hqx(tag.encode(), 0) % _SLOTS
