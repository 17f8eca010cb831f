"""taskharbor enqueue, on a memory store in this process."""

import json
from datetime import timedelta
from pathlib import Path

import pytest

from taskharbor.model.clock import SystemClock
from taskharbor.model.state import JobState
from tests.unit.cli.conftest import Shell


def test_the_id_alone_is_printed_and_the_values_are_json_or_text(shell: Shell) -> None:
    answer = shell("enqueue", "send", "user_id=7", "name=Ann", "tags=[1,2]", 'code="007"', "empty=")

    job = shell.get(answer.out.strip())
    assert json.loads(job.payload) == {
        "user_id": 7,
        "name": "Ann",
        "tags": [1, 2],
        "code": "007",
        "empty": "",
    }
    assert answer.err == "created in queue default\n"


def test_every_option_reaches_the_job(shell: Shell) -> None:
    at = SystemClock().now() + timedelta(days=30)
    answer = shell(
        "enqueue", "send", "--queue", "mail", "--priority", "5", "--requires", "gpu", "--timeout", "30s",
        "--max-attempts", "3", "--key", "k", "--idempotency-key", "i", "--header", "a=b=c", "--json",
        "--at", at.isoformat(),
    )  # fmt: skip

    job = shell.get(answer.json["id"])
    assert answer.json == {"id": job.id, "result": "created", "type": "send", "queue": "mail"}
    assert (job.queue, job.priority, job.requires, job.max_attempts) == ("mail", 5, "gpu", 3)
    assert (job.timeout, job.key, job.idempotency_key) == (timedelta(seconds=30), b"k", b"i")
    assert (job.headers, job.state) == ({"a": "b=c"}, JobState.SCHEDULED)
    assert job.run_at == at
    assert job.max_stalls == 3


def test_a_repeat_under_an_idempotency_key_answers_the_first_job(shell: Shell) -> None:
    first = shell("enqueue", "send", "--idempotency-key", "once", "--json").json
    again = shell("enqueue", "send", "--idempotency-key", "once", "--json").json

    assert (again["id"], again["result"]) == (first["id"], "duplicate")


def test_a_whole_payload_may_be_any_json(shell: Shell) -> None:
    job_id = shell("enqueue", "send", "--payload", "[1, null]").out.strip()

    assert json.loads(shell.get(job_id).payload) == [1, None]


def test_many_jobs_come_from_a_file(shell: Shell, tmp_path: Path) -> None:
    lines = [{"payload": {"n": n}, "queue": "bulk", "priority": n % 3} for n in range(1201)]
    file = tmp_path / "jobs.ndjson"
    file.write_text("\n".join(json.dumps(line) for line in lines) + "\n\n")

    answer = shell("enqueue", "send", "--json-file", str(file), "--json")

    assert answer.json == {"enqueued": 1201, "results": {"created": 1201}}
    [queue] = shell("queues", "list", "--json").json["items"]
    assert (queue["name"], queue["ready"]) == ("bulk", 1201)


def test_a_bad_line_is_named_and_what_is_in_is_reported(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "jobs.ndjson"
    file.write_text('{"type": "a"}\n' * 500 + '{"typ": "b"}\n')

    answer = shell("enqueue", "--json-file", str(file), "--json")

    assert answer.code == 2
    assert "line 501" in answer.err
    assert answer.json["enqueued"] == 500


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (["enqueue"], "no task given"),
        (["enqueue", "send", "novalue"], "name=value"),
        (["enqueue", "bad name"], "is not a name"),
        (["enqueue", "send", "--payload", "{"], "not JSON"),
        (["enqueue", "send", "a=1", "--payload", "{}"], "not both"),
        (["enqueue", "send", "--at", "tomorrow"], "is not a time"),
        (["enqueue", "send", "--in", "1h", "--at", "2030-01-01"], "not both"),
        (["enqueue", "send", "--priority", "101"], "--priority"),
        (["enqueue", "send", "--header", "x"], "name=value"),
        (["enqueue", "send", "--key", ""], "key"),
        (["enqueue", "--json-file", "missing.ndjson"], "cannot read"),
    ],
)
def test_what_cannot_be_a_job_is_a_usage_error(shell: Shell, args: list[str], word: str) -> None:
    answer = shell(*args)

    assert answer.code == 2
    assert word in answer.err
    assert shell("queues", "list", "--json").json["items"] == []


APP = """
from taskharbor.harbor import Harbor

harbor = Harbor()

@harbor.task(queue="mail", max_attempts=4, priority=7)
async def send_welcome(user_id: int, name: str = "you") -> str: ...
"""


@pytest.fixture
def app(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"app_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(APP)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def test_an_app_brings_its_tasks_options_and_flags_go_over_them(shell: Shell, app: str) -> None:
    plain = shell("enqueue", "send_welcome", "user_id=7", "--app", app).out.strip()
    changed = shell(
        "enqueue", "send_welcome", "user_id=7", "-A", f"{app}:harbor", "--queue", "vip"
    ).out.strip()
    by_place = shell("enqueue", "send_welcome", "--payload", '[8, "Ann"]', "-A", app).out.strip()

    job, vip = shell.get(plain), shell.get(changed)
    assert (job.queue, job.max_attempts, job.priority) == ("mail", 4, 7)
    assert (vip.queue, vip.max_attempts) == ("vip", 4)
    assert json.loads(shell.get(by_place).payload) == {"user_id": 8, "name": "Ann"}


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (["nosuch"], "send_welcome"),  # it lists what there is
        (["send_welcome"], "user_id"),
        (["send_welcome", "user_id=x"], "user_id"),
        (["send_welcome", "user_id=1", "colour=red"], "colour"),
    ],
)
def test_an_app_checks_the_arguments(shell: Shell, app: str, args: list[str], word: str) -> None:
    answer = shell("enqueue", *args, "--app", app)

    assert answer.code == 2
    assert word in answer.err
    assert shell("queues", "list", "--json").json["items"] == []


def test_update_flags_say_what_changes_about_a_job_that_waits(shell: Shell) -> None:
    first = shell("enqueue", "t", "n=1", "--key", "k", "--in", "1h", "--json").json["id"]

    second = shell(
        "enqueue", "t", "n=2", "--key", "k", "--update", "data=false", "--update", "run_at=if_earlier"
    )

    job = shell.get(first)
    assert second.code == 0
    assert (job.payload, job.run_at, job.state) == (b'{"n":1}', None, "ready")
    wrong = shell("enqueue", "t", "--key", "k", "--update", "data=perhaps")
    assert wrong.code == 2
    assert "data, retry and reset_counts (true or false)" in wrong.err
    assert shell("enqueue", "t", "--key", "k", "--update", "nosuch=1").code == 2


def test_lines_of_a_file_may_say_update_and_get_that_of_the_flags(shell: Shell, tmp_path: Path) -> None:
    job_id = shell("enqueue", "t", "n=1", "--key", "k", "--in", "1h", "--json").json["id"]
    file = tmp_path / "jobs.jsonl"
    file.write_text('{"type": "t", "payload": {"n": 2}, "key": "k", "update": {"run_at": false}}\n')

    assert shell("enqueue", "-f", str(file)).code == 0
    assert (shell.get(job_id).payload, shell.get(job_id).state) == (b'{"n":2}', "scheduled")
    file.write_text('{"payload": {"n": 3}}\n')
    flags = ("--key", "k", "--update", "data=false", "--update", "run_at=false")
    assert shell("enqueue", "t", "-f", str(file), *flags).code == 0
    assert shell.get(job_id).payload == b'{"n":2}'
