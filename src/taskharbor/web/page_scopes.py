"""Finds the scopes of a script, and what each of them declares and uses, by tokens and brackets.

A function, a block, a loop and a `catch` are a scope each. The scripts are written so that this is enough:
no `switch`, no labels, no `var`, a semicolon after each statement and each field of a class.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from taskharbor.web.page_text import LITERAL, taken_apart

_TOKEN = re.compile(r"\d[\w.]*|[A-Za-z_$][\w$]*|#\w+|\.\.\.|=>|\?\.|\?\?|[^\s\w]")
_NAME = re.compile(r"[A-Za-z_$]")
_KEYWORDS = frozenset(
    """
    arguments as async await break catch class const continue delete do else export extends false finally for
    function if import in instanceof let new null return static super this throw true try typeof undefined
    var void while
    """.split()  # noqa: SIM905
)
_OPEN, _MIDDLE, _CLOSE = "`{", "`|", "`}"
"""The parts of a template with `${}`."""
_OPENING = frozenset(("(", "[", "{", _OPEN))
_CLOSING = frozenset((")", "]", "}", _CLOSE))
_AFTER_EXPRESSION = _CLOSING | {",", ";", _MIDDLE, ""}
_BEFORE_OBJECT = frozenset(("...", "return", "const", "let", "in", "of", "??", _OPEN, _MIDDLE, *"([,=:?&|"))
_BEFORE_MEMBER = frozenset(("{", "}", ";", "static", "async", "get", "set"))
_BEFORE_METHOD = frozenset(("{", ",", "async", "get", "set"))


@dataclass(eq=False)
class Symbol:
    """Something that a scope declares."""

    name: str
    scope: Scope


@dataclass(eq=False)
class Scope:
    """A part of the script, by the numbers of its tokens, and what is visible in it only."""

    start: int
    end: int
    symbols: dict[str, Symbol] = field(default_factory=dict)
    meant: set[Symbol] = field(default_factory=set)
    """What is used in it, wherever that was declared."""
    provided: set[str] = field(default_factory=set)
    """Names that are used in it and that no scope declares: the browser's."""


@dataclass(frozen=True, slots=True)
class Use:
    """A name at a place in the code: of a variable, or of a property where `symbol` is None."""

    start: int
    end: int
    name: str
    symbol: Symbol | None
    is_shorthand: bool = False
    """A key of an object as well: `{ job }`."""


class Scopes:
    """The scopes of a script in the order in which they begin; the first is the script itself."""

    def __init__(self, script: str) -> None:
        self.code, self.literals = taken_apart(script)
        found = list(_TOKEN.finditer(self.code))
        self._spans = [(one.start(), one.end()) for one in found]
        self._tokens = list(_with_templates((one[0] for one in found), self.literals))
        self._partner: dict[int, int] = {}
        """The other bracket of each."""
        self._around: list[str] = []
        """For each token what the innermost bracket around it is."""
        self._match_brackets()
        self._bodies: set[int] = set()
        """Blocks that belong to the scope before them: a parameter and a variable must not share a name."""
        self.all = [Scope(0, len(self._tokens))]
        self._find_scopes()
        self.all.sort(key=lambda scope: (scope.start, -scope.end))
        self.uses = sorted([*self._used(), *self._needless()], key=lambda use: use.start)

    def _match_brackets(self) -> None:
        open_at: list[int] = []
        kinds = ["script"]
        before, is_class = ";", False
        for at, token in enumerate(self._tokens):
            if token in _CLOSING:
                first = open_at.pop()
                self._partner[first], self._partner[at] = at, first
                kinds.pop()
            self._around.append(kinds[-1])
            if token in _OPENING:
                open_at.append(at)
                kinds.append(_kind(token, before, is_class=is_class))
                is_class = is_class and token != "{"
            elif token == "class":
                is_class = self._tokens[at + 1] != ":"
            before = token

    # ------------------------------------------------------------------ where something ends

    def _next(self, at: int) -> int:
        """The token after this one, or after the bracket that it opens."""
        return max(self._partner.get(at, at), at) + 1

    def _after_expression(self, at: int) -> int:
        choices = 0
        while self._tokens[at] not in _AFTER_EXPRESSION and (self._tokens[at] != ":" or choices):
            choices += (self._tokens[at] == "?") - (self._tokens[at] == ":")
            at = self._next(at)
        return at

    def _after_statement(self, at: int) -> int:
        token = self._tokens[at]
        if token in ("if", "for", "while"):
            at = self._after_statement(self._next(at + 1))
            return self._after_statement(at + 1) if token == "if" and self._tokens[at] == "else" else at
        while token not in (";", "{"):
            at = self._next(at)
            token = self._tokens[at]
        return self._next(at)

    # ------------------------------------------------------------------ declarations

    def _find_scopes(self) -> None:
        inside = [self.all[0]]
        for at in range(len(self._tokens) - 1):
            while at >= inside[-1].end:
                inside.pop()
            self._declare_at(at, inside[-1])
            if opened := self._opened_at(at):
                inside.append(opened)

    def _declare_at(self, at: int, scope: Scope) -> None:
        token, after = self._tokens[at], self._tokens[at + 1]
        if token in ("const", "let", "var"):
            self._declarations(scope, at + 1)
        elif token in ("function", "class") and _is_name(after):
            self._declare(scope, at + 1)
        elif token == "import" and after == "{":
            self._pattern(scope, at + 1)

    def _opened_at(self, at: int) -> Scope | None:
        """The scope that begins here, if one does."""
        token, after = self._tokens[at], self._tokens[at + 1]
        if token == "function":
            return self._function_with_block(at + 1 + _is_name(after))
        if token == "=>":
            self._bodies.add(at + 1)
            return self._function(self._partner.get(at - 1, at - 1), self._after_expression(at + 1))
        if token == "(" and self._is_method(at):
            return self._function_with_block(at)
        if token == "for":
            return self._scope(at + 1, self._after_statement(self._next(at + 1)))
        if token == "catch" and after == "(":
            return self._function_with_block(at + 1)
        if token == "{" and self._around[at + 1] == "block" and at not in self._bodies:
            return self._scope(at, self._next(at))
        return None

    def _scope(self, start: int, end: int) -> Scope:
        scope = Scope(start, end)
        self.all.append(scope)
        return scope

    def _function_with_block(self, first: int) -> Scope:
        body = self._next(first)
        self._bodies.add(body)
        return self._function(first, self._next(body))

    def _function(self, first: int, end: int) -> Scope:
        """A function from its parameters on: a bracket around them, or the only one."""
        scope = self._scope(first, end)
        if self._tokens[first] != "(":
            self._declare(scope, first)
            return scope
        at = first + 1
        while self._tokens[at] != ")":
            at = self._pattern(scope, at + (self._tokens[at] == "..."))
            if self._tokens[at] == "=":
                at = self._after_expression(at + 1)
            at += self._tokens[at] == ","
        return scope

    def _is_method(self, at: int) -> bool:
        name, before = self._tokens[at - 1], self._tokens[at - 2] if at > 1 else ""
        if self._around[at] == "class":
            return name not in ("=", ";") and before in _BEFORE_MEMBER and self._tokens[self._next(at)] == "{"
        return self._around[at] == "object" and before in _BEFORE_METHOD and _NAME.match(name) is not None

    def _declarations(self, scope: Scope, at: int) -> None:
        while True:
            at = self._pattern(scope, at)
            if self._tokens[at] == "=":
                at = self._after_expression(at + 1)
            if self._tokens[at] != ",":
                return
            at += 1

    def _pattern(self, scope: Scope, at: int) -> int:
        """Declare what a pattern names; the token after it."""
        if self._tokens[at] not in "{[":
            self._declare(scope, at)
            return at + 1
        end, is_list = self._partner[at], self._tokens[at] == "["
        at += 1
        while at < end:
            if self._tokens[at] in (",", "..."):
                at += 1
                continue
            if not is_list and self._tokens[at + 1] == ":":
                at += 2
            at = self._pattern(scope, at)
            if self._tokens[at] == "=":
                at = self._after_expression(at + 1)
        return end + 1

    def _declare(self, scope: Scope, at: int) -> None:
        name = self._tokens[at]
        scope.symbols.setdefault(name, Symbol(name, scope))

    # ------------------------------------------------------------------ uses

    def _needless(self) -> Iterator[Use]:
        """Brackets around all that a short function returns."""
        for at, token in enumerate(self._tokens[:-1]):
            first = at + 1
            if token != "=>" or self._tokens[first] != "(" or self._tokens[first + 1] == "{":
                continue
            last = self._partner[first]
            if self._after_expression(first) == last + 1 and self._after_expression(first + 1) == last:
                yield Use(*self._spans[first], "", None)
                yield Use(*self._spans[last], "", None)

    def _used(self) -> Iterator[Use]:
        waiting, inside = self.all[::-1], list[Scope]()
        for at, token in enumerate(self._tokens[:-1]):
            while waiting and waiting[-1].start <= at:
                inside.append(waiting.pop())
            while at >= inside[-1].end:
                inside.pop()
            if token.startswith("#") or (_NAME.match(token) and self._is_key(at)):
                yield Use(*self._spans[at], token, None)
            elif _is_name(token) and not self._is_word(at) and (symbol := _meant(token, inside)):
                yield Use(*self._spans[at], token, symbol, self._is_shorthand(at))

    def _is_shorthand(self, at: int) -> bool:
        before, after = self._tokens[at - 1], self._tokens[at + 1]
        return self._around[at] == "object" and before in ("{", ",") and after in ("}", ",", "=")

    def _is_key(self, at: int) -> bool:
        """The name of a property, a method or a member."""
        before, after, around = self._tokens[at - 1], self._tokens[at + 1], self._around[at]
        if before in (".", "?."):
            return True
        if around == "class":
            return before in _BEFORE_MEMBER
        if around != "object":
            return False
        return (after == ":" and before in ("{", ",")) or (after == "(" and before in _BEFORE_METHOD)

    def _is_word(self, at: int) -> bool:
        """A part of the language that may be a name elsewhere."""
        token, after = self._tokens[at], self._tokens[at + 1]
        if token == "of":
            return self._around[at] == "for"
        if token == "from":
            return after == LITERAL
        return token in ("get", "set") and self._around[at] in ("object", "class") and _is_name(after)


def _with_templates(tokens: Iterable[str], literals: Sequence[str]) -> Iterator[str]:
    """The tokens, with parts of templates apart from other literals, and one that is the end."""
    rest = iter(literals)
    for token in tokens:
        literal = next(rest) if token == LITERAL else ""
        if literal[:1] == "}":
            yield _CLOSE if literal.endswith("`") else _MIDDLE
        else:
            yield _OPEN if literal[:1] == "`" and literal.endswith("${") else token
    yield ""


def _kind(token: str, before: str, *, is_class: bool) -> str:
    """What a bracket holds."""
    if token != "{":
        return "for" if before == "for" else token
    if is_class:
        return "class"
    if before in ("import", "export"):
        return "list"
    return "object" if before in _BEFORE_OBJECT else "block"


def _is_name(token: str) -> bool:
    return _NAME.match(token) is not None and token not in _KEYWORDS


def _meant(name: str, inside: Sequence[Scope]) -> Symbol | None:
    """What a name means in these scopes, the innermost last; None if it is the browser's."""
    for number, owner in enumerate(reversed(inside), 1):
        if symbol := owner.symbols.get(name):
            for scope in inside[-number:]:
                scope.meant.add(symbol)
            return symbol
    for scope in inside:
        scope.provided.add(name)
    return None
