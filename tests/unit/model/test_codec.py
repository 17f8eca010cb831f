"""Values into bytes and back: what travels, what is refused, and where it says the trouble is."""

import enum
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest

from taskharbor.errors import ConfigurationError, DecodeError, EncodeError
from taskharbor.model.codec import CODEC_HEADER, Codecs, JsonCodec, MsgpackCodec
from tests.unit.growth import assert_linear

BOTH = pytest.mark.parametrize("codec", [JsonCodec(), MsgpackCodec()], ids=lambda codec: codec.name)


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Point:
    x: float
    y: float = 0.0


class Line(msgspec.Struct):
    start: Point
    end: Point


class Named(TypedDict):
    name: str


class User(pydantic.BaseModel):
    id: int
    name: str


class DuckModel:
    """No pydantic, but the same two methods."""

    def __init__(self, number):
        self.number = number

    def model_dump(self, mode):
        return {"number": self.number, "mode": mode}

    @classmethod
    def model_validate(cls, value):
        return cls(value["number"])


@BOTH
@pytest.mark.parametrize(
    ("value", "type_"),
    [
        (None, Any),
        ([1, "zwei", 3.5, None, {"k": [True]}], Any),
        ("\0 ä 🐍 \u2028", str),
        (2**53 + 1, int),
        (-(2**63), int),
        (Point(1.5), Point),
        (Line(Point(0.0), Point(1.0, 2.0)), Line),
        ({"name": "x"}, Named),
        (datetime(2031, 1, 2, 3, 4, 5, 6, tzinfo=UTC), datetime),
        (uuid.UUID(int=7), uuid.UUID),
        (Decimal("0.1000"), Decimal),
        (Colour.RED, Colour),
        (b"\x00\xff", bytes),
        (User(id=1, name="a"), User),
    ],
    ids=repr,
)
def test_a_value_comes_back_as_its_type(codec, value, type_):
    assert codec.decode(codec.encode(value), type_) == value


def test_a_model_of_any_library_dumps_and_validates_itself():
    codec = JsonCodec()

    data = codec.encode({"model": DuckModel(7)})

    assert codec.decode(data) == {"model": {"number": 7, "mode": "json"}}
    assert codec.decode(data, dict[str, DuckModel])["model"].number == 7


@BOTH
@pytest.mark.parametrize("odd", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(
    ("wrap", "path"),
    [
        (lambda odd: odd, "$"),
        (lambda odd: {"a": [0, odd]}, "$.a[1]"),
        (lambda odd: [{"b": (odd,)}], "$[0].b[0]"),
        (lambda odd: Point(1.0, odd), "$.y"),
        (lambda odd: [Line(Point(odd), Point(1.0))], "$[0].start.x"),
    ],
    ids=["bare", "list", "tuple", "dataclass", "struct"],
)
def test_nan_and_infinity_are_refused_with_their_path(codec, odd, wrap, path):
    with pytest.raises(EncodeError) as refused:
        codec.encode(wrap(odd))

    assert refused.value.path == path


@BOTH
@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"user": {"ids": [1, object()]}}, "$.user.ids[1]"),
        ("\ud800", "$"),
        ({"a": ["fine", "\udfff"]}, "$.a[1]"),
        ([lambda: None], "$[0]"),
        ({"gen": iter([])}, "$.gen"),
    ],
    ids=["object", "surrogate", "nested surrogate", "function", "generator"],
)
def test_what_does_not_encode_is_named_by_its_path(codec, value, path):
    with pytest.raises(EncodeError) as refused:
        codec.encode(value)

    assert refused.value.path == path
    assert path in str(refused.value)
    assert "nothing was stored" in str(refused.value)


@BOTH
def test_nesting_has_a_bottom(codec):
    def nested(depth):
        value: list[Any] = []
        for _ in range(depth - 1):
            value = [value]
        return value

    assert codec.decode(codec.encode(nested(64))) == nested(64)
    with pytest.raises(EncodeError, match="deeper than 64"):
        codec.encode(nested(65))


@BOTH
def test_a_value_that_holds_itself_is_refused(codec):
    loop: list[Any] = []
    loop.append(loop)

    with pytest.raises(EncodeError, match="nested"):
        codec.encode(loop)


def test_the_size_limit_is_exact():
    codec = JsonCodec(max_bytes=10)

    assert codec.encode("12345678") == b'"12345678"'
    with pytest.raises(EncodeError, match="11 bytes; 10 are allowed"):
        codec.encode("123456789")


def test_a_payload_over_one_mebibyte_is_refused_by_default():
    with pytest.raises(EncodeError, match="1048576 are allowed"):
        JsonCodec().encode("x" * 1024 * 1024)


@pytest.mark.parametrize(
    ("data", "type_", "path"),
    [
        (b"", Any, "$"),
        (b"[1, 2", Any, "$"),
        (b"NaN", float, "$"),
        (b"\xff", str, "$"),
        (b"[" * 100_000, Any, "$"),
        (b'"\\ud800"', str, "$"),
        (b'["a"]', list[int], "$[0]"),
        (b'{"start":{"x":1},"end":{"x":"no"}}', Line, "$.end.x"),
        (b'{"y":1}', Point, "$"),
    ],
)
def test_bytes_that_do_not_fit_name_the_path(data, type_, path):
    with pytest.raises(DecodeError) as refused:
        JsonCodec().decode(data, type_)

    assert refused.value.path == path


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x92\x01", b"\x91" * 100_000])
def test_broken_msgpack_is_a_decode_error(data):
    with pytest.raises(DecodeError):
        MsgpackCodec().decode(data)


def test_a_job_is_decoded_with_the_codec_it_was_written_with():
    default, codecs = JsonCodec(), Codecs()

    assert codecs.of({}, default) is default
    assert codecs.of({CODEC_HEADER: "msgpack"}, default).name == "msgpack"
    with pytest.raises(DecodeError, match="'pickle', which is not known"):
        codecs.of({CODEC_HEADER: "pickle"}, default)


@pytest.mark.parametrize("name", ["", "n" * 65])
def test_a_codec_needs_a_short_name(name):
    class Odd(JsonCodec):
        pass

    Odd.name = name
    with pytest.raises(ConfigurationError, match="short name"):
        Codecs(Odd())


def deep_in(key: str, value: Any) -> dict[str, Any]:
    return {key: value}


LONG_VALUES = {
    "a long key with many lists in it": lambda n: deep_in("k" * n * 16, [[] for _ in range(n)]),
    "a long key with many objects in it": lambda n: deep_in(
        "k" * n * 16, {str(number): {} for number in range(n)}
    ),
    "long keys one in another": lambda n: deep_in("k" * n * 16, deep_in("k" * n * 16, [[1.5]] * n)),
    "something odd behind many": lambda n: deep_in("k" * n * 16, [*([1] for _ in range(n)), object()]),
}


@pytest.mark.parametrize("kind", LONG_VALUES)
@pytest.mark.parametrize("codec", [JsonCodec(max_bytes=2**30), MsgpackCodec(max_bytes=2**30)])
def test_the_work_of_encoding_grows_with_the_value_and_no_faster(codec, kind):
    assert_linear(codec.encode, LONG_VALUES[kind])


def test_the_path_of_a_misfit_is_not_longer_than_a_line_or_two():
    with pytest.raises(EncodeError) as caught:
        JsonCodec().encode({"k" * 100_000: [float("nan")]})

    assert len(str(caught.value)) < 1000
    assert caught.value.path.startswith("$.kkk")
