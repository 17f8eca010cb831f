"""Gives the variables of the dashboard's scripts short names, and the properties that only they use.

Each scope takes the first letters that mean nothing else in it, as in `e=>e.id` wherever a function takes one
argument: so equal code gets equal text, and compresses well. What no scope declares is the browser's, and
keeps its name. `{ job }` becomes `{job:e}`. Of properties only those in `OWN` change, and private ones.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, product

from taskharbor.web.page_scopes import Scope, Scopes, Symbol, Use
from taskharbor.web.page_text import put_together, tighten

OWN = frozenset(
    """
    Page acts again answer ask backTo columns deed dueAt endsAt field fleet found fresh glyph graph
    hasWindow heading here holdMs icon isAll isAt isBad isComplete isExact isFilled isFresh isLarge
    isLoading isLost isOn isPaused isReady isWalking isWrong known lede look lookedAt lostAt mayChange
    mayPick notDone older onAgain onAll onClear onClose onDo onDone onDrop onDropView onEdit onHeld onHelp
    onKeys onLogin onLogout onMade onPick onPoint onRetry onSave onSearch onWindow picked pill post
    problem retryAt route session showNew tone trail trouble usual word
    """.split()  # noqa: SIM905
)
"""Properties that neither a browser nor the server has. Tests compare them with both."""
_LETTERS = "etsnarloiucdhpmfgbwykvjxqzTSNACMDEILOPRBFGHJKQUVWXYZ"
"""The letters that texts and the browser's names use most come first: their codes are short."""
_WORDS = frozenset(("as", "do", "if", "in", "is", "of"))
_EXPORTED = re.compile(r"^export (?:async function|function|const|let|class) ([\w$]+)", re.MULTILINE)


def shorten_names(scripts: Mapping[str, str], in_texts: Callable[[str], str] = str) -> dict[str, str]:
    """The same scripts with short names; what is declared with `export` keeps its own.

    What a script imports from those before it has the name that it got there. `in_texts` is called for every
    string, part of a template and regular expression.
    """
    scopes = {name: Scopes(script) for name, script in scripts.items()}
    properties = _properties([use for one in scopes.values() for use in one.uses])
    shared: dict[str, str] = {}
    done: dict[str, str] = {}
    for name, one in scopes.items():
        given = {exported: exported for exported in _EXPORTED.findall(scripts[name])} | shared
        shorter = _assigned(one.all, given)
        shared |= {symbol.name: short for symbol, short in shorter.items() if symbol.scope is one.all[0]}
        code = tighten(_renamed(one.code, one.uses, shorter, properties))
        done[name] = put_together(code, list(map(in_texts, one.literals)))
    return done


def _properties(uses: Sequence[Use]) -> dict[str, str]:
    """Short names for our own properties; the most frequent get the shortest."""
    counted = Counter(use.name for use in uses if use.symbol is None or use.is_shorthand)
    own = [name for name, _count in counted.most_common() if name in OWN or name.startswith("#")]
    free = (short for short in short_names() if short not in counted)
    return {name: ("#" if name.startswith("#") else "") + next(free) for name in own}


def _assigned(scopes: Sequence[Scope], given: Mapping[str, str]) -> dict[Symbol, str]:
    """A short name for each symbol; outer scopes come first."""
    shorter = {symbol: given[name] for name, symbol in scopes[0].symbols.items() if name in given}
    for scope in scopes:
        taken = scope.provided.union(shorter[symbol] for symbol in scope.meant if symbol in shorter)
        free = (short for short in short_names() if short not in taken)
        for symbol in scope.symbols.values():
            if symbol not in shorter:
                shorter[symbol] = next(free)
    return shorter


def short_names() -> Iterator[str]:
    """All of them, one letter first."""
    pairs = map("".join, product(_LETTERS, _LETTERS))
    return chain(_LETTERS, (pair for pair in pairs if pair not in _WORDS))


def _renamed(
    code: str, uses: Sequence[Use], shorter: Mapping[Symbol, str], properties: Mapping[str, str]
) -> str:
    parts: list[str] = []
    at = 0
    for use in uses:
        key = properties.get(use.name, use.name)
        short = key if use.symbol is None else shorter[use.symbol]
        parts += code[at : use.start], f"{key}:{short}" if use.is_shorthand and short != key else short
        at = use.end
    return "".join(parts) + code[at:]
