"""The dashboard's files: package data, shortened and joined for the first caller, kept plain and gzipped.

    /ui/                  index.html, never kept by browsers
    /ui/<version>/app.js  every other file, kept for ever: the version is a hash of all files

A path is looked up among the files that were read; it never names a file of the machine. In index.html the
word ASSETS is replaced by the version, so that its links are relative and hold under any prefix.

A server that nobody opens in a browser never makes them, and no server waits for them when it starts.
"""

from __future__ import annotations

import asyncio
import hashlib
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath
from threading import Lock

from taskharbor.web.page_bundles import bundled
from taskharbor.web.reply import Reply

INDEX = "index.html"
_ASSETS = b"ASSETS/"
_MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml",
}
"""What is served, by ending. Licences, lock files and types of the vendored code are not."""
_GZIP = zlib.MAX_WBITS + 16
_MEMORY_LEVEL = 7
_IMMUTABLE = "public, max-age=31536000, immutable"
_making = Lock()


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file as it is sent."""

    plain: bytes
    gzipped: bytes
    media_type: str


@dataclass(frozen=True, slots=True)
class PageFiles:
    """Every file by its path below `ui`, and their version."""

    version: str
    by_name: Mapping[str, PageFile]


class Pages:
    """All files of the dashboard, and the headers they are sent with."""

    def __init__(self, frame_ancestors: Sequence[str] = ()) -> None:
        self._made: PageFiles | None = None
        self._headers = _security_headers(frame_ancestors)

    async def index(self, *, gzipped: bool) -> PageReply:
        made = await self._files()
        return self._reply(made.by_name[INDEX], "no-store", gzipped)

    async def file(self, version: str, name: str, *, gzipped: bool) -> PageReply | None:
        """None if there is no such file, also in another version: mixed versions would not fit together."""
        made = await self._files()
        found = made.by_name.get(name)
        if found is None or version != made.version or name == INDEX:
            return None
        return self._reply(found, _IMMUTABLE, gzipped)

    async def _files(self) -> PageFiles:
        """In a thread, because it takes a third of a second once: other requests do not wait for it."""
        if self._made is None:
            self._made = await asyncio.to_thread(page_files)
        return self._made

    def _reply(self, file: PageFile, caching: str, gzipped: bool) -> PageReply:
        headers = {**self._headers, "Cache-Control": caching, "Vary": "Accept-Encoding"}
        if gzipped:
            headers["Content-Encoding"] = "gzip"
        return PageReply(file.gzipped if gzipped else file.plain, 200, headers, file.media_type)


class PageReply(Reply):
    """A file with headers of its own in place of those that all answers carry."""


def _security_headers(frame_ancestors: Sequence[str]) -> dict[str, str]:
    framed_by = " ".join(frame_ancestors) or "'none'"
    policy = (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        f"form-action 'self'; base-uri 'none'; frame-ancestors {framed_by}; "
        "require-trusted-types-for 'script'"
    )
    return {
        "Content-Security-Policy": policy,
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
    }


def page_files() -> PageFiles:
    """Made once per process, for the first caller."""
    with _making:
        return _make()


@cache
def _make() -> PageFiles:
    found = bundled(dict(sorted(_contents(files("taskharbor.web").joinpath("ui")))))
    digest = hashlib.blake2b(digest_size=8)
    for name, content in found.items():
        digest.update(b"%d %b %d " % (len(name), name.encode(), len(content)) + content)
    version = digest.hexdigest()
    found[INDEX] = found[INDEX].replace(_ASSETS, version.encode() + b"/")
    return PageFiles(version, {name: _page_file(name, content) for name, content in found.items()})


def _contents(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _contents(entry, f"{prefix}{entry.name}/")
        elif PurePosixPath(entry.name).suffix in _MEDIA_TYPES:
            yield prefix + entry.name, entry.read_bytes()


def _page_file(name: str, content: bytes) -> PageFile:
    return PageFile(content, gzipped(content), _MEDIA_TYPES[PurePosixPath(name).suffix])


def gzipped(content: bytes) -> bytes:
    """With less memory zlib begins new codes more often, which fits the scripts better."""
    packer = zlib.compressobj(zlib.Z_BEST_COMPRESSION, zlib.DEFLATED, _GZIP, _MEMORY_LEVEL)
    return packer.compress(content) + packer.flush()
