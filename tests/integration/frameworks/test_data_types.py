"""Arguments and results in the classes of the usual libraries: nested, optional, in lists and dicts."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any, NotRequired, TypedDict

import attrs
import msgspec
import pydantic
import pytest

from taskharbor import Harbor, JobRequest
from taskharbor.errors import PayloadError
from taskharbor.model.codec import JsonCodec, MsgpackCodec


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Size(enum.IntEnum):
    SMALL = 1


@dataclasses.dataclass
class Wheel:
    colour: Colour
    size: Size = Size.SMALL


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Car:
    wheel: Wheel
    spare: Wheel | None = None
    wheels: list[Wheel] = dataclasses.field(default_factory=list)
    by_name: dict[str, Wheel] = dataclasses.field(default_factory=dict)


@attrs.define
class AttrsWheel:
    colour: Colour
    size: Size = Size.SMALL


@attrs.frozen(kw_only=True)
class AttrsCar:
    wheel: AttrsWheel
    spare: AttrsWheel | None = None
    wheels: list[AttrsWheel] = attrs.field(factory=list)
    by_name: dict[str, AttrsWheel] = attrs.field(factory=dict)


class StructWheel(msgspec.Struct):
    colour: Colour
    size: Size = Size.SMALL


class StructCar(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    wheel: StructWheel
    spare: StructWheel | None = None
    wheels: list[StructWheel] = []
    by_name: dict[str, StructWheel] = {}


class ModelWheel(pydantic.BaseModel):
    colour: Colour
    size: Size = Size.SMALL


class ModelCar(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    wheel: ModelWheel
    spare: ModelWheel | None = None
    wheels: list[ModelWheel] = []
    by_name: dict[str, ModelWheel] = {}


class DictWheel(TypedDict):
    colour: Colour
    size: NotRequired[Size]


class DictCar(TypedDict):
    wheel: DictWheel
    spare: NotRequired[DictWheel | None]
    wheels: NotRequired[list[DictWheel]]
    by_name: NotRequired[dict[str, DictWheel]]


@dataclasses.dataclass
class Garage:
    """One library inside another."""

    car: ModelCar | None
    cars: list[AttrsCar]
    structs: dict[str, StructCar]


LIBRARIES = {
    "dataclasses": (Car, Wheel),
    "attrs": (AttrsCar, AttrsWheel),
    "msgspec": (StructCar, StructWheel),
    "pydantic": (ModelCar, ModelWheel),
    "TypedDict": (DictCar, DictWheel),
}
library = pytest.mark.parametrize(("car", "wheel"), LIBRARIES.values(), ids=LIBRARIES)
codec = pytest.mark.parametrize("codec", [JsonCodec(), MsgpackCodec()], ids=["json", "msgpack"])


def full(car: Any, wheel: Any) -> Any:
    red, blue = wheel(colour=Colour.RED, size=Size.SMALL), wheel(colour=Colour.BLUE, size=Size.SMALL)
    return car(wheel=red, spare=blue, wheels=[red, blue], by_name={"left": blue})


def echo_of(harbor: Harbor, kind: Any, name: str = "echo") -> Any:
    """A task that keeps what it got and returns it, with this annotation."""
    got: list[Any] = []

    def echo(value: Any) -> Any:
        got.append(value)
        return value

    echo.__annotations__ = {"value": kind, "return": kind}
    return harbor.task(name=name)(echo), got


def round_trips(codec: Any, *cases: tuple[Any, list[Any]]) -> None:
    """Each value of a kind reaches the handler, and returns from it, as what it was."""
    with Harbor("memory://", codec=codec) as harbor:
        tasks = [echo_of(harbor, kind, f"echo-{number}") for number, (kind, _) in enumerate(cases)]
        jobs = [
            [task.enqueue(value) for value in values]
            for (task, _), (_, values) in zip(tasks, cases, strict=True)
        ]
        harbor.worker(scheduler=False, concurrency=1).run(until_idle=True)
        results = [[job.result() for job in some] for some in jobs]

    expected = [values for _, values in cases]
    assert [got for _, got in tasks] == expected
    assert results == expected
    assert [[type(one) for one in some] for some in results] == [
        [type(one) for one in some] for some in expected
    ]


@codec
@library
def test_values_come_back_as_what_they_were(car: Any, wheel: Any, codec: Any) -> None:
    """Nested, optional, in lists and in dicts."""
    one, bare = full(car, wheel), car(wheel=wheel(colour=Colour.RED, size=Size.SMALL))

    round_trips(
        codec,
        (car, [one, bare]),
        (car | None, [one, None]),
        (list[car], [[one, bare], []]),
        (dict[str, car], [{"a": one}]),
        (list[car | None], [[one, None]]),
    )


@codec
def test_one_library_inside_another_and_enums_anywhere(codec: Any) -> None:
    garage = Garage(
        full(ModelCar, ModelWheel),
        [full(AttrsCar, AttrsWheel)],
        {"mine": full(StructCar, StructWheel)},
    )

    round_trips(
        codec,
        (Garage, [garage, Garage(None, [], {})]),
        (dict[Colour, list[Size]], [{Colour.RED: [Size.SMALL]}]),
        (Colour | None, [Colour.BLUE, None]),
    )


@library
def test_a_misfit_is_refused_before_anything_is_stored(car: Any, wheel: Any) -> None:
    with Harbor("memory://") as harbor:
        echo, _ = echo_of(harbor, car)

        with pytest.raises(PayloadError, match="'value'"):
            echo.enqueue("no car")
        assert harbor.client.find().jobs == []


@library
def test_a_stored_payload_that_does_not_fit_fails_without_another_try(car: Any, wheel: Any) -> None:
    """As after a deployment that changed the class."""
    with Harbor("memory://") as harbor:
        _, got = echo_of(harbor, car)
        job = harbor.client.enqueue(
            JobRequest(type="echo", payload={"value": {"wheel": {"colour": "green"}}})
        )
        harbor.worker(scheduler=False).run(until_idle=True)

        assert got == []
        assert (job.refresh().state, job.record.failure_kind) == ("failed", "invalid_payload")
        assert job.record.attempts == 1


def test_pydantic_validates_what_a_worker_reads() -> None:
    class Account(pydantic.BaseModel):
        name: str = pydantic.Field(min_length=2)
        tags: list[str] = []

        @pydantic.field_validator("name")
        @classmethod
        def small(cls, name: str) -> str:
            return name.lower()

    with Harbor("memory://") as harbor:
        _, got = echo_of(harbor, Account)
        fits = harbor.client.enqueue(JobRequest(type="echo", payload={"value": {"name": "ADA"}}))
        short = harbor.client.enqueue(JobRequest(type="echo", payload={"value": {"name": "a"}}))
        harbor.worker(scheduler=False).run(until_idle=True)

        assert got == [Account(name="ada")]
        assert fits.refresh().state == "completed"
        assert "at least 2 characters" in (short.refresh().record.last_error or "")
