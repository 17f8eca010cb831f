"""Inputs that somebody will send some day, and the reaction that each must get.

Rejected means before the store is touched: nothing is stored, and nothing is changed.
"""

import asyncio
import base64
import json
import logging
import pickle
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from taskharbor import Harbor
from tests.integration.http.api import Api, make_token, token_file

JSON = {"Content-Type": "application/json"}


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    found = Api()
    yield found
    await found.aclose()


async def post(api: Api, body: dict[str, Any]) -> Any:
    return await api("POST", "/api/jobs", body)


async def post_raw(api: Api, body: bytes, headers: dict[str, str] | None = None) -> Any:
    return await api("POST", "/api/jobs", content=body, headers=JSON if headers is None else headers)


async def refuse(api: Api, answer: Any, status: int) -> str:
    """The detail of a refusal that left nothing behind."""
    assert answer.status_code == status, answer.text
    problem = answer.json()
    assert answer.headers["content-type"] == "application/problem+json"
    assert problem["status"] == status
    assert problem["type"].startswith("urn:taskharbor:problem:")
    assert (await api("GET", "/api/jobs")).json()["items"] == []
    return str(problem["detail"])


# ------------------------------------------------------------------ names

BAD_QUEUES = [
    "",
    "q" * 129,
    "a'; DROP TABLE jobs;--",
    'a") OR 1=1 --',
    "a:b",
    "{tag}",
    "../../x",
    "a\0b",
    "a\n",
    "a\r\nX-Evil: 1",
    "qu\u0435ue",  # a Cyrillic letter that looks like a Latin one
    "%s%n{0.__class__}",
    "*",
    "[a-z]*",
    "-first",
]


@pytest.mark.parametrize("queue", BAD_QUEUES)
async def test_a_queue_that_is_no_name_is_rejected(api: Api, queue: str) -> None:
    answer = await post(api, {"type": "x", "queue": queue})

    await refuse(api, answer, 422)
    assert "x-evil" not in answer.headers


@pytest.mark.parametrize("queue", BAD_QUEUES)
async def test_a_queue_that_is_no_name_is_never_a_pattern_or_a_header_in_lists(api: Api, queue: str) -> None:
    answer = await api("GET", "/api/jobs", params={"queue": queue})

    await refuse(api, answer, 422)


async def test_a_name_in_the_log_is_quoted_and_not_formatted(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await api("POST", "/api/queues/%25s%25n{0.__class__}%0a/pause")
    await asyncio.sleep(0)  # changes are logged when the loop comes round

    [entry] = [one for one in caplog.records if one.name == "taskharbor.audit"]
    assert "\n" not in entry.getMessage()
    assert entry.path == "/api/queues/%s%n{0.__class__}\\n/pause"  # type: ignore[attr-defined]


@pytest.mark.parametrize("type", ["", "__import__('os').system('x')", "a b", "t" * 129, "x\u0000"])
async def test_a_type_that_is_no_name_is_rejected(api: Api, type: str) -> None:
    await refuse(api, await post(api, {"type": type}), 422)


async def test_a_type_is_a_name_and_nothing_is_imported_for_it(api: Api) -> None:
    harbor = Harbor("memory://")

    @harbor.task
    async def known() -> None: ...

    strict = Api(harbor)
    taken = await post(api, {"type": "os.system", "payload": ["exit 7"]})
    refused = await post(strict, {"type": "os.system", "payload": ["exit 7"]})

    assert taken.status_code == 201
    assert (await api("GET", f"/api/jobs/{taken.json()['id']}")).json()["type"] == "os.system"
    await refuse(strict, refused, 422)
    await strict.aclose()


@pytest.mark.parametrize(
    "job_id", ["", "a b", "x" * 1_000_000, "00000000-0000-7000-8000-00000000000G", "--help"]
)
async def test_an_id_that_is_none_is_rejected(api: Api, job_id: str) -> None:
    await refuse(api, await post(api, {"type": "x", "id": job_id}), 422)


async def test_a_known_id_with_another_content_is_a_conflict(api: Api) -> None:
    job_id = "01900000-0000-7000-8000-000000000001"
    first = await post(api, {"type": "x", "payload": 1, "id": job_id})
    same = await post(api, {"type": "x", "payload": 1, "id": job_id})
    other = await post(api, {"type": "x", "payload": 2, "id": job_id})
    batch = await api("POST", "/api/jobs/batch", {"jobs": [{"type": "y", "id": job_id}]})

    assert [answer.status_code for answer in (first, same, other, batch)] == [201, 200, 409, 409]
    assert other.json()["type"] == "urn:taskharbor:problem:duplicate-job"
    whole = (await api("GET", f"/api/jobs/{job_id}")).json()
    assert (whole["payload"], whole["version"]) == (1, 1)


@pytest.mark.parametrize("key", ["", "k" * 10_000, "a\u0007b", "a\nb", "a\u0000", "é" * 200])
async def test_a_key_that_is_too_long_or_cannot_be_printed_is_rejected(api: Api, key: str) -> None:
    await refuse(api, await post(api, {"type": "x", "idempotency_key": key}), 422)
    await refuse(api, await post(api, {"type": "x", "key": key}), 422)


@pytest.mark.parametrize("key", [b"", b"k" * 10_000, b"a\x07b", b"\xff\xfe"])
async def test_a_key_in_the_header_keeps_to_the_same_limits(api: Api, key: bytes) -> None:
    answer = await api._client.post("/api/jobs", json={"type": "x"}, headers=[(b"Idempotency-Key", key)])

    await refuse(api, answer, 422)


# ------------------------------------------------------------------ JSON


@pytest.mark.parametrize(
    "body", [b"", b"{", b"hello", b"\xff\xfe", b'{"type":"x"}{', b'{"type":"\xff"}', b"'x'"]
)
async def test_a_body_that_is_no_json_is_malformed(api: Api, body: bytes) -> None:
    await refuse(api, await post_raw(api, body), 400)


@pytest.mark.parametrize(
    "value", ["NaN", "Infinity", "-Infinity", "1e400", "-1e400", "9" * 5000, '"\\ud800"', '["\\udfff x"]']
)
async def test_a_value_that_json_or_a_store_cannot_hold_is_rejected(api: Api, value: str) -> None:
    await refuse(api, await post_raw(api, b'{"type":"x","payload":' + value.encode() + b"}"), 422)


@pytest.mark.parametrize(
    "body",
    [
        b'{"type":"x","type":"y"}',
        b'{"type":"x","payload":{"a":1,"a":1}}',
        b'{"type": "x", "payload": {"a": [{"b": 1, "c": 2, "b": 3}]}}',
    ],
)
async def test_a_key_given_twice_is_rejected(api: Api, body: bytes) -> None:
    assert "twice" in await refuse(api, await post_raw(api, body), 422)


async def test_a_bottomless_body_is_malformed_and_breaks_nothing(api: Api) -> None:
    deep = b'{"type":"x","payload":' + b"[" * 100_000 + b"]" * 100_000 + b"}"

    await refuse(api, await post_raw(api, deep), 400)
    assert (await api("GET", "/livez")).status_code == 200


async def test_a_payload_may_be_nested_sixty_four_deep_and_no_deeper(api: Api) -> None:
    def nested(depth: int) -> bytes:
        return b'{"type":"x","payload":' + b"[" * depth + b"1" + b"]" * depth + b"}"

    assert (await post_raw(api, nested(64))).status_code == 201
    assert (await post_raw(api, nested(65))).status_code == 422
    wide = {"type": "x", "payload": [[] for _ in range(200)]}
    assert (await post(api, wide)).status_code == 201


async def test_a_zero_character_in_a_payload_is_kept_and_in_a_name_rejected(api: Api) -> None:
    taken = await post(api, {"type": "x", "payload": "a\u0000b"})

    assert taken.status_code == 201
    assert (await api("GET", f"/api/jobs/{taken.json()['id']}")).json()["payload"] == "a\u0000b"
    assert (await post(api, {"type": "x", "requires": "a\u0000b"})).status_code == 422


async def test_a_payload_of_exactly_the_limit_goes_in_and_a_byte_more_does_not(api: Api) -> None:
    limit = 1024 * 1024
    over = await post(api, {"type": "x", "payload": "x" * (limit - 1)})
    detail = await refuse(api, over, 413)
    most = await post(api, {"type": "x", "payload": "x" * (limit - 2)})

    assert str(limit) in detail
    assert most.status_code == 201


async def test_a_body_over_the_limit_is_not_read_to_its_end(api: Api) -> None:
    read = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal read
        for _ in range(100):
            read += 65536
            yield b" " * 65536

    answer = await api("POST", "/api/jobs", content=endless(), headers=JSON)
    announced = await post_raw(api, b"{}", {**JSON, "Content-Length": "99999999"})

    assert read <= 20 * 65536
    assert answer.headers["connection"] == "close"
    await refuse(api, answer, 413)
    await refuse(api, announced, 413)


async def test_a_body_that_takes_too_long_is_given_up_also_below_a_foreign_server() -> None:
    api = Api(request_seconds=0.05)

    async def trickle() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    answer = await api("POST", "/api/jobs", content=trickle(), headers=JSON)

    assert answer.headers["connection"] == "close"
    await refuse(api, answer, 408)
    await api.aclose()


@pytest.mark.parametrize(
    "kind",
    [
        "application/x-python-pickle",
        "text/plain",
        "application/x-www-form-urlencoded",
        "",
        "application/jsonp",
    ],
)
async def test_a_body_of_another_kind_is_refused_unread(api: Api, kind: str) -> None:
    body = pickle.dumps({"type": "x"})

    await refuse(api, await post_raw(api, body, {"Content-Type": kind}), 415)


@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate", "gzip, identity"])
async def test_a_packed_body_is_refused_unread(api: Api, encoding: str) -> None:
    await refuse(api, await post_raw(api, b"\x1f\x8b", {**JSON, "Content-Encoding": encoding}), 415)


async def test_a_stored_error_that_names_code_is_text(api: Api) -> None:
    job_id = await api.put({"type": "x"})
    await api.kill(reason="os.system('exit 7')")

    assert (await api("GET", f"/api/jobs/{job_id}")).json()["last_error"] == "os.system('exit 7')"


async def test_values_that_look_like_commands_come_back_as_they_were(api: Api) -> None:
    evil = "\r\nFLUSHALL\r\n redis.call('FLUSHALL') '; DROP TABLE jobs; -- %_"
    job_id = await api.put({"type": "x", "payload": evil, "headers": {"note": evil}})

    whole = (await api("GET", f"/api/jobs/{job_id}")).json()
    assert (whole["payload"], whole["headers"]) == (evil, {"note": evil})


# ------------------------------------------------------------------ numbers and times


@pytest.mark.parametrize(
    "options",
    [
        {"max_attempts": -1},
        {"max_attempts": 10**9},
        {"max_attempts": "3"},
        {"max_attempts": 3.5},
        {"max_attempts": True},
        {"max_retries": 3},
        {"priority": 10**12},
        {"priority": 101},
        {"priority": "high"},
        {"timeout_s": -1},
        {"timeout_s": 1e300},
        {"delay_s": -0.1},
        {"min_backoff_s": 10, "max_backoff_s": 1},
        {"requires": "a b"},
        {"headers": {"a": 1}},
        {"headers": {str(number): "" for number in range(65)}},
        {"update": {"data": True}},
        {"update": {"run_at": "sometimes"}, "key": "k"},
        {"queue": 7},
        {"colour": "red"},
    ],
)
async def test_an_option_out_of_its_range_is_rejected(api: Api, options: dict[str, Any]) -> None:
    detail = await refuse(api, await post(api, {"type": "x", **options}), 422)

    assert next(iter(options)) in detail or "backoff" in detail or "key" in detail


@pytest.mark.parametrize(
    "options",
    [
        {"run_at": "2030-01-01T00:00:00"},
        {"run_at": "9999-12-31"},
        {"run_at": "9999-12-31T00:00:00Z"},
        {"run_at": "0000-01-01T00:00:00Z"},
        {"run_at": "1969-12-31T23:59:59Z"},
        {"run_at": "tomorrow"},
        {"run_at": 1893456000},
        {"run_at": 1893456000000},
        {"run_at": "2030-01-01T00:00:00Z", "delay_s": 5},
    ],
)
async def test_a_time_that_cannot_be_meant_is_rejected(api: Api, options: dict[str, Any]) -> None:
    await refuse(api, await post(api, {"type": "x", **options}), 422)


async def test_a_number_instead_of_an_instant_gets_a_hint(api: Api) -> None:
    answer = await post(api, {"type": "x", "run_at": 1893456000000})

    assert "2026-12-01T09:00:00Z" in await refuse(api, answer, 422)


async def test_zero_attempts_mean_the_default(api: Api) -> None:
    job_id = await api.put({"type": "x", "max_attempts": 0})

    assert (await api("GET", f"/api/jobs/{job_id}")).json()["max_attempts"] is None


# ------------------------------------------------------------------ behind the question mark


@pytest.mark.parametrize(
    "query",
    [
        "limit=-1",
        "limit=0",
        "limit=1000000000",
        "limit=1e9",
        "limit=1001",
        "limit=ten",
        "limit=5&limit=6",
        "days=100000000",
        "sort=id;DELETE",
        "sort=payload",
        "state=running,dead",
        "state=",
        "queue=%00",
        "worker_id=a%0d%0aSet-Cookie:%20x=1",
        "type=%25",
        "queue=_",
        "q=state:",
        "q=attempt:%3Emany",
        "q=nosuch:field",
        "queue",
        "%ff=1",
        "&".join(f"a{number}=1" for number in range(100)),
    ],
)
async def test_a_parameter_that_makes_no_sense_is_rejected(api: Api, query: str) -> None:
    answer = await api("GET", f"/api/jobs?{query}")

    assert answer.status_code == 422, answer.text
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize(
    "path",
    ["/api/queues?x=1", "/api/workers?x=1", "/api/stats?x=1", "/api/schedules?x=1", "/api/dlq?state=ready"],
)
async def test_parameters_that_nobody_asked_for_are_rejected(api: Api, path: str) -> None:
    assert (await api("GET", path)).status_code == 422


async def test_a_changed_cursor_is_malformed(api: Api) -> None:
    for _ in range(3):
        await api.put({"type": "x"})
    cursor = (await api("GET", "/api/jobs?limit=1")).json()["next_cursor"]

    for changed in (cursor[:-1], "A" + cursor[1:], cursor + "x", "nonsense", "a.b", "." * 400):
        assert (await api("GET", "/api/jobs", params={"cursor": changed})).status_code == 400
    other = await api("GET", "/api/jobs", params={"cursor": cursor, "queue": "default"})
    assert other.status_code == 400
    assert (await api("GET", "/api/jobs", params={"cursor": cursor, "limit": "1"})).status_code == 200


async def test_a_cursor_that_another_server_signed_is_taken_only_when_they_share_a_key(
    api: Api, tmp_path: Path
) -> None:
    for _ in range(3):
        await api.put({"type": "x"})
    token, shared = make_token(token_file(tmp_path), "viewer"), {"tokens": tmp_path / "tokens.json"}
    asked = {"cursor": (await api("GET", "/api/jobs?limit=1")).json()["next_cursor"]}

    stranger, one = Api(api.harbor), Api(api.harbor, **shared)
    assert (await stranger("GET", "/api/jobs", params=asked)).status_code == 400
    assert (await one("GET", "/api/jobs", params=asked, token=token)).status_code == 400

    asked = {"cursor": (await one("GET", "/api/jobs?limit=1", token=token)).json()["next_cursor"]}
    make_token(token_file(tmp_path), "viewer")
    after_a_restart = Api(api.harbor, **shared)
    assert len((await after_a_restart("GET", "/api/jobs", params=asked, token=token)).json()["items"]) == 2


# ------------------------------------------------------------------ paths, methods, hosts


@pytest.mark.parametrize(
    "path",
    [
        "/api/jobs/..%2f..%2fetc%2fpasswd",
        "/api/jobs/%00",
        "/api/jobs/%252e%252e%252f",
        "/api/queues/..%2f..%2fetc%2fpasswd",
        "/api/queues/%00",
        "/api/queues/a%0d%0aSet-Cookie:%20x=1",
        "/api/schedules/%2e%2e",
        "/api/nothing",
        "/api",
        "/api/jobs//",
        "/..%2f..%2fetc%2fpasswd",
    ],
)
async def test_a_path_that_leads_nowhere_is_not_found(api: Api, path: str) -> None:
    answer = await api("GET", path)

    assert answer.status_code in (404, 405), answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("DELETE", "/api/jobs", "GET, HEAD, POST"),
        ("GET", "/api/jobs/batch", None),
        ("POST", "/api/stats", "GET, HEAD"),
        ("GET", "/api/queues/q/pause", "POST"),
        ("GET", "/api/dlq/retry", None),
        ("GET", "/api/schedules/s/run", "POST"),
        ("POST", "/livez", "GET, HEAD"),
    ],
)
async def test_another_method_is_not_allowed(api: Api, method: str, path: str, allow: str | None) -> None:
    answer = await api(method, path)

    assert answer.status_code == 405
    assert allow is None or answer.headers["allow"] == allow


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "", "[::1", "127.0.0.1.evil"])
async def test_a_foreign_host_is_refused_while_no_token_protects_us(api: Api, host: str) -> None:
    await refuse(api, await api("GET", "/api/jobs", headers={"Host": host}), 400)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8484", "[::1]:8484", "LOCALHOST:1"])
async def test_our_own_names_are_served(api: Api, host: str) -> None:
    assert (await api("GET", "/api/jobs", headers={"Host": host})).status_code == 200


async def test_hosts_may_be_named() -> None:
    api = Api(allowed_hosts=("jobs.example",))

    assert (await api("GET", "/livez", headers={"Host": "jobs.example:443"})).status_code == 200
    assert (await api("GET", "/livez", headers={"Host": "localhost"})).status_code == 400
    await api.aclose()


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:9999"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Origin": "http://localhost"},
    ],
)
async def test_a_change_from_a_page_of_another_site_is_forbidden(
    api: Api, headers: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    answer = await api("POST", "/api/jobs", {"type": "x"}, headers=headers)

    await refuse(api, answer, 403)
    assert [one.name for one in caplog.records] == ["taskharbor.audit"]


@pytest.mark.parametrize("headers", [{"Origin": "http://localhost"}, {"Sec-Fetch-Site": "same-origin"}, {}])
async def test_a_change_from_our_own_page_goes_through(api: Api, headers: dict[str, str]) -> None:
    assert (await api("POST", "/api/jobs", {"type": "x"}, headers=headers)).status_code == 201


async def test_headers_over_sixteen_kibibytes_are_too_large(api: Api) -> None:
    answer = await api("GET", "/api/jobs", headers={"X-Long": "x" * 65536})

    await refuse(api, answer, 431)


# ------------------------------------------------------------------ schedules


@pytest.mark.parametrize(
    "options",
    [
        {"cron": "0 0 31 2 *"},
        {"cron": "*/0 * * * *"},
        {"cron": "60 * * * *"},
        {"cron": "1-99999999 * * * *"},
        {"cron": "0 " * 5000},
        {"cron": ",".join(["1"] * 100_000) + " * * * *"},
        {"cron": ""},
        {"cron": "* * * * *", "timezone": "../../etc/passwd"},
        {"cron": "* * * * *", "timezone": "Mars/Olympus"},
        {"cron": "* * * * *", "timezone": "/etc/localtime"},
        {"cron": "* * * * *", "every_s": 60},
        {"every_s": 0},
        {"every_s": 0.5},
        {"every_s": -1},
        {},
        {"cron": "* * * * *", "misfire": "sometimes"},
        {"cron": "* * * * *", "job": {"type": "x", "run_at": "2030-01-01T00:00:00Z"}},
        {"cron": "* * * * *", "job": {"type": "a b"}},
    ],
)
async def test_a_schedule_that_cannot_fire_is_rejected(api: Api, options: dict[str, Any]) -> None:
    answer = await api("PUT", "/api/schedules/s", {"job": {"type": "x"}, **options})

    await refuse(api, answer, 422)
    assert (await api("GET", "/api/schedules")).json()["items"] == []


async def test_more_schedules_than_the_quota_are_refused() -> None:
    api = Api(max_schedules=2)
    put = {"job": {"type": "x"}, "every_s": 60}
    codes = [(await api("PUT", f"/api/schedules/s{number}", put)).status_code for number in (1, 2, 3, 1)]

    assert codes == [201, 201, 429, 200]
    await api.aclose()


async def test_a_leap_day_that_is_a_monday_is_found_or_refused_quickly(api: Api) -> None:
    answer = await api("PUT", "/api/schedules/s", {"job": {"type": "x"}, "cron": "0 0 29 2 1"})

    assert answer.status_code in (201, 422)


# ------------------------------------------------------------------ secrets


async def test_payloads_are_never_logged(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    await api.put({"type": "x", "payload": {"password": "hunter2"}, "idempotency_key": "s3cret"})
    await post(api, {"type": "x", "payload": {"password": "hunter2"}, "colour": 1})
    await api("GET", "/api/jobs?key=s3cret")

    await asyncio.sleep(0)

    ours = [vars(one) for one in caplog.records if one.name.startswith("taskharbor")]
    text = json.dumps(ours, default=str)
    assert len(ours) >= 2
    assert "hunter2" not in text
    assert "s3cret" not in text
    assert base64.b64encode(b"hunter2").decode() not in text
