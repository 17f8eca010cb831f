"""A framework is loaded by its own integration only."""

import subprocess
import sys

import pytest

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


WITHOUT = """
import sys
sys.modules[{host!r}] = None
try:
    {code}
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize(
    ("host", "code", "extra"),
    [
        ("flask", "import taskharbor.integrations.flask", "flask"),
        ("starlette.routing", "from taskharbor.web import create_app", "server"),
    ],
)
def test_a_missing_framework_is_named_with_its_extra(host: str, code: str, extra: str) -> None:
    script = WITHOUT.format(host=host, code=code)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout.startswith("ConfigurationError")
    assert done.stdout.strip().endswith(f"which is not installed: pip install 'taskharbor[{extra}]'")
