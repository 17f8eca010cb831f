"""What needs a person: each sentence, their order, and the headline over them."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from taskharbor.client.needs import (
    HarborNow,
    LostWorker,
    NewCause,
    QueueNow,
    Rates,
    needs,
    span_text,
    verdict,
)
from taskharbor.drivers.messages import Counts, QueueInfo
from taskharbor.model.job import NewJob
from taskharbor.model.presence import WorkerInfo, WorkerReport
from taskharbor.model.queue import QueueRules
from taskharbor.model.schedule import Schedule, StoredSchedule

NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def queue(
    name: str = "mail",
    ready: int = 0,
    waited: timedelta = timedelta(),
    *,
    running: int = 0,
    rates: Rates | None = None,
    target_s: float = 60.0,
    throttled: bool = False,
    **rules: Any,
) -> QueueNow:
    info = QueueInfo(
        queue=name,
        rules=QueueRules(**rules),
        counts=Counts(ready=ready, running=running),
        oldest_ready_at=NOW - waited if ready else None,
        throttled_until=NOW + MINUTE if throttled else None,
    )
    return QueueNow(info=info, rates=rates or Rates(), target_s=target_s)


def worker(worker_id: str = "w-1", **report: Any) -> WorkerInfo:
    reported = WorkerReport(worker_id=worker_id, concurrency=4, **report)
    return WorkerInfo(report=reported, seen_at=NOW, expires_at=NOW + MINUTE)


def schedule(late: timedelta, **fields: Any) -> StoredSchedule:
    every = MINUTE
    rule = Schedule(name="nightly", template=NewJob(id="", type="x", queue="reports"), every=every)
    at = NOW - late - every
    return StoredSchedule(
        schedule=rule, last_tick_at=at, created_at=at, updated_at=at, **{"paused": False, **fields}
    )


def lost(**fields: Any) -> LostWorker:
    values: dict[str, Any] = {
        "id": "gpu-b-1",
        "name": "gpu-b",
        "host": "node-8",
        "queues": ("media",),
        "running": ("j1", "j2"),
    }
    return LostWorker(**{**values, "seen_at": NOW - 4 * MINUTE, **fields})


def found(**now: Any) -> list[tuple[str, str, str]]:
    return [(need.kind, need.text, need.detail) for need in needs(HarborNow(at=NOW, **now))]


FALLING = Rates(arrived_per_s=41.0, done_per_s=18.2)


def test_a_calm_harbor_needs_nobody() -> None:
    now = HarborNow(
        at=NOW,
        queues=[queue("mail", 3, timedelta(seconds=2)), queue("sms")],
        workers=[worker()],
        store_s=0.0009,
    )

    assert needs(now) == []
    headline = verdict(now, [])
    assert (headline.level, headline.text) == ("good", "All calm")
    assert headline.detail == "2 queues keep up, 1 worker is alive, the store answers in 0.9 ms."


def test_an_empty_store_is_calm_too() -> None:
    now = HarborNow(at=NOW)

    assert verdict(now, needs(now)).detail == "There are no jobs yet, 0 workers are alive."


def test_a_store_that_is_away() -> None:
    away = HarborNow(at=NOW, away_since=NOW - 3 * MINUTE)

    assert found(away_since=NOW - 3 * MINUTE) == [
        (
            "store",
            "The store does not answer",
            "It has been away for 3 min. The figures below are from before.",
        )
    ]
    assert verdict(away, needs(away)).detail == "Everything else is calm: nothing more is known."


def test_a_store_that_answers_late() -> None:
    assert found(store_s=2.5) == [("store", "The store answers late", "Its last answer took 2.5 s.")]
    assert found(store_s=1.9) == []


def test_a_queue_that_is_paused_with_ready_jobs_for_long() -> None:
    held = queue("reports", 120, timedelta(hours=3), paused=True)

    assert found(queues=[held]) == [
        ("paused", "reports is paused", "120 jobs are ready, the oldest for 3 h.")
    ]
    assert found(queues=[queue("reports", 120, 10 * MINUTE, paused=True)]) == []
    assert found(queues=[queue("reports", 0, paused=True)]) == []


def test_a_harbor_that_is_paused_is_one_need_for_all_its_queues() -> None:
    queues = [queue("a", 1, 11 * MINUTE), queue("b", 2, 20 * MINUTE, paused=True), queue("c", 5, MINUTE)]

    assert found(queues=queues, harbor=QueueRules(paused=True)) == [
        ("paused", "The whole harbor is paused", "3 jobs are ready, the oldest for 20 min.")
    ]
    assert found(queues=[queues[2]], harbor=QueueRules(paused=True)) == []


def test_nobody_at_work() -> None:
    queues = [queue("a", 1, MINUTE), queue("b", 2, MINUTE), queue("c", 3, timedelta(seconds=29))]

    assert found(queues=queues) == [
        (
            "unserved",
            "No worker is alive",
            "3 jobs are ready. Start one with `taskharbor worker module:harbor`.",
        )
    ]


def test_a_queue_that_no_worker_serves() -> None:
    assert found(queues=[queue("media", 1, MINUTE)], workers=[worker(queues=("mail",))]) == [
        ("unserved", "No worker takes jobs of media", "1 job is ready, and no live worker serves this queue.")
    ]
    assert found(queues=[queue("media", 1, MINUTE)], workers=[worker()]) == []
    [need] = needs(HarborNow(at=NOW, queues=[queue("media", 1, MINUTE)], workers=[worker(is_quiet=True)]))
    assert need.kind == "unserved"


def test_a_lane_that_no_worker_offers_and_who_did() -> None:
    now = {
        "queues": [queue("media", 212, MINUTE)],
        "workers": [worker()],
        "wants": [("media", "gpu", "render")],
    }

    assert found(**now, lost=[lost(running=())]) == [
        (
            "unserved",
            "Jobs of media wait for gpu",
            "No live worker of media offers gpu. gpu-b fell silent 4 min ago.",
        )
    ]


def test_a_task_that_no_worker_knows() -> None:
    now = {"queues": [queue("mail", 1, MINUTE)], "workers": [worker()], "wants": [("mail", "any", "send")]}

    assert found(**now) == [
        ("unserved", "Jobs of mail wait for a worker", "No live worker of mail knows the task send.")
    ]


def test_a_queue_that_falls_behind() -> None:
    full = queue("mail", 9812, 14 * MINUTE, running=20, rates=FALLING, max_running=20)
    [need] = needs(HarborNow(at=NOW, queues=[full], workers=[worker()]))

    assert (need.level, need.queue, need.text) == ("bad", "mail", "mail falls behind")
    assert need.detail == (
        "Its oldest job has waited 14 min, the target is 60 s. 41 arrive a second, 18 are done: "
        "all 20 jobs that may run at once are running."
    )
    assert [(one.label, one.view) for one in need.actions] == [
        ("Raise limit…", "#/queues/mail?edit=max_running"),
        ("Open queue", "#/queues/mail"),
    ]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"rates": FALLING}, "41 arrive a second, 18 are done."),
        ({"rates": FALLING, "throttled": True}, "18 are done: its execute rate holds it back."),
        ({"rates": Rates(arrived_per_s=0.5, done_per_s=0.05)}, "30 arrive a minute, 3 are done."),
    ],
)
def test_why_it_falls_behind(options: dict[str, Any], reason: str) -> None:
    [(_, _, detail)] = found(queues=[queue("mail", 5, 2 * MINUTE, **options)], workers=[worker()])

    assert detail.endswith(reason)


@pytest.mark.parametrize(
    "options",
    [
        {"rates": Rates(arrived_per_s=18.0, done_per_s=41.0)},
        {"rates": Rates()},
        {"rates": FALLING, "target_s": 3600.0},
        {"rates": FALLING, "paused": True},
    ],
)
def test_a_queue_that_keeps_up_or_of_which_too_little_is_known(options: dict[str, Any]) -> None:
    assert found(queues=[queue("mail", 5, 2 * MINUTE, **options)], workers=[worker()]) == []


def test_a_new_cause_with_dead_jobs() -> None:
    cause = NewCause(cause="9c1f", type="send_welcome", title="TimeoutError: timed out", dead=41)
    [need] = needs(HarborNow(at=NOW, causes=[cause]))

    assert (need.text, need.detail) == (
        "send_welcome fails in a new way",
        "41 jobs are dead: TimeoutError: timed out",
    )
    assert need.actions[0].view == "#/failures/9c1f"


def test_a_title_that_ends_in_gaps_stays_whole() -> None:
    title = "ReadTimeout: no answer from …"
    [need] = needs(
        HarborNow(at=NOW, causes=[NewCause(cause="9c1f", type="call_webhook", title=title, dead=1)])
    )

    assert need.detail == f"1 job is dead: {title}"


def test_a_store_that_answers_before_the_clock_moves_takes_under_a_millisecond() -> None:
    assert "the store answers in under 1 ms" in verdict(HarborNow(at=NOW, store_s=0.0), []).detail


def test_a_lost_worker_with_one_job() -> None:
    [(_, _, detail)] = found(lost=[lost(running=("a",))])

    assert detail.endswith("with 1 job running; it runs again when its lease is over.")


def test_a_lost_worker_matters_with_running_jobs() -> None:
    assert found(lost=[lost()]) == [
        (
            "lost",
            "gpu-b is lost",
            "It fell silent 4 min ago with 2 jobs running; they run again when their leases are over.",
        )
    ]
    assert found(lost=[lost(running=())]) == []


def test_a_schedule_that_is_late() -> None:
    assert found(schedules=[schedule(4 * MINUTE)]) == [
        ("schedule", "nightly is late", "It should have fired 4 min ago. Is a scheduler running?")
    ]
    assert found(schedules=[schedule(MINUTE), schedule(4 * MINUTE, paused=True)]) == []
    over = schedule(4 * MINUTE, declared_at=NOW - timedelta(days=9))
    assert found(schedules=[over]) == [], "no program declares it any more: it does not fire"


def test_a_worker_that_is_slower_than_the_others() -> None:
    workers = [worker("w-1"), worker("w-2", name="laptop")]
    [need] = needs(HarborNow(at=NOW, workers=workers, slower={"w-1": 1.4, "w-2": 2.23, "gone": 9.0}))

    assert (need.kind, need.level, need.text) == ("slow", "warn", "laptop is slow")
    assert need.detail == "Its jobs take 2.2 times as long as on the others."
    assert need.actions[0].view == "#/workers/w-2"


SECOND = timedelta(seconds=1)


@pytest.mark.parametrize(
    ("queues", "harbor", "text", "detail"),
    [
        (
            [queue("mail", 12, 38 * SECOND, paused=True), queue("sms")],
            QueueRules(),
            "Nothing needs you yet",
            "Mail is paused and 12 jobs wait in it, 1 queue keeps up, 0 workers are alive.",
        ),
        (
            [queue("mail", 5, 7 * SECOND, rates=FALLING)],
            QueueRules(),
            "Nothing needs you yet",
            "Mail grows, 0 workers are alive.",
        ),
        (
            [queue("mail", 1, SECOND, rates=FALLING), queue("sms", paused=True)],
            QueueRules(),
            "All calm",
            "2 queues keep up, 0 workers are alive.",
        ),
        (
            [queue("mail", 1, SECOND)],
            QueueRules(paused=True),
            "Nothing needs you yet",
            "The whole harbor is paused, 0 workers are alive.",
        ),
    ],
)
def test_calm_is_only_what_is_calm(
    queues: list[QueueNow], harbor: QueueRules, text: str, detail: str
) -> None:
    now = HarborNow(at=NOW, queues=queues, harbor=harbor)

    assert (verdict(now, []).text, verdict(now, []).detail) == (text, detail)


def test_the_rest_is_not_called_calm_while_a_queue_is_paused_with_jobs() -> None:
    queues = [queue("held", 1, SECOND, paused=True), queue("fine")]
    now = HarborNow(at=NOW, queues=queues, workers=[worker()], schedules=[schedule(4 * MINUTE)])

    assert verdict(now, needs(now)).detail == (
        "Besides: held is paused and 1 job waits in it, 1 queue keeps up, 1 worker is alive."
    )


def test_they_come_in_the_order_of_repair_and_the_headline_counts_all() -> None:
    now = HarborNow(
        at=NOW,
        store_s=9.0,
        queues=[
            queue("behind", 5, 2 * MINUTE, rates=FALLING),
            queue("media", 1, MINUTE),
            queue("held", 1, 20 * MINUTE, paused=True),
            queue("fine"),
        ],
        workers=[worker(queues=("behind", "held", "fine"))],
        causes=[NewCause(cause="c", type="t", title="X", dead=1)],
        lost=[lost()],
        schedules=[schedule(4 * MINUTE)],
    )
    kinds = [need.kind for need in needs(now)]
    headline = verdict(now, needs(now))

    assert kinds == ["store", "paused", "unserved", "behind", "cause", "lost", "schedule"]
    assert (headline.level, headline.text) == ("bad", "Seven things need you")
    assert headline.detail == (
        "Everything else is calm: 1 queue keeps up, 1 worker is alive, the store answers in 9 s."
    )
    one = needs(HarborNow(at=NOW, schedules=[schedule(4 * MINUTE)]))
    assert (verdict(now, one).level, verdict(now, one).text) == ("warn", "One thing needs you")
    assert verdict(now, one * 12).text == "12 things need you"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0009, "0.9 ms"), (0.0, "0 ms"), (-3.0, "0 ms"), (0.0123, "12 ms"), (0.999, "999 ms"), (1.0, "1 s"),
        (8.1, "8.1 s"), (60.0, "60 s"), (119.0, "119 s"), (120.0, "2 min"), (840.0, "14 min"),
        (3600.0, "1 h"), (90_000.0, "1 d"), (172_800.0, "2 d"),
    ],
)  # fmt: skip
def test_spans_are_written_in_one_unit(seconds: float, text: str) -> None:
    assert span_text(seconds) == text


def test_names_in_links_are_quoted() -> None:
    [need] = needs(HarborNow(at=NOW, queues=[queue("a.b-c", 1, 20 * MINUTE, paused=True)]))

    assert need.actions[0].view == "#/queues/a.b-c"
