"""Every verb, with the n-th call to SQLite failing, for every n: done or not done, and the next one works."""

import asyncio
import shutil
import sqlite3
from datetime import timedelta
from pathlib import Path

import pytest

from taskharbor.drivers.messages import Exchanged, Query
from taskharbor.drivers.sqlite import connection
from taskharbor.drivers.sqlite import driver as driver_module
from taskharbor.errors import DriverError
from taskharbor.model.job import Lease, NewJob, Progress
from taskharbor.model.limits import RateLimit
from taskharbor.model.logbook import LogEntry
from taskharbor.model.presence import Sample, WorkerReport
from taskharbor.model.queue import QueueSettings, Retention
from taskharbor.model.schedule import Schedule
from taskharbor.model.settlement import Ack, Cancelled, Fail, Release, Retry, Stalled
from tests.integration.sqlite.stores import NOW, claim, content, driver_on, is_sound, new_job

LATER = NOW + timedelta(minutes=5)
MUCH_LATER = NOW + timedelta(days=30)


class FailingConnection:
    """A connection whose n-th statement fails, as it does when the disk has had enough."""

    def __init__(self, connection):
        self._connection = connection
        self.fails_at = None
        self.calls = 0

    def execute(self, *statement):
        self.calls += 1
        if self.calls == self.fails_at:
            raise sqlite3.OperationalError("disk I/O error (injected)")
        return self._connection.execute(*statement)

    def arm(self, fails_at):
        self.calls, self.fails_at = 0, fails_at

    def __getattr__(self, name):
        return getattr(self._connection, name)


class Jobs:
    """The jobs of the prepared store, by what they are for."""

    leases: list[Lease]
    waiting: list[NewJob]
    scheduled: NewJob


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A store with a job in every state, with keys, idempotency keys, a copy, limits and a fail queue."""
    path = tmp_path_factory.mktemp("prepared") / "jobs.db"
    return path, asyncio.run(_prepare(path))


async def _prepare(path):
    jobs = Jobs()
    async with driver_on(path, seed=1) as driver:
        await driver.configure_queue(
            QueueSettings(
                queue="default", fail_queue="failures", execute_rate=RateLimit(100, timedelta(minutes=1))
            ),
            now=NOW,
        )
        await driver.configure_queue(
            QueueSettings(
                queue="default", enqueue_rate=RateLimit(1000, timedelta(minutes=1)), max_running=50
            ),
            now=NOW,
        )
        first = [new_job() for _ in range(12)]
        await driver.enqueue([*first, new_job(key=b"k"), new_job(idempotency_key=b"i")], now=NOW)
        jobs.leases = [job.lease for job in (await driver.reserve(claim(14), now=NOW)).jobs]
        await driver.enqueue([new_job(key=b"k", payload=b"blocked")], now=NOW)
        await driver.speculate(jobs.leases[0].job_id, now=NOW)
        await driver.settle([Ack(jobs.leases[1], b"done"), Fail(jobs.leases[2], "bad")], now=NOW)
        jobs.waiting = [new_job() for _ in range(3)]
        jobs.scheduled = new_job(delay=timedelta(seconds=10))
        await driver.enqueue([*jobs.waiting, jobs.scheduled], now=NOW)
        await driver.put_schedule(Schedule(name="tick", cron="* * * * *", template=new_job()), now=NOW)
        await driver.report_worker(WorkerReport(worker_id="worker-1"), now=NOW)
        await driver.hold_role("leader", "worker-1", timedelta(minutes=1), now=NOW)
    return jobs


VERBS = {
    "enqueue many": lambda d, j: d.enqueue([new_job() for _ in range(3)], now=LATER),
    "enqueue a known id": lambda d, j: d.enqueue([*j.waiting, new_job()], now=LATER),
    "enqueue later": lambda d, j: d.enqueue([new_job(delay=timedelta(hours=1)), new_job()], now=LATER),
    "enqueue keyed": lambda d, j: d.enqueue([new_job(key=b"k"), new_job(key=b"new")], now=NOW),
    "enqueue idempotent": lambda d, j: d.enqueue(
        [new_job(idempotency_key=b"i"), new_job(idempotency_key=b"j")], now=NOW
    ),
    "reserve": lambda d, j: d.reserve(claim(20), now=NOW + timedelta(seconds=15)),
    "reserve after expiry": lambda d, j: d.reserve(claim(20), now=LATER),
    "extend all": lambda d, j: d.extend_leases(j.leases, timedelta(minutes=1), now=NOW),
    "extend some": lambda d, j: d.extend_leases(
        j.leases[3:6], timedelta(minutes=1), progress={j.leases[3].job_id: Progress(0.5)}, now=NOW
    ),
    "settle": lambda d, j: d.settle([Ack(lease) for lease in j.leases[3:9]], now=NOW),
    "settle each way": lambda d, j: d.settle(
        [
            Ack(j.leases[0], b"beats its copy"),
            Retry(j.leases[3], timedelta(seconds=5), "again"),
            Fail(j.leases[4], "bad"),
            Stalled(j.leases[5], "died"),
            Cancelled(j.leases[6], "no"),
            Release(j.leases[7]),
            Release(j.leases[12]),
            Ack(j.leases[13]),
        ],
        now=NOW,
    ),
    "exchange": lambda d, j: d.exchange([Ack(lease) for lease in j.leases[3:9]], claim(5), now=NOW),
    "reclaim": lambda d, j: d.reclaim(now=LATER),
    "promote": lambda d, j: d.promote(now=LATER),
    "prune": lambda d, j: d.prune(now=MUCH_LATER),
    "cancel": lambda d, j: d.cancel([j.waiting[0].id, j.scheduled.id, j.leases[0].job_id], now=NOW),
    "cancel waiting": lambda d, j: d.cancel_waiting("default", b"k", now=NOW),
    "requeue": lambda d, j: d.requeue([j.leases[1].job_id, j.leases[2].job_id], now=LATER),
    "delete": lambda d, j: d.delete([j.leases[1].job_id], now=LATER),
    "configure": lambda d, j: d.configure_queue(
        QueueSettings(queue="default", execute_rate=None, retention=Retention(completed=timedelta(0))),
        now=NOW,
    ),
    "speculate": lambda d, j: d.speculate(j.leases[3].job_id, now=NOW),
    "report worker": lambda d, j: d.report_worker(
        WorkerReport(worker_id="worker-2"), [Sample("test.job", timedelta(seconds=1))], now=NOW
    ),
    "forget worker": lambda d, j: d.forget_worker("worker-1", now=NOW),
    "hold role": lambda d, j: d.hold_role("leader", "worker-2", timedelta(minutes=1), now=LATER),
    "release role": lambda d, j: d.release_role("leader", "worker-1", now=NOW),
    "put schedule": lambda d, j: d.put_schedule(
        Schedule(name="tock", every=timedelta(minutes=1), template=new_job()), now=NOW
    ),
    "advance schedule": lambda d, j: d.advance_schedule("tick", LATER, now=LATER),
    "delete schedule": lambda d, j: d.delete_schedule("tick", now=LATER),
    "write log": lambda d, j: d.write_log(
        [LogEntry(book="kit", at=NOW, by="w", data=b"cell", until=LATER)], now=NOW
    ),
}

LOOKS = {
    "get": lambda d, j: d.get([j.waiting[0].id], now=NOW),
    "find": lambda d, j: d.find(Query(queue="default"), now=NOW),
    "count": lambda d, j: d.count(now=NOW),
    "queues": lambda d, j: d.queues(now=NOW),
    "workers": lambda d, j: d.workers(now=NOW),
    "types": lambda d, j: d.types(now=NOW),
    "schedules": lambda d, j: d.schedules(now=NOW),
    "read log": lambda d, j: d.read_log("kit", NOW, LATER, now=NOW),
    "info": lambda d, j: d.info(),
}


@pytest.fixture
def failing(monkeypatch):
    """Makes the writer's and the reader's connection of the next driver fail on demand."""
    made = {}

    def wrap(kind, opened):
        def open_it(*arguments):
            made[kind] = FailingConnection(opened(*arguments))
            return made[kind]

        return open_it

    monkeypatch.setattr(driver_module, "open_writer", wrap("writer", connection.open_writer))
    monkeypatch.setattr(driver_module, "open_reader", wrap("reader", connection.open_reader))
    return made


@pytest.mark.more("every statement of every verb")
@pytest.mark.parametrize("verb", VERBS)
async def test_a_verb_whose_nth_statement_fails_is_done_or_not_done(prepared, failing, tmp_path, verb):
    """U10: an error in the middle leaves nothing half written."""
    template, jobs = prepared
    n = 0
    is_through = False
    while not is_through:
        n += 1
        path = _copy(template, tmp_path / f"{n}.db")
        async with driver_on(path, seed=2) as driver:
            before = content(path)
            failing["writer"].arm(n)
            try:
                answer = await VERBS[verb](driver, jobs)
            except DriverError:
                assert content(path) == before
            else:
                is_through = failing["writer"].calls < n
                assert is_through or _is_reported(answer)
            failing["writer"].arm(None)
            await VERBS[verb](driver, jobs)  # the next one works
        assert is_sound(path)
    assert n > 3


@pytest.mark.parametrize("look", LOOKS)
async def test_a_look_whose_nth_statement_fails_raises_and_the_next_one_works(
    prepared, failing, tmp_path, look
):
    template, jobs = prepared
    n = 0
    is_through = False
    async with driver_on(_copy(template, tmp_path / "jobs.db")) as driver:
        while not is_through:
            n += 1
            failing["reader"].arm(n)
            try:
                await LOOKS[look](driver, jobs)
                is_through = failing["reader"].calls < n
            except DriverError:
                is_through = False
            failing["reader"].arm(None)
            await LOOKS[look](driver, jobs)
    assert n > 2


def _copy(template: Path, path: Path) -> Path:
    shutil.copy(template, path)
    return path


def _is_reported(answer: object) -> bool:
    """The settlements of an exchange are stored even when its claim fails; the answer says so."""
    return isinstance(answer, Exchanged) and answer.error is not None and not answer.claimed
