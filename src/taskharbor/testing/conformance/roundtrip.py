"""Round trips: what is stored is read back unchanged, to the byte and the microsecond."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import EnqueueResult
from taskharbor.errors import InvalidArgument
from taskharbor.model.job import JobRecord, NewJob, Progress
from taskharbor.model.settlement import Ack, Cancelled, Fail, Retry
from taskharbor.testing.conformance.kit import (
    HOUR,
    LEASE,
    MICROSECOND,
    SECOND,
    START,
    enqueue_one,
    find_all,
    found_ids,
    get_one,
    new_id,
    new_job,
    reserve,
    reserve_one,
    running,
    settle_one,
)

ALL_BYTES = bytes(range(256))
FIRST, LAST = datetime(1970, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)


async def everywhere(driver: Driver, job: NewJob, *, now: datetime = START) -> list[JobRecord]:
    """The job as get, find and reserve show it."""
    await driver.enqueue([job], now=now)
    seen = [await get_one(driver, job.id, now=now), *await find_all(driver, now=now)]
    at = max(job.run_at or now, now)
    return [*seen, await reserve_one(driver, now=at, lanes=(job.requires,), queues=(job.queue,))]


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\0",
        ALL_BYTES,
        ALL_BYTES[::-1],
        b"not json {",
        b"\xff\xfe\xfd",
        b"' ; drop table jobs; --",
        b"\\x00 %s :name ${x}",
        "ünïcödé 🐍".encode(),
    ],
)
async def test_a_payload_is_never_looked_into(driver: Driver, payload: bytes) -> None:
    """Q01 Q12 A17: every byte value, and bytes that only look like something."""
    assert [job.payload for job in await everywhere(driver, new_job(payload=payload))] == [payload] * 3


async def test_a_payload_and_a_result_of_one_mebibyte(driver: Driver) -> None:
    """Q02 A18 D11: at the limit they come back whole, beyond it they are refused."""
    large = ALL_BYTES * 4096
    job = await running(driver, payload=large)
    assert job.payload == large

    with pytest.raises(InvalidArgument):
        await driver.settle([Ack(job.lease, large + b"x")], now=START)
    with pytest.raises(InvalidArgument):
        await enqueue_one(driver, payload=large + b"x")
    await settle_one(driver, Ack(job.lease, large))

    assert (await get_one(driver, job.id)).result == large


@pytest.mark.parametrize("result", [None, b"", b"\0", ALL_BYTES])
async def test_no_result_and_an_empty_result_are_kept_apart(driver: Driver, result: bytes | None) -> None:
    """Q09 D11: None is not b""."""
    job = await running(driver)

    await settle_one(driver, Ack(job.lease, result))

    assert (await get_one(driver, job.id)).result == result


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"": ""},
        {"trace": "00-abc", "ключ": "значение", "🐍": "\U0010ffff", "a b": "line\nline\r\n\t"},
        {"quote": "\"'\\", "braces": "{}[]:,", "percent": "%s%%", "nul": "\0", "bom": "\ufeff"},
        {str(number): "x" * 100 for number in range(64)},
    ],
    ids=["none", "empty", "unicode", "signs", "many"],
)
async def test_headers_come_back_as_they_were(driver: Driver, headers: dict[str, str]) -> None:
    """Q03: names and values, 4-byte characters included."""
    assert [job.headers for job in await everywhere(driver, new_job(headers=headers))] == [headers] * 3


async def test_every_field_survives_the_round_trip(driver: Driver) -> None:
    """Q06 R000-9: as get, find and reserve show it."""
    job = new_job(
        type="Type.with-all_signs.0",
        payload=b"\x00payload\xff",
        key=b"\x00key\xff",
        idempotency_key=b"\xffonce\x00",
        headers={"a": "b"},
        priority=-100,
        requires="tpu-v5",
        run_at=START + timedelta(seconds=1, microseconds=234_567),
        timeout=timedelta(seconds=7, microseconds=1),
        max_attempts=1_000_000,
        max_stalls=999_999,
        min_backoff=timedelta(microseconds=1),
        max_backoff=timedelta(days=3660),
    )
    for record in await everywhere(driver, job):
        for name in NewJob.__struct_fields__:
            if name not in ("update", "delay"):  # what to do with the job, not a part of it
                assert getattr(record, name) == getattr(job, name), name
        assert record.created_at == START


async def test_jobs_of_one_claim_say_each_when_it_came(driver: Driver) -> None:
    """Q06: created one after the other and handed out together."""
    for seconds in range(3):
        await driver.enqueue([new_job(), new_job()], now=START + seconds * SECOND)

    jobs = await reserve(driver, limit=6, now=START + HOUR)

    assert [job.created_at for job in jobs] == [START + seconds * SECOND for seconds in (0, 0, 1, 1, 2, 2)]
    assert [job.started_at for job in jobs] == [START + HOUR] * 6


async def test_what_was_left_out_stays_left_out(driver: Driver) -> None:
    """Q09 A19: a driver fills in no defaults of its own."""
    for job in await everywhere(driver, new_job()):
        assert (job.key, job.idempotency_key, job.run_at) == (None, None, None)
        assert (job.min_backoff, job.max_backoff, job.timeout) == (None, None, timedelta(0))
        assert (job.max_attempts, job.max_stalls, job.headers) == (0, 0, {})
        assert (job.result, job.progress, job.last_error, job.failed_at) == (None, None, None, None)


# ------------------------------------------------------------------ error texts

TEXTS = {
    "plain": ("broken", "broken"),
    "empty": ("", ""),
    "unicode": ("ünïcödé 🐍 \U0010ffff\n\ttab", "ünïcödé 🐍 \U0010ffff\n\ttab"),
    "nul": ("a\0b", "a\ufffdb"),
    "lone surrogates": ("a\ud800b\udfff", "a?b?"),
    "escapes": ("\x1b[31m'\"\\ %s {0}", "\x1b[31m'\"\\ %s {0}"),
}


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("end", [Retry, Fail])
async def test_error_texts_follow_one_rule_everywhere(
    driver: Driver, end: type[Retry | Fail], name: str
) -> None:
    """Q04 Q05 T04: what no store can keep is replaced in the same way, in the record and in its history."""
    text, kept = TEXTS[name]
    job = await running(driver)

    await settle_one(driver, end(job.lease, reason=text))

    record = await get_one(driver, job.id)
    assert record.last_error == kept
    assert [attempt.error or "" for attempt in record.history] == [kept]


@pytest.mark.parametrize("letter", ["x", "ä", "€", "🐍", "\0"])
async def test_a_long_error_is_cut_between_characters(driver: Driver, letter: str) -> None:
    """T13: at most 1 KiB in the record and 8 KiB in the history, and still a text."""
    job = await running(driver)

    await settle_one(driver, Fail(job.lease, reason=letter * 20_000, trace=letter * 20_000))

    record = await get_one(driver, job.id)
    [attempt] = record.history
    assert record.last_error is not None
    assert attempt.error is not None
    assert 1000 < len(record.last_error.encode()) <= 1024
    assert 8180 < len(attempt.error.encode()) <= 8192


async def test_the_reason_of_a_cancel_is_kept_by_the_same_rule(driver: Driver) -> None:
    """Q04: a cancelled run says why."""
    job = await running(driver)

    await settle_one(driver, Cancelled(job.lease, "no\0more\ud800"))

    assert (await get_one(driver, job.id)).last_error == "no\ufffdmore?"


async def test_progress_comes_back_as_it_was(driver: Driver) -> None:
    """Q08: the fraction as a number, the word with every character."""
    job = await running(driver)
    for progress in (Progress(0.1, "ünï 🐍"), Progress(1.0), Progress(0.0, ""), Progress(1 / 3, "a'b")):
        await driver.extend_leases([job.lease], LEASE, progress={job.id: progress}, now=START)

        assert (await get_one(driver, job.id)).progress == progress


# ------------------------------------------------------------------ time


@pytest.mark.parametrize("microseconds", [0, 1, 999, 1000, 123_456, 500_000, 999_999])
async def test_instants_are_kept_to_the_microsecond(driver: Driver, microseconds: int) -> None:
    """Q06: of the caller and of the deciding clock."""
    now = START + timedelta(microseconds=microseconds)
    run_at = now + MICROSECOND

    [shown, listed, taken] = await everywhere(driver, new_job(run_at=run_at), now=now)

    assert shown.run_at == listed.run_at == taken.run_at == run_at
    assert (shown.created_at, taken.started_at) == (now, run_at)
    assert taken.lease_expires_at == run_at + LEASE


@pytest.mark.parametrize("now", [FIRST, FIRST + MICROSECOND, LAST - HOUR], ids=str)
async def test_the_first_and_the_last_year_work_like_any_other(driver: Driver, now: datetime) -> None:
    """Q07 S08 A07: from 1970 to 2200, a whole life."""
    answer = await enqueue_one(driver, now=now, run_at=now + SECOND)
    assert await reserve(driver, now=now + SECOND - MICROSECOND) == []
    job = await reserve_one(driver, now=now + SECOND, lease_for=SECOND)
    [reclaimed] = await driver.reclaim(now=now + 2 * SECOND)
    again = await reserve_one(driver, now=now + 2 * SECOND)
    await settle_one(driver, Ack(again.lease), now=now + 3 * SECOND)

    record = await get_one(driver, answer.id, now=now + 3 * SECOND)
    assert (job.id, reclaimed.id) == (answer.id, answer.id)
    assert (record.created_at, record.started_at) == (now, now + 2 * SECOND)
    assert record.finished_at == now + 3 * SECOND


@pytest.mark.parametrize("at", [FIRST - MICROSECOND, LAST + MICROSECOND], ids=str)
async def test_years_outside_are_refused(driver: Driver, at: datetime) -> None:
    """Q07: as run_at and as now."""
    with pytest.raises(InvalidArgument):
        await enqueue_one(driver, run_at=at)
    with pytest.raises(InvalidArgument):
        await enqueue_one(driver, now=at)


async def test_instants_come_back_in_utc(driver: Driver) -> None:
    """S09 A09: whatever zone they came in."""
    kathmandu = timezone(timedelta(hours=5, minutes=45))
    run_at = (START + HOUR).astimezone(kathmandu)

    for job in await everywhere(driver, new_job(run_at=run_at), now=START.astimezone(kathmandu)):
        assert job.run_at == run_at
        assert job.run_at is not None
        assert (job.run_at.utcoffset(), job.created_at.utcoffset()) == (timedelta(0), timedelta(0))


# ------------------------------------------------------------------ names and keys

HOSTILE_KEYS = [
    b"\0",
    b":",
    b"a:b",
    b"{}",
    b"{key}:waiting",
    b"line\nline",
    b"\r\n",
    b" ",
    b"key",
    b"key ",
    b"KEY",
    b"key\0",
    b"key\0tail",
    b"\xff\xfe",
    b"\xc3\x28",
    b"%00",
    b"'; --",
    b"*",
    b"../..",
    b"k" * 254,
    b"k" * 255,
    "ключ 🐍".encode(),
]


async def test_hostile_keys_are_all_different_and_all_work(driver: Driver) -> None:
    """M13 R004-6 C22: as key and as idempotency key, equal prefixes included."""
    jobs = [new_job(key=key, idempotency_key=key) for key in HOSTILE_KEYS]
    answers = await driver.enqueue(jobs, now=START)
    assert {answer.result for answer in answers} == {EnqueueResult.CREATED}

    taken = await reserve(driver, limit=100)
    assert [job.key for job in taken] == HOSTILE_KEYS
    assert [job.idempotency_key for job in taken] == HOSTILE_KEYS
    blocked = [await enqueue_one(driver, key=key) for key in HOSTILE_KEYS]
    assert {answer.result for answer in blocked} == {EnqueueResult.BLOCKED}
    for key, job, follower in zip(HOSTILE_KEYS, taken, blocked, strict=True):
        assert await found_ids(driver, key=key) == [job.id, follower.id]
        assert await driver.cancel_waiting(job.queue, key, now=START)
    await driver.settle([Ack(job.lease) for job in taken], now=START)
    assert await reserve(driver, limit=100) == []


@pytest.mark.parametrize("name", ["a", "0", "Z" * 128, "a.b-c_d", "worker", "default", "null", "true", "1e5"])
async def test_the_longest_and_oddest_names_work(driver: Driver, name: str) -> None:
    """Q10 Q11: as queue, type and lane."""
    [shown, listed, taken] = await everywhere(driver, new_job(queue=name, type=name, requires=name))

    for job in (shown, listed, taken):
        assert (job.queue, job.type, job.requires) == (name, name, name)
    assert list(await driver.count(now=START)) == [name]


@pytest.mark.parametrize("worker_id", ["w", "w" * 255, "host:1234/é 🐍", "a'b\"c\\d", "{w}", "worker-a:2"])
async def test_odd_worker_ids_work(driver: Driver, worker_id: str) -> None:
    """Q10 R004-6: nothing is parsed out of them."""
    job = await running(driver, worker_id=worker_id)

    assert (await get_one(driver, job.id)).worker_id == worker_id
    assert await found_ids(driver, worker_id=worker_id) == [job.id]
    await settle_one(driver, Ack(job.lease))


async def test_ids_that_differ_in_one_digit_are_different(driver: Driver) -> None:
    """Q11: the whole id counts."""
    first = new_id()
    last = "0" if first[-1] != "0" else "1"
    second = first[:-1] + last
    await driver.enqueue([new_job(id=first, payload=b"1"), new_job(id=second, payload=b"2")], now=START)

    assert (await get_one(driver, second)).payload == b"2"
    assert (await get_one(driver, first)).payload == b"1"
