"""Chance comes in through this door, and only through it.

One `Entropy` gives ids, lease tokens and jitter. Seeded, it gives the same series again, so a
whole world of clients and workers replays from one number.
"""

from __future__ import annotations

import hashlib
import os
import random
from datetime import datetime

from taskharbor.model.clock import micros


class Entropy:
    """Ids, tokens and jitter from one source; repeatable when given a seed."""

    def __init__(self, seed: int | None = None) -> None:
        self._random = random.Random(seed) if seed is not None else None
        self._jitter = self._random or random.Random()

    def bytes(self, count: int) -> bytes:
        """So many random bytes."""
        return os.urandom(count) if self._random is None else self._random.randbytes(count)

    def job_id(self, at: datetime) -> str:
        """A new UUIDv7: unique for ever, and sorted by the microsecond it was made in.

        The bits behind the millisecond hold its fraction. So the ids of one client arrive in the order of a
        store's index, which then grows at its end only.
        """
        ms, rest = divmod(micros(at), 1000)
        noise = os.urandom(8) if self._random is None else self._random.randbytes(8)
        return _uuid7(ms, noise, rest * 4096 // 1000)

    def job_ids(self, at: datetime, count: int) -> list[str]:
        """So many new ids of one instant, in order, with one draw: a draw is a system call."""
        ms, rest = divmod(micros(at), 1000)
        row = _uuid7(ms, _NO_NOISE, rest * 4096 // 1000).encode() + b" "
        text, digits = bytearray(row * count), self.bytes(8 * count).hex().encode()
        # Written a column at a time, all ids at once: a loop over them would take several times as long.
        for place, column in enumerate(_NOISE_COLUMNS):
            text[column :: len(row)] = digits[place::16]
        first = _NOISE_COLUMNS[0]
        text[first :: len(row)] = text[first :: len(row)].translate(_AS_VARIANT)
        return sorted(text.decode().split())

    def token(self) -> str:
        """A lease token: 128 random bits as 32 hex digits."""
        return self.bytes(16).hex()

    def between(self, low: float, high: float) -> float:
        """A float in [low, high], evenly spread."""
        return self._jitter.uniform(low, high)

    def split(self, label: str) -> Entropy:
        """A source of its own for one part: from a seed it is repeatable and independent of the others."""
        if self._random is None:
            return Entropy()
        digest = hashlib.sha256(label.encode() + self._random.randbytes(16)).digest()
        return Entropy(int.from_bytes(digest[:8], "big"))


def derived_id(parent_id: str, fence: int, purpose: str, at: datetime) -> str:
    """The id of a job that a store makes from another one: the same answer on every try.

    Failure jobs and speculative copies are made inside a driver, which has no chance of its own;
    their ids follow from the parent, its fence and the reason, so a repeat makes no second job.
    """
    digest = hashlib.sha256(f"{parent_id}/{fence}/{purpose}".encode()).digest()
    return _uuid7(micros(at) // 1000, digest[2:10], int.from_bytes(digest[:2]) & 0xFFF)


def child_id(parent_id: str, name: str, index: int | None = None) -> str:
    """The id of a child, made from its parent's id and its name: the same answer on every try.

    The children of a map share a name and differ by their index, which fills the low bits: so the index of a
    store grows at its end only.
    """
    digest = hashlib.sha256(f"{parent_id}/{name}".encode()).digest()
    noise = digest[2:10] if index is None else digest[2:6] + index.to_bytes(4, "big")
    return _uuid7(int(parent_id.replace("-", "")[:12], 16), noise, int.from_bytes(digest[:2]) & 0xFFF)


def id_bytes(job_id: str) -> bytes:
    """The 16 bytes of an id."""
    return bytes.fromhex(job_id.replace("-", ""))


def id_text(packed: bytes) -> str:
    """The id of 16 bytes."""
    digits = packed.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _uuid7(unix_ms: int, noise: bytes, behind: int) -> str:
    """`behind`: the 12 bits that follow the version."""
    digits = f"{(unix_ms & _TIME) << 80 | _VERSION | behind << 64 | int.from_bytes(noise) & _NOISE:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


# As one number: to put it together takes half as long as to join texts.
_VERSION = 0x7000_8000_0000_0000_0000  # 7, and the RFC's variant: the first two bits of that digit are 10
_NOISE = 0x3FFF_FFFF_FFFF_FFFF
_TIME = 0xFFFF_FFFF_FFFF
_NO_NOISE = bytes(8)
_NOISE_COLUMNS = (*range(19, 23), *range(24, 36))
_AS_VARIANT = bytes.maketrans(b"0123456789abcdef", b"89ab" * 4)
