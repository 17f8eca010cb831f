"""/api/tokens: list, create and revoke access tokens; the secret of a new one is shown once."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from shlex import quote
from typing import Any

from starlette.responses import Response

from taskharbor.errors import ConfigurationError
from taskharbor.model.checks import check_name
from taskharbor.views import instant_text
from taskharbor.web.api.answers import NewTokenOut, TokenOut, TokensOut
from taskharbor.web.api.schemas import TokenIn
from taskharbor.web.audit_book import SettingChange
from taskharbor.web.endpoint import Operation
from taskharbor.web.parsing import read_json
from taskharbor.web.problems import Problem
from taskharbor.web.reply import json_answer
from taskharbor.web.request import Request
from taskharbor.web.tokens import Token, TokenFile, new_token

_MAX_BODY = 64 * 1024
_NO_FILE = Path("taskharbor-tokens.json")
ROLES: dict[str, str] = {
    "viewer": "looks; secrets in arguments are hidden",
    "producer": "enqueues",
    "worker": "runs jobs",
    "operator": "enqueues, retries, cancels, configures",
    "admin": "everything, tokens too",
}


async def list_tokens(request: Request) -> Response:
    file = request.service.tokens
    items = [] if file is None else [_view(token) for token in file.tokens()]
    return json_answer(TokensOut(items=items, file=None if file is None else str(file.path), roles=ROLES))


async def create_token(request: Request) -> Response:
    asked = read_json(await request.body(_MAX_BODY), TokenIn)
    for queue in asked.queues or ():
        check_name(queue, "queue")
    now = request.service.clock.now()
    text, token = new_token(
        request.service.entropy,
        asked.role,
        now,
        queues=None if asked.queues is None else tuple(dict.fromkeys(asked.queues)),
        expires_at=None if asked.expires_in_s is None else now + timedelta(seconds=asked.expires_in_s),
        note=asked.note,
    )
    file = _file(request, _to_create(asked))
    try:
        file.add(token)
    except (OSError, ConfigurationError) as error:
        raise _by_hand(_to_create(asked), file.path, error) from None
    request.audited = {"token": token.id}
    request.change = SettingChange(None, {"role": token.role, "queues": asked.queues, "note": token.note})
    return json_answer(NewTokenOut(token=text, **_fields(token)), 201)


async def revoke_token(request: Request) -> Response:
    token_id = request.parameter("token")
    command = f"taskharbor tokens revoke {quote(token_id)}"
    file = _file(request, command)
    known = next((token for token in file.tokens() if token.id == token_id), None)
    if known is None:
        raise Problem("not-found", "there is no token with this id")
    try:
        file.revoke(token_id)
    except (OSError, ConfigurationError) as error:
        raise _by_hand(command, file.path, error) from None
    request.audited = {"token": token_id}
    request.change = SettingChange({"role": known.role, "note": known.note}, None)
    return Response(status_code=204)


def _file(request: Request, command: str) -> TokenFile:
    file = request.service.tokens
    if file is None:
        raise Problem(
            "wrong-state",
            "this server has no token file; nothing was done. Run "
            f"`{command} --tokens {_NO_FILE}`, and start the server with --tokens {_NO_FILE}",
        )
    return file


def _by_hand(command: str, path: Path, error: Exception) -> Problem:
    why = error.strerror if isinstance(error, OSError) else str(error)
    detail = f"this server cannot write its token file ({why}); nothing was done"
    return Problem("wrong-state", f"{detail}. Run `{command} --tokens {quote(str(path))}`")


def _to_create(asked: TokenIn) -> str:
    words = ["taskharbor tokens create --role", asked.role]
    words += ["--queues", quote(",".join(asked.queues))] if asked.queues else []
    words += ["--expires", f"{asked.expires_in_s:g}s"] if asked.expires_in_s is not None else []
    return " ".join([*words, *(["--note", quote(asked.note)] if asked.note else [])])


def _fields(token: Token) -> dict[str, Any]:
    return {
        "id": token.id,
        "role": token.role,
        "queues": None if token.queues is None else list(token.queues),
        "created_at": instant_text(token.created_at),
        "expires_at": instant_text(token.expires_at),
        "note": token.note,
    }


def _view(token: Token) -> TokenOut:
    return TokenOut(**_fields(token))


OPERATIONS = [
    Operation(
        method="GET",
        path="/api/tokens",
        name="list_tokens",
        handler=list_tokens,
        summary="Access tokens, without their secrets",
        answer=TokensOut,
    ),
    Operation(
        method="POST",
        path="/api/tokens",
        name="create_token",
        handler=create_token,
        summary="Create an access token; its secret is shown only in this answer",
        status=201,
        body=TokenIn,
        answer=NewTokenOut,
        problems=("malformed", "wrong-state", "timeout", "payload-too-large", "unsupported-media-type"),
    ),
    Operation(
        method="DELETE",
        path="/api/tokens/{token}",
        name="revoke_token",
        handler=revoke_token,
        summary="Revoke an access token; every server refuses it within five seconds",
        status=204,
        problems=("not-found", "wrong-state"),
    ),
]
