"""The logbook of TaskHarbor."""

from __future__ import annotations

from django.db import migrations

from taskharbor.integrations.django.schema import numbered


class Migration(migrations.Migration):  # type: ignore[misc]
    dependencies = (("taskharbor", "0001_schema"),)
    operations = (numbered(2),)
