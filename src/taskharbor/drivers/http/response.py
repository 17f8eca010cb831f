"""A parser for one HTTP/1.1 response, fed piece by piece. No I/O: async and blocking callers share it.

status line ─► headers ─┬─ Content-Length ──► so many bytes ──► complete
                        ├─ chunked ─────────► size, bytes, size, bytes … 0, trailers ──► complete
                        └─ neither ─────────► until the connection ends ──► complete
"""

from __future__ import annotations

MAX_HEAD = 64 * 1024
MAX_LINE = 4 * 1024
MAX_BODY = 64 * 1024 * 1024
"""A limit against servers that would fill our memory; ours stay far below it."""
_MOST_DIGITS = 18
_JOINED = 64 * 1024


class NotHttp(Exception):
    """The bytes are not an HTTP response."""


class ResponseParser:
    """A response as it arrives. `take_body` removes what has arrived so far, for endless responses."""

    __slots__ = (
        "_body",
        "_chunk_left",
        "_is_chunked",
        "_left",
        "_rest",
        "_size",
        "_trailer_bytes",
        "headers",
        "is_complete",
        "status",
    )

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.is_complete = False
        self._rest = b""
        self._body: list[bytes | bytearray] = []
        self._size = 0
        self._trailer_bytes = 0
        self._left: int | None = None  # bytes of the body still to come; None: until the connection ends
        self._is_chunked = False
        self._chunk_left = -2  # -2: before a size, -1: in the trailers

    @property
    def has_begun(self) -> bool:
        return self.status > 0

    @property
    def keeps_alive(self) -> bool:
        """True if the connection can carry another call after this response."""
        is_bounded = self._is_chunked or self._left is not None
        return is_bounded and "close" not in self.headers.get("connection", "").lower()

    def take_body(self) -> bytes:
        body = bytes(self._body[0]) if len(self._body) == 1 else b"".join(self._body)
        self._body, self._size = [], 0
        return body

    def feed(self, data: bytes) -> None:
        """Feed the next bytes. Raises NotHttp."""
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
        """The connection ended. Returns True if that completes the response."""
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
        if not version.startswith("HTTP/1.") or not (code.isascii() and code.isdigit()) or len(code) < 3:
            raise NotHttp(f"it began with {lines[0][:40]!r}")
        if code[0] == "1":  # an interim response
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
            if not (announced.isascii() and announced.isdigit()):
                raise NotHttp(f"its length is {announced[:40]!r}")
            if len(announced) > _MOST_DIGITS or int(announced) > MAX_BODY:
                raise NotHttp(f"it announced {announced[:40]} bytes, and {MAX_BODY} are the most")
            self._left = int(announced)

    # ------------------------------------------------------------------ the body

    def _feed_plain(self, data: bytes) -> None:
        if self._left is None:
            self._grow(data)
            return
        if len(data) > self._left:
            raise NotHttp("more came than was announced")
        self._left -= len(data)
        self._body.append(data)
        self.is_complete = self._left == 0

    def _feed_chunks(self, data: bytes) -> None:
        at = 0  # slicing off every chunk would copy the rest each time: quadratic
        while at < len(data) and not self.is_complete:
            if self._chunk_left > 0:
                piece = data[at : at + self._chunk_left]
                self._chunk_left -= len(piece)
                at += len(piece)
                self._grow(piece)
                continue
            end = data.find(b"\r\n", at)
            if end < 0:
                if len(data) - at > MAX_LINE:
                    raise NotHttp("a line of it has no end")
                self._rest = data[at:]
                return
            self._read_line(data[at:end])
            at = end + 2

    def _grow(self, piece: bytes) -> None:
        """Keep a piece of the body. Small pieces are joined: each object costs far more than its bytes."""
        self._size += len(piece)
        if self._size > MAX_BODY:
            raise NotHttp(f"it has more than {MAX_BODY} bytes")
        if self._body and len(self._body[-1]) < _JOINED:
            last = self._body[-1]
            joined = last if isinstance(last, bytearray) else bytearray(last)
            joined += piece
            self._body[-1] = joined
        else:
            self._body.append(piece)

    def _read_line(self, line: bytes) -> None:
        """Read the end of a chunk, the size of the next one, or a trailer."""
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
        else:
            self._trailer_bytes += len(line)
            if self._trailer_bytes > MAX_HEAD:
                raise NotHttp("what follows the last chunk has no end")
