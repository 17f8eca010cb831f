"""taskharbor dlq, on a memory store in this process."""

from taskharbor.model.settlement import Ack, Fail
from taskharbor.model.state import JobState
from tests.unit.cli.conftest import Shell


def dead_letter(shell: Shell, type: str = "mail.send", queue: str = "default") -> str:
    shell.enqueue(type, queue=queue)
    return shell.end(lambda job: Fail(job.lease, "boom", failure_kind="timeout"), queue)


def test_only_failed_jobs_are_listed(shell: Shell) -> None:
    shell.enqueue()
    shell.end(lambda job: Ack(job.lease))
    letter = dead_letter(shell)

    listed = shell("dlq", "list", "--json").json

    assert [job["id"] for job in listed["items"]] == [letter]
    assert listed["items"][0]["failure_kind"] == "timeout"


def test_another_state_has_no_place_among_dead_letters(shell: Shell) -> None:
    assert shell("dlq", "list", "state:ready").code == 2


def test_show_finds_dead_letters_only(shell: Shell) -> None:
    letter, waiting = dead_letter(shell), shell.enqueue()

    assert shell("dlq", "show", letter).code == 0
    other = shell("dlq", "show", waiting)
    assert other.code == 3
    assert "is ready, not a dead letter" in other.err


def test_retry_by_id_and_by_search(shell: Shell) -> None:
    one, two, other = dead_letter(shell), dead_letter(shell), dead_letter(shell, "sms.send")

    by_id = shell("dlq", "retry", one, "--json")
    by_search = shell("dlq", "retry", "--where", "type:mail.send", "--yes", "--json")

    assert by_id.json["items"][0]["state"] == "ready"
    assert by_search.json["changed"] == 1
    assert shell.get(two).state is JobState.READY
    assert shell.get(other).state is JobState.FAILED


def test_retry_refuses_a_job_that_is_no_dead_letter(shell: Shell) -> None:
    shell.enqueue()
    done = shell.end(lambda job: Ack(job.lease))

    assert shell("dlq", "retry", done).code == 3
    assert shell.get(done).state is JobState.COMPLETED


def test_everything_is_retried_only_on_request(shell: Shell) -> None:
    letter = dead_letter(shell)

    unsaid = shell("dlq", "retry", "--yes")
    dry = shell("dlq", "retry", "--all", "--dry-run", "--json")
    answer = shell("dlq", "retry", "--all", "--yes", "--json")

    assert unsaid.code == 2
    assert (dry.json["matched"], dry.json["changed"]) == (1, 0)
    assert answer.json["changed"] == 1
    assert shell.get(letter).state is JobState.READY


def test_purge_forgets_dead_letters_and_nothing_else(shell: Shell) -> None:
    shell.enqueue()
    done = shell.end(lambda job: Ack(job.lease))
    letters = [dead_letter(shell) for _ in range(3)]

    answer = shell("dlq", "purge", "--all", "--yes", "--json")

    assert answer.json == {"matched": 3, "changed": 3, "skipped": 0, "dry_run": False}
    assert [shell.find(letter) for letter in letters] == [None, None, None]
    assert shell.find(done) is not None


def test_purge_asks_also_for_single_ids(shell: Shell) -> None:
    letter = dead_letter(shell)

    asked = shell("dlq", "purge", letter)
    dry = shell("dlq", "purge", letter, "--dry-run")
    assert (asked.code, dry.code) == (2, 0)
    assert shell.find(letter) is not None

    gone = shell("dlq", "purge", letter, "--yes", "--json")
    assert gone.json["items"][0]["result"] == "purged"
    assert shell.find(letter) is None


def test_purge_refuses_a_job_that_is_no_dead_letter(shell: Shell) -> None:
    shell.enqueue()
    done = shell.end(lambda job: Ack(job.lease))

    assert shell("dlq", "purge", done, "--yes").code == 3
    assert shell.find(done) is not None


def test_replay_is_another_name_of_retry(shell: Shell) -> None:
    letter = dead_letter(shell)

    assert shell("dlq", "replay", letter, "--json").json["items"][0]["result"] == "retried"


def test_without_a_choice_every_way_to_choose_is_named(shell: Shell) -> None:
    for verb in ("retry", "purge"):
        answer = shell("dlq", verb)

        assert answer.code == 2
        assert all(way in answer.err for way in ("ids", "--where", "--all"))
    assert "--all" not in shell("jobs", "retry").err
