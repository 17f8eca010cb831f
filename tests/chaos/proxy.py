"""A TCP proxy that misbehaves on demand: late, deaf, mute, in crumbs, or cutting the line after a request.

    async with Proxy(port, PostgresFraming) as proxy:
        connect to 127.0.0.1:proxy.port
        proxy.cut_after("exchange")       # the server acts, its answer is dropped, the line is reset

It lives in the event loop that started it.
"""

from __future__ import annotations

import asyncio
import re
import socket
import struct
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Self

from tests.chaos.framing import Framing

CHUNK = 64 * 1024


class Cut:
    """A trap for requests of a name: what to do with the answers to the next few of them."""

    def __init__(self, pattern: str, times: int, hold: bool) -> None:
        self.pattern = re.compile(pattern)
        self.left = times
        self.hold = hold
        self.done = 0
        self.has_sprung = asyncio.Event()
        """The server has answered, and the client does not know."""
        self.let_go = asyncio.Event()
        """For held answers: deliver them now."""

    def takes(self, name: str) -> bool:
        if self.left and self.pattern.fullmatch(name):
            self.left -= 1
            return True
        return False

    def sprung(self) -> None:
        self.done += 1
        self.has_sprung.set()


class Proxy:
    """Everything that arrives at `port` goes to `target_port`, in the way that the settings say."""

    def __init__(self, target_port: int, framing: Callable[[], Framing]) -> None:
        self.target_port = target_port
        self.port = 0
        self._framing = framing
        self._server: asyncio.Server | None = None
        self._lines: set[_Line] = set()
        self.cuts: list[Cut] = []
        self._writers: set[asyncio.StreamWriter] = set()
        self._is_over = False
        self.requests: Counter[str] = Counter()
        self.refuses = False
        """New connections are reset at once."""
        self.is_deaf = False
        """What clients send is swallowed; nothing is closed."""
        self.is_mute = False
        """What the server answers is swallowed; nothing is closed."""
        self.delay: Callable[[], float] | None = None
        """Seconds that each piece waits on its way, asked again for each."""
        self.crumb = 0
        """At most so many bytes at a time, and bytes_per_second of them."""
        self.bytes_per_second = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self._is_over = True
        self.reset_all()
        for line in list(self._lines):
            await line.ended()
        for writer in self._writers:  # one that was only closed stays open while it has unsent bytes
            writer.transport.abort()
        await asyncio.sleep(0)

    # ------------------------------------------------------------------ misbehaviour

    def cut_after(self, name: str, times: int = 1) -> Cut:
        """Let the next requests of this name through, drop their answers and reset their lines."""
        return self._set(Cut(name, times, hold=False))

    def hold_after(self, name: str) -> Cut:
        """Let the next request of this name through, and keep its answer until `let_go` is set."""
        return self._set(Cut(name, 1, hold=True))

    def _set(self, cut: Cut) -> Cut:
        self.cuts.append(cut)
        return cut

    def reset_all(self) -> int:
        """Reset every line there is (RST, not a polite end); how many there were."""
        for line in list(self._lines):
            line.reset()
        return len(self._lines)

    def swallow(self, on: bool = True) -> None:
        """A black hole in both directions: connections stay, and nothing arrives any more."""
        self.is_deaf = self.is_mute = on

    def strand(self) -> int:
        """Every line there is goes dead without a word, for ever; new ones are fine. How many there were."""
        for line in self._lines:
            line.is_stranded = True
        return len(self._lines)

    def heal(self) -> None:
        """Behave from now on. What was swallowed is gone, so lines in the middle of something are reset."""
        self.refuses = self.is_deaf = self.is_mute = False
        self.delay, self.crumb, self.bytes_per_second = None, 0, 0
        self.cuts.clear()
        for line in list(self._lines):
            if line.has_lost_bytes and not line.is_stranded:
                line.reset()

    # ------------------------------------------------------------------ lines

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuses:
            _reset(writer)
            return
        self._writers.add(writer)
        try:
            there = await asyncio.open_connection("127.0.0.1", self.target_port)
        except OSError:
            _reset(writer)
            return
        if self._is_over:
            for stream in (writer, there[1]):
                stream.transport.abort()
            return
        self._writers.add(there[1])
        line = _Line(self, self._framing(), (reader, writer), there)
        self._lines.add(line)
        try:
            await line.run()
        finally:
            self._lines.discard(line)

    def trap_for(self, name: str) -> Cut | None:
        self.requests[name] += 1
        return next((cut for cut in self.cuts if cut.takes(name)), None)


_MADE_UP_FOR_SECONDS = 1.0
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Line:
    """One client's connection, and the one to the server behind it."""

    def __init__(self, proxy: Proxy, framing: Framing, client: Stream, server: Stream) -> None:
        self._proxy = proxy
        self._framing = framing
        self._client = client
        self._server = server
        self._trap: Cut | None = None
        self._asked = 0
        self._answered = 0
        self._due = 0  # the number of the answer that the trap is for
        self._free_at: dict[asyncio.StreamWriter, float] = {}
        """By direction, when the bytes so far have taken their time."""
        self._is_over = asyncio.Event()
        self.has_lost_bytes = False
        self.is_stranded = False

    async def run(self) -> None:
        up = asyncio.create_task(self._up())
        down = asyncio.create_task(self._down())
        try:
            await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (up, down):
                task.cancel()
            for _, writer in (self._client, self._server):
                writer.close()
            self._is_over.set()

    async def ended(self) -> None:
        await self._is_over.wait()

    def reset(self) -> None:
        for _, writer in (self._client, self._server):
            _reset(writer)

    async def _up(self) -> None:
        with suppress(OSError):
            while data := await self._client[0].read(self._proxy.crumb or CHUNK):
                for name in self._framing.requests(data):
                    self._asked += 1
                    if self._trap is None and (trap := self._proxy.trap_for(name)) is not None:
                        self._trap, self._due = trap, self._asked
                await self._pass_on(data, self._server[1], self._proxy.is_deaf)

    async def _down(self) -> None:
        with suppress(OSError):
            while data := await self._server[0].read(self._proxy.crumb or CHUNK):
                self._answered += self._framing.answers(data)
                if self._trap is not None and self._answered >= self._due:
                    if not await self._spring(self._trap):
                        return
                elif self._trap is not None and not self._trap.hold:
                    continue  # a part of the answer that nobody will see
                await self._pass_on(data, self._client[1], self._proxy.is_mute)

    async def _spring(self, trap: Cut) -> bool:
        """The answer is there: drop it with the line, or keep it for a while; whether the line goes on."""
        trap.sprung()
        self._trap = None
        if not trap.hold:
            self.reset()
            return False
        await trap.let_go.wait()
        return True

    async def _pass_on(self, data: bytes, writer: asyncio.StreamWriter, is_swallowed: bool) -> None:
        if is_swallowed or self.is_stranded:
            self.has_lost_bytes = True
            return
        if self._proxy.delay is not None:
            await asyncio.sleep(self._proxy.delay())
        if self._proxy.bytes_per_second:
            await self._take_time(len(data), writer)
        writer.write(data)
        await writer.drain()

    async def _take_time(self, count: int, writer: asyncio.StreamWriter) -> None:
        """So many bytes a second on the average: a short sleep takes longer than it should, and the pieces
        after it go without one until that is made up for.
        """
        now = asyncio.get_running_loop().time()
        began = max(self._free_at.get(writer, now), now - _MADE_UP_FOR_SECONDS)
        self._free_at[writer] = free_at = began + count / self._proxy.bytes_per_second
        if free_at > now:
            await asyncio.sleep(free_at - now)


def _reset(writer: asyncio.StreamWriter) -> None:
    """End a connection with RST, as a crashed machine or a firewall does it."""
    raw = writer.get_extra_info("socket")
    with suppress(OSError):
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
