"""A framework is loaded by its own integration only."""

import subprocess
import sys

HOSTS = [
    "django",
    "django_tasks",
    "fastapi",
    "flask",
    "IPython",
    "litestar",
    "sentry_sdk",
    "sqlalchemy",
    "starlette",
]

LOADED = f"""
import sys, taskharbor
for name in taskharbor.__all__:
    getattr(taskharbor, name)
print(sorted(set(sys.modules) & set({HOSTS!r})))
"""


def test_the_public_names_load_no_framework() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
