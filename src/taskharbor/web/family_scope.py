"""Families and tokens for some queues: a family may reach over queues, such a token must not.

It stores no job that makes jobs: those are in its payload, for any queue. And it sees no end in another
queue: each end is in one answer only, so the server itself reports those that the caller may not know.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from taskharbor.client.family import Sees, sees_all
from taskharbor.drivers.contract import Driver
from taskharbor.drivers.family_ends import report_ended
from taskharbor.drivers.messages import Exchanged
from taskharbor.errors import TaskHarborError
from taskharbor.events import EventBus
from taskharbor.model.bonds import FamilyEnd
from taskharbor.model.checks import MAX_BATCH
from taskharbor.model.edit import Edit
from taskharbor.model.job import JobRecord, NewJob
from taskharbor.model.workflow import SPAWN_TYPE
from taskharbor.web.auth import Principal
from taskharbor.web.problems import Problem

_NO_MAKERS = "a job that makes jobs needs a token for all queues; nothing was stored"


def seen_by(principal: Principal) -> Sees:
    """Which jobs of a family a caller may know."""
    return sees_all if principal.queues is None else lambda job: principal.may_use(job.queue)


def refuse_makers(principal: Principal, jobs: Iterable[NewJob]) -> None:
    """Raises Problem `forbidden` if a caller limited to some queues would store a job that makes jobs."""
    if principal.queues is not None and any(job.type == SPAWN_TYPE for job in jobs):
        raise Problem("forbidden", _NO_MAKERS)


def refuse_edit(principal: Principal, job: JobRecord, edit: Edit) -> None:
    """The same for a change that turns a job into one that makes jobs, or changes what it makes."""
    is_changed = edit.type is not UNSET or edit.payload is not UNSET
    makes = SPAWN_TYPE in (job.type, edit.type)
    if principal.queues is not None and is_changed and makes:
        raise Problem("forbidden", _NO_MAKERS)


# ------------------------------------------------------------------ ends


class OwnEnds:
    """The ends in the answers of driver verbs, as a caller limited to some queues may know them."""

    def __init__(self, principal: Principal, driver: Driver, events: EventBus) -> None:
        self._may_use = principal.may_use
        self._driver = driver
        self._events = events

    async def of(self, answer: Any) -> Any:
        """The answer of a verb that ends jobs, with its own ends only. The others are reported here."""
        if isinstance(answer, list):
            return await self._of_list(answer)
        if isinstance(answer, Exchanged):
            answer = replace(answer, settled=await self._of_list(answer.settled))
        return replace(answer, ended=await self._own(answer.ended)) if answer.ended else answer

    async def _of_list(self, answers: list[Any]) -> list[Any]:
        return [
            answer
            if isinstance(answer, TaskHarborError) or not answer.ended
            else replace(answer, ended=await self._own(answer.ended))
            for answer in answers
        ]

    async def _own(self, ended: Sequence[FamilyEnd]) -> tuple[FamilyEnd, ...]:
        if not ended:
            return ()
        report_ended([end for end in ended if not self._may_use(end.queue)], self._events)
        own = [end for end in ended if self._may_use(end.queue)]
        shown = await self._shown({end.parent for end in own if end.parent is not None})
        return tuple(end if end.parent in shown else replace(end, parent=None) for end in own)

    async def _shown(self, parents: set[str]) -> set[str]:
        """Those of these jobs that are in queues of the caller."""
        names, shown = sorted(parents), set[str]()
        for start in range(0, len(names), MAX_BATCH):
            for job in await self._driver.get(names[start : start + MAX_BATCH], payloads=False):
                if job is not None and self._may_use(job.queue):
                    shown.add(job.id)
        return shown
