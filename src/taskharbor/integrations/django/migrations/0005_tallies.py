"""Tallies on Postgres: how many jobs wait and have ended."""

from __future__ import annotations

from django.db import migrations

from taskharbor.integrations.django.schema import numbered


class Migration(migrations.Migration):  # type: ignore[misc]
    dependencies = (("taskharbor", "0004_children"),)
    operations = (numbered(5),)
