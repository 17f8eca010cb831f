"""The libraries of the dashboard: fetched once, kept in the repository, checked by their hashes.

    python tools/vendor.py            check the files against vendor.lock.json
    python tools/vendor.py --fetch    fetch them again and write both, and the SBOM that the wheel carries

A bare import (`from "preact"`) becomes a relative one: an import map would need an inline script, which the
content security policy of the pages forbids.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

import npm

FOLDER = Path(__file__).parents[1] / "src/taskharbor/web/ui/vendor"
LOCK = FOLDER / "vendor.lock.json"
SBOM = Path(__file__).with_name("vendor.cdx.json")
_SOURCE_MAP = re.compile(rb"\n?//# sourceMappingURL=\S+\s*$")


@dataclass(frozen=True)
class Package:
    name: str
    version: str
    license: str
    sha512: str
    files: dict[str, str]
    """The path in the package by the name that it gets here."""


PACKAGES = [
    Package(
        name="preact",
        version="11.2.0",
        license="MIT",
        sha512="/HfHI/7N84e6GrWBJ3J280z3mLaRJiDcSvj/A+y/4AbLnND/1UlGHe1sR6oYuTGwId0nP7dqDU9OnLxMPZ7xBg==",
        files={
            "preact.js": "dist/preact.mjs",
            "hooks.js": "hooks/dist/hooks.mjs",
            "LICENSE.preact": "LICENSE",
        },
    ),
    Package(
        name="htm",
        version="3.1.1",
        license="Apache-2.0",
        sha512="983Vyg8NwUE7JkZ6NmOqpCZ+sh1bKv2iYTlUkzlWmA5JD2acKoxd4KVxbMmxX/85mtfdnDmTFoNKcg5DGAvxNQ==",
        files={"htm.js": "dist/htm.mjs", "LICENSE.htm": "LICENSE"},
    ),
]


def main() -> int:
    if sys.argv[1:] == ["--fetch"]:
        renew()
    wrong = differences()
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


def renew() -> None:
    """Fetch every package and write its files and the lock."""
    FOLDER.mkdir(exist_ok=True)
    entries = []
    with tempfile.TemporaryDirectory() as folder:
        for package in PACKAGES:
            archive = npm.fetch(package.name, package.version, package.sha512, Path(folder))
            entries += written(package, archive)
    LOCK.write_text(json.dumps(entries, indent=2) + "\n", "utf-8")
    SBOM.write_text(sbom(), "utf-8")


def written(package: Package, archive: Path) -> list[dict[str, str]]:
    """Write the files of a package; the entries of the lock for them."""
    entries = []
    with tarfile.open(archive) as packed:
        for name, path in package.files.items():
            member = packed.extractfile(f"package/{path}")
            if member is None:
                raise SystemExit(f"{package.name} {package.version} has no file {path}")
            data = rewritten(member.read()) if name.endswith(".js") else member.read()
            (FOLDER / name).write_bytes(data)
            source = f"npm {package.name}@{package.version} {path}"
            entries.append(
                {
                    "file": name,
                    "name": package.name,
                    "version": package.version,
                    "source": source,
                    "license": package.license,
                    "sha256": hashlib.sha256(data).hexdigest(),
                }
            )
    return entries


def rewritten(data: bytes) -> bytes:
    """The module with relative imports and without the mention of a source map that is not shipped."""
    return _SOURCE_MAP.sub(b"\n", data.replace(b'from"preact"', b'from"./preact.js"'))


def sbom() -> str:
    """The packages as CycloneDX, for the folder `sboms` of the wheel (PEP 770)."""
    components = [
        {
            "type": "library",
            "name": package.name,
            "version": package.version,
            "purl": f"pkg:npm/{package.name}@{package.version}",
            "licenses": [{"license": {"id": package.license}}],
            "hashes": [{"alg": "SHA-512", "content": base64.b64decode(package.sha512).hex()}],
        }
        for package in PACKAGES
    ]
    whole = {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "components": components}
    return json.dumps(whole, indent=2) + "\n"


def differences() -> list[str]:
    """What does not fit together: files, the lock, and the packages above."""
    locked = {entry["file"]: entry for entry in json.loads(LOCK.read_text("utf-8"))}
    wanted = {name: package for package in PACKAGES for name in package.files}
    found = {path.name for path in FOLDER.iterdir()} - {LOCK.name}
    wrong = [f"{name} is in the folder but not in the lock" for name in sorted(found - locked.keys())]
    wrong += [f"{name} is in the lock but not in the folder" for name in sorted(locked.keys() - found)]
    wrong += [
        f"{name}: the lock and tools/vendor.py differ" for name in sorted(locked.keys() ^ wanted.keys())
    ]
    for name in sorted(found & locked.keys() & wanted.keys()):
        entry, package = locked[name], wanted[name]
        if (entry["name"], entry["version"]) != (package.name, package.version):
            wrong.append(f"{name}: the lock has {entry['version']}, tools/vendor.py {package.version}")
        if hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() != entry["sha256"]:
            wrong.append(f"{name} was changed: its sha256 is not the one in the lock")
    if SBOM.read_text("utf-8") != sbom():
        wrong.append(f"{SBOM.name} is not what tools/vendor.py makes")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
