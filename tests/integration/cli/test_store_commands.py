"""Commands that need a store but no app, as a user types them."""

from tests.integration.cli.conftest import Command


def test_a_job_is_put_in_looked_at_explained_cancelled_and_retried(taskharbor: Command) -> None:
    job_id = taskharbor("enqueue", "send_welcome", "user_id=7", "--queue", "mail").out.strip()

    shown = taskharbor("jobs", "show", job_id, "--json").json
    assert (shown["state"], shown["queue"], shown["payload"]) == ("ready", "mail", {"user_id": 7})
    assert taskharbor("jobs", "why", job_id, "--json").json["reason"] == "no_worker"
    assert taskharbor("jobs", "cancel", job_id).code == 0
    assert taskharbor("jobs", "wait", job_id, "--timeout", "5s").code == 7
    assert taskharbor("jobs", "retry", job_id, "--json").json["items"][0]["state"] == "ready"


def test_data_goes_to_stdout_and_words_go_to_stderr(taskharbor: Command) -> None:
    put = taskharbor("enqueue", "send_welcome")
    listed = taskharbor("jobs", "list", "-o", "ids")

    assert listed.out == put.out
    assert "created" in put.err


def test_many_jobs_come_in_through_a_pipe(taskharbor: Command) -> None:
    lines = "".join(f'{{"type": "t", "payload": {{"n": {n}}}}}\n' for n in range(700))

    answer = taskharbor("enqueue", "--json-file", "-", "--json", stdin=lines)

    assert answer.json["enqueued"] == 700
    assert taskharbor("queues", "list", "--json").json["items"][0]["ready"] == 700


def test_a_reader_that_leaves_early_is_no_traceback(taskharbor: Command) -> None:
    lines = "".join('{"type": "t"}\n' for _ in range(3000))
    taskharbor("enqueue", "--json-file", "-", stdin=lines)

    process = taskharbor.start("jobs", "list", "--limit", "3000", "-o", "jsonl")
    assert process.stdout is not None
    first = process.stdout.readline()
    process.stdout.close()

    assert first.startswith('{"id":')
    assert process.wait(30) == 1


def test_the_schema_is_printed_without_a_store(taskharbor: Command) -> None:
    answer = taskharbor("migrate", "sql", "--json")

    [first, *_] = answer.json["items"]
    assert "create table" in first["sql"].lower()
    assert not (taskharbor.folder / "jobs.db").exists()


def test_migrate_is_up_to_date_on_a_new_store(taskharbor: Command) -> None:
    assert taskharbor("migrate", "up").code == 0
    assert taskharbor("migrate", "status", "--json").json["pending"] == []


def test_doctor_is_content_with_a_new_store(taskharbor: Command) -> None:
    taskharbor("migrate", "up")
    answer = taskharbor("doctor", "--json")

    assert answer.code == 0
    assert {finding["level"] for finding in answer.json["items"]} == {"ok"}


def test_bench_runs_on_the_file(taskharbor: Command) -> None:
    taskharbor("migrate", "up")
    answer = taskharbor("bench", "--jobs", "50", "--json")

    assert answer.code == 0
    assert taskharbor("queues", "list", "--json").json["items"] == []


def test_a_store_that_cannot_be_opened_has_its_own_exit_code(taskharbor: Command) -> None:
    (taskharbor.folder / "broken.db").write_bytes(b"this is no database at all, but long enough" * 100)

    answer = taskharbor("jobs", "list", "--url", "sqlite:///broken.db")

    assert answer.code in (1, 4)
    assert answer.err.startswith("error: ")
    assert "Traceback" not in answer.err


def test_two_v_show_the_traceback(taskharbor: Command) -> None:
    assert "Traceback" in taskharbor("jobs", "list", "--url", "nosuch://x", "-vv").err
    assert "Traceback" not in taskharbor("jobs", "list", "--url", "nosuch://x", "-v").err


def test_colours_only_when_they_are_forced(taskharbor: Command) -> None:
    taskharbor("enqueue", "t")

    plain = taskharbor("jobs", "list")
    taskharbor.environment["FORCE_COLOR"] = "1"
    forced = taskharbor("jobs", "list")
    taskharbor.environment["NO_COLOR"] = "1"
    neither = taskharbor("jobs", "list")

    assert "\x1b[" not in plain.out
    assert "\x1b[" in forced.out
    assert "\x1b[3" not in neither.out
