"""A few bytes of a request must not become hundreds of megabytes in a server: seen in a real process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest

from taskharbor.drivers import connect
from taskharbor.drivers.messages import Claim
from taskharbor.model.cause import cause_of
from taskharbor.model.clock import micros
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import NewJob
from taskharbor.model.log_cells import CauseNumbers, packed
from taskharbor.model.logbook import CAUSES, LogEntry
from taskharbor.model.settlement import Fail
from tests.integration.http.api import GENEROUS_SECONDS, make_token, token_file

MEGABYTE = 1_000_000
LIMIT = 256 * 1024 * 1024
JOBS = 150
DAY = timedelta(days=1)
RETRY_ALL = {"action": "retry", "q": "state:failed xxxx", "dry_run": True}


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/jobs.db?durability=normal"


@pytest.fixture
def server(url: str) -> Iterator[tuple[str, int]]:
    """(address, pid) of a server on a store of its own."""
    with running(url) as found:
        yield found


@contextmanager
def running(url: str, *options: str) -> Iterator[tuple[str, int]]:
    serve = ["server", "--port", "0", "--no-scheduler", "--url", url, *options]
    command = [sys.executable, "-m", "taskharbor", *serve]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        found = None
        while found is None:
            line = process.stderr.readline()
            assert line, "the server ended"
            found = re.search(r"serving on (http://\S+)", line)
        yield found[1], process.pid
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def peak_of(pid: int) -> int:
    status = Path(f"/proc/{pid}/status")
    if not status.exists():
        pytest.skip("this machine does not show how much memory a process had")
    found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text())
    assert found is not None
    return int(found[1]) * 1024


def cpu_of(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    stat = Path(f"/proc/{pid}/stat")
    if not stat.exists():
        pytest.skip("this machine does not show how much CPU a process used")
    used = stat.read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, used)) / os.sysconf("SC_CLK_TCK")


async def fill(url: str, count: int = JOBS) -> list[str]:
    async with connect(url) as driver:
        entropy, ids = Entropy(), []
        for _ in range(count):
            ids.append(entropy.job_id(driver.clock.now()))
            await driver.enqueue([NewJob(id=ids[-1], type="big", payload=b'"' + b"x" * MEGABYTE + b'"')])
        return ids


def ask(address: str, verb: str, **arguments: Any) -> httpx2.Response:
    with httpx2.Client(timeout=GENEROUS_SECONDS) as client:
        return client.post(f"{address}/api/driver/{verb}", json=arguments)


@pytest.mark.more("hundreds of jobs, or megabytes of them")
async def test_large_jobs_are_listed_fetched_and_claimed_in_bounded_memory(
    server: tuple[str, int], url: str
) -> None:
    (address, pid), ids = server, await fill(url)

    repeated = ask(address, "get", ids=[ids[0]] * 400)
    assert (repeated.status_code, repeated.json()["type"]) == (413, "urn:taskharbor:problem:answer-too-large")
    assert ask(address, "get", ids=ids).status_code == 413
    assert ask(address, "get", ids=ids[:5]).status_code == 200
    lean = ask(address, "get", ids=ids, payloads=False)
    assert [job["id"] for job in lean.json()] == ids

    page = ask(address, "find", query={"limit": 1000}).json()
    assert 0 < len(page["jobs"]) < JOBS
    assert page["next_cursor"]

    with httpx2.Client(timeout=GENEROUS_SECONDS) as client:
        listed = client.get(f"{address}/api/jobs?limit=300").json()
        assert len(listed["items"]) == JOBS
        assert client.get(f"{address}/api/jobs/{ids[-1]}/why").status_code == 200

    claimed = ask(address, "reserve", claim={"queues": ["default"], "worker_id": "w", "limit": JOBS}).json()
    assert 0 < len(claimed) < JOBS
    assert peak_of(pid) < LIMIT


@pytest.mark.more("hundreds of jobs, or megabytes of them")
async def test_a_viewers_list_of_large_jobs_is_made_in_bounded_memory(url: str, tmp_path: Path) -> None:
    ids = await fill(url, 300)
    token = make_token(token_file(tmp_path), "viewer")

    with running(url, "--tokens", str(tmp_path / "tokens.json")) as (address, pid):
        with httpx2.Client(timeout=GENEROUS_SECONDS, headers={"Authorization": f"Bearer {token}"}) as client:
            listed = client.get(f"{address}/api/jobs?limit=300").json()
        peak = peak_of(pid)

    assert {job["id"] for job in listed["items"]} == set(ids)
    assert peak < LIMIT


@pytest.mark.more("hundreds of jobs, or megabytes of them")
async def test_looking_at_large_dead_letters_takes_little_memory(server: tuple[str, int], url: str) -> None:
    """A look at the board reads them without payloads; a search reads those, and keeps none."""
    (address, pid), ids = server, await fill(url, 300)
    await kill_all(url)

    with httpx2.Client(timeout=GENEROUS_SECONDS) as client:
        causes = client.get(f"{address}/api/failures").json()["items"]
        assert [one["dead"] for one in causes] == [300]
        assert client.get(f"{address}/api/board").json()["counts"]["failed"] == 300
        assert peak_of(pid) < LIMIT
        preview = client.post(f"{address}/api/bulk", json=RETRY_ALL).json()
        assert 0 < preview["count"] <= len(ids)
        assert client.get(f"{address}/api/jobs?q=xxxx&limit=300").json()["items"]
    assert peak_of(pid) < LIMIT * 9 // 16


async def kill_all(url: str) -> None:
    """Every job fails for the same cause, which the logbook knows."""
    async with connect(url) as driver:
        now = driver.clock.now()
        claim = Claim(queues=("default",), worker_id="w", limit=10)
        while jobs := (await driver.reserve(claim)).jobs:
            await driver.settle([Fail(job.lease, "Late: no luck") for job in jobs])
        cause, at = cause_of("big", "Late: no luck"), now.replace(second=0, microsecond=0)
        row = CauseNumbers(
            cause.id, "default", "big", cause.title, None, "error", 0, 1, micros(at), micros(at), "019e"
        )
        data = packed([row])
        await driver.write_log([LogEntry(book=CAUSES, at=at, by="w", data=data, until=at + DAY)])


@pytest.mark.more("hundreds of jobs, or megabytes of them")
async def test_the_http_driver_gets_all_of_it_in_parts(server: tuple[str, int], url: str) -> None:
    (address, pid), ids = server, await fill(url)

    async with connect(address) as driver:
        found = await driver.get([*ids[:30], ids[0]])

        assert [job.id for job in found if job] == [*ids[:30], ids[0]]
        assert all(job and len(job.payload) > MEGABYTE for job in found)
    assert peak_of(pid) < LIMIT


@pytest.mark.more("hundreds of jobs, or megabytes of them")
def test_bodies_of_callers_who_hold_them_back_have_a_sum(server: tuple[str, int]) -> None:
    import socket

    address, pid = server
    host, _, port = address.removeprefix("http://").rpartition(":")
    head = (
        f"POST /api/driver/enqueue HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {16 * 1024 * 1024}\r\n\r\n"
    ).encode()
    callers = [socket.create_connection((host, int(port)), timeout=GENEROUS_SECONDS) for _ in range(60)]
    try:
        for caller in callers:
            caller.setblocking(False)
        piece, sent = b" " * 65536, dict.fromkeys(callers, -1)
        deadline = time.monotonic() + 8
        while time.monotonic() < deadline and any(size < 15 * MEGABYTE for size in sent.values()):
            for caller in callers:
                try:
                    if sent[caller] < 0:
                        caller.send(head)
                        sent[caller] = 0
                    elif sent[caller] < 15 * MEGABYTE:
                        sent[caller] += caller.send(piece)
                except BlockingIOError:
                    continue
                except OSError:
                    sent[caller] = 16 * MEGABYTE
        assert httpx2.get(f"{address}/livez", timeout=GENEROUS_SECONDS).status_code == 200
        assert peak_of(pid) < LIMIT
    finally:
        for caller in callers:
            caller.close()


@pytest.mark.more("hundreds of jobs, or megabytes of them")
def test_very_many_small_values_are_refused_quickly(server: tuple[str, int]) -> None:
    """Judged by the CPU time of the server, which other programs do not change: it was 3.7 s once."""
    address, pid = server
    body = b'{"jobs":[' + b",".join([b"[]"] * 5_000_000) + b"]}"
    before = cpu_of(pid)
    with httpx2.Client(timeout=GENEROUS_SECONDS) as client:
        answer = client.post(
            f"{address}/api/jobs/batch", content=body, headers={"Content-Type": "application/json"}
        )

    assert answer.status_code == 422
    assert b"values" in answer.content
    assert cpu_of(pid) - before < 1.0


def test_an_honest_batch_with_many_commas_in_its_texts_is_taken(server: tuple[str, int]) -> None:
    address, _ = server
    payload = "a,b,[c],{d}," * 60_000
    body = json.dumps({"jobs": [{"type": "x", "payload": payload}]})
    with httpx2.Client(timeout=GENEROUS_SECONDS) as client:
        answer = client.post(
            f"{address}/api/jobs/batch", content=body, headers={"Content-Type": "application/json"}
        )

    assert answer.status_code == 200, answer.text[:300]
