"""load_settings: flag > environment > file > default, and where each value came from.

The file is taskharbor.toml, or the table [tool.taskharbor] of pyproject.toml, in the folder of the
program; TASKHARBOR_CONFIG names another. A table [profile.prod] in it goes over the rest when it is
chosen by --profile or TASKHARBOR_PROFILE.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from taskharbor.errors import ConfigurationError
from taskharbor.model.duration import shown
from taskharbor.model.secrets import masked
from taskharbor.settings.parsing import parsed
from taskharbor.settings.schema import PREFIX, SECTIONS, SETTINGS, Setting, Values

CONFIG_VARIABLE = f"{PREFIX}_CONFIG"
PROFILE_VARIABLE = f"{PREFIX}_PROFILE"

_Found = dict[str, tuple[Any, str]]  # name → (raw value, where it came from)


class Source(msgspec.Struct, frozen=True):
    """One setting as `config show` prints it: secrets and passwords hidden."""

    name: str
    value: str
    source: str


class Settings(msgspec.Struct, frozen=True):
    """The values that hold, and where each of them came from."""

    values: Values
    sources: dict[str, str]
    file: Path | None = None
    profile: str | None = None

    def of_file(self, section: str = "") -> dict[str, Any]:
        """One section of the file, parsed: the defaults of that command's flags."""
        prefix = f"{section}." if section else ""
        return {
            name.removeprefix(prefix): _value(self.values, name)
            for name, source in self.sources.items()
            if name.startswith(prefix) and "." not in name.removeprefix(prefix) and source.startswith("file ")
        }

    def shown(self) -> list[Source]:
        """Every setting by name, fit to be printed."""
        return [
            Source(name, _printable(setting, _value(self.values, name)), self.sources[name])
            for name, setting in SETTINGS.items()
        ]


def load_settings(
    flags: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
    profile: str | None = None,
) -> Settings:
    """Read everything there is to read. `flags` are by full name, `{"worker.concurrency": 4}`.

    Raises:
        ConfigurationError: an unknown key, with the nearest known one; or a value of the wrong kind,
            with the place it came from.
    """
    environ = os.environ if environ is None else environ
    file, table = _read_file(folder or Path(), environ)
    profile = profile or environ.get(PROFILE_VARIABLE) or None
    found: _Found = {}
    found.update(_from_tables(table, file, profile))
    found.update(_from_environment(environ))
    found.update(_from_flags(flags or {}))
    raw = {name: _checked(SETTINGS[name], *value) for name, value in found.items()}
    sources = {name: found[name][1] if name in found else "default" for name in SETTINGS}
    return Settings(_built(raw), sources, file, profile)


# ------------------------------------------------------------------ where values come from


def _read_file(folder: Path, environ: Mapping[str, str]) -> tuple[Path | None, dict[str, Any]]:
    if named := environ.get(CONFIG_VARIABLE):
        return Path(named), _tables_of(Path(named), f"{CONFIG_VARIABLE}={named}")
    if (own := folder / "taskharbor.toml").is_file():
        return own, _tables_of(own, str(own))
    if (project := folder / "pyproject.toml").is_file():
        tables = _toml(project, str(project)).get("tool", {}).get("taskharbor")
        if tables is not None:
            return project, tables
    return None, {}


def _tables_of(path: Path, what: str) -> dict[str, Any]:
    tables = _toml(path, what)
    is_project = path.name == "pyproject.toml"
    found: dict[str, Any] = tables.get("tool", {}).get("taskharbor", {}) if is_project else tables
    return found


def _toml(path: Path, what: str) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{what} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{what} is not valid TOML: {error}") from error


def _from_tables(table: dict[str, Any], file: Path | None, profile: str | None) -> _Found:
    tables = dict(table)
    profiles = tables.pop("profile", {})
    if profile is not None and profile not in profiles:
        known = ", ".join(sorted(profiles)) or "none"
        raise ConfigurationError(f"no [profile.{profile}] in {file or 'any settings file'}; known: {known}")
    found = _flat(tables, f"file {file}")
    for name, its_tables in profiles.items():
        over = _flat(its_tables, f"file {file} [profile.{name}]")  # checked also when not chosen
        if name == profile:
            found.update(over)
    return found


def _flat(tables: Any, source: str) -> _Found:
    found: _Found = {}
    if not isinstance(tables, dict):
        raise ConfigurationError(f"{source}: must be a table of settings")
    for key, value in tables.items():
        if key in SECTIONS and not isinstance(value, dict):
            raise ConfigurationError(
                f"{source}: {key} = {value!r:.80}, but {key} is a table: write [{key}], then its settings"
            )
        if key in SECTIONS:
            found.update({f"{key}.{inner}": (one, source) for inner, one in value.items()})
        else:
            found[key] = (value, source)
    for name in found:
        if name not in SETTINGS:
            raise ConfigurationError(f"{source}: unknown setting {name!r}{_nearest(name)}")
    return found


def _from_environment(environ: Mapping[str, str]) -> _Found:
    """TASKHARBOR_TOKEN, or TASKHARBOR_TOKEN_FILE with a file that holds it.

    Unknown variables are ignored: Kubernetes sets some for a service of this name.
    """
    found: _Found = {}
    for name, setting in SETTINGS.items():
        if (path := environ.get(f"{setting.variable}_FILE")) is not None:
            found[name] = (
                _secret_file(path, f"{setting.variable}_FILE"),
                f"environment {setting.variable}_FILE",
            )
        if (value := environ.get(setting.variable)) is not None:
            found[name] = (value, f"environment {setting.variable}")
    return found


def _secret_file(path: str, variable: str) -> str:
    try:
        return Path(path).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{variable}={path} cannot be read: {error}") from error


def _from_flags(flags: Mapping[str, Any]) -> _Found:
    given = {name: value for name, value in flags.items() if value is not None}
    for name in given:
        if name not in SETTINGS:
            raise ConfigurationError(f"unknown setting {name!r}{_nearest(name)}")
    return {
        name: (value, f"flag --{name.rpartition('.')[2].replace('_', '-')}") for name, value in given.items()
    }


# ------------------------------------------------------------------ values


def _checked(setting: Setting, raw: Any, source: str) -> Any:
    if isinstance(raw, str) and setting.type not in (str, bool) and not raw.strip():
        return setting.default
    try:
        return parsed(raw, setting.type)
    except ValueError as error:
        shown = "***" if setting.is_secret else f"{raw!r:.80}"
        raise ConfigurationError(f"{setting.name} = {shown} ({source}) must be {error}") from None


def _built(raw: dict[str, Any]) -> Values:
    values = Values(**{name: value for name, value in raw.items() if "." not in name})
    sections = {
        section: msgspec.structs.replace(
            getattr(values, section),
            **{name.partition(".")[2]: one for name, one in raw.items() if name.startswith(f"{section}.")},
        )
        for section in SECTIONS
    }
    return msgspec.structs.replace(values, **sections)


def _value(values: Values, name: str) -> Any:
    found: Any = values
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _printable(setting: Setting, value: Any) -> str:
    if value is None:
        return "-"
    if setting.is_secret:
        return "***"
    if isinstance(value, timedelta):
        return shown(value)
    if isinstance(value, tuple):
        return ",".join(value)
    return masked(value) if isinstance(value, str) and "://" in value else str(value)


def _nearest(name: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, [*SETTINGS, *SECTIONS], n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(sorted(SETTINGS))}"
