"""Makes a vendored module a part of the first script: in a function, so that its short names meet no others.

    import{options as n}from"./preact.js";…;export{b as useCallback,j as useContext};

becomes `(n=>{…;return[b]})` where only `useCallback` is imported. A function that is exported to nobody, and
that nothing else in the module means, is left out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from taskharbor.web.page_scopes import Scopes
from taskharbor.web.page_text import LITERAL, put_together

_IMPORTED = re.compile(r'^import\{(\w+) as (\w+)\}from"[^"]+";')
_EXPORTED = re.compile(r"export\{([^}]*)\};?\s*\Z")


class Vendored:
    """Vendored modules, each after those that it imports from.

    `declared` belongs before the first script. It declares what is wanted of each module, with the name of
    the module as a text in place of its function. `put_into` replaces these texts when names are short.
    """

    def __init__(self, modules: Mapping[str, str], imported: set[str]) -> None:
        needed = imported | {found[1] for text in modules.values() if (found := _IMPORTED.match(text))}
        self.declared = ""
        self._functions: dict[str, str] = {}
        for name, text in modules.items():
            names = _exported(text)
            wanted = [public for public in names if public in needed]
            argument = found[1] if (found := _IMPORTED.match(text)) else ""
            self.declared += f'const[{",".join(wanted)}]="{name}"({argument});'
            self._functions[f'"{name}"'] = _as_function(text, [names[public] for public in wanted])

    def put_into(self, script: str) -> str:
        for text, function in self._functions.items():
            script = script.replace(text, function)
        return script


def _exported(module: str) -> dict[str, str]:
    """Its own names of what it exports, by the public ones."""
    listed = _EXPORTED.search(module)
    if listed is None:
        raise ValueError(f"no list of exports at the end: {module[-60:]!r}")
    pairs = (pair.split(" as ") for pair in listed[1].split(","))
    return {public: own for own, public in pairs}


def _as_function(module: str, returned: Sequence[str]) -> str:
    imported = _IMPORTED.match(module)
    body = _EXPORTED.sub("", _IMPORTED.sub("", module)).strip()
    unwanted = set(_exported(module).values()).difference(returned)
    argument = imported[2] if imported else "()"
    return f"({argument}=>{{{_without_functions(body, unwanted)}return[{','.join(returned)}]}})"


def _without_functions(body: str, names: Iterable[str]) -> str:
    """The same without those of these functions that nothing but their own declaration means."""
    scopes = Scopes(body)
    code, literals = scopes.code, scopes.literals
    uses = Counter(use.symbol for use in scopes.uses)
    starts = [code.find(f"function {one}(") for one in names if uses[scopes.all[0].symbols.get(one)] == 1]
    for start in sorted(starts, reverse=True):
        if start >= 0:
            end = _after_block(code, code.index("{", start))
            first, inside = code[:start].count(LITERAL), code[start:end].count(LITERAL)
            code, literals = code[:start] + code[end:], [*literals[:first], *literals[first + inside :]]
    return put_together(code, literals)


def _after_block(code: str, at: int) -> int:
    depth = 0
    for found in re.finditer(r"[{}]", code[at:]):
        depth += 1 if found[0] == "{" else -1
        if depth == 0:
            return at + found.end()
    raise ValueError("a block does not end")
