"""Requests as bytes, with a number that identifies each call."""

from __future__ import annotations

import itertools
import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from taskharbor.drivers.http.address import Address
from taskharbor.drivers.wire import CALL_HEADER, PROTOCOL, PROTOCOL_HEADER, REPEAT_HEADER

UNKNOWN_BOOT = "?"


class Requests:
    """Encodes the requests of one handle. Thread-safe."""

    def __init__(self, address: Address, handle_id: str) -> None:
        self._start = f"POST {address.path}/api/driver/".encode()
        self._middle = (
            " HTTP/1.1\r\n"
            f"Host: {address.authority}\r\n"
            f"User-Agent: {_user_agent()}\r\n"
            "Accept: application/json\r\n"
            "Content-Type: application/json\r\n"
            f"{PROTOCOL_HEADER}: {PROTOCOL}\r\n"
            + (f"Authorization: Bearer {address.token}\r\n" if address.token else "")
            + f"{CALL_HEADER}: {handle_id}-"
        ).encode()
        self._numbers = itertools.count(1)

    def next_call(self) -> int:
        """A call number that this handle has not used before."""
        return next(self._numbers)

    def request(self, verb: str, body: bytes, call: int, repeat: str = "") -> bytes:
        """The whole request. `repeat` is set on a call that is sent again: see REPEAT_HEADER."""
        again = f"\r\n{REPEAT_HEADER}: {repeat}" if repeat else ""
        end = f"{call}{again}\r\nContent-Length: {len(body)}\r\n\r\n"
        return b"".join((self._start, verb.encode(), self._middle, end.encode(), body))


def repeat_of(boot: str, seconds: float) -> str:
    """The value of REPEAT_HEADER: which server was asked first, and at most how long ago."""
    return f"{boot or UNKNOWN_BOOT} {seconds:.3f}"


@cache
def _user_agent() -> str:
    try:
        ours = version("taskharbor")
    except PackageNotFoundError:  # a checkout that was never installed
        ours = "0"
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"taskharbor-python/{ours} ({python}; {platform.system().lower()})"
