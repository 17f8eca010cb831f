"""Routes of the dashboard on a store with many jobs: each takes little CPU time, however many there are.

`TASKHARBOR_MILLION=100000 make test-long ARGS='-k many_jobs'` fills fewer. CPU time is of this process and
of the store's. Waiting does not count, so that a busy machine changes little.

Most routes read one look at the store that all callers share (`web/board.py`), and another one at the jobs
that are dead now (`web/dead_letters.py`). What these cost is measured by itself, and so is what each route
adds. The logbook has a day of minutes of 50 pairs of a queue and a type.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Claim
from taskharbor.harbor import Harbor
from taskharbor.model.cause import cause_of
from taskharbor.model.clock import SystemClock, micros
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import NewJob
from taskharbor.model.log_cells import BUCKETS, CauseNumbers, Level, Numbers, packed
from taskharbor.model.log_series import MINUTE, QUARTER, floor
from taskharbor.model.logbook import (
    AUDIT,
    CAUSES,
    CAUSES_QUARTERS,
    LEVELS,
    LEVELS_QUARTERS,
    MAX_ENTRIES,
    NUMBERS,
    NUMBERS_QUARTERS,
    LogEntry,
)
from taskharbor.model.settlement import Ack, Fail
from taskharbor.testing.servers import PostgresServer, ValkeyServer
from taskharbor.testing.servers.postgres import migrate_blocking
from taskharbor.web.audit_book import AuditRecord
from taskharbor.web.dead_letters import DeadLetters
from tests.integration.http.api import Api

MANY = int(os.environ.get("TASKHARBOR_MILLION", "1000000"))
FEW = 2000
BATCH = 1000
QUEUES = [f"queue{number}" for number in range(10)]
ERROR = "ValueError: no"
CAUSES_THERE = [cause_of(f"type{number}", ERROR) for number in range(12)]
QUARTERS_OF = {NUMBERS: NUMBERS_QUARTERS, LEVELS: LEVELS_QUARTERS, CAUSES: CAUSES_QUARTERS}
MINUTES, CHANGES = 24 * 60, 1000
"""How much is in the logbook."""
ROUTES = {
    "board": "board",
    "queues": "queues",
    "stats": "stats",
    "one queue": "queues/queue1",
    "newest jobs": "jobs?limit=50&args=true",
    "failed jobs": "jobs?q=state:failed&limit=50",
    "failed by end": "jobs?q=state:failed&sort=-ended&limit=50",
    "running jobs": "jobs?q=state:running&limit=200",
    "ready jobs of a queue": "jobs?q=queue:queue1+state:ready&sort=seq&limit=10&args=true",
    "one job": "jobs/{id}",
    "why": "jobs/{id}/why",
    "failures": "failures?window=24h",
    "series": "series?window=1h&by=queue",
    "workers": "workers",
    "schedules": "schedules",
    "audit": "audit",
    "store": "store",
    "session": "session",
    "types": "types",
    "what a search may say": "search",
}
SEARCHES = {
    "a rare type": "jobs?q=type:nobodys",
    "count": "jobs/count?q=type:type1",
    "a bare word": "jobs?q=nobodys",
    "arguments": "jobs?q=args.user:8",
    "an error": "jobs?q=error:nobodys",
    "a cause": "jobs?q=cause:0123456789abcdef",
    "workflows": "workflows",
    "an opened cause": f"failures/{CAUSES_THERE[1].id}?window=24h",
}
BODIES: dict[str, dict[str, Any]] = {
    "schedules/preview": {"cron": "0 3 * * *", "timezone": "Europe/Berlin"},
    "bulk": {"action": "retry", "q": "state:failed", "dry_run": True},
}
"""What is posted."""
MOST_MS, MOST_SEARCH_MS = 25, 250
ROUNDS = 5


async def fill(driver: Driver, count: int) -> str:
    """Of 100 jobs 85 completed, 3 failed and the rest ready, in ten queues; the id of a ready one."""
    entropy, now = Entropy(7), SystemClock().now()
    ready = ""
    for begin in range(0, count, BATCH):
        queue = QUEUES[begin // BATCH % len(QUEUES)]
        jobs = [
            NewJob(id=entropy.job_id(now), type=f"type{number % 12}", queue=queue, payload=b'{"user": 7}')
            for number in range(min(BATCH, count - begin))
        ]
        await driver.enqueue(jobs)
        claim = Claim(queues=(queue,), worker_id="filler", limit=len(jobs) * 3 // 100)
        failed = (await driver.reserve(claim)).jobs
        await driver.settle([Fail(job.lease, ERROR, "error") for job in failed])
        claim = Claim(queues=(queue,), worker_id="filler", limit=len(jobs) * 85 // 100)
        await driver.settle([Ack(job.lease) for job in (await driver.reserve(claim)).jobs])
        ready = jobs[-1].id
    return ready


async def fill_logbook(driver: Driver) -> None:
    """A day of merged minutes and quarters, and of changes by people."""
    now = floor(SystemClock().now(), MINUTE)
    cells = {book: packed(rows) for book, rows in _rows(micros(now)).items()}
    record = AuditRecord(
        who="ana", name="ana", role="operator", client=None, did="pause_queue", what="queue1", status=200,
        request_id="r",
    )  # fmt: skip
    change = zlib.compress(msgspec.msgpack.encode(record), 1)
    minutes = [now - number * MINUTE for number in range(MINUTES)]
    entries = [_entry(book, at, "", data) for book, data in cells.items() for at in minutes]
    entries += [
        _entry(QUARTERS_OF[book], at, "", data)
        for book, data in cells.items()
        for at in minutes
        if floor(at, QUARTER) == at
    ]
    entries += [_entry(AUDIT, now - number * MINUTE, f"r{number}", change) for number in range(CHANGES)]
    for begin in range(0, len(entries), MAX_ENTRIES):
        await driver.write_log(entries[begin : begin + MAX_ENTRIES])


def _rows(now: int) -> dict[str, list[Any]]:
    pairs = [(queue, f"type{number}") for queue in QUEUES for number in range(5)]
    each = [1] * BUCKETS
    return {
        NUMBERS: [
            Numbers(queue, name, 22, 1, 1, wait_sum=30.0, run_sum=9.0, wait=each, run=each)
            for queue, name in pairs
        ],
        LEVELS: [Level(queue, 100, 90, 8, 3, 4.5) for queue in QUEUES],
        CAUSES: [
            CauseNumbers(
                cause.id, queue, f"type{number}", cause.title, cause.frame, "error", 3, 1, now, now, "019e"
            )
            for number, cause in enumerate(CAUSES_THERE)
            for queue in QUEUES[:4]
        ],
    }


def _entry(book: str, at: datetime, by: str, data: bytes) -> LogEntry:
    return LogEntry(book=book, at=at, by=by, data=data, until=at + timedelta(days=30))


@dataclass(frozen=True)
class Store:
    """A store, and the process of its server where it has one."""

    kind: str
    url: str
    pid: int | None = None

    def cpu_s(self) -> dict[int, float]:
        """What each of its processes has used."""
        return {pid: _cpu_s(pid) for pid in (_family(self.pid) if self.pid else ())}

    def cpu_s_since(self, before: dict[int, float]) -> float:
        """A process that began meanwhile counts from its beginning, one that ended does not count."""
        return sum(max(used - before.get(pid, 0.0), 0.0) for pid, used in self.cpu_s().items())


@contextmanager
def started(kind: str, folder: Path) -> Iterator[Store]:
    if kind == "sqlite":
        yield Store(kind, f"sqlite:///{folder}/jobs.db")
        return
    with PostgresServer() if kind == "postgres" else ValkeyServer() as server:
        if kind == "postgres":
            migrate_blocking(server.url)
        yield Store(kind, server.url, server.pid)


def _family(pid: int) -> list[int]:
    found = [pid]
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(path.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(path.parent.name))
    return found


def _cpu_s(pid: int) -> float:
    """To the nanosecond: the ticks of `/proc/<pid>/stat` are longer than most requests."""
    total = 0.0
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with suppress(OSError):
            total += int(path.read_text().split()[0]) / 1e9
    return total


@asynccontextmanager
async def filled(store: Store, count: int) -> AsyncIterator[tuple[Api, str]]:
    api = Api(Harbor(store.url), any_type=True)
    try:
        driver = await api.harbor.client.adriver()
        await fill_logbook(driver)
        ready = await fill(driver, count)
        if store.kind == "postgres":
            await vacuum(store.url)
        yield api, ready
    finally:
        await api.aclose()


async def vacuum(url: str) -> None:
    """What autovacuum does within a minute: until then an index has an entry for each of a million moves."""
    connection = await asyncpg.connect(url)
    await connection.execute("vacuum analyze")
    await connection.close()


async def cpu_ms(store: Store, api: Api, path: str, *, looks: bool = False) -> list[float]:
    """What some rounds took, with a look of their own or with the one that was there before."""
    took: list[float] = []
    service, body = api.app.service, BODIES.get(path)
    for _ in range(ROUNDS):
        service.shared_answers.clear()
        service.opened_causes.clear()
        service.board.least_seconds = 0.0 if looks else 3600.0
        with measured(store, took):
            answer = await api("POST" if body else "GET", f"/api/{path}", body)
        assert answer.is_success, (path, answer.text)
    return took


@contextmanager
def measured(store: Store, took: list[float]) -> Iterator[None]:
    of_store, began = store.cpu_s(), time.process_time()
    yield
    took.append((time.process_time() - began + store.cpu_s_since(of_store)) * 1000)


async def cold_look_ms(store: Store, api: Api) -> list[float]:
    """What a first look at the dead letters takes."""
    took: list[float] = []
    for _ in range(ROUNDS):
        with measured(store, took):
            await DeadLetters(api.app.service).look()
    return took


async def check_books(api: Api) -> None:
    """What is measured is not empty."""
    series = (await api("GET", "/api/series?window=1h&by=type")).json()["series"]
    causes = (await api("GET", "/api/failures?window=24h")).json()["items"]
    changes = (await api("GET", "/api/audit")).json()["items"]
    assert (len(series), len(causes), len(changes)) == (5, len(CAUSES_THERE), 50)
    assert all(one["done"] and sum(filter(None, one["done"])) > 1000 for one in series)


async def dear_routes(store: Store, api: Api, job_id: str) -> dict[str, float]:
    """Routes over their budget, and the least they took. The first round reads what is then remembered."""
    took = {
        "look": await cpu_ms(store, api, "board", looks=True),
        "look at the dead": await cold_look_ms(store, api),
    }
    most = dict.fromkeys((*SEARCHES, "look at the dead", "bulk"), MOST_SEARCH_MS)
    for name, path in (ROUTES | SEARCHES | {path: path for path in BODIES}).items():
        took[name] = await cpu_ms(store, api, path.format(id=job_id))
    await check_books(api)
    print(store.kind, {name: (round(min(ms), 1), round(ms[0], 1)) for name, ms in took.items()})
    return {name: min(ms) for name, ms in took.items() if min(ms) > most.get(name, MOST_MS)}


async def test_with_a_few_thousand_jobs_every_route_keeps_its_budget(tmp_path: Path) -> None:
    with started("sqlite", tmp_path) as store:
        async with filled(store, FEW) as (api, job_id):
            assert await dear_routes(store, api, job_id) == {}


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["sqlite", "valkey", "postgres"])
async def test_with_a_million_jobs_every_route_keeps_its_budget(tmp_path: Path, kind: str) -> None:
    with started(kind, tmp_path) as store:
        async with filled(store, MANY) as (api, job_id):
            assert await dear_routes(store, api, job_id) == {}
