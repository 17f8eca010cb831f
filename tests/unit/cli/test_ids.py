"""A part of an id is enough wherever an id is."""

import pytest

from taskharbor.cli import ids
from taskharbor.model.settlement import Fail
from taskharbor.model.state import JobState
from tests.unit.cli.conftest import Shell

ONE = "01a1de6c-6ffa-7b64-a142-da4a1a77f526"
TWO = "01a1de6c-6ffa-7b64-9f3a-6aa1afc95af6"


@pytest.fixture
def two(shell: Shell) -> Shell:
    for job_id in (ONE, TWO):
        shell.enqueue(id=job_id)
    return shell


@pytest.mark.parametrize(
    "part", ["1a77f526", "da4a1a77f526", "…1a77f526", "1A77F526", ONE[:-4], "a142-da4a1a77f526", ONE.upper()]
)
def test_the_first_or_last_digits_name_a_job(two: Shell, part: str) -> None:
    assert two("jobs", "show", part, "--json").json["id"] == ONE
    assert two("jobs", "why", part, "--json").json["id"] == ONE
    assert two("jobs", "cancel", part, "--dry-run", "--json").json["items"][0]["id"] == ONE
    assert two("jobs", "wait", part, "--timeout", "0", "--json").json["items"][0]["id"] == ONE


def test_bulk_steps_take_parts(two: Shell) -> None:
    ended = two("jobs", "cancel", "1a77f526", TWO, "--json")

    assert [answer["id"] for answer in ended.json["items"]] == [ONE, TWO]
    assert two.get(ONE).state is two.get(TWO).state is JobState.CANCELLED


def test_dead_letters_are_named_by_parts(shell: Shell) -> None:
    shell.enqueue(id=ONE)
    shell.end(lambda job: Fail(job.lease, "boom"))

    assert shell("dlq", "show", "1a77f526", "--json").json["id"] == ONE
    assert shell("dlq", "purge", "1a77f526", "--yes").code == 0
    assert shell.find(ONE) is None


def test_a_part_that_fits_several_jobs_names_them_and_does_nothing(two: Shell) -> None:
    refused = two("jobs", "cancel", "01a1de6c")

    assert refused.code == 2
    assert "matches 2 jobs; give more digits" in refused.err
    assert ONE in refused.err
    assert TWO in refused.err
    assert two.get(ONE).state is two.get(TWO).state is JobState.READY


@pytest.mark.parametrize("part", ["ffffff", "01a1d", "a142", "77f5", ONE + "0", "-----------"])
def test_a_part_of_no_job_is_not_found(two: Shell, part: str) -> None:
    assert two("jobs", "show", "--", part).code == 3


def test_where_not_all_jobs_were_looked_at_a_time_is_not_enough(
    two: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(9):
        two.enqueue()
    monkeypatch.setattr(ids, "MAX_PAGE", 2)

    by_time = two("jobs", "show", "01a1de6c-6ffa-7b64-a")
    by_chance = two("jobs", "show", "1a77f526", "--json")

    assert by_time.code == 2
    assert "may match jobs that were not searched" in by_time.err
    assert by_chance.json["id"] == ONE
