"""Just enough of each protocol to name a request and to see that the server has answered it.

A proxy that cuts a connection *after* the server has acted must know where a request ends and whether
its answer has begun; nothing else is understood, and nothing is changed.
"""

from __future__ import annotations

import re
from typing import Protocol


class Framing(Protocol):
    """The conversation of one connection."""

    def requests(self, data: bytes) -> list[str]:
        """Bytes of the client: the names of the requests that they complete."""
        ...

    def answers(self, data: bytes) -> int:
        """Bytes of the server: how many requests they finish answering."""
        ...


class PostgresFraming:
    """Requests end with Sync or are simple queries; answers end with ReadyForQuery.

    A request is named by the function of ours that it calls, else by the first word of its statement.
    """

    def __init__(self) -> None:
        self._sent = b""
        self._heard = b""
        self._is_started = False
        self._statements: dict[bytes, str] = {}
        self._name = ""

    def requests(self, data: bytes) -> list[str]:
        self._sent += data
        names = [] if self._is_started or not self._skip_start() else ["startup"]
        while (message := self._next_message()) is not None:
            kind, body = message
            if kind == b"P":
                statement, _, rest = body.partition(b"\0")
                self._statements[statement] = _name_of(rest.partition(b"\0")[0])
            elif kind == b"B":
                self._name = self._statements.get(body.split(b"\0")[1], "")
            elif kind == b"Q":
                names.append(_name_of(body))
            elif kind == b"S":
                names.append(self._name or "prepare")
                self._name = ""
        return names

    def answers(self, data: bytes) -> int:
        if not self._is_started:
            return 0  # the one byte about encryption
        self._heard += data
        finished = 0
        while len(self._heard) >= 5:
            length = 1 + int.from_bytes(self._heard[1:5])
            if len(self._heard) < length:
                break
            finished += self._heard[:1] == b"Z"
            self._heard = self._heard[length:]
        return finished

    def _next_message(self) -> tuple[bytes, bytes] | None:
        if not self._is_started or len(self._sent) < 5:
            return None
        length = 1 + int.from_bytes(self._sent[1:5])
        if len(self._sent) < length:
            return None
        message, self._sent = self._sent[:length], self._sent[length:]
        return message[:1], message[5:]

    def _skip_start(self) -> bool:
        """The first messages have no kind: a wish for encryption, then who we are, which is answered."""
        while len(self._sent) >= 8 and not self._is_started:
            length = int.from_bytes(self._sent[:4])
            if len(self._sent) < length:
                break
            self._is_started = int.from_bytes(self._sent[4:8]) >> 16 == 3
            self._sent = self._sent[length:]
        return self._is_started


def _name_of(statement: bytes) -> str:
    text = statement.decode(errors="replace")
    if called := re.match(r'\s*select (?:\* from )?"\w+"\.(\w+)\(', text):
        return called[1]
    return (text.split() or ["nothing"])[0].strip(";\0").lower()


class RespFraming:
    """Redis and Valkey: a request is an array of strings, named by the first of them."""

    def __init__(self) -> None:
        self._sent = b""
        self._heard = b""

    def requests(self, data: bytes) -> list[str]:
        self._sent += data
        names = []
        while (words := self._next_array()) is not None:
            names.append(words[0].decode(errors="replace").lower())
        return names

    def answers(self, data: bytes) -> int:
        self._heard += data
        finished = 0
        while (end := _end_of_reply(self._heard, 0)) is not None:
            finished += self._heard[:1] != b">"  # what a server pushes answers nobody
            self._heard = self._heard[end:]
        return finished

    def _next_array(self) -> list[bytes] | None:
        end = self._sent.find(b"\r\n")
        if end < 0 or self._sent[:1] != b"*":
            return None
        at, words = end + 2, []
        for _ in range(int(self._sent[1:end])):
            end = self._sent.find(b"\r\n", at)
            if end < 0:
                return None
            length = int(self._sent[at + 1 : end])
            at = end + 2 + length + 2
            if len(self._sent) < at:
                return None
            words.append(self._sent[end + 2 : end + 2 + length])
        self._sent = self._sent[at:]
        return words


_STRINGS, _LISTS, _MAPS = b"$!=", b"*~>", b"%|"


def _end_of_reply(data: bytes, at: int) -> int | None:
    """Where the reply that begins at `at` ends; None when it is not all there."""
    line = data.find(b"\r\n", at)
    if line < 0:
        return None
    kind, after = data[at : at + 1], line + 2
    if kind not in (_STRINGS + _LISTS + _MAPS):
        return after
    length = int(data[at + 1 : line])
    if length < 0:
        return after
    if kind in _STRINGS:
        return after + length + 2 if len(data) >= after + length + 2 else None
    for _ in range(length * (2 if kind in _MAPS else 1)):
        inner = _end_of_reply(data, after)
        if inner is None:
            return None
        after = inner
    return after


class HttpFraming:
    """One request after the other on a connection; a driver's verb is the last part of its path."""

    def __init__(self) -> None:
        self._sent = b""

    def requests(self, data: bytes) -> list[str]:
        self._sent += data
        names = []
        while (end := self._sent.find(b"\r\n\r\n")) >= 0:
            head = self._sent[:end]
            length = re.search(rb"(?i)\r\ncontent-length:\s*(\d+)", head)
            whole = end + 4 + (int(length[1]) if length else 0)
            if len(self._sent) < whole:
                break
            names.append(head.split(b" ")[1].rpartition(b"/")[2].decode(errors="replace"))
            self._sent = self._sent[whole:]
        return names

    def answers(self, data: bytes) -> int:
        return 1 if data.startswith(b"HTTP/") else 0
