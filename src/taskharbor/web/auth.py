"""Who calls, and what they may do: roles, queues, and where a caller's token is read from.

    viewer    looks at everything; secrets in payloads are hidden
    producer  puts jobs in, and looks at jobs whose id it knows
    worker    does jobs, and looks
    operator  looks, puts jobs in, cancels, retries, pauses, configures
    admin     everything

A token may be narrowed to some queues: then everything else is as if it were not there.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address
from typing import Literal

from starlette.requests import HTTPConnection

from taskharbor.drivers.wire import Role
from taskharbor.errors import ConfigurationError
from taskharbor.web.problems import Problem
from taskharbor.web.seldom import Seldom
from taskharbor.web.tokens import Token, TokenFile

_log = logging.getLogger("taskharbor.server")

Right = Role | Literal["reader"]
"""What an operation asks for: a role, or `reader`, who looks at single jobs by their id."""

GRANTS: dict[Role, frozenset[Right]] = {
    "viewer": frozenset({"viewer", "reader"}),
    "producer": frozenset({"producer", "reader"}),
    "worker": frozenset({"worker", "viewer", "reader"}),
    "operator": frozenset({"operator", "producer", "viewer", "reader"}),
    "admin": frozenset({"admin", "operator", "worker", "producer", "viewer", "reader"}),
}

HEAD = "taskharbor.head"
"""In the scope: the headers that we look at ourselves, read once. The last one of a name counts."""

_TOKEN_IN_URL = re.compile(rb"taskharbor_[0-9a-f]{12}_")


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """A caller who has been recognised."""

    name: str
    """What the audit log calls them: the id of a token, `loopback`, or what a hook says."""

    role: Role | None
    """None: somebody who is known, and may do nothing here. A host's hook says so of its users."""

    queues: frozenset[str] | None = None
    """The queues they may touch; None for all."""

    def may(self, right: Right) -> bool:
        return self.role is not None and right in GRANTS[self.role]

    def may_use(self, queue: str) -> bool:
        return self.queues is None or queue in self.queues

    @property
    def sees_payloads(self) -> bool:
        """Whether payloads and results are shown as they are; to viewers secrets are hidden."""
        return self.role is not None and self.role != "viewer"


NOBODY = Principal(name="nobody", role="viewer", queues=frozenset())
"""Who a caller is until they are known, and for ever where nobody asks."""

LOOPBACK = Principal(name="loopback", role="admin")

Authenticate = Callable[[HTTPConnection], "Principal | None | Awaitable[Principal | None]"]
"""A host application's own way to know its users."""


def require_queue(principal: Principal, queue: str) -> None:
    """Raises Problem `forbidden` unless the caller may touch this queue."""
    if principal.queues is not None and queue not in principal.queues:
        raise Problem("forbidden", f"this token is for other queues than {queue!r}")


def require_every_queue(principal: Principal) -> None:
    """Raises Problem `forbidden` for a caller who is narrowed to some queues."""
    if principal.queues is not None:
        raise Problem("forbidden", "this concerns the whole harbor, and this token only some queues")


class Authenticator:
    """Finds out who calls: by a hook, by a token, or by coming from this very machine."""

    def __init__(
        self,
        tokens: TokenFile | None,
        hook: Authenticate | None = None,
        *,
        local_callers_are_admin: bool = False,
    ) -> None:
        if tokens is None and hook is None and not local_callers_are_admin:
            raise ConfigurationError(
                "nothing says who may call: give ServerConfig(tokens=FILE), or authenticate=, or, where no "
                "proxy stands between this application and its callers, local_callers_are_admin=True"
            )
        self._tokens = tokens
        self._hook = hook
        self._warned = Seldom()
        self._principals: dict[str, tuple[Token, Principal]] = {}

    @property
    def is_open_to_loopback(self) -> bool:
        """Whether nobody has to show anything, and so only this machine is served."""
        return self._tokens is None and self._hook is None

    @property
    def is_slow(self) -> bool:
        """Whether asking who calls may take long: a host's hook may look into a database."""
        return self._hook is not None

    async def principal_of(self, connection: HTTPConnection) -> Principal:
        """The caller. Raises Problem `unauthenticated`: one and the same for every reason."""
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
            token = tokens.find(_token_text(connection))
        except ConfigurationError as error:
            # Somebody is editing it, or broke it: nobody gets in until it can be read.
            if self._warned.may("file"):
                _log.error("%s; every request is refused meanwhile", error)
            return None
        return None if token is None else self._principal(token)

    def _warn_of_token_in_url(self, connection: HTTPConnection) -> None:
        query = connection.scope.get("query_string", b"")
        if _TOKEN_IN_URL.search(query) and self._warned.may("url"):
            _log.warning(
                "a token came in a query string, where logs keep it: revoke it, and send it as a header"
            )

    def _principal(self, token: Token) -> Principal:
        known = self._principals.get(token.id)
        if known is not None and known[0] is token:
            return known[1]
        queues = None if token.queues is None else frozenset(token.queues)
        principal = Principal(name=token.id, role=token.role, queues=queues)
        self._principals[token.id] = (token, principal)
        return principal


def _token_text(connection: HTTPConnection) -> str:
    head: dict[bytes, bytes] = connection.scope[HEAD]
    said = head.get(b"authorization")
    if said is None:
        return head.get(b"x-api-key", b"").decode("latin-1")
    scheme, _, text = said.partition(b" ")
    return text.strip().decode("latin-1") if scheme.lower() == b"bearer" else ""


def _is_local(connection: HTTPConnection) -> bool:
    """From this machine. Whoever has no address may be anybody: a proxy stands behind a socket file, too."""
    client = connection.scope.get("client")
    return client is not None and _is_loopback(client[0])


@lru_cache(maxsize=1024)
def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
