"""One change for many jobs: count, ask, then go page by page; it can be interrupted."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from taskharbor.cli.columns import ago, answer_columns, counted
from taskharbor.cli.exit_codes import CONFLICT, DONE, NOT_FOUND, UsageError, worst
from taskharbor.cli.ids import whole_ids
from taskharbor.cli.search import find_all
from taskharbor.cli.session import Session
from taskharbor.errors import JobNotFound, TaskHarborError
from taskharbor.model.job import JobRecord
from taskharbor.model.search import Search
from taskharbor.views import instant_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The result for one id, and its exit code."""

    id: str
    result: str
    state: str | None
    note: str | None = None
    code: int = DONE

    def view(self) -> dict[str, Any]:
        return {"id": self.id, "result": self.result, "state": self.state, "note": self.note}


Step = Callable[[Sequence[str]], Awaitable[list[Answer]]]

_AT_ONCE = 500


@dataclass(slots=True)
class Found:
    """What a bulk change would affect."""

    total: int = 0
    by_queue: Counter[str] = field(default_factory=Counter)
    oldest: datetime | None = None

    def add(self, jobs: list[JobRecord]) -> None:
        self.total += len(jobs)
        self.by_queue.update(job.queue for job in jobs)
        first = min(job.created_at for job in jobs)
        self.oldest = first if self.oldest is None else min(self.oldest, first)

    def text(self, verb: str, now: datetime) -> str:
        queues = ", ".join(f"{name} {count}" for name, count in self.by_queue.most_common(5))
        oldest = ago(instant_text(self.oldest), now)
        return f"{counted(self.total, 'job')} would be {verb} ({queues}); oldest created {oldest}."


async def for_ids(session: Session, ids: Sequence[str], step: Step) -> int:
    """Do it for these ids; one result each."""
    ids = await whole_ids(session.driver, ids)
    answers: list[Answer] = []
    for start in range(0, len(ids), _AT_ONCE):
        answers += await step(ids[start : start + _AT_ONCE])
    session.out.items([answer.view() for answer in answers], answer_columns())
    return worst([answer.code for answer in answers])


async def for_matches(
    session: Session, where: Search, step: Step, *, verb: str, done: str, yes: bool, dry_run: bool
) -> int:
    """Do it for every matching job, after a summary and a question."""
    found = Found()
    async for jobs in find_all(session.driver, where):
        found.add(jobs)
    if found.total == 0:
        session.out.document(_summary(0, 0, 0, dry_run), ["no job matches; nothing was changed"])
        return DONE
    session.out.say(found.text(done, session.now()))
    if dry_run:
        session.out.document(_summary(found.total, 0, 0, dry_run), ["dry run: nothing was changed"])
        return DONE
    if not session.out.confirm(f"{verb} {counted(found.total, 'job')}?", yes=yes):
        session.out.document(_summary(found.total, 0, 0, dry_run), ["nothing was changed"])
        return DONE
    return await _go(session, where, step, found.total, done)


async def _go(session: Session, where: Search, step: Step, total: int, done: str) -> int:
    changed = skipped = 0
    try:
        with session.out.progress(done, total) as bar:
            async for ids in _parts(session, where):
                answers = await step(ids)
                refusals = sum(answer.code != DONE for answer in answers)
                changed, skipped = changed + len(answers) - refusals, skipped + refusals
                bar.advance(len(answers))
    except asyncio.CancelledError:
        session.out.say(f"interrupted: {changed} {done}, {skipped} skipped, the rest unchanged")
        raise
    lines = [f"done: {changed} {done}, {skipped} skipped."]
    session.out.document(_summary(total, changed, skipped, False), lines)
    return DONE


async def _parts(session: Session, where: Search) -> AsyncIterator[list[str]]:
    async for jobs in find_all(session.driver, where):
        ids = [job.id for job in jobs]
        for start in range(0, len(ids), _AT_ONCE):
            yield ids[start : start + _AT_ONCE]


def check_choice(ids: Sequence[str], where: Search, *, is_all: bool | None = None) -> None:
    """Check that there are ids or a search; all only with --all. None: there is no --all."""
    if ids and (not where.is_everything or is_all):
        raise UsageError("give job ids or --where, not both")
    if not ids and where.is_everything and not is_all:
        if is_all is None:
            raise UsageError("no jobs given: name their ids, or search: --where 'type:send_* queue:mail'")
        raise UsageError(
            "no dead letters given: name their ids, search: --where 'type:send_* queue:mail', or --all"
        )


def refused(job_id: str, error: TaskHarborError) -> Answer:
    """Why one id was not changed."""
    is_missing = isinstance(error, JobNotFound)
    return Answer(
        id=job_id,
        result="not_found" if is_missing else "refused",
        state=getattr(error, "state", None),
        code=NOT_FOUND if is_missing else CONFLICT,
        note=str(error),
    )


def _summary(matched: int, changed: int, skipped: int, dry_run: bool) -> dict[str, Any]:
    return {"matched": matched, "changed": changed, "skipped": skipped, "dry_run": dry_run}
