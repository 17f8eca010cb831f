"""The harbors of a Django project for the command line: `taskharbor.integrations.django.app:ALIAS`.

Processes that the command line starts import this module, so it sets Django up where that was not done.
"""

from __future__ import annotations

from typing import Any

import django
from django.apps import apps

if not apps.ready:
    django.setup()


def __getattr__(alias: str) -> Any:
    from taskharbor.integrations.django.backend import our_backends

    for backend in our_backends():
        if backend.alias == alias:
            return backend.harbor
    raise AttributeError(f"TASKS has no back end {alias!r} of TaskHarbor")
