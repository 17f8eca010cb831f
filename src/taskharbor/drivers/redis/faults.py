"""Errors of servers and connections, translated into ours."""

from __future__ import annotations

import ssl

from taskharbor.errors import (
    DriverError,
    DriverMisbehaved,
    DriverUnavailable,
    StoreFull,
    StoreRefused,
)

_REFUSED = {
    "WRONGPASS": "the server does not let us in",
    "NOAUTH": "the server wants a password",
    "NOPERM": "the user may not do this",
    "DENIED": "the server is in protected mode",
}
# The server did nothing and says so; a later call can succeed.
_NOT_NOW = frozenset(
    {
        "LOADING",
        "BUSY",
        "MASTERDOWN",
        "READONLY",
        "CLUSTERDOWN",
        "TRYAGAIN",
        "NOREPLICAS",
        "UNBLOCKED",
    }
)
_NOT_NOW_PREFIXES = ("MISCONF", "MOVED", "ASK")
HANG_UP = frozenset({"READONLY", "MASTERDOWN", "LOADING"})
"""True if the connection leads to the wrong server or to none: find the primary again."""


def word_of(error: BaseException) -> str:
    """The first word of a server error, which names its kind."""
    return str(error).partition(" ")[0]


def ours(error: BaseException) -> DriverError:
    """Our error for an error reply. The server changed nothing."""
    word, text = word_of(error), str(error)
    if word == "OOM":
        return StoreFull(f"the server is at its maxmemory, nothing was written: {text}")
    if word in _REFUSED:
        return StoreRefused(f"{_REFUSED[word]}: {text}")
    if word in _NOT_NOW or word.startswith(_NOT_NOW_PREFIXES):
        return DriverUnavailable(f"the server cannot answer for now, nothing was written: {text}", done=False)
    if "DB index" in text:
        return StoreRefused(f"there is no such database on the server: {text}")
    if "max number of clients" in text:
        return DriverUnavailable(f"the server takes no more connections: {text}", done=False)
    return DriverMisbehaved(f"the server answered: {text}")


def lost(error: BaseException | None, *, done: bool | None) -> DriverUnavailable:
    """Our error for a broken connection. `done`: False if the call was never sent or writes nothing."""
    why = type(error).__name__ if error is not None else "closed by the server"
    if done is False:
        return DriverUnavailable(f"the connection was lost ({why}); nothing was written", done=False)
    return DriverUnavailable(
        f"the connection was lost ({why}); the call may have been carried out", done=None
    )


def unreachable(error: BaseException, where: str) -> DriverError:
    """Our error for a failed connect."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return StoreRefused(f"the certificate of {where} is not trusted: {error.verify_message}")
    if isinstance(error, ssl.SSLError):
        return StoreRefused(f"no TLS with {where}: {error.reason or error}")
    why = type(error).__name__ if isinstance(error, TimeoutError) else str(error)
    return DriverUnavailable(f"{where} does not accept connections ({why}); nothing was written", done=False)
