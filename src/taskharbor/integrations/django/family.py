"""The two families of Django's Tasks: `django.tasks` of Django 6, and its back-port `django_tasks`.

Both have the same parts under nearly the same names, and no class of the one is a class of the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFamily:
    """The parts of one family that a back end needs."""

    backends: Any
    BaseTaskBackend: Any
    Task: Any
    TaskResult: Any
    TaskResultStatus: Any
    TaskError: Any
    TaskContext: Any
    InvalidTask: Any
    TaskResultDoesNotExist: Any
    signals: Any
    normalize_json: Any


def django_tasks() -> TaskFamily:
    """Raises ImproperlyConfigured before Django 6."""
    from django.core.exceptions import ImproperlyConfigured

    try:
        return _family("django.tasks", "django.utils.json", "InvalidTask")
    except ModuleNotFoundError as error:
        raise ImproperlyConfigured(
            "django.tasks needs Django 6. With Django 5.2 install django-tasks, and name "
            '"taskharbor.integrations.django.backport.TaskHarborBackend" in TASKS'
        ) from error


def backported_tasks() -> TaskFamily:
    """Raises ImproperlyConfigured if django-tasks is not installed."""
    from django.core.exceptions import ImproperlyConfigured

    try:
        return _family("django_tasks", "django_tasks.utils", "InvalidTaskError")
    except ModuleNotFoundError as error:
        raise ImproperlyConfigured(
            "this back end needs the package django-tasks; with Django 6 and django.tasks name "
            '"taskharbor.integrations.django.TaskHarborBackend" in TASKS'
        ) from error


def _family(package: str, json: str, invalid_task: str) -> TaskFamily:
    top, base = import_module(package), import_module(f"{package}.base")
    errors = import_module(f"{package}.exceptions")
    return TaskFamily(
        backends=top.task_backends,
        BaseTaskBackend=import_module(f"{package}.backends.base").BaseTaskBackend,
        Task=base.Task,
        TaskResult=base.TaskResult,
        TaskResultStatus=base.TaskResultStatus,
        TaskError=base.TaskError,
        TaskContext=base.TaskContext,
        InvalidTask=getattr(errors, invalid_task),
        TaskResultDoesNotExist=errors.TaskResultDoesNotExist,
        signals=import_module(f"{package}.signals"),
        normalize_json=import_module(json).normalize_json,
    )
