"""Errors between client and server, translated into ours."""

from __future__ import annotations

import ssl

from taskharbor.drivers.http.address import Address
from taskharbor.errors import DriverError, DriverUnavailable, StoreRefused


class Lost(Exception):
    """The connection ended before the response did; it is unknown whether the call was done."""


class TooSlow(Exception):
    """No complete response within the timeout."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"no answer within {seconds:g} s")


def ours(error: OSError, address: Address) -> DriverError:
    """Our error for a failed connect. Nothing was sent."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return StoreRefused(
            f"the certificate of {address.shown} is not trusted ({error.verify_message}); nothing was sent. "
            "For a certificate authority of your own add ?ca=FILE to the URL"
        )
    if isinstance(error, ssl.SSLError):
        return StoreRefused(
            f"{address.shown} does not speak TLS as expected ({error.reason or error}); nothing was sent. "
            "Is it an http:// server?"
        )
    reason = "no answer" if isinstance(error, TimeoutError) else (error.strerror or str(error))
    return DriverUnavailable(
        f"no server can be reached at {address.shown}: {reason}; nothing was done", done=False
    )


def unanswered(error: Exception, address: Address) -> DriverUnavailable:
    """Our error for a call that was sent and not answered."""
    return DriverUnavailable(
        f"{address.shown} took the call and did not answer: {error}; it may have been done", done=None
    )
