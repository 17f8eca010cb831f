"""Arguments that are refused before any store is asked, and the last ones that are not."""

from datetime import UTC, date, datetime, timedelta, timezone, tzinfo

import msgspec
import pytest

from taskharbor.errors import InvalidArgument, InvalidLeaseDuration
from taskharbor.model import checks
from taskharbor.model.bonds import Bonds
from taskharbor.model.job import NewJob, Update

NOW = datetime(2031, 4, 5, 6, 7, 8, 9, tzinfo=UTC)
ID = "018f0000-0000-7000-8000-000000000001"
US = timedelta(microseconds=1)


def job(**fields):
    return NewJob(**{"id": ID, "type": "mail.send"} | fields)


@pytest.mark.parametrize("name", ["a", "A", "7", "a.b_c-d", "a" * 128, "0.-_"])
def test_a_name_of_letters_digits_and_three_signs_is_accepted(name):
    checks.check_name(name, "queue")


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        "a b",
        ".a",
        "-a",
        "_a",
        "a/b",
        "a:b",
        "{a}",
        "*",
        "ä",
        "a\n",
        "a\x00",
        "a" * 129,
        "\uff41",
        "a\u0661",
        None,
        1,
        b"a",
        ["a"],
        {"a"},
    ],
)
def test_any_other_name_is_refused(name):
    with pytest.raises(InvalidArgument, match="queue"):
        checks.check_name(name, "queue")


def test_a_refused_name_is_shown_short_and_escaped():
    with pytest.raises(InvalidArgument) as refused:
        checks.check_name("\x1b[31m" * 1000, "type")

    assert len(str(refused.value)) < 250
    assert "\x1b" not in str(refused.value)


@pytest.mark.parametrize(("length", "is_whole"), [(78, True), (79, False)])
def test_a_refused_value_is_shown_whole_up_to_eighty_signs(length, is_whole):
    name = "!" * length

    with pytest.raises(InvalidArgument) as refused:
        checks.check_name(name, "type")

    shown = f"'{name}'" if is_whole else f"'{name}'"[:77] + "..."
    assert f"{shown}" in str(refused.value)
    assert (f"'{name}'" in str(refused.value)) is is_whole


@pytest.mark.parametrize(
    "job_id", ["", "1", ID.upper(), ID + "0", ID.replace("-", ""), ID + "\n", None, 7, ID.encode()]
)
def test_an_id_is_a_lower_case_uuid(job_id):
    with pytest.raises(InvalidArgument, match="job id"):
        checks.check_id(job_id)


@pytest.mark.parametrize("worker_id", ["", "a" * 256, "a\nb", "a\0", None, 3])
def test_a_worker_id_is_short_and_printable(worker_id):
    with pytest.raises(InvalidArgument, match="worker id"):
        checks.check_worker_id(worker_id)


@pytest.mark.parametrize("key", [b"", b"k" * 256, "text", None, bytearray(b"k")])
def test_a_key_is_1_to_255_bytes(key):
    with pytest.raises(InvalidArgument, match="key"):
        checks.check_key(key, "key")


@pytest.mark.parametrize("key", [b"k", b"\0", b"\xff" * 255])
def test_a_key_may_hold_any_byte(key):
    checks.check_key(key, "key")


class Nowhere(tzinfo):
    """A time zone that does not know how far it is from UTC."""

    def utcoffset(self, _: datetime | None) -> None:
        return None

    dst = tzname = utcoffset


@pytest.mark.parametrize(
    "at",
    [
        datetime(2031, 1, 1),  # noqa: DTZ001
        datetime(2031, 1, 1, tzinfo=Nowhere()),
        date(2031, 1, 1),
        "2031-01-01",
        0,
        None,
    ],
)
def test_an_instant_is_an_aware_datetime(at):
    with pytest.raises(InvalidArgument, match="run_at"):
        checks.check_instant(at, "run_at")


def test_instants_from_1970_to_2200_are_accepted_and_no_others():
    first, last = datetime(1970, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)

    checks.check_instant(first, "now")
    checks.check_instant(last, "now")
    for outside in (first - US, last + US):
        with pytest.raises(InvalidArgument, match="1970 to 2200"):
            checks.check_instant(outside, "now")


def test_another_time_zone_is_fine_at_the_edge():
    checks.check_instant(datetime(1970, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))), "now")
    with pytest.raises(InvalidArgument):
        checks.check_instant(datetime(1970, 1, 1, tzinfo=timezone(timedelta(hours=2))), "now")


@pytest.mark.parametrize("number", [-1, 1_000_001, 1.0, float("nan"), True, False, "1", None, 10**400])
def test_a_count_is_a_whole_number_in_its_range(number):
    with pytest.raises(InvalidArgument, match="limit"):
        checks.check_count(number, "limit")


@pytest.mark.parametrize("span", [-US, 30, 1.5, "30s", None, timedelta(days=3661)])
def test_a_span_is_a_timedelta_in_its_range(span):
    with pytest.raises(InvalidArgument, match="timeout"):
        checks.check_span(span, "timeout")


@pytest.mark.parametrize("lease_for", [timedelta(0), -US])
def test_a_lease_of_nothing_has_an_error_of_its_own(lease_for):
    with pytest.raises(InvalidLeaseDuration) as refused:
        checks.check_lease_for(lease_for)

    assert refused.value.lease_for == lease_for


@pytest.mark.parametrize("lease_for", [30, None, timedelta(days=3661)])
def test_a_lease_that_is_no_span_is_refused(lease_for):
    with pytest.raises(InvalidArgument):
        checks.check_lease_for(lease_for)


def test_ten_years_ahead_is_a_plan_and_more_is_a_typing_error():
    checks.check_when(NOW + checks.MAX_HORIZON, None, NOW)
    with pytest.raises(InvalidArgument, match="3660 days"):
        checks.check_when(NOW + checks.MAX_HORIZON + US, None, NOW)


def test_run_at_and_delay_exclude_each_other():
    with pytest.raises(InvalidArgument, match="not both"):
        checks.check_when(NOW, timedelta(0), NOW)


@pytest.mark.parametrize("delay", [-US, 5, timedelta(days=3661)])
def test_a_bad_delay_is_refused(delay):
    with pytest.raises(InvalidArgument, match="delay"):
        checks.check_when(None, delay, NOW)


@pytest.mark.parametrize("run_at", [True, False, "if_later", "if_earlier"])
def test_the_four_rules_for_run_at_are_accepted(run_at):
    checks.check_update(Update(run_at=run_at))


@pytest.mark.parametrize("run_at", ["later", "", "IF_LATER", None, 1, 0, []])
def test_any_other_rule_for_run_at_is_refused(run_at):
    with pytest.raises(InvalidArgument, match=r"update\.run_at"):
        checks.check_update(Update(run_at=run_at))


@pytest.mark.parametrize("flags", [{"data": None}, {"retry": None}, {"data": 1}, {"reset_counts": "yes"}])
def test_the_other_flags_are_booleans(flags):
    with pytest.raises(InvalidArgument, match="True or False"):
        checks.check_update(Update(**flags))


@pytest.mark.parametrize(
    "headers",
    [
        None,
        [("a", "b")],
        {"a": 1},
        {1: "a"},
        {"a": "\ud800"},
        {"\ud800": "a"},
        {str(n): "" for n in range(65)},
        {"a": "x" * (16 * 1024)},
    ],
)
def test_headers_are_a_small_map_of_text(headers):
    with pytest.raises(InvalidArgument, match="header"):
        checks.check_headers(headers)


def test_headers_are_measured_in_bytes():
    checks.check_headers({"a": "x" * (16 * 1024 - 1)})
    with pytest.raises(InvalidArgument, match="bytes"):
        checks.check_headers({"a": "ä" * (8 * 1024)})


@pytest.mark.parametrize(
    "fields",
    [
        {"id": "x"},
        {"type": ""},
        {"queue": "a b"},
        {"requires": "*"},
        {"payload": "text"},
        {"payload": b"x" * (1024 * 1024 + 1)},
        {"priority": 101},
        {"priority": -101},
        {"max_attempts": -1},
        {"max_stalls": 1.5},
        {"timeout": timedelta(seconds=-1)},
        {"key": b""},
        {"idempotency_key": b"k" * 256},
        {"update": Update()},
        {"key": b"k", "update": Update(run_at="soon")},  # type: ignore[arg-type]
        {"min_backoff": timedelta(seconds=-1)},
        {"min_backoff": timedelta(seconds=2), "max_backoff": timedelta(seconds=1)},
        {"run_at": NOW, "delay": timedelta(seconds=1)},
        {"headers": {"a": None}},
    ],
)
def test_a_malformed_job_is_refused(fields):
    with pytest.raises(InvalidArgument):
        checks.check_new_job(job(**fields), NOW)


def test_a_job_at_every_limit_is_accepted():
    checks.check_new_job(
        job(
            payload=b"x" * (1024 * 1024),
            priority=100,
            max_attempts=1_000_000,
            key=b"k" * 255,
            update=Update(),
            idempotency_key=b"\0",
            delay=checks.MAX_HORIZON,
        ),
        NOW,
    )


def test_one_bad_job_refuses_the_whole_call():
    with pytest.raises(InvalidArgument):
        checks.check_new_jobs([job(), job(type="")], NOW)


def test_a_call_holds_at_most_ten_thousand_jobs():
    checks.check_new_jobs([job()] * 10_000, NOW)
    with pytest.raises(InvalidArgument, match="in parts"):
        checks.check_new_jobs([job()] * 10_001, NOW)


@pytest.mark.parametrize(
    "fields",
    [
        {"id": "x"},
        {"payload": "text"},
        {"payload": b"x" * 11},
        {"headers": {"a": 1}},
        {"id": ID.upper()},
        {"priority": 101},
        {"priority": -101},
        {"priority": True},
        {"key": b""},
        {"key": b"k" * 256},
        {"key": None, "update": Update()},
        {"idempotency_key": b""},
        {"idempotency_key": b"k" * 256},
        {"delay": timedelta(seconds=-1)},
        {"delay": checks.MAX_HORIZON + US},
        {"run_at": NOW + checks.MAX_HORIZON + US},
        {"run_at": NOW, "delay": timedelta(seconds=1)},
    ],
    ids=str,
)
@pytest.mark.parametrize("key", [None, b"good"])
def test_a_bad_job_behind_one_of_its_like_is_refused(fields, key):
    good = job(timeout=timedelta(0), key=key)
    bad = msgspec.structs.replace(good, **fields)

    with pytest.raises(InvalidArgument):
        checks.check_new_jobs([good, bad], NOW, max_payload=10)


def test_a_later_job_of_a_call_needs_a_key_for_its_update_too():
    update = Update()
    good, bad = job(key=b"k", update=update), job(update=update)
    checks.check_new_jobs([good, msgspec.structs.replace(good, key=b"other")], NOW)
    with pytest.raises(InvalidArgument, match="give a key too"):
        checks.check_new_jobs([good, bad], NOW)


def test_a_later_job_of_a_call_has_no_key_beside_its_bonds_either():
    bonds = Bonds(parent="018f0000-0000-7000-8000-000000000002")
    with pytest.raises(InvalidArgument, match="leave the key out"):
        checks.check_new_jobs([job(bonds=bonds), job(bonds=bonds, key=b"k")], NOW)


def test_the_limits_are_those_that_the_reference_names():
    """A payload may have 1 MiB, a key 255 bytes, headers 16 KiB, a call 10,000 jobs."""
    assert (checks.MAX_PAYLOAD, checks.MAX_KEY, checks.MAX_BATCH) == (1_048_576, 255, 10_000)
    assert (checks.MAX_HEADERS, checks.MAX_HEADER_BYTES) == (64, 16_384)
    assert (checks.MAX_PRIORITY, checks.MAX_COUNT) == (100, 1_000_000)


def test_a_range_of_one_length_is_a_range():
    checks.check_backoff(timedelta(seconds=5), timedelta(seconds=5))
    with pytest.raises(InvalidArgument, match="below min_backoff"):
        checks.check_backoff(timedelta(seconds=5), timedelta(seconds=5) - US)


@pytest.mark.parametrize(
    "odd",
    [
        ID.upper(),
        ID[:-1],
        ID + "0",
        ID.replace("-", "0"),
        ID[:13] + "0-" + ID[15:],
        ID[:8] + "0-" + ID[10:],
        ID[:18] + "0-" + ID[20:],
        ID[:23] + "0-" + ID[25:],
        "g" + ID[1:],
        "é" + ID[1:],
        7,
        None,
    ],
)
def test_many_ids_are_looked_at_as_strictly_as_one(odd):
    assert checks.are_ids([ID, ID])
    assert not checks.are_ids([ID, odd, ID])
    with pytest.raises(InvalidArgument):
        checks.check_id(odd)


@pytest.mark.parametrize(
    ("span", "least", "message"),
    [
        (timedelta(seconds=-1), timedelta(0), "timeout=-1s must not be negative"),
        (timedelta(milliseconds=5), timedelta(seconds=1), "timeout=5ms must be at least 1s"),
        (7, timedelta(0), "timeout=7 must be a timedelta"),
    ],
)
def test_a_span_that_cannot_be_is_named_as_people_write_it(span, least, message):
    with pytest.raises(InvalidArgument, match=f"^{message}$"):
        checks.check_span(span, "timeout", least=least)
