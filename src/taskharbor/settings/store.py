"""store_url: which store is meant, by the same rule in a program and on the command line."""

from __future__ import annotations

import os

from taskharbor.drivers.loading import masked
from taskharbor.errors import ConfigurationError
from taskharbor.settings.loading import load_settings

_BORROWED = "env:"


def store_url(url: str | None = None) -> str:
    """The URL given, else TASKHARBOR_URL, else that of the settings file, else a file in this folder.

    `env:NAME` borrows another variable: `env:DATABASE_URL`.

    Raises:
        ConfigurationError: env:NAME names a variable that is not set, or the settings file is wrong.
    """
    chosen = url or load_settings().values.url
    if not chosen.startswith(_BORROWED):
        return chosen
    variable = chosen.removeprefix(_BORROWED)
    borrowed = os.environ.get(variable)
    if not borrowed:
        raise ConfigurationError(f"{masked(chosen)} was given, but the variable {variable!r} is not set")
    return borrowed
