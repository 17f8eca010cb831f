"""The tables of TaskHarbor, and the unmanaged model that carries the permissions of its admin page."""

from __future__ import annotations

from django.db import migrations, models

from taskharbor.integrations.django.schema import numbered


class Migration(migrations.Migration):  # type: ignore[misc]
    initial = True
    dependencies = ()
    operations = (
        migrations.CreateModel(
            name="Job",
            fields=[("id", models.UUIDField(primary_key=True, serialize=False))],
            options={
                "verbose_name": "job",
                "verbose_name_plural": "jobs",
                "managed": False,
                "default_permissions": ("view", "change"),
            },
        ),
        numbered(1),
    )
