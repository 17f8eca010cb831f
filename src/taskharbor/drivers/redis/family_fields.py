"""The fields of jobs with bonds, a family or notes, as Lua and Python both read them.

Such a job has the bit `FAMILY` in the state byte of its head: scripts look at these fields only then, so a
plain job has the same bytes and costs the same as without them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from taskharbor.drivers.families import Owed, OwedKind
from taskharbor.model.bonds import Bonds, Family
from taskharbor.model.clock import instant, micros
from taskharbor.model.entropy import id_bytes, id_text
from taskharbor.model.family_steps import family_of
from taskharbor.model.job import JobRecord, Note

HAS_PARENT, IS_SPARED, HAS_DEADLINE = 1, 2, 4
"""The first byte of the bonds, for exchange.lua."""
IS_STOPPING, SPARES, HAS_FOLLOWERS = 1, 2, 4
"""The first byte of the family, for exchange.lua and read.lua."""

_BONDS = struct.Struct(">B16sQ")  # flags, parent, deadline
_OWED = struct.Struct(">c16sQ")  # kind, job, cursor
_PLACE = struct.Struct(">Q16s")  # seq, id
_NO_PARENT = bytes(16)
_KINDS: dict[bytes, OwedKind] = {b"r": "release", b"s": "stop", b"e": "events"}
_SIGNS = {kind: sign for sign, kind in _KINDS.items()}

_encode = msgspec.msgpack.Encoder().encode
_decode_bonds = msgspec.msgpack.Decoder(tuple[Bonds, str | None]).decode
_decode_family = msgspec.msgpack.Decoder(Family).decode
_decode_notes = msgspec.msgpack.Decoder(list[tuple[str, bytes, int]]).decode


class FamilyFields(NamedTuple):
    """The stored fields `B`, `f`, `O` and `N` of one job; None where there is none."""

    bonds: bytes | None
    family: bytes | None
    open: bytes | None
    notes: bytes | None


def fields_in(parts: Sequence[bytes]) -> FamilyFields | None:
    """What `family_fields` in prelude.lua returns; None for an empty text."""
    return FamilyFields(*(part or None for part in parts)) if parts else None


def has_family_fields(job: JobRecord) -> bool:
    """Whether the head of a job has the bit `FAMILY`."""
    return job.bonds is not None or job.family is not None or bool(job.notes)


def with_fields(job: JobRecord, fields: FamilyFields) -> JobRecord:
    """The record with what these fields hold."""
    bonds, root = (None, None) if fields.bonds is None else bonds_in(fields.bonds)
    return replace(
        job,
        bonds=bonds,
        root=root,
        family=None if fields.family is None else family_in(fields.family, int(fields.open or 0)),
        notes=() if fields.notes is None else notes_in(fields.notes),
    )


# ------------------------------------------------------------------ bonds, family, notes


def bonds_bytes(bonds: Bonds, root: str | None) -> bytes:
    flags = HAS_PARENT if bonds.parent is not None else 0
    flags |= IS_SPARED if bonds.when != "success" else 0
    flags |= HAS_DEADLINE if bonds.deadline is not None else 0
    front = _BONDS.pack(
        flags,
        _NO_PARENT if bonds.parent is None else id_bytes(bonds.parent),
        0 if bonds.deadline is None else micros(bonds.deadline),
    )
    rest = replace(bonds, parent=None, deadline=None)
    return front + _encode((rest, None if root == bonds.parent else root))


def bonds_in(packed: bytes) -> tuple[Bonds, str | None]:
    """The bonds and the root of a job."""
    flags, parent, deadline = _BONDS.unpack_from(packed)
    rest, root = _decode_bonds(packed[_BONDS.size :])
    if not flags & (HAS_PARENT | HAS_DEADLINE):
        return rest, root
    of = id_text(parent) if flags & HAS_PARENT else None
    at = instant(deadline) if flags & HAS_DEADLINE else None
    return replace(rest, parent=of, deadline=at), root or of


def family_bytes(family: Family) -> bytes:
    """Everything but the count of open children, which has a field of its own: exchange.lua changes it."""
    flags = IS_STOPPING if family.stopping is not None else 0
    flags |= SPARES if family.spares else 0
    flags |= HAS_FOLLOWERS if family.followers else 0
    return bytes((flags,)) + _encode(family if not family.open else replace(family, open=0))


def family_in(packed: bytes, open_: int) -> Family:
    family = _decode_family(packed[1:])
    return replace(family, open=open_) if open_ else family


def notes_bytes(notes: Sequence[Note]) -> bytes:
    return _encode([(note.name, note.data, 0 if note.at is None else micros(note.at)) for note in notes])


def notes_in(packed: bytes) -> tuple[Note, ...]:
    return tuple(Note(name, data, instant(at)) for name, data, at in _decode_notes(packed))


def family_parts(job: JobRecord) -> dict[bytes, bytes | None]:
    """The fields that follow from a record, by their prefix."""
    parts: dict[bytes, bytes | None] = {}
    if job.bonds is not None:
        parts[b"B"] = bonds_bytes(job.bonds, job.root)
    if job.family is not None:
        parts[b"f"] = family_bytes(family_of(job))
    if job.notes:
        parts[b"N"] = notes_bytes(job.notes)
    return parts


# ------------------------------------------------------------------ members of `relatives`

CHILD, EVENT, DEPENDENT = b"c", b"v", b"d"
"""What a member says: the job is a child, an open event, or a dependent of the one named first."""


def place_bytes(job: JobRecord) -> bytes:
    """Seq and id: the order of relatives, and the member of a job in `deadlines`."""
    return _PLACE.pack(job.seq, id_bytes(job.id))


def places_in(packed: bytes) -> list[tuple[int, str]]:
    """Seq and id of each."""
    return [(seq, id_text(job_id)) for seq, job_id in _PLACE.iter_unpack(packed)]


# ------------------------------------------------------------------ what is owed


def owed_bytes(owed: Owed) -> bytes:
    return _OWED.pack(_SIGNS[owed.kind], id_bytes(owed.job_id), owed.cursor)


def owed_in(no: int, packed: bytes) -> Owed:
    sign, job_id, cursor = _OWED.unpack(packed)
    return Owed(no, _KINDS[sign], id_text(job_id), cursor)


def open_of(job: JobRecord | None) -> int:
    """The open children that a record shows."""
    return 0 if job is None else family_of(job).open
