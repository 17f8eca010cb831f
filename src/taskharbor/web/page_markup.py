"""Turns the markup in the dashboard's scripts into calls, so that browsers need not.

    html`<p class="dim">${count} jobs</p>`    becomes    html("p",{class:"dim"},count," jobs")

In the sources `html` is htm bound to Preact's `createElement`; in what is sent it is `createElement` itself,
and htm is not sent. The calls are those that htm would make: a line break at an end of a text goes with the
spaces around it, elements side by side are a list, `<//>` ends any element. A value is one `${}` or a text in
double quotes.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

from taskharbor.web.page_text import LITERAL, taken_apart

_OPEN = re.compile(r"<(\w*)")
_CLOSE = re.compile(r"</\w*/?>")
_ATTRIBUTE = re.compile(r'(\.\.\.)|([\w-]+)(?:(=)("[^"]*")?)?')
_AFTER_VALUE = re.compile(r"[\s/>]")
_PLAIN_KEY = re.compile(r"\w+")
_BREAK_AT_END = re.compile(r"\A\s*\n\s*|\s*\n\s*\Z")
_BREAK = re.compile(r"\s*\n\s*")
_BOUND = re.compile(r"\bhtm\.bind\((\w+)\)")


def without_markup(script: str) -> str:
    """The same script with calls in place of `html` templates."""
    code, literals = taken_apart(_BOUND.sub(r"\1", script))
    out: list[str] = []
    open_templates: list[_Template | None] = []  # None: another template than one of markup
    for before, literal in zip(code.split(LITERAL), [*literals, ""], strict=True):
        out.append(before)
        if literal.startswith("`"):
            is_markup = before.endswith("html")
            open_templates.append(_Template(out) if is_markup else None)
        if not literal.startswith(("`", "}")):
            out.append(literal)
            continue
        template = open_templates[-1]
        if template is None:
            out.append(literal)
        else:
            template.read(literal)
        if literal.endswith("`"):
            open_templates.pop()
    return "".join(out)


@dataclass
class _Element:
    has_attributes: bool = False
    is_begun: bool = False
    """Its tag has ended, so children follow."""


@dataclass
class _Template:
    """Writes the calls of one template, part by part: the code of `${}` comes in between by itself."""

    out: list[str]
    elements: list[_Element] = field(default_factory=list)
    roots: int = 0
    start: int = field(init=False)

    def __post_init__(self) -> None:
        self.start = len(self.out) - 1
        self.out[-1] = self.out[-1].removesuffix("html")
        self.out.append("")

    def read(self, literal: str) -> None:
        is_last = literal.endswith("`")
        text, at = literal[1:-1] if is_last else literal[1:-2], 0
        if "\\" in text:
            raise ValueError(f"markup with a backslash: {text[:60]!r}")
        if literal[0] == "}" and self._is_in_tag() and not _AFTER_VALUE.match(text):
            raise ValueError(f"a value is neither one text nor one ${{}}: {text[:60]!r}")
        while at < len(text):
            at = self._tag(text, at) if self._is_in_tag() else self._content(text, at)
        if not is_last and not self._is_in_tag():
            self._separate()
        if is_last and self.roots > 1:
            self.out[self.start + 1] = "["
            self.out.append("]")

    def _is_in_tag(self) -> bool:
        return bool(self.elements) and not self.elements[-1].is_begun

    def _content(self, text: str, at: int) -> int:
        """A text, the beginning of an element or the end of one."""
        end = text.find("<", at)
        if end != at:
            end = len(text) if end < 0 else end
            self._text(text[at:end])
            return end
        if found := _CLOSE.match(text, at):
            self.out.append(")")
            self.elements.pop()
            return found.end()
        found = _matched(_OPEN, text, at)
        self._separate()
        self.elements.append(_Element())
        self.out.append(f'html("{found[1]}"' if found[1] else "html(")
        return found.end()

    def _text(self, text: str) -> None:
        shown = _BREAK.sub(" ", _BREAK_AT_END.sub("", text))
        if shown:
            self._separate()
            self.out.append(json.dumps(shown, ensure_ascii=False))

    def _separate(self) -> None:
        """Before a child."""
        if self.elements:
            self.out.append(",")
        else:
            self.out.append("," if self.roots else "")
            self.roots += 1

    def _tag(self, text: str, at: int) -> int:
        """An attribute, or the end of the tag."""
        element = self.elements[-1]
        if text[at].isspace():
            return at + 1
        if text[at] in "/>":
            is_whole = text[at] == "/"
            self.out.append("}" if element.has_attributes else "" if is_whole else ",0")
            element.is_begun = True
            if is_whole:
                self.elements.pop()
                self.out.append(")")
            return at + 1 + is_whole
        found = _matched(_ATTRIBUTE, text, at)
        self.out.append("," if element.has_attributes else ",{")
        element.has_attributes = True
        self.out.append(_attribute(found))
        is_given_by_code = found[1] or (found[3] and not found[4])
        if is_given_by_code and found.end() < len(text):
            raise ValueError(f"a value is neither one text nor one ${{}}: {text[at : at + 60]!r}")
        return found.end()


def _attribute(found: re.Match[str]) -> str:
    spread, name, has_value, value = found.groups()
    if spread:
        return "..."
    key = name if _PLAIN_KEY.fullmatch(name) else f'"{name}"'
    return f"{key}:{value or ''}" if has_value else f"{key}:!0"


def _matched(pattern: re.Pattern[str], text: str, at: int) -> re.Match[str]:
    found = pattern.match(text, at)
    if found is None:
        raise ValueError(f"markup that is not understood: {text[at : at + 60]!r}")
    return found
