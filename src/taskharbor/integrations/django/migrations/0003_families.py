"""Families of jobs in TaskHarbor: chains, groups, workflows."""

from __future__ import annotations

from django.db import migrations

from taskharbor.integrations.django.schema import numbered


class Migration(migrations.Migration):  # type: ignore[misc]
    dependencies = (("taskharbor", "0002_log"),)
    operations = (numbered(3),)
