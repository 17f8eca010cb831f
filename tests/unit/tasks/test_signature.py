"""Arguments on their way into a payload and back."""

from __future__ import annotations

import dataclasses
import enum
import functools
import re
import uuid
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, Optional, TypedDict

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskharbor.errors import ConfigurationError, DecodeError, EncodeError, PayloadError
from taskharbor.model.codec import JsonCodec, MsgpackCodec
from taskharbor.tasks.signature import Signature, UnresolvedAnnotation

if TYPE_CHECKING:
    from taskharbor.worker.attempt import JobContext

JSON = JsonCodec()


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Address:
    street: str
    number: int


class Point(msgspec.Struct):
    x: float
    y: float


class Options(TypedDict):
    loud: bool
    times: NotRequired[int]


class User(pydantic.BaseModel):
    id: int
    name: str = "nobody"


def there_and_back(function, *args, **kwargs) -> Any:
    """What a worker would call the function with, and what the function makes of it."""
    signature = Signature(function, "task")
    data = signature.encoded(args, kwargs, JSON)
    got_args, got_kwargs = signature.arguments(data, "the context", JSON)
    return function(*got_args, **got_kwargs)


def plain(a: int, b: str = "b", *, c: float = 0.5) -> tuple[int, str, float]:
    return a, b, c


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [
        ((1,), {}, (1, "b", 0.5)),
        ((1, "x"), {}, (1, "x", 0.5)),
        ((1,), {"c": 2.0}, (1, "b", 2.0)),
        ((), {"a": 1, "c": 3}, (1, "b", 3.0)),
        ((), {"c": 3, "b": "y", "a": 1}, (1, "y", 3.0)),
    ],
)
def test_arguments_reach_the_function_by_position_and_by_name(args, kwargs, expected):
    assert there_and_back(plain, *args, **kwargs) == expected


def test_the_payload_is_an_object_of_what_the_caller_gave():
    assert Signature(plain, "task").encoded((1,), {"c": 2.5}, JSON) == b'{"a":1,"c":2.5}'


def test_a_function_without_parameters_has_an_empty_payload():
    assert Signature(lambda: None, "task").encoded((), {}, JSON) == b"{}"


def test_positional_only_parameters_travel_by_name_and_arrive_by_position():
    def function(a, b=2, /, c=3):
        return a, b, c

    assert there_and_back(function, 1) == (1, 2, 3)
    assert there_and_back(function, 1, c=9) == (1, 2, 9)
    assert Signature(function, "task").arguments(b'{"a":1,"c":9}', None, JSON) == ((1, 2, 9), {})


def test_open_parameters_travel_under_their_names():
    def function(first: int, *rest: int, flag: bool = False, **named: str):
        return first, rest, flag, named

    signature = Signature(function, "task")

    assert signature.encoded((1, 2, 3), {"x": "y"}, JSON) == b'{"first":1,"rest":[2,3],"named":{"x":"y"}}'
    assert there_and_back(function, 1, 2, 3, flag=True, x="y") == (1, (2, 3), True, {"x": "y"})
    assert there_and_back(function, 1) == (1, (), False, {})


def test_values_of_open_parameters_are_checked_one_by_one():
    def function(*rest: int, **named: str) -> None: ...

    with pytest.raises(PayloadError, match=r"argument 'rest'.*rest\[1\]"):
        Signature(function, "task").encoded((1, "two"), {}, JSON)
    with pytest.raises(PayloadError, match="argument 'named'"):
        Signature(function, "task").encoded((), {"x": 1}, JSON)


# ------------------------------------------------------------------ types


def rich(
    address: Address,
    point: Point,
    options: Options,
    user: User,
    when: datetime,
    span: timedelta,
    number: uuid.UUID,
    price: Decimal,
    colour: Colour,
    raw: bytes,
    maybe: int | None,
    users: list[User],
    table: dict[int, Point],
) -> tuple[Any, ...]:
    return address, point, options, user, when, span, number, price, colour, raw, maybe, users, table


RICH: dict[str, Any] = {
    "address": Address("High Street", 7),
    "point": Point(1.0, 2.0),
    "options": {"loud": True},
    "user": User(id=1),
    "when": datetime(2026, 11, 15, 12, tzinfo=UTC),
    "span": timedelta(minutes=5),
    "number": uuid.UUID(int=7),
    "price": Decimal("19.90"),
    "colour": Colour.RED,
    "raw": b"\x00\xff",
    "maybe": None,
    "users": [User(id=2, name="two")],
    "table": {1: Point(0.0, 0.5)},
}


@pytest.mark.parametrize("codec", [JsonCodec(), MsgpackCodec()], ids=["json", "msgpack"])
def test_values_of_many_types_come_back_as_they_went_in(codec):
    signature = Signature(rich, "task")

    args, kwargs = signature.arguments(signature.encoded((), RICH, codec), None, codec)

    assert rich(*args, **kwargs) == tuple(RICH.values())


def test_an_argument_of_another_type_is_refused_by_the_name_of_its_parameter():
    with pytest.raises(
        PayloadError, match=r"plain: argument 'a' does not fit: Expected `int`, got `str`"
    ) as caught:
        Signature(plain, "plain").encoded(("seven",), {}, JSON)

    assert caught.value.path == "$.a"
    assert "nothing was stored" in str(caught.value)


def test_a_misfit_deep_inside_names_its_path():
    def function(points: list[Point]) -> None: ...

    with pytest.raises(PayloadError, match=r"argument 'points'.*\$\.points\[1\]\.y"):
        Signature(function, "task").encoded(([{"x": 1, "y": 2}, {"x": 1, "y": "z"}],), {}, JSON)


def test_limits_in_annotations_are_kept():
    def function(age: Annotated[int, msgspec.Meta(ge=0)]) -> None: ...

    with pytest.raises(PayloadError, match="argument 'age'"):
        Signature(function, "task").encoded((-1,), {}, JSON)


def test_what_cannot_be_encoded_is_refused():
    with pytest.raises(EncodeError, match=r"\$\.x"):
        Signature(lambda x: None, "task").encoded((object(),), {}, JSON)


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((), {}, "missing a required argument: 'a'"),
        ((1, "b", 3.0), {}, "too many positional"),
        ((1,), {"d": 1}, "unexpected keyword argument 'd'"),
        ((1,), {"a": 1}, "multiple values for argument 'a'"),
    ],
)
def test_arguments_that_the_function_does_not_take_are_refused_in_pythons_words(args, kwargs, words):
    with pytest.raises(TypeError, match=f"plain: .*{words}.*nothing was stored"):
        Signature(plain, "plain").encoded(args, kwargs, JSON)


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (b"{}", "missing required field `a`"),
        (b'{"a":1,"z":1}', "unknown field `z`"),
        (b'{"a":"1"}', "Expected `int`"),
        (b"[1]", "Expected `object`"),
        (b"{", "truncated"),
        (b"\xff", "the payload does not fit"),
    ],
)
def test_a_stored_payload_that_does_not_fit_is_refused(payload, words):
    with pytest.raises(DecodeError, match=words):
        Signature(plain, "plain").arguments(payload, None, JSON)


@given(
    st.integers(-(2**63), 2**63 - 1),
    st.text().filter(lambda t: t.isprintable()),
    st.floats(allow_nan=False, allow_infinity=False),
)
def test_any_values_of_the_annotated_types_survive(a, b, c):
    assert there_and_back(plain, a, b, c=c) == (a, b, c)


# ------------------------------------------------------------------ the context


def test_a_parameter_annotated_with_the_context_is_filled_in_and_not_sent():
    def function(ctx: JobContext, user_id: int):
        return ctx, user_id

    signature = Signature(function, "task")

    assert signature.context == "ctx"
    assert signature.encoded((7,), {}, JSON) == b'{"user_id":7}'
    assert there_and_back(function, 7) == ("the context", 7)


def test_the_context_is_found_at_any_place_and_however_it_is_written():
    class JobContext: ...

    def last(user_id: int, ctx: JobContext):
        return user_id, ctx

    def keyword(user_id: int, *, ctx: JobContext | None = None):
        return user_id, ctx

    def optional(user_id: int, ctx: Optional[JobContext] = None):  # noqa: UP045
        return user_id, ctx

    def first_only(ctx: JobContext, /, user_id: int):
        return user_id, ctx

    for function in (last, keyword, optional, first_only):
        assert there_and_back(function, 7) == (7, "the context"), function.__name__


def test_two_contexts_are_one_too_many():
    def function(one: JobContext, two: JobContext) -> None: ...

    with pytest.raises(ConfigurationError, match="asks for a JobContext twice: one, two"):
        Signature(function, "task")


def test_a_caller_cannot_send_the_context():
    def function(ctx: JobContext, user_id: int) -> None: ...

    with pytest.raises(TypeError, match="'ctx'"):
        Signature(function, "task").encoded((), {"ctx": 1, "user_id": 2}, JSON)
    with pytest.raises(DecodeError, match="unknown field `ctx`"):
        Signature(function, "task").arguments(b'{"ctx":1,"user_id":2}', None, JSON)


# ------------------------------------------------------------------ odd functions


def test_a_type_that_no_payload_can_hold_is_refused_when_the_task_is_made():
    def function(either: User | Address) -> None: ...

    with pytest.raises(ConfigurationError, match="parameter 'either' cannot travel"):
        Signature(function, "task")


def test_an_annotation_that_cannot_be_read_says_which_name_is_missing():
    def function(x: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(UnresolvedAnnotation, match="names 'Missing'"):
        Signature(function, "task")


def test_a_wrapped_function_keeps_its_signature():
    def noisy(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            return function(*args, **kwargs)

        return wrapper

    assert there_and_back(noisy(plain), 1, c=2) == (1, "b", 2.0)
    with pytest.raises(PayloadError, match="argument 'a'"):
        Signature(noisy(plain), "task").encoded(("x",), {}, JSON)


def test_a_function_whose_parameters_nobody_knows_is_refused():
    with pytest.raises(ConfigurationError, match="parameters cannot be read"):
        Signature(max, "task")


def test_a_callable_object_can_be_a_function():
    class Greeter:
        def __call__(self, name: str) -> str:
            return f"hello, {name}"

    assert there_and_back(Greeter(), "Ada") == "hello, Ada"


def test_the_return_annotation_is_known():
    assert Signature(plain, "task").returns == tuple[int, str, float]
    assert Signature(lambda: 1, "task").returns is Any


def test_what_does_not_fit_a_class_names_the_class():
    def move(to: Address, via: Point | None = None) -> None: ...

    signature = Signature(move, "move")
    address = {"street": "s", "number": 1}

    for kwargs, message in (
        ({"to": "here"}, "'to' does not fit Address: Expected `object`, got `str`"),
        ({"to": {"street": "s"}}, "'to' does not fit Address: Object missing required field `number`"),
        ({"to": address, "via": 7}, "'via' does not fit Point: Expected `object | null`, got `int`"),
    ):
        with pytest.raises(PayloadError, match=re.escape(message)):
            signature.encoded((), kwargs, JSON)
