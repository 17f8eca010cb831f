"""taskharbor jobs, on a memory store in this process."""

from datetime import timedelta

import pytest

from taskharbor.model.settlement import Ack, Cancelled, Fail, Retry
from taskharbor.model.state import JobState
from tests.unit.cli.conftest import Shell

UNKNOWN = "01a1de6c-6ff6-738c-9f3a-6aa1afc95af6"


def failed(shell: Shell, reason: str = "boom", **fields) -> str:
    job_id = shell.enqueue(**fields)
    assert shell.end(lambda job: Fail(job.lease, reason), fields.get("queue", "default")) == job_id
    return job_id


def test_a_list_shows_the_newest_job_first(shell: Shell) -> None:
    first, second = shell.enqueue(), shell.enqueue()

    listed = shell("jobs", "list", "-o", "ids")

    assert listed.out.split() == [second, first]


def test_a_list_as_json_has_items_and_a_cursor_to_go_on_with(shell: Shell) -> None:
    ids = [shell.enqueue() for _ in range(5)]

    page = shell("jobs", "list", "--json", "--limit", "2", "--oldest-first").json
    rest = shell("jobs", "list", "--json", "--oldest-first", "--cursor", page["next_cursor"]).json

    assert [job["id"] for job in page["items"] + rest["items"]] == ids
    assert rest["next_cursor"] is None


def test_a_list_narrows_by_queue_state_and_pattern(shell: Shell) -> None:
    wanted = shell.enqueue("send_mail", queue="mail")
    shell.enqueue("render", queue="mail")
    shell.enqueue("send_sms", queue="sms")

    by_words = shell("jobs", "list", "state:ready type:send_* queue:mail", "-o", "ids")
    by_flags = shell("jobs", "list", "-q", "mail", "-s", "ready,scheduled", "-t", "send_*", "-o", "ids")

    assert by_words.out.split() == by_flags.out.split() == [wanted]


def test_a_list_finds_arguments_beginnings_of_types_and_parts_of_ids(shell: Shell) -> None:
    wanted = shell.enqueue("send_mail", payload=b'{"user": {"id": 42, "password": "hunter2"}}')
    shell.enqueue("render", payload=b'{"user": {"id": 41}}')

    def listed(words: str) -> list[str]:
        return shell("jobs", "list", words, "-o", "ids").out.split()

    assert listed("args.user.id:42") == listed("args.user.password:hunter2") == [wanted]
    assert listed("send") == listed(wanted) == listed(wanted[-12:]) == listed("*d* -render") == [wanted]
    assert listed("state:failed state:ready") == []


def test_a_search_by_time_counts_from_the_enqueue_or_the_end(shell: Shell) -> None:
    done = shell.enqueue()
    shell.end(lambda job: Ack(job.lease))
    waiting = shell.enqueue()

    def listed(words: str) -> list[str]:
        return shell("jobs", "list", words, "-o", "ids").out.split()

    assert listed("age:<1h") == [waiting, done]
    assert listed("ended:<1h") == [done]
    assert listed("age:>1h") == listed("ended:>1h") == []
    assert listed("age:>0s age:<1h state:ready") == [waiting]
    assert shell("jobs", "cancel", "--where", "age:>1h", "--yes", "--json").json["matched"] == 0


def test_a_search_for_what_is_rare_ends_and_says_where_to_go_on(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = shell.enqueue("rare.one")
    for _ in range(9):
        shell.enqueue()
    monkeypatch.setattr("taskharbor.cli.search.MOST_CALLS", 3)

    first = shell("jobs", "list", "type:rare.*", "--limit", "2", "--json").json
    rest = shell(
        "jobs", "list", "type:rare.*", "--limit", "2", "--json", "--cursor", first["next_cursor"]
    ).json

    assert first["items"] == []
    assert [job["id"] for job in rest["items"]] == [wanted]


def test_a_table_without_a_terminal_is_plain_text_in_columns(shell: Shell) -> None:
    job_id = shell.enqueue("send_mail", queue="mail")

    header, line = shell("jobs", "list").out.splitlines()

    assert header.split() == ["ID", "TYPE", "QUEUE", "STATE", "TRY", "CREATED", "WHEN", "ERROR"]
    assert line.split()[:4] == [job_id, "send_mail", "mail", "ready"]


def test_show_prints_everything_and_hides_what_sounds_secret(shell: Shell) -> None:
    payload = b'{"to": "a@b.c", "password": "hunter2", "nested": [{"api_key": "k-123"}]}'
    job_id = shell.enqueue(payload=payload, headers={"authorization": "Bearer x"})

    hidden = shell("jobs", "show", job_id, "--json").json
    open_view = shell("jobs", "show", job_id, "--json", "--reveal").json

    assert hidden["payload"] == {"to": "a@b.c", "password": "***", "nested": [{"api_key": "***"}]}
    assert hidden["headers"] == {"authorization": "***"}
    assert open_view["payload"]["password"] == "hunter2"
    assert "hunter2" not in shell("jobs", "show", job_id).out


def test_a_payload_that_is_no_json_is_shown_as_base64(shell: Shell) -> None:
    job_id = shell.enqueue(payload=b"\xff\x00")

    view = shell("jobs", "show", job_id, "--json").json

    assert view["payload_base64"] == "/wA="
    assert "payload" not in view


def test_an_unknown_id_is_exit_code_3(shell: Shell) -> None:
    for verb in ("show", "why", "wait", "retry", "cancel"):
        answer = shell("jobs", verb, UNKNOWN)
        assert answer.code == 3, verb


@pytest.mark.parametrize("job_id", ["--help", "$(touch pwned)", "; rm -rf", "not-an-id", "\x1b[31mred"])
def test_an_id_is_data_whatever_it_looks_like(shell: Shell, job_id: str, tmp_path) -> None:
    for verb in ("show", "why", "retry", "cancel", "wait"):
        answer = shell("jobs", verb, "--", job_id)

        assert answer.code == 3
        assert "is not a job id" in answer.err
        assert "\x1b" not in answer.err
        assert answer.out == ""
    assert list(tmp_path.iterdir()) == []


def test_escape_sequences_in_a_job_never_reach_the_terminal(shell: Shell) -> None:
    evil = "\x1b]0;title\x07\x1b[2Jboom\x9b31m\u202egnp.exe\r\x08"
    job_id = failed(shell, evil, key=b"\x1b[31mkey")

    for command in (["jobs", "list"], ["jobs", "show", job_id], ["jobs", "why", job_id], ["dlq", "list"]):
        shown = shell(*command)
        as_json = shell(*command, "--json")

        assert "boom" in shown.out
        assert not set(shown.out + as_json.out) & set("\x1b\x07\x9b\x08\r\u202e")
    assert shell("jobs", "show", job_id, "--json").json["last_error"] == evil


def test_why_gives_the_reason_in_words_and_as_data(shell: Shell) -> None:
    job_id = shell.enqueue(queue="mail", delay=timedelta(hours=1))

    answer = shell("jobs", "why", job_id)
    data = shell("jobs", "why", job_id, "--json").json

    assert "is scheduled: due in" in answer.out
    assert (data["reason"], data["state"], data["id"]) == ("scheduled", "scheduled", job_id)
    assert data["until"].endswith("Z")


def tries_of(shell: Shell) -> list[str]:
    return [line.split()[4] for line in shell("jobs", "list", "--oldest-first").out.splitlines()[1:]]


def test_a_job_that_ran_once_and_went_well_was_tried_once(shell: Shell) -> None:
    job_id = shell.enqueue(max_attempts=5)
    assert tries_of(shell) == ["0/5"]

    job = shell.claim()
    assert tries_of(shell) == ["1/5"]

    shell.store(lambda driver: driver.settle([Ack(job.lease)]))
    assert tries_of(shell) == ["1/5"]
    assert "1/5 (0 failed, 0 stalled, 1 start)" in shell("jobs", "show", job_id).out


def test_failed_and_cancelled_jobs_count_the_tries_they_had(shell: Shell) -> None:
    failed(shell, max_attempts=1)
    waiting = shell.enqueue()
    shell("jobs", "cancel", waiting)
    running = shell.enqueue()
    job = shell.claim()
    shell("jobs", "cancel", running)
    shell.store(lambda driver: driver.settle([Cancelled(job.lease)]))

    assert tries_of(shell) == ["1/1", "0", "1"]


def test_a_job_that_succeeded_in_the_end_shows_its_last_failure(shell: Shell) -> None:
    job_id = shell.enqueue(max_attempts=5)
    shell.end(lambda job: Retry(job.lease, timedelta(0), "boom"))
    shell.end(lambda job: Ack(job.lease))

    shown = shell("jobs", "show", job_id).out

    assert "2/5 (1 failed, 0 stalled, 2 starts)" in shown
    assert "last failure" in shown
    assert "\n  failed " not in shown
    assert "last failure" not in shell("jobs", "show", failed(shell)).out


def test_wait_shows_how_each_job_ended(shell: Shell) -> None:
    good = shell.enqueue()
    shell.end(lambda job: Ack(job.lease, b'{"sent": 3}'))
    bad = failed(shell)

    both = shell("jobs", "wait", good, bad, "--json")

    assert both.code == 7
    assert [(job["state"], job["result"]) for job in both.json["items"]] == [
        ("completed", {"sent": 3}),
        ("failed", None),
    ]
    assert shell("jobs", "wait", good).code == 0


def test_wait_gives_up_with_exit_code_124(shell: Shell) -> None:
    job_id = shell.enqueue()

    answer = shell("jobs", "wait", job_id, "--timeout", "0")

    assert answer.code == 124
    assert "1 of 1 job not finished" in answer.err


def test_retry_lets_a_failed_job_wait_again(shell: Shell) -> None:
    job_id = failed(shell)

    answer = shell("jobs", "retry", job_id, "--json")

    assert answer.code == 0
    assert answer.json["items"] == [{"id": job_id, "result": "retried", "state": "ready", "note": None}]
    assert shell.get(job_id).attempts == 0


def test_retry_can_wait_and_keep_the_counts(shell: Shell) -> None:
    job_id = failed(shell)

    shell("jobs", "retry", job_id, "--in", "1h", "--keep-counts")

    job = shell.get(job_id)
    assert (job.state, job.attempts) == (JobState.SCHEDULED, 1)


def test_retrying_a_waiting_job_is_a_conflict(shell: Shell) -> None:
    job_id = shell.enqueue()

    answer = shell("jobs", "retry", job_id, "--json")

    assert answer.code == 5
    assert answer.json["items"][0]["result"] == "refused"
    note = answer.json["items"][0]["note"]
    assert note == f"job {job_id} is ready: only jobs that have ended can be retried; nothing was changed"


def test_cancel_answers_for_each_id(shell: Shell) -> None:
    running = shell.enqueue()
    shell.claim()
    waiting = shell.enqueue()

    first = shell("jobs", "cancel", waiting, running, "--json")
    second = shell("jobs", "cancel", waiting)

    assert first.code == 0
    assert [answer["result"] for answer in first.json["items"]] == ["cancelled", "requested"]
    assert second.code == 5


def test_a_dry_run_changes_nothing(shell: Shell) -> None:
    dead, waiting = failed(shell), shell.enqueue()

    by_id = shell("jobs", "retry", dead, waiting, "--dry-run", "--json")
    by_search = shell("jobs", "cancel", "--where", "queue:default", "--dry-run", "--json")

    assert [answer["result"] for answer in by_id.json["items"]] == ["would_change", "would_refuse"]
    assert by_search.json == {"matched": 1, "changed": 0, "skipped": 0, "dry_run": True}
    assert shell.get(dead).state is JobState.FAILED
    assert shell.get(waiting).state is JobState.READY


def test_a_bulk_step_without_a_terminal_needs_yes(shell: Shell) -> None:
    job_id = failed(shell)

    asked = shell("jobs", "retry", "--where", "type:mail.*")
    answer = shell("jobs", "retry", "--where", "type:mail.*", "--yes", "--json")

    assert asked.code == 2
    assert "--yes" in asked.err
    assert answer.json == {"matched": 1, "changed": 1, "skipped": 0, "dry_run": False}
    assert shell.get(job_id).state is JobState.READY


def test_a_bulk_step_reaches_every_job_of_many_pages(shell: Shell) -> None:
    for _ in range(1203):
        shell.enqueue(queue="many")

    answer = shell("jobs", "cancel", "--where", "queue:many", "--yes", "--json")

    assert answer.json["changed"] == 1203


def test_a_bulk_step_needs_ids_or_a_search_but_not_both(shell: Shell) -> None:
    assert shell("jobs", "cancel").code == 2
    assert shell("jobs", "cancel", UNKNOWN, "--where", "queue:mail").code == 2


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (["jobs", "list", "stat:failed"], "expected state:"),
        (["jobs", "list", "age:1h"], "expected age:<1h"),
        (["jobs", "list", "ended:<soon"], "expected ended:<1h"),
        (["jobs", "list", "--state", "broken"], "is not a state"),
        (["jobs", "list", "--limit", "0"], "--limit"),
        (["jobs", "list", "--cursor", "nonsense"], "cursor"),
        (["jobs", "list", "--queue", "no spaces"], "is not a name"),
        (["jobs", "wait", UNKNOWN, "--timeout", "soon"], "is not a duration"),
    ],
)
def test_a_wrong_word_is_a_usage_error_that_names_it(shell: Shell, args: list[str], word: str) -> None:
    answer = shell(*args)

    assert answer.code == 2
    assert word in answer.err
    assert "Traceback" not in answer.err


def test_the_waiting_job_of_a_key_is_cancelled_by_its_key(shell: Shell) -> None:
    job_id = shell.enqueue(queue="mail", key=b"customer/7")

    assert shell("jobs", "cancel", "--key", "customer/7").code == 3
    answer = shell("jobs", "cancel", "--key", "customer/7", "--queue", "mail", "--json")

    assert answer.json == {"queue": "mail", "key": "customer/7", "cancelled": True}
    assert (shell.get(job_id).state, shell.get(job_id).last_error) == (
        "cancelled",
        "cancelled while it waited",
    )
    assert shell("jobs", "cancel", "--queue", "mail").code == 2
    assert shell("jobs", "cancel", job_id, "--key", "k").code == 2


def test_a_retry_that_names_a_queue_refuses_jobs_of_others(shell: Shell) -> None:
    job_id = shell.enqueue(queue="mail")
    shell("jobs", "cancel", job_id)

    refused = shell("jobs", "retry", job_id, "--queue", "default")
    done = shell("jobs", "retry", job_id, "--queue", "mail")

    assert (refused.code, done.code) == (5, 0)
    assert shell.get(job_id).state == "ready"
