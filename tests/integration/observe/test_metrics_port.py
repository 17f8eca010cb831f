"""--metrics-port: real workers and schedulers in processes of their own, scraped while they work."""

from __future__ import annotations

import contextlib
import socket
import threading
import urllib.request
from pathlib import Path

import pytest

from taskharbor.observe import metrics
from taskharbor.observe.meter import Meter
from taskharbor.testing.servers import free_port as find_free_port
from tests.integration.cli.conftest import Command
from tests.integration.observe.scraping import Scraped, Target, has, value

APP = """
import os
from taskharbor.harbor import Harbor

harbor = Harbor("sqlite:///jobs.db?durability=normal")

@harbor.task(queue="mail")
async def send() -> None: ...

@harbor.task(max_stalls=1)
async def leave() -> None:
    os._exit(7)

@harbor.cron(every="1s")
@harbor.task(queue="ticks")
async def tick() -> None: ...
"""


@pytest.fixture
def app(taskharbor: Command) -> Command:
    (Path(taskharbor.folder) / "app.py").write_text(APP)
    taskharbor.environment["TASKHARBOR_URL"] = "sqlite:///jobs.db?durability=normal"
    return taskharbor


def start(app: Command, port: int, *flags: str) -> Target:
    command = ["worker", "app:harbor", "--metrics-port", str(port), "--no-scheduler", *flags]
    return Target(port, app.start(*command))


def ok(scraped: Scraped, task: str = "send") -> float:
    return value(scraped, "taskharbor_jobs_finished_total", task=task, outcome="completed")


def test_a_worker_reports_what_it_does_and_what_the_store_holds(app: Command, free_port: int) -> None:
    for _ in range(20):
        app.put("send", queue="mail")

    target = start(app, free_port, "--concurrency", "3")
    found = target.until(
        lambda seen: ok(seen) == 20 and value(seen, "taskharbor_jobs", queue="mail", state="completed") == 20
    )

    assert value(found, "taskharbor_job_run_seconds_count", queue="mail", task="send", kind="any") == 20
    assert value(found, "taskharbor_job_wait_seconds_count", queue="mail") == 20
    assert value(found, "taskharbor_worker_slots", kind="any") == 3
    assert value(found, "taskharbor_worker_lease_seconds") == 30
    assert value(found, "taskharbor_store_op_seconds_count", op="exchange") >= 1
    assert value(found, "taskharbor_build_info", driver="sqlite") == 1
    assert value(found, "taskharbor_workers") == 1
    assert value(found, "taskharbor_store_errors_total") == 0
    assert has(found, "process_resident_memory_bytes")


@pytest.mark.more("kills processes or servers and waits until others take over")
def test_several_processes_are_one_set_of_numbers_that_outlives_crashed_and_recycled_ones(
    app: Command, free_port: int
) -> None:
    target = start(app, free_port, "--processes", "2", "--max-jobs", "5", "--concurrency", "2")
    target.until(lambda seen: value(seen, "taskharbor_worker_processes") == 2)
    app.put("leave")
    target.until(lambda seen: value(seen, "taskharbor_worker_process_ends_total", how="crashed") == 1)
    for _ in range(23):
        app.put("send", queue="mail")

    found = target.until(lambda seen: ok(seen) == 23)

    # The one with the crash in it had done nothing that could be lost; recycled ones reported everything.
    assert value(found, "taskharbor_worker_process_ends_total", how="recycled") >= 2
    assert value(found, "taskharbor_job_run_seconds_count", task="send") == 23
    totals = [ok(seen) for seen in target.seen]
    assert totals == sorted(totals)
    again = target.until(lambda seen: value(seen, "taskharbor_worker_slots") == 4)
    assert value(again, "taskharbor_worker_processes") == 2


def test_of_two_workers_one_reports_what_the_store_holds(app: Command, free_port: int) -> None:
    app.put("send", queue="mail")
    first = start(app, free_port)
    first.until(lambda seen: has(seen, "taskharbor_jobs"))
    port = find_free_port()

    second = start(app, port)
    found = second.until(lambda seen: value(seen, "taskharbor_store_op_seconds_count", op="hold_role") >= 1)

    assert not has(found, "taskharbor_jobs")
    assert not has(found, "taskharbor_queue_oldest_seconds")
    assert has(first.scrape(), "taskharbor_jobs")


def test_a_scheduler_reports_what_it_fires_and_how_late_it_is(app: Command, free_port: int) -> None:
    process = app.start("scheduler", "app:harbor", "--metrics-port", str(free_port))
    target = Target(free_port, process)

    found = target.until(
        lambda seen: (
            value(seen, "taskharbor_schedule_fires_total", schedule="tick", outcome="fired") >= 2
            and has(seen, "taskharbor_schedule_lag_seconds")
        )
    )

    assert value(found, "taskharbor_schedule_lag_seconds", schedule="tick") < 60
    assert value(found, "taskharbor_jobs_enqueued_total", queue="ticks", task="tick") >= 2
    assert value(found, "taskharbor_duty_jobs_total", duty="fire-cron") >= 2


def test_a_port_that_is_taken_ends_the_command_with_words(app: Command, free_port: int) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free_port))
        taken.listen()
        done = app("worker", "app:harbor", "--metrics-port", str(free_port), "--burst")

    assert done.code == 2
    assert f"metrics port 127.0.0.1:{free_port}" in done.err


@pytest.mark.more("waits in real time for leases, limits or grace times to pass")
def test_silent_and_slow_callers_do_not_keep_the_port_busy() -> None:
    exposition = metrics.Exposition(Meter().sample)
    port = find_free_port()
    stop = exposition.serve("127.0.0.1", port)
    silent = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(80)]
    try:
        assert threading.active_count() < 80 + metrics.MOST_SCRAPES
        for number, caller in enumerate(silent):
            with contextlib.suppress(ConnectionError):
                if number == 0:
                    caller.sendall(b"GET /metr")
                while caller.recv(4096):
                    pass
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            assert b"taskharbor_jobs_enqueued_total" in answer.read()
    finally:
        for caller in silent:
            caller.close()
        stop()
