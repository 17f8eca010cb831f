"""Gives the variables of the dashboard's scripts short names.

A name is replaced wherever it is a variable, by the same one everywhere, so nested scopes need no analysis:
within a statement at the top of a script, different names stay different. Two names that never meet in such a
statement may get the same letter. What is not a variable keeps its name: properties, methods and keys of
objects, and what the browser and the vendored files provide. `{ job }` becomes `{job:a}`.

The sources are written so that tokens and brackets are enough to tell a variable from a key: no `switch`, no
labels, a semicolon after each statement and each field of a class. Tests check it, also in a browser.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product
from string import ascii_letters, digits

from taskharbor.web.page_text import put_together, taken_apart, tighten

BROWSER_NAMES = frozenset(
    """
    Array Blob Boolean CSS Date Error EventSource HashChangeEvent Infinity Intl JSON Map Math NaN Number
    Object Promise ResizeObserver Set String URL URLSearchParams addEventListener clearInterval clearTimeout
    close decodeURIComponent dispatchEvent document encodeURIComponent event fetch find history length
    localStorage location name navigator open performance removeEventListener scrollTo setInterval setTimeout
    status top window
    """.split()  # noqa: SIM905
)
"""What the scripts use of the browser's global names, or name like them. A test in a browser compares."""

_KEYWORDS = frozenset(
    """
    arguments as async await break catch class const continue delete do else export extends false finally for
    from function get if import in instanceof is let new null of return set static super this throw true try
    typeof undefined void while
    """.split()  # noqa: SIM905
)
_TOKEN = re.compile(r"\d[\w.]*|[A-Za-z_$][\w$]*|#\w+|\.\.\.|=>|==+|[^\s\w]")
_EXPORTED = re.compile(r"^export (?:async function|function|const|let|class) ([\w$]+)", re.MULTILINE)
_NAME = re.compile(r"[A-Za-z_$]")
_BEFORE_OBJECT = frozenset(("...", "return", "const", "let", "import", "export", "in", "of", *"([,=:?&|\0"))
_BEFORE_STATEMENT = frozenset(";}")
_STATEMENTS = frozenset(("function", "const", "let", "class", "export", "import"))
_BEFORE_MEMBER = frozenset(("{", "}", ";", "static", "async", "get", "set"))
_BEFORE_METHOD = frozenset(("{", ",", "async", "get", "set"))
_OBJECTS = frozenset(("object", "pattern"))
_AT_TOP = frozenset(("list", "pattern"))
_TOP = (-1, -1)
"""The statement that stands for the scope of a whole script: its names must all differ."""


@dataclass(frozen=True, slots=True)
class Use:
    """A variable at a place in the code."""

    start: int
    end: int
    name: str
    statement: int
    """Which statement at the top of the script it is in."""
    is_shorthand: bool
    """A key of an object as well: `{ job }`."""
    is_at_top: bool
    """Perhaps a name of the whole script: it is in no bracket, or in a list of names that are declared."""


def variables(script: str) -> set[str]:
    """The names of all variables in it, those of the browser among them."""
    return {use.name for use in _uses(taken_apart(script)[0])}


def shorten_names(scripts: Mapping[str, str], kept: Collection[str]) -> dict[str, str]:
    """The same scripts with short names; those in `kept`, and what is declared with `export`, stay."""
    parts = {name: taken_apart(text) for name, text in scripts.items()}
    uses = {name: list(_uses(code)) for name, (code, _literals) in parts.items()}
    exported = (found for text in scripts.values() for found in _EXPORTED.findall(text))
    shorter = _assigned(list(uses.values()), BROWSER_NAMES.union(kept, exported))
    return {
        name: put_together(tighten(_renamed(code, uses[name], shorter)), literals)
        for name, (code, literals) in parts.items()
    }


def _uses(code: str) -> Iterator[Use]:
    tokens = [(found.start(), found.end(), found[0]) for found in _TOKEN.finditer(code)]
    before, statement, is_class = ";", 0, False
    brackets: list[str] = []
    for (start, end, token), after in zip(tokens, [*(token for *_, token in tokens[1:]), ""], strict=True):
        if not brackets and token in _STATEMENTS and before in _BEFORE_STATEMENT:
            statement += 1
        if token in "([{":
            brackets.append(_kind(token, before, is_class=is_class, is_at_top=not brackets))
            is_class = is_class and token != "{"
        elif token in ")]}":
            brackets.pop()
        elif token == "class":
            is_class = True
        elif _NAME.match(token) and token not in _KEYWORDS:
            inside = brackets[-1] if brackets else "list"
            if not _is_key(inside, before, after):
                is_shorthand = inside in _OBJECTS and before in "{," and after in ("}", ",", "=")
                yield Use(start, end, token, statement, is_shorthand, inside in _AT_TOP)
        before = token


def _kind(token: str, before: str, *, is_class: bool, is_at_top: bool) -> str:
    if is_at_top and before in _STATEMENTS and token != "(":
        return "pattern" if token == "{" and before in ("const", "let") else "list"
    if token != "{":
        return token
    if is_class:
        return "class"
    return "object" if before in _BEFORE_OBJECT else "block"


def _is_key(inside: str, before: str, after: str) -> bool:
    """The name of a property, a method or a member, which stays."""
    if before == ".":
        return True
    if inside == "class":
        return before in _BEFORE_MEMBER
    if inside not in _OBJECTS:
        return False
    return (after == ":" and before in "{,") or (after == "(" and before in _BEFORE_METHOD)


def _assigned(scripts: Sequence[Sequence[Use]], kept: Collection[str]) -> dict[str, str]:
    """A short name for each; the most frequent get the shortest."""
    places: defaultdict[str, set[tuple[int, int]]] = defaultdict(set)
    taken: defaultdict[tuple[int, int], set[str]] = defaultdict(set)
    for script, uses in enumerate(scripts):
        for use in uses:
            places[use.name].add((script, use.statement))
            if use.is_at_top:
                places[use.name].add(_TOP)
    for name in places.keys() & kept:
        for place in places[name]:
            taken[place].add(name)
    counted = Counter(use.name for uses in scripts for use in uses)
    shorter: dict[str, str] = {}
    for name, _count in counted.most_common():
        if name not in kept:
            used = set[str]().union(*(taken[place] for place in places[name]))
            shorter[name] = next(short for short in _short_names() if short not in used)
            for place in places[name]:
                taken[place].add(shorter[name])
    return shorter


def _short_names() -> Iterator[str]:
    pairs = map("".join, product(ascii_letters, ascii_letters + digits))
    return chain(ascii_letters, (pair for pair in pairs if pair not in _KEYWORDS))


def _renamed(code: str, uses: Sequence[Use], shorter: Mapping[str, str]) -> str:
    parts: list[str] = []
    at = 0
    for use in uses:
        short = shorter.get(use.name, use.name)
        parts += (
            code[at : use.start],
            f"{use.name}:{short}" if use.is_shorthand and short != use.name else short,
        )
        at = use.end
    return "".join(parts) + code[at:]
