"""Removes from the dashboard's own JavaScript and CSS what only readers need: comments, indentation, spaces.

The files in `ui` are written for people, and no build step changes them: the server shortens what it sends.
Strings and regular expressions stay as they are, and so do line breaks where a statement may end. In `html`
templates a line break and the spaces around it become one line break, or nothing beside a tag, and the end of
an element is `<//>`: htm treats these alike. `page_names` shortens names.
"""

from __future__ import annotations

import re

_LITERAL = "\0"
"""Stands for a string, a regular expression or a part of a template while the code around it is shortened."""
_MARKED = re.compile(r"""["'`/{}]""")
_STRING = re.compile(r""""(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'""")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_REGEX = re.compile(r"/(?:[^/\\\n\[]|\\.|\[(?:[^\]\\\n]|\\.)*\])+/[a-z]*")
_TEMPLATE_PART = re.compile(r"[`}](?:[^`\\$]|\\.|\$(?!\{))*(?:`|\$\{)", re.DOTALL)
_LAST_WORD = re.compile(r"[\w$]*\Z")
_BEFORE_REGEX = frozenset(
    ("return", "typeof", "case", "in", "of", "delete", "void", "throw", "new", "else", "await")
)
_LINE_BREAK = re.compile(r"[^\S\n]*\n\s*")
_SAME_SIGNS = re.compile(r"([+-]) (?=\1)")
_KEPT_SPACE = "\1"
_SPACES = re.compile(r"[^\S\n]+")
_SPACE = re.compile(r"(?<![\w$#]) | (?![\w$#])")
_BREAK_IN_BRACKETS = re.compile(r"(?<=[{(\[,])\n|\n(?=[})\]])")
_NEEDLESS = re.compile(r"(?<=;)\n|;(?=\})")
_TAG_END = re.compile(r"</[a-z][a-z0-9]*>")
_BREAK_AT_TAG = re.compile(r"(?<=>)\n(?=<|\$\{)|(?<=\A\})\n(?=<)")
_CSS_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_CSS_SPACE = re.compile(r"\s*([{},;])\s*|:\s+")


def shorten_css(text: str) -> str:
    """The same rules without comments and without spaces around braces, commas, semicolons and after colons.

    A text in `content:` must not hold these signs; a test looks.
    """
    plain = _CSS_COMMENT.sub("", text)
    return _CSS_SPACE.sub(lambda found: found[1] or ":", plain).replace(";}", "}").strip()


def shorten_script(text: str) -> str:
    """The same program without comments, and with fewer spaces."""
    code, literals = taken_apart(text)
    code = _SPACES.sub(" ", _LINE_BREAK.sub("\n", code))
    code = _SAME_SIGNS.sub(r"\1" + _KEPT_SPACE, code)
    code = _BREAK_IN_BRACKETS.sub("", _SPACE.sub("", code)).replace(_KEPT_SPACE, " ")
    return put_together(code.strip(), literals)


def tighten(code: str) -> str:
    """Code that was taken apart, without breaks after semicolons and without semicolons before braces."""
    return _NEEDLESS.sub("", code)


def put_together(code: str, literals: list[str]) -> str:
    """The text of which `taken_apart` made this."""
    rest = iter(literals)
    return re.sub(_LITERAL, lambda _found: next(rest), code)


def taken_apart(text: str) -> tuple[str, list[str]]:
    """The code with `_LITERAL` in place of every literal and no comments; and the literals in order."""
    code: list[str] = []
    literals: list[str] = []
    open_braces: list[bool | None] = []  # None, or for a `${` whether its template is html
    at = 0
    while marked := _MARKED.search(text, at):
        code.append(text[at : marked.start()])
        at, sign = marked.start(), marked[0]
        if sign == "{" or (sign == "}" and open_braces[-1] is None):
            _count(sign, open_braces)
            code.append(sign)
            at += 1
            continue
        if comment := _COMMENT.match(text, at):
            code.append(" ")
            at = comment.end()
            continue
        literal = _literal(text, at, sign, code)
        if literal == "/":
            code.append(literal)
        elif sign in "`}":
            is_html = open_braces.pop() if sign == "}" else _ends_with_html(code)
            literals.append(_shorter_markup(literal) if is_html else literal)
            code.append(_LITERAL)
            if literal.endswith("${"):
                open_braces.append(bool(is_html))
        else:
            literals.append(literal)
            code.append(_LITERAL)
        at += len(literal)
    code.append(text[at:])
    return "".join(code), literals


def _shorter_markup(literal: str) -> str:
    return _TAG_END.sub("<//>", _BREAK_AT_TAG.sub("", _LINE_BREAK.sub("\n", literal)))


def _count(sign: str, open_braces: list[bool | None]) -> None:
    if sign == "{":
        open_braces.append(None)
    else:
        open_braces.pop()


def _literal(text: str, at: int, sign: str, code: list[str]) -> str:
    """The literal that begins here; "/" where it divides."""
    if sign == "/":
        found = _REGEX.match(text, at) if _may_begin_regex(code) else None
        return found[0] if found else sign
    pattern = _TEMPLATE_PART if sign in "`}" else _STRING
    found = pattern.match(text, at)
    if found is None:
        raise ValueError(f"a text does not end: {text[at : at + 60]!r}")
    return found[0]


def _may_begin_regex(code: list[str]) -> bool:
    """A "/" after a value divides; elsewhere it begins a regular expression."""
    before = next((part.rstrip() for part in reversed(code) if part.strip(" \n")), "")
    if not before or before[-1] in ")]}" + _LITERAL:
        return not before
    word = _LAST_WORD.search(before)
    return word is None or word[0] in _BEFORE_REGEX or not word[0]


def _ends_with_html(code: list[str]) -> bool:
    return bool(code) and code[-1].endswith("html")
