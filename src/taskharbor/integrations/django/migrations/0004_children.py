"""Children of families on Postgres, completed by sets."""

from __future__ import annotations

from django.db import migrations

from taskharbor.integrations.django.schema import numbered


class Migration(migrations.Migration):  # type: ignore[misc]
    dependencies = (("taskharbor", "0003_families"),)
    operations = (numbered(4),)
