"""Every setting there is: its name, type and default. A section is a command, a key one of its flags.

`[worker] concurrency = 4` in a file is TASKHARBOR_WORKER_CONCURRENCY=4 in the environment and
`taskharbor worker --concurrency 4` on the command line.
"""

from __future__ import annotations

import dataclasses
import typing
from datetime import timedelta
from typing import Any, Literal

import msgspec

from taskharbor.drivers.loading import DEFAULT_URL
from taskharbor.model.worker_options import WorkerOptions
from taskharbor.settings.parsing import Secret, Size

PREFIX = "TASKHARBOR"


_UNITS = {"text": str | None, "rate": str | None, "size": Size}


def _option_fields() -> list[tuple[str, Any, Any]]:
    """Name, type and default of the worker's options that can be set from outside."""
    hints = typing.get_type_hints(WorkerOptions)
    found = []
    for field in dataclasses.fields(WorkerOptions):
        if "help" in field.metadata:
            hint = _UNITS.get(field.metadata["unit"], hints[field.name])
            found.append((field.name, str if typing.get_origin(hint) is Literal else hint, field.default))
    return found


_OptionSettings: Any = msgspec.defstruct("_OptionSettings", _option_fields(), frozen=True, kw_only=True)


class WorkerSettings(_OptionSettings, frozen=True, kw_only=True):  # type: ignore[misc,call-arg]
    """`taskharbor worker`: the options of a worker, and those of its process."""

    processes: int = 1
    until_idle: bool = False
    scheduler: bool = True
    sweep_every: timedelta = timedelta(seconds=2)
    health_port: int | None = None
    health_host: str = "127.0.0.1"
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
    metrics_tasks: bool = True
    log_format: str = "console"
    log_level: str = "info"


class SchedulerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`taskharbor scheduler`."""

    name: str = "scheduler"
    sweep_every: timedelta = timedelta(seconds=2)
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
    log_format: str = "console"
    log_level: str = "info"


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`taskharbor server`."""

    host: str = "127.0.0.1"
    port: int = 8484
    tokens: str | None = None
    allowed_hosts: tuple[str, ...] | None = None
    rate: float = 100.0
    driver_rate: float = 1000.0
    max_connections: int = 1000
    max_connections_per_address: int | None = None
    grace: timedelta = timedelta(seconds=30)
    ui: str = "on"
    name: str = ""
    targets: tuple[str, ...] | None = None
    trace_url: str = ""
    any_type: bool = False
    scheduler: bool = True
    metrics: bool = True
    log_format: str = "console"
    log_level: str = "info"


class Values(msgspec.Struct, frozen=True, kw_only=True):
    """All settings, with their defaults."""

    url: str = DEFAULT_URL
    app: str | None = None
    include: tuple[str, ...] | None = None
    token: Secret | None = None
    worker: WorkerSettings = WorkerSettings()
    scheduler: SchedulerSettings = SchedulerSettings()
    server: ServerSettings = ServerSettings()


class Setting(msgspec.Struct, frozen=True):
    """One setting: `worker.concurrency`, its type without None, and its default."""

    name: str
    type: Any
    default: Any

    @property
    def variable(self) -> str:
        return f"{PREFIX}_{self.name.replace('.', '_').upper()}"

    @property
    def is_secret(self) -> bool:
        return self.type is Secret


def _settings_of(struct: type[msgspec.Struct], prefix: str = "") -> list[Setting]:
    found: list[Setting] = []
    hints = typing.get_type_hints(struct)
    for field in msgspec.structs.fields(struct):
        hint = hints[field.name]
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            found += _settings_of(hint, f"{field.name}.")
        else:
            plain = [part for part in typing.get_args(hint) if part is not type(None)]
            is_optional = type(None) in typing.get_args(hint)
            found.append(Setting(prefix + field.name, plain[0] if is_optional else hint, field.default))
    return found


SETTINGS: dict[str, Setting] = {setting.name: setting for setting in _settings_of(Values)}
SECTIONS = ("worker", "scheduler", "server")
