"""Authentication: who calls, with which role, for which queues.

    viewer    reads everything; secrets in payloads are hidden
    producer  enqueues jobs, and reads jobs whose id it knows
    worker    runs jobs, and reads everything
    operator  reads, enqueues, cancels, retries, pauses, configures
    admin     everything

A token may be limited to some queues: then everything else looks as if it did not exist.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address
from typing import TYPE_CHECKING, ClassVar, Literal

from starlette.requests import HTTPConnection

from taskharbor.drivers.wire import Role
from taskharbor.errors import ConfigurationError
from taskharbor.model.clock import Clock, SystemClock
from taskharbor.web.problems import Problem
from taskharbor.web.reply import HEAD
from taskharbor.web.sessions import Sessions, SignedIn, has_token
from taskharbor.web.tokens import Token, TokenFile

if TYPE_CHECKING:
    from taskharbor.web.request import Request

_log = logging.getLogger("taskharbor.server")

Permission = Role | Literal["reader"]
"""What an operation needs: a role, or `reader`, which may read single jobs by id."""

GRANTS: dict[Role, frozenset[Permission]] = {
    "viewer": frozenset({"viewer", "reader"}),
    "producer": frozenset({"producer", "reader"}),
    "worker": frozenset({"worker", "viewer", "reader"}),
    "operator": frozenset({"operator", "producer", "viewer", "reader"}),
    "admin": frozenset({"admin", "operator", "worker", "producer", "viewer", "reader"}),
}

RECHECK_SECONDS = 1.0
"""A host's own hook may be slow, so an open stream asks it at most this often."""

LOG_PAUSE_SECONDS = 60.0
_TOKEN_IN_URL = re.compile(rb"taskharbor_[0-9a-f]{12}_")


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """An authenticated caller."""

    name: str
    """Their name in the audit log: the id of a token, `local`, or a name from the hook."""

    role: Role | None
    """None for a user of the host application who has no access here."""

    queues: frozenset[str] | None = None
    """The queues they may use; None for all."""

    NO_ACCESS: ClassVar[Principal]
    """A user whom the host application knows and who may do nothing here: 403, not a request to log in."""

    def may(self, permission: Permission) -> bool:
        return self.role is not None and permission in GRANTS[self.role]

    def may_use(self, queue: str) -> bool:
        return self.queues is None or queue in self.queues

    @property
    def sees_payloads(self) -> bool:
        """Whether payloads and results are shown in full; viewers do not see secrets."""
        return self.role is not None and self.role != "viewer"


Principal.NO_ACCESS = Principal(name="no-access", role=None)

NOBODY = Principal(name="nobody", role="viewer", queues=frozenset())
"""The caller before authentication, and on routes that need none."""

LOOPBACK = Principal(name="local", role="admin")

Authenticate = Callable[[HTTPConnection], "Principal | None | Awaitable[Principal | None]"]
"""How a host application identifies its users."""


def require_queue(principal: Principal, queue: str) -> None:
    """Raises Problem `forbidden` unless the caller may use this queue."""
    if principal.queues is not None and queue not in principal.queues:
        raise Problem("forbidden", f"this token is not for the queue {queue!r}")


def require_every_queue(principal: Principal) -> None:
    """Raises Problem `forbidden` for a caller limited to some queues."""
    if principal.queues is not None:
        raise Problem("forbidden", "this affects every queue, and this token is limited to some")


class Authenticator:
    """Identifies the caller: by the host's hook, by a token or its session, or by a local address."""

    def __init__(
        self,
        tokens: TokenFile | None,
        hook: Authenticate | None = None,
        *,
        local_callers_are_admin: bool = False,
        sessions: Sessions | None = None,
    ) -> None:
        if tokens is None and hook is None and not local_callers_are_admin:
            raise ConfigurationError(
                "no way to authenticate callers: pass ServerConfig(tokens=FILE), or authenticate=, or, if no "
                "proxy is in front of this application, local_callers_are_admin=True"
            )
        self._tokens = tokens
        self._hook = hook
        self.sessions = sessions if hook is None else None
        """Sessions of browsers; None if callers are identified by other means than tokens."""
        self._warned = LogThrottle()
        self._principals: dict[str, tuple[Token, Principal]] = {}

    @property
    def is_open_to_loopback(self) -> bool:
        """Whether no authentication is needed, and so only this machine is served."""
        return self._tokens is None and self._hook is None

    @property
    def is_slow(self) -> bool:
        """Whether authentication may take long: a host's hook may query a database."""
        return self._hook is not None

    @property
    def way(self) -> Literal["token", "host", "loopback"]:
        """How callers are identified."""
        return "host" if self._hook is not None else "token" if self._tokens is not None else "loopback"

    async def principal_of(self, connection: HTTPConnection) -> Principal:
        """The caller. Raises Problem `unauthenticated`, with the same text for every reason."""
        if self._hook is not None:
            found = self._hook(connection)
            principal = await found if inspect.isawaitable(found) else found
        elif self._tokens is not None:
            principal = self._by_token(self._tokens, connection)
        else:
            principal = LOOPBACK if _is_local(connection) else None
        if principal is None:
            self._warn_of_token_in_url(connection)
            raise Problem(
                "unauthenticated",
                "a valid token is needed: send it as `Authorization: Bearer …`",
                headers={"WWW-Authenticate": 'Bearer realm="taskharbor"'},
            )
        return principal

    def _by_token(self, tokens: TokenFile, connection: HTTPConnection) -> Principal | None:
        try:
            session = self._session(tokens, connection)
        except ConfigurationError as error:
            # The file is being edited, or is broken: no one gets in until it can be read.
            if self._warned.may("file"):
                _log.error("%s; every request is refused until this is fixed", error)
            return None
        return None if session is None else self.principal_for(session.token)

    def session_of(self, connection: HTTPConnection) -> SignedIn | None:
        """The token behind a call, from a header or a cookie, and when that ends; None without tokens."""
        return (
            None
            if self._tokens is None or self._hook is not None
            else self._session(self._tokens, connection)
        )

    def _session(self, tokens: TokenFile, connection: HTTPConnection) -> SignedIn | None:
        head: dict[bytes, bytes] = connection.scope[HEAD]
        if self.sessions is not None and not has_token(head):
            return self.sessions.find(head)
        token = tokens.find(_token_text(connection))
        return None if token is None else SignedIn(token, token.expires_at)

    def _warn_of_token_in_url(self, connection: HTTPConnection) -> None:
        query = connection.scope.get("query_string", b"")
        if _TOKEN_IN_URL.search(query) and self._warned.may("url"):
            _log.warning(
                "a token was sent in a query string, which logs keep: revoke it, and send it in a header"
            )

    def principal_for(self, token: Token) -> Principal:
        known = self._principals.get(token.id)
        if known is not None and known[0] is token:
            return known[1]
        queues = None if token.queues is None else frozenset(token.queues)
        principal = Principal(name=token.id, role=token.role, queues=queues)
        self._principals[token.id] = (token, principal)
        return principal


def _token_text(connection: HTTPConnection) -> str:
    head: dict[bytes, bytes] = connection.scope[HEAD]
    value = head.get(b"authorization")
    if value is None:
        return head.get(b"x-api-key", b"").decode("latin-1")
    scheme, _, text = value.partition(b" ")
    return text.strip().decode("latin-1") if scheme.lower() == b"bearer" else ""


def _is_local(connection: HTTPConnection) -> bool:
    """From this machine. A caller without an address may be remote: proxies use Unix sockets, too."""
    client = connection.scope.get("client")
    return client is not None and _is_loopback(client[0])


@lru_cache(maxsize=1024)
def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


class AccessCheck:
    """Whether the caller of a request that waits or streams may still be served.

    A token can be revoked, expire or get other rights while its stream is open. So the caller is
    authenticated again before anything is handed out.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        self._clock = request.service.clock
        self._asked_at = self._clock.monotonic()

    async def check(self) -> None:
        """Raises Problem `unauthenticated` once the caller's rights have changed."""
        authenticator = self._request.service.authenticator
        if authenticator.is_slow and self._clock.monotonic() < self._asked_at + RECHECK_SECONDS:
            return
        now = await authenticator.principal_of(self._request)
        self._asked_at = self._clock.monotonic()
        if now != self._request.principal:
            raise Problem("unauthenticated", "the rights of this caller have changed; call again")

    async def holds(self) -> bool:
        try:
            await self.check()
        except Problem:
            return False
        return True


class LogThrottle:
    """Lets one log line of each kind pass per minute: callers without a token can cause these lines."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._until: dict[str, float] = {}

    def may(self, kind: str) -> bool:
        now = self._clock.monotonic()
        if now < self._until.get(kind, float("-inf")):
            return False
        self._until[kind] = now + LOG_PAUSE_SECONDS
        return True
