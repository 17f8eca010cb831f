"""Series for charts: equal to what the logbook says, with little reading, and only of the caller's queues."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from taskharbor.drivers import connect
from taskharbor.drivers.capabilities import Capabilities
from taskharbor.drivers.contract import Driver
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.model.clock import EPOCH
from taskharbor.model.entropy import Entropy
from taskharbor.model.log_cells import Level, Numbers, packed
from taskharbor.model.log_series import MINUTE, QUARTER, floor
from taskharbor.model.logbook import LEVELS, NUMBERS, NUMBERS_QUARTERS, LogEntry
from taskharbor.model.presence import WorkerInfo, WorkerReport
from taskharbor.observe.logbook import LogReader
from taskharbor.testing.clock import SimulatedClock
from taskharbor.web.audit_book import AuditBook
from taskharbor.web.auth import Principal
from taskharbor.web.marks import ChartMarks, Mark, ReleaseBook, changed_text, marks_for, setting_marks
from taskharbor.web.queue_rates import ended_rates
from taskharbor.web.series import TOTAL, SeriesReader

SECOND = timedelta(seconds=1)
BUCKETS = 24


def numbers(queue: str, completed: int, *, type_name: str = "t", failed: int = 0, bucket: int = 3) -> Numbers:
    waits = [0] * BUCKETS
    waits[bucket] = completed
    return Numbers(queue, type_name, completed=completed, failed=failed, wait=waits, run=list(waits))


class Log:
    """A memory store on a simulated clock; what is read of it is counted."""

    def __init__(self) -> None:
        self.clock = SimulatedClock()
        self.driver: Driver = connect("memory://", clock=self.clock)
        self.reader = SeriesReader(self.driver, self.clock)
        self.read: list[tuple[str, timedelta]] = []
        whole = self.driver.read_log

        async def counted(book: str, since: datetime, until: datetime, **options: Any) -> Any:
            self.read.append((book, until - since))
            return await whole(book, since, until, **options)

        self.driver.read_log = counted  # type: ignore[method-assign]

    @property
    def now(self) -> datetime:
        return self.clock.now()

    async def write(self, book: str, at: datetime, rows: list[Any], by: str = "w") -> None:
        until = self.now + timedelta(days=40)
        await self.driver.write_log([LogEntry(book=book, at=at, by=by, data=packed(rows), until=until)])

    async def minute(self, *rows: Numbers, waiting: int = 5, by: str = "w") -> None:
        """What happened in this minute, and a look at its beginning."""
        at = floor(self.now, MINUTE)
        await self.write(NUMBERS, at, list(rows), by)
        queues = {row.queue for row in rows}
        await self.write(LEVELS, at, [Level(queue, waiting, waiting, 1, 0, 2.5) for queue in queues], "")

    async def series(self, window: Any = "1h", **options: Any) -> dict[str, Any]:
        found = await self.reader.read(window, self.now, **options)
        return {one.name: one for one in found.series}


@pytest.fixture
async def log() -> AsyncIterator[Log]:
    found = Log()
    async with found.driver:
        yield found


async def test_a_window_adds_up_what_workers_wrote(log: Log) -> None:
    for _ in range(10):
        await log.minute(numbers("mail", 60, failed=1), numbers("mail", 3, type_name="other"), by="w-1")
        await log.write(NUMBERS, floor(log.now, MINUTE), [numbers("mail", 40), numbers("sms", 5)], "w-2")
        log.clock.advance(MINUTE)
    total, mail = (await log.series())[TOTAL], (await log.series(by="queue"))["mail"]
    types = await log.series(by="type")

    assert len(total.done) == 60
    assert total.done[-11:-1] == [108] * 10
    assert (mail.done[-2], mail.failed[-2], mail.waiting[-2], mail.running[-2]) == (103, 1, 5, 1)
    assert mail.oldest_s[-2] == 2.5
    assert mail.arrived[-3] == 104, "as many waited before and after"
    assert 0.004 <= mail.wait_p50_s[-2] <= 0.008
    assert (types["t"].done[-2], types["other"].done[-2], types["t"].waiting[-2]) == (105, 3, None)


async def test_before_the_first_cell_nothing_is_known_and_after_it_silence_is_nought(log: Log) -> None:
    log.clock.advance(timedelta(hours=2))
    await log.write(NUMBERS, floor(log.now, MINUTE), [numbers("mail", 7)])
    log.clock.advance(20 * MINUTE)
    first = (await log.series(by="queue"))["mail"]
    log.clock.advance(10 * MINUTE)
    again = (await log.series(by="queue"))["mail"]

    assert first.done == [None] * 39 + [7] + [0] * 20
    assert again.done == [None] * 29 + [7] + [0] * 30
    assert set(again.waiting) == {None}


async def test_kept_steps_say_the_same_as_the_whole_logbook(log: Log) -> None:
    dice = Entropy(7)
    for minute in range(150):
        queues = [name for name in ("mail", "sms", "media") if dice.between(0, 1) > 0.3]
        rows = [numbers(name, int(dice.between(0, 50)), bucket=int(dice.between(0, 20))) for name in queues]
        await log.minute(*rows, waiting=int(dice.between(0, 90)))
        if minute % 7 == 0:
            for by in ("total", "queue", "type"):
                await log.series("15m", by=by)
                await log.series("1h", by=by)
        log.clock.advance(MINUTE)
    for name in ("15m", "1h", "6h"):
        for by in ("total", "queue", "type"):
            kept = await log.reader.read(name, log.now, by=by)  # type: ignore[arg-type]
            since, until, step, whole = await LogReader(log.driver).series(name, log.now, by=by)  # type: ignore[arg-type]
            assert (kept.since, kept.until, kept.step) == (since, until, step)
            for one, other in zip(kept.series, whole, strict=True):
                other.name = other.name or TOTAL
                first = next(place for place, value in enumerate(one.done) if value is not None)
                cut = [place for place, value in enumerate(other.done) if value is None]
                assert cut == list(range(first)), "the same beginning"
                assert one == other, (name, by, one.name)


async def test_steps_that_are_over_are_read_once(log: Log) -> None:
    for _ in range(30):
        await log.minute(numbers("mail", 1))
        log.clock.advance(MINUTE)
    await log.series("6h", by="queue")
    log.read.clear()
    log.clock.advance(3 * SECOND)
    await log.series("6h", by="queue")

    assert log.read
    assert max(span for _, span in log.read) <= 10 * MINUTE


async def test_equal_questions_share_an_answer_for_two_seconds(log: Log) -> None:
    await log.minute(numbers("mail", 1))
    await log.series()
    log.read.clear()
    log.clock.advance(1.9 * SECOND)
    await log.series()
    assert log.read == []

    log.clock.advance(0.2 * SECOND)
    await log.series()
    assert log.read


async def test_a_caller_of_some_queues_gets_only_those_in_every_sum(log: Log) -> None:
    await log.minute(numbers("mail", 3), numbers("theirs", 50, type_name="secret"))
    whole = await log.series()
    mine: Any = frozenset({"mail"})

    assert (await log.series(audience=mine))[TOTAL].done[-1] == 3
    assert set(await log.series(by="queue", audience=mine)) == {"mail"}
    assert set(await log.series(by="type", audience=mine)) == {"t"}
    assert whole[TOTAL].done[-1] == 53
    [foreign] = (await log.reader.read("1h", log.now, by="queue", names=["theirs"], audience=mine)).series
    assert set(foreign.done) == {None}


async def test_long_windows_use_quarters_and_the_last_minutes(log: Log) -> None:
    log.clock.advance(timedelta(days=2))
    quarter = floor(log.now, QUARTER) - QUARTER
    await log.write(NUMBERS_QUARTERS, quarter, [numbers("mail", 900)], "")
    await log.minute(numbers("mail", 4))
    [day] = (await log.reader.read("24h", log.now)).series
    [week] = (await log.reader.read("7d", log.now)).series

    assert (len(day.done), day.done[-2:]) == (96, [900, 4])
    assert (len(week.done), sum(value or 0 for value in week.done)) == (168, 904)


async def test_names_that_were_asked_for_come_in_that_order_even_if_unknown(log: Log) -> None:
    await log.minute(numbers("mail", 3))
    found = await log.reader.read("15m", log.now, by="queue", names=["none", "mail"])

    assert [one.name for one in found.series] == ["none", "mail"]


# ------------------------------------------------------------------ rates and marks

NOON = datetime(2026, 11, 16, 12, 0, 30, tzinfo=UTC)


def test_rates_are_of_this_minute_and_the_one_before() -> None:
    cells = [
        (floor(NOON, MINUTE) - 3 * MINUTE, [numbers("mail", 10_000, bucket=10)]),
        (floor(NOON, MINUTE) - MINUTE, [numbers("mail", 600, failed=60)]),
        (floor(NOON, MINUTE), [numbers("mail", 275), numbers("sms", 0)]),
    ]
    rates = ended_rates(cells, NOON)

    assert rates is not None
    assert (rates["mail"].done_per_s, rates["sms"].done_per_s) == (10.0, 0.0)
    assert round(rates["mail"].failed_per_s, 2) == 0.69
    assert rates["mail"].wait_p95_s == pytest.approx(1.0, rel=0.05)
    assert ended_rates([], NOON) is None


def test_a_harbor_that_has_just_begun_is_not_averaged_over_the_time_before() -> None:
    rates = ended_rates([(floor(NOON, MINUTE), [numbers("mail", 275)])], NOON)

    assert rates is not None
    assert rates["mail"].done_per_s == 10.0


def record(what: str, did: str = "configure_queue", status: int = 200, **change: Any) -> Any:
    from taskharbor.web.audit_book import AuditRecord

    fields: dict[str, Any] = {"name": "1", "role": "operator", "client": None, "request_id": "r"}
    return AuditRecord(who="ana", did=did, what=what, status=status, **{**fields, **change})


def test_marks_say_what_was_set_to_what_and_by_whom() -> None:
    before, after = {"max_running": 40, "paused": False}, {"max_running": 20, "paused": True}
    records = [
        (NOON, record("mail", before=before, after=after)),
        (NOON, record("theirs", before=before, after=after)),
        (NOON, record("mail", "retry")),
        (NOON, record("mail", status=409, before=before, after=after)),
        (NOON, record("mail", before=before, after=before)),
    ]
    narrow = Principal(name="n", role="viewer", queues=frozenset({"mail"}))
    marks = list(setting_marks(records, narrow))

    assert [(one.text, one.by) for one in marks] == [("mail max_running 40 → 20, paused", "ana")]
    assert len(list(setting_marks(records, Principal(name="a", role="viewer")))) == 2
    assert changed_text("*", {"execute_rate": None}, {"execute_rate": {"count": 5, "per_s": 60.0}}) == (
        "harbor execute_rate none → count 5 per_s 60"
    )


def test_a_release_is_marked_where_its_first_worker_started() -> None:
    clock = SimulatedClock()
    marks = ChartMarks(AuditBook(NoLog()), ReleaseBook(NoLog().driver, clock, clock.now), clock)  # type: ignore[arg-type]
    for started, release in ((2, "old"), (5, "new"), (4, "new"), (6, "old"), (9, "")):
        report = WorkerReport(worker_id="w", release=release, started_at=NOON + started * MINUTE)
        marks.note([WorkerInfo(report=report, seen_at=NOON, expires_at=NOON)])

    found = asyncio.run(marks.seen_by(Principal(name="a", role="viewer")))
    assert [(one.text, one.at, one.kind) for one in found] == [
        ("old", NOON + 2 * MINUTE, "release"),
        ("new", NOON + 4 * MINUTE, "release"),
    ]


async def test_another_server_knows_releases_that_this_one_saw() -> None:
    clock = SimulatedClock(NOON)
    async with MemoryDriver() as driver:
        service = Logged(driver, clock)

        async def seen(*workers: tuple[int, str]) -> list[tuple[str, datetime]]:
            """The marks of a server that was started just now and sees these workers."""
            releases = ReleaseBook(service.driver, clock, clock.now)
            marks = ChartMarks(AuditBook(service), releases, clock)  # type: ignore[arg-type]
            for started, release in workers:
                report = WorkerReport(worker_id="w", release=release, started_at=NOON - started * MINUTE)
                marks.note([WorkerInfo(report=report, seen_at=NOON, expires_at=NOON)])
            found = await marks.seen_by(Principal(name="a", role="viewer"))
            return sorted((one.text, one.at) for one in found)

        first = await seen((9, "4f2a9c1"), (2, "<b> ü"))
        later = await seen((12, "4f2a9c1"), (5, "4f2a9c1"))
        last = await seen()

    assert first == [("4f2a9c1", NOON - 9 * MINUTE), ("<b> ü", NOON - 2 * MINUTE)]
    assert later == last == [("4f2a9c1", NOON - 12 * MINUTE), ("<b> ü", NOON - 2 * MINUTE)]


class Logged:
    """As much of a service as books need."""

    def __init__(self, driver: MemoryDriver, clock: SimulatedClock) -> None:
        self._driver, self.clock, self.now = driver, clock, clock.now

    async def driver(self) -> MemoryDriver:
        return self._driver


class NoLog:
    """A service whose store keeps no logbook."""

    clock = SimulatedClock()
    capabilities = Capabilities()

    async def driver(self) -> "NoLog":
        return self


def test_the_chart_of_a_queue_has_no_marks_of_others() -> None:
    marks = [Mark(at=EPOCH, kind="release", text="r2")]
    marks += [Mark(at=EPOCH, kind="setting", text="x", queue=name) for name in ("mail", "sms", "*")]

    assert [mark.queue for mark in marks_for(marks, ["mail"])] == [None, "mail", "*"]
    assert marks_for(marks, None) == marks
