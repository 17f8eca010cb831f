"""What a writer does when the disk gets full: a short log, and never more in it than the file can still take.

Every commit goes into the write-ahead log first, and a checkpoint brings it into the file. So what is new is
there twice for a while. On a disk without room a long log is a trap: the checkpoint that would make it
short finds no room for the file to grow. So while there is little room, checkpoints come early, a log that is
done with is cut off, and no step may add more to the file than a checkpoint will find room for.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3

from taskharbor.drivers.sqlite.location import Location

LITTLE = 64 * 1024 * 1024
"""Four times the log that is usual, in bytes."""
_LONG_LOG = 4000  # pages of 4 KiB between two checkpoints: fewer, larger write-backs
_SHORT_LOG = 64
_KEPT_LOG = 64 * 1024 * 1024  # of a log that had to grow
_NO_LIMIT = 0xFFFFFFFE


class Room:
    """How much room one writer has, and how it lives with that."""

    def __init__(self, connection: sqlite3.Connection, location: Location) -> None:
        self._connection = connection
        self._folder = os.path.dirname(location.path)
        self._log = f"{location.path}-wal"
        self._is_little = False
        self._has_run_out = False  # since the last checkpoint that went through

    def ran_out(self) -> None:
        """A step was refused for want of room, which the file system may not show: there are quotas."""
        self._has_run_out = True

    def look(self) -> None:
        """Before a step, and outside of any transaction: see what room there is. Never raises."""
        free = self._free()
        if free >= LITTLE and not self._has_run_out:
            if self._is_little:
                self._live(is_little=False)
            return
        with contextlib.suppress(sqlite3.Error):  # the step itself will say what is wrong
            if not self._is_little:
                self._live(is_little=True)
            if self._has_run_out or self._log_bytes() > _SHORT_LOG * 8192:
                self._has_run_out = not self._shorten_log()
                free = self._free()
            self._limit_file(free)

    def _live(self, *, is_little: bool) -> None:
        self._is_little = is_little
        execute = self._connection.execute
        execute(f"pragma wal_autocheckpoint = {_SHORT_LOG if is_little else _LONG_LOG}")
        execute(f"pragma journal_size_limit = {0 if is_little else _KEPT_LOG}")
        if not is_little:
            execute(f"pragma max_page_count = {_NO_LIMIT}")

    def _shorten_log(self) -> bool:
        """Bring the log into the file and cut it off; whether that went through."""
        is_busy, _, _ = self._connection.execute("pragma wal_checkpoint(truncate)").fetchone()
        return not is_busy

    def _limit_file(self, free: int) -> None:
        """A new page goes into the log and then into the file, so half of the room is for each."""
        if free >= LITTLE:
            return
        (pages,) = self._connection.execute("pragma page_count").fetchone()
        (page_bytes,) = self._connection.execute("pragma page_size").fetchone()
        self._connection.execute(f"pragma max_page_count = {pages + (free // 2) // page_bytes}")

    def _free(self) -> int:
        try:
            disk = os.statvfs(self._folder)
        except OSError:
            return LITTLE
        return disk.f_bavail * disk.f_frsize

    def _log_bytes(self) -> int:
        try:
            return os.stat(self._log).st_size
        except OSError:
            return 0
