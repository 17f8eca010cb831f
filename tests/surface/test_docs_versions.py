"""The published docs have a folder per minor release, and a list that names the latest."""

import json
from pathlib import Path

import yaml

from tools import docs, docs_versions


def site(folder: Path, text: str) -> Path:
    folder.mkdir()
    (folder / "index.html").write_text(text)
    return folder


def test_a_release_becomes_its_minor_and_the_latest(tmp_path: Path) -> None:
    for number, release in enumerate(["0.1.0", None, "0.2.0", "0.1.1"]):
        docs_versions.publish(site(tmp_path / f"built{number}", str(release)), tmp_path / "out", release)

    shown = {path.parent.name: path.read_text() for path in (tmp_path / "out").glob("*/index.html")}
    assert shown == {"0.1": "0.1.1", "0.2": "0.2.0", "latest": "0.2.0", "dev": "None"}
    assert json.loads((tmp_path / "out/versions.json").read_text()) == [
        {"version": "0.2", "title": "0.2.0", "aliases": ["latest"]},
        {"version": "0.1", "title": "0.1.1", "aliases": []},
        {"version": "dev", "title": "dev", "aliases": []},
    ]


def test_the_tenth_minor_comes_after_the_ninth() -> None:
    known = docs_versions.with_version([], "0.9", "0.9.0")

    versions = docs_versions.with_version(known, "0.10", "0.10.0")

    assert [one["version"] for one in versions] == ["0.10", "0.9"]
    assert versions[0]["aliases"] == ["latest"]


def test_the_published_site_has_a_menu_of_versions_and_the_same_pages() -> None:
    text = (docs.ROOT / "mkdocs.yml").read_text("utf-8")

    made = yaml.safe_load(docs_versions.config(text))

    assert made.pop("extra") == {"version": {"provider": "mike", "default": "latest"}}
    assert made == yaml.safe_load(text)
