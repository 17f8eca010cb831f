"""Calls as bytes: what every request of one handle begins with, and what tells one call from another."""

from __future__ import annotations

import itertools
import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from taskharbor.drivers.http.address import Address
from taskharbor.drivers.wire import CALL_HEADER, PROTOCOL, PROTOCOL_HEADER, REPEAT_HEADER

UNKNOWN_BOOT = "?"


class Requests:
    """Writes the requests of one handle. Safe to use from any thread."""

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
        """The number of a call, never used before by this handle."""
        return next(self._numbers)

    def request(self, verb: str, body: bytes, call: int, repeat: str = "") -> bytes:
        """The whole request. `repeat` stands on a call that is sent again: see REPEAT_HEADER."""
        again = f"\r\n{REPEAT_HEADER}: {repeat}" if repeat else ""
        end = f"{call}{again}\r\nContent-Length: {len(body)}\r\n\r\n"
        return b"".join((self._start, verb.encode(), self._middle, end.encode(), body))


def repeat_of(boot: str, seconds: float) -> str:
    """Who was asked first, and how long ago that was at the most."""
    return f"{boot or UNKNOWN_BOOT} {seconds:.3f}"


@cache
def _user_agent() -> str:
    try:
        ours = version("taskharbor")
    except PackageNotFoundError:  # a checkout that was never installed
        ours = "0"
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"taskharbor-python/{ours} ({python}; {platform.system().lower()})"
