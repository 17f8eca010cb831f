"""The Lua scripts: read from their files once, called by digest."""

from __future__ import annotations

import hashlib
from importlib.resources import files

PRELUDE, RATES, STORY, FAMILIES = "prelude", "rates", "story", "families"
_AFTER_EXCHANGE = ("exchange_acks", "exchange_settle", "exchange_room", "exchange_claim")
_VERB = "-- VERB"
_WITH_RATES = frozenset({"enqueue", "exchange", "commit", RATES})
# A server out of memory refuses enqueues and the logbook; scripts that free memory or only move jobs go on.
_NEEDS_ROOM = frozenset({"enqueue", "enqueue_one", "write_log"})
_WITHOUT_PRELUDE = frozenset({"enqueue_one"})


class Script:
    """One Lua script."""

    __slots__ = ("digest", "name", "source")

    def __init__(self, name: str, source: str) -> None:
        self.name = name
        self.source = source
        self.digest = hashlib.sha1(source.encode()).hexdigest()  # noqa: S324 - the server names scripts so


def load() -> dict[str, Script]:
    """All scripts by file name."""
    texts = {
        item.name.removesuffix(".lua"): item.read_text(encoding="utf-8")
        for item in files("taskharbor.drivers.redis").joinpath("lua").iterdir()
        if item.name.endswith(".lua")
    }
    if PRELUDE not in texts:
        raise RuntimeError("no Lua files in taskharbor/drivers/redis/lua: the installation is incomplete")
    parts = {name: texts.pop(name) for name in (PRELUDE, STORY, FAMILIES, *_AFTER_EXCHANGE)}
    parts[RATES], mark, verb = texts[RATES].partition(_VERB)
    texts[RATES] = mark + verb
    scripts = {}
    for name, text in texts.items():
        before, after = ([parts[part] for part in side] for side in (_before(name), _after(name)))
        scripts[name] = Script(name, _assembled(name, [*before, text, *after]))
    return scripts


def _before(name: str) -> list[str]:
    """The parts that a script begins with."""
    if name in _WITHOUT_PRELUDE:
        return []
    rates = [RATES] if name in _WITH_RATES else []
    return [PRELUDE, *rates, *([STORY, FAMILIES] if name == "exchange" else [])]


def _after(name: str) -> tuple[str, ...]:
    """The parts that a script goes on with."""
    return _AFTER_EXCHANGE if name == "exchange" else ()


def _assembled(name: str, parts: list[str]) -> str:
    first = "#!lua" if name in _NEEDS_ROOM else "#!lua flags=allow-oom"
    lines = [line for line in "\n".join(parts).splitlines() if not line.lstrip().startswith("--")]
    return "\n".join([first, *(line for line in lines if line.strip())])


SCRIPTS = load()
