"""What a mutant is: one operator, number or condition of one file, changed.

Python files are changed in their syntax tree, so that lines keep their numbers. SQL and Lua files are
changed in their text, and only where tokens and ends of leases are compared.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "taskharbor"

_SWAPS: dict[type, type] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
}
_CHANGEABLE = (ast.Compare, ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.Constant)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
# A comparison with one of these words in it, or in such a function, decides who may write, and until when.
_CRITICAL = re.compile(r"token|expire|ends_at|fence|trusted|until|lease_for|worker_id|\.worker\b")
_CRITICAL_FUNCTION = re.compile(r"expire|lease|running")


@dataclass(frozen=True)
class Mutant:
    """One change. `function` is the outermost one around it; None: it acts while the module is imported."""

    path: str
    line: int
    last_line: int
    place: int
    change: int
    before: str
    after: str
    function: tuple[str, int] | None
    is_critical: bool

    @property
    def name(self) -> str:
        return f"{self.path}:{self.line}: `{self.before}` → `{self.after}`"

    @property
    def key(self) -> str:
        return f"{self.path}:{self.line}:{self.place}:{self.change}"

    @property
    def stamp(self) -> str:
        """The mutant and the text of the file that it is a mutant of."""
        return f"{self.key} {_digest(self.path)}"

    @property
    def is_python(self) -> bool:
        return self.path.endswith(".py")

    @property
    def is_cold(self) -> bool:
        """Whether it must be made before the module is imported."""
        return self.is_python and self.function is None


@cache
def _digest(path: str) -> str:
    return hashlib.sha256((PACKAGE / path).read_bytes()).hexdigest()[:10]


def mutants_of(path: str) -> list[Mutant]:
    """Every change that can be made to this file."""
    return list(_in_python(path) if path.endswith(".py") else _in_text(path))


# ------------------------------------------------------------------ Python


def _in_python(path: str) -> Iterator[Mutant]:
    tree = ast.parse((PACKAGE / path).read_text("utf-8"))
    left_alone = _left_alone(tree)
    functions = _functions(tree)
    for number, node in enumerate(ast.walk(tree)):
        if not isinstance(node, _CHANGEABLE) or node in left_alone:
            continue
        before = ast.unparse(node)
        for change in range(len(node.ops) if isinstance(node, ast.Compare) else 1):
            other = _copied(node)
            if not _mutate(other, change):
                continue
            yield Mutant(
                path=path,
                line=node.lineno,
                last_line=node.end_lineno or node.lineno,
                place=number,
                change=change,
                before=_short(before),
                after=_short(ast.unparse(other)),
                function=functions.get(node),
                is_critical=isinstance(node, ast.Compare) and _is_critical(before, functions.get(node)),
            )


def _is_critical(comparison: str, function: tuple[str, int] | None) -> bool:
    in_such = function is not None and _CRITICAL_FUNCTION.search(function[0])
    return bool(in_such or _CRITICAL.search(comparison))


def mutated_code(mutant: Mutant) -> CodeType:
    """The module, compiled with the change in it."""
    file = PACKAGE / mutant.path
    tree = ast.parse(file.read_text("utf-8"))
    for number, node in enumerate(ast.walk(tree)):
        if number == mutant.place:
            _mutate(node, mutant.change)
            break
    return compile(ast.fix_missing_locations(tree), str(file), "exec")


def _mutate(node: ast.AST, change: int) -> bool:
    if isinstance(node, ast.Compare) and type(node.ops[change]) in _SWAPS:
        node.ops[change] = _SWAPS[type(node.ops[change])]()
        return True
    if isinstance(node, ast.BoolOp | ast.BinOp) and type(node.op) in _SWAPS:
        node.op = _SWAPS[type(node.op)]()
        return True
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        node.operand = ast.UnaryOp(ast.Not(), node.operand)
        return True
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        node.value = not node.value
        return True
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        node.value += 1
        return True
    return False


def _copied(node: ast.AST) -> ast.AST:
    """A copy that `_mutate` may change without touching the tree."""
    other = copy(node)
    if isinstance(other, ast.Compare):
        other.ops = list(other.ops)
    return other


def _left_alone(tree: ast.AST) -> set[ast.AST]:
    """What no test can distinguish: `frozen=True`, `strict=True` and their like, annotations, log lines."""
    found: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            found.update(inner for keyword in node.keywords for inner in ast.walk(keyword))
            found.update(inner for mark in node.decorator_list for inner in ast.walk(mark))
        elif isinstance(node, ast.keyword) and node.arg == "strict":
            found.update(ast.walk(node))
        elif isinstance(node, ast.AnnAssign | ast.arg) and node.annotation is not None:
            found.update(ast.walk(node.annotation))
        elif isinstance(node, _FUNCTIONS) and node.returns is not None:
            found.update(ast.walk(node.returns))
        elif isinstance(node, ast.Call) and ast.unparse(node.func).startswith("_log."):
            found.update(ast.walk(node))
    return found


def _functions(tree: ast.AST) -> dict[ast.AST, tuple[str, int]]:
    """Node → the qualified name and first line of the outermost function whose body holds it."""
    found: dict[ast.AST, tuple[str, int]] = {}

    def look(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, _FUNCTIONS):
                first = min([child.lineno, *(mark.lineno for mark in child.decorator_list)])
                inside = (inner for statement in child.body for inner in ast.walk(statement))
                found.update(dict.fromkeys(inside, (prefix + child.name, first)))
            elif isinstance(child, ast.ClassDef):
                look(child, f"{prefix}{child.name}.")
            else:
                look(child, prefix)

    look(tree, "")
    return found


# ------------------------------------------------------------------ SQL and Lua

_OTHER_SIGN = {"<=": "<", "<": "<=", ">=": ">", ">": ">=", "=": "<>", "<>": "=", "==": "~=", "~=": "=="}
_SIGN = re.compile(r"(?<![<>=~:'-])(<=|>=|<>|==|~=|<|>|=)(?![<>=])")
_BREAK = re.compile(
    r"\b(where|and|or|on|when|if|elsif|elseif|while|not|returning|set|then|order|for)\b|[(,]|:="
)
_BEGINS_CONDITION = frozenset(
    ["where", "and", "or", "on", "when", "if", "elsif", "while", "not", "returning", "("]
)
# A column with the name of its table before it is never assigned to.
_COLUMN_OF_A_TABLE = re.compile(r"\s*\w+\.\w+\s*")
_NEXT_FENCE = re.compile(r"(?<=fence \+ )1")
# In Lua a range by score is a comparison: `(` leaves out what is at this very instant.
_UP_TO_NOW = re.compile(r"(?<='-inf', )(?=text\(now)")
_AFTER_NOW = re.compile(r"'\(' \.\. (?=text\(now\), '\+inf')")


def _in_text(path: str) -> Iterator[Mutant]:
    for number, line in enumerate((PACKAGE / path).read_text("utf-8").splitlines(), 1):
        bare = line.split("--", 1)[0]
        for start, end, after in _text_changes(bare, is_lua=path.endswith(".lua")):
            yield Mutant(
                path=path,
                line=number,
                last_line=number,
                place=start,
                change=end,
                before=bare[max(0, start - 45) : end + 30].strip(),
                after=after,
                function=None,
                is_critical=True,
            )


def _text_changes(line: str, *, is_lua: bool) -> Iterator[tuple[int, int, str]]:
    for match in _SIGN.finditer(line):
        if match[0] == "=" and (is_lua or not _is_condition(line[: match.start()])):
            continue  # an assignment
        if _CRITICAL.search(_operands(line, match)) or (is_lua and _is_about_now(line, match)):
            yield match.start(), match.end(), _OTHER_SIGN[match[0]]
    yield from ((match.start(), match.end(), "0") for match in _NEXT_FENCE.finditer(line))
    if is_lua:
        yield from ((match.start(), match.end(), "'(' .. ") for match in _UP_TO_NOW.finditer(line))
        yield from ((match.start(), match.end(), "") for match in _AFTER_NOW.finditer(line))


def _operands(line: str, match: re.Match[str]) -> str:
    """The words on the two sides of a sign, as far as the next word that joins conditions."""
    left, right = line[: match.start()], line[match.end() :]
    before = max((found.end() for found in _BREAK.finditer(left) if found[0] not in "(,"), default=0)
    after = _BREAK.search(right)
    return left[before:] + right[: after.start() if after else None]


def _is_about_now(line: str, match: re.Match[str]) -> bool:
    return re.match(r"\s*now\b", line[match.end() :]) is not None


def _is_condition(left: str) -> bool:
    """Whether an equals sign after this text compares."""
    words = [match[0] for match in _BREAK.finditer(left)]
    if not words:
        return _COLUMN_OF_A_TABLE.fullmatch(left) is not None
    return words[-1] in _BEGINS_CONDITION


def mutated_text(mutant: Mutant) -> str:
    """The file with the change in it."""
    lines = (PACKAGE / mutant.path).read_text("utf-8").splitlines(keepends=True)
    line = lines[mutant.line - 1]
    lines[mutant.line - 1] = line[: mutant.place] + mutant.after + line[mutant.change :]
    return "".join(lines)


def _short(text: str) -> str:
    return text if len(text) <= 90 else f"{text[:87]}…"
