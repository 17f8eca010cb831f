"""The view of jobs on Postgres, without speculative copies."""

from __future__ import annotations

from django.db import migrations

from taskharbor.integrations.django.schema import numbered


class Migration(migrations.Migration):  # type: ignore[misc]
    dependencies = (("taskharbor", "0005_tallies"),)
    operations = (numbered(6),)
