"""Guard: what is wrong with a request before anybody looks where it goes.

Without tokens, everybody on this machine is served, and that includes the pages in its browsers: so
the name by which a request calls us, and the page that sent it, are looked at.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from starlette.types import Scope

from taskharbor.web.auth import HEAD
from taskharbor.web.config import LOOPBACK_NAMES
from taskharbor.web.problems import Problem
from taskharbor.web.reply import REQUEST_ID
from taskharbor.web.service import Service

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_LOOKED_AT = frozenset(
    {
        b"authorization",
        b"baggage",
        b"content-encoding",
        b"content-length",
        b"content-type",
        b"host",
        b"idempotency-key",
        b"origin",
        b"sec-fetch-site",
        b"taskharbor-call",
        b"taskharbor-protocol",
        b"taskharbor-repeat",
        b"traceparent",
        b"tracestate",
        b"transfer-encoding",
        b"x-api-key",
        b"x-request-id",
    }
)
_MAY_REPEAT = frozenset({b"baggage", b"traceparent", b"tracestate"})
_MAX_KNOWN = 256
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
_OUR_OWN_PAGES = (b"same-origin", b"none")


class Guard:
    """Looks at the head of every request, once."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._life = service.entropy.bytes(6).hex()
        self._requests = 0
        self._max_bytes = service.config.max_header_bytes
        named = service.config.allowed_hosts
        if named is None and service.authenticator.is_open_to_loopback:
            named = LOOPBACK_NAMES
        self._known: dict[bytes, bool] = {}
        self._hosts = None if named is None else frozenset(name.lower() for name in named)

    def look_at(self, scope: Scope) -> Problem | None:
        """Give the request its id, and say what is wrong with it, if anything is."""
        size, said, twice = 0, dict[bytes, bytes](), None
        for name, value in scope["headers"]:
            size += len(name) + len(value) + 4
            if name in _LOOKED_AT:
                if name in said and name not in _MAY_REPEAT:
                    twice = name
                said[name] = value
        scope[HEAD] = said
        scope[REQUEST_ID] = self._request_id(said.get(b"x-request-id"))
        if size > self._max_bytes:
            return _too_much_head(self._max_bytes)
        if twice is not None:  # who reads the first and who reads the last would read different requests
            return Problem("malformed", f"the header {twice.decode()} is there twice")
        host = said.get(b"host", b"")
        if not self._is_our_name(host):
            return Problem("malformed", "this server does not go by the name in the Host header")
        if scope["method"] not in _SAFE_METHODS and _is_from_elsewhere(said, host):
            return Problem("forbidden", "a page of another site sent this; nothing was done")
        return None

    def _request_id(self, said: bytes | None) -> str:
        """The caller's own, or one that no other server and no other request has."""
        if said is not None and _REQUEST_ID.fullmatch(said):
            return said.decode()
        self._requests += 1
        return f"{self._life}-{self._requests:x}"

    def _is_our_name(self, host: bytes) -> bool:
        if self._hosts is None:
            return True
        known = self._known.get(host)
        if known is None:
            known = _name_in(host) in self._hosts
            if len(self._known) < _MAX_KNOWN:
                self._known[host] = known
        return known


def _name_in(host: bytes) -> str | None:
    try:
        name = urlsplit(b"//" + host).hostname
    except ValueError:
        return None
    return None if name is None else name.decode("latin-1").lower()


def _is_from_elsewhere(said: dict[bytes, bytes], host: bytes) -> bool:
    site = said.get(b"sec-fetch-site")
    if site is not None:
        return site not in _OUR_OWN_PAGES
    origin = said.get(b"origin")
    return origin is not None and origin.partition(b"://")[2].lower() != host.lower()


def _too_much_head(limit: int) -> Problem:
    return Problem(
        "headers-too-large",
        f"the headers are over the limit of {limit} bytes",
        headers={"Connection": "close"},
    )
