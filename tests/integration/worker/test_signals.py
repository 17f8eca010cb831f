"""Worker processes that are killed, frozen and asked to leave: C01, C03, C05 to C11, Z10, Z13 to Z15."""

from __future__ import annotations

import asyncio
import os
import pty
import signal
import sqlite3
import time
from contextlib import closing, contextmanager

import pytest

from taskharbor.model.state import JobState
from taskharbor.worker import supervisor
from taskharbor.worker.executors.process_tree import kill_tree
from taskharbor.worker.signals import SAME_REQUEST_SECONDS
from tests.integration.worker.processes import is_alive, is_stopped


async def test_the_job_of_a_killed_worker_is_done_by_another_after_its_lease(harness):
    """C01, Z10: within the lease and two seconds, with one stall counted."""
    first = harness.worker(lease=3)
    job_id = await harness.put(payload=600)
    await harness.note("started", job_id)
    second = harness.worker(lease=3)
    at_work = None
    while at_work != second.pid:  # the first may take one of these, too
        at_work = (await harness.note("started", await harness.put(payload=0)))["pid"]
    first.kill()
    died = time.monotonic()

    again = await harness.note("started", job_id, nth=2)
    record = await harness.job(job_id)

    assert again["at"] - died <= 3 + 2
    assert again["pid"] == second.pid
    assert (record.stalls, record.attempts, record.starts) == (1, 0, 2)


@pytest.mark.more("kills processes or servers and waits until others take over")
async def test_all_jobs_of_killed_workers_are_done_by_new_ones(harness):
    """C03"""
    worker = harness.worker(lease=4, concurrency=10)
    ids = [await harness.put(payload=2) for _ in range(10)]
    await harness.note("started", nth=10)
    worker.kill()
    worker.wait()
    harness.worker(lease=4, concurrency=10)

    for job_id in ids:
        record = await harness.ended(job_id)
        assert (record.state, record.stalls, record.starts) == (JobState.COMPLETED, 1, 2)


async def test_sigterm_lets_a_short_job_finish(harness):
    """C05: done, exit code 0, nothing released; and nothing new is claimed."""
    worker = harness.worker(concurrency=1)
    job_id = await harness.put(payload=1)
    await harness.note("started", job_id)
    worker.terminate()
    later = await harness.put(payload=0)

    assert await harness.exit_code(worker) == 0
    assert "stopping: waiting for 1 job, 30s at most" in harness.log(worker)
    assert (await harness.job(job_id)).state is JobState.COMPLETED
    assert ((await harness.job(later)).state, (await harness.job(later)).starts) == (JobState.READY, 0)


async def test_sigterm_notifies_a_long_job_after_the_grace_time_and_hands_it_back(harness):
    """C06, Z14: attempts and stalls unchanged, and the next worker starts it at once."""
    worker = harness.worker(grace=1)
    job_id = await harness.put(payload=600)
    await harness.note("started", job_id)
    worker.terminate()
    stopped_at = time.monotonic()

    assert await harness.exit_code(worker) == 0
    assert time.monotonic() - stopped_at >= 1
    assert (await harness.note("cancelled", job_id))["reason"] == "shutdown"
    record = await harness.job(job_id)
    assert (record.state, record.attempts, record.stalls) == (JobState.READY, 0, 0)
    harness.worker()
    await harness.note("started", job_id, nth=2)


async def test_a_second_sigterm_releases_at_once_even_what_will_not_stop(harness):
    """C07, Z15"""
    worker = harness.worker(grace=600)
    ids = [await harness.put(payload=600), await harness.put("stubborn")]
    for job_id in ids:
        await harness.note("started", job_id)
    worker.terminate()
    await harness.until(lambda: "stopping" in harness.log(worker), "the first signal to be seen")
    await asyncio.sleep(SAME_REQUEST_SECONDS + 0.1)
    worker.terminate()

    assert await harness.exit_code(worker) == 0
    for job_id in ids:
        record = await harness.job(job_id)
        assert (record.state, record.attempts, record.stalls) == (JobState.READY, 0, 0)


@pytest.mark.more("waits in real time for leases, limits or grace times to pass")
@pytest.mark.parametrize("kind", ["worker", "supervisor"])
async def test_a_repeat_within_a_second_is_the_same_wish(harness, kind):
    """As `timeout` sends it: to the process, and then to its group."""
    process = harness.worker() if kind == "worker" else harness.supervisor()
    job_id = await harness.put(payload=2)
    await harness.note("started", job_id)
    pids = {process.pid, harness.notes("started", job_id)[0]["pid"]}
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
        for pid in pids:  # as service managers do: to the supervisor and to its workers
            os.kill(pid, number)

    assert await harness.exit_code(process) == 0
    assert "again" not in harness.log(process)
    record = await harness.job(job_id)
    assert (record.state, record.starts) == (JobState.COMPLETED, 1)


@pytest.mark.more("waits in real time for leases, limits or grace times to pass")
@pytest.mark.parametrize("kind", ["worker", "supervisor"])
async def test_an_interrupt_that_was_ignored_from_the_start_stays_so_and_sigterm_works(harness, kind):
    """As in the background of a script, or under nohup: Ctrl+C is meant for somebody else."""
    with ignored(signal.SIGINT):
        process = harness.worker() if kind == "worker" else harness.supervisor()
    job_id = await harness.put(payload=1)
    await harness.note("started", job_id)
    process.send_signal(signal.SIGINT)
    assert (await harness.ended(job_id)).state is JobState.COMPLETED
    later = await harness.put(payload=0)
    assert (await harness.ended(later)).state is JobState.COMPLETED

    process.terminate()

    assert await harness.exit_code(process) == 0


@contextmanager
def ignored(number):
    """Processes that are started meanwhile ignore this signal."""
    before = signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(number, before)


@pytest.mark.more("waits in real time for leases, limits or grace times to pass")
async def test_heartbeats_go_on_while_a_worker_drains(harness):
    """C09: longer than the lease, shorter than the grace time."""
    worker = harness.worker(lease=4, grace=60)
    harness.worker(lease=4)  # would take it if the lease ran out
    job_id = await harness.put(payload=9)
    note = await harness.note("started", job_id)
    owner = next(process for process in harness.processes if process.pid == note["pid"])
    owner.terminate()

    assert await harness.exit_code(owner) == 0
    record = await harness.ended(job_id)
    assert (record.state, record.starts, record.stalls) == (JobState.COMPLETED, 1, 0)
    assert worker in harness.processes


@pytest.mark.more("starts many processes")
async def test_the_other_signals_do_what_they_are_for_and_lose_nothing(harness):
    """C10: SIGQUIT shows where it is, SIGHUP reopens logs, SIGUSR1 stops claiming, SIGINT is SIGTERM."""
    worker = harness.worker()
    job_id = await harness.put(payload=3)
    await harness.note("started", job_id)

    worker.send_signal(signal.SIGQUIT)
    await harness.until(lambda: "most recent call first" in harness.log(worker), "the stacks")
    worker.send_signal(signal.SIGHUP)
    worker.send_signal(signal.SIGUSR1)
    await harness.until(lambda: "quiet" in harness.log(worker), "silence")
    unclaimed = await harness.put()
    assert (await harness.ended(job_id)).state is JobState.COMPLETED
    assert worker.poll() is None
    worker.send_signal(signal.SIGINT)

    assert await harness.exit_code(worker) == 0
    assert (await harness.job(unclaimed)).starts == 0


@pytest.mark.more("waits in real time for leases, limits or grace times to pass")
@pytest.mark.parametrize("error", ["SystemExit", "KeyboardInterrupt"])
async def test_a_task_of_a_handler_cannot_end_the_worker(harness, error):
    """C18: what asyncio hands to the one that runs the loop is a failure of that job, and nobody else's."""
    worker = harness.worker()
    neighbour = await harness.put(payload=2)
    await harness.note("started", neighbour)
    job_id = await harness.put("leaver", payload=error, max_attempts=1)

    record = await harness.ended(job_id)

    assert (record.state, record.stalls) == (JobState.FAILED, 0)
    assert record.last_error == f"{error}: leaving"
    assert len(harness.notes("seen", job_id)) == 1
    done = await harness.ended(neighbour)
    assert (done.state, done.starts) == (JobState.COMPLETED, 1)
    assert worker.poll() is None
    worker.send_signal(signal.SIGINT)
    assert await harness.exit_code(worker) == 0


async def test_a_call_in_a_thread_does_not_outlive_the_grace_time(harness):
    """Z15: the job goes back, and the process does not wait for what cannot be stopped."""
    worker = harness.worker(grace=1)
    job_id = await harness.put("threaded", payload=600)
    await harness.note("started", job_id)
    worker.terminate()

    await harness.until(lambda: worker.poll() is not None, "the process to end", seconds=20)
    assert worker.returncode == 0
    record = await harness.job(job_id)
    assert (record.state, record.attempts, record.stalls) == (JobState.READY, 0, 0)


async def freeze(harness, process):
    """Stop a process at a moment when it does not hold the write lock of a database file."""
    for _ in range(200):
        process.send_signal(signal.SIGSTOP)
        await harness.until(lambda: is_stopped(process.pid), "the process to stop")
        if all(is_free(harness.folder / name) for name in ("jobs.db", "fenced.db")):
            return
        process.send_signal(signal.SIGCONT)
        await asyncio.sleep(0.01)
    raise AssertionError("it always held a lock")


def is_free(path) -> bool:
    try:
        with closing(sqlite3.connect(path, timeout=0.5, isolation_level=None)) as db:
            db.execute("begin immediate")
            db.execute("rollback")
    except sqlite3.OperationalError:
        return False
    return True


@pytest.mark.more("waits in real time for leases, limits or grace times to pass")
async def test_a_frozen_worker_that_comes_back_can_change_nothing(harness):
    """C11, Z13: its handler is stopped, its result refused, the fenced table keeps the other's rows."""
    frozen = harness.worker(lease=4)
    job_id = await harness.put("writer", payload=150)
    old = await harness.note("started", job_id)
    await freeze(harness, frozen)
    harness.worker(lease=4)
    new = await harness.note("started", job_id, nth=2)
    assert new["fence"] > old["fence"]

    frozen.send_signal(signal.SIGCONT)
    stopped = await harness.note("stopped", job_id)

    assert (stopped["pid"], stopped["reason"]) == (frozen.pid, "lease_lost")
    record = await harness.ended(job_id)
    assert (record.state, record.stalls, record.starts) == (JobState.COMPLETED, 1, 2)
    with sqlite3.connect(harness.folder / "fenced.db") as db:
        assert db.execute("select fence, turns from fenced").fetchall() == [(new["fence"], 150)]
    assert "lost the lease" in harness.log(frozen)
    frozen.terminate()
    assert await harness.exit_code(frozen) == 0


# ------------------------------------------------------------------ the supervisor


@pytest.mark.more("kills processes or servers and waits until others take over")
async def test_a_killed_worker_process_is_replaced_and_its_job_done(harness):
    """C02 for a whole worker: the supervisor starts a successor, the lease brings the job back."""
    supervisor = harness.supervisor(options={"lease": 4})
    job_id = await harness.put(payload=2)
    first = await harness.note("started", job_id)
    os.kill(first["pid"], signal.SIGKILL)

    record = await harness.ended(job_id)
    again = harness.notes("started", job_id)[1]
    assert (record.state, record.stalls) == (JobState.COMPLETED, 1)
    assert again["pid"] not in (first["pid"], supervisor.pid)
    assert f"worker process {first['pid']} was killed by SIGKILL" in harness.log(supervisor)
    supervisor.terminate()
    assert await harness.exit_code(supervisor) == 0


async def test_the_workers_of_a_killed_supervisor_die_with_it(harness):
    """C01"""
    supervisor = harness.supervisor(processes=2, options={"concurrency": 1})
    ids = [await harness.put(payload=600) for _ in range(2)]
    pids = {(await harness.note("started", job_id))["pid"] for job_id in ids}
    assert len(pids) == 2
    supervisor.kill()

    await harness.until(lambda: not any(is_alive(pid) for pid in pids), "the workers to go")


async def test_a_supervisor_passes_sigterm_on_and_ends_after_its_workers(harness):
    supervisor = harness.supervisor(processes=2, options={"concurrency": 1})
    ids = [await harness.put(payload=1) for _ in range(2)]
    pids = {(await harness.note("started", job_id))["pid"] for job_id in ids}
    supervisor.terminate()

    assert await harness.exit_code(supervisor) == 0
    assert not any(is_alive(pid) for pid in pids)
    assert [(await harness.job(job_id)).state for job_id in ids] == [JobState.COMPLETED] * 2


async def test_a_second_sigterm_reaches_the_workers_too(harness):
    supervisor = harness.supervisor(options={"grace": 600}, grace_seconds=600)
    job_id = await harness.put(payload=600)
    await harness.note("started", job_id)
    supervisor.terminate()
    await harness.until(lambda: harness.log(supervisor).count("stopping") >= 2, "both to have been notified")
    await asyncio.sleep(SAME_REQUEST_SECONDS + 0.1)
    supervisor.terminate()

    assert await harness.exit_code(supervisor) == 0
    record = await harness.job(job_id)
    assert (record.state, record.attempts, record.stalls) == (JobState.READY, 0, 0)


@pytest.mark.more("starts many processes")
async def test_workers_are_recycled_and_nothing_is_lost(harness):
    supervisor = harness.supervisor(options={"max_jobs": 5, "concurrency": 2}, until_idle=True)
    ids = [await harness.put() for _ in range(12)]

    assert await harness.exit_code(supervisor) == 0
    assert [(await harness.job(job_id)).state for job_id in ids] == [JobState.COMPLETED] * 12
    assert len({note["pid"] for note in harness.notes("started")}) >= 2
    assert "has reached its limit" in harness.log(supervisor)


@pytest.mark.more("starts many processes")
async def test_a_worker_that_takes_too_much_memory_makes_room_for_another(harness):
    supervisor = harness.supervisor(options={"max_memory": 1})
    await harness.until(lambda: harness.log(supervisor).count("has reached its limit") >= 2, "two successors")
    supervisor.terminate()
    assert await harness.exit_code(supervisor) == 0


@pytest.mark.parametrize(
    "app",
    [
        "no_such_module:app",
        "tests.integration.worker.app:nothing_there",
        "tests.integration.worker.app:not_a_worker",
    ],
)
async def test_an_app_that_cannot_start_ends_the_supervisor(harness, app):
    supervisor = harness.supervisor(app=app, processes=2)
    assert await harness.exit_code(supervisor) == 2
    assert harness.log(supervisor).count("cannot start") == 1
    assert "Traceback" not in harness.log(supervisor)
    assert "has started" not in harness.log(supervisor)


async def test_a_worker_process_that_ends_by_itself_is_reported_as_such(harness):
    """Nothing about a job: the process may have had none, or many."""
    supervisor = harness.supervisor()
    job_id = await harness.put("quitter", payload=5)
    await harness.until(lambda: "exited with code" in harness.log(supervisor), "the end of the process")

    pid = (await harness.note("started", job_id))["pid"]
    assert f"worker process {pid} exited with code 5\n" in harness.log(supervisor)
    supervisor.terminate()
    assert await harness.exit_code(supervisor) == 0


async def test_the_family_of_a_worker_process_is_ended_before_its_number_is_free(monkeypatch):
    seen = []

    def watched(pid, mark):
        seen.append(os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG))
        kill_tree(pid, mark)

    monkeypatch.setattr(supervisor, "kill_tree", watched)
    process = supervisor._WorkerProcess(supervisor.SupervisorConfig(app="no_such_module:app"), reports=False)

    assert await process.until_exit(asyncio.Event(), 60) == 2
    assert [zombie and zombie.si_status for zombie in seen] == [2]


# ------------------------------------------------------------------ a terminal


@pytest.fixture
def at_terminal(harness):
    """Processes of this test have a terminal as their stdin."""
    ours, harness.stdin = pty.openpty()
    yield
    os.close(harness.stdin)
    os.close(ours)


@pytest.mark.more("waits in real time for leases, limits or grace times to pass")
@pytest.mark.usefixtures("at_terminal")
@pytest.mark.parametrize("kind", ["worker", "supervisor"])
async def test_closing_its_terminal_stops_it_like_sigterm(harness, kind):
    """Twice, as shells and terminals do: that is no wish to hurry."""
    process = harness.worker() if kind == "worker" else harness.supervisor()
    job_id = await harness.put(payload=2)
    await harness.note("started", job_id)
    process.send_signal(signal.SIGHUP)
    await harness.until(lambda: "stopping" in harness.log(process), "the first to be seen")
    process.send_signal(signal.SIGHUP)

    assert await harness.exit_code(process) == 0
    assert (await harness.job(job_id)).state is JobState.COMPLETED
