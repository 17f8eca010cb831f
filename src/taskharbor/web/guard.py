"""Guard: checks the headers of every request before routing: size, duplicates, Host, Origin.

Without tokens, every caller on this machine is served, and that includes web pages in its browsers. So the
Host header and the page that sent a request are checked (DNS rebinding, cross-site requests). Pages of other
sites may not even read: they could hold streams open. All they may do is lead a browser to the dashboard.
"""

from __future__ import annotations

import re

from starlette.types import Scope

from taskharbor.web.config import LOOPBACK_NAMES
from taskharbor.web.problems import Problem
from taskharbor.web.reply import HEAD, REQUEST_ID
from taskharbor.web.service import Service
from taskharbor.web.sessions import SAFE_METHODS, host_name, is_of_host

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_HEADERS = frozenset(
    {
        b"accept-encoding",
        b"authorization",
        b"baggage",
        b"content-encoding",
        b"content-length",
        b"content-type",
        b"cookie",
        b"host",
        b"idempotency-key",
        b"origin",
        b"sec-fetch-mode",
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
_MAY_REPEAT = frozenset({b"accept-encoding", b"baggage", b"cookie", b"traceparent", b"tracestate"})
_MAX_KNOWN = 256
_OUR_OWN_PAGES = (b"same-origin", b"none")
_PAGES = frozenset({"/", "/ui"})
"""Where links of other sites may lead."""


class Guard:
    """Checks the headers of every request."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._prefix = service.entropy.bytes(6).hex()
        self._requests = 0
        self._max_bytes = service.config.max_header_bytes
        named = service.config.allowed_hosts
        if named is None and service.authenticator.is_open_to_loopback:
            named = LOOPBACK_NAMES
        self._known: dict[bytes, bool] = {}
        self._hosts = None if named is None else frozenset(name.lower() for name in named)

    def check(self, scope: Scope, path: str) -> Problem | None:
        """Give the request its id. Returns what is wrong with it, if anything. `path`: below the mount."""
        size, found, twice = 0, dict[bytes, bytes](), None
        for name, value in scope["headers"]:
            size += len(name) + len(value) + 4
            if name in _HEADERS:
                if name in found and name not in _MAY_REPEAT:
                    twice = name
                # HTTP/2 may split cookies.
                found[name] = found[name] + b"; " + value if name == b"cookie" and name in found else value
        scope[HEAD] = found
        scope[REQUEST_ID] = self._request_id(found.get(b"x-request-id"))
        if size > self._max_bytes:
            return _too_large(self._max_bytes)
        if twice is not None:  # two parsers could pick different ones
            return Problem("malformed", f"the header {twice.decode()} is given twice")
        host = found.get(b"host", b"")
        if not self._is_allowed_host(host):
            return Problem(
                "malformed", "the Host header names another host; see the setting server.allowed_hosts"
            )
        if _is_cross_site(found, host, scope["method"]) and not _leads_to_page(found, scope["method"], path):
            return Problem("forbidden", "cross-site request refused; nothing was done")
        return None

    def _request_id(self, given: bytes | None) -> str:
        """The caller's own id, or a new unique one."""
        if given is not None and _REQUEST_ID.fullmatch(given):
            return given.decode()
        self._requests += 1
        return f"{self._prefix}-{self._requests:x}"

    def _is_allowed_host(self, host: bytes) -> bool:
        if self._hosts is None:
            return True
        known = self._known.get(host)
        if known is None:
            known = host_name(host) in self._hosts
            if len(self._known) < _MAX_KNOWN:
                self._known[host] = known
        return known


def _is_cross_site(found: dict[bytes, bytes], host: bytes, method: str) -> bool:
    site = found.get(b"sec-fetch-site")
    if site is not None:
        return site not in _OUR_OWN_PAGES
    return method not in SAFE_METHODS and b"origin" in found and not is_of_host(found[b"origin"], host)


def _leads_to_page(found: dict[bytes, bytes], method: str, path: str) -> bool:
    return path in _PAGES and method == "GET" and found.get(b"sec-fetch-mode") == b"navigate"


def _too_large(limit: int) -> Problem:
    return Problem(
        "headers-too-large",
        f"the headers exceed the limit of {limit} bytes",
        headers={"Connection": "close"},
    )
