"""Whatever the public API returns or takes can be imported from a public name."""

import inspect
import re
from typing import Any

import msgspec
import pytest

import taskharbor
import taskharbor.errors
import taskharbor.types
from taskharbor import AsyncTask, Client, Harbor, JobContext, JobHandle, Task, Worker
from taskharbor.types import QueueControl, Schedules

PUBLIC = {*taskharbor.__all__, *taskharbor.types.__all__} | {
    name for name, value in vars(taskharbor.errors).items() if inspect.isclass(value)
}
FROM_PYTHON = {
    *(
        "AbstractAsyncContextManager",
        "AbstractContextManager",
        "Any",
        "AsyncIterator",
        "Awaitable",
        "BaseException",
        "Callable",
    ),
    *(
        "Concatenate",
        "Coroutine",
        "Iterable",
        "Iterator",
        "Literal",
        "Logger",
        "LoggerAdapter",
        "Mapping",
        "None",
        "Self",
    ),
    *("Sequence", "True", "False", "Unpack", "UnsetType"),
}
# Aliases of plain values, keywords, and what decorators return on the way.
SPELLED_OUT = {
    *("ErrorKind", "FailureTaskKeywords", "Handler", "Instants", "OnFailure", "QueueKeywords", "RecycleOn"),
    *(
        "RetryPreset",
        "RuleKeywords",
        "RunAtRule",
        "RunIn",
        "Shape",
        "Signature",
        "Stored",
        "TaskMaker",
        "UnknownTypes",
    ),
    *("HarborWorkerKeywords", "NodeKeywords", "WorkerKeywords"),
}


def names_in(annotation: Any) -> set[str]:
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    return set(re.findall(r"(?<![\w.\"'])[A-Z]\w*", re.sub(r'"[^"]*"|\'[^\']*\'', "", text)))


def public_annotations(owner: type) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for name, member in inspect.getmembers(owner):
        function = member.fget if isinstance(member, property) else member
        if name.startswith("_") or not inspect.isfunction(function):
            continue
        for annotation in function.__annotations__.values():
            found.setdefault(name, set()).update(names_in(annotation))
    return found


@pytest.mark.parametrize(
    "owner", [Harbor, Client, JobHandle, Task, AsyncTask, QueueControl, Schedules, Worker, JobContext]
)
def test_methods_speak_in_public_types(owner):
    used = public_annotations(owner)

    hidden = {
        f"{verb}: {name}"
        for verb, names in used.items()
        for name in names - PUBLIC - FROM_PYTHON - SPELLED_OUT
        if not re.fullmatch(r"[A-Z]|[A-Z][a-z]*T", name)
    }
    assert hidden == set()


@pytest.mark.parametrize("name", sorted({*taskharbor.__all__, *taskharbor.types.__all__}))
def test_fields_of_public_records_are_public(name):
    value = getattr(taskharbor, name, None) or getattr(taskharbor.types, name)
    if not (inspect.isclass(value) and issubclass(value, msgspec.Struct)):
        return
    fields = set[str]()
    for annotation in value.__annotations__.values():
        fields |= names_in(annotation)

    assert fields - PUBLIC - FROM_PYTHON - SPELLED_OUT == set()


def test_every_public_name_is_there():
    for name in taskharbor.types.__all__:
        assert getattr(taskharbor.types, name) is not None
    assert sorted(taskharbor.types.__all__) == sorted(set(taskharbor.types.__all__))
    assert not {*taskharbor.__all__} & {*taskharbor.types.__all__}
