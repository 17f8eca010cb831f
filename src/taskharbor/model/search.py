"""The search language of lists and bulk actions: one grammar for web pages, command line and HTTP API.

    state:failed queue:mail,push type:send_* error:"timed out" args.user.id:42 attempt:>2 -type:ping 019e4b7f

All words must hold; commas mean "or", `-` means "not". `*` and `?` are wildcards, except in quotes. `<` and
`>` compare numbers and spans. A bare word is an id (8 hex digits or more, a letter among them), else a part
of the type, the error, the key, a value of the arguments or the id. `number=7`, as lists write arguments, is
`args.number:7`.

    parse_search(text) ──► Search ──► lookup()                    what the store can do
                                  └─► search_filter.matches()     whether a job fits, in plain Python
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

import msgspec

from taskharbor.errors import InvalidArgument
from taskharbor.model.duration import duration
from taskharbor.model.state import TERMINAL, WAITING, JobState

MAX_SEARCH = 2000
"""Characters of a search."""
MAX_VALUES = 200
"""Values of a search, all words together: each is compared with every job."""
RETRYING = "retrying"
"""A state for people: it waits, and an attempt has failed."""

NAMES = ("queue", "type", "key", "worker", "failure", "error", "tag", "lane", "release", "cause")
NUMBERS = ("attempt", "priority")
SPANS = ("wait", "run", "age", "ended")
FIELDS = ("id", "state", *NAMES, *NUMBERS, *SPANS, "args")
ANYWHERE = "anywhere"
"""The field of a bare word: it has no name to write."""
HINTS = {
    "state:": "failed, retrying, ready, …",
    "queue:": "of a queue",
    "type:": "of a task; * matches",
    "error:": "part of the error",
    "args.": "looks into arguments",
    "ended:": "<1h, >7d",
    "age:": "since it was enqueued",
    "attempt:": ">2",
    "tag:": "header tags",
    "worker:": "who ran it",
    "failure:": "kind of failure",
    "key:": "its key",
    "wait:": ">5min",
    "run:": ">30s",
    "priority:": ">0",
    "lane:": "what it requires",
    "release:": "of the worker",
    "cause:": "of its failure",
    "id:": "of a job",
}
"""Each field as it is written, and what to write there; the most useful ones first."""
ALIASES = {
    "attempts": "attempt",
    "failure_kind": "failure",
    "requires": "lane",
    "status": "state",
    "tags": "tag",
    "task": "type",
    "worker_id": "worker",
}
STATES = (*(state.value for state in JobState), RETRYING)

Comparison = Literal["", "<", ">", "<=", ">="]
_COMPARISONS: dict[str, Comparison] = {"": "", "<": "<", ">": ">", "<=": "<=", ">=": ">="}
_Found = tuple[str, int, bool]
"""A value in the text: what it says, where, and whether it is quoted."""

# Every pattern takes all it can and keeps it, and begins where the one before it ended: each sign is looked
# at a fixed number of times.
_BLANKS = re.compile(r"\s*+")
_FIELD = re.compile(r'([^\s:",]++):')
_ARGUMENT = re.compile(r"([^\W\d][\w.]*+)=(?=[^\s,])")
_PLAIN = re.compile(r'[^\s,"]++')
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*+)"', re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_COMPARISON = re.compile(r"[<>]=?")
_NUMBER = re.compile(r"[+-]?[0-9]{1,18}(?:\.[0-9]{1,9})?")
_PART_OF_ID = re.compile(r"(?=(?:-*[0-9a-f]){6})[0-9a-f-]{6,36}")
_BARE_ID = re.compile(r"(?=(?:-*[0-9a-f]){8})(?=[0-9-]*+[a-f])[0-9a-f-]{8,36}|[0-9-]{36}")
_MOST_SHOWN = 40


class SearchError(InvalidArgument):
    """A search that cannot be parsed: `length` characters from `at` on, where one of `expected` should be."""

    def __init__(self, what: str, at: int, length: int, *expected: str) -> None:
        self.what = what
        self.at = at
        self.length = length
        self.expected = expected
        super().__init__(f"{what} at character {at + 1}; expected {' or '.join(expected)}")


class Value(msgspec.Struct, frozen=True):
    """One of the values of a word."""

    text: str
    is_pattern: bool = False
    comparison: Comparison = ""
    number: float | None = None
    """The value as a number, if it is one; of a span, its seconds."""


class Term(msgspec.Struct, frozen=True):
    """One word: a field, and the values of which one must fit."""

    field: str
    values: tuple[Value, ...]
    is_negated: bool = False
    path: tuple[str, ...] = ()
    """Where to look in the arguments, for `args.…`."""

    @property
    def exact(self) -> str | None:
        """The only value that fits, if there is just one."""
        if self.is_negated or len(self.values) != 1 or self.values[0].is_pattern:
            return None
        return self.values[0].text

    @property
    def states(self) -> frozenset[JobState]:
        """The states that a job of this word may be in."""
        if self.field == "ended" and not self.is_negated:
            return TERMINAL
        if self.field != "state":
            return frozenset(JobState)
        named = frozenset(JobState(value.text) for value in self.values if value.text != RETRYING)
        if self.is_negated:
            return frozenset(JobState) - named
        return named | WAITING if self.says(RETRYING) else named

    def says(self, text: str) -> bool:
        return any(value.text == text for value in self.values)


class Lookup(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a search that a store can do. Everything else is left to `matches`."""

    ids: tuple[str, ...] | None = None
    """Whole ids: there are no other jobs to look at."""
    queue: str | None = None
    states: tuple[JobState, ...] | None = None
    """None: any state. Empty: no job can match."""
    type: str | None = None
    key: bytes | None = None
    worker_id: str | None = None
    failure_kind: str | None = None
    ended_within_s: float | None = None
    """Only jobs that ended less than so many seconds ago."""
    walked_in_store: tuple[str, ...] = ()
    """Fields for which the store looks at jobs one by one, as it has no index for them."""
    walked_in_server: tuple[str, ...] = ()
    """Fields that only `matches` can decide."""


class Search(msgspec.Struct, frozen=True):
    """A parsed search."""

    terms: tuple[Term, ...] = ()

    @property
    def is_everything(self) -> bool:
        return not self.terms

    @property
    def needs_payloads(self) -> bool:
        return any(term.field in ("args", ANYWHERE) for term in self.terms)

    @property
    def states(self) -> tuple[JobState, ...] | None:
        """The states that a match may be in; None if the search does not say."""
        if not any(term.field == "state" for term in self.terms):
            return None
        return _in_order(_states(term for term in self.terms if term.field == "state"))

    def or_states(self, *states: JobState) -> Search:
        """The same search in these states, unless it names states already."""
        return self if self.states is not None else self.narrowed("state", *states)

    def narrowed(self, field: str, *texts: str) -> Search:
        """The same search with one word more; wildcards count."""
        return Search((*self.terms, Term(field, tuple(_name(text, is_quoted=False) for text in texts))))

    def lookup(self) -> Lookup:
        found = {field: self._exact(field) for field in ("queue", "type", "key", "worker", "failure")}
        key, states = found["key"], _states(self.terms)
        return Lookup(
            ids=self._whole_ids(),
            queue=found["queue"],
            states=None if len(states) == len(JobState) else _in_order(states),
            type=found["type"],
            key=None if key is None else key.encode("utf-8", "surrogateescape"),
            worker_id=found["worker"],
            failure_kind=found["failure"],
            ended_within_s=self._ended_within(),
            walked_in_store=tuple(
                field for field in ("type", "key", "worker", "failure") if found[field] is not None
            ),
            walked_in_server=tuple(
                dict.fromkeys(term.field for term in self.terms if not _is_for_store(term))
            ),
        )

    def _exact(self, field: str) -> str | None:
        return next(
            (term.exact for term in self.terms if term.field == field and term.exact is not None), None
        )

    def _whole_ids(self) -> tuple[str, ...] | None:
        for term in self.terms:
            if term.field == "id" and not term.is_negated and all(len(one.text) == 36 for one in term.values):
                return tuple(dict.fromkeys(value.text for value in term.values))
        return None

    def _ended_within(self) -> float | None:
        bounds = [
            value.number
            for term in self.terms
            if term.field == "ended" and not term.is_negated and len(term.values) == 1
            for value in term.values
            if value.comparison in ("<", "<=") and value.number is not None
        ]
        return min(bounds, default=None)


def parse_search(text: str) -> Search:
    """The search that a text means, in time proportional to its length.

    Raises:
        SearchError: it means nothing; says where, and what was expected there.
    """
    if len(text) > MAX_SEARCH:
        raise SearchError("the search is too long", MAX_SEARCH, len(text) - MAX_SEARCH, "its end")
    terms: list[Term] = []
    at, count = _after_blanks(text, 0), 0
    while at < len(text):
        term, at = _term(text, at)
        count += len(term.values)
        if count > MAX_VALUES:
            raise SearchError("the search has too many values", at, 0, f"at most {MAX_VALUES}")
        terms.append(term)
        at = _after_blanks(text, at)
    return Search(tuple(terms))


# ------------------------------------------------------------------ words


def _term(text: str, begin: int) -> tuple[Term, int]:
    is_negated = text[begin] == "-"
    at = begin + is_negated
    if (named := _ARGUMENT.match(text, at)) is not None:
        return _as_listed(text, named, is_negated)
    found = _FIELD.match(text, at)
    if found is None:
        values, end = _values(text, at, at, "a word like state:failed")
        return _bare(values, is_negated), end
    name, _, path = found[1].partition(".")
    field = ALIASES.get(name, name)
    if field not in FIELDS or (field != "args" and path) or (field == "args" and not all(path.split("."))):
        raise _unknown_field(found[1], at)
    values, end = _values(text, found.end(), at, f"a value after {found[1][:_MOST_SHOWN]}:")
    made = tuple(_value(field, *value) for value in values)
    return Term(field, made, is_negated, tuple(path.split(".")) if path else ()), end


def _as_listed(text: str, named: re.Match[str], is_negated: bool) -> tuple[Term, int]:
    """An argument as lists write it: `number=7`. The name of a field could mean both, and is asked back."""
    name, at = named[1].removeprefix("args."), named.start()
    if ALIASES.get(name, name) in FIELDS or not all(name.split(".")):
        expected = f"{name[:_MOST_SHOWN]}:", f"args.{name[:_MOST_SHOWN]}:"
        raise SearchError("a field is followed by a colon", at, len(named[0]), *expected)
    values, end = _values(text, named.end(), at, "a value")
    return Term(
        "args", tuple(_value("args", *one) for one in values), is_negated, tuple(name.split("."))
    ), end


def _bare(values: list[_Found], is_negated: bool) -> Term:
    """A word without a field: ids, or what people remember of a job."""
    if all(_BARE_ID.fullmatch(word.lower()) for word, _, _ in values):
        return Term("id", tuple(Value(word.lower()) for word, _, _ in values), is_negated)
    return Term(ANYWHERE, tuple(_remembered(*value) for value in values), is_negated)


def _remembered(word: str, at: int, is_quoted: bool) -> Value:
    if not is_quoted and word[0] in "<>":
        raise SearchError("a comparison without a field", at, len(word), "a word like attempt:>2")
    return _name(word, is_quoted=is_quoted)


def _values(text: str, at: int, word: int, expected: str) -> tuple[list[_Found], int]:
    """The values from `at` on, and where they end."""
    found: list[_Found] = []
    while True:
        value, is_quoted, end = _one_value(text, at, word, expected)
        found.append((value, at, is_quoted))
        if end == len(text) or text[end].isspace():
            return found, end
        if text[end] != ",":
            raise SearchError("a value goes on after its quotes", end, 1, "a space", "a comma")
        at, word, expected = end + 1, end, "a value after the comma"


def _one_value(text: str, at: int, word: int, expected: str) -> tuple[str, bool, int]:
    if text.startswith('"', at):
        quoted = _QUOTED.match(text, at)
        if quoted is None:
            raise SearchError("a quote is not closed", at, len(text) - at, 'a closing "')
        return _ESCAPED.sub(r"\1", quoted[1]), True, quoted.end()
    plain = _PLAIN.match(text, at)
    if plain is None:
        raise SearchError("a value is missing", word, max(at - word, 1), expected)
    return plain[0], False, plain.end()


def _after_blanks(text: str, at: int) -> int:
    found = _BLANKS.match(text, at)
    return found.end() if found else at


def _unknown_field(name: str, at: int) -> SearchError:
    from difflib import get_close_matches

    close = get_close_matches(name[:_MOST_SHOWN].lower(), FIELDS, n=3, cutoff=0.6)
    shown = name if len(name) <= _MOST_SHOWN else name[: _MOST_SHOWN - 1] + "…"
    expected = [f"{field}:" for field in close or FIELDS if field != "args"]
    if not close or "." in name or "args" in close:
        expected.append("args.NAME:")
    return SearchError(f"{shown!r} is not a field", at, len(name), *expected)


# ------------------------------------------------------------------ values


def is_part_of_id(text: str) -> bool:
    """Whether it can be the first or last digits of an id: lists show at least eight, people type fewer."""
    return _PART_OF_ID.fullmatch(text.lower()) is not None


def _value(field: str, text: str, at: int, is_quoted: bool) -> Value:
    if field == "state":
        if text not in STATES:
            raise SearchError(f"{text[:_MOST_SHOWN]!r} is not a state", at, len(text), *STATES)
        return Value(text)
    if field == "id":
        if not is_part_of_id(text):
            raise SearchError("this is not a part of an id", at, len(text), "6 to 32 hex digits")
        return Value(text.lower())
    if field in SPANS:
        return _span(field, text, at)
    if field in NUMBERS:
        return _number(field, text, at)
    return _compared(text) if field == "args" and not is_quoted else _name(text, is_quoted=is_quoted)


def _name(text: str, *, is_quoted: bool) -> Value:
    return Value(text, is_pattern=not is_quoted and ("*" in text or "?" in text))


def _span(field: str, text: str, at: int) -> Value:
    sign = _COMPARISON.match(text)
    try:
        span = duration(text[sign.end() :]) if sign else None
    except InvalidArgument:
        span = None
    if span is None or sign is None:
        shown = f"{field}:<1h", f"{field}:>5m"
        raise SearchError(f"{text[:_MOST_SHOWN]!r} is not a comparison with a span", at, len(text), *shown)
    return Value(text, comparison=_COMPARISONS[sign[0]], number=span.total_seconds())


def _number(field: str, text: str, at: int) -> Value:
    value = _compared(text)
    if value.number is None:
        shown = f"{field}:3", f"{field}:>3"
        raise SearchError(f"{text[:_MOST_SHOWN]!r} is not a number", at, len(text), *shown)
    return value


def _compared(text: str) -> Value:
    """A value that may be a number; one that is none after `<` or `>` is plain text."""
    sign = _COMPARISON.match(text)
    number = text[sign.end() :] if sign else text
    if _NUMBER.fullmatch(number) is None:
        return _name(text, is_quoted=False)
    return Value(text, comparison=_COMPARISONS[sign[0] if sign else ""], number=float(number))


# ------------------------------------------------------------------ what the store does


def _is_for_store(term: Term) -> bool:
    if term.field == "state":
        return not term.says(RETRYING)
    if term.field == "id":
        return not term.is_negated and all(len(value.text) == 36 for value in term.values)
    return term.field in ("queue", "type", "key", "worker", "failure") and term.exact is not None


def _states(terms: Iterator[Term] | tuple[Term, ...]) -> frozenset[JobState]:
    return frozenset(JobState).intersection(*(term.states for term in terms))


def _in_order(states: frozenset[JobState]) -> tuple[JobState, ...]:
    return tuple(state for state in JobState if state in states)
