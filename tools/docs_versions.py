"""The published docs: one folder per minor release, /latest/, /dev/, and versions.json for the menu.

    python -m tools.docs_versions FOLDER --release 0.1.2   FOLDER/0.1 and FOLDER/latest, with links to v0.1.2
    python -m tools.docs_versions FOLDER --dev             FOLDER/dev, with links to main

FOLDER is what the web server shows: it keeps the folders of earlier releases. Pages of an old release say so,
and lead to the latest.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import yaml

from tools import docs

CONFIG = docs.ROOT / "mkdocs-versions.yml"  # beside mkdocs.yml, for its paths are relative
DEV = "dev"


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the docs of one version into the published folder.")
    parser.add_argument("folder", type=Path)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--release", metavar="VERSION")
    which.add_argument("--dev", action="store_true")
    options = parser.parse_args()
    CONFIG.write_text(config((docs.ROOT / "mkdocs.yml").read_text("utf-8")), "utf-8")
    try:
        failed = docs.build(f"v{options.release}" if options.release else "main", CONFIG)
    finally:
        CONFIG.unlink()
    if failed:
        return failed
    publish(docs.SITE, options.folder, options.release)
    return 0


def config(text: str) -> str:
    """mkdocs.yml with a menu of versions."""
    found = yaml.safe_load(text)
    found["extra"] = {"version": {"provider": "mike", "default": "latest"}}
    return str(yaml.safe_dump(found, sort_keys=False))


def publish(site: Path, folder: Path, release: str | None) -> None:
    """Put the built site into its place, and renew the list of versions."""
    minor = ".".join(release.split(".")[:2]) if release else DEV
    listed = folder / "versions.json"
    known = json.loads(listed.read_text("utf-8")) if listed.exists() else []
    versions = with_version(known, minor, release)
    folder.mkdir(exist_ok=True)
    newest = next((one["version"] for one in versions if one["aliases"]), None)
    for name in {minor, "latest"} if minor == newest else {minor}:
        shutil.rmtree(folder / name, ignore_errors=True)
        shutil.copytree(site, folder / name)
    listed.write_text(json.dumps(versions, indent=2) + "\n", "utf-8")
    (folder / "index.html").write_text('<meta http-equiv="refresh" content="0; url=latest/">\n', "utf-8")


def with_version(known: list[dict[str, Any]], minor: str, release: str | None) -> list[dict[str, Any]]:
    """The list with this version in it: newest first, `latest` at the newest release, `dev` at the end."""
    titles = {one["version"]: one["title"] for one in known} | {minor: release or DEV}
    releases = sorted((one for one in titles if one != DEV), key=_number, reverse=True)
    order = [*releases, *(one for one in titles if one == DEV)]
    return [
        {"version": one, "title": titles[one], "aliases": ["latest"] if [one] == releases[:1] else []}
        for one in order
    ]


def _number(minor: str) -> list[int]:
    return [int(part) for part in minor.split(".")]


if __name__ == "__main__":
    sys.exit(main())
