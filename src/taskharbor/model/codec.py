"""How values become payload bytes and come back: strict JSON by default, MessagePack, or your own.

The codec's name travels in the job's headers, so a worker decodes with what the client encoded.
A driver never looks inside.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Protocol

import msgspec

from taskharbor.errors import ConfigurationError, DecodeError, EncodeError
from taskharbor.model.checks import MAX_PAYLOAD

CODEC_HEADER = "taskharbor-codec"
MAX_DEPTH = 64


class Codec(Protocol):
    """Turns one value into bytes and back."""

    @property
    def name(self) -> str:
        """Short and stable: it is stored with every job."""
        ...

    def encode(self, value: Any) -> bytes:
        """The value as bytes, or EncodeError naming the path of what does not fit."""
        ...

    def decode(self, data: bytes, type: Any = Any) -> Any:
        """The value, checked against `type`, or DecodeError naming the path of what does not fit."""
        ...


class JsonCodec:
    """Strict JSON through msgspec: no NaN, no infinity, no lone surrogate, no silent conversion.

    Dataclasses, Structs, attrs, TypedDicts, datetimes, UUIDs, Decimals and enums go in as they are and come
    back by the type that decode is given. Models of pydantic go in by their own dump.
    """

    name = "json"

    def __init__(self, *, max_bytes: int = MAX_PAYLOAD) -> None:
        self._max_bytes = max_bytes
        self._encoder = msgspec.json.Encoder(enc_hook=_foreign, decimal_format="string")

    def encode(self, value: Any) -> bytes:
        """The bytes of a value. Raises EncodeError if it has none, or too many."""
        return _encoded(self._encoder, value, self._max_bytes)

    def decode(self, data: bytes, type: Any = Any) -> Any:
        """The value, as what `type` says. Raises DecodeError if the bytes do not fit."""
        try:
            return msgspec.json.decode(data, type=type, dec_hook=_rebuilt)
        except (msgspec.DecodeError, RecursionError, ValueError) as error:
            raise _undecodable(error) from None


class MsgpackCodec:
    """MessagePack through msgspec: smaller, and bytes travel as they are."""

    name = "msgpack"

    def __init__(self, *, max_bytes: int = MAX_PAYLOAD) -> None:
        self._max_bytes = max_bytes
        self._encoder = msgspec.msgpack.Encoder(enc_hook=_foreign)

    def encode(self, value: Any) -> bytes:
        """The bytes of a value. Raises EncodeError if it has none, or too many."""
        return _encoded(self._encoder, value, self._max_bytes)

    def decode(self, data: bytes, type: Any = Any) -> Any:
        """The value, as what `type` says. Raises DecodeError if the bytes do not fit."""
        try:
            return msgspec.msgpack.decode(data, type=type, dec_hook=_rebuilt)
        except (msgspec.DecodeError, RecursionError, ValueError) as error:
            raise _undecodable(error) from None


class Codecs:
    """The codecs a program knows, by name."""

    def __init__(self, *codecs: Codec) -> None:
        self._by_name: dict[str, Codec] = {"json": JsonCodec(), "msgpack": MsgpackCodec()}
        for codec in codecs:
            self.add(codec)

    def add(self, codec: Codec) -> None:
        if not codec.name or len(codec.name) > 64:
            raise ConfigurationError("a codec needs a short name: it is stored with every job")
        self._by_name[codec.name] = codec

    def of(self, headers: dict[str, str], default: Codec) -> Codec:
        """The codec a job was written with; without a word about it, the default."""
        name = headers.get(CODEC_HEADER)
        if name is None:
            return default
        if name not in self._by_name:
            raise DecodeError(f"the payload was written with the codec {name!r}, which is not known here")
        return self._by_name[name]


def _encoded(encoder: msgspec.json.Encoder | msgspec.msgpack.Encoder, value: Any, max_bytes: int) -> bytes:
    if type(value) is not dict or not _PLAIN.issuperset(map(type, value.values())):
        _refuse_odd(value, None, 0)
    try:
        data = encoder.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError, UnicodeEncodeError) as error:
        place, why = _first_misfit(value, encoder)
        path = _written(place)
        raise EncodeError(f"cannot encode {path}: {why or error}; nothing was stored", path) from None
    if len(data) > max_bytes:
        raise EncodeError(
            f"the value takes {len(data)} bytes; {max_bytes} are allowed. "
            "Keep large data elsewhere and send a reference; nothing was stored"
        )
    return data


# Where a part of a value is: the place around it, and its key or index there. Written out for an error
# only: a text for every part on the way would copy a long key once for each of its thousand children.
_Place = tuple[Any, str | int] | None
_MAX_PATH = 200


def _written(place: _Place) -> str:
    parts: list[str] = []
    while place is not None:
        place, name = place
        parts.append(f"[{name}]" if isinstance(name, int) else f".{name}")
    text = "".join(["$", *reversed(parts)])
    return text if len(text) <= _MAX_PATH else text[:_MAX_PATH] + "…"


def _refuse_odd(value: Any, place: _Place, depth: int) -> None:
    """NaN, infinity and bottomless nesting: msgspec would write null, or run out of stack."""
    if isinstance(value, float):
        if not math.isfinite(value):
            path = _written(place)
            raise EncodeError(
                f"cannot encode {path}: {value} has no place in a payload; nothing was stored", path
            )
    elif isinstance(value, dict):
        _refuse_deep(place, depth)
        for key, item in value.items():
            if type(item) not in _PLAIN:
                _refuse_odd(item, (place, _name(key)), depth + 1)
    elif isinstance(value, list | tuple | set | frozenset):
        _refuse_deep(place, depth)
        for index, item in enumerate(value):
            if type(item) not in _PLAIN:
                _refuse_odd(item, (place, index), depth + 1)
    elif names := _field_names(type(value)):
        _refuse_deep(place, depth)
        for name in names:
            _refuse_odd(getattr(value, name, None), (place, name), depth + 1)


# Most of every payload. Skipping them before a place is noted for them saves half of an encode.
_PLAIN = frozenset({str, int, bool, bytes, type(None)})


def _name(key: Any) -> str:
    """A key of a dict: a number there is no index."""
    return key if isinstance(key, str) else str(key)


def _field_names(cls: Any) -> tuple[str, ...]:
    """The fields of a Struct, dataclass or attrs class; none for anything else."""
    fields = getattr(cls, "__struct_fields__", None) or getattr(cls, "__dataclass_fields__", None)
    if fields is None:
        fields = [field.name for field in getattr(cls, "__attrs_attrs__", ())]
    return tuple(fields)


def _refuse_deep(place: _Place, depth: int) -> None:
    if depth >= MAX_DEPTH:
        path = _written(place)
        raise EncodeError(
            f"cannot encode {path[:80]}…: nested deeper than {MAX_DEPTH}; nothing was stored", path
        )


def _first_misfit(
    value: Any, encoder: msgspec.json.Encoder | msgspec.msgpack.Encoder, place: _Place = None
) -> tuple[_Place, str]:
    """The deepest part that does not encode on its own: only looked for once encoding has failed."""
    parts: Iterable[tuple[str | int, Any]] = ()
    if isinstance(value, dict):
        parts = ((_name(key), item) for key, item in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        parts = enumerate(value)
    for name, part in parts:
        try:
            encoder.encode(part)
        except Exception as error:  # noqa: BLE001 - any failure names the part
            inner, why = _first_misfit(part, encoder, (place, name))
            return inner, why or str(error)
    return place, ""


def _foreign(value: Any) -> Any:
    """Types msgspec does not know: a pydantic model dumps itself."""
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        dumped = dump(mode="json")
        _refuse_odd(dumped, None, 0)
        return dumped
    raise TypeError(f"{type(value).__qualname__} is not a type a payload can hold")


def _rebuilt(type: Any, value: Any) -> Any:
    validate = getattr(type, "model_validate", None)
    if callable(validate):
        return validate(value)
    raise TypeError(f"{getattr(type, '__qualname__', type)} is not a type a payload can hold")


def _undecodable(error: Exception) -> DecodeError:
    message = str(error) or type(error).__name__
    _, _, path = message.partition(" - at `")
    return DecodeError(f"the payload does not fit: {message}", path.rstrip("`") or "$")
