"""Files with secrets, such as token files: read only if no other user could have written them, as ssh does.

The file, a symlink to it and its folder must belong to us or to root. Others may not write to the file, and
to the folder only if it is sticky (like /tmp). A new version is written under a random name and then renamed
over the old one.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from taskharbor.errors import ConfigurationError
from taskharbor.model.entropy import Entropy

_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def read_secure(path: Path) -> tuple[bytes, os.stat_result] | None:
    """The content of the file and its stat; None if it does not exist.

    Raises:
        ConfigurationError: another user could have written it, or it cannot be read.
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


def write_secure(path: Path, content: bytes) -> None:
    """Replace the file in one step, readable and writable by its owner only.

    Raises:
        ConfigurationError: other users could replace it.
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
        raise ConfigurationError(f"{path} is not a regular file")
    _check_owner(path, facts)
    if facts.st_mode & _BY_OTHERS:
        raise ConfigurationError(
            f"other users can write to {path} and so grant access: run chmod go-w {path}"
        )


def _check_owner(path: Path, facts: os.stat_result) -> None:
    if facts.st_uid not in (0, os.geteuid()):
        raise ConfigurationError(
            f"{path} belongs to user {facts.st_uid}, who could grant access: "
            f"run chown {os.geteuid()} {path}, or run this as that user"
        )


def _check_folder(folder: Path) -> None:
    facts = os.stat(folder)
    if facts.st_mode & stat.S_IWOTH and not facts.st_mode & stat.S_ISVTX:
        raise ConfigurationError(f"any user can replace the files in {folder}: run chmod o-w {folder}")


def _keep_name(folder: Path) -> None:
    """Sync the folder, so that the rename survives a power loss."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
