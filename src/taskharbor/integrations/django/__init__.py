"""TaskHarbor as a back end of Django's Tasks, on the project's own database or on any store.

    INSTALLED_APPS = [..., "taskharbor.integrations.django"]
    TASKS = {"default": {"BACKEND": "taskharbor.integrations.django.TaskHarborBackend"}}

This back end is for `django.tasks` (Django 6). With the back-port `django_tasks` it is
`taskharbor.integrations.django.backport.TaskHarborBackend`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taskharbor.integrations.django.options import job_options

if TYPE_CHECKING:
    from taskharbor.integrations.django.asgi import with_jobs

    TaskHarborBackend: Any

__all__ = ["TaskHarborBackend", "job_options", "with_jobs"]


def __getattr__(name: str) -> Any:
    # Late: Django imports this module for its list of apps, before settings and apps are ready.
    if name == "TaskHarborBackend":
        from taskharbor.integrations.django.backend import make_backend
        from taskharbor.integrations.django.family import django_tasks

        globals()[name] = make_backend(django_tasks(), __name__)
    elif name == "with_jobs":
        from taskharbor.integrations.django.asgi import with_jobs

        globals()[name] = with_jobs
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals()[name]
