"""taskharbor tokens: access tokens of the server."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from taskharbor.cli.columns import ago
from taskharbor.cli.config import file_settings
from taskharbor.cli.exit_codes import NotFoundError
from taskharbor.cli.output import Output
from taskharbor.cli.parameters import parse_duration
from taskharbor.cli.session import with_output
from taskharbor.cli.tables import Column
from taskharbor.model.checks import check_name
from taskharbor.model.clock import SystemClock
from taskharbor.model.entropy import Entropy
from taskharbor.views import instant_text
from taskharbor.web.tokens import Token, TokenFile, new_token

app = typer.Typer(no_args_is_help=True)

TokenFlag = Annotated[
    Path | None,
    typer.Option(
        "--tokens",
        metavar="FILE",
        envvar="TASKHARBOR_SERVER_TOKENS",
        help="Token file. Default: that of the settings, or taskharbor-tokens.json.",
    ),
]
_DEFAULT = Path("taskharbor-tokens.json")


class RoleName(StrEnum):
    VIEWER = "viewer"
    PRODUCER = "producer"
    WORKER = "worker"
    OPERATOR = "operator"
    ADMIN = "admin"


@app.command()
@with_output
def create(
    out: Output,
    role: Annotated[RoleName, typer.Option("--role", help="Role of the token.")],
    queues: Annotated[
        str | None, typer.Option("--queues", "-q", help="Only these queues, comma-separated.")
    ] = None,
    expires: Annotated[
        timedelta | None,
        typer.Option(
            "--expires", parser=parse_duration, metavar="DURATION", help="How long it is valid, e.g. 90d."
        ),
    ] = None,
    note: Annotated[str, typer.Option("--note", help="Note, e.g. who it is for.")] = "",
    tokens: TokenFlag = None,
) -> None:
    """Create a token and print it. Only its hash is stored, so it cannot be shown again."""
    clock = SystemClock()
    file = TokenFile(_path(tokens), clock)
    now = clock.now()
    text, kept = new_token(
        Entropy(),
        role.value,
        now,
        queues=_names(queues),
        expires_at=None if expires is None else now + expires,
        note=note,
    )
    file.add(kept)
    out.document({"token": text, **_view(kept)}, [text])
    out.say(f"token {kept.id} created with role {role.value}. Store it now: it cannot be shown again")


@app.command("list")
@with_output
def list_tokens(out: Output, tokens: TokenFlag = None) -> None:
    """List tokens, without their secrets."""
    clock = SystemClock()
    file = TokenFile(_path(tokens), clock)
    now = clock.now()
    out.items(
        [_view(token) for token in file.tokens()],
        (
            Column("ID", lambda token: token["id"]),
            Column("ROLE", lambda token: token["role"]),
            Column("QUEUES", lambda token: ",".join(token["queues"]) if token["queues"] else "all"),
            Column(
                "CREATED", lambda token: ago(token["created_at"], now), raw=lambda token: token["created_at"]
            ),
            Column(
                "EXPIRES", lambda token: ago(token["expires_at"], now), raw=lambda token: token["expires_at"]
            ),
            Column("NOTE", lambda token: token["note"]),
        ),
    )


@app.command()
@with_output
def revoke(
    out: Output,
    token_id: Annotated[
        str, typer.Argument(metavar="ID", help="Id of the token, as `tokens list` shows it.")
    ],
    tokens: TokenFlag = None,
) -> None:
    """Revoke a token; servers refuse it within five seconds."""
    file = TokenFile(_path(tokens), SystemClock())
    if not file.revoke(token_id):
        raise NotFoundError(f"there is no token {token_id!r} in {_path(tokens)}; nothing was changed")
    out.document({"id": token_id, "result": "revoked"}, [f"{token_id} revoked"])


def _path(given: Path | None) -> Path:
    """The file given, else that of the settings, else taskharbor-tokens.json here."""
    if given is not None:
        return given
    settings = file_settings()
    named = None if settings is None else settings.values.server.tokens
    return _DEFAULT if named is None else Path(named)


def _names(queues: str | None) -> tuple[str, ...] | None:
    if queues is None:
        return None
    names = tuple(name.strip() for name in queues.split(",") if name.strip())
    for name in names:
        check_name(name, "queue")
    return names


def _view(token: Token) -> dict[str, Any]:
    return {
        "id": token.id,
        "role": token.role,
        "queues": None if token.queues is None else list(token.queues),
        "created_at": instant_text(token.created_at),
        "expires_at": instant_text(token.expires_at),
        "note": token.note,
    }
