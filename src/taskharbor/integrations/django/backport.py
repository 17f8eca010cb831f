"""The back end for `django_tasks`, the back-port of Django's Tasks to Django 5.2."""

from __future__ import annotations

from taskharbor.integrations.django.backend import make_backend
from taskharbor.integrations.django.family import backported_tasks

__all__ = ["TaskHarborBackend"]

TaskHarborBackend = make_backend(backported_tasks(), __name__)
