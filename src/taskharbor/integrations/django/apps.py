"""The Django app: label `taskharbor`."""

from __future__ import annotations

from django.apps import AppConfig

DASHBOARD = "taskharbor.dashboard"
"""In the ASGI scope of a request for the site: where `with_jobs` has put the dashboard."""


class TaskHarborConfig(AppConfig):  # type: ignore[misc]
    name = "taskharbor.integrations.django"
    label = "taskharbor"
    verbose_name = "TaskHarbor"
    default_auto_field = "django.db.models.BigAutoField"  # pyright: ignore[reportAssignmentType]

    def ready(self) -> None:
        from django.core.checks import Tags, register
        from django.db.models.signals import post_migrate

        from taskharbor.integrations.django.checks import check_migrations
        from taskharbor.integrations.django.schema import bring_up_to_date

        register(check_migrations, Tags.database)
        post_migrate.connect(bring_up_to_date, sender=self, dispatch_uid="taskharbor")
