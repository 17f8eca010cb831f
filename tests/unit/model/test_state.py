"""The seven states: which move is legal, pair by pair."""

import itertools

import pytest

from taskharbor.model.state import JobState, is_legal

# before → everything it may become in one step, besides staying what it is.
LEGAL = {
    "scheduled": "ready running cancelled completed",
    "ready": "scheduled running cancelled completed",
    "blocked": "ready scheduled cancelled",
    "running": "ready scheduled completed failed cancelled",
    "completed": "ready scheduled blocked",
    "failed": "ready scheduled blocked",
    "cancelled": "ready scheduled blocked",
}


@pytest.mark.parametrize(("before", "after"), list(itertools.product(JobState, JobState)))
def test_only_the_drawn_moves_are_legal(before, after):
    expected = before == after or str(after) in LEGAL[str(before)].split()

    assert is_legal(before, after) is expected


@pytest.mark.parametrize("state", JobState)
def test_every_state_is_waiting_running_or_over(state):
    assert [state.is_waiting, state is JobState.RUNNING, state.is_terminal].count(True) == 1


def test_a_finished_job_never_runs_without_waiting_first():
    assert not any(is_legal(state, JobState.RUNNING) for state in JobState if state.is_terminal)


def test_nothing_fails_that_does_not_run():
    assert [state for state in JobState if is_legal(state, JobState.FAILED)] == [
        JobState.RUNNING,
        JobState.FAILED,
    ]
