"""store_url: which store to use, by the same rule in programs and on the command line."""

from __future__ import annotations

import os
from urllib.parse import quote

from taskharbor.errors import ConfigurationError
from taskharbor.model.secrets import masked
from taskharbor.settings.loading import load_settings

_BORROWED = "env:"
_TOKEN_VARIABLES = ("TASKHARBOR_TOKEN", "TASKHARBOR_TOKEN_FILE")


def store_url(url: str | None = None) -> str:
    """The URL given, else TASKHARBOR_URL, else that of the settings file, else a file in this folder.

    `env:NAME` borrows another variable: `env:DATABASE_URL`.

    Raises:
        ConfigurationError: env:NAME names a variable that is not set, or the settings file is wrong.
    """
    return _with_token(_found(url or load_settings().values.url))


def _found(chosen: str) -> str:
    if not chosen.startswith(_BORROWED):
        return chosen
    variable = chosen.removeprefix(_BORROWED)
    borrowed = os.environ.get(variable)
    if not borrowed:
        raise ConfigurationError(f"{masked(chosen)} was given, but the variable {variable!r} is not set")
    return borrowed


def _with_token(url: str) -> str:
    """The URL of a server with the token of the settings file, unless another one is given.

    A token of the environment stays there: the driver looks for it itself.
    """
    scheme, _, rest = url.partition("://")
    is_given = "@" in rest.partition("/")[0] or any(name in os.environ for name in _TOKEN_VARIABLES)
    if scheme not in ("http", "https") or is_given:
        return url
    token = load_settings().values.token
    return url if token is None else f"{scheme}://{quote(token, safe='')}@{rest}"
