"""Handlers in processes of their own: C13, C16 to C21, C24 to C29."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from taskharbor.drivers import connect
from taskharbor.errors import ConfigurationError
from taskharbor.events import ChildDied, EventBus
from taskharbor.model.clock import SystemClock
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import NewJob
from taskharbor.model.retry import RetryPolicy
from taskharbor.model.state import JobState
from taskharbor.tasks import job_handler
from taskharbor.worker import Worker
from taskharbor.worker.executors import in_process
from taskharbor.worker.executors.process_tree import kill_tree
from tests.integration.worker import handlers

SLOW = 30.0  # how long to wait for something that should happen soon


class Floor:
    """A memory store and a worker whose handlers all run in processes."""

    def __init__(self, driver, **options):
        self.driver = driver
        self.deaths: list[ChildDied] = []
        self.entropy = Entropy()
        bus = EventBus()
        bus.listen(self.deaths.append, ChildDied)
        options = {"retry": RetryPolicy(max_attempts=1), "patience": timedelta(seconds=0.5), **options}
        self.worker = Worker(driver, events=bus, **options)
        for name, function in vars(handlers).items():
            if callable(function) and getattr(function, "__module__", "") == handlers.__name__:
                self.worker.add(job_handler(name, function, run_in="process"))

    async def put(self, name, payload="", **fields):
        job_id = self.entropy.job_id(SystemClock().now())
        await self.driver.enqueue([NewJob(id=job_id, type=name, payload=str(payload).encode(), **fields)])
        return job_id

    async def job(self, job_id):
        [record] = await self.driver.get([job_id])
        return record

    async def ended(self, job_id):
        return await self.when(job_id, lambda record: record.state.is_terminal)

    async def when(self, job_id, is_so):
        async with asyncio.timeout(SLOW):
            while not is_so(record := await self.job(job_id)):
                await asyncio.sleep(0.01)
        return record

    async def run(self, name, payload="", **fields):
        return await self.ended(await self.put(name, payload, **fields))

    async def result(self, name, payload="", **fields):
        record = await self.run(name, payload, **fields)
        assert record.state is JobState.COMPLETED, record.last_error
        return json.loads(record.result or b"null")


@pytest.fixture
async def floor():
    async with connect("memory://") as driver:
        floor = Floor(driver)
        task = asyncio.create_task(floor.worker.arun())
        yield floor
        floor.worker.stop(now=True)
        await asyncio.wait_for(task, SLOW)


async def written(path: Path) -> str:
    async with asyncio.timeout(SLOW):
        while not path.exists() or not path.read_text():
            await asyncio.sleep(0.01)
    return path.read_text()


async def gone(pid: int) -> None:
    """Until the process has ended; a zombie that nobody has collected yet has ended, too."""
    async with asyncio.timeout(SLOW):
        while Path(f"/proc/{pid}/stat").exists() if Path("/proc").exists() else alive(pid):
            try:
                if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                    return
            except (FileNotFoundError, ProcessLookupError):
                return
            await asyncio.sleep(0.02)


async def until(is_so) -> None:
    async with asyncio.timeout(SLOW):
        while not is_so():
            await asyncio.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# ------------------------------------------------------------------ it works


async def test_a_handler_runs_in_another_process_and_knows_its_job(floor):
    seen = await floor.result("add", timeout=timedelta(seconds=60))
    assert seen.pop("pid") != os.getpid()
    assert seen == {"attempt": 1, "fence": True, "deadline": True}


async def test_coroutine_handlers_run_there_too_and_the_process_is_used_again(floor):
    first = await floor.result("add_async")
    second = (await floor.result("add"))["pid"]
    assert first == second != os.getpid()


async def test_failures_wishes_and_results_that_cannot_be_kept_come_back_as_such(floor):
    failed = await floor.run("fails")
    assert (failed.failure_kind, failed.last_error) == ("error", "ValueError: no luck over there")
    assert "handlers.py" in (failed.history[0].error or "")
    assert (await floor.run("gives_up", max_attempts=9)).failure_kind == "unrecoverable"
    assert (await floor.run("returns_nonsense")).state is JobState.FAILED
    snoozed = await floor.when(await floor.put("snoozes"), lambda record: record.state is JobState.SCHEDULED)
    assert snoozed.attempts == 0


async def test_progress_and_cancel_reach_across(floor, tmp_path):
    floor.worker.stop(now=True)  # the fixture's worker has too long a lease to show progress soon
    async with connect("memory://") as driver:
        quick = Floor(driver, lease=timedelta(seconds=3))
        task = asyncio.create_task(quick.worker.arun())
        job_id = await quick.put("says_how_far", tmp_path / "here")
        record = await quick.when(job_id, lambda record: record.progress is not None)
        assert (record.progress.fraction, record.progress.text) == (0.5, "half")
        await driver.cancel([job_id])
        assert (await quick.ended(job_id)).state is JobState.CANCELLED
        quick.worker.stop()
        await asyncio.wait_for(task, SLOW)


# ------------------------------------------------------------------ it dies


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("exits_zero", "exited with code 0"),
        ("exits_one", "exited with code 1"),
        ("segfaults", "SIGSEGV"),
        ("aborts", "SIGABRT"),
        ("kills_itself", "SIGKILL"),
        ("closes_everything", "closed its connection"),
    ],
)
async def test_a_process_that_dies_is_a_stall_with_its_cause_and_hurts_no_neighbour(floor, name, cause):
    """C16, C17, C18, C25: dead after max_stalls, without waiting for any lease to run out."""
    neighbour = asyncio.create_task(floor.run("add_async"))
    record = await floor.run(name, max_stalls=2)

    assert (record.state, record.failure_kind) == (JobState.FAILED, "stalled")
    assert (record.stalls, record.attempts, record.starts) == (2, 0, 2)
    assert cause in (record.last_error or "")
    assert (await neighbour).state is JobState.COMPLETED
    assert [death.job_id for death in floor.deaths if death.job_id] == [record.id] * 2


async def test_system_exit_is_a_failure_and_the_process_lives_on(floor):
    """C18"""
    before = (await floor.result("add"))["pid"]
    record = await floor.run("system_exit")
    assert (record.failure_kind, record.last_error) == ("error", "SystemExit: leaving")
    assert (await floor.result("add"))["pid"] == before


async def test_a_memory_bomb_ends_only_itself():
    """C19"""
    async with connect("memory://") as driver:
        floor = Floor(driver, process_memory=1024 * 1024 * 1024)
        task = asyncio.create_task(floor.worker.arun())
        record = await floor.run("eats_memory", max_stalls=1)
        assert "out of memory" in (record.last_error or "")
        assert (await floor.result("add"))["pid"] != os.getpid()
        floor.worker.stop()
        await asyncio.wait_for(task, SLOW)


@pytest.mark.parametrize("name", ["loops_forever", "loops_in_c", "sleeps_async"])
async def test_a_handler_past_its_time_limit_is_ended_and_counted_as_a_timeout(floor, tmp_path, name):
    """C20, C21: an endless loop, one that holds the interpreter lock for good, and a coroutine."""
    started = time.monotonic()
    record = await floor.run(name, tmp_path / "pid", timeout=timedelta(seconds=1), max_stalls=1)

    assert (record.state, record.failure_kind) == (JobState.FAILED, "timeout")
    assert (record.attempts, record.stalls) == (1, 0)
    assert time.monotonic() - started < 1 + 0.5 + SLOW / 2
    assert (await floor.result("add"))["pid"] != os.getpid()
    if name == "loops_in_c":
        await gone(int((tmp_path / "pid").read_text()))


async def test_a_stopped_process_is_killed_at_its_time_limit(floor, tmp_path):
    """C13: SIGSTOP to the child alone; no lease lasts for ever."""
    job_id = await floor.put("loops_forever", tmp_path / "pid", timeout=timedelta(seconds=2))
    pid = int(await written(tmp_path / "pid"))
    os.kill(pid, signal.SIGSTOP)

    record = await floor.ended(job_id)

    assert record.failure_kind == "timeout"
    await gone(pid)


async def test_a_cancelled_job_ends_its_handler_at_once(floor, tmp_path):
    job_id = await floor.put("loops_in_c", tmp_path / "pid")
    pid = int(await written(tmp_path / "pid"))
    await floor.driver.cancel([job_id])

    assert (await floor.ended(job_id)).state is JobState.CANCELLED
    await gone(pid)


# ------------------------------------------------------------------ it does not start


@pytest.fixture
def never_ready(monkeypatch, tmp_path):
    """Handler processes hang while they start; answers where the newest one leaves its number."""
    monkeypatch.setattr(in_process, "_CHILD_MODULE", "tests.integration.worker.never_ready")
    monkeypatch.setenv("NEVER_READY", str(tmp_path / "pid"))
    return tmp_path / "pid"


@pytest.mark.more("waits in real time for leases, limits or grace times to pass")
async def test_a_process_that_hangs_while_it_starts_is_ended_without_any_time_limit(
    floor, never_ready, monkeypatch
):
    monkeypatch.setattr(in_process, "_START_SECONDS", 5.0)
    record = await floor.run("add", max_stalls=1)

    assert (record.state, record.failure_kind) == (JobState.FAILED, "stalled")
    assert "was not ready after 5 s" in (record.last_error or "")
    await gone(int(await written(never_ready)))


async def test_a_job_cancelled_while_its_process_starts_takes_the_process_along(floor, never_ready):
    job_id = await floor.put("add")
    pid = int(await written(never_ready))
    await floor.driver.cancel([job_id])

    assert (await floor.ended(job_id)).state is JobState.CANCELLED
    await gone(pid)


async def test_a_worker_that_stops_while_a_process_starts_hands_the_job_back(never_ready):
    async with connect("memory://") as driver:
        floor = Floor(driver)
        task = asyncio.create_task(floor.worker.arun())
        job_id = await floor.put("add")
        pid = int(await written(never_ready))
        floor.worker.stop(now=True)
        await asyncio.wait_for(task, SLOW)

        record = await floor.job(job_id)
        assert (record.state, record.attempts, record.stalls) == (JobState.READY, 0, 0)
    await gone(pid)


async def test_no_process_at_all_is_a_stall_with_its_cause_and_leaks_nothing(floor, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/no/such/interpreter")
    pairs: list[tuple[socket.socket, socket.socket]] = []
    # Only there: event loops make such pairs, too, and keep them.
    monkeypatch.setattr(in_process, "socket", SimpleNamespace(socketpair=kept(pairs)))
    record = await floor.run("add", max_stalls=2)

    assert (record.failure_kind, record.stalls, record.attempts) == ("stalled", 2, 0)
    assert "no process could be started for it" in (record.last_error or "")
    assert "/no/such/interpreter" in (record.last_error or "")
    assert len(pairs) >= 2
    assert all(end.fileno() == -1 for pair in pairs for end in pair)


def kept(pairs):
    """A socketpair that keeps hold of both ends, so that no collector closes them."""
    make = socket.socketpair

    def socketpair():
        pairs.append(make())
        return pairs[-1]

    return socketpair


async def test_the_family_of_a_process_is_ended_before_its_number_is_free(floor, monkeypatch):
    seen = []

    def watched(pid, mark):
        seen.append(os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None)
        kill_tree(pid, mark)

    monkeypatch.setattr(in_process, "kill_tree", watched)
    await floor.run("exits_one", max_stalls=1)
    assert seen == [True]


# ------------------------------------------------------------------ what it leaves behind


async def test_descendants_go_with_it_even_those_that_left_the_session(floor, tmp_path):
    """C24"""
    record = await floor.run("leaves_a_daemon", tmp_path / "pid", max_stalls=1)
    assert "code 3" in (record.last_error or "")
    await gone(int((tmp_path / "pid").read_text()))


@pytest.mark.more("waits in real time for leases, limits or grace times to pass")
@pytest.mark.parametrize("how", ["timeout", "cancel"])
async def test_what_a_handler_started_goes_when_it_obeys_a_stop(floor, tmp_path, how):
    note = tmp_path / "pids"
    limit = {"timeout": timedelta(seconds=8)} if how == "timeout" else {}
    job_id = await floor.put("starts_and_waits", note, **limit)
    leader = int(await written(tmp_path / "pids.ready"))
    if how == "cancel":
        await floor.driver.cancel([job_id])

    await floor.ended(job_id)

    for pid in note.read_text().split():
        await gone(int(pid))
    assert (await floor.result("add"))["pid"] != leader


async def test_a_handler_that_is_stopped_and_left_nothing_keeps_its_process(floor, tmp_path):
    first = (await floor.result("add"))["pid"]
    job_id = await floor.put("sleeps_async", tmp_path / "pid")
    await written(tmp_path / "pid")

    await floor.driver.cancel([job_id])

    assert (await floor.ended(job_id)).state is JobState.CANCELLED
    assert (await floor.result("add"))["pid"] == first


async def test_a_handler_that_forks_is_answered_once(floor):
    """C24"""
    pid = await floor.result("forks")
    assert pid == await floor.result("add_async")
    assert floor.deaths == []


async def test_what_a_handler_changed_is_put_right(floor):
    """C25"""
    pid = await floor.result("resets_signals")
    assert await floor.result("where_am_i") == [pid, os.getcwd()]
    record = await floor.run("loops_forever", "/dev/null", timeout=timedelta(seconds=1))
    assert record.failure_kind == "timeout"


async def test_a_flood_of_output_harms_nobody(floor, capfd):
    """C28"""
    assert await floor.result("prints_a_lot") == "printed"
    with capfd.disabled():
        pass


@pytest.mark.parametrize("name", ["leaks_threads", "leaks_files"])
async def test_a_process_that_leaks_is_replaced(floor, name):
    """C29"""
    worn = await floor.result(name)
    assert (await floor.result("add"))["pid"] != worn
    await gone(worn)


@pytest.fixture
async def gpu_floor():
    """With one device that nobody has seen, and a lane for it."""
    async with connect("memory://") as driver:
        floor = Floor(driver, kind="gpu", gpus="0")
        task = asyncio.create_task(floor.worker.arun())
        yield floor
        floor.worker.stop(now=True)
        await asyncio.wait_for(task, SLOW)


async def test_a_process_whose_gpu_context_is_broken_takes_no_further_job(gpu_floor, caplog):
    broken, _ = await gpu_floor.result("uses_its_gpu", requires="gpu")

    record = await gpu_floor.run("breaks_its_gpu", requires="gpu")
    innocent = [await gpu_floor.result("uses_its_gpu", requires="gpu") for _ in range(3)]

    assert "its process is replaced: its GPU context is broken" in (record.last_error or "")
    assert broken not in {pid for pid, _ in innocent}
    assert {device for _, device in innocent} == {"0"}
    await gone(broken)
    await until(lambda: gpu_floor.deaths != [])
    [death] = gpu_floor.deaths
    assert (death.pid, death.job_id) == (broken, record.id)
    assert "its GPU context is broken" in death.cause
    assert f"handler process {broken} has ended (job {record.id}): its GPU context is broken" in caplog.text


async def test_recycle_on_names_the_errors_that_end_a_process(caplog):
    async with connect("memory://") as driver:
        floor = Floor(driver)
        for name in ("loses_patience", "fails"):
            function = getattr(handlers, name)
            recycled = job_handler(name, function, run_in="process", recycle_on=ConnectionError)
            floor.worker.add(recycled)
        task = asyncio.create_task(floor.worker.arun())
        first = (await floor.result("add"))["pid"]
        await floor.run("fails")
        assert (await floor.result("add"))["pid"] == first

        record = await floor.run("loses_patience")
        assert (await floor.result("add"))["pid"] != first
        await gone(first)
        floor.worker.stop()
        await asyncio.wait_for(task, SLOW)

    assert record.last_error == (
        f"ConnectionResetError: {first} [its process is replaced: recycle_on names ConnectionError]"
    )
    assert f"(job {record.id}): recycle_on names ConnectionError" in caplog.text


async def test_no_process_outlives_its_worker():
    async with connect("memory://") as driver:
        floor = Floor(driver)
        task = asyncio.create_task(floor.worker.arun())
        pid = (await floor.result("add"))["pid"]
        floor.worker.stop()
        await asyncio.wait_for(task, SLOW)
    await gone(pid)


async def test_a_function_that_no_process_could_import_is_refused():
    async with connect("memory://") as driver:
        worker = Worker(driver)
        worker.add(job_handler("work", lambda ctx, job: None, run_in="process"))
        with pytest.raises(ConfigurationError):
            await worker.arun()


async def test_exceptions_of_a_process_decide_about_another_try_too():
    """Their names travel with the failure."""
    async with connect("memory://") as driver:
        floor = Floor(driver, retry=RetryPolicy(no_retry_on=("ValueError",)))
        job_id = await floor.put("fails", max_attempts=5)

        await asyncio.wait_for(floor.worker.arun(until_idle=True), SLOW)

        record = await floor.job(job_id)
        assert (record.attempts, record.failure_kind) == (1, "unrecoverable")
