"""The service's own users: a login that sets a signed cookie, and who may see the jobs."""

import hmac
import os
from dataclasses import dataclass

from starlette.requests import HTTPConnection

from taskharbor.web import Principal

COOKIE = "user"


@dataclass(frozen=True)
class User:
    name: str
    password: str
    is_staff: bool


USERS = {user.name: user for user in (User("ann", "ann", is_staff=True), User("bob", "bob", is_staff=False))}


def logged_in(name: str, password: str) -> str | None:
    """The cookie of a user, if the password is right."""
    user = USERS.get(name)
    if user is None or not hmac.compare_digest(user.password.encode(), password.encode()):
        return None
    return f"{name}.{_signature(name)}"


def user_of(connection: HTTPConnection) -> User | None:
    name, _, signature = connection.cookies.get(COOKIE, "").partition(".")
    return USERS.get(name) if hmac.compare_digest(signature, _signature(name)) else None


def may_see_jobs(connection: HTTPConnection) -> Principal | None:
    """What `create_app` asks about every request to the API and the dashboard."""
    user = user_of(connection)
    if user is None:
        return None  # 401
    return Principal(name=user.name, role="operator") if user.is_staff else Principal.NO_ACCESS  # 403


def _signature(name: str) -> str:
    return hmac.new(os.environ["SERVICE_SECRET"].encode(), name.encode(), "sha256").hexdigest()
