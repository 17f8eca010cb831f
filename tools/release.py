"""make release: build what is published, once, and try it before anybody else does.

It refuses a dirty tree, notes that are still under *Unreleased*, and a version without a section in
CHANGELOG.md. Then it builds the sdist and the wheel, checks them, runs the sdist's own tests, installs
the wheel into an empty environment, runs the demo there, and writes an SBOM, checksums and the notes of
this version beside them.

    make release                      all of it, into dist/
    make release ARGS='--trial'       the same from any tree and with pending notes, to see that it works
    make release ARGS='--tag v0.1.0'  also refuse a tag that names another version
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
TOOLS = ROOT / "build" / "release"

_SECTION = re.compile(r"^## \[([^\]]+)\](?: - (\d{4}-\d{2}-\d{2}))?$", re.MULTILINE)


class Refused(Exception):
    """Why nothing can be released now, and what to do."""


def main() -> int:
    options = _options()
    version = version_of((ROOT / "src/taskharbor/__init__.py").read_text("utf-8"))
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    try:
        if options.tag is not None:
            check_tag(options.tag, version)
        if not options.trial:
            check_tree(_git("status", "--porcelain"))
            check_notes(changelog, version)
        build(version, changelog)
    except Refused as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Build and try a release.")
    parser.add_argument("--trial", action="store_true", help="from any tree, with pending notes")
    parser.add_argument("--tag", help="the tag that is released")
    return parser.parse_args()


# ------------------------------------------------------------------ what is refused


def version_of(source: str) -> str:
    found = re.search(r'^__version__ = "([^"]+)"$', source, re.MULTILINE)
    if found is None:
        raise Refused("src/taskharbor/__init__.py has no __version__")
    return found[1]


def check_tag(tag: str, version: str) -> None:
    if tag != f"v{version}":
        raise Refused(f"the tag {tag} does not name the version {version}; tag v{version} instead")


def check_tree(status: str) -> None:
    if status.strip():
        raise Refused(f"the tree has changes that are not committed:\n{status.rstrip()}")


def check_notes(changelog: str, version: str) -> None:
    """The notes of this version are there, with a date, and none wait for another."""
    notes = sections(changelog)
    if notes.get("Unreleased", "").strip():
        raise Refused(f"CHANGELOG.md has notes under Unreleased; move them under [{version}] - DATE")
    if not notes.get(version, "").strip():
        raise Refused(f"CHANGELOG.md has no section [{version}] - DATE, or nothing in it")


def sections(changelog: str) -> dict[str, str]:
    """The text under each version's heading."""
    heads = list(_SECTION.finditer(changelog))
    ends = [head.start() for head in heads[1:]] + [len(changelog)]
    return {head[1]: changelog[head.end() : end] for head, end in zip(heads, ends, strict=True)}


# ------------------------------------------------------------------ what is built


def build(version: str, changelog: str) -> None:
    shutil.rmtree(DIST, ignore_errors=True)
    tools = _environment(TOOLS, "-r", str(ROOT / "tools/release.txt"))
    _step("build", tools, "-m", "build", "--outdir", str(DIST), str(ROOT))
    packages = sorted(map(str, DIST.iterdir()))
    wheel = next(name for name in packages if name.endswith(".whl"))
    _step("check the metadata", tools, "-m", "twine", "check", "--strict", *packages)
    # W004: Django prescribes names for migrations that Python cannot import.
    _step("check the contents", tools, "-m", "check_wheel_contents", "--ignore", "W004", wheel)
    with tempfile.TemporaryDirectory(prefix="taskharbor-release-") as folder:
        _test_sdist(Path(folder), next(name for name in packages if name.endswith(".tar.gz")))
        _try(Path(folder), wheel, version)
        _write_sbom(Path(folder), wheel, version, tools)
    (DIST / "NOTES.md").write_text(sections(changelog).get(version, "").strip() + "\n", "utf-8")
    _write_checksums()
    print(f"release: {version} is in dist/: " + ", ".join(sorted(path.name for path in DIST.iterdir())))


def _test_sdist(folder: Path, sdist: str) -> None:
    """Unpack the sdist and run its own tests there, on its own source."""
    with tarfile.open(sdist) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.3 has none
        archive.extractall(folder)
    unpacked = folder / Path(sdist).name.removesuffix(".tar.gz")
    ours = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/unit", "tests/surface"]
    # Building again what was just built, and listing what git has, is for the repository.
    ours += ["--deselect", "tests/surface/test_repository.py"]
    _step("test the sdist", sys.executable, *ours, cwd=unpacked, PYTHONPATH=str(unpacked / "src"))


def _try(folder: Path, wheel: str, version: str) -> None:
    """Install the wheel where nothing else is, and run the demo as a user would."""
    python = _environment(folder / "empty", wheel)
    answer = _step("ask for its version", python, "-m", "taskharbor", "version", cwd=folder)
    if answer.split() != ["taskharbor", version]:
        raise Refused(f"the wheel says that it is {answer.strip()!r}, not {version}")
    _step("run the demo", python, "-m", "taskharbor", "demo", cwd=folder)


def _write_sbom(folder: Path, wheel: str, version: str, tools: Path) -> None:
    """What an installation with every extra brings, and nothing of the tools that look at it."""
    python = _environment(folder / "all", f"{wheel}[all]")
    target = DIST / f"taskharbor-{version}.cdx.json"
    _step(
        "write the SBOM",
        tools,
        *("-m", "cyclonedx_py", "environment", str(python), "--spec-version", "1.6", "-o", str(target)),
    )


def _write_checksums() -> None:
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}" for path in sorted(DIST.iterdir())
    ]
    (DIST / "SHA256SUMS").write_text("\n".join([*lines, ""]), "utf-8")


def _environment(folder: Path, *packages: str) -> Path:
    """The Python of an environment with these packages alone."""
    if not (folder / "bin/python").exists():
        venv.create(folder, with_pip=True)
    python = folder / "bin/python"
    _step(
        f"install {Path(packages[-1]).name}",
        python,
        *("-m", "pip", "install", "-qq", "--disable-pip-version-check", *packages),
    )
    return python


def _step(what: str, *command: str | Path, cwd: Path = ROOT, **variables: str) -> str:
    print(f"release: {what}", flush=True)
    alone = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "TASKHARBOR_URL")
    } | variables
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, env=alone, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise Refused(f"could not {what}:\n{(done.stdout + done.stderr)[-4000:].rstrip()}")
    return done.stdout


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    sys.exit(main())
