"""The settings file for the command line: defaults of flags, and the URL of the store."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskharbor.errors import ConfigurationError

if TYPE_CHECKING:
    from taskharbor.settings import Settings

_FILES = ("taskharbor.toml", "pyproject.toml")


def file_settings() -> Settings | None:
    """The settings, if there may be a file with some; reading none costs nothing.

    Raises:
        ConfigurationError: the file is wrong, or it names code and any user can write to it.
    """
    if not os.environ.get("TASKHARBOR_CONFIG") and not any(Path(name).is_file() for name in _FILES):
        if profile := os.environ.get("TASKHARBOR_PROFILE"):
            raise ConfigurationError(f"the profile {profile!r} needs a settings file, and there is none")
        return None
    from taskharbor.settings import load_settings

    settings = load_settings()
    if settings.file is not None and settings.of_file().keys() & {"app", "include"}:
        _refuse_writable_by_others(settings.file)
    return settings


def chosen_app(app: str | None) -> str | None:
    """The app that was named, else the one of the settings file."""
    if app is not None:
        return app
    settings = file_settings()
    return None if settings is None else settings.values.app


def chosen_include(given: Sequence[str] | None = None) -> tuple[str, ...]:
    """The modules to import besides the app: those that were named, else those of the settings."""
    if not given:
        given = [os.environ.get("TASKHARBOR_INCLUDE", "")]
    names = tuple(name.strip() for text in given for name in text.split(",") if name.strip())
    if names:
        return names
    settings = file_settings()
    return () if settings is None else settings.values.include or ()


def flag_defaults(settings: Settings, command: str) -> dict[str, Any]:
    """The settings of one command as defaults for typer, by parameter name."""
    given = settings.of_file(command)
    return {name: ",".join(value) if isinstance(value, tuple) else value for name, value in given.items()}


def _refuse_writable_by_others(file: Path) -> None:
    """A file that names code decides what runs here, so others must not be able to write to it."""
    if stat.S_IMODE(file.stat().st_mode) & stat.S_IWOTH:
        raise ConfigurationError(
            f"{file} names code to import, and any user can write to it: run chmod o-w {file}"
        )
