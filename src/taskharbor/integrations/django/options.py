"""`@job_options(...)`: what a TaskHarbor job can have and a Django task cannot say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from taskharbor.errors import ConfigurationError
from taskharbor.model.duration import Duration, optional_duration

F = TypeVar("F", bound=Callable[..., Any])

_ATTRIBUTE = "__taskharbor__"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """The options of the jobs of one task; None leaves it to the back end's OPTIONS."""

    max_attempts: int | None = None
    timeout: Duration | None = None
    key: str | Callable[..., str] | None = None
    idempotency_key: str | Callable[..., str] | None = None
    max_stalls: int | None = None
    min_backoff: Duration | None = None
    max_backoff: Duration | None = None
    requires: str = "any"

    def __post_init__(self) -> None:
        for name in ("timeout", "min_backoff", "max_backoff"):
            optional_duration(getattr(self, name), name)
        if self.max_attempts is not None and self.max_attempts < 1:
            raise ConfigurationError(f"max_attempts={self.max_attempts} must be at least 1")


_NONE = JobOptions()


def job_options(**options: Any) -> Callable[[F], F]:
    """Options for the jobs of a task, under `@task`: `@job_options(max_attempts=5, timeout="30s")`.

    `max_attempts` counts runs; without it a task runs once, as with Django's other back ends. `timeout`
    limits one run. At most one job of a `key` waits and one runs; enqueueing again updates the waiting
    one. A repeated `idempotency_key` makes no second job. Both are a text, or a function of the task's
    arguments that returns one.

    Raises:
        ConfigurationError, InvalidArgument: an unknown option, or one that cannot work.
    """
    try:
        chosen = JobOptions(**options)
    except TypeError as error:
        known = ", ".join(field.name for field in fields(JobOptions))
        raise ConfigurationError(f"job_options: {error}; known options: {known}") from None

    def mark(function: F) -> F:
        if not callable(function) or hasattr(function, "module_path"):
            raise ConfigurationError("@job_options takes a function: write it under @task")
        setattr(function, _ATTRIBUTE, chosen)
        return function

    return mark


def options_of(function: Any) -> JobOptions:
    found = getattr(function, _ATTRIBUTE, _NONE)
    return found if isinstance(found, JobOptions) else _NONE


def key_of(key: str | Callable[..., str] | None, args: Any, kwargs: Any) -> str | None:
    return key(*args, **kwargs) if callable(key) else key
