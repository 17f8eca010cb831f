"""/api/session: who the caller is and what it may do; sign in and out with a browser."""

from __future__ import annotations

from starlette.responses import Response

from taskharbor import __version__
from taskharbor.views import instant_text
from taskharbor.web.api.answers import ServerOut, SessionOut
from taskharbor.web.api.schemas import SessionIn
from taskharbor.web.auth import Principal
from taskharbor.web.endpoint import Operation
from taskharbor.web.parsing import read_json
from taskharbor.web.permissions import access_rule
from taskharbor.web.problems import Problem
from taskharbor.web.reply import HEAD, Reply, json_answer
from taskharbor.web.request import Request
from taskharbor.web.sessions import check_own_page, ended_cookies, new_cookie

_MAX_BODY = 4096
_MAY = {
    "enqueue": "enqueue",
    "retry": "retry",
    "cancel": "cancel",
    "delete": "delete_dead",
    "configure": "configure_queue",
    "schedule": "put_schedule",
    "tokens": "create_token",
}
"""What a page draws buttons for, and the operation behind it."""


async def get_session(request: Request) -> Response:
    service, principal = request.service, request.principal
    session = service.authenticator.session_of(request)
    read_only = service.config.ui == "read-only"
    return json_answer(
        SessionOut(
            name=principal.name,
            note="" if session is None else session.token.note,
            role=principal.role,
            queues=None if principal.queues is None else sorted(principal.queues),
            may=[] if read_only else [word for word, name in _MAY.items() if _may(principal, name)],
            read_only=read_only,
            way=service.authenticator.way,
            expires_at=None if session is None else instant_text(session.expires_at),
            server=ServerOut(version=__version__, driver=service.driver_name, name=service.config.name),
        )
    )


def _may(principal: Principal, operation: str) -> bool:
    return access_rule(operation).allows(principal)


async def open_session(request: Request) -> Response:
    """A cookie in exchange for a token."""
    service, head = request.service, request.scope[HEAD]
    sessions = service.authenticator.sessions
    if sessions is None:
        raise Problem("wrong-state", "nobody signs in here: this server has no token file")
    check_own_page(head)
    address = request.client.host if request.client else ""
    service.login_failures.check(address)
    asked = read_json(await request.body(_MAX_BODY), SessionIn)
    opened = sessions.open(asked.token)
    if opened is None:
        service.login_failures.note(address)
        raise Problem("unauthenticated", "this token is unknown, expired or revoked")
    token, expires_at, value = opened
    request.principal = service.authenticator.principal_for(token)
    lasts = (expires_at - service.clock.now()).total_seconds()
    cookie = new_cookie(head, request.scope.get("root_path", ""), value, lasts)
    return Reply(b"", 204, {"Set-Cookie": cookie})


async def close_session(request: Request) -> Response:
    """Delete the cookie; the token stays valid."""
    # Only the cache: cookies and storage belong to the whole host, where other applications may live.
    answer = Response(status_code=204, headers={"Clear-Site-Data": '"cache"'})
    for cookie in ended_cookies(request.scope.get("root_path", "")):
        answer.headers.append("Set-Cookie", cookie)
    return answer


OPERATIONS = [
    Operation(
        method="GET",
        path="/api/session",
        name="get_session",
        handler=get_session,
        summary="Who the caller is, and what it may do",
        answer=SessionOut,
    ),
    Operation(
        method="POST",
        path="/api/session",
        name="open_session",
        handler=open_session,
        summary="Sign in with a browser: a cookie for a token, for twelve hours",
        body=SessionIn,
        status=204,
        problems=(
            "unauthenticated",
            "forbidden",
            "wrong-state",
            "rate-limited",
            "timeout",
            "payload-too-large",
            "unsupported-media-type",
        ),
    ),
    Operation(
        method="DELETE",
        path="/api/session",
        name="close_session",
        handler=close_session,
        summary="Sign out: the cookie is deleted",
        status=204,
        problems=("forbidden",),
    ),
]
