"""Enqueue for blocking callers: a plain socket, no event loop.

Each thread uses one connection at a time. Jobs whose key is in use are decided in a unit of work, as
everywhere, in a short-lived event loop.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

import hiredis

from taskharbor.drivers.messages import Enqueued
from taskharbor.drivers.redis import faults
from taskharbor.drivers.redis.address import Host
from taskharbor.drivers.redis.connection import Command, greeting, packed
from taskharbor.drivers.redis.enqueue import ENQUEUE_ONE, answered, call_of, created, is_plain, packed_one
from taskharbor.drivers.redis.eviction import LOOK, EvictionGuard
from taskharbor.drivers.redis.primary import Primary, is_of_another_epoch
from taskharbor.drivers.redis.scripts import SCRIPTS
from taskharbor.errors import DriverUnavailable
from taskharbor.model.job import NewJob

_READ_BYTES = 65536


class BlockingConnection:
    """A blocking connection."""

    def __init__(self, primary: Primary, host: Host) -> None:
        address = primary.address
        where = f"{host[0]}:{host[1]}"
        try:
            plain = socket.create_connection(host, address.connect_timeout)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            context: ssl.SSLContext | None = address.tls_context()
            if context is None:
                self._socket = _timed(plain, address.timeout)
            else:
                plain.settimeout(address.timeout)
                self._socket = context.wrap_socket(plain, server_hostname=host[0])
        except OSError as error:
            raise faults.unreachable(error, where) from error
        self._reader = hiredis.Reader(notEnoughData=_NOTHING)
        self.is_open = True
        try:
            for command in greeting(address.username, address.password, address.database):
                self.call(command)
        except hiredis.ReplyError as error:
            self.close()
            raise faults.ours(error) from error

    def call(self, command: Command) -> Any:
        """Send a command and return the reply. An error of the server is raised as it is."""
        return self.send(packed(command))

    def send(self, command: bytes) -> Any:
        """The same for an encoded command."""
        try:
            self._socket.sendall(command)
            while (answer := self._reader.gets()) is _NOTHING:
                data = self._socket.recv(_READ_BYTES)
                if not data:
                    raise ConnectionResetError
                self._reader.feed(data)
        except (OSError, hiredis.HiredisError) as error:
            if isinstance(error, hiredis.ReplyError):
                raise
            self.close()
            why = TimeoutError() if isinstance(error, BlockingIOError) else error
            raise faults.lost(why, done=None) from error
        if isinstance(answer, hiredis.ReplyError):
            raise answer
        return answer

    def close(self) -> None:
        self.is_open = False
        with suppress(OSError):
            self._socket.close()


def _timed(plain: socket.socket, seconds: float) -> socket.socket:
    """Let the kernel enforce the timeout: Python would poll before every send and receive."""
    plain.settimeout(None)
    whole = int(seconds)
    limit = struct.pack("@ll", whole, int((seconds - whole) * 1_000_000))
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
    return plain


_NOTHING = object()


class Blocking:
    """Blocking enqueues of one driver handle. Thread-safe."""

    def __init__(
        self,
        primary: Primary,
        with_care: Callable[[Sequence[NewJob], datetime | None], Coroutine[Any, Any, list[Enqueued]]],
        eviction_guard: EvictionGuard,
    ) -> None:
        self._primary = primary
        self._with_care = with_care
        self._eviction_guard = eviction_guard
        self._sees_rates = False
        self._idle: list[BlockingConnection] = []

    def enqueue(self, jobs: Sequence[NewJob], now: datetime | None) -> list[Enqueued]:
        self._check_eviction()
        if len(jobs) == 1 and jobs[0].bonds is None and is_plain(jobs[0]) and (at := self._one(jobs[0], now)):
            return created(jobs[0], at)
        if any(job.bonds is not None for job in jobs):
            return self._decide(jobs, now)
        while True:
            keys, arguments = call_of(self._primary.keys, jobs, now, with_rates=self._sees_rates)
            answers = answered(jobs, self._run("enqueue", keys, arguments))
            if not isinstance(answers, str):
                return answers
            if answers == "care":
                return self._decide(jobs, now)
            self._sees_rates = True

    def _check_eviction(self) -> None:
        if self._eviction_guard.is_due():
            line = self._take()
            try:
                self._eviction_guard.seen(line.call(LOOK))
            except hiredis.ReplyError:  # the enqueue itself meets the same error and raises it
                return
            finally:
                self._give_back(line)
        self._eviction_guard.check()

    def _one(self, job: NewJob, now: datetime | None) -> int:
        """When enqueue_one.lua created a plain job; 0 if it did nothing."""
        line, primary = self._take(), self._primary
        try:
            at: int = line.send(packed_one(primary.keys, primary.epoch, job, now))
        except (
            hiredis.ReplyError
        ) as error:  # nothing was done; the full enqueue meets the same error and handles it
            if faults.word_of(error) == "NOSCRIPT":
                line.call(("SCRIPT", "LOAD", ENQUEUE_ONE.source))
            return 0
        finally:
            self._give_back(line)
        return at

    def close(self) -> None:
        idle, self._idle = self._idle, []
        for line in idle:
            line.close()

    def _decide(self, jobs: Sequence[NewJob], now: datetime | None) -> list[Enqueued]:
        """Run it in a thread of its own: the caller's thread may have a running event loop."""
        answers: list[list[Enqueued]] = []
        failures: list[BaseException] = []

        def run() -> None:
            try:
                answers.append(asyncio.run(self._with_care(jobs, now)))
            except BaseException as error:  # noqa: BLE001 - raised again where it was asked for
                failures.append(error)

        thread = threading.Thread(target=run, name="taskharbor-enqueue", daemon=True)
        thread.start()
        thread.join()
        if failures:
            raise failures[0]
        return answers[0]

    def _run(self, name: str, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        script, primary = SCRIPTS[name], self._primary
        for _ in range(5):
            line = self._take()
            try:
                reply = line.call(
                    (
                        "EVALSHA",
                        script.digest,
                        len(keys),
                        *keys,
                        primary.epoch,
                        *arguments,
                    )
                )
                if not is_of_another_epoch(reply):
                    return reply
                data = primary.keys.data
                line.call(("HSETNX", data, "e", primary.fresh_epoch()))
                primary.found_epoch(line.call(("HGET", data, "e")))
            except hiredis.ReplyError as error:
                self._mend(line, error, script.source)
            finally:
                self._give_back(line)
        raise DriverUnavailable("the server keeps sending us elsewhere; nothing was written", done=False)

    def _mend(self, line: BlockingConnection, error: hiredis.ReplyError, source: str) -> None:
        """Do what lets the same call succeed next time, or raise."""
        match faults.word_of(error):
            case "NOSCRIPT":
                line.call(("SCRIPT", "LOAD", source))
            case "MOVED":
                host, _, port = str(error).split(" ")[2].rpartition(":")
                line.close()
                self._idle.append(BlockingConnection(self._primary, (host, int(port))))
            case word:
                if word in faults.HANG_UP:
                    line.close()
                raise faults.ours(error) from error

    def _take(self) -> BlockingConnection:
        idle = self._idle
        with suppress(IndexError):  # deque.pop and append are atomic, so no lock is needed
            while True:
                line = idle.pop()
                if line.is_open:
                    return line
        return self._connected()

    def _connected(self) -> BlockingConnection:
        """Connect to the primary that the async side found, else to the first host that answers."""
        places = [self._primary.found] if self._primary.found else list(self._primary.address.hosts)
        failure: DriverUnavailable | None = None
        for host in places:
            try:
                return BlockingConnection(self._primary, host)
            except DriverUnavailable as error:
                failure = failure or error
        raise failure or DriverUnavailable("the store URL names no host")

    def _give_back(self, line: BlockingConnection) -> None:
        if line.is_open:
            self._idle.append(line)
