"""Files that decide who gets in: read only if nobody else could have written them, as ssh does.

The file, a link that leads to it, and the folder it stands in must belong to us or to root; nobody else may
write to the file, and to the folder only if it keeps everybody's files apart (as /tmp does). A new version is
written under a name that nobody can guess, and then takes the place of the old one in one step.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from taskharbor.errors import ConfigurationError
from taskharbor.model.entropy import Entropy

_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def read_guarded(path: Path) -> tuple[bytes, os.stat_result] | None:
    """What the file holds, and its facts; None when there is none.

    Raises:
        ConfigurationError: somebody else could have written it, or it cannot be read.
    """
    try:
        link = os.lstat(path)
        _check_owner(path, link)
        target = path.resolve()
        descriptor = os.open(target, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigurationError(f"the file {path} cannot be read: {error.strerror}") from None
    try:
        facts = os.fstat(descriptor)
        _check_file(target, facts)
        _check_folder(target.parent)
        with os.fdopen(os.dup(descriptor), "rb") as file:
            return file.read(), facts
    finally:
        os.close(descriptor)


def write_guarded(path: Path, content: bytes) -> None:
    """Put the content in the place of the file in one step, for nobody else to read or write.

    Raises:
        ConfigurationError: it stands where others could put another in its place.
    """
    target = path.resolve()
    _check_folder(target.parent)
    draft = target.with_name(f".{target.name}.{Entropy().bytes(12).hex()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(target)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    _keep_name(target.parent)


def _check_file(path: Path, facts: os.stat_result) -> None:
    if not stat.S_ISREG(facts.st_mode):
        raise ConfigurationError(f"{path} is no file")
    _check_owner(path, facts)
    if facts.st_mode & _BY_OTHERS:
        raise ConfigurationError(f"others may write to {path} and so decide who gets in: chmod go-w {path}")


def _check_owner(path: Path, facts: os.stat_result) -> None:
    if facts.st_uid not in (0, os.geteuid()):
        raise ConfigurationError(
            f"{path} belongs to the user {facts.st_uid}, who could decide who gets in: "
            f"chown {os.geteuid()} {path}, or run this as that user"
        )


def _check_folder(folder: Path) -> None:
    facts = os.stat(folder)
    if facts.st_mode & stat.S_IWOTH and not facts.st_mode & stat.S_ISVTX:
        raise ConfigurationError(
            f"anybody may put another file in the place of those in {folder}: chmod o-w {folder}"
        )


def _keep_name(folder: Path) -> None:
    """The new name survives a power loss, too."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
