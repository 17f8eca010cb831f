"""Payloads of other programs: whatever they are, a view of them is something that JSON has."""

from __future__ import annotations

import base64
import json
from datetime import timedelta

import msgspec
import pytest

from taskharbor.model.clock import EPOCH
from taskharbor.model.codec import CODEC_HEADER
from taskharbor.model.job import JobRecord
from taskharbor.model.state import JobState
from taskharbor.views import job_details, plain


def job(payload: bytes, codec: str) -> JobRecord:
    return JobRecord(
        id="01890000-0000-7000-8000-000000000000",
        seq=1,
        type="t",
        queue="q",
        state=JobState.READY,
        payload=payload,
        created_at=EPOCH,
        updated_at=EPOCH,
        version=1,
        headers={CODEC_HEADER: codec},
        result=payload,
        timeout=timedelta(0),
    )


pack = msgspec.msgpack.encode
ODD = {
    "deep JSON": (b"[" * 500 + b"]" * 500, "json"),
    "very deep JSON": (b"[" * 100_000 + b"]" * 100_000, "json"),
    "deep objects": (b'{"a":' * 500 + b"1" + b"}" * 500, "json"),
    "a number of many digits": (b"9" * 5000, "json"),
    "a number of more than 64 bits": (b"123456789012345678901234567890", "json"),
    "no JSON": (b"\xff\xfe", "json"),
    "deep MessagePack": (b"\x91" * 500 + b"\x01", "msgpack"),
    "very deep MessagePack": (b"\x91" * 100_000 + b"\x01", "msgpack"),
    "an extension": (pack(msgspec.msgpack.Ext(5, b"x")), "msgpack"),
    "keys that are numbers": (pack({1: 2}), "msgpack"),
    "keys that are bytes": (b"\x81\xc4\x01\xff\x01", "msgpack"),
    "keys that are lists": (b"\x81\x91\x01\x01", "msgpack"),
    "keys that are nothing": (b"\x81\xc0\x01", "msgpack"),
    "no UTF-8": (b"\xa2\xff\xfe", "msgpack"),
    "NaN": (b"\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00", "msgpack"),
    "a time out of range": (b"\xc7\x0c\xff" + b"\xff" * 12, "msgpack"),
    "cut off": (b"\xdd\xff\xff\xff\xff", "msgpack"),
    "an unknown codec": (b"x", "of-mine"),
}


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("reveal", [True, False])
def test_an_odd_payload_is_shown_or_given_as_base64(kind: str, reveal: bool) -> None:
    data, codec = ODD[kind]

    view = plain(job_details(job(data, codec), reveal=reveal))

    msgspec.json.encode(view)
    json.dumps(view)
    for name in ("payload", "result"):
        assert name in view or base64.b64decode(view[f"{name}_base64"]) == data


def test_a_usual_payload_is_shown_as_it_is() -> None:
    view = job_details(job(pack({"a": [1, 2.5, None, {"b": b"x"}]}), "msgpack"), reveal=True)

    assert view.payload == {"a": [1, 2.5, None, {"b": "eA=="}]}
