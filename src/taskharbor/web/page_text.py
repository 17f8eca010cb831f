"""Removes from the dashboard's own scripts what only readers need: comments, indentation, spaces.

The files in `ui` are written for people, and no build step changes them: the server shortens what it sends.
Strings, templates and regular expressions stay as they are, and so do line breaks where a statement may end.
`page_markup` makes calls of the markup in templates, `page_names` shortens names.
"""

from __future__ import annotations

import re

LITERAL = "\0"
"""In place of a string, a regular expression or a part of a template while code around it is shortened."""
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
_NEEDLESS = re.compile(r"(?<=[;}])\n|\n(?=\.)|;(?=\})|,(?=[\]}])")
_CONSTANT = re.compile(r"(?<![\w$.])(?:true|false|undefined)(?![\w$])")
_SHORT_CONSTANTS = {"true": "!0", "false": "!1", "undefined": "void 0"}
_ONE_PARAMETER = re.compile(r"(\w?)\(([\w$]+)\)=>")
_DECLARED = re.compile(r"[([{)\]}]|(;|export )?\b(const|let)\b ?|;")


def shorten_script(text: str) -> str:
    """The same program without comments, and with fewer spaces."""
    code, literals = taken_apart(text)
    code = _SPACES.sub(" ", _LINE_BREAK.sub("\n", code))
    code = _SAME_SIGNS.sub(r"\1" + _KEPT_SPACE, code)
    code = _BREAK_IN_BRACKETS.sub("", _SPACE.sub("", code)).replace(_KEPT_SPACE, " ")
    return put_together(code.strip(), literals)


def tighten(code: str) -> str:
    """Code that was taken apart, with fewer signs; its statements end with a semicolon or a brace."""
    code = _NEEDLESS.sub("", _with_one_let(_NEEDLESS.sub("", code)))
    code = _CONSTANT.sub(lambda found: _SHORT_CONSTANTS[found[0]], code)
    return _ONE_PARAMETER.sub(lambda found: f"{found[1]} {found[2]}=>".lstrip(), code)


def _with_one_let(code: str) -> str:
    """`const a=1;const b=2;` becomes `let a=1,b=2;`."""
    is_declaring = [False]

    def shorter(found: re.Match[str]) -> str:
        sign = found[0]
        if sign in "([{":
            is_declaring.append(False)
        elif sign in ")]}":
            is_declaring.pop()
        elif sign == ";":
            is_declaring[-1] = False
        else:
            goes_on = found[1] == ";" and is_declaring[-1]
            is_declaring[-1] = found[1] != "export "
            return "," if goes_on else sign.replace("const", "let")
        return sign

    return _DECLARED.sub(shorter, code)


def put_together(code: str, literals: list[str]) -> str:
    """The text of which `taken_apart` made this."""
    rest = iter(literals)
    return re.sub(LITERAL, lambda _found: next(rest), code)


def taken_apart(text: str) -> tuple[str, list[str]]:
    """The code with `LITERAL` in place of every literal and no comments; and the literals in order."""
    code: list[str] = []
    literals: list[str] = []
    is_in_template: list[bool] = []  # for each open brace, whether it is the `${` of a template
    at = 0
    while marked := _MARKED.search(text, at):
        code.append(text[at : marked.start()])
        at, sign = marked.start(), marked[0]
        if sign == "{" or (sign == "}" and not is_in_template[-1]):
            _count(sign, is_in_template)
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
        else:
            literals.append(literal)
            code.append(LITERAL)
            if sign == "}":
                is_in_template.pop()
            if sign in "`}" and literal.endswith("${"):
                is_in_template.append(True)
        at += len(literal)
    code.append(text[at:])
    return "".join(code), literals


def _count(sign: str, is_in_template: list[bool]) -> None:
    if sign == "{":
        is_in_template.append(False)
    else:
        is_in_template.pop()


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
    if not before or before[-1] in ")]}" + LITERAL:
        return not before
    word = _LAST_WORD.search(before)
    return word is None or word[0] in _BEFORE_REGEX or not word[0]
