"""A test of the tests: families with one planted bug never pass beside the model.

The bugs are those that queues are known for: callbacks that are lost, fire twice or fire too early, parents
that are counted wrongly, stops that forget somebody, events that are accepted and lost.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import pytest
from msgspec.structs import replace

from taskharbor.drivers import families, family_enqueue, family_verbs, lifecycle
from taskharbor.drivers.families import FamiliesInStep
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.drivers.memory.families import FamilyIndex
from taskharbor.drivers.memory.store import Store
from taskharbor.drivers.messages import Resolution
from taskharbor.model import family_steps, transitions
from taskharbor.model.bonds import Bonds, Family, Stop
from taskharbor.model.family_steps import family_of
from taskharbor.model.job import JobRecord, Note
from taskharbor.model.queue import EVERY_QUEUE, retention_of
from taskharbor.model.settlement import Park, Settlement
from taskharbor.model.state import TERMINAL, JobState
from taskharbor.testing.statemachine import hold_families_to_the_model

STEPS = 2_500  # at the most: most are found within 500
SEEDS = range(8)
Patch = pytest.MonkeyPatch


def an_end_is_counted_before_the_token_is_checked(patch: Patch) -> None:
    sound = family_verbs.settle_one

    def settle_one(jobs: FamiliesInStep, settlement: Settlement) -> Any:
        answer = sound(jobs, settlement)
        job = jobs.get(settlement.lease.job_id)
        parent = None if job is None else families.parent_record(jobs, job)
        if isinstance(answer, Exception) and job is not None and parent is not None:
            jobs.amend(family_steps.with_end(parent, job))
        return answer

    patch.setattr(family_verbs, "settle_one", settle_one)


def a_stalled_child_is_counted_at_each_reclaim(patch: Patch) -> None:
    sound = family_verbs.reclaim_one

    def reclaim_one(jobs: FamiliesInStep, job_id: str) -> Any:
        answer = sound(jobs, job_id)
        job = jobs.get(job_id)
        parent = None if job is None else families.parent_record(jobs, job)
        if job is not None and parent is not None and job.state not in TERMINAL:
            jobs.amend(family_steps.with_end(parent, job))
        return answer

    patch.setattr(family_verbs, "reclaim_one", reclaim_one)


def the_last_two_children_both_read_one_left(patch: Patch) -> None:
    sound = family_steps.may_be_seen_over
    seen: dict[str, int] = {}

    def may_be_seen_over(job: JobRecord) -> bool:
        is_over = sound(job)
        if is_over and family_of(job).total > 1:
            seen[job.id] = seen.get(job.id, 0) + 1
            return seen[job.id] > 1  # the end of the last child is judged by what was read before it
        return is_over

    patch.setattr(families, "may_be_seen_over", may_be_seen_over)


def a_release_behind_the_commit_is_lost(patch: Patch) -> None:
    def owe(self: FamilyIndex, kind: Any, job_id: str) -> None:
        if kind != "release":
            sound(self, kind, job_id)

    sound = FamilyIndex.owe
    patch.setattr(FamilyIndex, "owe", owe)


def what_is_owed_is_never_looked_at_again(patch: Patch) -> None:
    sound = families.carry_out
    patch.setattr(families, "carry_out", lambda jobs, limit=1: sound(jobs, min(limit, 1)))
    patch.setattr(family_verbs, "carry_out", lambda jobs, limit=1: sound(jobs, min(limit, 1)))
    patch.setattr(FamilyIndex, "owe_rest", lambda self, owed, cursor: self._owed.pop(owed.no, None))


def a_requeue_does_not_open_the_parent(patch: Patch) -> None:
    patch.setattr(family_verbs, "_take_end_back", lambda jobs, job: None)


def a_reopened_parent_fires_again(patch: Patch) -> None:
    sound = families._release_after

    def release_after(jobs: FamiliesInStep, job: JobRecord, cause: JobRecord) -> None:
        if job.state is JobState.COMPLETED:
            jobs.put(replace(job, state=JobState.READY, finished_at=None))
        else:
            sound(jobs, job, cause)

    def apply(jobs: FamiliesInStep, owed: Any, job: JobRecord) -> None:
        cause = jobs.get(owed.job_id)
        if owed.kind == "release" and cause is not None:
            release_after(jobs, job, cause)
        else:
            sound_apply(jobs, owed, job)

    sound_apply = families._apply
    patch.setattr(families, "_apply", apply)


def a_skip_does_not_go_on(patch: Patch) -> None:
    sound = families._count_end

    def count_end(jobs: FamiliesInStep, job: JobRecord) -> None:
        is_skipped = job.failure_kind == "skipped"
        family = replace(family_of(job), followers=0) if is_skipped else job.family
        sound(jobs, replace(job, family=family))

    patch.setattr(families, "_count_end", count_end)


def failure_fires_at_the_first_failure(patch: Patch) -> None:
    sound = families._release_after

    def release_after(jobs: FamiliesInStep, job: JobRecord, cause: JobRecord) -> None:
        is_early = family_steps.bonds_of(job).when == "failure" and cause.state is JobState.FAILED
        if is_early and job.state is JobState.BLOCKED and family_of(job).stopping is None:
            jobs.put(family_steps.released(job, jobs.now))
        else:
            sound(jobs, job, cause)

    patch.setattr(families, "_release_after", release_after)


def a_stop_forgets_running_children(patch: Patch) -> None:
    sound = families._stop_child

    def stop_child(jobs: FamiliesInStep, job: JobRecord, parent: JobRecord) -> None:
        if job.state is not JobState.RUNNING:
            sound(jobs, job, parent)

    patch.setattr(families, "_stop_child", stop_child)


def a_stop_takes_the_finally_child(patch: Patch) -> None:
    patch.setattr(families, "is_spared", lambda bonds: False)


def a_stop_spares_everybody(patch: Patch) -> None:
    patch.setattr(families, "is_spared", lambda bonds: True)


def a_park_misses_a_child_that_has_ended(patch: Patch) -> None:
    sound = family_verbs._park

    def park(jobs: FamiliesInStep, job: JobRecord, item: Park) -> Any:
        after = sound(jobs, job, item)
        if isinstance(after, JobRecord) and item.after and after.state is not JobState.BLOCKED:
            after = replace(after, state=JobState.BLOCKED, family=replace(family_of(after), waits_for=1))
            jobs.put(after)
        return after

    patch.setattr(family_verbs, "_park", park)


def an_event_after_its_timeout_is_accepted(patch: Patch) -> None:
    patch.setattr(family_verbs, "is_late", lambda job, now: False)


def a_second_event_wins(patch: Patch) -> None:
    sound = family_verbs.resolve_one

    def resolve_one(jobs: FamiliesInStep, item: Resolution, created: Any) -> Any:
        job = jobs.get(item.id)
        if job is not None and job.state is JobState.COMPLETED and item.result is not None:
            jobs.put(replace(job, result=item.result))
        return sound(jobs, item, created)

    patch.setattr(family_verbs, "resolve_one", resolve_one)


def a_note_needs_no_lease(patch: Patch) -> None:
    sound = transitions.held

    def note_one(jobs: FamiliesInStep, note: Note) -> Any:
        patch.setattr(family_verbs, "held", lambda job, lease, now: job or sound(job, lease, now))
        try:
            return sound_note(jobs, note)
        finally:
            patch.setattr(family_verbs, "held", sound)

    sound_note = family_verbs.note_one
    patch.setattr(family_verbs, "note_one", note_one)


def a_note_is_written_over(patch: Patch) -> None:
    def with_notes(job: JobRecord, notes: Sequence[Note], now: datetime) -> JobRecord:
        kept = {note.name: note for note in job.notes}
        kept |= {note.name: Note(note.name, note.data, now) for note in notes}
        return replace(job, notes=tuple(kept.values()), attempts=0, stalls=0)

    patch.setattr(family_verbs, "with_notes", with_notes)


def a_child_of_a_stale_lease_is_stored(patch: Patch) -> None:
    patch.setattr(family_enqueue, "lease_error", lambda job, lease, now: None)


def a_stall_forgets_the_notes(patch: Patch) -> None:
    sound = transitions.stalled

    def stalled(job: JobRecord, *rest: Any) -> JobRecord:
        return replace(sound(job, *rest), notes=())

    patch.setattr(lifecycle, "stalled", stalled)


def a_prune_takes_a_child_early(patch: Patch) -> None:
    """By the retention of its own queue, although its root is not over."""
    sound = Store.prune

    def prune(self: Store, limit: int) -> int:
        pruned = sound(self, limit)
        for (queue, state), over in self.ended_children.items():
            keep = retention_of(self.rules(queue), self.rules(EVERY_QUEUE)).of(state)
            for at, _, job_id in list(over):
                if keep is not None and at <= self.now - keep and job_id in self.jobs:
                    pruned += self._prune(self.jobs[job_id], 1)
        return pruned

    patch.setattr(Store, "prune", prune)


def a_root_leaves_its_children_behind(patch: Patch) -> None:
    def prune_one(self: Store, job: JobRecord, limit: int) -> int:
        self.drop(job)
        return 1

    patch.setattr(Store, "_prune", prune_one)


def a_child_goes_before_its_parent(patch: Patch) -> None:
    patch.setattr(family_verbs, "delete", lifecycle.delete)


def one_failure_more_is_tolerated(patch: Patch) -> None:
    def fails_parent(bonds: Bonds, family: Family) -> bool:
        return bonds.tolerate is not None and family.failed > bonds.tolerate + 1

    patch.setattr(family_steps, "fails_parent", fails_parent)


def an_optional_failure_counts(patch: Patch) -> None:
    sound = family_steps.with_end

    def with_end(parent: JobRecord, child: JobRecord, *, by: int = 1) -> JobRecord:
        return sound(
            parent, replace(child, bonds=replace(family_steps.bonds_of(child), optional=False)), by=by
        )

    patch.setattr(families, "with_end", with_end)


def a_stop_by_deadline_is_a_cancel(patch: Patch) -> None:
    def stop(jobs: FamiliesInStep, job: JobRecord, why: Stop, *rest: Any, **options: Any) -> None:
        sound(jobs, job, "cancel" if why == "deadline" else why, *rest, **options)

    sound = families.stop
    patch.setattr(families, "stop", stop)


def a_child_of_a_stopped_parent_is_handed_out(patch: Patch) -> None:
    patch.setattr(families, "may_run", lambda jobs, job: True)
    patch.setattr(families, "_stop_child", lambda jobs, job, parent: None)


def open_events_are_forgotten_when_their_job_is_done(patch: Patch) -> None:
    patch.setattr(Store, "open_events", lambda self, job_id, limit: [])


def a_parent_takes_children_while_it_is_stopped(patch: Patch) -> None:
    sound = family_of
    patch.setattr(family_enqueue, "family_of", lambda job: replace(sound(job), stopping=None))


BUGS: list[Callable[[Patch], None]] = [
    an_end_is_counted_before_the_token_is_checked,
    a_stalled_child_is_counted_at_each_reclaim,
    the_last_two_children_both_read_one_left,
    a_release_behind_the_commit_is_lost,
    what_is_owed_is_never_looked_at_again,
    a_requeue_does_not_open_the_parent,
    a_reopened_parent_fires_again,
    a_skip_does_not_go_on,
    failure_fires_at_the_first_failure,
    a_stop_forgets_running_children,
    a_stop_takes_the_finally_child,
    a_stop_spares_everybody,
    a_park_misses_a_child_that_has_ended,
    an_event_after_its_timeout_is_accepted,
    a_second_event_wins,
    a_note_needs_no_lease,
    a_note_is_written_over,
    a_child_of_a_stale_lease_is_stored,
    a_stall_forgets_the_notes,
    a_prune_takes_a_child_early,
    a_root_leaves_its_children_behind,
    a_child_goes_before_its_parent,
    one_failure_more_is_tolerated,
    an_optional_failure_counts,
    a_stop_by_deadline_is_a_cancel,
    a_child_of_a_stopped_parent_is_handed_out,
    open_events_are_forgotten_when_their_job_is_done,
    a_parent_takes_children_while_it_is_stopped,
]


@pytest.mark.more("thousands of steps for some bugs; they test the model, not the product")
@pytest.mark.parametrize("plant", BUGS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    plant(monkeypatch)
    assert any(finds(seed_number) for seed_number in SEEDS), "no seed found it"


def finds(seed_number: int) -> bool:
    try:
        hold_families_to_the_model(MemoryDriver, steps=STEPS, seed_number=seed_number, shrink=False)
    except (AssertionError, KeyError, ValueError, ExceptionGroup):  # a group: a bug with a memory of its own
        return True
    return False
