"""Bodies and query strings to typed values, strictly: ambiguous input is refused.

msgspec keeps the last of two equal keys. So a body that msgspec would not write the same way is parsed a
second time, by a parser that sees every key.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Annotated, Any, TypeVar
from urllib.parse import parse_qsl

import msgspec

from taskharbor.web.problems import Problem

T = TypeVar("T")

MAX_VALUES = 500_000
_MAX_QUERY_FIELDS = 32
_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_INSTANT = "a time with a time zone, like 2026-12-01T09:00:00Z"
_HINTS = {
    "run_at": _INSTANT,
    "cron": "five fields: minute hour day month weekday",
}
_any = msgspec.json.Decoder()
_encoder = msgspec.json.Encoder()


def read_json(body: bytes, kind: type[T]) -> T:
    """The value of a body. Raw parts (msgspec.Raw) are normalized to what msgspec would write.

    Raises:
        Problem: `malformed` if it is not JSON, `validation` if it does not fit the type.
    """
    try:
        _refuse_too_many_values(body)
        plain = _encoder.encode(_any.decode(body))
        if plain != body:
            _refuse_double_keys(body)
        return _decoder_of(kind).decode(plain)
    except msgspec.ValidationError as error:
        raise _misfit(error) from None
    except RecursionError:
        raise Problem("malformed", "the body is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise _unreadable(body) from None


def _refuse_too_many_values(body: bytes) -> None:
    """Each value costs time, however short it is. Strings are cut out before the second count."""
    if _separators(body) > MAX_VALUES and _separators(_TEXT.sub(b"", body)) > MAX_VALUES:
        raise Problem(
            "validation", f"the body has more than {MAX_VALUES} values; send it in parts. Nothing was done"
        )


def _separators(body: bytes) -> int:
    return body.count(b",") + body.count(b"[") + body.count(b"{")


def _decoder_of(kind: type[T]) -> msgspec.json.Decoder[T]:
    found = _decoders.get(kind)
    if found is None:
        found = _decoders[kind] = msgspec.json.Decoder(kind)
    return found


_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}


def read_query(query_string: bytes, kind: type[T]) -> T:
    """The query parameters: each at most once, and no unknown ones."""
    if not query_string:
        return _decoded({}, kind)
    try:
        text = query_string.decode("ascii")
        pairs = parse_qsl(
            text, keep_blank_values=True, strict_parsing=True, errors="strict",
            max_num_fields=_MAX_QUERY_FIELDS,
        )  # fmt: skip
    except ValueError:
        raise Problem("validation", "the query string is not well-formed") from None
    given: dict[str, str] = {}
    for name, value in pairs:
        if name in given or not name.isprintable() or not value.isprintable():
            raise _bad_parameter(name, "is given twice, or contains an unprintable character")
        given[name] = value
    return _decoded(given, kind)


def _decoded(given: dict[str, str], kind: type[T]) -> T:
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise _misfit(error) from None


def read_instant(name: str, text: str) -> datetime:
    """An instant in a query string. Raises Problem `validation`."""
    try:
        at: datetime = msgspec.convert(text, Annotated[datetime, msgspec.Meta(tz=True)])
    except msgspec.ValidationError:
        raise _bad_parameter(name, f"must be {_INSTANT}") from None
    return at


def _bad_parameter(name: str, what: str) -> Problem:
    shown = ascii(name)[:80]
    return Problem("validation", f"the parameter {shown} {what}", fields=[{"path": shown, "message": what}])


def _misfit(error: msgspec.ValidationError) -> Problem:
    message, _, where = str(error).partition(" - at `")
    path = where.rstrip("`") or "$"
    if hint := _HINTS.get(path.rpartition(".")[2]):
        message = f"{message}: {hint}"
    return Problem("validation", f"{message} ({path})", fields=[{"path": path, "message": message}])


def _unreadable(body: bytes) -> Problem:
    """Python's parser accepts what strict JSON does not have: then a value is wrong, not the syntax."""
    try:
        json.loads(body)
    except RecursionError:
        return Problem("malformed", "the body is nested too deeply")
    except ValueError:
        return Problem("malformed", "the body is not JSON in UTF-8")
    return Problem("validation", "NaN, Infinity and lone surrogates are not valid JSON; nothing was done")


def refuse_double_keys(body: bytes) -> None:
    """Raises Problem `validation` for JSON in which an object has a key twice."""
    if (
        _encoder.encode(_any.decode(body)) != body
    ):  # most programs write JSON as msgspec does: nothing was dropped
        _refuse_double_keys(body)


def _refuse_double_keys(body: bytes) -> None:
    try:
        json.loads(body, object_pairs_hook=_once_each)
    except ValueError as error:
        raise Problem("validation", f"{error}; nothing was done") from None


def _once_each(pairs: list[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise ValueError(f"an object has the key {ascii(name[:80])[:80]} twice")
        seen.add(name)
