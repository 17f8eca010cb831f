"""One step of families: what it needs is locked and read, changed in memory, and written with one statement.

The rules in `drivers/families.py` ask for other jobs as they go. A question that cannot be answered from
memory ends the run: what is missing is read, and the rules run again from the beginning, on the records as
they were stored. So a step is nothing but questions and answers, on a connection of any library:
`asked` is a generator of statements, and its caller sends the rows.

**Locks.** The row of a root in `family` is the lock of its tree. `lock_step` takes those of all trees that
take part, then the jobs, all in the order of docs/reference/postgres.md. No other statement of a step waits:
what the rules need besides, `widen_step` locks without waiting. If another session has it, the step
is `Busy`: it lets go of everything and begins again with all that it has needed so far.

Jobs of other trees are only read; a change that is due there is owed, and made by a step that begins with its
lock.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from taskharbor.drivers.postgres.family_records import FamilyRecords, Missing
from taskharbor.drivers.postgres.family_rows import (
    child_arguments,
    family_row,
    is_mere_child,
    new_row,
    record_in,
)
from taskharbor.drivers.postgres.faults import Busy
from taskharbor.drivers.postgres.rows import IS_CHILD, IS_RELATED
from taskharbor.drivers.postgres.statements import Statements, as_array
from taskharbor.drivers.postgres.unit_of_work import Key, body_of, inserted, is_other_work
from taskharbor.model.checks import is_id
from taskharbor.model.clock import instant
from taskharbor.model.family_steps import family_of
from taskharbor.model.job import JobRecord, NewJob
from taskharbor.model.queue import IDEMPOTENCY_WINDOW, QueueSettings, rules_of
from taskharbor.model.state import TERMINAL, JobState
from taskharbor.model.transitions import waiting_state

_T = TypeVar("_T")
_TRIES = 4  # then it waits, and the server ends a circle if there is one


class Ask(NamedTuple):
    """A statement that a step wants answered."""

    statement: str
    arguments: list[Any]


Asked = Generator[Ask, Sequence[Any], _T]


class FamilyStep(FamilyRecords):
    """Some trees of a store at one instant, under lock until the transaction ends."""

    def __init__(self, statements: Statements, *, carries: bool = True, in_transaction: bool = False) -> None:
        """`in_transaction`: of the caller's. It cannot begin again, and waits for what it needs later."""
        super().__init__(statements, carries=carries)
        self._wanted: dict[str, None] = {}
        self._wanted_keys: dict[Key, None] = {}
        self._tries_left = 0 if in_transaction else _TRIES

    # ------------------------------------------------------------------ questions and answers

    def asked(
        self,
        ids: Iterable[str],
        now: Any,
        change: Callable[[FamilyStep], _T],
        *,
        once: Sequence[tuple[str, bytes, str]] = (),
        queues: Sequence[str] = (),
        seqs: int = 0,
        keys: Iterable[Key] = (),
        admits: Callable[[], Sequence[NewJob]] | None = None,
        always_wake: bool = False,
        new_ids: Iterable[str] = (),
        owed: tuple[Sequence[Any], int] | None = None,
    ) -> Asked[_T]:
        """The whole step: lock, change, write. `admits`: the new jobs that spend rates, after the change.

        `new_ids`: of children that are trusted to be new; if one is known, the step fails (`KNOWN_ID`).
        `owed`: rows of `next_owed` to be carried out, and for how many jobs.
        """
        self._forget(self._sql)
        given = [] if owed is None else self.take_owed(*owed)
        ids = list(dict.fromkeys([*ids, *given, *self._wanted]))
        self._wanted.update(dict.fromkeys(ids))
        self._wanted_keys.update(dict.fromkeys(keys))
        new_ids = set(new_ids)
        rows = yield Ask(
            self._sql["lock_step"],
            [_array(ids), *self._key_arrays(), _json_or_none(once), list(queues), seqs, now],
        )
        self._read_first(rows)
        self._absent.update(set(ids) - self._stored.keys() - self._aliases.keys())
        self._absent.update(new_ids)
        self._known_keys.update(self._wanted_keys)
        answer = yield from self._changed(change)
        if admits is not None and self._has_rates() and (new := admits()):
            refused = yield Ask(
                self._sql["admit_families"],
                [as_array([job.id for job in new]), [job.queue for job in new], self.now],
            )
            if refused:
                self.refusal = refused[0]
                return answer
        written = self._written_step(always_wake, trusts=bool(new_ids))
        if children := [job for job in self._written.values() if self._is_new_child(job)]:
            yield Ask(self._sql["add_children"], [self.now, bool(new_ids), *child_arguments(children)])
        if written:
            yield Ask(self._sql["write_families"], [written])
        return answer

    def _changed(self, change: Callable[[FamilyStep], _T]) -> Asked[_T]:
        while True:
            self._begin()
            try:
                return change(self)
            except Missing as missing:
                yield from self._read(missing)

    def _read(self, missing: Missing) -> Asked[None]:
        if missing.page is not None:
            rows = yield Ask(self._sql["family_page"], list(missing.page))
            self._keep_page(missing.page, [(row[0], row[1]) for row in rows])
            return
        self._wanted.update(dict.fromkeys(missing.ids))
        if missing.key is not None:
            self._wanted_keys[missing.key] = None
            raise Busy
        rows = yield Ask(
            self._sql["widen_step"],
            [_array(missing.ids), as_array(self._roots), not self._tries_left],
        )
        if not rows:
            self._tries_left = max(0, self._tries_left - 1)
            raise Busy
        self._read_keys(msgspec.json.decode(rows[0][0])[0])
        self._read_jobs(rows[1:])
        self._absent.update(set(missing.ids) - self._stored.keys())

    def _key_arrays(self) -> tuple[list[str], list[bytes]]:
        """The keys of new jobs, as two arguments."""
        return [queue for queue, _ in self._wanted_keys], [key for _, key in self._wanted_keys]

    def _read_first(self, rows: Sequence[Any]) -> None:
        at, aliases, keys, settings, roots, once, seqs = msgspec.json.decode(rows[0][0])
        self.now = instant(at)
        self._aliases = dict(aliases or ())
        self._read_keys(keys)
        self._rules = {
            queue: rules_of(msgspec.convert(given, QueueSettings)) for queue, given in settings or ()
        }
        self._roots = roots
        self._once = {(queue, bytes.fromhex(name)): job_id for queue, name, job_id in once or ()}
        self._drawn = seqs
        self._read_jobs(rows[1:])

    def _read_keys(self, keys: Sequence[Any] | None) -> None:
        for queue, name, holder, blocked in keys or ():
            self._keys[queue, bytes.fromhex(name)] = (holder, blocked)
            self._known_keys.add((queue, bytes.fromhex(name)))

    def _read_jobs(self, rows: Sequence[Any]) -> None:
        for [text] in rows:
            job, links, is_locked, parked, counted = record_in(text)
            if job.state is JobState.SCHEDULED:
                job = replace(job, state=waiting_state(job.run_at, self.now))
            if job.id in self._locked:
                continue
            self._stored[job.id] = job
            self._links_read[job.id] = links
            self._parked_read[job.id] = parked
            self._counted[job.id] = counted
            self._absent.discard(job.id)
            if is_locked:
                self._locked.add(job.id)

    # ------------------------------------------------------------------ writing

    def _written_step(self, always_wake: bool, *, trusts: bool) -> str | None:
        """Everything that has changed, for `write_families`; None: nothing has."""
        touched = {**self._amended, **self._written}
        for job in touched.values():
            self._links[job.id] = _with_bonds(job, self._links.get(job.id, 0))
        related = [job for job in touched.values() if self._links.get(job.id, 0) & IS_RELATED]
        changed = [job for job in touched.values() if job.id in self._stored and self._is_changed(job)]
        changed.sort(key=self._place_among_ended)
        new = [job for job in self._written.values() if job.id not in self._stored]
        step = {
            "remembered": self._remembered_jobs(),
            "ended": self._ended,
            "revived": self._revived,
            "merged": self._merged,
            "dropped": self._dropped,
            "bodies": [body_of(job) for job in changed if is_other_work(job, self._stored[job.id])],
            "new": [self._new(job) for job in new if not (job.id in self._made or self._is_new_child(job))],
            "families": [
                family_row(job, self._parked.get(job.id, ()), self._counted.get(job.id, 0)) for job in related
            ],
            "over": [job.id for job in related if job.state in TERMINAL and self._counted.get(job.id)],
            "states": [self._state(job) for job in changed],
            "made": [inserted(job) for job in new if job.id in self._made],
            "aliases": list(self._new_aliases.items()),
            "keys": [(*key, *now) for key, was in self._keys.items() if (now := self._holders(key)) != was],
            "once": [(*key, *self._kept_key(key)) for key in self._once],
            "unparked": sorted(self._unparked),
            "edges": [(dep, *edge) for dep, edges in self._edges.items() for edge in edges],
            "notes": [note for job in related for note in self._new_notes(job)],
            "owed": [
                *((no, owed.kind, owed.job_id, owed.cursor) for no, owed in self._owed.items()),
                *((no, None, None, None) for no in self._settled_owed if no > 0),
            ],
            "woken": sorted({job.queue for job in self._written.values() if job.state is JobState.READY}),
            "cancels": self._cancels,
        }
        step = {name: value for name, value in step.items() if value}
        if not step:
            return None
        about = {"now": self.now, "always_wake": always_wake, "trusts": trusts}
        return msgspec.json.encode({**step, **about}).decode()

    @property
    def lowered(self) -> list[str]:
        """Parents that have fewer open children by this step, and some left.

        Calls that settle by sets wait for no lock. They may have ended the rest since this step read its
        jobs, and have not seen what this step ends.
        """
        touched = {**self._amended, **self._written}
        return [
            job.id
            for job in touched.values()
            if (before := self._stored.get(job.id)) is not None
            and job.state not in TERMINAL
            and 0 < family_of(job).open < family_of(before).open
        ]

    def _has_rates(self) -> bool:
        return any(rules.enqueue_rate is not None for rules in self._rules.values())

    def _is_changed(self, job: JobRecord) -> bool:
        """Whether its row in `job_state` must be written: not for a mere count."""
        return job.id in self._written or self._links[job.id] != self._links_read[job.id]

    def _new(self, job: JobRecord) -> dict[str, Any]:
        links = self._links.get(job.id, 0) | (1 if job.key is not None else 0)
        return new_row(job, links)

    def _is_new_child(self, job: JobRecord) -> bool:
        """Whether it is stored now, and is a child and nothing else: then it is stored by the set."""
        return (
            job.id not in self._stored and job.id not in self._made and bool(self._links[job.id] & IS_CHILD)
        )

    def _kept_key(self, key: Key) -> tuple[str | None, Any]:
        """The job that an idempotency key leads to, and until when; no job: as it was before."""
        job_id = self._remembered.get(key)
        if job_id is None:
            return None, None
        is_over = job_id in self._ended or job_id in self._gone
        return job_id, self.now + IDEMPOTENCY_WINDOW if is_over else None

    def _new_notes(self, job: JobRecord) -> list[tuple[Any, ...]]:
        before = self._stored.get(job.id)
        known = {note.name for note in before.notes} if before is not None else set()
        return [
            (job.id, note.name, no, note.at, note.data)
            for no, note in enumerate(job.notes)
            if note.name not in known
        ]


def _json_or_none(value: Sequence[Any]) -> str | None:
    return msgspec.json.encode(value).decode() if value else None


def _array(ids: Iterable[str]) -> str:
    """Without those that no job can have."""
    return as_array([one for one in ids if is_id(one)])


def _with_bonds(job: JobRecord, links: int) -> int:
    """The link_flags of a job, with what its bonds say. A job that has a row in `family` keeps it."""
    if links & IS_RELATED or (job.bonds is None and job.family is None and not job.notes):
        return links
    if is_mere_child(job.bonds) and job.family is None and not job.notes:
        return links | IS_CHILD
    return links & ~IS_CHILD | IS_RELATED
