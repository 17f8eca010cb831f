"""The search language: what a text means, where it is wrong, what the store does, and which jobs fit."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskharbor.model.cause import cause_of_job
from taskharbor.model.job import AttemptRecord, JobRecord
from taskharbor.model.search import (
    ALIASES,
    ANYWHERE,
    FIELDS,
    MAX_SEARCH,
    MAX_VALUES,
    Search,
    SearchError,
    Term,
    Value,
    parse_search,
)
from taskharbor.model.search_filter import Circumstances, matches
from taskharbor.model.state import JobState
from tests.unit.growth import assert_linear

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)
ID = "019e4b7f-1a2b-7c3d-8e4f-5a6b7c8d9e0f"


def job(**fields: Any) -> JobRecord:
    ago = {"created_at": NOW - timedelta(hours=2), "updated_at": NOW}
    usual = {
        "id": ID,
        "seq": 1,
        "type": "send_mail",
        "queue": "mail",
        "state": JobState.READY,
        "payload": b"",
    }
    return JobRecord(**{**usual, **ago, **fields})


def fits(text: str, arguments: Any = None, releases: dict[str, str] | None = None, **fields: Any) -> bool:
    facts = Circumstances(now=NOW, arguments=lambda _: arguments, releases=releases or {})
    return matches(parse_search(text), job(**fields), facts)


# ------------------------------------------------------------------ grammar


def test_words_commas_quotes_and_minus() -> None:
    assert parse_search('queue:mail,"a, \\"b\\"" -type:send_*  state:failed') == Search(
        (
            Term("queue", (Value("mail"), Value('a, "b"'))),
            Term("type", (Value("send_*", is_pattern=True),), is_negated=True),
            Term("state", (Value("failed"),)),
        )
    )


def test_a_star_in_quotes_is_a_star() -> None:
    assert fits('key:"a*"', key=b"a*")
    assert not fits('key:"a*"', key=b"ab")


def test_a_bare_word_is_an_id_or_a_part_of_what_lists_show() -> None:
    assert parse_search("019E4B7F-1a2b") == Search((Term("id", (Value("019e4b7f-1a2b"),)),))
    assert parse_search("-send") == Search((Term(ANYWHERE, (Value("send"),), is_negated=True),))
    assert parse_search("*mail") == Search((Term(ANYWHERE, (Value("*mail", is_pattern=True),)),))
    assert parse_search("12345678").terms[0].field == ANYWHERE
    assert parse_search("1" * 8 + "-1111-1111-1111-" + "1" * 12).terms[0].field == "id"


def test_an_argument_may_be_written_as_lists_write_it() -> None:
    assert parse_search('number=3482 -user.name="a b",c') == parse_search(
        'args.number:3482 -args.user.name:"a b",c'
    )
    assert parse_search("args.number=1") == parse_search("args.number:1")
    assert fits("number=3482", {"number": 3482})
    assert not fits("number=348", {"number": 3482})


def test_no_words_are_everything() -> None:
    assert parse_search("").is_everything
    assert parse_search(" \t\n").is_everything


def test_every_alias_leads_to_a_field() -> None:
    assert set(ALIASES.values()) <= set(FIELDS)
    assert parse_search("task:x status:failed") == parse_search("type:x state:failed")


@pytest.mark.parametrize(
    ("text", "marked", "expected"),
    [
        ("type:x colour:red", "colour", "type:"),
        ("stat:failed", "stat", "state:"),
        ("state:failed,fialed", "fialed", "failed"),
        ("state:fail*", "fail*", "failed"),
        ("queue:", "queue:", "a value after queue:"),
        ("queue:mail,", ",", "a value after the comma"),
        ("queue:,mail", "queue:", "a value after queue:"),
        ('error:"timed out', '"timed out', 'a closing "'),
        ('error:"timed"out', "o", "a space"),
        ('error:time"d', '"', "a space"),
        ("attempt:many", "many", "attempt:>3"),
        ("attempt:>", ">", "attempt:>3"),
        ("age:1h", "1h", "age:<1h"),
        ("ended:<soon", "<soon", "ended:<1h"),
        ("id:zzz", "zzz", "6 to 32 hex digits"),
        ("state=failed", "state=", "state:"),
        ("a..b=1", "a..b=", "args.a..b:"),
        ("args:1", "args", "args.NAME:"),
        ("args..x:1", "args..x", "args.NAME:"),
        ("queue.x:1", "queue.x", "args.NAME:"),
        ("type:x -", "", "a word like state:failed"),
        (">3", ">3", "a word like attempt:>2"),
    ],
)
def test_a_search_that_means_nothing_says_where_and_what_was_expected(
    text: str, marked: str, expected: str
) -> None:
    with pytest.raises(SearchError) as refusal:
        parse_search(text)

    error = refusal.value
    assert text[error.at : error.at + error.length] == marked or (not marked and error.at == len(text))
    assert expected in error.expected
    assert expected in str(error)


def test_a_search_has_a_longest_length_and_a_number_of_values() -> None:
    assert len(parse_search("x" * MAX_SEARCH).terms) == 1
    assert len(parse_search("queue:" + ",".join("x" * MAX_VALUES)).terms[0].values) == MAX_VALUES
    with pytest.raises(SearchError):
        parse_search("x" * (MAX_SEARCH + 1))
    with pytest.raises(SearchError):
        parse_search("queue:" + ",".join("x" * (MAX_VALUES + 1)))


# ------------------------------------------------------------------ what the store does


def test_what_the_store_can_do_is_left_to_it() -> None:
    lookup = parse_search(
        "state:failed queue:mail type:send key:k worker:w-1 failure:timeout ended:<1h"
    ).lookup()

    assert (lookup.queue, lookup.states, lookup.type) == ("mail", (JobState.FAILED,), "send")
    assert (lookup.key, lookup.worker_id, lookup.failure_kind) == (b"k", "w-1", "timeout")
    assert lookup.ended_within_s == 3600
    assert lookup.walked_in_store == ("type", "key", "worker", "failure")
    assert lookup.walked_in_server == ("ended",)


@pytest.mark.parametrize("text", ["queue:a,b", "queue:a*", "-queue:a", "error:x", "args.x:1", "019e4b7f"])
def test_what_the_store_cannot_do_is_left_to_the_filter(text: str) -> None:
    lookup = parse_search(text).lookup()

    assert (lookup.ids, lookup.queue) == (None, None)
    assert len(lookup.walked_in_server) == 1


def test_states_are_joined_cut_and_turned_around() -> None:
    def states(text: str) -> set[str] | None:
        found = parse_search(text).lookup().states
        return None if found is None else {state.value for state in found}

    assert states("type:x") is None
    assert states("state:failed,ready") == {"failed", "ready"}
    assert states("-state:failed,ready") == {"scheduled", "blocked", "running", "completed", "cancelled"}
    assert states("state:failed state:ready") == set()
    assert states("state:retrying") == {"scheduled", "ready", "blocked"}
    assert states("-state:retrying,running") == set(map(str, JobState)) - {"running"}
    assert states("ended:<1h") == {"completed", "failed", "cancelled"}
    assert states("-ended:<1h") is None


def test_whole_ids_are_looked_up() -> None:
    other = ID.replace("0", "1")

    assert parse_search(f"{ID},{other}").lookup().ids == (ID, other)
    assert parse_search(f"-{ID}").lookup().ids is None
    assert parse_search(f"{ID},019e4b7f").lookup().ids is None


def test_states_are_added_only_if_none_are_named() -> None:
    assert parse_search("type:x").or_states(JobState.FAILED).states == (JobState.FAILED,)
    assert parse_search("state:ready").or_states(JobState.FAILED).states == (JobState.READY,)


# ------------------------------------------------------------------ which jobs fit


def test_all_words_must_hold_and_one_value_of_each() -> None:
    assert fits("queue:mail type:send_mail,other")
    assert not fits("queue:mail type:other")
    assert not fits("-queue:mail")
    assert fits("-queue:sms -type:x")


@pytest.mark.parametrize(
    ("pattern", "name", "is_fit"),
    [
        ("send_*", "send_mail", True),
        ("*mail", "send_mail", True),
        ("s*m*l", "send_mail", True),
        ("*", "", True),
        ("send_????", "send_mail", True),
        ("send_???", "send_mail", False),
        ("a*a", "a", False),
        ("a*a", "aa", True),
        ("*a*b", "ab", True),
        ("*ab*ab", "ab", False),
        ("a.c*", "abc", False),
        ("*a", "ab\na", True),
    ],
)
def test_stars_and_question_marks(pattern: str, name: str, is_fit: bool) -> None:
    assert fits(f"type:{pattern}", type=name) is is_fit


def test_ids_fit_by_their_first_or_last_digits() -> None:
    assert fits("019e4b7f1a2b")
    assert fits("5a6b7c8d9e0f")
    assert fits(ID)
    assert not fits("1a2b7c3d")


def test_retrying_jobs_wait_and_have_failed() -> None:
    assert fits("state:retrying", state=JobState.SCHEDULED, failure_kind="error")
    assert not fits("state:retrying", state=JobState.SCHEDULED)
    assert not fits("state:retrying", state=JobState.FAILED, failure_kind="error")
    assert fits("-state:retrying", state=JobState.SCHEDULED)


def test_texts_of_every_field() -> None:
    assert fits("key:customer:7", key=b"customer:7")
    assert fits("worker:w-*", worker_id="w-1")
    assert not fits("worker:*", worker_id=None)
    assert fits("failure:timeout", failure_kind="timeout")
    assert fits("lane:gpu", requires="gpu")
    assert fits('error:"TIMED out"', last_error="TimeoutError: timed out after 3 s")
    assert fits("error:time*3", last_error="TimeoutError: timed out after 3 s")
    assert not fits("error:x", last_error=None)
    assert fits("tag:vip", headers={"tags": "new, vip"})
    assert not fits("tag:vip", headers={})


def test_the_release_is_that_of_the_worker_that_ran_it_last() -> None:
    attempt = AttemptRecord(1, "w-2", NOW, NOW, "failed")

    assert fits("release:r2", releases={"w-1": "r1", "w-2": "r2"}, history=(attempt,))
    assert fits("release:r1", releases={"w-1": "r1", "w-2": "r2"}, history=(attempt,), worker_id="w-1")
    assert not fits("release:r1", releases={"w-1": "r1"})


def test_the_cause_is_worked_out() -> None:
    fields: dict[str, Any] = {"last_error": "E: away", "failure_kind": "error"}
    cause = cause_of_job(job(**fields))

    assert cause is not None
    assert fits(f"cause:{cause.id}", **fields)
    assert not fits(f"cause:{cause.id}")


def test_numbers_and_spans_are_compared() -> None:
    assert fits("attempt:>2", attempts=3)
    assert fits("attempt:3", attempts=3)
    assert not fits("attempt:>2", attempts=2)
    assert fits("attempt:>=2 attempt:<=2", attempts=2)
    assert fits("priority:<0", priority=-1)
    assert fits("priority:-1", priority=-1)
    assert fits("age:>1h age:<3h")
    assert not fits("ended:<1h")
    assert fits("ended:<1h", finished_at=NOW - timedelta(minutes=59))


def test_waits_and_runs_count_so_far_or_until_their_end() -> None:
    began, ended = NOW - timedelta(minutes=90), NOW - timedelta(minutes=80)

    assert fits("wait:>1h")
    assert not fits("run:>0s")
    assert fits("wait:>29m wait:<31m run:>1h", state=JobState.RUNNING, started_at=began)
    assert fits("wait:<31m run:<11m run:>9m", state=JobState.FAILED, started_at=began, finished_at=ended)


@pytest.mark.parametrize(
    ("text", "is_fit"),
    [
        ("args.user.id:42", True),
        ("args.user.id:42.0", True),
        ("args.user.id:>41", True),
        ("args.user.id:>42", False),
        ('args.user.id:"42"', True),
        ("args.user.name:an*", True),
        ("args.user.none:1", False),
        ("args.user:*", True),
        ("args.user:42", False),
        ("args.items.sku:b", True),
        ("args.items.1.sku:b", True),
        ("args.items.0.sku:b", False),
        ("args.items.9999999999.sku:b", False),
        ("args.flag:true", True),
        ("args.nothing:null", True),
        ("args.tags:x", True),
        ("args.tags:>x", False),
    ],
)
def test_arguments_are_found_by_their_path(text: str, is_fit: bool) -> None:
    arguments = {
        "user": {"id": 42, "name": "ana"}, "items": [{"sku": "a"}, {"sku": "b"}], "flag": True,
        "nothing": None, "tags": ["x", "y"],
    }  # fmt: skip

    assert fits(text, arguments) is is_fit


@pytest.mark.parametrize(
    ("text", "is_fit"),
    [
        ("flaky", True),
        ("flak??call", True),
        ("connection refused", True),
        ('"connection refused"', True),
        ('"refused connection"', False),
        ("refused,nothing", True),
        ("-refused", False),
        ("3482", True),
        ("348", True),
        ("3483", False),
        ("north", True),
        ("true", True),
        ("8d9e0f", True),
        ("019e4b", True),
        ("d9e0f", False),
        ("7c3d8e", False),
        ("8d9e0f,other", True),
    ],
)
def test_a_bare_word_is_found_in_everything_that_lists_show(text: str, is_fit: bool) -> None:
    fields: dict[str, Any] = {"type": "demo.flaky_call", "last_error": "ConnectionError: Connection refused"}

    assert fits(text, {"number": 3482, "items": [{"where": "North"}, True]}, **fields) is is_fit


def test_a_bare_word_is_found_in_a_key() -> None:
    assert fits('"order:7"', key=b"order:7")


def test_a_bare_word_needs_the_arguments() -> None:
    assert parse_search("3482").needs_payloads
    assert not parse_search("019e4b7f type:x").needs_payloads


# ------------------------------------------------------------------ any text

WORDS = st.sampled_from(
    [
        "state:failed",
        "-",
        "queue:",
        "a,b",
        '"',
        "\\",
        "type:*x*",
        " ",
        ":",
        "args.x:>1",
        "age:<1h",
        ",",
        "019e4b7f",
        "<",
        "a=",
    ]
)


@given(st.lists(WORDS | st.text(max_size=5), max_size=12).map("".join))
def test_any_text_is_a_search_or_marked_within_itself(text: str) -> None:
    wrong: SearchError | None = None
    search = Search()
    try:
        search = parse_search(text)
    except SearchError as error:
        wrong = error

    assert wrong is None or (0 <= wrong.at <= len(text) and wrong.expected)
    assert not (matches(search, job(), Circumstances(now=NOW)) and search.lookup().states == ())


@given(st.text("ab?*", max_size=8), st.text("ab", max_size=8))
def test_a_pattern_means_what_a_regular_expression_would(pattern: str, name: str) -> None:
    meant = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
    is_pattern = "*" in pattern or "?" in pattern
    search = Search((Term("type", (Value(pattern, is_pattern=is_pattern),)),))

    assert matches(search, job(type=name), Circumstances(now=NOW)) is bool(re.fullmatch(meant, name))


@given(st.text(max_size=20))
def test_a_quoted_value_is_itself(text: str) -> None:
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')

    assert parse_search(f'key:"{quoted}"').terms[0].values == (Value(text),)


@pytest.mark.parametrize(
    "piece", ["a", "-", ":", ",", '"', "\\", "a:", "a ", "*", '"a" ', "args.a:1,", "<", "0", "a=", "a."]
)
def test_the_time_grows_in_proportion_to_the_text(piece: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskharbor.model.search.MAX_SEARCH", 10**9)
    monkeypatch.setattr("taskharbor.model.search.MAX_VALUES", 10**9)

    assert_linear(parse_search, lambda size: piece * size)
