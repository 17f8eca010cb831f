"""A snapshot of some jobs: the fields that read.lua returned, and the records in them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import datetime

from taskharbor.drivers.lifecycle import JobsOfKey
from taskharbor.drivers.redis.encoding import FAMILY, alias_in, record_of
from taskharbor.drivers.redis.family_fields import FamilyFields, note_parts
from taskharbor.model.clock import instant
from taskharbor.model.entropy import id_bytes, id_text
from taskharbor.model.job import JobRecord

_ENDS = struct.Struct(">Q")
_LENGTH = struct.Struct(">H")
_KEY_SIGNS = (b"w", b"r", b"b")  # waiting, running, blocked


def scoped(queue: str, key: bytes) -> bytes:
    """A job key qualified by its queue."""
    return queue.encode() + b"\0" + key


def ask_for_job(job_id: str) -> bytes:
    return b"j" + id_bytes(job_id)


class Snapshot:
    """Fields of the data hash at one instant. An absent field is None."""

    def __init__(self, reply: Sequence[bytes | int], asked: Sequence[bytes] = ()) -> None:
        self.now: datetime = instant(int(reply[0]))
        self.first_seq = int(reply[1])
        self.seqs = 0  # how many new seqs were issued for it
        self.fields: dict[bytes, bytes] = {}
        self.asked: set[bytes] = set()
        self.reads = 0
        self.add(reply, asked)

    def add(self, reply: Sequence[bytes | int], asked: Sequence[bytes]) -> None:
        """More fields, read later. The guards of the step notice what has changed in between."""
        parts = [part for part in reply[2:] if isinstance(part, bytes)]
        self.fields |= zip(parts[::2], parts[1::2], strict=True)
        self.asked.update(asked)
        self.reads += 1

    def has_read(self, job_id: str) -> bool:
        """Whether it is known if there is a job with this id."""
        packed = id_bytes(job_id)
        return b"h" + packed in self.fields or b"j" + packed in self.asked

    def record(self, job_id: str) -> JobRecord | None:
        packed = id_bytes(job_id)
        head, body = self.fields.get(b"h" + packed), self.fields.get(b"b" + packed)
        if head is None or body is None:
            return None
        key = self.fields.get(b"K" + packed)
        return record_of(
            packed,
            head,
            body,
            story=self.fields.get(b"s" + packed),
            result=self.fields.get(b"r" + packed),
            progress=self.fields.get(b"p" + packed),
            key=None if key is None else key.partition(b"\0")[2],
            of_family=self._of_family(packed) if head[0] & FAMILY else None,
        )

    def _of_family(self, packed: bytes) -> FamilyFields:
        stored = self.fields
        bonds, family, open_ = (stored.get(prefix + packed) for prefix in (b"B", b"f", b"O"))
        return FamilyFields(bonds, family, open_, note_parts(packed, stored))

    def jobs(self) -> list[str]:
        """The ids of all records in it."""
        return [
            id_text(field[1:])
            for field, value in self.fields.items()
            if field[:1] == b"h" and len(field) == 17 and alias_in(value) is None
        ]


# ------------------------------------------------------------------ small lists in one field


def packed_jobs_of_key(of_key: JobsOfKey) -> bytes:
    return b"".join(
        sign + id_bytes(job_id) for sign, job_id in zip(_KEY_SIGNS, of_key, strict=True) if job_id is not None
    )


def jobs_of_key_in(packed: bytes) -> JobsOfKey:
    ids = {packed[at : at + 1]: id_text(packed[at + 1 : at + 17]) for at in range(0, len(packed), 17)}
    return JobsOfKey(*map(ids.get, _KEY_SIGNS))


def packed_keys(keys: Sequence[bytes]) -> bytes:
    return b"".join(_LENGTH.pack(len(key)) + key for key in keys)


def keys_in(packed: bytes) -> list[bytes]:
    keys, at = [], 0
    while at < len(packed):
        (size,) = _LENGTH.unpack_from(packed, at)
        keys.append(packed[at + 2 : at + 2 + size])
        at += 2 + size
    return keys


def packed_ids(ids: Sequence[str]) -> bytes:
    return b"".join(map(id_bytes, ids))


def packed_memory(job_id: str, ends: int) -> bytes:
    """The value of an idempotency key: its job, and when the key expires (0: not yet known)."""
    return id_bytes(job_id) + _ENDS.pack(ends)


def packed_copy(copy_id: str, fence: int) -> bytes:
    """The last copy of a job, and the fence of the run it belongs to."""
    return id_bytes(copy_id) + _ENDS.pack(fence)


def copy_in(packed: bytes) -> tuple[str, int]:
    return memory_in(packed)


def memory_in(packed: bytes) -> tuple[str, int]:
    return id_text(packed[:16]), _ENDS.unpack_from(packed, 16)[0]
