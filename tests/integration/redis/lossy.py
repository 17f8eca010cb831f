"""A proxy in front of a server that can lose the answers to what the server has already done."""

import asyncio
from contextlib import suppress
from typing import Self


class Lossy:
    """Forwards both ways until it is set to drop the replies, or to hang up."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []
        self.swallows = False
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        self.hang_up()

    def hang_up(self) -> None:
        """Reset every connection."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self._target)
        self._writers += [writer, inner_writer]
        await asyncio.gather(self._forth(reader, inner_writer), self._back(inner_reader, writer))

    async def _forth(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
        writer.close()

    async def _back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                if self.swallows:
                    self.hang_up()
                    return
                writer.write(data)
        writer.close()
