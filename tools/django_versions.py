"""Run the Django tests with other versions, each in an environment of its own.

    python tools/django_versions.py /path/to/python3.12 [FOLDER]

Django 6 needs Python 3.12 or newer. The environments stay in FOLDER (.django), so a second run is quick.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
VERSIONS = {  # name → what to install, variables
    "5.2": (("django~=5.2.0", "django-tasks"), {}),
    "6.0": (("django~=6.0.0",), {}),
    "6.1": (("django~=6.1.0",), {}),
    "6.1-backport": (("django~=6.1.0", "django-tasks"), {"TEST_BACKPORT": "1"}),
}
TESTS = ["tests/integration/frameworks/test_django.py", "tests/integration/frameworks/test_django_shop.py"]


def main() -> int:
    python, folder = sys.argv[1], Path(sys.argv[2] if len(sys.argv) > 2 else ".django")
    failed = [name for name in VERSIONS if not passes(python, folder / name, name)]
    print(f"failed: {', '.join(failed)}" if failed else "all versions pass")
    return len(failed)


def passes(python: str, home: Path, name: str) -> bool:
    packages, variables = VERSIONS[name]
    if not home.exists():
        subprocess.run([python, "-m", "venv", str(home)], check=True)
        own = str(home / "bin/python")
        subprocess.run(
            [own, "-m", "pip", "install", "-q", "-e", f"{ROOT}[dev,all,demo]", *packages], check=True
        )
    print(f"== Django {name}", flush=True)
    command = [str(home / "bin/python"), "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **variables}, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
