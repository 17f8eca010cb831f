"""taskharbor top: what it says about a store, and how much of it fits."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from rich.console import Console

from taskharbor.cli.top import LOOKED_AT, Look, Rate, Throughput, failing_among, look_at, snapshot
from taskharbor.cli.top_view import lines_of, screen
from taskharbor.drivers import connect
from taskharbor.drivers.messages import Claim, Counts, DriverInfo, QueueInfo
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import JobRecord, NewJob
from taskharbor.model.presence import WorkerInfo, WorkerReport
from taskharbor.model.queue import QueueRules
from taskharbor.model.settlement import Fail, Retry
from taskharbor.model.state import JobState
from tests.unit.cli.conftest import Shell

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)


def look(seconds: float = 0.0, workers: int = 0, **queues: Counts) -> Look:
    """A look at made-up queues, so many seconds after noon."""
    info = DriverInfo(
        driver="memory",
        store="memory",
        location="memory://",
        durability="D0",
        schema="",
        at=NOW + timedelta(seconds=seconds),
    )
    report = WorkerReport(worker_id="w-1", concurrency=4, running=("a",), queues=("mail",), started_at=NOW)
    present = WorkerInfo(report=report, seen_at=NOW, expires_at=NOW, latency=timedelta(milliseconds=20))
    return Look(
        store=info,
        queues=[QueueInfo(queue=name, rules=QueueRules(), counts=counts) for name, counts in queues.items()],
        workers=[present] * workers,
        failing=[],
        monotonic=seconds,
    )


def failed(number: int, error: str, state: JobState = JobState.FAILED, type: str = "send") -> JobRecord:
    return JobRecord(
        id=str(number),
        seq=number,
        type=type,
        queue="mail",
        state=state,
        payload=b"",
        created_at=NOW,
        updated_at=NOW,
        last_error=error,
        failed_at=NOW + timedelta(seconds=number),
    )


def test_jobs_that_fail_alike_are_one_line_though_numbers_in_their_errors_differ() -> None:
    groups = failing_among(
        [
            failed(1, "TimeoutError: no answer from 10.0.0.1 after 30 s"),
            failed(2, "TimeoutError: no answer from 10.0.0.2 after 30 s", JobState.SCHEDULED),
            failed(3, "KeyError: 'to'"),
            failed(4, "TimeoutError: no answer from 10.0.0.1 after 31 s", type="push"),
        ]
    )

    assert [(group.task, group.dead, group.retrying) for group in groups] == [
        ("send", 1, 1),
        ("send", 1, 0),
        ("push", 1, 0),
    ]
    assert groups[0].last_at == NOW + timedelta(seconds=2)


def test_rates_come_from_how_counts_change() -> None:
    throughput = Throughput()

    assert throughput.add(look(0, mail=Counts(ready=10))) is None
    rates = throughput.add(look(2, mail=Counts(ready=6, running=2, completed=12)))

    assert rates == {"mail": Rate(arrived=5.0, ended=6.0)}


def test_a_prune_hides_only_its_own_step() -> None:
    throughput = Throughput()
    throughput.add(look(0, mail=Counts(ready=4, completed=1000)))
    throughput.add(look(1, mail=Counts(ready=2, completed=1002)))
    rates = throughput.add(look(2, mail=Counts(ready=2, completed=2)))

    assert rates == {"mail": Rate(arrived=0.0, ended=1.0)}


def test_rates_forget_what_is_longer_ago_than_their_window() -> None:
    throughput = Throughput()
    throughput.add(look(0, mail=Counts()))
    throughput.add(look(1, mail=Counts(completed=1000)))
    rates = {}
    for second in range(2, 13):
        rates = throughput.add(look(second, mail=Counts(completed=1000))) or {}

    assert rates == {"mail": Rate(0.0, 0.0)}


async def test_a_look_finds_dead_and_retried_jobs_behind_many_new_ones(shell: Shell) -> None:
    entropy = Entropy(1)

    def new() -> NewJob:
        return NewJob(id=entropy.job_id(NOW), type="send")

    async with connect(shell.url) as driver:
        await driver.enqueue([new(), new()])
        first, second = (await driver.reserve(Claim(queues=("default",), worker_id="w", limit=2))).jobs
        later = timedelta(hours=1)
        await driver.settle(
            [Fail(first.lease, "no luck"), Retry(second.lease, delay=later, reason="no luck")]
        )
        await driver.enqueue([new() for _ in range(LOOKED_AT + 50)])

        found = await look_at(driver)

    assert [(group.dead, group.retrying) for group in found.failing] == [(1, 1)]


def rendered(shot: dict[str, object], width: int, height: int, trouble: str | None = None) -> list[str]:
    console = Console(width=width, height=height, force_terminal=False, color_system=None)
    with console.capture() as captured:
        console.print(screen(shot, width, height, trouble))
    return captured.get().splitlines()


def full_shot(queues: int = 2) -> dict[str, object]:
    now = look(
        5, workers=1, **{f"queue-{number}": Counts(ready=number, failed=1) for number in range(queues)}
    )
    now.failing.extend(failing_among([failed(1, "ValueError: " + "very long words " * 30)]))
    throughput = Throughput()
    throughput.add(look(0))
    return snapshot(now, throughput.add(now))


def test_a_narrow_and_a_wide_terminal_both_show_queues_workers_and_failures() -> None:
    for width in (80, 140):
        lines = rendered(full_shot(), width, 30)
        text = "\n".join(lines)

        assert max(len(line) for line in lines) <= width
        assert len(lines) <= 30
        for words in ("QUEUES", "WORKERS", "FAILURES", "queue-1", "w-1", "1/4", "20ms", "ValueError: very"):
            assert words in text
        assert "DEAD  RETRYING" in text  # the long error has not squeezed the other columns


def test_what_does_not_fit_is_counted_and_the_screen_never_overflows() -> None:
    for height in (14, 16, 24, 40):
        lines = rendered(full_shot(queues=60), 80, height)

        assert len(lines) <= height
        assert "more not shown" in "\n".join(lines)


def test_a_store_that_does_not_answer_leaves_the_last_numbers_and_says_so() -> None:
    lines = rendered(full_shot(), 100, 30, "cannot reach the store")

    assert "no answer since 12:00:05 UTC: cannot reach the store" in "\n".join(lines[1:3])
    assert any("queue-1" in line for line in lines)


def test_an_empty_store_says_what_to_do() -> None:
    text = "\n".join(lines_of(snapshot(look(), None)))

    assert "no jobs yet" in text
    assert "taskharbor worker APP" in text


def test_once_prints_a_look_and_json_the_same_as_data(shell: Shell) -> None:
    shell.enqueue(queue="mail")

    plain = shell.bare("top", "--url", shell.url, "--once", "--interval", "200ms")
    data = shell.bare("top", "--url", shell.url, "--json", "-n", "200ms")

    assert plain.code == data.code == 0
    assert "mail" in plain.out
    assert data.json["queues"][0]["name"] == "mail"
    assert data.json["throughput"] == {"arrived_per_s": 0.0, "ended_per_s": 0.0}
    assert data.json["workers"] == data.json["failing"] == []


def test_it_says_in_the_words_of_the_dashboard_what_needs_a_person() -> None:
    calm = snapshot(look(workers=1, mail=Counts(completed=3)), None)
    held = look(workers=1)
    rules = QueueRules(paused=True)
    old = NOW - timedelta(hours=3)
    held.queues.append(QueueInfo(queue="mail", rules=rules, counts=Counts(ready=120), oldest_ready_at=old))
    shot = snapshot(held, None)

    assert (calm["verdict"]["text"], calm["needs"]) == ("All calm", [])
    assert [need["kind"] for need in shot["needs"]] == ["paused"]
    text = "\n".join(lines_of(shot))
    assert "One thing needs you\n- mail is paused: 120 jobs are ready, the oldest for 3 h." in text
    assert "mail is paused" in "\n".join(rendered(shot, 100, 40))


def test_more_than_five_needs_are_counted() -> None:
    many = look(workers=1)
    old = NOW - timedelta(hours=3)
    for number in range(7):
        info = QueueInfo(
            queue=f"q{number}", rules=QueueRules(paused=True), counts=Counts(ready=1), oldest_ready_at=old
        )
        many.queues.append(info)

    lines = lines_of(snapshot(many, None))
    assert lines[1] == "Seven things need you"
    assert lines[7] == "- 2 more"
