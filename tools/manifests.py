"""make manifests: the files for Kubernetes, Compose and GitHub against their schemas.

It needs no cluster and no GitHub. The checkers carry the schemas of many versions, too many for the
environment of every developer: they have one of their own in build/manifests. It is made by the first run,
which needs a package index; the others need no network.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "manifests"
TOOLS = ROOT / "tools" / "manifests.txt"
FOREIGN = {"kustomization.yaml", "keda.yaml"}
"""Kinds that Kubernetes itself does not have."""

GITHUB = ROOT / ".github"
TEMPLATES = GITHUB / "ISSUE_TEMPLATE" / "config.yml"
SCHEMAS: dict[str, list[Path]] = {
    "compose-spec": [ROOT / "compose.yaml"],
    "dependabot": [GITHUB / "dependabot.yml"],
    "github-workflows": sorted((GITHUB / "workflows").glob("*.yml")),
    "github-issue-forms": sorted({*(GITHUB / "ISSUE_TEMPLATE").glob("*.yml")} - {TEMPLATES}),
    "github-issue-config": [TEMPLATES],
}
"""Files by the schema of check-jsonschema that they must fit."""


def main() -> int:
    provide()
    steps = list(commands())
    failed = [words[0] for words in steps if subprocess.run(run_by(words), check=False, cwd=ROOT).returncode]
    verdict = f"{len(steps)} checks passed" if not failed else f"see above: {', '.join(failed)}"
    print(f"manifests: {verdict}")
    return 1 if failed else 0


def provide() -> None:
    """The environment with the versions of tools/manifests.txt; made again when those change."""
    stamp = FOLDER / "made-for.txt"
    wanted = TOOLS.read_text("utf-8")
    if stamp.exists() and stamp.read_text("utf-8") == wanted:
        return
    venv.create(FOLDER, with_pip=True, clear=True)
    install = [FOLDER / "bin" / "python", "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    subprocess.run([*install, "-r", TOOLS], check=True)
    stamp.write_text(wanted, "utf-8")


def commands() -> list[list[str]]:
    checks = [["kubernetes-validate", "--strict", *map(str, manifests())]]
    for schema, paths in SCHEMAS.items():
        checks.append(["check-jsonschema", "--builtin-schema", f"vendor.{schema}", *map(str, paths)])
    return [*checks, ["zizmor", "--offline", "--quiet", str(GITHUB)]]


def run_by(words: Sequence[str]) -> list[str]:
    return [str(FOLDER / "bin" / words[0]), *words[1:]]


def manifests() -> list[Path]:
    return [path for path in sorted((ROOT / "deploy/kubernetes").glob("*.yaml")) if path.name not in FOREIGN]


if __name__ == "__main__":
    sys.exit(main())
