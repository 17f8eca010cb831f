"""One answer of an HTTP/1.1 server, read piece by piece. No input or output: both kinds of callers use it.

status line ─► headers ─┬─ Content-Length ──► so many bytes ──► complete
                        ├─ chunked ─────────► size, bytes, size, bytes … 0, trailers ──► complete
                        └─ neither ─────────► until the connection ends ──► complete
"""

from __future__ import annotations

MAX_HEAD = 64 * 1024
MAX_BODY = 512 * 1024 * 1024


class NotHttp(Exception):
    """What came is no answer of an HTTP server."""


class Answer:
    """An answer as it arrives. `take_body` empties what has come so far, for answers without an end."""

    __slots__ = ("_body", "_chunk_left", "_is_chunked", "_left", "_rest", "headers", "is_complete", "status")

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.is_complete = False
        self._rest = b""
        self._body: list[bytes] = []
        self._left: int | None = None  # bytes of the body that are still to come; None: until the end
        self._is_chunked = False
        self._chunk_left = -2  # -2: before a size, -1: in the trailers

    @property
    def has_begun(self) -> bool:
        return self.status > 0

    @property
    def keeps_alive(self) -> bool:
        """Whether the connection can carry another call after this answer."""
        is_bounded = self._is_chunked or self._left is not None
        return is_bounded and "close" not in self.headers.get("connection", "").lower()

    def take_body(self) -> bytes:
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body = []
        return body

    def feed(self, data: bytes) -> None:
        """The next bytes. Raises NotHttp."""
        if self.is_complete:
            raise NotHttp("more came than was announced")
        data = self._rest + data if self._rest else data
        self._rest = b""
        while not self.status:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                self._keep_head(data)
                return
            self._read_head(data[:end])
            data = data[end + 4 :]
        if self._is_chunked:
            self._feed_chunks(data)
        else:
            self._feed_plain(data)

    def end(self) -> bool:
        """The connection has ended; whether that was the end of the answer."""
        if self.has_begun and not self._is_chunked and self._left is None:
            self.is_complete = True
        return self.is_complete

    # ------------------------------------------------------------------ the head

    def _keep_head(self, data: bytes) -> None:
        if len(data) > MAX_HEAD or (len(data) >= 5 and not data.startswith(b"HTTP/")):
            raise NotHttp(f"it began with {data[:40]!r}")
        self._rest = data

    def _read_head(self, head: bytes) -> None:
        lines = head.decode("latin-1").split("\r\n")
        version, _, rest = lines[0].partition(" ")
        code = rest[:3]
        if not version.startswith("HTTP/1.") or not code.isdigit() or len(code) < 3:
            raise NotHttp(f"it began with {lines[0][:40]!r}")
        if code[0] == "1":  # only says that the answer is on its way
            return
        headers = self.headers
        for line in lines[1:]:
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        self._find_length(int(code))
        self.status = int(code)

    def _find_length(self, status: int) -> None:
        self._is_chunked = self.headers.get("transfer-encoding", "").lower().endswith("chunked")
        announced = self.headers.get("content-length")
        if status in (204, 304):
            self._left = 0
        elif announced is not None and not self._is_chunked:
            if not announced.isdigit():
                raise NotHttp(f"its length is {announced[:40]!r}")
            self._left = int(announced)
            if self._left > MAX_BODY:
                raise NotHttp(f"it announced {self._left} bytes, and {MAX_BODY} are the most")

    # ------------------------------------------------------------------ the body

    def _feed_plain(self, data: bytes) -> None:
        if self._left is None:
            self._body.append(data)
            return
        if len(data) > self._left:
            raise NotHttp("more came than was announced")
        self._left -= len(data)
        self._body.append(data)
        self.is_complete = self._left == 0

    def _feed_chunks(self, data: bytes) -> None:
        while data and not self.is_complete:
            if self._chunk_left > 0:
                piece = data[: self._chunk_left]
                self._chunk_left -= len(piece)
                data = data[len(piece) :]
                self._body.append(piece)
                continue
            end = data.find(b"\r\n")
            if end < 0:
                if len(data) > MAX_HEAD:
                    raise NotHttp("a line of it has no end")
                self._rest = data
                return
            self._read_line(data[:end])
            data = data[end + 2 :]

    def _read_line(self, line: bytes) -> None:
        """The end of a chunk's bytes, the size of the next one, or a trailer."""
        if self._chunk_left == 0:
            if line:
                raise NotHttp("a chunk of it is longer than announced")
            self._chunk_left = -2
        elif self._chunk_left == -2:
            try:
                size = int(line.partition(b";")[0], 16)
            except ValueError:
                raise NotHttp(f"a chunk of it has the size {line[:40]!r}") from None
            if not 0 <= size <= MAX_BODY:
                raise NotHttp(f"a chunk of it has {size} bytes, and {MAX_BODY} are the most")
            self._chunk_left = size or -1
        elif not line:
            self.is_complete = True
