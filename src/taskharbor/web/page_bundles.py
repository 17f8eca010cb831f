"""Joins the modules of the dashboard into two scripts, and its style sheets into one.

    app.js          the frame and the overview, and the vendored modules: what the first view needs
    pages/index.js  every other page; it imports what it shares from app.js

Fewer, larger files compress better than many small ones. The modules of a script share one scope, in the
order in which a browser would run them. So a name at the top of a module must be unique in all of them, an
import must not rename, and exports are plain: tests check it. Variables get short names. A vendored module
keeps its text, inside a function of its own, without the functions that no module imports.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import TypeAlias

from taskharbor.web.page_markup import without_markup
from taskharbor.web.page_names import shorten_names
from taskharbor.web.page_styles import (
    class_names,
    short_classes,
    shorten_css,
    with_short_classes,
    with_short_names,
)
from taskharbor.web.page_text import shorten_script
from taskharbor.web.page_vendor import Vendored

Imports: TypeAlias = Mapping[str, list[tuple[str, list[str]]]]
"""By module: the modules that it imports from, and what."""

FIRST = "app.js"
OTHERS = "pages/index.js"
STYLES = "styles.css"
_SHEETS = ("harbor.css", "shell.css", "pages.css")
_VENDOR = "vendor/"
_VENDORED = ("vendor/preact.js", "vendor/hooks.js")
"""In this order. The third one, htm, reads markup, of which none is sent."""
_IMPORT = re.compile(r'^import(?:\{([^}]*)\}| \w+ )from"([^"]+)";?\n?', re.MULTILINE)
_EXPORTED_LIST = re.compile(r"^export\{[^}]*\};?\n?", re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async function|function|const|let|class)\b)", re.MULTILINE)


def bundled(contents: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files that are sent, by name, made of those in `ui`."""
    texts = {name: content.decode() for name, content in contents.items() if name.endswith((".js", ".css"))}
    scripts = {name: shorten_script(without_markup(text)) for name, text in texts.items() if _is_own(name)}
    imports = {name: list(_imports(name, script)) for name, script in scripts.items()}
    first = _in_order(FIRST, imports, set())
    others = _in_order(OTHERS, imports, set(first))
    names = ",".join(sorted(_imported(others, imports, first)))
    back = posixpath.relpath(FIRST, posixpath.dirname(OTHERS))
    vendored = Vendored({name: texts[name] for name in _VENDORED}, _imported(scripts, imports, _VENDORED))
    joined = {
        FIRST: f"{vendored.declared}{_joined(first, scripts)}\nexport{{{names}}};\n",
        OTHERS: f'import{{{names}}}from"{back}";\n{_joined(others, scripts)}',
    }
    styles = "\n".join(shorten_css(texts[name]) for name in _SHEETS)
    known = class_names(styles)
    classes = short_classes(known)
    sent = {name: content for name, content in contents.items() if name not in texts}
    for name, script in shorten_names(
        joined, partial(with_short_classes, known=known, shorter=classes)
    ).items():
        sent[name] = vendored.put_into(script).encode()
    sent[STYLES] = with_short_names(styles, classes).encode()
    return sent


def _is_own(name: str) -> bool:
    return name.endswith(".js") and not name.startswith(_VENDOR)


def _imports(module: str, script: str) -> Iterator[tuple[str, list[str]]]:
    """The modules that a module imports from, and what."""
    for found in _IMPORT.finditer(script):
        path = posixpath.normpath(posixpath.join(posixpath.dirname(module), found[2]))
        yield path, [name for name in (found[1] or "").split(",") if name]


def _imported(by: Iterable[str], imports: Imports, modules: Collection[str]) -> set[str]:
    return {name for one in by for path, names in imports[one] if path in modules for name in names}


def _in_order(start: str, imports: Imports, known: set[str]) -> list[str]:
    """The modules that `start` needs, each after those that it imports; `known` ones are left out."""
    found: list[str] = []

    def visit(name: str) -> None:
        if name in known or not _is_own(name):
            return
        known.add(name)
        for path, _names in imports[name]:
            visit(path)
        found.append(name)

    visit(start)
    return found


def _joined(names: list[str], scripts: Mapping[str, str]) -> str:
    """One script of these modules: imports are gone, and exports but for those of the last."""

    def inside(name: str) -> str:
        text = _IMPORT.sub("", scripts[name])
        return (text if name == OTHERS else _EXPORT.sub("", _EXPORTED_LIST.sub("", text))).strip()

    return "\n".join(inside(name) for name in names)
