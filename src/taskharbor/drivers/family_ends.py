"""Ends that no attempt reports: which answer reports them, and what it says.

`families.py` notes them in the step that ends a job. Each is in exactly one answer; who gets it reports it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

from taskharbor.drivers.messages import FamilyEnd, Reclaimed
from taskharbor.errors import TaskHarborError
from taskharbor.events import DeadlineMissed, EventBus, JobSkipped, WorkflowEnded

_Answer = TypeVar("_Answer")


def with_ended(answers: list[_Answer], ended: Sequence[FamilyEnd]) -> list[_Answer]:
    """The answers of a call, the last that is no error with these ends."""
    if ended:
        for place in reversed(range(len(answers))):
            answer: Any = answers[place]
            if not isinstance(answer, TaskHarborError):
                answers[place] = replace(answer, ended=(*answer.ended, *ended))
                break
    return answers


def without_ended(answers: Sequence[Reclaimed]) -> tuple[list[Reclaimed], tuple[FamilyEnd, ...]]:
    """The answers of a reclaim inside a claim, and the ends that the answer of the claim has instead."""
    return [replace(answer, ended=()) if answer.ended else answer for answer in answers], ended_in(answers)


def ended_in(answers: Iterable[Any]) -> tuple[FamilyEnd, ...]:
    """The ends in the answers of a call, of which some may be errors."""
    return tuple(end for answer in answers if not isinstance(answer, TaskHarborError) for end in answer.ended)


# ------------------------------------------------------------------ reporting


def report_ended(ended: Iterable[FamilyEnd], events: EventBus) -> None:
    """The events of these ends."""
    for end in ended:
        about: Any = {"job_id": end.id, "type": end.type, "queue": end.queue, "parent": end.parent}
        if end.is_late:
            events.emit(DeadlineMissed(**about, seconds=end.seconds))
        if end.is_skipped:
            events.emit(JobSkipped(**about))
        if end.is_workflow:
            events.emit(
                WorkflowEnded(
                    **about,
                    state=str(end.state),
                    counts=end.counts,
                    seconds=end.seconds,
                    failure_kind=end.kind,
                )
            )
