"""What jobs have in common that others do not have: a hint at why they fail."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from taskharbor.model.secrets import HIDDEN

MOST_SHOWN = 5
_LEAST_SHARE = 0.6
_LEAST_DIFFERENCE = 0.2
_LEAST_JOBS = 3
_LEAST_OTHERS = 10
_DEEPEST = 3
_MOST_VALUES = 50
_MOST_SIGNS = 80

Values = Sequence[tuple[str, str]]
"""Of one job: names like `args.user.id`, and what they have."""


class InCommon(msgspec.Struct, frozen=True, kw_only=True):
    """A value of most of these jobs, and how many of the others have it too."""

    what: str
    value: str
    share: float
    share_of_others: float | None
    """None if there are too few others to compare with: each more would change the answer."""
    text: str
    """Both as people write them: template="welcome"."""


def in_common(jobs: Sequence[Values], others: Sequence[Values]) -> list[InCommon]:
    """The values that set these jobs apart, the clearest first. Too few jobs have nothing."""
    if len(jobs) < _LEAST_JOBS:
        return []
    found, is_compared = [], len(others) >= _LEAST_OTHERS
    elsewhere = Counter(pair for values in others for pair in set(values))
    for pair, count in Counter(pair for values in jobs for pair in set(values)).items():
        share = count / len(jobs)
        of_others = elsewhere[pair] / len(others) if is_compared else None
        if share >= _LEAST_SHARE and share - (of_others or 0.0) >= _LEAST_DIFFERENCE:
            found.append(
                InCommon(
                    what=pair[0],
                    value=pair[1],
                    share=round(share, 3),
                    share_of_others=_rounded(of_others),
                    text=_written(*pair),
                )
            )
    return sorted(found, key=_clearest_first)[:MOST_SHOWN]


def _written(what: str, value: str) -> str:
    if what.startswith("args."):
        return f"{what.removeprefix('args.')}={json.dumps(value, ensure_ascii=False)}"
    return f"{what} {value}"


def _clearest_first(one: InCommon) -> tuple[float, str, str]:
    return (one.share_of_others or 0.0) - one.share, one.what, str(one.value)


def values_in(arguments: Any, name: str = "args") -> list[tuple[str, str]]:
    """The plain values of decoded arguments by their paths; hidden and long ones are left out."""
    return [pair for pair, _ in zip(_values(arguments, name, _DEEPEST), range(_MOST_VALUES), strict=False)]


def _values(value: Any, name: str, deeper: int) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, item in value.items() if deeper else ():
            yield from _values(item, f"{name}.{key}", deeper - 1)
    elif isinstance(value, list):
        for at, item in enumerate(value[:_MOST_VALUES] if deeper else ()):
            yield from _values(item, f"{name}.{at}", deeper - 1)
    elif value != HIDDEN:
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        if len(text) <= _MOST_SIGNS and len(name) <= _MOST_SIGNS:
            yield name, text


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 3)
