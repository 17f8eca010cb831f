"""make manifests: deploy/kubernetes against the schemas of Kubernetes, without a cluster or a network.

The checker carries the schemas of many versions, too many for the environment of every developer: it has
one of its own in build/manifests.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "manifests"
FOREIGN = {"kustomization.yaml", "keda.yaml"}
"""Kinds that Kubernetes itself does not have."""


def main() -> int:
    python = FOLDER / "bin" / "python"
    if not python.exists():
        venv.create(FOLDER, with_pip=True)
        install = [python, "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
        subprocess.run([*install, "-r", ROOT / "tools/manifests.txt"], check=True)
    checked = manifests()
    done = subprocess.run([FOLDER / "bin" / "kubernetes-validate", "--strict", *checked], check=False)
    print(f"manifests: {len(checked)} files checked" if done.returncode == 0 else "manifests: see above")
    return done.returncode


def manifests() -> list[Path]:
    return [path for path in sorted((ROOT / "deploy/kubernetes").glob("*.yaml")) if path.name not in FOREIGN]


if __name__ == "__main__":
    sys.exit(main())
