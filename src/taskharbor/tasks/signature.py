"""Signature: how the arguments of a function become a payload, and come back checked.

The payload is one object, parameter name → value, holding what the caller gave: defaults stay
with the function, so they may change while jobs wait. `*args` travels as a list under its name,
`**kwargs` as an object under its name. A parameter annotated `JobContext` is filled in by the
worker and is no part of the payload.

For each function one msgspec type is built from its annotations, so that checking and decoding is
a single typed call.
"""

from __future__ import annotations

import functools
import inspect
import re
import typing
from collections.abc import Callable
from types import GenericAlias, UnionType
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from taskharbor.errors import ConfigurationError, DecodeError, PayloadError
from taskharbor.model.codec import Codec
from taskharbor.model.outcome import Cancel, Snooze
from taskharbor.tasks.handler import Arguments

_Kind = inspect._ParameterKind
_CONTEXT = "JobContext"
_CONTEXT_TEXT = re.compile(r"(?:Optional\[)?(?:\w+\.)*JobContext\]?(?:\s*\|\s*None)?")


class Signature:
    """The parameters of one function, as a type that payloads are checked against."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self._name = name
        self._whole = _parameters_of(function, name)
        hints, self.returns = _hints(function, self._whole, name)
        self.context = _context_parameter(hints, name)
        every = self._whole.parameters.values()
        asked = [parameter for parameter in every if parameter.name != self.context]
        self._asked = self._whole.replace(parameters=asked)
        self._order = tuple(parameter.name for parameter in asked)
        self._positional = tuple(p.name for p in asked if p.kind is not _Kind.KEYWORD_ONLY)
        self._required = frozenset(p.name for p in asked if _is_required(p))
        self._known = frozenset(self._order)
        self._by_name = all(p.kind in (_Kind.POSITIONAL_OR_KEYWORD, _Kind.KEYWORD_ONLY) for p in every)
        self._classes = {p.name: _class_name(hints[p.name]) for p in asked}
        self.type = _payload_type(asked, hints, name)

    # ------------------------------------------------------------------ in

    def payload(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a call as the object that is stored.

        Raises:
            TypeError: the function does not take these arguments; the words are Python's own.
        """
        if self._by_name and not args:
            given_names = kwargs.keys()
            if given_names == self._known or self._required <= given_names <= self._known:
                return kwargs
        if self._by_name and not kwargs and len(args) <= len(self._positional):
            given = dict(zip(self._positional, args, strict=False))
            if self._required <= given.keys():
                return given
        try:
            return dict(self._asked.bind(*args, **kwargs).arguments)
        except TypeError as error:
            raise TypeError(f"{self._name}: {error}; nothing was stored") from None

    def encoded(self, args: tuple[Any, ...], kwargs: dict[str, Any], codec: Codec) -> bytes:
        """The payload bytes of a call, after making sure that a worker will be able to read them.

        Raises:
            TypeError: the function does not take these arguments.
            PayloadError: an argument is not what its parameter is annotated with, or cannot be encoded.
        """
        return self.fitting(self.payload(args, kwargs), codec)

    def fitting(self, payload: dict[str, Any], codec: Codec) -> bytes:
        """The same of arguments that `payload` has put together."""
        data = codec.encode(payload)
        try:
            codec.decode(data, self.type)
        except DecodeError as error:
            raise self._misfit(error) from None
        return data

    def fitting_partly(self, payload: dict[str, Any], codec: Codec) -> bytes:
        """The same of arguments that are not complete: the others are filled in later."""
        data = codec.encode(payload)
        try:
            codec.decode(data, self._partial_type)
        except DecodeError as error:
            raise self._misfit(error) from None
        return data

    @functools.cached_property
    def _partial_type(self) -> Any:
        """The type of payloads whose parameters may all be missing."""
        fields = [
            (field.name, field.type if field.type is Any else field.type | UnsetType, UNSET)
            for field in msgspec.structs.fields(self.type)
        ]
        return msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of those that callers give."""
        return self._order

    def _misfit(self, error: DecodeError) -> PayloadError:
        path = error.path.removeprefix("$.")
        parameter = re.split(r"[.\[]", path, maxsplit=1)[0]
        why = str(error).removeprefix("the payload does not fit: ")
        what = f"argument {parameter!r} does" if parameter in self._known else "the arguments do"
        kind = self._classes.get(parameter, "")
        return PayloadError(
            f"{self._name}: {what} not fit{kind and ' '}{kind}: {why}; nothing was stored", error.path
        )

    # ------------------------------------------------------------------ out

    def arguments(self, data: bytes, context: Any, codec: Codec) -> Arguments:
        """The arguments for the function out of a stored payload.

        Raises:
            DecodeError: the payload does not fit the parameters.
        """
        values = codec.decode(data, self.type)
        if self._by_name:
            named = {name: value for name in self._order if (value := getattr(values, name)) is not UNSET}
            if self.context is not None:
                named[self.context] = context
            return (), named
        return self._by_position(values, context)

    def _by_position(self, values: Any, context: Any) -> Arguments:
        """Positions must not shift: a value that was not sent is replaced by the function's default."""
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for parameter in self._whole.parameters.values():
            value = context if parameter.name == self.context else getattr(values, parameter.name)
            match parameter.kind:
                case _Kind.VAR_POSITIONAL:
                    args.extend(() if value is UNSET else value)
                case _Kind.VAR_KEYWORD:
                    kwargs.update({} if value is UNSET else value)
                case _Kind.KEYWORD_ONLY:
                    kwargs[parameter.name] = parameter.default if value is UNSET else value
                case _:
                    args.append(parameter.default if value is UNSET else value)
        return tuple(args), kwargs


def _parameters_of(function: Callable[..., Any], name: str) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"task {name!r}: its parameters cannot be read: {error}") from None


def _hints(function: Callable[..., Any], whole: inspect.Signature, name: str) -> tuple[dict[str, Any], Any]:
    """The resolved annotation of each parameter, and of the result; Any where there is none."""
    wanted = {p.name: p.annotation for p in whole.parameters.values() if p.annotation is not p.empty}
    context = {at for at, hint in wanted.items() if isinstance(hint, str) and _CONTEXT_TEXT.fullmatch(hint)}
    if whole.return_annotation is not inspect.Signature.empty:
        wanted["return"] = whole.return_annotation
    resolved = _resolved(function, {at: hint for at, hint in wanted.items() if at not in context}, name)
    hints = {at: resolved.get(at, _CONTEXT if at in context else Any) for at in whole.parameters}
    return hints, resolved.get("return", Any)


def _resolved(function: Callable[..., Any], annotations: dict[str, Any], name: str) -> dict[str, Any]:
    plain = inspect.unwrap(function)
    plain = plain if hasattr(plain, "__globals__") else getattr(plain, "__call__", plain)  # noqa: B004

    def holder() -> None: ...

    holder.__annotations__ = annotations
    try:
        return typing.get_type_hints(
            holder, globalns=getattr(plain, "__globals__", {}), localns=_closure(plain), include_extras=True
        )
    except NameError as error:
        raise UnresolvedAnnotation(
            f"task {name!r}: an annotation names {error.name!r}, which is not known in its module; "
            "import it there at run time too"
        ) from None


class UnresolvedAnnotation(ConfigurationError):
    """An annotation that cannot be read yet, perhaps because its name is defined further down."""


def _closure(function: Callable[..., Any]) -> dict[str, Any]:
    """The names a nested function sees of its surroundings: types may be among them."""
    try:
        return dict(inspect.getclosurevars(function).nonlocals)
    except (TypeError, ValueError):
        return {}


def _context_parameter(hints: dict[str, Any], name: str) -> str | None:
    found = [at for at, hint in hints.items() if _is_context(hint)]
    if len(found) > 1:
        raise ConfigurationError(f"task {name!r} asks for a JobContext twice: {', '.join(found)}")
    return found[0] if found else None


def _is_context(hint: Any) -> bool:
    """By name, not by class: tasks know nothing of workers."""
    if hint is _CONTEXT or getattr(hint, "__name__", None) == _CONTEXT:
        return True
    return any(getattr(part, "__name__", None) == _CONTEXT for part in typing.get_args(hint))


def _is_required(parameter: inspect.Parameter) -> bool:
    is_open = parameter.kind in (_Kind.VAR_POSITIONAL, _Kind.VAR_KEYWORD)
    return parameter.default is parameter.empty and not is_open


def _payload_type(
    parameters: list[inspect.Parameter], hints: dict[str, Any], name: str
) -> type[msgspec.Struct]:
    fields: list[Any] = []
    for parameter in parameters:
        hint = hints[parameter.name]
        if parameter.kind is _Kind.VAR_POSITIONAL:
            hint = GenericAlias(list, (hint,))
        elif parameter.kind is _Kind.VAR_KEYWORD:
            hint = GenericAlias(dict, (str, hint))
        if _is_required(parameter):
            fields.append((parameter.name, hint))
        else:
            fields.append((parameter.name, hint | UnsetType if hint is not Any else Any, UNSET))
        _check_hint(hint, parameter.name, name)
    return msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)


def _class_name(hint: Any) -> str:
    """The class in the annotation of a parameter, or `One or Other`; nothing for plain types."""
    parts = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, UnionType) else (hint,)
    names = [part.__name__ for part in parts if isinstance(part, type) and part.__module__ != "builtins"]
    return " or ".join(names)


def _check_hint(hint: Any, parameter: str, name: str) -> None:
    try:
        msgspec.json.Decoder(hint, dec_hook=lambda _type, value: value)
    except TypeError as error:
        raise ConfigurationError(
            f"task {name!r}: parameter {parameter!r} cannot travel in a payload: {error}"
        ) from None


def result_type(annotation: Any) -> Any:
    """The type of a kept result: wishes such as Snooze are answers to the worker, never kept."""
    if annotation is None or annotation in (Snooze, Cancel):
        return Any
    parts = typing.get_args(annotation)
    if not any(wish in parts for wish in (Snooze, Cancel)):
        return _or_any(annotation)
    kept = [part for part in parts if part not in (Snooze, Cancel)]
    return _or_any(functools.reduce(lambda one, other: one | other, kept)) if kept else Any


def _or_any(annotation: Any) -> Any:
    """The type if the codecs can check it; otherwise whatever the bytes say."""
    try:
        msgspec.json.Decoder(annotation, dec_hook=lambda _type, value: value)
    except TypeError:
        return Any
    return annotation
