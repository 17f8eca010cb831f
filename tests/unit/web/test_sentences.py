"""What answers say in words: short sentences about queues, failures, workers and changes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from taskharbor.client.family import Stopping
from taskharbor.model.presence import Machine
from taskharbor.web import sentences
from taskharbor.web.api.answers import CountOut, SkippedOut

QUEUE: dict[str, Any] = {
    "name": "mail",
    "ready": 0,
    "running": 0,
    "max_running": None,
    "workers": 1,
    "paused": False,
    "oldest_s": None,
    "target_s": 10.0,
    "arrived_per_s": None,
    "done_per_s": None,
    "failed_per_s": None,
    "empty_in_s": None,
}
CAUSE: dict[str, Any] = {"status": "open", "attempts": 1, "is_new": False, "began_with": ""}
WORKER: dict[str, Any] = {
    "id": "w-1",
    "name": "",
    "host": "a",
    "running": [],
    "concurrency": 4,
    "times_slower": None,
    "release": "",
    "started_at": None,
    "machine": None,
    "gpus": [],
}


def queue(**values: Any) -> Any:
    return SimpleNamespace(**QUEUE | values)


def cause(**values: Any) -> Any:
    return SimpleNamespace(**CAUSE | values)


def worker(**values: Any) -> Any:
    return SimpleNamespace(**WORKER | values)


# ------------------------------------------------------------------ queues

LATE = {"ready": 5, "oldest_s": 60.0}
GROWING = {"ready": 5, "oldest_s": 2.0, "arrived_per_s": 3.0, "done_per_s": 1.0}
QUEUES: dict[str, list[dict[str, Any]]] = {
    "": [],
    "It keeps up.": [{}],
    "All 2 keep up.": [{}, {"name": "b"}],
    "mail falls behind. The other one keeps up.": [LATE, {"name": "b"}],
    "mail is paused.": [{"paused": True} | LATE],
    "mail, b fall behind. c is paused. The other 2 keep up.": [
        *(LATE, LATE | {"name": "b"}, {"name": "c", "paused": True}, {"name": "d"}, {"name": "e"})
    ],
    "mail grows. b is paused. The other one keeps up.": [
        GROWING,
        {"name": "b", "paused": True},
        GROWING | {"name": "c", "oldest_s": 0.045, "ready": 1},
    ],
    "a, b, c and 2 more fall behind.": [LATE | {"name": name} for name in "abcde"],
}


@pytest.mark.parametrize("text", QUEUES)
def test_all_queues(text: str) -> None:
    assert sentences.queues_sentence([queue(**one) for one in QUEUES[text]], []) == text


def test_a_queue_that_needs_a_person_falls_behind() -> None:
    need: Any = SimpleNamespace(kind="unserved", queue="mail")

    assert sentences.queues_sentence([queue()], [need]) == "mail falls behind."


ONE_QUEUE: dict[str, dict[str, Any]] = {
    "No job waits.": {},
    "No job waits. No live worker takes jobs of this queue.": {"workers": 0},
    "1 job waits, and none starts before the queue is resumed.": {"ready": 1, "paused": True},
    "5 jobs wait, the oldest for 60 s; the target is 10 s.": LATE,
    "5 jobs wait, the oldest for 2 s. 3.00 arrive a second, 803 are done: empty in 14 min.": {
        "ready": 5,
        "oldest_s": 2.0,
        "arrived_per_s": 3.0,
        "done_per_s": 803.4,
        "empty_in_s": 840.0,
    },
    "1,000 jobs wait. 41.0 arrive a second, 0.28 are done, 0.10 fail: it falls behind, "
    "and all that may run at once are running.": {
        "ready": 1000,
        "arrived_per_s": 41.0,
        "done_per_s": 0.28,
        "failed_per_s": 0.1,
        "max_running": 2,
        "running": 2,
    },
    "5 jobs wait, the oldest for 2 s. 3.00 arrive a second, 1.00 are done: it grows.": GROWING,
    "1 job waits, the oldest for 45 ms. 3.00 arrive a second, 1.00 are done: it keeps up.": GROWING
    | {"ready": 1, "oldest_s": 0.045},
    "No job waits. 0.0 arrive a second, 0.0 are done: it keeps up.": {"arrived_per_s": 0, "done_per_s": 0},
}


@pytest.mark.parametrize("text", ONE_QUEUE)
def test_one_queue(text: str) -> None:
    assert sentences.queue_sentence(queue(**ONE_QUEUE[text])) == text


# ------------------------------------------------------------------ failures

NEW = {"is_new": True, "began_with": "r2"}
FAILURES: dict[str, list[dict[str, Any]]] = {
    "Nothing failed in an hour.": [{"status": "muted"}],
    "1 attempt failed in an hour, for one cause. It is not new.": [{}],
    "1 attempt failed in an hour, for one cause. It is new since release `r2`.": [NEW],
    "2,001 attempts failed in an hour, for 2 causes. None of them is new.": [{"attempts": 2000}, {}],
    "3 attempts failed in an hour, for 3 causes. 1 of them is new since release `r2`.": [{}, {}, NEW],
    "2 attempts failed in an hour, for 2 causes. All of them are new.": [NEW, NEW | {"began_with": "r1"}],
}


@pytest.mark.parametrize("text", FAILURES)
def test_failures(text: str) -> None:
    assert sentences.failures_sentence([cause(**one) for one in FAILURES[text]], "an hour") == text


def test_when_a_cause_began() -> None:
    began = sentences.began_sentence

    assert began("4f2a9c1", 660, 4, 7, is_new=True) == (
        "Began with release `4f2a9c1`, 11 min ago. In the 7 days before: none."
    )
    assert began("", 660, 4, 7, is_new=True) == "New, first seen 11 min ago. In the 7 days before: none."
    assert began("4f2a9c1", 172_800, 4, 7, is_new=False) == "Known for 2 d, last 4 s ago."


NONE, ONE, MANY = (CountOut(count=count, exact=True) for count in (0, 1, 143))
AT_LEAST = CountOut(count=20, exact=False)
UNSEEN = CountOut(count=0, exact=False)
OUTLOOKS: dict[str, tuple[int, CountOut, CountOut, float | None]] = {
    "1 attempt failed in an hour. None of its jobs is dead.": (1, NONE, NONE, None),
    "7 attempts failed in an hour.": (7, UNSEEN, NONE, None),
    "2 attempts failed in an hour. 1 job has used up its attempts.": (2, ONE, NONE, None),
    "184 attempts failed in an hour. 143 of its jobs try again by themselves, the next in 9 s. "
    "1 job has used up its attempts.": (184, ONE, MANY, 9.0),
    "3 attempts failed in an hour. 1 of its jobs tries again by itself, the next one now. "
    "None of its jobs is dead.": (3, NONE, ONE, 0.0),
    "9 attempts failed in an hour. 1 of its jobs tries again by itself, the next one now. "
    "1 job has used up its attempts.": (9, ONE, ONE, 0.069),
    "90 attempts failed in an hour. 20+ of its jobs try again by themselves. "
    "20+ jobs have used up their attempts.": (
        90, AT_LEAST, AT_LEAST, None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("text", OUTLOOKS)
def test_what_becomes_of_the_jobs_of_a_cause(text: str) -> None:
    attempts, dead, retrying, next_s = OUTLOOKS[text]

    assert sentences.outlook_sentence(attempts, "an hour", dead, retrying, next_s) == text


def test_where_a_job_failed_or_how() -> None:
    assert sentences.place_of_failure("app.py:send", "error") == "app.py:send"
    assert sentences.place_of_failure(None, "timeout") == "it ran longer than its timeout"
    assert sentences.place_of_failure(None, "another") == "another"


# ------------------------------------------------------------------ workers

OLD, NEWEST = {"release": "r1", "started_at": "2026-01-01"}, {"release": "r2", "started_at": "2026-02-01"}
WORKERS: dict[str, tuple[list[dict[str, Any]], int]] = {
    "": ([], 0),
    "Nobody is alive. One was lost.": ([], 1),
    "1 alive on one host, 0 of 4 slots busy.": ([{"times_slower": 1.4}], 0),
    "2 alive on 2 hosts, 1 of 8 slots busy. `b` is slow: its jobs take 3.2 times as long as on the others. "
    "2 were lost.": ([{"running": ["j"]}, {"host": "b", "name": "b", "times_slower": 3.21}], 2),
    "3 alive on one host, 0 of 12 slots busy. 2 still run release `r1`.": ([OLD, NEWEST, OLD], 0),
}


@pytest.mark.parametrize("text", WORKERS)
def test_workers(text: str) -> None:
    live, lost = WORKERS[text]

    assert sentences.workers_sentence([worker(**one) for one in live], [worker()] * lost) == text


GIB = 1024**3
MACHINES: dict[str, Machine] = {
    "": Machine(),
    "1 core, load 0.5": Machine(cores=1, load=0.5),
    "16 cores, load 11.2 · 41 of 64 GiB · store 0.9 ms": Machine(
        cores=16, load=11.2, memory=64 * GIB, memory_used=41 * GIB, store_s=0.0009
    ),
}


@pytest.mark.parametrize("text", MACHINES)
def test_a_machine(text: str) -> None:
    assert sentences.machine_text([worker(), worker(machine=MACHINES[text])]) == text


def test_a_machine_with_gpus_has_those_of_all_its_workers() -> None:
    beside = [worker(machine=Machine(cores=8, load=1.0), gpus=["a"]), worker(gpus=["b"])]

    assert sentences.machine_text(beside) == "8 cores, 2 GPUs"
    assert sentences.machine_text([worker()]) is None


# ------------------------------------------------------------------ changes


def test_what_somebody_did() -> None:
    assert sentences.deed("pause_queue", {}) == "paused queue"
    assert sentences.deed("bulk", {"action": "retry", "jobs": 1200}) == "asked to retry 1,200 jobs"
    assert sentences.deed("bulk", {}) == "asked to change 0 jobs"
    assert sentences.deed("send_event", {}) == "send event"


def test_what_a_bulk_action_leaves_alone() -> None:
    runs, waits = SkippedOut(why="it runs", count=1), SkippedOut(why="it waits to run", count=2)

    assert sentences.skipped_sentence([]) == ""
    assert sentences.skipped_sentence([runs]) == "1 more matches and stays as it is: it runs."
    assert sentences.skipped_sentence([runs, waits]) == (
        "3 more match and stay as they are: 1: it runs; 2: it waits to run."
    )


STOPPED: dict[str, Stopping] = {
    "Nothing of it is open but itself.": Stopping(waiting=0, running=0, below=0, spared=(), is_all=True),
    "1 waiting job does not run. 2 running jobs are asked to stop. 1 job further down is stopped, too. "
    "Still to run: tidy; a second cancel takes these, too.": Stopping(
        waiting=1, running=2, below=1, spared=("tidy",), is_all=True
    ),
}


@pytest.mark.parametrize("text", STOPPED)
def test_what_the_cancel_of_a_workflow_does(text: str) -> None:
    assert sentences.stopping_sentence(STOPPED[text]) == text
