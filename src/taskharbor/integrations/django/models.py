"""Job: a model without a table, for the permissions and the place of the admin page."""

from __future__ import annotations

from django.db import models


class Job(models.Model):  # type: ignore[misc]
    id = models.UUIDField(primary_key=True)

    class Meta:
        app_label = "taskharbor"
        managed = False
        default_permissions = ("view", "change")
        verbose_name = "job"
        verbose_name_plural = "jobs"

    def __str__(self) -> str:
        return str(self.id)
