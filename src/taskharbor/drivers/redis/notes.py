"""Notes of running jobs: one script for new ones under leases that hold, a unit of work for the rest."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from taskharbor.drivers import family_verbs
from taskharbor.drivers.messages import Noted
from taskharbor.drivers.redis.encoding import now_arg, token_bytes
from taskharbor.drivers.redis.family_unit import FamilyUnit
from taskharbor.drivers.redis.optimistic import OptimisticStep
from taskharbor.drivers.redis.snapshot import ask_for_job
from taskharbor.errors import BrokenBond, JobNotInflight, LeaseLost
from taskharbor.model.bonds import MAX_NOTE_BYTES, MAX_NOTES
from taskharbor.model.checks import is_id
from taskharbor.model.clock import instant
from taskharbor.model.entropy import id_bytes
from taskharbor.model.job import Note

NoteAnswer = Noted | LeaseLost | BrokenBond


class Notes:
    """The verb `note` of one driver handle. The contract has seen to it that every note has a lease."""

    def __init__(self, steps: OptimisticStep) -> None:
        self._steps = steps

    async def note(self, notes: Sequence[Note], now: datetime | None) -> list[NoteAnswer]:
        if not all(map(_has_id, notes)):
            return await self._note_with_care(notes, now)
        reply = await self._steps.primary.run_in_epoch(
            "note", [self._steps.keys.data], now_arg(now), MAX_NOTES, MAX_NOTE_BYTES, *_arguments(notes)
        )
        at = instant(int(reply[0]))
        new: list[NoteAnswer | None] = [
            None if version == b"S" else _noted(note, at, version)
            for note, version in zip(notes, reply[1:], strict=True)
        ]
        left = [note for note, answer in zip(notes, new, strict=True) if answer is None]
        rest = iter(await self._note_with_care(left, now) if left else ())
        return [next(rest) if answer is None else answer for answer in new]

    async def _note_with_care(self, notes: Sequence[Note], now: datetime | None) -> list[NoteAnswer]:
        asked = dict.fromkeys(
            ask_for_job(note.lease.job_id) for note in notes if note.lease and _has_id(note)
        )

        def decide(unit: FamilyUnit) -> list[NoteAnswer]:
            return [_note_one(unit, note) for note in notes]

        return await self._steps.run(list(asked), decide, now)


def _has_id(note: Note) -> bool:
    return note.lease is None or is_id(note.lease.job_id)


def _arguments(notes: Sequence[Note]) -> list[Any]:
    arguments: list[Any] = []
    for note in notes:
        if (lease := note.lease) is not None:
            token = token_bytes(lease.token)
            arguments += (id_bytes(lease.job_id), token, lease.worker_id or "", note.name, note.data)
    return arguments


def _noted(note: Note, at: datetime, version: int) -> Noted:
    return Noted("" if note.lease is None else note.lease.job_id, note.name, note.data, at, version)


def _note_one(unit: FamilyUnit, note: Note) -> NoteAnswer:
    if note.lease is not None and not is_id(note.lease.job_id):
        return JobNotInflight(note.lease.job_id)
    return family_verbs.note_one(unit, note)
