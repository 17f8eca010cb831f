"""Ids as people type them: the whole id, or some of its first or last digits.

Stores cannot search by a part of an id, so the newest and oldest jobs of each state are read, at most 2,000
each. Tables show the last digits because those are random; the first ones are a time, which jobs that were
enqueued together share.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from taskharbor.cli.exit_codes import NotFoundError, UsageError
from taskharbor.drivers import Driver
from taskharbor.drivers.messages import MAX_PAGE, Query
from taskharbor.errors import InvalidArgument, JobNotFound
from taskharbor.model.checks import check_id
from taskharbor.model.job import JobRecord
from taskharbor.model.state import JobState

_PART = re.compile(r"[0-9a-f-]+")
_LEAST = 6
_CHOSEN_BY_CHANCE = 8
"""Two jobs share this many last digits with a chance of one in four billion."""
_TIME_AND_VERSION = 16
_SHOWN = 5


@dataclass(slots=True)
class _Look:
    """The jobs that were read, and whether there are more."""

    jobs: dict[str, JobRecord] = field(default_factory=dict)
    is_whole: bool = True


async def whole_ids(
    driver: Driver, texts: Sequence[str], states: Sequence[JobState] = tuple(JobState)
) -> list[str]:
    """The ids that these texts mean; reads the store only if one is not whole.

    Raises:
        NotFoundError: a text is not part of an id, or no job matches.
        UsageError: it matches several jobs; the message names them.
    """
    look: _Look | None = None
    found = []
    for text in texts:
        part = text.strip("…").lower()
        if not _is_whole(part):
            _refuse_no_part(text, part)
            look = look or await _look(driver, states)
            part = _meant(part, look)
        found.append(part)
    return found


async def job_of(driver: Driver, text: str) -> JobRecord:
    """The job of an id, or of a part of it. Raises what `whole_ids` does, or JobNotFound."""
    [job_id] = await whole_ids(driver, [text])
    [job] = await driver.get([job_id])
    if job is None:
        raise JobNotFound(job_id)
    return job


def _is_whole(text: str) -> bool:
    try:
        check_id(text)
    except InvalidArgument:
        return False
    return True


def _refuse_no_part(text: str, part: str) -> None:
    """A text that cannot be an id: for a script the same as a job that is gone."""
    if not _PART.fullmatch(part) or len(_digits(part)) < _LEAST or len(_digits(part)) > 32:
        raise NotFoundError(
            f"{text[:100]!r} is not a job id: give a lower-case UUID, "
            f"or at least {_LEAST} of its first or last digits"
        )


async def _look(driver: Driver, states: Sequence[JobState]) -> _Look:
    look = _Look()
    for state in states:
        page = await driver.find(Query(states=(state,), newest_first=True, limit=MAX_PAGE, payloads=False))
        look.jobs |= {job.id: job for job in page.jobs}
        if page.next_cursor is not None:
            look.is_whole = False
            page = await driver.find(Query(states=(state,), limit=MAX_PAGE, payloads=False))
            look.jobs |= {job.id: job for job in page.jobs}
    return look


def _meant(part: str, look: _Look) -> str:
    digits = _digits(part)
    fitting = [job for job in look.jobs.values() if _fits(digits, _digits(job.id))]
    if not fitting:
        where = "" if look.is_whole else f" among the {len(look.jobs)} newest and oldest jobs"
        hint = "" if look.is_whole else "; give the whole id, as `-o ids` prints it"
        raise NotFoundError(f"no job id starts or ends with {part!r}{where}{hint}")
    if len(fitting) > 1:
        raise UsageError(f"{part!r} matches {len(fitting)} jobs; give more digits: {_named(fitting)}")
    if not look.is_whole and not _is_distinct(digits, _digits(fitting[0].id)):
        raise UsageError(
            f"{part!r} may match jobs that were not searched: "
            f"give the whole id, or its last {_CHOSEN_BY_CHANCE} digits"
        )
    return fitting[0].id


def _fits(digits: str, of: str) -> bool:
    return of.startswith(digits) or of.endswith(digits)


def _is_distinct(digits: str, of: str) -> bool:
    """Whether it has enough random digits."""
    by_chance = len(digits) if of.endswith(digits) else len(digits) - _TIME_AND_VERSION
    return by_chance >= _CHOSEN_BY_CHANCE


def _named(jobs: Sequence[JobRecord]) -> str:
    names = [f"{job.id} ({job.type}, {job.state.value})" for job in jobs[:_SHOWN]]
    more = [f"and {len(jobs) - _SHOWN} more"] if len(jobs) > _SHOWN else []
    return ", ".join(names + more)


def _digits(text: str) -> str:
    return text.replace("-", "")
