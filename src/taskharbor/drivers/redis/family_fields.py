"""The fields of jobs with bonds, a family or notes, as Lua and Python both read them.

A job with a parent has the bit `CHILD` in the state byte of its head, and its root and parent at the end of
the head: most children have nothing else. One with other bonds, a family or notes has the bit `FAMILY`:
scripts look at these fields only then. So a plain job has the same bytes and costs the same as without them.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from taskharbor.drivers.families import Owed, OwedKind
from taskharbor.model.bonds import Bonds, Family, Stop, is_spared
from taskharbor.model.clock import instant, micros
from taskharbor.model.entropy import id_bytes, id_text
from taskharbor.model.family_steps import family_of
from taskharbor.model.job import JobRecord, Note

IS_SPARED, HAS_DEADLINE, BY_OTHERS = 1, 2, 4
"""The first byte of the bonds, for scripts."""
IS_STOPPING, SPARES, IS_DONE, ENDS_WELL = 1, 2, 4, 8
"""The first byte of the family, for scripts. The last: its own work completed, and no child of it failed."""

RELATION_SIZE = 32
"""The end of the head of a job that has a parent: the ids of its root and of its parent."""

_BONDS = struct.Struct(">BQH")  # flags, deadline, how many ids follow: those that it comes after
_FAMILY = struct.Struct(">BIIIIII")  # flags, waits for, total, failed, excused, cancelled, followers
_OWED = struct.Struct(">c16sQ")  # kind, job, cursor
_PLACE = struct.Struct(">Q16s")  # seq, id
_SIZES = struct.Struct(">II")  # how many notes, bytes of their data
_NUMBER, _AT = struct.Struct(">I"), struct.Struct(">Q")
_KINDS: dict[bytes, OwedKind] = {b"r": "release", b"s": "stop", b"e": "events"}
_SIGNS = {kind: sign for sign, kind in _KINDS.items()}

_encode = msgspec.msgpack.Encoder().encode
_decode_bonds = msgspec.msgpack.Decoder(Bonds).decode


class _Rest(msgspec.Struct, array_like=True, frozen=True):
    """What scripts need not read of a family."""

    is_done: bool
    own: Literal["", "completed", "failed", "cancelled"]
    stopping: Stop | None
    spares: bool
    failures: tuple[str, ...]


_decode_rest = msgspec.msgpack.Decoder(_Rest).decode
_NO_REST = (False, "", None, True, ())


class FamilyFields(NamedTuple):
    """The stored fields `B`, `f`, `O` of a job, None where there is none; name and value of its notes."""

    bonds: bytes | None
    family: bytes | None
    open: bytes | None
    notes: Sequence[bytes]


def fields_in(parts: Sequence[Any]) -> FamilyFields | None:
    """What `family_fields` in prelude.lua returns; None for an empty text."""
    if not parts:
        return None
    bonds, family, open_, notes = parts
    return FamilyFields(bonds or None, family or None, open_ or None, notes or ())


def has_family_fields(job: JobRecord) -> bool:
    """Whether the head of a job has the bit `FAMILY`."""
    return job.family is not None or bool(job.notes) or not is_only_child(job.bonds)


def is_only_child(bonds: Bonds | None) -> bool:
    """Whether the head says it all: there are no bonds, or a parent and nothing else."""
    return bonds is None or (bonds.parent is not None and bonds == Bonds(parent=bonds.parent))


def with_fields(job: JobRecord, relation: bytes, fields: FamilyFields | None) -> JobRecord:
    """The record with what the end of its head and these fields hold."""
    bonds, root = relation_in(relation) if relation else (None, None)
    if fields is None:
        return replace(job, bonds=bonds, root=root)
    if fields.bonds is not None:
        bonds = bonds_in(fields.bonds, None if bonds is None else bonds.parent)
    return replace(
        job,
        bonds=bonds,
        root=root,
        family=None if fields.family is None else family_in(fields.family, int(fields.open or 0)),
        notes=notes_in(fields.notes),
    )


# ------------------------------------------------------------------ bonds, family, notes


def relation_bytes(job: JobRecord) -> bytes:
    """The end of the head of a job: nothing without a parent."""
    parent = None if job.bonds is None else job.bonds.parent
    return b"" if parent is None else id_bytes(job.root or parent) + id_bytes(parent)


@lru_cache(maxsize=1024)
def relation_in(packed: bytes) -> tuple[Bonds, str]:
    """The bonds of a job that has a parent and no other bond, and its root."""
    return Bonds(parent=id_text(packed[16:])), id_text(packed[:16])


def bonds_bytes(bonds: Bonds) -> bytes:
    """All bonds but the parent."""
    flags = IS_SPARED if is_spared(bonds) else 0
    flags |= HAS_DEADLINE if bonds.deadline is not None else 0
    flags |= BY_OTHERS if bonds.done_by != "worker" else 0
    deadline = 0 if bonds.deadline is None else micros(bonds.deadline)
    front = _BONDS.pack(flags, deadline, len(bonds.after))
    rest = replace(bonds, parent=None, after=(), deadline=None)
    return b"".join((front, *map(id_bytes, bonds.after), _encode(rest)))


def bonds_in(packed: bytes, parent: str | None) -> Bonds:
    flags, deadline, count = _BONDS.unpack_from(packed)
    end = _BONDS.size + 16 * count
    after = tuple(id_text(packed[at : at + 16]) for at in range(_BONDS.size, end, 16))
    at = instant(deadline) if flags & HAS_DEADLINE else None
    return replace(_decode_bonds(packed[end:]), parent=parent, after=after, deadline=at)


def family_bytes(family: Family) -> bytes:
    """Everything but the count of open children, which has a field of its own: exchange.lua changes it."""
    flags = IS_STOPPING if family.stopping is not None else 0
    flags |= SPARES if family.spares else 0
    flags |= IS_DONE if family.is_done else 0
    flags |= ENDS_WELL if family.own == "completed" and not (family.stopping or family.failed) else 0
    counts = (family.waits_for, family.total, family.failed, family.excused, family.cancelled)
    rest = (family.is_done, family.own, family.stopping, family.spares, family.failures)
    packed = _FAMILY.pack(flags, *counts, family.followers)
    return packed if rest == _NO_REST else packed + _encode(rest)


def family_in(packed: bytes, open_: int) -> Family:
    _, waits_for, total, failed, excused, cancelled, followers = _FAMILY.unpack_from(packed)
    family = Family(
        waits_for=waits_for,
        total=total,
        open=open_,
        failed=failed,
        excused=excused,
        cancelled=cancelled,
        followers=followers,
    )
    if len(packed) == _FAMILY.size:
        return family
    rest = _decode_rest(packed[_FAMILY.size :])
    return replace(
        family,
        is_done=rest.is_done,
        own=rest.own,
        stopping=rest.stopping,
        spares=rest.spares,
        failures=rest.failures,
    )


def notes_in(parts: Sequence[bytes]) -> tuple[Note, ...]:
    """Notes from their names and values, in turns."""
    return tuple(
        Note(name.decode(), value[8:], instant(_AT.unpack_from(value)[0]))
        for name, value in zip(parts[::2], parts[1::2], strict=True)
    )


def note_fields(packed: bytes, notes: Sequence[Note], start: int) -> dict[bytes, bytes]:
    """The fields of a job with these notes that are new from this place on; note.lua writes the same."""
    if start == len(notes):
        return {}
    fields = {b"N" + packed: _SIZES.pack(len(notes), sum(len(note.data) for note in notes))}
    for number, note in enumerate(notes[start:], start + 1):
        name = note.name.encode()
        fields[b"N" + packed + _NUMBER.pack(number)] = name
        fields[b"M" + packed + name] = _AT.pack(0 if note.at is None else micros(note.at)) + note.data
    return fields


def note_parts(packed: bytes, fields: Mapping[bytes, bytes]) -> list[bytes]:
    """Name and value of each note of a job, among the fields that were read."""
    sizes = fields.get(b"N" + packed)
    count = 0 if sizes is None else _SIZES.unpack(sizes)[0]
    names = [fields[b"N" + packed + _NUMBER.pack(number)] for number in range(1, count + 1)]
    return [part for name in names for part in (name, fields[b"M" + packed + name])]


def family_parts(job: JobRecord) -> dict[bytes, bytes | None]:
    """The fields that follow from a record, by their prefix."""
    parts: dict[bytes, bytes | None] = {}
    if job.bonds is not None and not is_only_child(job.bonds):
        parts[b"B"] = bonds_bytes(job.bonds)
    if job.family is not None:
        parts[b"f"] = family_bytes(family_of(job))
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
