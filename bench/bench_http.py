"""The HTTP server beside its own parts, in one run: how much of it is left over HTTP?

    python bench/bench_http.py [--requests 20000] [--batches 50] [--jobs 10000] [--rounds 5]

Single: enqueues from 64 connections, beside a bare Starlette route that only decodes the same body.
Batch: 1,000 jobs in one request, beside the driver's own enqueue of 1,000; by one caller and by two.
Worker: the same worker drains the same jobs over HTTP and on the store itself.
Everything on SQLite at FULL, uvicorn with uvloop and httptools, servers in processes of their own, no
token, the audit log written to a file. The aims are 65 %, 60 % and 80 %. CPU is the server's own.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from results import table, write_section

from taskharbor import Harbor
from taskharbor.drivers import connect
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import NewJob

T = TypeVar("T")
Figure = tuple[float, float]
"""How many a second, and µs of CPU for each."""

CONNECTIONS = 64
PAYLOAD = {"seq": 12345, "t0": 1000000000000000, "pad": "x" * 52}
BODY = msgspec.json.encode({"type": "noop", "payload": PAYLOAD})


# ------------------------------------------------------------------ what runs in other processes


def bare_app() -> object:
    """One route that decodes the body into the type that the server decodes it into, and answers."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from taskharbor.web.api.schemas import JobIn

    decoder = msgspec.json.Decoder(JobIn)

    async def enqueue(request: Request) -> Response:
        job = decoder.decode(await request.body())
        return Response(msgspec.json.encode({"type": job.type}), 201, media_type="application/json")

    return Starlette(routes=[Route("/api/jobs", enqueue, methods=["POST"])])


def serve_bare(port: int) -> None:
    import uvicorn

    uvicorn.run(bare_app(), port=port, access_log=False, log_level="warning")  # type: ignore[arg-type]


def drain(url: str, concurrency: int) -> None:
    """Do everything there is, and print how long it took."""
    harbor = Harbor(url)

    @harbor.task
    async def noop(seq: int, t0: int, pad: str) -> None:
        pass

    worker = harbor.worker(concurrency=concurrency, scheduler=False)
    start, cpu = time.perf_counter(), time.process_time()
    worker.run(until_idle=True)
    print(time.perf_counter() - start, time.process_time() - cpu, flush=True)


# ------------------------------------------------------------------ servers


@contextmanager
def process(*args: str, port: int, folder: str) -> Iterator[int]:
    with Path(folder, "server.log").open("ab") as log:
        started = subprocess.Popen(args, stdout=log, stderr=log)
    try:
        _wait_for(port, started)
        yield started.pid
    finally:
        started.send_signal(signal.SIGTERM)
        started.wait()


def _wait_for(port: int, started: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and started.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise RuntimeError("a server did not start; see its log")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def ours(folder: str, name: str) -> Iterator[tuple[int, int, str]]:
    """(port, pid, store) of our server on a fresh store."""
    port, store = _free_port(), f"sqlite:///{Path(folder, name)}.db"
    command = (sys.executable, "-m", "taskharbor", "server", "--url", store, "--port", str(port))
    with process(*command, "--no-scheduler", port=port, folder=folder) as pid:
        yield port, pid, store


@contextmanager
def bare(folder: str) -> Iterator[tuple[int, int]]:
    port = _free_port()
    with process(sys.executable, __file__, "--serve-bare", str(port), port=port, folder=folder) as pid:
        yield port, pid


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# ------------------------------------------------------------------ callers


def request_bytes(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def post(port: int, request: bytes, times: int, connections: int) -> float:
    """Seconds for so many requests, each connection sending its next one when it was answered."""
    left = times

    async def connection() -> None:
        nonlocal left
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
        while left > 0:
            left -= 1
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith((b"HTTP/1.1 201", b"HTTP/1.1 200")):
                raise RuntimeError(head.decode())
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            await reader.readexactly(length)
        writer.close()

    start = time.perf_counter()
    await asyncio.gather(*(connection() for _ in range(connections)))
    return time.perf_counter() - start


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(coroutine)


def measured(port: int, pid: int, request: bytes, times: int, connections: int) -> Figure:
    """(requests a second, µs of the server's CPU per request)."""
    run(post(port, request, max(times // 20, 1), connections))
    before = cpu_seconds(pid)
    took = run(post(port, request, times, connections))
    return times / took, (cpu_seconds(pid) - before) / times * 1e6


# ------------------------------------------------------------------ the three questions


def single(folder: str, requests: int) -> tuple[Figure, Figure]:
    request = request_bytes("/api/jobs", BODY)
    with bare(folder) as (port, pid):
        floor = measured(port, pid, request, requests, CONNECTIONS)
    with ours(folder, "single") as (port, pid, _):
        return floor, measured(port, pid, request, requests, CONNECTIONS)


def batch(folder: str, batches: int, callers: int) -> tuple[Figure, Figure]:
    """The driver itself, and over HTTP, by so many callers at once: (jobs a second, µs of CPU per job)."""
    floor = run(_bulk(f"sqlite:///{Path(folder, 'bulk')}.db", batches, callers))
    body = msgspec.json.encode({"jobs": [{"type": "noop", "payload": PAYLOAD}] * 1000})
    with ours(folder, "batch") as (port, pid, _):
        rate, cpu = measured(port, pid, request_bytes("/api/jobs/batch", body), batches, callers)
    return floor, (rate * 1000, cpu / 1000)


async def _bulk(store: str, batches: int, callers: int) -> Figure:
    entropy, payload = Entropy(), msgspec.json.encode(PAYLOAD)
    async with connect(store) as driver:

        def jobs() -> list[NewJob]:
            ids = entropy.job_ids(driver.clock.now(), 1000)
            return [NewJob(id=job_id, type="noop", payload=payload) for job_id in ids]

        for _ in range(max(batches // 20, 1)):
            await driver.enqueue(jobs())
        made = [jobs() for _ in range(batches)]

        async def caller() -> None:
            while made:
                await driver.enqueue(made.pop())

        start, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(caller() for _ in range(callers)))
        count = batches * 1000
        return count / (time.perf_counter() - start), (time.process_time() - cpu) / count * 1e6


def worker(folder: str, jobs: int, concurrency: int) -> tuple[Figure, Figure]:
    """On the store, and over HTTP: (jobs a second, µs of the worker's own CPU per job)."""
    with ours(folder, f"worker{concurrency}") as (port, _, store):
        figures = []
        for url in (store, f"http://127.0.0.1:{port}"):
            run(_fill(store, jobs))
            command = [sys.executable, __file__, "--drain", url, "--concurrency", str(concurrency)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            took, cpu = map(float, done.stdout.split())
            figures.append((jobs / took, cpu / jobs * 1e6))
    return figures[0], figures[1]


async def _fill(store: str, jobs: int) -> None:
    entropy, payload = Entropy(), msgspec.json.encode(PAYLOAD)
    async with connect(store) as driver:
        for low in range(0, jobs, 1000):
            ids = entropy.job_ids(driver.clock.now(), min(1000, jobs - low))
            await driver.enqueue([NewJob(id=job_id, type="noop", payload=payload) for job_id in ids])


# ------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--batches", type=int, default=50)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=("single", "batch", "worker"))
    parser.add_argument("--serve-bare", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--drain", help=argparse.SUPPRESS)
    parser.add_argument("--concurrency", type=int, default=100, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve_bare:
        serve_bare(args.serve_bare)
    elif args.drain:
        drain(args.drain, args.concurrency)
    else:
        compare(args)


def compare(args: argparse.Namespace) -> None:
    questions: list[tuple[str, str, str, Callable[[str], tuple[Figure, Figure]]]] = [
        (
            "single",
            f"enqueue from {CONNECTIONS} connections, requests/s",
            "a bare Starlette route",
            lambda folder: single(folder, args.requests),
        ),
        ("batch", "batches of 1,000, jobs/s", "the driver", lambda folder: batch(folder, args.batches, 1)),
        (
            "batch",
            "the same by two callers on both sides",
            "the driver",
            lambda folder: batch(folder, args.batches, 2),
        ),
        ("worker", "worker -c 10, jobs/s", "on the store", lambda folder: worker(folder, args.jobs, 10)),
        ("worker", "worker -c 100, jobs/s", "on the store", lambda folder: worker(folder, args.jobs, 100)),
    ]
    rows = [
        row(title, beside, args.rounds, once)
        for name, title, beside, once in questions
        if args.only in (None, name)
    ]
    text = table(["", "beside", "that (µs CPU each)", "over HTTP (µs CPU each)", "left", "of CPU"], rows)
    print(text)
    if args.only is None:
        write_section("HTTP beside its own parts", f"{_words(args)}\n{text}")


def row(title: str, beside: str, rounds: int, once: Callable[[str], tuple[Figure, Figure]]) -> list[str]:
    pairs = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            pairs.append(once(folder))
        print(f"{title}: {beside} {pairs[-1][0][0]:,.0f}, over HTTP {pairs[-1][1][0]:,.0f}", flush=True)
    (base, base_cpu), (rate, cpu) = (
        [statistics.median(column) for column in zip(*side, strict=True)] for side in zip(*pairs, strict=True)
    )
    left = statistics.median(ours[0] / that[0] for that, ours in pairs)
    return [
        title,
        beside,
        f"{base:,.0f} ({base_cpu:.1f})",
        f"{rate:,.0f} ({cpu:.1f})",
        f"{left:.0%}",
        f"{base_cpu / cpu:.0%}",
    ]


def _words(args: argparse.Namespace) -> str:
    return (
        f"Medians of {args.rounds} rounds; SQLite with `synchronous` FULL. Load {os.getloadavg()[0]:.1f} at "
        "the end. CPU is that of the server, of the driver's process, and in the last two rows of the "
        "worker alone. On a busy machine it says more than the clock.\n"
    )


if __name__ == "__main__":
    main()
